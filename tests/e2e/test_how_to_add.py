"""docs/architecture.md, "How to add…": in a copy of the package, a toy of each by the files named there, no other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rankzero
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import to_yaml
from tests.support.runs import run_here, small_spec

pytestmark = pytest.mark.e2e

TASK = '''
"""A toy: sft whose loss is twice as large."""
from rankzero.engine.tasks.sft import SupervisedFineTuning


class Doubled(SupervisedFineTuning):
    def loss_sum(self, logits_NV, batch):
        return 2 * super().loss_sum(logits_NV, batch)


TASK = Doubled()
'''
SHARDING = '''
"""A toy: replicas under another name."""
from rankzero.engine.parallel import replicas


class Toy(replicas.Replicated):
    name = "toy"


def spread(module, make_optimizer, *, spec, world, device, dtype):
    return Toy(module, make_optimizer, world=world, device=device)
'''
TRACKER = '''
"""A toy: lines of JSON."""
import json


class Lines:
    def __init__(self, path):
        self._file = path.open("a")

    def log(self, step, values):
        self._file.write(json.dumps([step, values["loss"]]) + "\\\\n")

    def samples(self, step, rows):
        """None of them."""

    def close(self):
        self._file.close()


def open_tracker(setting, run, step):
    run.events.mkdir(parents=True, exist_ok=True)
    return Lines(run.events / setting)
'''.replace("\\\\n", "\\n")
SECTIONS = {
    "spec/tasks.py": (
        "TASKS: dict[str, TaskSection] = {\n",
        '    "toy": TaskSection("answers", "writes", command="rankzero generate {run}", result="writes text"),\n',
    ),
    "spec/shardings.py": (
        "SHARDINGS: dict[str, ShardingSection] = {\n",
        '    "toy": ShardingSection("toy"),\n',
    ),
    "spec/run_spec.py": (
        "    tensorboard: bool = True\n",
        "    toy: str | None = None\n",
    ),
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package with the toys in it: three new files, and a line in each of three others."""
    copy = tmp_path / "src" / "rankzero"
    shutil.copytree(Path(rankzero.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "engine/tasks/toy.py").write_text(TASK)
    (copy / "engine/parallel/toy.py").write_text(SHARDING)
    (copy / "track/toy.py").write_text(TRACKER)
    for name, (place, line) in SECTIONS.items():
        text = (copy / name).read_text()
        assert text.count(place) == 1, name
        put = line + place if name.endswith("run_spec.py") else place + line
        (copy / name).write_text(text.replace(place, put))
    return copy.parent


def train(package: Path, spec: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    words = [sys.executable, "-m", "rankzero", "train", str(spec), "--json", *overrides]
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=False)


def test_a_task_a_sharding_and_a_tracker(package: Path, tmp_path: Path, tiny: Path) -> None:
    spec = tmp_path / "run.yaml"
    spec.write_text(to_yaml(small_spec(tmp_path, tiny, train__max_steps=2, eval_rows=0)))
    assert load_run_spec(spec, env={}).spec.task == "sft"
    toys = ("task=toy", "train.sharding=toy", "tracking.toy=lines.jsonl", "name=toy")
    before, toy = run_here(load_run_spec(spec, env={}).spec), train(package, spec, *toys)
    assert toy.returncode == 0, toy.stderr
    after = json.loads(toy.stdout)
    assert after["train_loss_first"] == pytest.approx(2 * before["train_loss_first"], rel=1e-6)
    root = Path(after["spec"]["output_dir"]) / "toy"
    lines = [json.loads(line) for line in (root / "events/lines.jsonl").read_text().splitlines()]
    assert [step for step, _ in lines] == [1, 2]
    manifest = json.loads((root / "checkpoints/step-2/manifest.json").read_text())
    assert manifest["layout"]["sharding"] == "toy"
    refused = train(package, spec, "task=toi")
    assert refused.returncode == 78 and "toy" in refused.stderr
