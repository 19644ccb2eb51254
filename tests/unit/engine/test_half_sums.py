"""Gradients in bfloat16 over many passes: nothing is lost in one direction, in the memory of one sum."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rankzero.engine.adamw_bfloat16 import round_at_random
from rankzero.engine.parallel.half_sums import HalfSums, add_at_random
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import run_forked
from tests.support.runs import chat_rows, metrics, small_spec
from tests.support.tiny import write_jsonl

BFLOAT16 = torch.bfloat16


def parts(passes: int, mean: float, deviation: float) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    numbers = 70_000 if passes < 1000 else 10_000
    return (torch.randn(passes, numbers, generator=draw) * deviation + mean).to(BFLOAT16)


@pytest.mark.parametrize(("mean", "deviation"), [(1.0, 0.0), (1.0, 0.3), (-1.0, 0.5), (0.05, 1.0)])
@pytest.mark.parametrize("passes", [16, 256, 1500])
def test_a_sum_is_off_in_no_direction(passes: int, mean: float, deviation: float) -> None:
    gradients = parts(passes, mean, deviation)
    total, nearest = gradients[0].clone(), gradients[0].clone()
    for number, gradient in enumerate(gradients[1:], start=2):
        add_at_random(total, gradient, place=number * 40_503)
        nearest += gradient
    wanted = gradients.float().sum(0)
    assert (total.float() - wanted).norm() < 0.0023 * (passes / 3) ** 0.5 * wanted.norm() + 0.01 * wanted.norm()
    assert total.float().sum() == pytest.approx(float(wanted.sum()), rel=2e-3)
    if passes == 1500 and deviation < 1:
        assert (nearest.float() - wanted).norm() > 0.5 * wanted.norm(), "torch has mended this"


def test_shapes_signs_and_what_is_no_number() -> None:
    held = torch.tensor([[1.0, float("inf"), float("nan")], [-1.0, float("-inf"), 0.0]], dtype=BFLOAT16).T
    assert not held.is_contiguous()
    more = torch.tensor([[2.0, 1.0], [1.0, float("inf")], [1.0, 0.0]], dtype=BFLOAT16)
    add_at_random(held, more, place=3)
    expected = torch.tensor([[3.0, 0.0], [float("inf"), float("nan")], [float("nan"), 0.0]], dtype=BFLOAT16)
    torch.testing.assert_close(held, expected, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7FC00000, 0x7F800001, 0x7F800000, -0x800000])
def test_what_is_no_number_stays_so_on_every_device(bits: int) -> None:
    """NVIDIA's NaN has all bits set; of AMD's and Intel's CPUs it has one of the mantissa."""
    values = torch.full((65_536,), bits, dtype=torch.int32).view(torch.float32)
    rounded = round_at_random(values, torch.arange(65_536, dtype=torch.int32)).float()
    torch.testing.assert_close(rounded, values, equal_nan=True, rtol=0, atol=0)


def test_a_step_is_summed_by_weights() -> None:
    weights = [torch.nn.Parameter(torch.zeros(8, dtype=dtype)) for dtype in (BFLOAT16, torch.float32, BFLOAT16)]

    def step() -> list[torch.Tensor | None]:
        sums = HalfSums(weights)
        assert [weight in sums for weight in weights] == [True, False, True]
        for number in range(300):
            sums.begin_pass()
            for weight in weights[:2]:
                weight.grad = torch.full_like(weight, 1.0) + (0 if weight.grad is None else weight.grad)
            if number == 299:
                weights[2].grad = torch.full_like(weights[2], 5.0)
            sums.take_all()
        assert weights[0].grad is None
        sums.give_all()
        found = [weight.grad for weight in weights]
        sums.begin_pass()
        sums.take_all()
        sums.drop()
        sums.give_all()
        assert [weight.grad for weight in weights] == [None, found[1], None]
        weights[1].grad = None
        return found

    first, second = step(), step()
    for one, other in zip(first, second, strict=True):
        assert one is not None and other is not None and torch.equal(one, other)
    assert first[0] is not None and (first[0].float() - 300).abs().max() < 30 and first[0].dtype is BFLOAT16
    assert first[2] is not None and torch.equal(first[2], torch.full((8,), 5.0, dtype=BFLOAT16))


def spec_of(root: Path, model: Path, sharding: str, passes: str) -> RunSpec:
    """One step of one row, many times: in as many passes, where the gradient of each is the same, or in few."""
    root.mkdir()
    changes = {
        "data__train": str(write_jsonl(root / "one.jsonl", chat_rows(1) * ROWS)),
        "eval_rows": 0,
        "lora": None,
        "model__dtype": "bfloat16",
        "train__sharding": sharding,
        "train__master_weights": "stochastic_rounding",
        "train__global_batch_size": ROWS,
        "train__num_train_epochs": 1,
        "train__micro_batch_tokens": 16 if passes == "many" else 100_000,
    }
    return small_spec(root, model, **changes)


ROWS = 600
"""For two ranks; a sum in bfloat16 ends at some 256 of them."""


@pytest.mark.distributed
@pytest.mark.usefixtures("bfloat16_computed")
@pytest.mark.parametrize("sharding", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_step_of_many_passes_has_the_gradients_of_one_of_few(sharding: str, tmp_path: Path, tiny: Path) -> None:
    found = {}
    for passes in ("many", "few"):
        spec = spec_of(tmp_path / passes, tiny, sharding, passes)
        assert run_forked(spec).codes == [0, 0]
        found[passes] = metrics(spec)[0]["grad_norm"]
    assert found["many"] == pytest.approx(found["few"], rel=0.01)
