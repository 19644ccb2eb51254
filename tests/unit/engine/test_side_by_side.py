"""Passes that threads compute at the same time: the same numbers as one after the other, in the same order, whichever
thread is first; and a run of them goes on bit for bit."""

from __future__ import annotations

import functools
import gc
import random
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText
from rankzero.data.batches.loader import Batches
from rankzero.engine.any_order import why_in_order
from rankzero.engine.checkpoint import generator_states
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.evaluate import evaluate
from rankzero.engine.heads import SupervisedHead
from rankzero.engine.parallel.masters import copies_in
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.side_by_side import Lane, SideBySide, copy_lane
from rankzero.engine.step import Stepper
from rankzero.engine.tasks import sft
from rankzero.engine.tasks.sft import Perplexity
from rankzero.errors import StoppedError
from rankzero.model import varlen
from rankzero.model.dropout import Places, place_dropout
from rankzero.model.fused_lora import fuse_adapters
from rankzero.model.recomputing import recompute_blocks
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in
from tests.unit.engine.test_resume import assert_same_state, final_state, without_clock
from tests.unit.engine.test_step import Rows

CPU = torch.device("cpu")


def many_rows() -> Rows:
    """Of 3 to 21 tokens, whose first third is not trained."""
    lengths = [3 + 5 * number % 19 for number in range(24)]
    return Rows([([(7 * n + i) % 60 + 4 for i in range(n)], [float(i > n // 3) for i in range(n)]) for n in lengths])


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def adapted(tiny: Path, *, dropout: float, packed: bool = False) -> tuple[Any, Places]:
    """The tiny model with adapters that do something, in training. `packed`: over a base in bfloat16, rows end to
    end."""
    torch.manual_seed(0)
    varlen.register()
    base = AutoModelForCausalLM.from_pretrained(tiny, attn_implementation=varlen.NAME if packed else "sdpa")
    if packed:
        base.to(torch.bfloat16)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=dropout, init_lora_weights=False)
    model, places = get_peft_model(base, config), Places(3)
    place_dropout(model, places)
    fuse_adapters(model)
    return model.train(), places


def whole(tiny: Path, *, dropout: float, packed: bool = False) -> tuple[Any, Places]:
    """The same without adapters, its two tables in one, and all of it trained."""
    torch.manual_seed(0)
    varlen.register()
    model = AutoModelForCausalLM.from_pretrained(
        tiny, attn_implementation=varlen.NAME if packed else "sdpa", tie_word_embeddings=True
    )
    assert model.lm_head.weight is model.model.embed_tokens.weight
    places = Places(3)
    place_dropout(model, places)
    return model.train(), places


def steps_of(
    tiny: Path, at_once: int, *, made: Any, dropout: float, packed: bool, in_parts: bool, recomputed: bool
) -> tuple[Stepper, Replicated, Batches]:
    """What computes so many passes at once, with one thread each, and the passes."""
    torch.set_num_threads(at_once)
    model, places = made(tiny, dropout=dropout, packed=packed)
    if recomputed:
        recompute_blocks(model)
    dtype = torch.bfloat16 if packed else torch.float32
    computed = copies_in(model, dtype)
    parallel = Replicated(
        model,
        lambda named: torch.optim.SGD(named.values()),
        world=World(),
        device=Device("cpu"),
        dtype=computed,
    )
    head = SupervisedHead(model, model, in_parts=in_parts)
    options: dict[str, Any] = {"device": CPU, "max_grad_norm": None, "dtype": dtype}
    stepper = Stepper(head, parallel, sft.TASK, places=places, **options)
    stepper.compute_side_by_side(at_once)
    collator = PackedText() if packed else PaddedText()
    plan = Batches(many_rows(), collator, rank=0, world_size=1, max_tokens=40, pass_cost=0, same_passes=False)
    return stepper, parallel, plan


def gradients(
    tiny: Path,
    at_once: int,
    *,
    dropout: float = 0.3,
    in_parts: bool = True,
    recomputed: bool = False,
    packed: bool = False,
    made: Any = adapted,
) -> tuple[list[float], dict[str, torch.Tensor], list[tuple[int, ...]]]:
    """Losses of some steps over the same rows, the gradients of the last one, and the rows of its passes in the order
    in which they were taken."""
    stepper, parallel, plan = steps_of(
        tiny, at_once, made=made, dropout=dropout, packed=packed, in_parts=in_parts, recomputed=recomputed
    )
    losses, taken = [], list[tuple[int, ...]]()
    for step in range(2):
        parallel.zero_grad()
        taken.clear()
        work = plan.everything()
        assert len(work.passes) > 6
        result = stepper.gradients(
            plan, work, step, stop_wanted=False, on_pass=lambda batch, _loss: taken.append(tuple(batch.rows))
        )
        assert result is not None and result.finite
        losses.append(result.loss)
        assert taken == [tuple(rows) for rows in work.passes]
    assert torch.get_num_threads() == at_once
    return losses, dict(parallel.gradients()), taken


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="dropout, loss in parts"),
        pytest.param({"in_parts": False}, id="logits at once"),
        pytest.param({"recomputed": True}, id="recomputed"),
        pytest.param({"dropout": 0.0}, id="no dropout"),
        pytest.param({"packed": True}, id="bfloat16, rows end to end"),
        pytest.param({"made": whole, "dropout": 0.0}, id="all weights"),
        pytest.param({"made": whole, "dropout": 0.0, "packed": True}, id="all weights, copies in bfloat16"),
    ],
)
def test_numbers_are_those_of_one_by_one(how: dict[str, Any], tiny: Path) -> None:
    losses, wanted, order = gradients(tiny, 1, **how)
    assert losses[0] != losses[1] or not how.get("dropout", 0.3), "each step drops its own"
    for _ in range(3):
        found_losses, found, found_order = gradients(tiny, 2, **how)
        assert found_losses == losses and found_order == order
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            assert torch.equal(found[name], gradient), name


class Heard(Perplexity):
    """What a meter is told: how many targets, and of how many passes at the same time."""

    def __init__(self) -> None:
        self.targets, self.most, self._now = 0, 0, 0

    def add(self, logits_NV: torch.Tensor, batch: Any) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        self.targets += len(logits_NV)
        threading.Event().wait(0.001)  # others may come
        self._now -= 1


@pytest.mark.parametrize("first", ["a step", "an evaluation"])
def test_an_evaluation_is_that_of_one_by_one(first: str, tiny: Path) -> None:
    """No copy drops anything in it, and each does again in the step after it."""

    def seen(at_once: int) -> tuple[list[dict[str, float]], list[float], dict[str, torch.Tensor]]:
        how: dict[str, Any] = {"made": adapted, "packed": False, "in_parts": True, "recomputed": False}
        stepper, parallel, plan = steps_of(tiny, at_once, dropout=0.3, **how)
        evaluations, losses = list[dict[str, float]](), list[float]()

        def look() -> None:
            meter = Heard()
            found = evaluate(
                parallel.model, stepper, plan, CPU, lambda _rows: None, stop_wanted=lambda: False, meter=meter
            )
            assert found is not None and meter.targets == found.targets and meter.most == 1
            assert all(module.training for module in parallel.model.modules())
            evaluations.append(found.metrics)

        if first == "an evaluation":
            look()
        for step in range(2):
            parallel.zero_grad()
            work = plan.everything()
            result = stepper.gradients(plan, work, step, stop_wanted=False, on_pass=lambda *_: None)
            assert result is not None
            losses.append(result.loss)
            look()
        return evaluations, losses, dict(parallel.gradients())

    evaluations, losses, wanted = seen(1)
    assert len({found["eval_loss"] for found in evaluations}) == 1 and losses[0] != losses[1]
    found_evaluations, found_losses, found = seen(2)
    assert found_evaluations == evaluations and found_losses == losses
    assert all(torch.equal(found[name], gradient) for name, gradient in wanted.items())


def test_an_evaluation_that_is_to_stop_leaves_nothing_under_way(tiny: Path) -> None:
    how: dict[str, Any] = {"made": adapted, "packed": False, "in_parts": True, "recomputed": False}
    stepper, parallel, plan = steps_of(tiny, 2, dropout=0.0, **how)
    over, losses = list[int](), stepper.loss_sum

    def count(batch: Any, seen: Any, head: Any) -> torch.Tensor:
        loss = losses(batch, seen, head)
        over.extend([len(batch.rows)] if seen is not None else [])  # else it is looked what passes do
        return loss

    stepper.loss_sum = count  # type: ignore[method-assign]
    taken = list[int]()
    found = evaluate(
        parallel.model, stepper, plan, CPU, taken.append, stop_wanted=lambda: len(taken) == 2, meter=Perplexity()
    )
    begun = len(over)
    assert found is None and parallel.model.training
    assert begun <= len(taken) + 3, "and those that were under way"
    assert len(plan.everything().passes) > begun and torch.get_num_threads() == 2


def lane_of(tiny: Path) -> tuple[Lane, Any]:
    model, places = adapted(tiny, dropout=0.0)
    return Lane(SupervisedHead(model, model), places, model), model


def always(_lane: Any, _first: Any) -> str:
    return ""


def test_what_is_first_ready_waits_for_its_turn(tiny: Path) -> None:
    lane, model = lane_of(tiny)
    second_is_over, seen = threading.Event(), list[str]()
    weight = next(p for p in model.parameters() if p.requires_grad)

    def loss(_lane: Lane, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if batch == "first":
            assert second_is_over.wait(60)
        if batch == "second":
            second_is_over.set()
        seen.append(batch)
        return weight.sum(), weight.sum()

    side_by_side = SideBySide(lane, 2, always)
    found: list[Any] = [batch for batch, *_ in side_by_side.each(["first", "second", "third"], loss)]  # type: ignore[list-item]
    assert found == ["first", "second", "third"] and seen.index("second") < seen.index("first")


def test_a_pass_that_fails_is_raised_when_the_others_are_over(tiny: Path) -> None:
    lane, model = lane_of(tiny)
    side_by_side, begun, go, over = (
        SideBySide(lane, 2, always),
        threading.Event(),
        threading.Event(),
        list[str](),
    )
    weight = next(p for p in model.parameters() if p.requires_grad)

    def loss(_lane: Lane, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if batch == "good":
            begun.set()
            assert go.wait(60)
            over.append(batch)
        if batch == "bad":
            assert begun.wait(60)
            threading.Timer(0.05, go.set).start()
            raise MemoryError("no more")
        return weight.sum(), weight.sum()

    with pytest.raises(MemoryError, match="no more"):
        list(side_by_side.each(["bad", "good"], loss))  # type: ignore[list-item]
    assert over == ["good"] and torch.get_num_threads() == 2
    go.set()
    again = list(side_by_side.each(["good", "good"], loss))  # type: ignore[list-item]
    assert len(again) == 2, "both lanes are there for the next step"


def test_a_copy_has_the_weights_and_nothing_else_of_the_model(tiny: Path) -> None:
    lane, model = lane_of(tiny)
    copied: Any = copy_lane(lane)
    assert copied.places is not lane.places and copied.places.unknown is lane.places.unknown
    own, others = dict(model.named_parameters()), dict(copied.head._module.named_parameters())
    assert own.keys() == others.keys() and all(others[name] is weight for name, weight in own.items())
    assert not set(model.modules()) & set(copied.head._module.modules())
    turning, others = dict(model.named_buffers()), dict(copied.head._module.named_buffers())
    assert turning.keys() == others.keys() and any(name.endswith("inv_freq") for name in turning)
    for name, values in turning.items():  # of longrope a model writes them in each pass, by its longest row
        assert others[name].data_ptr() != values.data_ptr() and torch.equal(others[name], values), name


@pytest.mark.parametrize("way", ["closure", "partial", "bound", "hook"])
def test_a_function_that_knows_its_module_is_not_copied(way: str, tiny: Path) -> None:
    """Its copy would be itself: two threads would share what a pass keeps, and the masks of dropout with it."""
    lane, model = lane_of(tiny)
    layer = model.get_base_model().model.layers[0]
    compute = layer.forward
    ways = {
        "closure": lambda *args, **kwargs: compute(*args, **kwargs),
        "partial": functools.partial(lambda forward, *args, **kwargs: forward(*args, **kwargs), lambda: layer),
        "bound": functools.wraps(compute)(lambda *args, **kwargs: compute(*args, **kwargs)),
    }
    if way == "hook":
        layer.register_forward_hook(lambda *_: layer.training)
    else:
        layer.forward = ways[way]
    with pytest.raises(ValueError, match=r"layers\.0 has a function that knows its module"):
        copy_lane(lane)


class Twice(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def test_weights_that_are_computed_in_each_pass_are_not_copied(tiny: Path) -> None:
    """torch keeps those of a pass for the whole process, as peft has it for adapters of experts."""
    lane, model = lane_of(tiny)
    torch.nn.utils.parametrize.register_parametrization(model.get_base_model().lm_head, "weight", Twice())
    with pytest.raises(ValueError, match="lm_head computes its weights"):
        copy_lane(lane)


def test_a_pass_that_is_interrupted_is_waited_for(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane, model = lane_of(tiny)
    side_by_side, go, over = SideBySide(lane, 2, always), threading.Event(), list[str]()
    weight, result = next(p for p in model.parameters() if p.requires_grad), Future.result

    def loss(_lane: Lane, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        assert go.wait(60)
        over.append(batch)
        return weight.sum(), weight.sum()

    def interrupted(self: Any, timeout: float | None = None) -> Any:
        monkeypatch.setattr(Future, "result", result)
        threading.Timer(0.05, go.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(side_by_side.each(["first", "second"], loss))  # type: ignore[list-item]
    assert sorted(over) == ["first", "second"]


class Noise(torch.nn.Module):
    """Draws from the process's stream."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(torch.nn.functional.silu(values), 0.1, training=self.training)


def test_a_model_that_draws_computes_one_pass_after_the_other(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy(tiny: Path, *, dropout: float, packed: bool) -> tuple[Any, Places]:
        model, places = adapted(tiny, dropout=dropout, packed=packed)
        model.get_base_model().model.layers[1].mlp.act_fn = Noise()
        torch.manual_seed(1)
        return model, places

    told = list[str]()

    def asked(_self: Any, lane: Any, batch: Any, ask: Any = Stepper._why_in_order) -> str:
        told.append(ask(_self, lane, batch))
        return told[-1]

    found = [gradients(tiny, 2, made=noisy) for _ in range(2)]
    assert found[0][0] == found[1][0], "the same draws in the same order"
    monkeypatch.setattr(Stepper, "_why_in_order", asked)
    gradients(tiny, 2, made=noisy)
    gradients(tiny, 2)
    assert told == ["the model draws random numbers, whose order would be left to chance", "", ""]


class Halves(torch.nn.Module):
    """Divides a weight while it is not trained, as RWKV's model does for float16."""

    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.weight, self.is_halved = weight, False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.is_halved == self.training:
            self.is_halved = not self.training
            with torch.no_grad():
                self.weight.mul_(0.5 if self.is_halved else 2)
        return torch.nn.functional.silu(values)


class Switches(torch.nn.Module):
    """Goes another way for good once rows are short, as BigBird's attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.way = "sparse"

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.way = "full" if values.shape[-2] < 1000 else self.way
        return torch.nn.functional.silu(values)


class DrawsOtherwise(torch.nn.Module):
    """From a stream that torch knows nothing of."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw = (draw,)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(values) * self.draw[0]()


@pytest.mark.parametrize("how", ["weights", "way", "numpy", "python"])
def test_passes_that_leave_something_for_the_next_one_are_computed_in_order(how: str, tiny: Path) -> None:
    made = {
        "weights": (lambda model: Halves(model.model.norm.weight), "a pass changes weights of the model"),
        "way": (
            lambda _: Switches(),
            "a pass changes what the next one does in base_model.model.model.layers.1.mlp.act_fn",
        ),
        "numpy": (lambda _: DrawsOtherwise(lambda: np.random.rand()), "the model draws random numbers"),
        "python": (lambda _: DrawsOtherwise(lambda: random.random()), "the model draws random numbers"),
    }
    make, why = made[how]
    lane, model = lane_of(tiny)
    changed = make(model.get_base_model())
    model.get_base_model().model.layers[1].mlp.act_fn = changed
    before = [weight.clone() for weight in model.parameters()]
    states = generator_states()
    tokens = torch.arange(3, 11)[None]
    found = why_in_order(copied := copy_lane(lane).model, lambda: copied(input_ids=tokens))
    assert found.startswith(why)
    assert all(torch.equal(one, now) for one, now in zip(before, model.parameters(), strict=True))
    assert generator_states() == states and model.training
    assert how != "way" or changed.way == "sparse", "what is tried is a copy"


def wide_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes of the tiny model count as worth a thread."""
    monkeypatch.setattr("rankzero.forecast.forecast.WORTH_A_THREAD", 0)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


ADAPTERS: dict[str, Any] = {"lora": {"r": 4, "dropout": 0.2}}
ALL_WEIGHTS: dict[str, Any] = {"lora": None, "model__dtype": "bfloat16"}


def spec_of(tmp_path: Path, tiny: Path, **what: Any) -> RunSpec:
    train = {"max_steps": 6, "micro_batch_tokens": 64, "global_batch_size": 12, "learning_rate": 0.01, "seed": 5}
    return small_spec(tmp_path, tiny, train=train, **(what or ADAPTERS))


@pytest.mark.parametrize("what", [pytest.param(ADAPTERS, id="adapters"), pytest.param(ALL_WEIGHTS, id="all weights")])
def test_a_run_goes_on_bit_for_bit(
    what: dict[str, Any], tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, bfloat16_computed: None
) -> None:
    wide_enough(monkeypatch)
    whole, cut = (spec_of(tmp_path / name, tiny, **what) for name in ("whole", "cut"))
    run_here(whole, log_level="INFO")
    assert "2 passes at a time" in " ".join(log(whole).split())
    for step in (2, 5):
        with pytest.raises(StoppedError):
            run_here(cut, hooks=stop_in(step))
    run_here(cut)
    assert_same_state(final_state(cut), final_state(whole))
    assert without_clock(metrics(cut)) == without_clock(metrics(whole))


def test_going_on_with_another_number_at_a_time_is_said(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(2))
    with monkeypatch.context() as patch:
        wide_enough(patch)
        with pytest.raises(StoppedError):
            run_here(spec, log_level="INFO", hooks=stop_in(4))
    assert "not bit-exactly: passes at once: 1 before, 2 in rounds now\n" in log(spec)
    run_here(spec, log_level="INFO")
    assert "not bit-exactly: passes at once: 2 in rounds before, 1 now\n" in log(spec)
    assert (run_root(spec) / "final").is_dir()


def test_what_computes_passes_holds_nobody_who_holds_it(tiny: Path) -> None:
    """A run's model goes with its stepper, and does not wait for the collector, which looks seldom."""
    model, places = adapted(tiny, dropout=0.0)
    parallel = Replicated(model, lambda named: torch.optim.SGD(named.values()), world=World(), device=Device("cpu"))
    options: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32, "max_grad_norm": None}
    stepper = Stepper(SupervisedHead(model, model), parallel, sft.TASK, places=places, **options)
    stepper.compute_side_by_side(2)
    plan = Batches(many_rows(), PaddedText(), rank=0, world_size=1, max_tokens=40, pass_cost=0, same_passes=False)
    assert stepper.gradients(plan, plan.everything(), 0, stop_wanted=False, on_pass=lambda *_: None) is not None
    gone = weakref.ref(stepper)
    gc.disable()
    try:
        del stepper
        assert gone() is None
    finally:
        gc.enable()
