"""The product's own session and step, outside of its loop: for what looks at a step from within. Imports torch late."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_cells import CELLS, OURS, Cell, Sizes, run_spec

METHODS = sorted({cell.method for cell in CELLS})


def find_cell(shape: str, method: str) -> Cell:
    """Raises SystemExit where there is no such cell."""
    for cell in CELLS:
        if cell.shape == shape and cell.method == method:
            return cell
    raise SystemExit(f"{shape} with {method} is no cell of gpu_cells.py")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything of a run before its model is loaded."""

    spec: Any
    inputs: Any
    world: Any
    device: Any
    dtype: Any
    ledger: Any
    run_dir: Any

    def session(self) -> Any:
        """Load the model, and make everything that moves with it."""
        from rankzero.engine import setup

        return setup.build_session(
            self.spec, self.inputs, self.world, self.device, self.dtype, self.run_dir, self.ledger
        )


def prepare(cell: Cell, sizes: Sizes, *, model: Path, rows: Path, changes: Sequence[str], cpu: bool) -> Prepared:
    """The run of a cell, with `section.field=JSON` changed."""
    from rankzero.engine.device import pick_device, pick_dtype, without_cudnn_attention
    from rankzero.engine.distributed import world_from_env
    from rankzero.engine.goodput import Ledger
    from rankzero.engine.inputs import read_inputs
    from rankzero.run_dir.paths import RunDir
    from rankzero.spec.run_spec import RunSpec

    output = model / "runs"
    given = run_spec(cell, OURS, sizes, model=model, rows=rows, output=output, cpu=cpu)
    for change in changes:
        dotted, _, value = change.partition("=")
        section, _, field = dotted.partition(".")
        given.setdefault(section, {})[field] = json.loads(value)
    spec, world, ledger = RunSpec.model_validate(given), world_from_env({}), Ledger(None)
    inputs, device = read_inputs(spec, world, ledger), pick_device(0)
    ExitStack().enter_context(without_cudnn_attention(device))  # as the worker does, to the end of this process
    dtype = pick_dtype(spec.model.dtype, device)
    return Prepared(spec, inputs, world, device, dtype, ledger, RunDir(output / "bench"))


def run_step(session: Any, number: int) -> Any:
    """The step after `number` finished ones, the optimizer's part too. Returns its work."""
    work = session.train.step(number)
    session.stepper.gradients(session.train, work, number, stop_wanted=False, on_pass=lambda _batch, _loss: None)
    session.parallel.step()
    session.parallel.zero_grad()
    return work
