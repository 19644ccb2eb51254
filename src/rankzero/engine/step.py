"""One optimizer step: forward and backward passes, the token-normalised loss, one gradient reduction, clipping.

Loss of a step = sum of weight × token loss / sum of weights, both over the trained tokens of the whole global batch,
in which every token weighs 1 unless its row says otherwise. Every pass divides by that same total, so how the batch was
cut into ranks and passes cannot change the result. Where routers of experts are trained, what balances them is added to
what is minimised, and not to the loss that is told.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from rankzero.data.batches.collators.text import to_device
from rankzero.data.batches.loader import Collated, MicroBatch, Work
from rankzero.data.cache.joined import Rows
from rankzero.data.order import Indices
from rankzero.engine.any_order import why_in_order
from rankzero.engine.balance import Balance, RouterResult, asking
from rankzero.engine.console import logger
from rankzero.engine.distributed import gather_objects, in_own_slot, sum_over_ranks
from rankzero.engine.heads import Head, first_tokens
from rankzero.engine.pace import PassClock, Passes
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.side_by_side import Lane, OneByOne, SideBySide, lanes_for
from rankzero.engine.tasks.protocol import Task
from rankzero.errors import NonFiniteError, Problem
from rankzero.model.dropout import Places
from rankzero.model.out_of_memory import suppress_out_of_memory

LogitsSeen = Callable[[torch.Tensor, MicroBatch], None]
"""Is given logits in float32, one row for each target of a pass or of a part of it."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. `loss` and `grad_norm` are of the whole global batch; the norm is from before clipping."""

    loss: float
    grad_norm: float
    stop: bool
    finite: bool
    computed_tokens: int
    suspects: tuple[int, ...]
    """This rank's rows of passes whose loss is not finite."""
    ranks: tuple[Passes, ...] = ()
    """What each rank did in the step before; seconds are 0 in the first one."""
    input_seconds: float = 0.0
    """How long this rank waited for the tensors of its passes."""
    routers: RouterResult | None = None
    """Where routers are trained."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What the task measures of a step, by the names that metrics.jsonl has for it."""
    pass_limit: int = 0
    """The least tokens of a pass that a rank had to come down to in this step; 0: none had to."""

    @property
    def overflowed(self) -> bool:
        """The loss is finite and the gradients are not: in float16, a smaller loss scale may help."""
        return math.isfinite(self.loss) and not math.isfinite(self.grad_norm)


