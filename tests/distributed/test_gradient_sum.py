"""Gradients of ranks with different numbers of passes, and what is under way while a pass is computed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tests.support.forked import in_ranks

pytestmark = pytest.mark.distributed
RANKS, LAYERS, WIDTH = 3, 6, 8


def model() -> torch.nn.Sequential:
    """Layers with one weight each; the first one is in no pass."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def loss(layers: torch.nn.Sequential, rank: int, number: int) -> torch.Tensor:
    """Of one pass; each other pass leaves the second layer out, too."""
    x = torch.full((2, WIDTH), 1.0 + rank) * (number + 1)
    for layer in layers[1 + number % 2 :]:
        x = torch.tanh(layer(x))
    return x.sum()


def passes(rank: int) -> list[int]:
    """Rank 0 has none."""
    return list(range(2 * rank))


def one_rank(directory: Path, fails: bool) -> None:
    """The summed gradients, and which buckets were on their way before the backward pass was over."""
    import torch.distributed as dist

    from rankzero.engine import gradient_sum
    from rankzero.engine.device import Device
    from rankzero.engine.distributed import process_group, world_from_env
    from rankzero.engine.gradient_sum import GradientSum

    world = world_from_env(dict(os.environ))
    begun: list[int] = []
    with process_group(world, Device("cpu"), dict(os.environ)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_sum, "GRADIENT_BUCKET_BYTES", 2 * WIDTH * WIDTH * 4)
        all_reduce = dist.all_reduce
        patch.setattr(
            dist, "all_reduce", lambda flat, **options: begun.append(flat.numel()) or all_reduce(flat, **options)
        )
        layers = model()
        sums = GradientSum(layers.parameters())
        for _ in range(2):  # steps
            begun.clear()
            # One rank's step is made again, as after a last pass that ran out of memory with its gradients computed.
            for _ in range(2 if fails and world.rank == RANKS - 1 else 1):
                layers.zero_grad()
                for number in passes(world.rank):
                    sums.begin_pass(last=number == passes(world.rank)[-1])
                    torch.autograd.backward(loss(layers, world.rank, number))
            early = len(begun)
            sums.finish()
            assert len(begun) == LAYERS // 2
        gradients = [parameter.grad.tolist() for parameter in layers.parameters() if parameter.grad is not None]
    (directory / f"{world.rank}.json").write_text(json.dumps([early, gradients]))


@pytest.mark.parametrize("fails", [False, True])
def test_the_sum_over_ranks_however_many_passes_they_have(tmp_path: Path, fails: bool) -> None:
    assert in_ranks(one_rank, RANKS, tmp_path, fails) == [0] * RANKS
    layers = model()
    for rank in range(RANKS):
        for number in passes(rank):
            torch.autograd.backward(loss(layers, rank, number))
    expected = [torch.zeros(WIDTH, WIDTH) if p.grad is None else p.grad for p in layers.parameters()]
    for rank in range(RANKS):
        early, found = json.loads((tmp_path / f"{rank}.json").read_text())
        torch.testing.assert_close(torch.tensor(found), torch.stack(expected))
        assert early == (2 if rank else 0), "buckets whose weights the last pass has used go out within it"
