"""What an earlier version of rankzero left on a disk, kept so that this one is seen to go on with it.

`python -m tests.support.version_before` makes tests/fixtures/version_before.tar.xz with the version that is installed:
run it with a version that people have, before a change of what runs keep, never to make a failing test pass.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "version_before.tar.xz"
SPEC = """\
name: stopped
model: {name: ./base, dtype: float32}
data: {train: [{path: rows.jsonl}], eval: {fraction: 0.1}, max_length: 128}
lora: {r: 4}
train: {max_steps: 4, global_batch_size: 4, seed: 3}
eval: {every: 2, on_start: true}
checkpoint: {every: 2, keep: 1}
"""
SWEEP = """\
name: search
run: run.yaml
trials: 1
sampler: random
pruner: none
parameters:
  train.learning_rate: {values: [1.0e-4, 3.0e-4]}
"""
STOPPED_AT = 3
PLACE = "/srv/rankzero-before"
"""Where they are made."""


def unpack_as_it_is(directory: Path) -> Path:
    """base/, rows.jsonl, run.yaml (name: stopped), sweep.yaml, runs/stopped, runs/done and sweeps/search, as where all
    of it has moved. Returns where they lie."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory


def unpack(directory: Path) -> Path:
    """The same; their specs name this directory then, as if it had been theirs."""
    unpack_as_it_is(directory)
    for pattern in ("runs/*/run.yaml", "sweeps/search/*.yaml", "sweeps/search/*.json", "sweeps/*/trials/*/run.yaml"):
        for file in directory.glob(pattern):
            file.write_text(file.read_text().replace(PLACE, str(directory)))
    return directory


def make(directory: Path) -> None:
    """Train one run to its end, one until it is asked to stop in its third step, and one trial of a sweep."""
    from rankzero.api.specs import load_spec
    from rankzero.engine import worker
    from rankzero.engine.hooks import Hooks
    from rankzero.errors import StoppedError
    from rankzero.spec.run_options import RunOptions
    from tests.support.tiny import tiny_model

    def stops(step: int) -> None:
        if step == STOPPED_AT:
            os.kill(os.getpid(), signal.SIGTERM)

    os.chdir(directory)
    tiny_model(Path("base"))
    sums = [(first, second) for first in range(8) for second in range(5)]
    turns = [[("user", f"What is {a} plus {b}?"), ("assistant", f"It is {a + b}.")] for a, b in sums]
    rows = [{"messages": [{"role": role, "content": words} for role, words in row]} for row in turns]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("run.yaml").write_text(SPEC)
    Path("sweep.yaml").write_text(SWEEP)
    command = [sys.executable, "-m", "rankzero"]
    subprocess.run([*command, "train", "run.yaml", "name=done"], check=True)
    subprocess.run([*command, "sweep", "sweep.yaml"], check=True)
    try:
        worker.run(load_spec(Path("run.yaml")), RunOptions(), Hooks(step_begins=stops))
    except StoppedError as error:
        print(error)


def main() -> None:
    """Make the archive."""
    directory = Path(PLACE)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    os.environ["RANKZERO_CACHE"] = str(directory / "cache")
    make(directory)
    for file in (file for kind in ("environment.json", "report.*") for file in directory.rglob(kind)):
        file.write_text(file.read_text().replace(platform.platform(), platform.system()))  # no business of anybody's
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in ("base", "rows.jsonl", "run.yaml", "sweep.yaml", "runs", "sweeps"):
            archive.add(directory / name, name)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
