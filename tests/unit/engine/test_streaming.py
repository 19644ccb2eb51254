"""A streamed run: exact over stops, the same rows on every layout, and nothing lost where rows do not come."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankzero.data.cache.stream import rows
from rankzero.engine import streams
from rankzero.engine.hooks import Hooks
from rankzero.errors import ConfigError, DataError, StoppedError
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import fail_above
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in
from tests.support.tiny import chat_rows, write_jsonl

CLOCK = ("seconds", "wall_seconds")
CLOCKS = {"time", "tokens_per_second", "peak_memory_bytes", "slowest_rank", "slowest_rank_slowdown", "straggler"}
STEPS = 10


def shards(folder: Path, sizes: tuple[int, ...] = (13, 9, 16, 7, 11)) -> str:
    rows = iter(chat_rows(sum(sizes)))
    for number, size in enumerate(sizes):
        write_jsonl(folder / f"part-{number}.jsonl", [next(rows) for _ in range(size)])
    return str(folder)


def streamed(tmp_path: Path, tiny: Path, **changes: Any) -> RunSpec:
    fields: dict[str, Any] = {
        "data__train": shards(tmp_path / "shards"),
        "data__streaming": True,
        "data__shuffle_buffer_size": 20,
        "data__max_length": 256,
        "train__max_steps": STEPS,
        "eval__every": 5,
        "checkpoint__every": 4,
    }
    return small_spec(tmp_path, tiny, eval_rows=4, **{**fields, **changes})


def state(spec: RunSpec) -> dict[str, Any]:
    """Everything in the last checkpoint that is no clock."""
    last = run_root(spec) / "last"
    position = json.loads((last / "trainer.json").read_text())["position"]
    tensors = {f"{p.parent.name}/{p.name}:{k}": v for p in last.rglob("*.safetensors") for k, v in load_file(p).items()}
    return {"position": {k: v for k, v in position.items() if k not in CLOCK}, "tensors": tensors}


def numbers(spec: RunSpec) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in CLOCKS} for row in metrics(spec)]


def left_behind(cache: Path) -> list[str]:
    return [path.name for path in (cache / "streams").iterdir()]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def uninterrupted(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("whole")
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        spec = streamed(root, tiny)
        run_here(spec, log_level="INFO")
        assert not left_behind(root / "cache")
    return spec


def test_a_run_says_what_became_of_its_rows(uninterrupted: RunSpec) -> None:
    said = log(uninterrupted)
    assert "5 files of" in said and "rows are streamed, 10 steps in all" in said and "[EPOCH] 1 done at step 8" in said
    assert "76 rows read in whole windows, 76 of them kept; 0 truncated, 0 dropped" in said
    report = json.loads((run_root(uninterrupted) / "report.json").read_text())
    assert report["goodput"]["seconds"]["input_wait"] > 0 and report["steps"] == STEPS
    assert [row["epoch"] for row in metrics(uninterrupted)] == sorted(row["epoch"] for row in metrics(uninterrupted))


def test_stopped_again_and_again_it_ends_the_same_to_the_last_bit(
    tmp_path: Path, tiny: Path, uninterrupted: RunSpec, own_cache: Path
) -> None:
    spec = streamed(tmp_path, tiny)
    for step in (2, 6):
        with pytest.raises(StoppedError):
            run_here(spec, hooks=stop_in(step))
        assert not left_behind(own_cache)
    run_here(spec)
    ours, whole = state(spec), state(uninterrupted)
    # The shards lie elsewhere, and their times of change are others: the stream is the same for all that.
    for position in (ours["position"], whole["position"]):
        position["stream"].pop("fingerprint")
    assert ours["position"] == whole["position"]
    assert ours["tensors"].keys() == whole["tensors"].keys()
    assert all(torch.equal(tensor, whole["tensors"][name]) for name, tensor in ours["tensors"].items())
    assert numbers(spec) == numbers(uninterrupted)


def test_rows_of_another_version_come_once_more_and_are_not_called_the_same(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its window may have had other rows."""
    spec = streamed(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(3))
    for module in (rows, streams):
        monkeypatch.setattr(module, "CODE_VERSION", 10**6)
    assert run_here(spec, log_level="INFO")["steps"] == STEPS
    said = log(spec)
    assert "trained of the window under way come once more" in said
    assert "not bit-exactly: another version made the tokens" in said


