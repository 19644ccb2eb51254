"""A run on a GPU that was stopped and continued ends as if nothing had happened, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import StoppedError
from tests.gpu.support import deterministic, gpu_spec, needs, on_gpu
from tests.support.runs import metrics, run_here, run_root, stop_in
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock

pytestmark = on_gpu

METHODS: dict[str, dict[str, Any]] = {
    "lora": {"lora__dropout": 0.1},
    "full": {"lora": None},
    "kahan": {"lora": None, "train__master_weights": "kahan"},
    "stochastic_rounding": {"lora": None, "train__master_weights": "stochastic_rounding"},
    "nf4": {"model__quantization": "nf4"},
    "adamw_8bit": {"lora": None, "train__optimizer": "adamw_8bit"},
    "float16": {"model__dtype": "float16", "lora__dropout": 0.1},
}
BITS = {"nf4", "adamw_8bit"}


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=needs("bitsandbytes") if name in BITS else ()) for name in METHODS]
)
def test_stopped_and_continued_is_bit_exact(method: str, tmp_path: Path, tiny: Path) -> None:
    with deterministic():
        whole = gpu_spec(tmp_path / "whole", tiny, **METHODS[method])
        run_here(whole)
        cut = gpu_spec(tmp_path / "cut", tiny, **METHODS[method])
        with pytest.raises(StoppedError):
            run_here(cut, hooks=stop_in(3))
        assert len(metrics(cut)) == 3
        assert run_here(cut)["steps"] == 6
    assert_same_state(final_state(cut), final_state(whole))
    assert without_clock(metrics(cut)) == without_clock(metrics(whole))
    first, second = (
        {path.name: path.read_bytes() for path in (run_root(spec) / "final").glob("*.safetensors")}
        for spec in (whole, cut)
    )
    assert first and first == second
