"""docs/reference.md: every field of the run spec, from the models. Pure; `make schema` writes it beside the schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rankzero.spec.fields import field_options, in_words
from rankzero.spec.run_spec import RunSpec

_HEAD = """# Reference: the fields of run.yaml

Made from the models by `make schema`. A field that is left out has its default; an unknown one is an error. Values may
come from the environment (`${NAME}`, `${NAME:-default}`), and any field can be set on the command line
(`rankzero train run.yaml train.learning_rate=1e-4`).
"""


def reference_text() -> str:
    """The page."""
    parts = [_HEAD, "\n## Top level\n\n", *_table(RunSpec, "")]
    for name, info in RunSpec.model_fields.items():
        for option in field_options(info):
            if option.section is not None:
                parts += [
                    f"\n## {name}\n\n{_one_line(option.section.__doc__ or '')}\n\n",
                    *_table(option.section, f"{name}."),
                ]
    return "".join(parts)


def _table(section: type[BaseModel], prefix: str) -> list[str]:
    lines = ["| field | takes | default | meaning |\n|---|---|---|---|\n"]
    for name, info in section.model_fields.items():
        options = field_options(info)
        if not prefix and any(option.section for option in options):
            continue  # a section of its own
        default = "required" if info.default is PydanticUndefined else f"`{json.dumps(info.default)}`"
        cells = [f"`{prefix}{name}`", in_words(options), default, _one_line(info.description or "")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())


def main() -> None:
    """`python -m rankzero.spec.reference docs/reference.md`."""
    Path(sys.argv[1]).write_text(reference_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
