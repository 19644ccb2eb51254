"""What a run needs and is not installed is told before rows become tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.api import installed
from rankzero.api.training import require_startable
from rankzero.errors import ConfigError
from rankzero.spec.run_options import RunOptions, SmokeSettings
from tests.support.runs import small_spec


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training stack, and no extra."""
    extras = ("deepspeed", "bitsandbytes", "liger_kernel", "kernels", "flash_attn", "flash_attn_interface")
    monkeypatch.setattr(installed, "_is_there", lambda module: module not in extras)


@pytest.mark.parametrize(
    ("change", "field", "hint"),
    [
        ({"train__sharding": "zero2"}, "train.sharding", "'rankzero[deepspeed]', or take train.sharding: fsdp"),
        ({"model__quantization": "nf4"}, "model.quantization", "'rankzero[quantization]'"),
        ({"train__optimizer": "adamw_8bit"}, "train.optimizer", "'rankzero[quantization]', or take optimizer: adamw"),
    ],
)
def test_an_extra_that_is_missing(tmp_path: Path, change: dict[str, Any], field: str, hint: str) -> None:
    spec = small_spec(tmp_path, tmp_path, **change)
    with pytest.raises(ConfigError) as raised:
        require_startable(spec, RunOptions(), 1)
    assert [(one.where, one.hint) for one in raised.value.problems] == [(field, f"pip install {hint}")]


def test_of_what_only_gpus_use_the_engine_tells(tmp_path: Path) -> None:
    """On a CPU it is not its lack that is wrong."""
    require_startable(small_spec(tmp_path, tmp_path, model__kernels="liger"), RunOptions(), 1)


def test_neither_a_finished_run_nor_a_test_of_the_place_needs_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tmp_path, train__sharding="zero2")
    require_startable(spec, RunOptions(smoke=SmokeSettings()), 1)
    monkeypatch.setattr("rankzero.run_dir.setting.is_finished", lambda _run_dir, _spec: True)
    require_startable(spec, RunOptions(), 1)
