"""TensorBoard event files, through torch's writer. Knows nothing of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rankzero.spec.metrics import MEASURES
from rankzero.track.protocol import TrackedRun


class TensorBoard:
    """Scalars into `directory`; events of steps after `step` (from before a resume) are hidden."""

    def __init__(self, directory: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=step, flush_secs=10)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            if name not in {"time", "epoch"}:
                self._writer.add_scalar(f"{'eval' if name in MEASURES else 'train'}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


def open_tracker(_setting: Literal[True], run: TrackedRun, step: int) -> TensorBoard:
    """Events of `run` into its own directory."""
    return TensorBoard(run.events, step)
