"""Passes of a step that several threads compute at the same time, each with fewer of the processor's threads.
Knows passes and what computes them; nothing of rows, optimizers or processes.

A pass is thousands of small products and sums, and after each of them all threads of one pass wait for the slowest and
are woken again: on two cores that took a third of a step, and far more beside other work. Threads with a pass of their
own wait for each other once a step.

Which thread computes a pass decides nothing: its gradients are computed by themselves, and added to the step's in the
order of the passes. While it runs, a pass keeps things in its model (the places of its values, hooks that change what
the head sees), so each thread has a copy of the modules, all of which share one set of weights.
"""

from __future__ import annotations

import copy
import functools
import types
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch.nn.utils.parametrize import is_parametrized

from rankzero.data.batches.loader import MicroBatch
from rankzero.engine.console import logger
from rankzero.engine.heads import Head
from rankzero.model.dropout import Places


@dataclass(frozen=True, slots=True)
class Lane:
    """What one pass at a time is computed with."""

    head: Head
    places: Places
    model: torch.nn.Module


_ONE_BY_ONE = "[TRAIN] passes are computed one by one: %s"

Loss = Callable[[Lane, MicroBatch], tuple[torch.Tensor, torch.Tensor]]
"""The loss of a pass, and what of it is minimised: scalars."""
Ask = Callable[[Lane, MicroBatch], str]
"""Why passes may not be computed in any order, by one of them; "" where they may."""
Done = tuple[MicroBatch, torch.Tensor, torch.Tensor]
"""A pass, its loss, and what to call `backward` of: scalars."""


