"""docs/reference.md, cluster.md, infra.md and sweep.md: every field of the specs, from the models.

`make schema` writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.fields import Option, field_options, in_words, keys_of, options_of
from rankzero.spec.infra_spec import InfraSpec
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sweep_spec import SweepSpec

_HEADS = {
    "reference.md": """# Reference: the fields of run.yaml

Made from the models by `make schema`. A field that is left out has its default; an unknown one is an error. Values may
come from the environment (`${NAME}`, `${NAME:-default}`), and any field can be set on the command line
(`rankzero train run.yaml train.learning_rate=1e-4`). Relative paths are relative to the file, typed ones to the working
directory. `rankzero init --schema` writes the JSON schema of these fields, `spec/run.schema.json` in the installed
package, beside run.yaml, and the line there by which editors find it:
`# yaml-language-server: $schema=run.schema.json`.
""",
    "cluster.md": """# Reference: the fields of cluster.yaml

Made from the models by `make schema`. Where a run goes, and nothing of what it is. Values may come from the environment
(`${NAME}`, `${NAME:-default}`), and any field can be set on the command line of `rankzero render` and `rankzero submit`
(`cluster.num_nodes=4`). `*` stands for a name that you choose. The JSON schema is `spec/cluster.schema.json` in the
installed package; `rankzero init --recipe NAME --schema` writes it beside cluster.yaml, and the line by which editors
find it.

No secret belongs in it: manifests and scripts are made of it. Refused are passwords in URLs; tokens of known shapes in
`env`, `annotations`, `pod_patch`, URLs of `storage`, `slurm.setup` and `slurm.options`; and literal values of variables
whose names are those of secrets, in `env`, in the `env` of `pod_patch`, and as NAME=value in `slurm.setup` and in
`command` and `args` of `pod_patch`. A switch, a small number, a path, a URL and a reference are taken for no secret.
Nothing else is looked at: neither options such as `--password`, nor keys of annotations and of volumes' attributes. But
for `env`, it is looked for where manifests and scripts are made (submit, render, plan, `dev up`): a file with a secret
still finds runs that are under way.
""",
    "infra.md": """# Reference: the fields of infra.yaml

Made from the models by `make schema`. The cluster that `rankzero cluster` makes ([provision.md](provision.md)). Values
may come from the environment (`${NAME}`, `${NAME:-default}`). The JSON schema is `spec/infra.schema.json` in the
installed package; `rankzero init --recipe NAME --schema` writes it beside infra.yaml, and the line by which editors
find it.
""",
    "sweep.md": """# Reference: the fields of sweep.yaml

Made from the models by `make schema`. What `rankzero sweep` searches; [sweeps.md](sweeps.md) says how. Values may come
from the environment (`${NAME}`, `${NAME:-default}`), and any field can be set on the command line
(`rankzero sweep sweep.yaml trials=40`). `*` stands for a field of the run spec. The JSON schema is
`spec/sweep.schema.json` in the installed package.
""",
}
PAGES: dict[str, type[BaseModel]] = {
    "reference.md": RunSpec,
    "cluster.md": ClusterSpec,
    "infra.md": InfraSpec,
    "sweep.md": SweepSpec,
}


def reference_text(page: str = "reference.md") -> str:
    """A page by its file name."""
    model = PAGES[page]
    parts = [_HEADS[page], "\n## Top level\n\n", *_table(model, "")]
    for prefix, section in _sections(model, ""):
        parts += [f"\n## {prefix}\n\n{_one_line(section.__doc__ or '')}\n\n", *_table(section, f"{prefix}.")]
    return "".join(parts)


def _sections(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Sections by their dotted names, outer ones first; alternatives of a list or a path have no table of their own."""
    for name, info in keys_of(model).items():
        for option in field_options(info):
            inner, path = _inner(option), f"{prefix}{name}"
            if inner is None or (option.section is not None and len(_kinds(field_options(info))) > 1):
                continue
            path = path if option.section is not None else f"{path}.*"
            yield path, inner
            yield from _sections(inner, f"{path}.")


def _inner(option: Option) -> type[BaseModel] | None:
    """The section that a field is, or holds by name."""
    if option.section is not None or get_origin(option.kind) is not dict:
        return option.section
    return next((item.section for item in options_of(get_args(option.kind)[1]) if item.section), None)


def _kinds(options: list[Option]) -> list[Option]:
    return [option for option in options if option.kind is not type(None)]


def _table(section: type[BaseModel], prefix: str) -> list[str]:
    lines = ["| field | takes | default | meaning |\n|---|---|---|---|\n"]
    for name, info in keys_of(section).items():
        options = field_options(info)
        if len(_kinds(options)) == 1 and any(option.section for option in options):
            continue  # a section of its own
        default = "required" if info.default is PydanticUndefined else f"`{json.dumps(info.default)}`"
        cells = [f"`{prefix}{name}`", in_words(options), default, _one_line(info.description or "")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    """`python -m rankzero.spec.reference docs`."""
    for page in PAGES:
        (Path(sys.argv[1]) / page).write_text(reference_text(page), encoding="utf-8")


if __name__ == "__main__":
    main()
