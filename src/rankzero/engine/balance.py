"""The routers of a mixture of experts over a step: the loss that balances them, and how much each expert has to do.

The loss needs to know how often each expert is visited in the whole global batch before the first backward pass. So
the step's forward passes are made once more, ahead and without gradients: exact in every layout, and dear, since a step
is then a forward pass longer. Knows steps and processes; what routers are, model/routers.py knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from rankzero.data.batches.collators.text import MicroBatch
from rankzero.engine.distributed import gather_objects, sum_over_ranks
from rankzero.model.routers import ASKING, Routers, Routing, balance_loss, loads


@dataclass(frozen=True, slots=True)
class RouterResult:
    """Of a whole global batch."""

    loads_LE: torch.Tensor
    """On the CPU; 1 is an expert's share where all have as much to do."""
    loss: float | None
    """Before it is multiplied by its coefficient; None where that is 0."""

    def facts(self, *, each: bool) -> dict[str, Any]:
        """What metrics.jsonl gets; with `each`, also the load of each expert of each layer."""
        found: dict[str, Any] = {} if self.loss is None else {"router_aux_loss": self.loss}
        found |= {"expert_load_max": self.loads_LE.max().item(), "expert_load_min": self.loads_LE.min().item()}
        if each:
            found["expert_load"] = [[round(load, 3) for load in layer] for layer in self.loads_LE.tolist()]
        return found


class Balance:
    """Begun before a step's passes, given each of them, and asked after the last."""

    def __init__(self, routers: Routers, coefficient: float, device: torch.device) -> None:
        """A `coefficient` of 0 costs nothing: experts' loads are those of the passes that train."""
        self._routers, self._coefficient, self._device = routers, coefficient, device
        self._shape: tuple[int, ...] | None = None
        self._counts: list[torch.Tensor] = []
        """Of each pass of this rank: visits, and what the loss takes for them."""
        self._counts_2LE: torch.Tensor | None = None
        self._known_of: int | None = None
        self.loss_so_far = torch.zeros((), device=device)
        """This rank's share of the step's loss, without its coefficient."""

    def begin(self, step: int, passes: Iterable[MicroBatch], forward: Callable[[MicroBatch], object]) -> None:
        """The step after `step` finished ones begins, of these passes. A collective where there is a coefficient, but
        not where one rank begins the step again, in smaller passes: of the whole batch it knows the visits by then."""
        self._counts = []
        self.loss_so_far = torch.zeros((), device=self._device)
        if not self._coefficient or self._known_of == step:
            return
        self._counts_2LE = None
        with torch.no_grad(), same_draws_again(self._device):
            for batch in passes:
                forward(without_targets(asking(batch)))
                self._count(self._routers.routing(batch.own_BT))
        self._counts_2LE = self._all_counts()
        self._known_of = step

    def loss(self, batch: MicroBatch) -> torch.Tensor | float:
        """What the pass that the model has just computed adds to the step's loss."""
        routing = self._routers.routing(batch.own_BT)
        if self._counts_2LE is None:
            self._count(routing)
            return 0.0
        loss = balance_loss(self._counts_2LE[1], routing.probabilities_E, self._routers.visited)
        self.loss_so_far += loss.detach()
        return self._coefficient * loss

    def result(self, loss: float) -> RouterResult:
        """Of the step; `loss` is `loss_so_far` of all ranks. A collective where there is no coefficient."""
        counts_2LE = self._all_counts() if self._counts_2LE is None else self._counts_2LE
        return RouterResult(loads(counts_2LE[0]).cpu(), loss if self._coefficient else None)

    def _count(self, routing: Routing) -> None:
        self._counts.append(torch.stack([routing.visits_LE, routing.likeliest_LE]))

    def _all_counts(self) -> torch.Tensor:
        """Of all ranks. One without rows has to be told once how many experts there are."""
        if self._shape is None:
            seen = tuple(self._counts[0].shape) if self._counts else None
            self._shape = next(shape for shape in gather_objects(seen) if shape is not None)
        own = torch.stack(self._counts).sum(dim=0) if self._counts else torch.zeros(self._shape, device=self._device)
        return sum_over_ranks(own)


def asking(batch: MicroBatch) -> MicroBatch:
    """The pass, with the model asked what its routers do."""
    return replace(batch, inputs={**batch.inputs, **ASKING})


def without_targets(batch: MicroBatch) -> MicroBatch:
    """The pass without logits for each token: a head has nothing to do."""
    if batch.predicts_BT is None:
        return batch
    return replace(
        batch,
        predicts_BT=torch.zeros_like(batch.predicts_BT),
        predicts_N=None if batch.predicts_N is None else batch.predicts_N[:0],
        targets_N=batch.targets_N[:0],
    )


@contextmanager
def same_draws_again(device: torch.device) -> Iterator[None]:
    """What is drawn inside is drawn again after the block: dropout that no places decide drops the same."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
