"""The shipped JSON schemas, the pages and the models are one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.fields import all_fields, field_at
from rankzero.spec.reference import PAGES, reference_text
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schema import FILES, schema_text

MODELS = [RunSpec, ClusterSpec]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_fresh(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == schema_text(FILES[file]), "run: make schema"


@pytest.mark.parametrize("model", MODELS)
def test_it_refuses_unknown_keys_everywhere(model: type[BaseModel]) -> None:
    schema: dict[str, Any] = json.loads(schema_text(model))
    assert all(section["additionalProperties"] is False for section in [schema, *schema["$defs"].values()])


@pytest.mark.parametrize("model", MODELS)
def test_every_field_says_what_it_is(model: type[BaseModel]) -> None:
    for name in all_fields(model):
        info = field_at(model, tuple(0 if part == "" else part for part in name.replace("[]", ".").split(".")))
        section = info is not None and isinstance(info.default, BaseModel)
        assert section or name in ("model", "data", "lora") or (info is not None and info.description), name


@pytest.mark.parametrize("page", PAGES)
def test_the_reference_pages_are_fresh(page: str) -> None:
    path = Path(__file__).parents[3] / "docs" / page
    assert path.read_text(encoding="utf-8") == reference_text(page), "run: make schema"
