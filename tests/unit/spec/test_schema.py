"""The shipped JSON schema and the models are one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankzero.spec.fields import all_fields, field_at
from rankzero.spec.reference import reference_text
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schema import SCHEMA_FILE, schema_text


def test_it_is_fresh() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), "run: python -m rankzero.spec.schema"


def test_it_refuses_unknown_keys_everywhere() -> None:
    schema: dict[str, Any] = json.loads(schema_text())
    assert all(section["additionalProperties"] is False for section in [schema, *schema["$defs"].values()])


def test_every_field_says_what_it_is() -> None:
    for name in all_fields(RunSpec):
        info = field_at(RunSpec, tuple(0 if part == "" else part for part in name.replace("[]", ".").split(".")))
        sections = {"model", "data", "lora", "train", "eval", "checkpoint", "tracking"}
        assert name in sections or (info is not None and info.description), name


def test_the_reference_page_is_fresh() -> None:
    page = Path(__file__).parents[3] / "docs/reference.md"
    assert page.read_text(encoding="utf-8") == reference_text(), "run: make schema"
