"""The JSON schemas of the specs, for editors. `python -m rankzero.spec.schema` rewrites the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.infra_spec import InfraSpec
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sweep_spec import SweepSpec

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES: dict[Path, type[BaseModel]] = {
    Path(__file__).with_name("run.schema.json"): RunSpec,
    Path(__file__).with_name("cluster.schema.json"): ClusterSpec,
    Path(__file__).with_name("infra.schema.json"): InfraSpec,
    Path(__file__).with_name("sweep.schema.json"): SweepSpec,
}


_VARIABLE = {
    "type": "string",
    "pattern": r"\$\{[^}]*\}",
    "description": "A value from the environment: ${NAME} or ${NAME:-default}.",
}
_ABOUT = ("title", "description", "default")


def schema_text(model: type[BaseModel]) -> str:
    """The schema as its file holds it. It is of files as they are written: any value may come from a variable."""
    schema = model.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        section["properties"] = {name: _or_variable(value) for name, value in section["properties"].items()}
    schema["$defs"]["Variable"] = _VARIABLE
    return json.dumps({"$schema": _DIALECT, **schema}, indent=2, ensure_ascii=False) + "\n"


def _or_variable(value: dict[str, Any]) -> dict[str, Any]:
    """What a field, or an item of a list, takes, or a variable that becomes that; sections are written out."""
    if "$ref" in value:
        return value
    about = {key: value[key] for key in _ABOUT if key in value}
    rest = {key: inner for key, inner in value.items() if key not in _ABOUT}
    options = [_of_items(option) for option in rest.get("anyOf", [rest])]
    if {"type": "string"} in options:
        return {**about, "anyOf": options} if "anyOf" in rest else {**about, **options[0]}
    return {**about, "anyOf": [*options, {"$ref": "#/$defs/Variable"}]}


def _of_items(option: dict[str, Any]) -> dict[str, Any]:
    inner = {key: option.get(key) for key in ("items", "additionalProperties")}
    return option | {key: _or_variable(value) for key, value in inner.items() if isinstance(value, dict)}


def main() -> None:
    """Rewrite the files."""
    for file, model in FILES.items():
        file.write_text(schema_text(model), encoding="utf-8")


if __name__ == "__main__":
    main()
