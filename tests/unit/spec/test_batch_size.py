"""A batch size as a number or as factors."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.errors import ConfigError
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import product

SETTINGS = ["model.name=m", "data.train=t.jsonl"]
FACTORS = """model: {name: m}
data: {train: t.jsonl}
train:
  global_batch_size:
    - ${BATCH:-1}
    - ${GRAD_ACC:-16}
    - ${NPROC:-2}
"""


@pytest.mark.parametrize(
    ("written", "meant"),
    [([2, 8, 4], 64), ((3,), 3), (["2", 8], 16), (7, 7), ("7", "7"), (None, None)],
)
def test_factors_are_multiplied(written: object, meant: object) -> None:
    assert product(written) == meant


@pytest.mark.parametrize("value", [[], [2, 0], [2, -1, -1], [2, 1.5], [2, "x"], [True, 2], [2, None]])
def test_what_is_no_factor_is_left_to_the_field(value: list[object]) -> None:
    assert product(value) is value


@pytest.mark.parametrize(
    ("env", "size"),
    [({}, 32), ({"BATCH": "2", "GRAD_ACC": "4", "NPROC": "8"}, 64), ({"NPROC": "1"}, 16)],
)
def test_variables_as_factors(tmp_path: Path, env: dict[str, str], size: int) -> None:
    (tmp_path / "run.yaml").write_text(FACTORS, encoding="utf-8")
    assert load_run_spec(tmp_path / "run.yaml", env=env).spec.train.global_batch_size == size


def test_on_the_command_line() -> None:
    assert (
        load_run_spec(None, [*SETTINGS, "train.global_batch_size=[2, 8, 4]"], env={}).spec.train.global_batch_size == 64
    )
    with pytest.raises(ConfigError, match=r"train.global_batch_size\[1\]: must be a whole number of at least 1"):
        load_run_spec(None, [*SETTINGS, "train.global_batch_size=[2, 0]"], env={})
    with pytest.raises(ConfigError, match="train.global_batch_size: must be a whole number .* but is an empty list"):
        load_run_spec(None, [*SETTINGS, "train.global_batch_size=[]"], env={})
    with pytest.raises(ConfigError, match="lora.r: must be a whole number of at least 1, but is a list"):
        load_run_spec(None, [*SETTINGS, "lora.r=[8, x]"], env={})


@pytest.mark.parametrize(
    ("env", "line", "factor", "value"),
    [({"BATCH": "0"}, 5, 0, "0"), ({"NPROC": "auto"}, 7, 2, '"auto"'), ({"GRAD_ACC": "1.5"}, 6, 1, "1.5")],
)
def test_a_factor_that_is_none_is_named_at_its_line(
    tmp_path: Path, env: dict[str, str], line: int, factor: int, value: str
) -> None:
    """Where the variable stands that it came from."""
    path = tmp_path / "run.yaml"
    path.write_text(FACTORS, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_run_spec(path, env=env)
    (problem,) = caught.value.problems
    assert problem.where == f"{path}:{line} train.global_batch_size[{factor}]"
    assert problem.what == f"must be a whole number of at least 1, but is {value}"
    assert "A list is a product" in problem.hint