class Stepper:
    """Runs steps of one model. Holds no position: what it computes follows from the work it is given."""

    def __init__(
        self,
        head: Head,
        parallel: Parallel,
        task: Task,
        *,
        device: torch.device,
        dtype: torch.dtype,
        max_grad_norm: float | None,
        places: Places,
        balance: Balance | None = None,
    ) -> None:
        """`places` hears of every pass that trains; the model's dropout is tied to it. `balance`: where routers are
        trained."""
        self._head = head
        self._places = places
        self._one_by_one = OneByOne(Lane(head, places, parallel.module))
        self._side_by_side: SideBySide | None = None
        self._warned = False
        self._parallel = parallel
        self._task = task
        self._device = device
        self._dtype = dtype
        self._max_grad_norm = max_grad_norm
        self._balance = balance
        self._clock = PassClock(device)
        self._before = Passes(0.0, 0.0)

    def compute_side_by_side(self, at_once: int) -> None:
        """Have so many passes of a step or an evaluation computed at the same time, on a CPU, where it has several. For
        text; a model that cannot be copied computes them one by one."""
        lane = Lane(self._head, self._places, self._parallel.module)
        self._side_by_side = lanes_for(lane, at_once, self._why_in_order)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Matrix products in the run's precision, whatever weights have that are trained."""
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=self._dtype is not torch.float32):
            yield

    def loss_sum(self, batch: MicroBatch, seen: LogitsSeen | None = None, head: Head | None = None) -> torch.Tensor:
        """Sum of the losses of a pass's targets, each times its weight, in float32. `seen` hears of all logits. `head`:
        a copy that computes it."""

        def of_logits(logits_NV: torch.Tensor, part: MicroBatch) -> torch.Tensor:
            if seen is not None:
                logits_NV = logits_NV.float()
                seen(logits_NV.detach(), part)
            return self._task.loss_sum(logits_NV, part)

        with self.autocast():
            return (head or self._head).loss_sum(batch, of_logits)

    def losses(
        self, batches: Iterator[MicroBatch], count: int, seen: LogitsSeen
    ) -> Generator[tuple[MicroBatch, torch.Tensor]]:
        """`count` passes in their order, each with what `loss_sum` makes of it: of an evaluation. `seen` hears of
        logits in any order, of one pass at a time."""
        hears = threading.Lock()

        def one_at_a_time(logits_NV: torch.Tensor, part: MicroBatch) -> None:
            with hears:
                seen(logits_NV, part)

        def loss_of(lane: Lane, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
            loss = self.loss_sum(batch, one_at_a_time, lane.head)
            return loss, loss

        with closing(self._computing(count).each(batches, loss_of)) as done:
            for batch, loss, _ in done:
                yield batch, loss

    def _computing(self, passes: int) -> OneByOne | SideBySide:
        return (self._side_by_side if passes > 1 else None) or self._one_by_one

    def gradients(
        self,
        batches: Collated,
        work: Work,
        step: int,
        *,
        stop_wanted: bool,
        on_pass: Callable[[MicroBatch, torch.Tensor], None],
        loss_scale: float = 1.0,
        pass_limit: int = 0,
    ) -> StepResult | None:
        """Compute and reduce the gradients of the step after `step` finished ones, and clip them. The optimizer has not
        moved yet.

        Losses are multiplied by `loss_scale`, a power of two, and the reduced gradients divided by it. The wish to stop
        travels in the same reduction as the loss, so that all ranks agree on the step. So does `pass_limit`: the tokens
        of a pass that this rank has come down to. None, before any reduction, where a pass ran out of memory: some of
        the gradients are computed then.
        """
        meter = self._task.step_meter(self._device)
        done = self._run(batches, work, step, on_pass, loss_scale, None if meter is None else meter.add)
        if done is None:
            return None
        losses, computed, waited = done
        own = in_own_slot([self._before.seconds, self._before.tokens, pass_limit])
        # A copy that is waited for would leave the device without work until the gradients' sums are asked for.
        sums = to_device(np.array([0, stop_wanted, computed, 0, *own], np.float32), self._device)
        if losses:
            sums[0] = torch.stack(losses).sum()
        if self._balance is not None:
            sums[3] = self._balance.loss_so_far
        norm = self._parallel.reduce_gradients(self._max_grad_norm, loss_scale=loss_scale)
        sums = sum_over_ranks(sums)
        grad_norm, loss_sum, stop, computed_all, router_loss, *slots_all = sums_of_step(norm, sums)
        self._clock.read()
        self._before = Passes(self._clock.seconds, float(computed))
        step_loss = loss_sum / work.loss_weight
        finite = math.isfinite(step_loss) and math.isfinite(grad_norm)
        suspects = () if finite else _suspect_rows(work.passes, losses)
        ranks = tuple(map(Passes, slots_all[::3], slots_all[1::3]))
        limit = int(min((limit for limit in slots_all[2::3] if limit), default=0))
        routers = None if self._balance is None else self._balance.result(router_loss)
        measures = {} if meter is None else meter.metrics(step_loss)
        return StepResult(
            loss=step_loss,
            grad_norm=grad_norm,
            stop=stop > 0,
            finite=finite,
            computed_tokens=int(computed_all),
            suspects=suspects,
            ranks=ranks,
            input_seconds=waited,
            routers=routers,
            measures={f"train_{name}": value for name, value in measures.items()},
            pass_limit=limit,
        )

    def _look_ahead(self, step: int, batch: MicroBatch) -> None:
        """The pass without its loss."""
        _begin_pass(self._places, step, batch)
        with self.autocast():
            self._head.logits(batch)

    def _run(
        self,
        batches: Collated,
        work: Work,
        step: int,
        on_pass: Callable[[MicroBatch, torch.Tensor], None],
        loss_scale: float,
        seen: LogitsSeen | None,
    ) -> tuple[list[torch.Tensor], int, float] | None:
        """The passes: their losses, tokens computed, seconds waited for input. None where one ran out of memory, whose
        tensors nothing holds any more then."""
        losses: list[torch.Tensor] = []
        computed = 0

        def loss_of(lane: Lane, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
            _begin_pass(lane.places, step, batch)
            loss = self.loss_sum(batch if self._balance is None else asking(batch), seen, lane.head)
            objective = loss / work.loss_weight
            if self._balance is not None:
                objective = objective + self._balance.loss(batch)
            return loss, objective * loss_scale

        alone = seen is not None or self._balance is not None  # what these add up has an order
        computing = self._one_by_one if alone else self._computing(len(work.passes))
        with suppress_out_of_memory(), self._watch_generators():
            if self._balance is not None:
                with closing(batches.collated(work.passes, self._device)) as passes:
                    self._balance.begin(step, passes, partial(self._look_ahead, step))
            self._clock.start()
            with closing(batches.collated(work.passes, self._device)) as collated:
                waited = Waited(collated)
                with closing(computing.each(waited, loss_of)) as done:
                    for number, (batch, loss, objective) in enumerate(done, 1):
                        self._parallel.backward(objective, last=number == len(work.passes))
                        losses.append(loss.detach())
                        computed += batch.computed
                        on_pass(batch, loss)
            self._clock.stop()
            return losses, computed, waited.seconds
        return None

    def _why_in_order(self, lane: Lane, batch: MicroBatch) -> str:
        """Why passes may not be computed in any order, by the first tokens of one."""
        few = first_tokens(batch)

        def compute() -> None:
            _begin_pass(lane.places, 0, few)
            self.loss_sum(few, None, lane.head)

        return why_in_order(lane.model, compute)

    @contextmanager
    def _watch_generators(self) -> Iterator[None]:
        """Warn once where something still draws from this process's stream of random numbers: what it draws depends on
        what else the process computes. That may be no sooner than in the first step with an image."""
        if self._warned:
            yield
            return
        before = _generators(self._device)
        yield
        if not torch.equal(before, _generators(self._device)):
            self._warned, self._side_by_side = True, None
            logger.warning("[TRAIN] %s", self._places.what_is_left())


def _begin_pass(places: Places, step: int, batch: MicroBatch) -> None:
    """Of the step after `step` finished ones: what it drops."""
    places.begin_pass(step, batch.row_of_BT, batch.position_BT, batch.predicts_N)


class Waited:
    """The passes of a step as they come, and how long they were waited for: all of the first one's making, and what
    the computing of the one before does not hide of the others'."""

    def __init__(self, batches: Iterator[MicroBatch]) -> None:
        self._batches = batches
        self.seconds = 0.0

    def __iter__(self) -> Iterator[MicroBatch]:
        while True:
            asked = time.perf_counter()
            batch = next(self._batches, None)
            self.seconds += time.perf_counter() - asked
            if batch is None:
                return
            yield batch


def sums_of_step(norm: torch.Tensor, sums: torch.Tensor) -> list[float]:
    """Wait for the device, once a step: on a GPU this is where a rank waits for the others, under this name."""
    return torch.cat([norm.reshape(1).to(sums), sums]).tolist()


def _generators(device: torch.device) -> torch.Tensor:
    """The state of the generators that a model could draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def non_finite_error(rows: Rows, work: Work, result: StepResult, step: int, dtype: torch.dtype) -> NonFiniteError:
    """Name the step and the rows it came from: those of the passes whose loss is not finite, else all of them.

    A collective: every rank calls it, since every rank has seen the same sums.
    """
    suspects = sorted({row for rows in gather_objects(result.suspects) for row in rows}) or work.rows.tolist()
    places = ", ".join(rows.where(row) for row in suspects[:8])
    more = f" and {len(suspects) - 8} more" if len(suspects) > 8 else ""
    hint = "look at these rows, lower train.learning_rate, or skip such steps with train.max_nonfinite_steps"
    if dtype is torch.float16:
        hint = f"float16 ends at 65504, too early for some models: set model.dtype: float32; or {hint}"
    what = f"step {step}: the loss is {result.loss}, the gradient norm {result.grad_norm}"
    return NonFiniteError(Problem(what, f"{places}{more}", hint))


def _suspect_rows(passes: list[Indices], losses: list[torch.Tensor]) -> tuple[int, ...]:
    return tuple(int(row) for rows, loss in zip(passes, losses, strict=True) if not loss.isfinite() for row in rows)
