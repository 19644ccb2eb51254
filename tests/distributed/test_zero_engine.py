"""ZeRO driven directly: bfloat16, offload, dropped gradients, weights that only one rank has, a missing DeepSpeed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rankzero.engine.device import Device
from rankzero.engine.distributed import process_group, sum_over_ranks, world_from_env
from rankzero.engine.parallel.base import Snapshot
from rankzero.engine.parallel.formats import NothingToWrite, ShardedSnapshot, WholeSnapshot, is_finite
from rankzero.engine.parallel.zero import parallel as zero_parallel
from rankzero.engine.parallel.zero.engine import Trained
from rankzero.engine.parallel.zero.parallel import Zero
from rankzero.engine.setup import to_train
from rankzero.errors import ConfigError
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import small_spec
from tests.support.zero import NEEDS_DEEPSPEED

pytestmark = [pytest.mark.distributed, *NEEDS_DEEPSPEED]

CPU = Device("cpu")


@pytest.mark.parametrize(
    ("adapters", "sharding", "offload"),
    [(True, "zero2", "optimizer"), (True, "zero3", "none"), (False, "zero2", "none"), (False, "zero3", "all")],
)
def test_bfloat16(adapters: bool, sharding: str, offload: str, tmp_path: Path, tiny: Path) -> None:
    """As a replica within bfloat16's precision; a dropped step leaves nothing; what is saved comes back to the bit."""
    method: dict[str, Any] = {"lora__dropout": 0.0} if adapters else {"lora": None}
    spec = small_spec(tmp_path, tiny, train__sharding=sharding, train__offload=offload, **method)
    assert in_ranks(bfloat16_rank, 2, tmp_path, spec.model_dump_json(), str(tiny)) == [0, 0], said(tmp_path)


def test_weights_come_from_the_main_rank_alone(tmp_path: Path, tiny: Path) -> None:
    """Rank 1 has no weights, only what they would look like."""
    spec = small_spec(tmp_path, tiny, lora=None, train__sharding="zero3")
    assert in_ranks(meta_rank, 2, tmp_path, spec.model_dump_json(), str(tiny)) == [0, 0], said(tmp_path)
    found, wanted = load_file(tmp_path / "found.safetensors"), load_file(tiny / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_weights_that_deepspeed_finds_elsewhere_stop_the_start(sharding: str, tmp_path: Path, tiny: Path) -> None:
    """They would be saved under each other's names, and nothing of the training would show it."""
    spec = small_spec(tmp_path, tiny, lora=None, train__sharding=sharding)
    assert in_ranks(misplacing_rank, 2, tmp_path, spec.model_dump_json(), str(tiny)) == [0, 0], said(tmp_path)


@pytest.mark.parametrize("adapters", [True, False], ids=["adapters", "full"])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_each_rank_looks_at_its_own_parts(sharding: str, adapters: bool, tmp_path: Path, tiny: Path) -> None:
    method: dict[str, Any] = {} if adapters else {"lora": None}
    spec = small_spec(tmp_path, tiny, train__sharding=sharding, **method)
    assert in_ranks(looking_rank, 2, tmp_path, spec.model_dump_json(), str(tiny)) == [0, 0], said(tmp_path)


def said(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.glob("said-*"))


def tiny_causal(spec: RunSpec, tiny: str, dtype: torch.dtype) -> Any:
    """The tiny model as a run would hold it, with its adapters where the spec has some."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    adapters = spec.lora is not None
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=dtype if adapters else torch.float32)
    return to_train(model, spec, base_name="tiny") if adapters else model


def adamw(named: dict[str, torch.nn.Parameter]) -> torch.optim.AdamW:
    decayed = [p for p in named.values() if p.ndim >= 2]
    others = [p for p in named.values() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-2, fused=True)


PASSES = torch.randint(0, 200, (4, 2, 8), generator=torch.Generator().manual_seed(3))


def share_of_loss(model: Any, ids_BT: torch.Tensor) -> torch.Tensor:
    """Summed over PASSES this is the mean loss of all their tokens."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
    logits_NV, targets_N = logits_BTV[:, :-1].float().flatten(0, 1), ids_BT[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits_NV, targets_N, reduction="sum") / PASSES[:, :, 1:].numel()


def replica_curve(model: Any, steps: int) -> list[float]:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer, losses = adamw(parameters), []
    for _ in range(steps):
        shares = [share_of_loss(model, ids_BT) for ids_BT in PASSES]
        torch.autograd.backward(sum(shares))
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(sum(share.item() for share in shares)))
    return losses


def zero_step(zero: Zero, rank: int, *, move: bool = True, poison: float = 1.0) -> tuple[float, float]:
    """A step of two passes on each rank, or what a loop does of one that it skips. Returns loss and norm."""
    total = torch.zeros(1)
    for number in range(2):
        loss = share_of_loss(zero.model, PASSES[2 * number + rank])
        total += loss.detach()
        zero.backward(loss * poison if number == 0 else loss, last=number == 1)
    norm = zero.reduce_gradients(1.0)
    if move:
        zero.step()
    zero.zero_grad()
    return sum_over_ranks(total).item(), norm.item()


