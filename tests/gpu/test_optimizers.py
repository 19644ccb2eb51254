"""Optimizers on a GPU: random numbers and 8-bit state as on a CPU, and full fine-tuning in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankzero.engine.adamw_bfloat16 import by_kernel, moves_the_same, random_bits, round_at_random
from rankzero.engine.optim import make_optimizer
from rankzero.engine.parallel.half_sums import add_at_random
from rankzero.spec.run_spec import TrainSpec
from tests.gpu.support import gpu_spec, losses, needs, on_gpu
from tests.support.runs import run_root

pytestmark = on_gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_random_bits_are_the_same_on_every_device() -> None:
    for begin in (0, 2**31 - 5, 2**33 + 7):
        there, here = (random_bits("key", begin, 4096, device) for device in (CUDA, CPU))
        torch.testing.assert_close(there.cpu(), here, atol=0, rtol=0)
    values, bits = torch.randn(4096), random_bits("key", 0, 4096, CPU) & 0xFFFF
    there = round_at_random(values.cuda(), bits.cuda()).cpu()
    torch.testing.assert_close(there, round_at_random(values, bits), atol=0, rtol=0)


def test_what_is_no_number_stays_so_in_a_sum() -> None:
    """A GPU's own NaN, which is another than a CPU's."""
    held = torch.ones(65_536, device=CUDA).bfloat16()
    infinite = torch.full_like(held, float("inf"))
    add_at_random(held, (infinite - infinite), place=0)
    assert bool(held.isnan().all())


def test_gradients_of_many_passes_are_added_up_as_on_a_cpu() -> None:
    here = torch.randn(100_000).bfloat16()
    there = here.cuda()
    for number in range(20):
        more = torch.randn(100_000).bfloat16()
        add_at_random(here, more, place=number * 40_503)
        add_at_random(there, more.cuda(), place=number * 40_503)
    torch.testing.assert_close(there.cpu(), here, atol=0, rtol=0)


@pytest.mark.parametrize("master_weights", ["kahan", "stochastic_rounding"])
def test_a_gpu_moves_weights_as_a_cpu_does(master_weights: Any) -> None:
    """But for the last bit of a square root here and there, which may tip a rounding."""
    start, gradients = torch.randn(512, 512).bfloat16(), [torch.randn(512, 512).bfloat16() for _ in range(5)]

    def moved(device: torch.device) -> torch.Tensor:
        weight = torch.nn.Parameter(start.to(device, copy=True))
        optimizer = make_optimizer({"w": weight}, TrainSpec(master_weights=master_weights), 1e-3)
        for gradient in gradients:
            weight.grad = gradient.to(device)
            optimizer.step()
        return weight.detach().cpu()

    assert (moved(CUDA) == moved(CPU)).float().mean() > 0.999


@needs("triton")
def test_bfloat16_weights_take_one_kernel() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert by_kernel(device) and moves_the_same(device)


@pytest.mark.parametrize("master_weights", ["float32", "kahan", "stochastic_rounding"])
def test_full_fine_tuning_learns(master_weights: str, tmp_path: Path, tiny: Path) -> None:
    changes: dict[str, Any] = {"lora": None, "train__max_steps": 30, "train__learning_rate": 2e-3}
    reference = losses(gpu_spec(tmp_path / "reference", tiny, **changes, model__dtype="float32"))
    spec = gpu_spec(tmp_path / master_weights, tiny, **changes, train__master_weights=master_weights)
    found = losses(spec)
    assert reference[-1] < 0.9 * reference[0]
    assert found[-1] == pytest.approx(reference[-1], rel=0.03)
    saved = load_file(next((run_root(spec) / "last" / "model").glob("*.safetensors")))
    wanted = torch.float32 if master_weights == "float32" else torch.bfloat16
    assert {tensor.dtype for tensor in saved.values()} == {wanted}


@needs("bitsandbytes")
def test_8_bit_adam_learns_as_adam_does(tmp_path: Path, tiny: Path) -> None:
    changes: dict[str, Any] = {"lora": None, "train__max_steps": 30, "train__learning_rate": 2e-3}
    adam = losses(gpu_spec(tmp_path / "adam", tiny, **changes))
    spec = gpu_spec(tmp_path / "8bit", tiny, **changes, train__optimizer="adamw_8bit")
    assert losses(spec)[-1] == pytest.approx(adam[-1], rel=0.05)
    state = load_file(run_root(spec) / "last" / "optimizer.safetensors")
    assert {tensor.dtype for name, tensor in state.items() if name.endswith("embed_tokens.weight/state1")} == {
        torch.uint8
    }
