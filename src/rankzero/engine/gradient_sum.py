"""Gradients of all ranks, added up in flat buckets while the backward pass still computes those of earlier layers.

As in Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2, but once a step: earlier passes only add to what a rank
has, and a pass of the model needs no wrapper. Buckets go out in one order on every rank, whatever order their gradients
come in and however many passes a rank has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

from rankzero.model.memory import GRADIENT_BUCKET_BYTES


class GradientSum:
    """What becomes of the gradients of some weights, step after step."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        group: dist.ProcessGroup | None = None,
        *,
        computed: Mapping[torch.nn.Parameter, torch.nn.Parameter] | None = None,
    ) -> None:
        """`parameters` in the order in which the model was built: the last ones' gradients come first. `group`: the
        ranks that have them; None: all. `computed`: what a pass computes with in place of some of them, and hands its
        gradients on."""
        self.parameters = list(parameters)
        buckets = _in_buckets(self.parameters[::-1]) if dist.is_initialized() else iter(())
        self._buckets = [_Bucket(of, group) for of in buckets]
        self._on_their_way = 0
        self._last_pass = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                source = parameter if computed is None else computed.get(parameter, parameter)
                source.register_post_accumulate_grad_hook(partial(self._is_ready, bucket))  # type: ignore[no-untyped-call]

    def begin_pass(self, *, last: bool) -> None:
        """A backward pass follows. What this rank's `last` one of the step has added to is complete."""
        self._last_pass = last  # a step that is made again has had a last one already
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def finish(self) -> None:
        """Wait until every weight has the sum over its ranks as its gradient.

        One that no row of this step has used gets zeros, on one process as on many: AdamW would leave out a weight
        without a gradient, and not decay it.
        """
        self._last_pass = False
        for bucket in self._buckets[self._on_their_way :]:
            bucket.begin()
        for bucket in self._buckets:
            bucket.wait_for_sum()
        self._on_their_way = 0
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def _is_ready(self, bucket: _Bucket, _parameter: torch.Tensor) -> None:
        if not self._last_pass:
            return
        bucket.missing -= 1
        # A step that is made again in smaller passes finds buckets on their way: their sums are those of the step.
        while self._on_their_way < len(self._buckets) and not self._buckets[self._on_their_way].missing:
            self._buckets[self._on_their_way].begin()
            self._on_their_way += 1


@dataclass(slots=True)
class _Bucket:
    """Some weights of one precision on one device, and their gradients while they are on their way."""

    parameters: Sequence[torch.nn.Parameter]
    group: dist.ProcessGroup | None
    missing: int = 0
    """How many gradients the last pass has not added to yet."""
    _flat: torch.Tensor | None = None
    _work: dist.Work | None = field(default=None)

    def begin(self) -> None:
        self._flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.parameters]
        )
        for parameter in self.parameters:
            parameter.grad = None  # so that no gradient is there twice
        self._work = dist.all_reduce(self._flat, group=self.group, async_op=True)

    def wait_for_sum(self) -> None:
        flat, work = self._flat, self._work
        if flat is None or work is None:
            raise RuntimeError("this bucket was not begun")
        work.wait()
        for parameter, part in zip(
            self.parameters, torch.split(flat, [p.numel() for p in self.parameters]), strict=True
        ):
            parameter.grad = part.view_as(parameter)
        self._flat = self._work = None


def _in_buckets(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    bucket: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.nbytes > GRADIENT_BUCKET_BYTES or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield bucket
