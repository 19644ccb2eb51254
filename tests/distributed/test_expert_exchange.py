"""Experts that lie on several ranks compute, and learn, what one process with all of them does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from tests.support.forked import in_ranks
from tests.support.tiny_configs import gpt_oss, qwen3_moe

pytestmark = pytest.mark.distributed

TOKENS = (5, 0, 7, 1)
"""Of each rank."""
HIDDEN, VISITED = 16, 2


def experts(name: str, implementation: str) -> Any:
    """A layer's, in a module of their own, as a model has them: with biases, interleaved and transposed in GPT-OSS."""
    config = {"qwen3_moe": qwen3_moe, "gpt_oss": gpt_oss}[name]()
    config._experts_implementation = implementation
    if name == "qwen3_moe":
        config.num_experts = 12
    else:
        config.num_local_experts = 12
    torch.manual_seed(0)
    block = torch.nn.Module()
    block.experts = Qwen3MoeExperts(config) if name == "qwen3_moe" else GptOssExperts(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return block


def tokens(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """With weights that need a gradient; all of the last rank's first token go to one of rank 0's experts."""
    drawn = torch.Generator().manual_seed(rank)
    count = TOKENS[rank]
    x_TH = torch.randn(count, HIDDEN, generator=drawn).requires_grad_()
    chosen_TK = torch.rand(count, 6, generator=drawn).topk(VISITED).indices  # nobody visits the last half
    weights_TK = torch.rand(count, VISITED, generator=drawn).requires_grad_()
    return x_TH, chosen_TK, weights_TK


def one_rank(directory: Path, name: str, implementation: str, size: int) -> None:
    import os

    import torch.distributed as dist

    from rankzero.engine.device import Device
    from rankzero.engine.distributed import World, process_group, world_from_env
    from rankzero.engine.parallel.expert_group import ExpertGroup
    from rankzero.engine.parallel.formats import ShardedSnapshot
    from rankzero.model.expert_exchange import place_experts

    world: World = world_from_env(dict(os.environ))
    with process_group(world, Device("cpu"), dict(os.environ)):
        block = Wrapped(experts(name, implementation))
        group = ExpertGroup(world, Device("cpu"), size)
        cut = place_experts(block, group)
        x_TH, chosen_TK, weights_TK = tokens(world.rank)
        out_TH = block.inner.experts(x_TH, chosen_TK, weights_TK)
        torch.autograd.backward((out_TH**2).sum())
        found = {"out": out_TH.detach(), "x": x_TH.grad, "weights": weights_TK.grad}
        shapes = {"cut": group.cut.spread(torch.zeros(3, 5), torch.Size((3 * size, 5))), "plain": torch.zeros(12)}
        saved = ShardedSnapshot(shapes, (group.cut,), world.world_size)
        found |= {"held": saved.held, "written": saved.nbytes}
        for tensor in cut:
            gradient = block.get_parameter(tensor).grad
            assert gradient is not None, "backward passes through the experts of a rank that nobody visits"
            dist.all_reduce(gradient, group=group.holders)
            found[tensor] = gradient
        torch.save(found, directory / f"{world.rank}.pt")


class Wrapped(torch.nn.Module):
    """As much of a model as is asked for its parts."""

    base_model_prefix = "inner"

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.config = qwen3_moe()
        self.base_model = inner

    def get_decoder(self) -> torch.nn.Module:
        return self

    def get_output_embeddings(self) -> None:
        return None


@pytest.mark.parametrize(
    ("name", "implementation", "ranks", "size"),
    [("qwen3_moe", "grouped_mm", 3, 3), ("qwen3_moe", "eager", 4, 2), ("gpt_oss", "grouped_mm", 2, 2)],
)
def test_experts_of_several_ranks_are_those_of_one(
    name: str, implementation: str, ranks: int, size: int, tmp_path: Path
) -> None:
    """Outputs and all gradients; a rank without tokens, experts that nobody visits, and a rank all of whose experts
    nobody does."""
    assert in_ranks(one_rank, ranks, tmp_path, name, implementation, size) == [0] * ranks
    block = experts(name, implementation)
    wanted = []
    for rank in range(ranks):
        x_TH, chosen_TK, weights_TK = tokens(rank)
        out_TH = block.experts(x_TH, chosen_TK, weights_TK) if len(x_TH) else x_TH
        if len(x_TH):
            torch.autograd.backward((out_TH**2).sum())
        wanted.append({"out": out_TH.detach(), "x": x_TH.grad, "weights": weights_TK.grad})
    all_found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    assert {found.pop("held") for found in all_found} == {4 * (3 * 5 + 12)}
    assert sum(found.pop("written") for found in all_found) == 4 * (3 * size * 5 + 12), "all ranks write it once"
    for rank, found in enumerate(all_found):
        for key, value in wanted[rank].items():
            if value is not None:
                torch.testing.assert_close(found.pop(key), value, rtol=1e-5, atol=1e-6)
        own = 12 // size
        first = rank % size * own
        for key in found.keys() - {"x", "weights"}:
            whole = block.get_parameter(key.removeprefix("inner.")).grad
            torch.testing.assert_close(found[key], whole[first : first + own], rtol=1e-5, atol=1e-6)
