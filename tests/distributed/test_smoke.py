"""The smoke test among processes: what it finds right, and each thing that can be wrong with its exit code."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankzero.api.smoke import smoke_carrier
from rankzero.run_dir.handover import read_error
from rankzero.spec.run_options import RunOptions, SmokeSettings
from tests.support.forked import in_ranks
from tests.support.nodes import Pods

pytestmark = pytest.mark.distributed

FEW = SmokeSettings(epochs=2, batch=32, samples=256, features=16)


def one_rank(directory: Path, output: str, ordeal: str, wait: int = 120) -> None:
    """A rank of a smoke test, with what happens to it."""
    from rankzero.engine.smoke import check, collectives, learning

    rank = int(os.environ["RANK"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(collectives.SIZES, "cpu", (2**10, 2**12))
        if ordeal == "other weights" and rank == 1:
            patch.setattr(learning.GradientSum, "finish", _skewed(learning.GradientSum.finish))
        if ordeal == "wrong values" and rank == 1:
            patch.setattr(collectives, "all_gather_into", _lossy(collectives.all_gather_into))
        if ordeal == "dies" and rank == 1:
            patch.setattr(check, "measure", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        if ordeal == "hangs" and rank == 1:
            patch.setattr(check, "measure", lambda *_: _stay_until(directory / "error-0.json"))
        if ordeal == "stopped":
            patch.setattr(check, "measure", lambda *_: os.kill(os.getpid(), signal.SIGTERM) or [])
        if ordeal == "another host":
            patch.setattr(check.socket, "gethostname", lambda: f"host-{rank}")
            patch.setenv("LOCAL_RANK", "0")
            patch.setattr(check, "clock_skews", _late(check.clock_skews, rank))
            patch.setattr(Path, "exists", _blind(Path.exists, rank))
        spec = smoke_carrier(output)
        spec = spec.model_copy(update={"train": spec.train.model_copy(update={"collective_timeout_seconds": wait})})
        try:
            report = check.smoke(spec, RunOptions(smoke=FEW))
        finally:
            (directory / "seen.json").write_text(json.dumps(_SEEN)) if rank == 0 else None
        (directory / f"report-{rank}.json").write_text(json.dumps(report))


_SEEN: list[Any] = []


def _skewed(finish: Any) -> Any:
    def skewed(gradients: Any) -> None:
        finish(gradients)
        gradients.parameters[0].grad += 1.0

    return skewed


def _lossy(gather: Any) -> Any:
    def lossy(every: Any, mine: Any) -> None:
        gather(every, mine)
        every.zero_()

    return lossy


def _stay_until(path: Path) -> None:
    """Take no part until the others have given up."""
    while not path.exists():
        time.sleep(0.05)
    os._exit(3)


def _late(skews: Any, rank: int) -> Any:
    def late(*arguments: Any) -> Any:
        found = skews(*arguments, clock=lambda: time.time_ns() + 5_000_000_000 * rank)
        _SEEN.extend((one.rank, one.offset, one.uncertainty) for one in found)
        return found

    return late


def _blind(exists: Any, rank: int) -> Any:
    return lambda path: exists(path) and not (rank == 1 and path.name.startswith(".rankzero-smoke-"))


def said(directory: Path, rank: int) -> str:
    return (directory / f"said-{rank}").read_text()


def test_ranks_that_agree(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert in_ranks(one_rank, 2, tmp_path, str(tmp_path / "out"), "") == [0, 0], said(tmp_path, 0)
    first, second = (json.loads((tmp_path / f"report-{rank}.json").read_text()) for rank in range(2))
    assert {**first, "seconds": 0} == {**second, "seconds": 0}  # every rank knows the same
    assert first["loss"]["after"] < first["loss"]["before"]
    assert (first["world_size"], first["backend"], first["link"], first["notes"]) == (2, "gloo", None, [])
    measured = first["collectives"]
    assert [one["operation"] for one in measured[::2]] == ["all-reduce", "all-gather", "broadcast", "all-to-all"]
    assert [one["bytes"] for one in measured[:2]] == [2**10, 2**12]
    # nccl-tests' factors among two ranks: 2(n-1)/n, (n-1)/n, 1, (n-1)/n
    factors = {"all-reduce": 1.0, "all-gather": 0.5, "broadcast": 1.0, "all-to-all": 0.5}
    for one in measured:
        assert one["right"]
        assert one["bus_bandwidth"] * one["seconds"] == pytest.approx(factors[one["operation"]] * one["bytes"])
    assert list((tmp_path / "out").iterdir()) == []


WRONG = {
    "other weights": ([69, 69], "weights are not those of rank 0"),
    "wrong values": ([69, 69], "brought wrong values"),
    "dies": ([69, -9], "another process is gone"),
    "stopped": ([75, 75], "stopped by SIGTERM"),
}


@pytest.mark.parametrize("ordeal", WRONG)
def test_what_is_wrong_has_its_code(ordeal: str, tmp_path: Path) -> None:
    expected, words = WRONG[ordeal]
    assert in_ranks(one_rank, 2, tmp_path, str(tmp_path), ordeal) == expected, said(tmp_path, 0)
    error = read_error(tmp_path / "error-0.json")
    assert error is not None and words in str(error)


def test_a_rank_that_hangs_is_waited_for_as_long_as_is_allowed(tmp_path: Path) -> None:
    assert in_ranks(one_rank, 2, tmp_path, str(tmp_path), "hangs", 2) == [69, 3], said(tmp_path, 0)


def test_hosts_with_other_clocks_and_another_volume(tmp_path: Path) -> None:
    assert in_ranks(one_rank, 2, tmp_path, str(tmp_path), "another host") == [74, 74], said(tmp_path, 0)
    error = read_error(tmp_path / "error-0.json")
    assert error is not None and "host-1 does not see what rank 0 writes" in str(error)
    ((rank, offset, uncertainty),) = json.loads((tmp_path / "seen.json").read_text())
    assert rank == 1 and abs(offset - 5.0) <= uncertainty + 0.001
    assert "the clock of host-1 is +5.0" in said(tmp_path, 0)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    made = Pods(tmp_path, smoke_carrier(str(tmp_path / "runs")), options=RunOptions(smoke=FEW), max_restarts=0)
    yield made
    made.end()


def test_node_commands_run_it_as_they_run_a_run(pods: Pods) -> None:
    pods.start(1)
    pods.start(0)
    codes = [process.wait(timeout=400) for process in pods.processes]
    assert codes == [0, 0], pods.log(0) + pods.log(1)
    assert "all-reduce of 16 MiB" in pods.log(0)
    assert [pods.said(node)["outcome"] for node in range(2)] == ["done", "done"]
    assert not (pods.folder / "runs").exists()
