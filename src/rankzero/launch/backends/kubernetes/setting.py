"""Whether a finished run of the same name was of another setting, from what each was given. Pure."""

from __future__ import annotations

import json

import yaml

from rankzero.errors import Problem
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.untyped_json import at, text
from rankzero.spec.diff import compare, name_beside
from rankzero.spec.run_spec import RunSpec


def another_setting(config: Manifest, there: Manifest | None) -> list[Problem]:
    """Why the directory of the run that `there` describes cannot take the one that `config` describes.

    Both are ConfigMaps. A run that finished has left checkpoints, so its pods would refuse with exit code 78.
    """
    if config["kind"] != "ConfigMap" or there is None:
        return []
    old, new = _spec(there), _spec(config)
    if old is None or new is None or new.resume != "refuse" or (old.name, old.output_dir) != (new.name, new.output_dir):
        return []
    allowed = NodeSettings.from_json(text(config, "data", "node.json")).options.allow_changes
    changes = [
        Problem(
            f"{json.dumps(change.old)} in the finished run, {json.dumps(change.new)} now",
            change.field,
            f"set it back, or pass --allow-change {change.field}",
        )
        for change in compare(old, new)
        if not change.harmless and change.field not in allowed
    ]
    if not changes:
        return []
    head = Problem(
        f"the run {new.name} has finished, and this is another setting of it",
        f"{new.output_dir}/{new.name}",
        f"give this run another name, such as name={name_beside(new)} (resume=new does that by itself); or undo the "
        "changes below; or accept them one by one, or all with resume=continue",
    )
    return [head, *changes]


def _spec(config: Manifest) -> RunSpec | None:
    """None where it was written by another version, whose spec says things that this one does not know."""
    try:
        return RunSpec.model_validate(yaml.safe_load(str(at(config, "data").get("run.yaml", ""))))
    except (ValueError, yaml.YAMLError):
        return None
