"""Parallel: what the loop asks of a model that lies over several processes. Knows nothing of data or of steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from rankzero.spec.run_spec import Sharding

OPTIMIZER_FILE = "optimizer.safetensors"
WEIGHTS_DIRECTORY = "model"


class Snapshot(Protocol):
    """What a checkpoint holds of weights and optimizer at one moment, on this rank."""

    @property
    def nbytes(self) -> int:
        """What this rank will write of it: of what several have alike, its share."""

    @property
    def held(self) -> int:
        """Bytes of memory that a copy takes on this rank."""

    def not_finite(self) -> list[str]:
        """Names of weights that are NaN or Inf somewhere, in what this rank has: of those that the optimizer has moved.
        Not a collective."""

    def copied(self, into: Snapshot | None = None) -> Snapshot:
        """The same in memory of its own on the host, to be written while the run goes on. Not a collective.

        `into`: an earlier copy that nobody needs any more. New memory costs several times what the copying does.
        """

    def write(self, staged: Path, group: dist.ProcessGroup | None = None) -> None:
        """Write it below `staged`, which exists on every rank. A collective of `group` (None: of all processes).
        Raises OSError, StorageError."""


class Parallel(Protocol):
    """A model with its optimizer, spread over the processes in one way.

    Every method is a collective unless it says otherwise. Gradients are sums over ranks, never means: the loss that
    goes into `backward` is this rank's share of the whole global batch's.
    """

    @property
    def name(self) -> Sharding:
        """The `train.sharding` that this is."""

    same_passes: bool
    """Passes are collectives, so every rank must run equally many."""
    model: Any
    """What is called: forward passes go through it, in training and in evaluation."""
    module: Any
    """The Hugging Face model (or PeftModel) inside."""
    optimizer: torch.optim.Optimizer
    """The one whose learning rates a scheduler moves."""

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Add this pass's gradients; `last` is the step's last pass. A pass may reach nothing that is trained, such as
        rows without an image where only what sees images is."""

    def reduce_gradients(self, max_grad_norm: float | None, *, loss_scale: float = 1.0) -> torch.Tensor:
        """Sum the gradients over the ranks, divide them by what losses were multiplied by, and clip them.

        Returns the global norm before clipping, a scalar: the same on every rank, so that all agree where it is not
        finite.
        """

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What this rank has of the reduced gradient of each trained weight, by its name, the same names on all ranks.
        Not a collective."""

    def trained(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What this rank has of each trained weight, by its name, as the optimizer moves it; others may have none, or
        another part than they save. Not a collective."""

    def step(self) -> None:
        """Move the optimizer."""

    def zero_grad(self) -> None:
        """Drop the gradients; a skipped step calls this without `step`. Not a collective."""

    def snapshot(self) -> Snapshot:
        """Weights and optimizer as they are now, in the same memory: the next step would change it."""

    def load(self, directory: Path) -> None:
        """Restore what a snapshot wrote, under any number of processes, bit for bit. Raises StorageError."""

    def load_weights(self, directory: Path) -> None:
        """Only the weights of what a snapshot wrote, to export them."""

    def export_state(self) -> dict[str, torch.Tensor] | None:
        """The model's whole state on the CPU for `save_pretrained` (adapters: only what is saved of them), on the main
        rank; {} on the others. None: `module` itself holds it."""


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter]
) -> dict[str, torch.Tensor]:
    """`<parameter name>/<state name>` for every tensor of an optimizer's state, sharing its memory."""
    return {
        f"{name}/{key}": value.detach()
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    parameters: dict[str, torch.nn.Parameter],
    tensors: dict[str, torch.Tensor],
) -> None:
    """Put back what `optimizer_tensors` gave. `step` stays on the CPU unless the optimizer is fused. What is frozen by
    now needs none: older versions trained what an architecture has frozen, too."""
    for key, tensor in tensors.items():
        name, _, part = key.rpartition("/")
        if name not in parameters:
            continue
        parameter = parameters[name]
        keep_on_cpu = part == "step" and not optimizer.defaults.get("fused")
        device = torch.device("cpu") if keep_on_cpu else parameter.device
        optimizer.state[parameter][part] = tensor.to(device)
