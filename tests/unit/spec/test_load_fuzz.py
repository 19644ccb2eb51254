"""Whatever is in the file: a spec, or a ConfigError whose every problem names a place."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankzero.errors import ConfigError
from rankzero.spec.fields import all_fields
from rankzero.spec.load import Setting, load_run_spec
from rankzero.spec.run_spec import RunSpec

FIELDS = [field for field in all_fields(RunSpec) if "[]" not in field]
KEYS = st.sampled_from(sorted({part for field in FIELDS for part in field.split(".")} | {"path", "lr", "zzz", "0", ""}))
SCALARS = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.sampled_from(["auto", "epoch", "x", ""])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3))
SETTINGS = st.builds(Setting, st.sampled_from(FIELDS), VALUES, st.just("--flag"), st.booleans())


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=5), st.lists(SETTINGS, max_size=3))
def test_trees(tmp_path: Path, tree: dict[str, object], overrides: list[Setting]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert_loads_or_explains(path, overrides)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet="abmodel:{}[],-&*!<|>'\"#%@ \n\t$1.~?", max_size=40))
def test_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    assert_loads_or_explains(path, [])


def assert_loads_or_explains(path: Path, overrides: list[Setting]) -> None:
    try:
        load_run_spec(path, overrides, env={})
    except ConfigError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.where.startswith((str(path), "--flag"))
            assert problem.what
