"""Compiled blocks on a GPU compute what the others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.support import gpu_spec, losses, needs, on_gpu

pytestmark = on_gpu


@pytest.mark.parametrize("method", [{}, {"lora": None}], ids=["adapters", "full"])
def test_compiled_losses_are_the_same(method: dict[str, Any], tmp_path: Path, tiny: Path) -> None:
    plain = losses(gpu_spec(tmp_path / "plain", tiny, **method))
    compiled = losses(gpu_spec(tmp_path / "compiled", tiny, **method, train__torch_compile=True))
    assert compiled == pytest.approx(plain, rel=1e-2)


@needs("liger_kernel")
def test_fused_layers_give_the_same_losses(tmp_path: Path, tiny: Path) -> None:
    plain = losses(gpu_spec(tmp_path / "plain", tiny))
    fused = losses(gpu_spec(tmp_path / "fused", tiny, model__kernels="liger"))
    assert fused == pytest.approx(plain, rel=1e-2)


@pytest.mark.parametrize("switch", ["train__gradient_checkpointing", "train__activation_offloading"])
def test_saving_memory_changes_no_loss(switch: str, tmp_path: Path, tiny: Path) -> None:
    plain = losses(gpu_spec(tmp_path / "plain", tiny, train__gradient_checkpointing=False))
    saving = losses(gpu_spec(tmp_path / "saving", tiny, **{switch: True}))
    assert saving == pytest.approx(plain, rel=1e-3)
