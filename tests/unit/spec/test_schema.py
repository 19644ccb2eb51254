"""The shipped JSON schemas, the pages and the models are one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from rankzero.cli.init import RECIPES, recipe_files
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.fields import all_fields, field_at
from rankzero.spec.infra_spec import InfraSpec
from rankzero.spec.reference import PAGES, reference_text
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.schema import FILES, schema_text
from rankzero.spec.sweep_spec import SweepSpec

MODELS = [RunSpec, ClusterSpec, InfraSpec, SweepSpec]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_fresh(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == schema_text(FILES[file]), "run: make schema"


@pytest.mark.parametrize("model", MODELS)
def test_it_refuses_unknown_keys_everywhere(model: type[BaseModel]) -> None:
    schema: dict[str, Any] = json.loads(schema_text(model))
    sections = [section for section in [schema, *schema["$defs"].values()] if section["type"] == "object"]
    assert sections and all(section["additionalProperties"] is False for section in sections)


def written_specs() -> Iterator[tuple[str, type[BaseModel], Any]]:
    """What is shipped to start from, variables and all, as an editor parses it."""
    for name in RECIPES:
        for file, model in (("run.yaml", RunSpec), ("cluster.yaml", ClusterSpec)):
            yield f"{name}/{file}", model, as_editors_read(recipe_files(name)[file])
        if "infra.yaml" in recipe_files(name):
            yield f"{name}/infra.yaml", InfraSpec, as_editors_read(recipe_files(name)["infra.yaml"])


def as_editors_read(text: str) -> Any:
    """YAML 1.2 numbers, as in `2e-4`; nothing of ours."""

    class Loader(yaml.SafeLoader):
        """With one more notation."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[0-9]+e-?[0-9]+"), list("0123456789"))
    return yaml.load(text, Loader=Loader)  # noqa: S506 - a SafeLoader


@pytest.mark.parametrize(("name", "model", "value"), list(written_specs()), ids=lambda value: str(value)[:40])
def test_editors_find_nothing_wrong_with_what_is_shipped(name: str, model: type[BaseModel], value: Any) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(schema_text(model)))
    assert [error.message for error in validator.iter_errors(value)] == [], name


@pytest.mark.parametrize(
    "value",
    [
        {"train": {"seed": "x"}},
        {"train": {"global_batch_size": [1, "two"]}},
        {"lora": {"rank": 3}},
        {"model": {"dtype": "half"}},
    ],
)
def test_editors_find_mistakes(value: dict[str, Any]) -> None:
    spec = {"model": {"name": "m"}, "data": {"train": "t"}} | value
    spec["model"] = {"name": "m"} | spec["model"]
    validator = jsonschema.Draft202012Validator(json.loads(schema_text(RunSpec)))
    assert not validator.is_valid(spec)


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
