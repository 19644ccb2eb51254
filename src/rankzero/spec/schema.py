"""The JSON schemas of run.yaml and cluster.yaml, for editors. `python -m rankzero.spec.schema` rewrites the files."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.run_spec import RunSpec

FILES: dict[Path, type[BaseModel]] = {
    Path(__file__).with_name("run.schema.json"): RunSpec,
    Path(__file__).with_name("cluster.schema.json"): ClusterSpec,
}


def schema_text(model: type[BaseModel]) -> str:
    """The schema as its file holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Rewrite the files."""
    for file, model in FILES.items():
        file.write_text(schema_text(model), encoding="utf-8")


if __name__ == "__main__":
    main()
