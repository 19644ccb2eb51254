"""Objects as text, and what they contain as a hash. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import yaml

from rankzero.launch.labels import Manifest
from rankzero.launch.untyped_json import at
from rankzero.spec.yaml_tree import plain_value

SCRIPT = "script"
"""Field of an object's spec that is all of it (launch/kinds/slurm.py)."""
_LONGEST_LINE = 800
_NOT_THE_RUN = ("PersistentVolumeClaim",)


_OF_GO = re.compile(r"[yYnN]|[-+]?0([xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
"""What kubectl takes for a number or a truth value, and neither YAML 1.1 as the library knows it nor our own reading
does."""


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Block style, no anchors, text of several lines as it reads, and in quotes what another reader may take for
    something else than text: a digest such as 12e4567 is a number of YAML 1.2."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value and not any(line.endswith((" ", "\t")) for line in value.split("\n")) else None
    digits = value.replace("_", "")  # which kubectl does before it looks for numbers
    if plain_value(value) != value or plain_value(digits) != digits or _OF_GO.fullmatch(digits):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(objects: Sequence[Manifest]) -> str:
    """One multi-document text."""
    return "---\n".join(to_document(manifest) for manifest in objects)


def to_document(manifest: Manifest) -> str:
    """One object's text; of a script that is the script."""
    script = at(manifest, "spec").get(SCRIPT)
    if isinstance(script, str):
        return script
    text: str = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return text


def shortened(value: Any) -> Any:
    """The same with a word in place of every long line, such as the files that are shipped, for a person to read."""
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value]
    if isinstance(value, str) and max(map(len, value.split("\n"))) > _LONGEST_LINE:
        return f"<{len(value):,} characters>"
    return value


def content_hash(objects: Sequence[Manifest]) -> str:
    """Tells one rendering of a run from another; claims outlive runs and do not count."""
    counted = [manifest for manifest in objects if manifest["kind"] not in _NOT_THE_RUN]
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


def file_name(index: int, manifest: Manifest) -> str:
    """`03-service-my-run.yaml`: in the order of application."""
    ending = "sbatch" if SCRIPT in at(manifest, "spec") else "yaml"
    return f"{index:02}-{manifest['kind'].lower()}-{manifest['metadata']['name']}.{ending}"