def test_bad_rows_end_the_run_once_they_are_due_with_all_before_them_saved(tmp_path: Path, tiny: Path) -> None:
    spec = streamed(tmp_path, tiny, data__train=shards(tmp_path / "one", (100,)), data__shuffle_buffer_size=16)
    path = tmp_path / "one/part-0.jsonl"
    lines = path.read_text().splitlines()
    bad = [*lines[:70], '{"text": 3}', *lines[70:]]
    path.write_text("\n".join(bad) + "\n")
    with pytest.raises(DataError) as ended:
        run_here(spec)
    assert [problem.where for problem in ended.value.problems] == [f"{path}:71"]
    assert RunDir(run_root(spec)).committed_steps()[0] == 8 == len(metrics(spec))


def test_a_stop_while_rows_are_waited_for_is_answered(tmp_path: Path, tiny: Path) -> None:
    """The feeder stands still (SIGSTOP), as behind a network that hangs."""
    spec = streamed(tmp_path, tiny, data__shuffle_buffer_size=8, data__streaming_cache_gb=6e-5)

    stopped: list[int] = []

    def step_begins(step: int) -> None:
        if step == 2:
            stopped.extend(children())
            os.kill(stopped[0], signal.SIGSTOP)

    def waits(seconds: float) -> None:
        if stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(stopped.pop(), signal.SIGCONT)
        sleep(seconds)

    sleep = time.sleep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankzero.engine.streams.time.sleep", waits)
        with pytest.raises(StoppedError, match="saved at step"):
            run_here(spec, hooks=Hooks(step_begins=step_begins))
    steps = len(metrics(spec))
    assert RunDir(run_root(spec)).committed_steps()[0] == steps < STEPS
    run_here(spec)
    assert len(metrics(spec)) == STEPS


def children() -> list[int]:
    """Feeders of this process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command, stat = (entry / "cmdline").read_bytes(), (entry / "stat").read_text()
            except OSError:
                continue
            if b"stream.feeder" in command and int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def test_a_feeder_that_is_killed_ends_the_run_with_all_that_was_trained(tmp_path: Path, tiny: Path) -> None:
    spec = streamed(tmp_path, tiny, data__shuffle_buffer_size=8, data__streaming_cache_gb=6e-5)

    def step_begins(step: int) -> None:
        if step == 2:
            os.kill(children()[0], signal.SIGKILL)

    with pytest.raises(Exception, match="was killed by signal 9"):
        run_here(spec, hooks=Hooks(step_begins=step_begins))
    assert RunDir(run_root(spec)).committed_steps()[0] == len(metrics(spec)) >= 2


def test_files_that_come_or_change_are_other_data(tmp_path: Path, tiny: Path) -> None:
    spec = streamed(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(2))
    write_jsonl(tmp_path / "shards/part-9.jsonl", chat_rows(5))
    with pytest.raises(ConfigError) as refused:
        run_here(spec)
    assert "data" in [problem.where for problem in refused.value.problems]
    run_here(spec, allow_changes=("data",))
    position = json.loads((run_root(spec) / "last/trainer.json").read_text())["position"]
    assert position["step"] == STEPS and position["stream"]["cursor"]["epoch"] >= 1


def test_rows_that_a_model_has_no_positions_for_are_refused_at_once(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(ConfigError, match="rows of a stream may have 4096 tokens") as refused:
        run_here(streamed(tmp_path, tiny, data__max_length=4096))
    assert refused.value.problems[0].where == "data.max_length"


def test_a_pass_without_memory_is_made_again_with_the_same_rows(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later windows are cut smaller too."""
    whole, cut = streamed(tmp_path / "whole", tiny), streamed(tmp_path / "cut", tiny)
    run_here(whole)
    fail_above(100, monkeypatch)
    run_here(cut)
    assert [row["step"] for row in metrics(cut) if "out_of_memory" in row] == [3]
    for name in ("loss", "epoch", "tokens"):
        assert [row[name] for row in metrics(cut)] == pytest.approx([row[name] for row in metrics(whole)], rel=1e-5)
