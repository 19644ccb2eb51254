"""A pass on tensors that have shapes and no memory: what it would take, whatever the model's code does.

The engine's own head, loss, dropout and adapters run under torch's FakeTensorMode, and every storage that they make and
let go is counted. So nothing is assumed of a model, as the sums of model/memory.py do; it takes torch and some seconds.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils

from rankzero.data.batches.collators.text import MicroBatch, padded_places
from rankzero.engine.layers import keeps_own_dropout
from rankzero.engine.parallel.base import Parallel
from rankzero.engine.parallel.masters import Masters, copies_in
from rankzero.engine.step import Stepper
from rankzero.engine.tasks.protocol import find_task
from rankzero.model import dropout_attention
from rankzero.model.dropout import Places, place_dropout
from rankzero.model.fitting import Need
from rankzero.model.load import kept_in_float32
from rankzero.model.own_dropout import leave_own_dropout_out
from rankzero.model.recomputing import recompute_blocks
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import task_that
from rankzero.wording import first_line

CPU = torch.device("cpu")
DEPENDS_ON_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
"""What a pass raises that looks at the values of its tensors, of which there are none."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that are alive, of tensors that operations give: `now`, and the `most` so far."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._alive: dict[int, int] = {}

    def count(self, value: object) -> None:
        """Of a tensor that is there already, or has just been made."""
        if not isinstance(value, torch.Tensor):
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.now -= self._alive.pop(key)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.bool:
            return True  # rows fill their pass: what masks ask is whether all of something is so
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            self.count(value)
        return result


def bytes_of_a_pass(shape: Any, need: Need, spec: RunSpec, dtype: torch.dtype) -> int | str:
    """What a pass over `need.tokens_at_once` in rows of `need.longest` has at its highest point on a CPU, beside
    weights and gradients, which are there: bytes. Or why that cannot be found, in words: a model that looks at values,
    an operation that torch knows no shapes of.

    `shape` is the model on meta, with its adapters; it is given fake weights, and is of no other use afterwards.
    """
    if need.facts.tower is not None or need.offloading:
        return "images are trained on" if need.facts.tower is not None else "activations are offloaded"
    rows = need.tokens_at_once // need.longest
    targets = max(1, round(rows * need.longest * need.trained_share))
    counter = LiveBytes()
    try:
        with FakeTensorMode(), _kept_generators(), _masks_as_they_are_made():
            _give_fake_weights(shape)
            trained = {name: weight for name, weight in shape.named_parameters() if weight.requires_grad}
            rounded = copies_in(shape, dtype)
            masters = Masters(trained, rounded, stay=kept_in_float32(shape, rounded))
            one_pass = _pass_of(shape, need, spec, dtype, _batch(need, rows, targets))
            with counter:
                for tensor in (*shape.parameters(), *shape.buffers()):
                    counter.count(tensor)
                for weight in masters.weights.values():
                    weight.grad = torch.empty_like(weight)
                before = counter.now
                one_pass()
    except DEPENDS_ON_VALUES:
        return "the model looks at the values of its tensors"
    except RuntimeError as error:
        return first_line(error)
    return counter.most - before


def _pass_of(shape: Any, need: Need, spec: RunSpec, dtype: torch.dtype, batch: MicroBatch) -> Callable[[], None]:
    """A forward and backward pass as the loop makes one. The tokens of preferences are trained as answers are: what
    their reference predicts is let go before."""
    if need.recomputing:
        recompute_blocks(shape, preserve_rng_state=False)
    places = Places(spec.train.seed)
    if not keeps_own_dropout(spec):
        leave_own_dropout_out(shape)
    place_dropout(shape, places)
    if getattr(shape.config, "_attn_implementation", None) == dropout_attention.NAME:
        dropout_attention.place_attention(shape, places)
    shape.train()
    alone = cast(Parallel, SimpleNamespace(model=shape, module=shape, name="ddp", same_passes=False))
    task = find_task(task_that(uses=spec.task_section.uses))
    head = task.head(alone, spec)
    stepper = Stepper(head, alone, task, device=CPU, dtype=dtype, max_grad_norm=None, places=places, balance=None)

    def one_pass() -> None:
        places.begin_pass(0, batch.row_of_BT, batch.position_BT, batch.predicts_N)
        torch.autograd.backward(stepper.loss_sum(batch))

    return one_pass


def _batch(need: Need, rows: int, targets: int) -> MicroBatch:
    """As a collator makes one of padded text. Under FakeTensorMode, so of shapes alone."""
    numbers = np.arange(rows)
    input_ids = torch.zeros((rows, need.longest), dtype=torch.int64)
    classifies = not need.facts.logits
    places = {name: torch.empty_like(found) for name, found in _real_places(numbers, need.longest).items()}
    inputs = {"input_ids": input_ids}
    if classifies:
        inputs["attention_mask"] = torch.ones_like(input_ids)
    return MicroBatch(
        rows=numbers,
        inputs=inputs,
        predicts_BT=None if classifies else torch.zeros((rows, need.longest), dtype=torch.bool),
        targets_N=torch.zeros(rows if classifies else targets, dtype=torch.int64),
        predicts_N=None if classifies else torch.zeros(targets, dtype=torch.int64),
        computed=rows * need.longest,
        **places,
    )


def _real_places(numbers: Any, longest: int) -> dict[str, torch.Tensor]:
    return padded_places(numbers, [longest] * len(numbers), torch.empty((len(numbers), longest), dtype=torch.int64))


def _give_fake_weights(module: torch.nn.Module) -> None:
    """Each tensor of a module on meta becomes one of the mode that is on; those that are shared stay so."""
    made: dict[int, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            new = torch.empty(tensor.shape, dtype=tensor.dtype, device=CPU)
            is_weight = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(new, requires_grad=tensor.requires_grad) if is_weight else new
        return made[id(tensor)]

    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = fake(tensor)  # type: ignore[assignment]


@contextmanager
def _masks_as_they_are_made() -> Iterator[None]:
    """transformers takes tensors without memory for those of a compiler, which has to have every mask written out."""
    tracing, log = masking_utils.is_tracing, logging.getLogger("torch._subclasses.fake_tensor")
    masking_utils.is_tracing, log.disabled = lambda *_: False, True  # what fails is told by who asks
    try:
        yield
    finally:
        masking_utils.is_tracing, log.disabled = tracing, False


@contextmanager
def _kept_generators() -> Iterator[None]:
    """Leave the process's stream of random numbers where it was."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
