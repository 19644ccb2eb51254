"""A volume that takes nothing more: the first error is what a user reads, and what is only shown never ends a run."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from rankzero.engine import worker
from rankzero.engine.metrics import MetricsLog
from rankzero.errors import NonFiniteError, StorageError
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from rankzero.track.tensorboard import TensorBoard
from tests.support.runs import metrics, run_here, run_root, small_spec

pytestmark = pytest.mark.faults


def full(*_arguments: Any, **_named: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_release(_lease: Lease) -> None:
    raise StorageError("No space left on device", where="lease.json")


def test_what_ended_a_run_is_not_hidden_by_what_fails_while_it_ends(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def train(*_: Any) -> Any:
        raise NonFiniteError("step 3: the loss is nan")

    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr(Lease, "release", no_release)
    monkeypatch.setattr(MetricsLog, "close", full)
    with pytest.raises(NonFiniteError, match="step 3"):
        run_here(small_spec(tmp_path, tiny))
    said = capfd.readouterr().err
    assert "while ending: lease.json: No space left on device" in said
    assert "while ending: [Errno 28] No space left on device" in said
    assert "Traceback" not in said


def test_a_finished_run_is_finished_whatever_fails_while_it_ends(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "release", no_release)
    spec = small_spec(tmp_path, tiny, train__num_train_epochs=1, eval_rows=0)
    assert run_here(spec)["steps"] == 4


@pytest.mark.parametrize("after", [0, 3])
def test_a_tracker_that_cannot_write_is_left_out(
    after: int, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From the start, or from the record after so many on."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    write, records = RecordWriter.write, 0

    def limited(writer: Any, data: bytes) -> None:
        nonlocal records
        records += 1
        write(writer, data) if records <= after else full()

    monkeypatch.setattr(RecordWriter, "write", limited)
    spec = small_spec(tmp_path, tiny, tracking__tensorboard=True, train__num_train_epochs=1, eval_rows=0)
    assert run_here(spec)["steps"] == 4
    assert len(metrics(spec)) == 4, "the record is whole"
    said = capfd.readouterr().err
    assert said.count("is left out from here on: OSError: [Errno 28] No space left on device") == 1
    assert "Traceback" not in said


def test_a_full_disk_under_an_event_file(tmp_path: Path) -> None:
    """The real writer on a device that is always full: an error here and now, from no other thread."""
    board = TensorBoard(tmp_path, 1)
    records = board._records
    with open("/dev/full", "ab", buffering=0) as device:
        board._records = type(records)(device)
        with pytest.raises(OSError, match="No space left"):
            board.log(2, {"loss": 1.0})
    records.close()


def test_the_record_of_a_run_that_cannot_be_written_ends_it(tmp_path: Path, tiny: Path) -> None:
    """metrics.jsonl is no tracker: without it a run would lose what it did."""
    spec = small_spec(tmp_path, tiny, eval_rows=0)
    run_dir = RunDir(run_root(spec))
    run_dir.root.mkdir(parents=True)
    run_dir.metrics.symlink_to("/dev/full")
    with pytest.raises(StorageError, match="free space") as ended:
        run_here(spec)
    assert ended.value.exit_code == 74
