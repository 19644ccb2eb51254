"""What a forecast needs to know besides model and rows: room on the disk, an earlier timing, steps that are done."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankzero.forecast.timing import remembered_rate, shape_of_work
from rankzero.machine import cache_root
from rankzero.model.fitting import Need
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec


@dataclass(frozen=True, slots=True)
class Conditions:
    """Under which a run will train."""

    precision: str
    """Of matrix products: bfloat16."""
    packed: bool
    """Rows lie end to end."""
    result_value: int = 4
    """Bytes of a value in a whole model's result: of the base's files, whatever is computed in."""
    borders: Sequence[int] = ()
    """Lengths that rows of a pass are on one side of, ascending."""
    free_disk: int = 0
    """Bytes below the output directory; 0 where nobody knows."""
    rate: float | None = None
    """Tokens a second of the last run of this shape on this machine."""
    done: int = 0
    """Steps that a checkpoint has already."""


def conditions_here(
    spec: RunSpec, need: Need, device: str, precision: str, *, packed: bool, result_value: int, borders: Sequence[int]
) -> Conditions:
    """Of this machine. `device` is the hardware's name."""
    output = Path(spec.output_dir)
    done = next(iter(RunDir(output / str(spec.name)).committed_steps()), 0)
    rate = remembered_rate(shape_of_work(spec, need, device, packed=packed), cache_root())
    return Conditions(precision, packed, result_value, borders, _free_below(output), rate, done)


def _free_below(directory: Path) -> int:
    """Bytes that are free where a directory is or will be; 0 where the system does not say."""
    there = next((path for path in (directory, *directory.parents) if path.is_dir()), None)
    try:
        return 0 if there is None else shutil.disk_usage(there).free
    except OSError:
        return 0
