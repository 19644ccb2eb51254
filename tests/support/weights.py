"""Saved weights put back into a model, as a replica does."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rankzero.engine.parallel.base import WEIGHTS_DIRECTORY
from rankzero.engine.parallel.formats import model_state, read_weights


def load_weights(model: Any, directory: Path) -> None:
    """What `save_weights` wrote into `directory`. Raises StorageError where it does not fit."""
    with TemporaryDirectory() as checkpoint:
        (Path(checkpoint) / WEIGHTS_DIRECTORY).symlink_to(directory.resolve())
        read_weights(model, model_state(model), Path(checkpoint), lambda _name, whole: whole)
