"""Several processes on one machine: one exit, one error, no orphans, whatever one of them does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rankzero.errors import DataError, RankzeroError, StoppedError
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import fork_workers, run_forked
from tests.support.runs import metrics, run_processes_here, run_root, small_spec

pytestmark = [pytest.mark.distributed, pytest.mark.faults]

LAUNCH = """
import os, sys
from pathlib import Path
from rankzero.errors import RankzeroError
from rankzero.launch.local import run_processes
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
spec = RunSpec.model_validate_json(Path(sys.argv[1]).read_text())
try:
    run_processes(spec, RunOptions(log_level="WARNING"), 2, os.environ)
except RankzeroError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


def start(spec: RunSpec, tmp_path: Path) -> subprocess.Popen[str]:
    path = tmp_path / "spec.json"
    path.write_text(spec.model_dump_json())
    return subprocess.Popen([sys.executable, "-c", LAUNCH, str(path)], stderr=subprocess.PIPE, text=True)


def wait_for_steps(spec: RunSpec, steps: int, process: subprocess.Popen[str]) -> None:
    path = run_root(spec) / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not path.exists() or path.read_text().count("\n") < steps:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    return sorted((p for p in found if "rankzero.engine.worker" in p.cmdline()), key=lambda p: int(p.environ()["RANK"]))


def long_spec(tmp_path: Path, tiny: Path) -> RunSpec:
    return small_spec(tmp_path, tiny, train__num_train_epochs=200, checkpoint__every=5, eval__every=400)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_to_the_launcher_stops_all_ranks_after_the_same_step(number: int, tmp_path: Path, tiny: Path) -> None:
    spec = long_spec(tmp_path, tiny)
    process = start(spec, tmp_path)
    wait_for_steps(spec, 3, process)
    workers = workers_of(process)
    assert len(workers) == 2
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75, stderr
    assert "saved at step" in stderr and "same command" in stderr
    saved = json.loads((run_root(spec) / "last/manifest.json").read_text())["step"]
    assert saved == len(metrics(spec))
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.slow
def test_a_signal_to_one_rank_alone_stops_all(tmp_path: Path, tiny: Path) -> None:
    """As when one pod of several is evicted: the wish travels in the step's reduction. tests/faults/test_matrix_runs.py
    has it without a launcher."""
    spec = long_spec(tmp_path, tiny)
    process = start(spec, tmp_path)
    wait_for_steps(spec, 3, process)
    workers_of(process)[1].send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 75, stderr
    assert json.loads((run_root(spec) / "last/manifest.json").read_text())["step"] == len(metrics(spec))


def test_a_killed_launcher_leaves_no_orphans(tmp_path: Path, tiny: Path) -> None:
    spec = long_spec(tmp_path, tiny)
    process = start(spec, tmp_path)
    wait_for_steps(spec, 3, process)
    workers = workers_of(process)
    process.kill()
    process.communicate(timeout=300)
    gone, alive = psutil.wait_procs(workers, timeout=300)
    assert not alive and len(gone) == 2


def test_an_error_of_all_ranks_is_raised_once_with_its_kind(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_workers(monkeypatch)
    spec = small_spec(tmp_path, tiny)
    Path(str(spec.data.train)).write_text('{"messages": []}\n')
    with pytest.raises(DataError, match=r"train.jsonl:1"):
        run_processes_here(spec, 2)
    assert not run_root(spec).exists(), "nothing half-written"


def test_two_processes_stop_and_resume_bit_exactly(tmp_path: Path, tiny: Path) -> None:
    """The generators of both ranks too, though dropout draws from none. How the launcher starts them again,
    tests/faults/test_restarts.py has."""
    whole = small_spec(tmp_path / "a", tiny)
    assert run_forked(whole).codes == [0, 0]
    spec = small_spec(tmp_path / "b", tiny)
    (run_root(spec)).mkdir(parents=True)
    process = start(spec, tmp_path)
    wait_for_steps(spec, 2, process)
    (run_root(spec) / "stop").touch()
    process.communicate(timeout=300)
    if process.returncode == 75:
        assert run_forked(spec).codes == [0, 0]
    for name in ("final/adapter_model.safetensors", "last/optimizer.safetensors", "last/rng-rank-1.json"):
        assert (run_root(spec) / name).read_bytes() == (run_root(whole) / name).read_bytes(), name


@pytest.mark.slow
def test_torchrun_of_the_user(tmp_path: Path, tiny: Path) -> None:
    """Workers under a launcher that is not ours find their place by RANK and WORLD_SIZE."""
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1)
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import sys\nfrom rankzero.engine.worker import run\nfrom rankzero.spec.run_options import RunOptions\n"
        "from rankzero.spec.run_spec import RunSpec\n"
        f"run(RunSpec.model_validate_json({spec.model_dump_json()!r}), RunOptions())\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(worker)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((run_root(spec) / "report.json").read_text())["world_size"] == 2
    assert done.stderr.count("[DONE]") == 1, "only rank 0 speaks"


@pytest.mark.parametrize("streaming", [pytest.param(False, marks=pytest.mark.slow), True])
def test_files_in_the_working_directory_stand_for_no_module(streaming: bool, tmp_path: Path, tiny: Path) -> None:
    """A machine with several GPUs starts processes, which trained nothing where a user's own file is named so."""
    spec = small_spec(tmp_path, tiny, data__streaming=streaming, data__max_length=512, train__max_steps=2)
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    here = tmp_path / "here"
    here.mkdir()
    for name in ("queue", "random", "statistics", "tokenizers"):
        (here / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    command = [sys.executable, "-P", "-c", LAUNCH, str(tmp_path / "spec.json")]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert len(metrics(spec)) == 2


def test_stopping_before_the_first_step_says_so(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.engine import worker

    monkeypatch.setattr(worker, "read_inputs", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    from tests.support.runs import run_here

    with pytest.raises(StoppedError, match="before the first step"):
        run_here(small_spec(tmp_path, tiny))
    assert issubclass(StoppedError, RankzeroError)