class OneByOne:
    """Each pass when the one before it has been taken, with all threads."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def each(self, batches: Iterable[MicroBatch], loss: Loss) -> Generator[Done]:
        """The passes in their order. Whoever takes one calls `backward` before the next."""
        for batch in batches:
            yield batch, *loss(self._lane, batch)


class SideBySide:
    """Several at a time."""

    def __init__(self, lane: Lane, at_once: int, ask: Ask) -> None:
        """`lane` is on a CPU. `ask` is asked of the first pass: it lets a lane find out what it does once, before there
        are copies, and tells why passes may not be computed in any order. Raises ValueError where something in the
        model cannot be copied."""
        copy_lane(lane)
        self._lane, self._at_once = lane, at_once
        self._ask: Ask | None = ask
        self._lanes: SimpleQueue[Lane] | None = None
        self._trained = [parameter for parameter in lane.model.parameters() if parameter.requires_grad]
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="pass")

    def each(self, batches: Iterable[MicroBatch], loss: Loss) -> Generator[Done]:
        """The passes in their order, each with what adds its gradients, which are computed by then.

        What a pass raises is raised when its turn comes, and when all that have begun are over.
        """
        left = iter(batches)
        first = next(left, None)
        if first is None:
            return
        if self._lanes is None:
            self._lanes = self._open(first)
        together = chain([first], left)
        if self._lanes is not None:
            yield from self._at_the_same_time(self._lanes, together, loss)
        else:
            yield from OneByOne(self._lane).each(together, loss)

    def _open(self, first: MicroBatch) -> SimpleQueue[Lane] | None:
        ask, self._ask = self._ask, None  # asked once, and not held: whoever asks holds this
        if ask is None:
            return None
        try:
            # A copy is tried first: what a pass leaves behind in modules goes with it.
            why = ask(copy_lane(self._lane), first) or ask(self._lane, first)
            if not why:
                copies = [copy_lane(self._lane) for _ in range(self._at_once - 1)]
                lanes: SimpleQueue[Lane] = SimpleQueue()
                for lane in (self._lane, *copies):
                    lanes.put(lane)
                return lanes
        except ValueError as error:
            why = str(error)
        logger.info(_ONE_BY_ONE, why)
        return None

    def _at_the_same_time(self, lanes: SimpleQueue[Lane], batches: Iterable[MicroBatch], loss: Loss) -> Generator[Done]:
        all_threads = torch.get_num_threads()
        of_each = max(1, all_threads // self._at_once)
        with_gradients, training = torch.is_grad_enabled(), self._lane.model.training
        under_way: deque[Future[_Computed]] = deque()

        def compute(batch: MicroBatch) -> _Computed:
            torch.set_num_threads(of_each)
            lane = lanes.get()
            try:
                if lane.model.training != training:
                    lane.model.train(training)
                with torch.set_grad_enabled(with_gradients):  # of a thread, and new ones have them
                    return self._computed(batch, *loss(lane, batch))
            finally:
                lanes.put(lane)

        def done() -> Done:
            batch, of_pass, gradients = under_way[0].result()  # an interrupt leaves it among those that are waited for
            under_way.popleft()
            return batch, of_pass, _Known.apply(gradients, *self._trained)  # type: ignore[no-untyped-call]

        try:
            for batch in batches:
                under_way.append(self._threads.submit(compute, batch))
                if len(under_way) > self._at_once:  # one waits, so that no thread does
                    yield done()
            while under_way:
                yield done()
        finally:
            for future in under_way:
                future.cancel()
            wait(under_way)
            torch.set_num_threads(all_threads)  # part of what a thread sets is the process's

    def _computed(self, batch: MicroBatch, of_pass: torch.Tensor, objective: torch.Tensor) -> _Computed:
        gradients: list[torch.Tensor | None] = [None] * len(self._trained)
        if objective.requires_grad:
            gradients = list(torch.autograd.grad(objective, self._trained, allow_unused=True))
        return batch, of_pass.detach(), gradients


_Computed = tuple[MicroBatch, torch.Tensor, list[torch.Tensor | None]]
"""A pass, its loss, and the gradient of each trained weight."""


class _Known(torch.autograd.Function):
    """A scalar whose gradients are known: so they are added, and whatever listens to that hears of it, as in any
    backward pass."""

    @staticmethod
    def forward(ctx: Any, gradients: list[torch.Tensor | None], *trained: torch.Tensor) -> torch.Tensor:
        ctx.gradients = gradients
        return trained[0].new_zeros(())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, _one: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return None, *gradients


def lanes_for(lane: Lane, at_once: int, ask: Ask) -> SideBySide | None:
    """What computes `at_once` passes of a model, on a CPU; None for a single one, or where it has no copies."""
    if at_once == 1:
        return None
    try:
        return SideBySide(lane, at_once, ask)
    except ValueError as error:
        logger.info(_ONE_BY_ONE, error)
        return None


def copy_lane(lane: Lane) -> Lane:
    """The same with the weights of its model and modules of its own; also buffers, some of which models write in each
    pass (how positions turn, by the longest row). Raises ValueError where a function in it would lead back to the
    modules that are copied, or where torch keeps weights that are computed in a pass for the whole process."""
    shared: dict[int, Any] = {id(parameter): parameter for parameter in lane.model.parameters()}
    shared[id(lane.places.unknown)] = lane.places.unknown  # which is told at the end of a step, of all of them
    known = {id(module) for module in lane.model.modules()} | {id(lane.head), id(lane.places)}
    for name, module in lane.model.named_modules():
        if any(_leads_to(value, known) for value in vars(module).values()):
            raise ValueError(f"{name or type(module).__name__} has a function that knows its module")
        if isinstance(module, ParamWrapper) or is_parametrized(module):
            raise ValueError(f"{name} computes its weights")
    try:
        return copy.deepcopy(lane, shared)
    except (TypeError, RuntimeError) as error:  # what has no copy: a lock, a tensor that was computed
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _leads_to(value: object, known: set[int]) -> bool:
    """Whether a function below `value`, of which a copy is the function itself, holds something known."""
    if isinstance(value, dict):
        return any(_leads_to(each, known) for each in value.values())
    if isinstance(value, functools.partial):
        return any(_leads_to(each, known) for each in (value.func, *value.args, *value.keywords.values()))
    if not isinstance(value, types.FunctionType):
        return False
    held = [cell.cell_contents for cell in value.__closure__ or ()]
    return any(
        id(each) in known or id(getattr(each, "__self__", None)) in known or _leads_to(each, known) for each in held
    )