def assert_weights_are_known(taken: Snapshot) -> None:
    """All that the optimizer moves, by the same names: they are looked at before they are saved."""
    if isinstance(taken, NothingToWrite):
        return
    assert isinstance(taken, ShardedSnapshot | WholeSnapshot) and not taken.not_finite()
    weights, optimizer = (taken.state,) * 2 if isinstance(taken, ShardedSnapshot) else (taken.weights, taken.optimizer)
    names = {key.rpartition("/")[0] for key in optimizer if "/" in key}
    assert names and names <= weights.keys()
    lost = weights | {max(names): torch.full_like(weights[max(names)], float("nan"))}
    of = {"state": lost} if isinstance(taken, ShardedSnapshot) else {"weights": lost}
    assert replace(taken, **of).not_finite() == [max(names)]


def bfloat16_rank(directory: Path, text: str, tiny: str) -> None:
    spec, dtype = RunSpec.model_validate_json(text), torch.bfloat16
    world = world_from_env(dict(os.environ))
    wanted = replica_curve(tiny_causal(spec, tiny, dtype), 3)
    with process_group(world, CPU, dict(os.environ)):

        def make() -> Zero:
            return Zero(tiny_causal(spec, tiny, dtype), adamw, spec=spec, world=world, device=CPU, dtype=dtype)

        zero = make()
        begun, stored = zero.export_state() or {}, tiny_causal(spec, tiny, dtype).state_dict()
        assert bool(begun) == world.is_main
        assert all(torch.equal(begun[name], stored[name]) for name in begun), "float32 weights begin as they are stored"
        first = zero_step(zero, world.rank)
        _, not_finite = zero_step(zero, world.rank, move=False, poison=float("nan"))
        assert not torch.tensor(not_finite).isfinite()
        dropped = zero_step(zero, world.rank, move=False)
        second = zero_step(zero, world.rank)
        assert second == dropped, "the steps that were skipped left nothing behind"
        assert_weights_are_known(zero.snapshot())
        zero.snapshot().write(directory)
        sum_over_ranks(torch.zeros(1))  # all have written
        third = zero_step(zero, world.rank)
        kept = dict(zero.optimizer.state)
        zero.optimizer.state.clear()
        with pytest.raises(RuntimeError, match="no state of its optimizer"):
            zero.snapshot()
        zero.optimizer.state.update(kept)
        assert [first[0], second[0], third[0]] == pytest.approx(wanted, rel=2e-3)

        restored = make()
        restored.load(directory)
        assert zero_step(restored, world.rank) == third
        ended, again = zero.export_state(), restored.export_state()
        assert ended is not None and again is not None and ended.keys() == again.keys()
        assert all(torch.equal(ended[name], again[name]) for name in ended)
        assert {value.dtype for value in ended.values()} <= {torch.float32}, "trained weights are float32"
        assert bool(ended) == world.is_main


def meta_rank(directory: Path, text: str, tiny: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    spec, world = RunSpec.model_validate_json(text), world_from_env(dict(os.environ))
    with process_group(world, CPU, dict(os.environ)):
        model = tiny_causal(spec, tiny, torch.float32)
        if not world.is_main:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny), dtype=torch.float32)
        zero = Zero(model, adamw, spec=spec, world=world, device=CPU, dtype=torch.float32)
        loss, norm = zero_step(zero, world.rank, move=False)
        assert loss == pytest.approx(replica_curve(tiny_causal(spec, tiny, torch.float32), 1)[0], rel=1e-4)
        assert norm > 0
        state = zero.export_state()
        if world.is_main and state is not None:
            save_file(state, directory / "found.safetensors")


def misplacing_rank(directory: Path, text: str, tiny: str) -> None:
    spec, world = RunSpec.model_validate_json(text), world_from_env(dict(os.environ))
    with process_group(world, CPU, dict(os.environ)), pytest.MonkeyPatch.context() as patch:
        begin = zero_parallel.start

        def start_and_move(*args: Any) -> Any:
            engine = begin(*args)
            if world.rank == 1:  # the others hear of it
                Trained(engine, args[2]).parts[0].data.mul_(2)
            return engine

        patch.setattr(zero_parallel, "start", start_and_move)
        with pytest.raises(ConfigError, match="DeepSpeed .* holds other values") as refused:
            model = tiny_causal(spec, tiny, torch.float32)
            Zero(model, adamw, spec=spec, world=world, device=CPU, dtype=torch.float32)
        assert refused.value.problems[0].hint


def looking_rank(directory: Path, text: str, tiny: str) -> None:
    spec, world = RunSpec.model_validate_json(text), world_from_env(dict(os.environ))
    with process_group(world, CPU, dict(os.environ)):
        model = tiny_causal(spec, tiny, torch.float32)
        shapes = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
        zero = Zero(model, adamw, spec=spec, world=world, device=CPU, dtype=torch.float32)
        if world.is_main:  # alone: the other one has no part in it
            assert all(is_finite(part) for _, part in zero.trained())
        own = {name: part.numel() for name, part in zero.trained()}
        total = sum_over_ranks(torch.tensor([own[name] for name in shapes])).tolist()
        assert total == list(shapes.values()), "each value is some rank's"
        lost = max(name for name, size in own.items() if size)
        with torch.no_grad():
            dict(zero.trained())[lost].view(-1)[-1:] = float("nan")
        assert [name for name, part in zero.trained() if not is_finite(part)] == [lost]
