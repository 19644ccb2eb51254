"""A small classifier on made-up rows, trained by all processes with the collectives that training uses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rankzero.engine.console import logger
from rankzero.engine.distributed import World, broadcast_parameters, gather_objects, sum_over_ranks
from rankzero.engine.gradient_sum import GradientSum
from rankzero.spec.run_options import SmokeSettings

HIDDEN = 256


@dataclass(frozen=True, slots=True)
class Learned:
    """What came of it, the same on every rank. Losses are means of cross entropy over all rows, in nats."""

    before: float
    epochs: tuple[float, ...]
    after: float
    differing: tuple[int, ...]
    """Ranks whose weights are not those of rank 0."""


def learn(settings: SmokeSettings, world: World, device: torch.device) -> Learned:
    """Train with AdamW. Ranks begin with different weights, so that equal ones at the end are the collectives' work."""
    x_NF, y_N = made_up_rows(settings)
    x_NF, y_N = x_NF.to(device), y_N.to(device)
    torch.manual_seed(settings.seed + world.rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(settings.features, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, settings.classes)
    ).to(device)
    broadcast_parameters(model.parameters())
    gradients = GradientSum(model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.0)

    def loss_of_all() -> float:
        mine = slice(world.rank, None, world.world_size)
        with torch.no_grad():
            return float(sum_over_ranks(_loss_sum(model, x_NF[mine], y_N[mine]))) / settings.samples

    before = loss_of_all()
    epochs = []
    for epoch in range(settings.epochs):
        total = torch.zeros((), device=device)
        for rows, count in _own_rows(settings, world, epoch):
            loss = _loss_sum(model, x_NF[rows.to(device)], y_N[rows.to(device)])
            optimizer.zero_grad(set_to_none=True)
            gradients.begin_pass(last=True)
            torch.autograd.backward(loss / count)
            gradients.finish()
            optimizer.step()
            total += loss.detach()
        epochs.append(float(sum_over_ranks(total)) / settings.samples)
        logger.info("[TRAIN] epoch %d/%d loss %.4f", epoch + 1, settings.epochs, epochs[-1])
    hashes = gather_objects(_hash_of(model))
    differing = tuple(rank for rank, found in enumerate(hashes) if found != hashes[0])
    return Learned(before, tuple(epochs), loss_of_all(), differing)


def made_up_rows(settings: SmokeSettings) -> tuple[Tensor, Tensor]:
    """Rows (samples, features) and classes (samples,), the same on every rank.

    A row's class is the largest of `classes` random linear functions of it, so a linear layer can tell them apart.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    x_NF = torch.randn(settings.samples, settings.features, generator=generator)
    w_FC = torch.randn(settings.features, settings.classes, generator=generator)
    return x_NF, (x_NF @ w_FC).argmax(dim=1)


def _own_rows(settings: SmokeSettings, world: World, epoch: int) -> Iterator[tuple[Tensor, int]]:
    """Of each step of an epoch: this rank's rows, and how many all ranks have."""
    order = torch.randperm(settings.samples, generator=torch.Generator().manual_seed(settings.seed + epoch))
    for rows in torch.split(order, settings.batch * world.world_size):
        yield rows[world.rank :: world.world_size], len(rows)


def _loss_sum(model: torch.nn.Module, x_NF: Tensor, y_N: Tensor) -> Tensor:
    """Cross entropy summed over rows; 0 of none."""
    return functional.cross_entropy(model(x_NF), y_N, reduction="sum")


def _hash_of(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
