"""The directory of a start is gone after it, and after a later one where its process was killed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rankzero.launch.start_directory import PREFIX, start_directory

HOLDS = """
import sys
from rankzero.launch.start_directory import start_directory
with start_directory() as directory:
    (directory / "run.json").write_text("{}")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_process_left_goes_with_the_next_start_and_what_is_held_stays(temporary: Path) -> None:
    (temporary / f"{PREFIX}being-made").mkdir()
    (temporary / f"{PREFIX}elsewhere").symlink_to(temporary.parent)
    (temporary.parent / ".held").touch()
    words = [sys.executable, "-c", HOLDS]
    first, second = (
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    )
    try:
        assert first.stdout is not None and second.stdout is not None
        left, held = Path(first.stdout.readline().strip()), Path(second.stdout.readline().strip())
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert (left / "run.json").is_file()
        with start_directory() as own:
            assert not left.exists() and (held / "run.json").is_file()
            assert own.is_dir() and own.stat().st_mode & 0o777 == 0o700
        assert not own.exists()
        second.communicate("")
        assert not held.exists()
    finally:
        first.kill()
        second.kill()
    assert {path.name for path in temporary.iterdir()} == {f"{PREFIX}being-made", f"{PREFIX}elsewhere"}
    assert (temporary.parent / ".held").exists()


def test_what_deletes_idle_files_finds_it_locked(temporary: Path) -> None:
    """systemd-tmpfiles asks for this lock, and passes over what another process has locked; a run may take weeks."""

    def is_locked(directory: Path) -> bool:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(opened)
        return False

    assert not is_locked(temporary)
    with start_directory() as own:
        assert is_locked(own)
    assert not own.exists()


def test_what_another_machine_holds_in_a_shared_place_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its locks may be unknown here: whatever is asked for is granted."""
    boot = temporary / "boot_id"
    boot.write_text("here\n")
    monkeypatch.setattr("rankzero.launch.start_directory.BOOT_ID", boot)
    with start_directory() as held:
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
        boot.write_text("elsewhere\n")
        with start_directory() as own:
            assert own != held and held.is_dir()
        (temporary / f"{PREFIX}of-an-earlier-version").mkdir()
        (temporary / f"{PREFIX}of-an-earlier-version" / ".held").touch()
        with start_directory():
            assert (temporary / f"{PREFIX}of-an-earlier-version").is_dir()
    assert not held.exists()


def test_a_volume_that_locks_nothing_is_one_all_the_same(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refused)
    with start_directory() as own, start_directory() as beside:
        assert own.is_dir() and beside.is_dir()
    assert list(temporary.iterdir()) == []
