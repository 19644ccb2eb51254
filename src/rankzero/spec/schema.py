"""The JSON schema of run.yaml, for editors. `python -m rankzero.spec.schema` rewrites run.schema.json beside this."""

from __future__ import annotations

import json
from pathlib import Path

from rankzero.spec.run_spec import RunSpec

SCHEMA_FILE = Path(__file__).with_name("run.schema.json")


def schema_text() -> str:
    """The schema as the file holds it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunSpec.model_json_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Rewrite the file."""
    SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
