"""One run directory, one run at a time, whatever happens to the owner, the hosts or their clocks."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ExitCode, StorageError
from rankzero.run_dir.lease import (
    BOOT_ID,
    Lease,
    Watch,
    _namespaces,
    exclusive,
    exclusive_if_free,
    holder,
    known_process,
    starts_again,
)
from tests.support.unreadable import close, stale


def hold_elsewhere(root: Path, **changes: object) -> None:
    value = {"token": 3, "beat": 1, "host": "other-host", "pid": 7, "process": "x"} | changes
    (root / "lease.json").write_text(json.dumps(value))


def test_a_second_run_is_refused_at_once_and_told_who_holds_it(tmp_path: Path) -> None:
    first = Lease(tmp_path)
    first.acquire()
    code = (
        "import sys; from pathlib import Path; from rankzero.run_dir.lease import Lease\n"
        "Lease(Path(sys.argv[1])).acquire(wait=lambda seconds: sys.exit(f'it waits for {seconds} s'))"
    )
    second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert f"in use by process {os.getpid()}" in second.stderr
    first.release()
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_the_directory_of_a_dead_process_is_free(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from rankzero.run_dir.lease import Lease\n"
        "Lease(Path(sys.argv[1])).acquire(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert json.loads((tmp_path / "lease.json").read_text())["token"] == 1
    lease = Lease(tmp_path)
    lease.acquire()
    assert json.loads((tmp_path / "lease.json").read_text())["token"] == 2
    lease.release()


BESIDE = {"pid": "pid:[1]", "net": os.readlink("/proc/self/ns/net")}
HERE = {"host": socket.gethostname(), "namespaces": _namespaces()}
OTHER_BOOT = "00000000-1111-2222-3333-444444444444:12345"
ELSEWHERE: list[dict[str, Any]] = [
    {"host": "other-host"},
    {"host": socket.gethostname(), "namespaces": BESIDE},
    {**HERE, "process": OTHER_BOOT},
]
"""On another machine; in a container that has the network and name of this one but processes of its own; and on another
machine of this one's name, or on this one before it was started again."""


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_beating_owner_elsewhere_keeps_it(place: dict[str, Any], tmp_path: Path) -> None:
    hold_elsewhere(tmp_path, **place)
    waits = 0

    def wait(_seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            hold_elsewhere(tmp_path, beat=2, **place)

    with pytest.raises(StorageError, match=f"in use by process 7 on {place['host']}") as refused:
        Lease(tmp_path).acquire(wait=wait)
    assert refused.value.exit_code == ExitCode.STORAGE
    assert waits == 3


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_silent_owner_elsewhere_loses_it(place: dict[str, Any], tmp_path: Path) -> None:
    hold_elsewhere(tmp_path, **place)
    waited = 0.0

    def wait(seconds: float) -> None:
        nonlocal waited
        waited += seconds

    lease, told = Lease(tmp_path), list[str]()
    lease.acquire(wait=wait, say=told.append)
    assert waited >= 30
    assert told == [f"{lease.path} names process 7 on {place['host']}; watching for 30 s whether it lives"]
    assert json.loads((tmp_path / "lease.json").read_text())["token"] == 4
    lease.check()
    lease.release()


@pytest.mark.parametrize(
    "known", [{}, {"namespaces": {}}, {"namespaces": None}, {"namespaces": {"pid": "pid:[1]", "net": "net:[1]"}}]
)
def test_an_owner_whose_number_is_nobodys_is_not_waited_for(known: dict[str, Any], tmp_path: Path) -> None:
    """A lease of a version before, or of a system without namespaces; and of a pod whose place one of the same name has
    taken: a restart would else cost the time of a watch."""
    hold_elsewhere(tmp_path, host=socket.gethostname(), **known)
    lease = Lease(tmp_path)
    lease.acquire(wait=lambda _seconds: pytest.fail("a dead process was waited for"))
    lease.release()


def test_a_copy_of_a_run_under_way_is_nobodys(tmp_path: Path) -> None:
    """After it was watched: what has another path may be the same directory by another mount."""
    first = Lease(tmp_path / "run")
    first.acquire()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copy = json.loads((tmp_path / "copy/lease.json").read_text())
    assert holder(tmp_path / "run") is not None and holder(tmp_path / "copy") is None
    waits: list[float] = []

    def beats(seconds: float) -> None:
        waits.append(seconds)
        (tmp_path / "copy/lease.json").write_text(json.dumps({**copy, "beat": len(waits)}))

    with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
        Lease(tmp_path / "copy").acquire(wait=beats)
    assert len(waits) == 1
    second, told = Lease(tmp_path / "copy"), list[str]()
    second.acquire(wait=lambda seconds: waits.append(seconds) if told else pytest.fail("silent"), say=told.append)
    assert sum(waits) >= 30
    owner = f"{second.path} names process {os.getpid()} on {socket.gethostname()}"
    assert told == [f"{owner}, which trains in {tmp_path}/run; watching for 30 s whether this is a copy of that"]
    first.check()
    for lease in (first, second):
        lease.release()


def test_a_directory_under_way_is_the_same_by_another_path(tmp_path: Path) -> None:
    """As another mount shows it: whoever asks once, as who pulls into it does, and never watches, sees it too."""
    first = Lease(tmp_path)
    first.acquire()
    taken = first.read()
    first.release()
    device, inode = tmp_path.stat().st_dev, tmp_path.stat().st_ino
    assert taken["identity"] == f"{device}:{inode}"
    elsewhere = {**taken, "directory": "/mounted/elsewhere"}
    before = {name: value for name, value in elsewhere.items() if name != "identity"}
    for same in (elsewhere, before, {**before, "identity": None}):
        first.path.write_text(json.dumps(same))
        assert holder(tmp_path) is not None
        with pytest.raises(StorageError, match=f"in use by process {os.getpid()}"):
            Lease(tmp_path).acquire(wait=lambda _seconds: pytest.fail("one that is known was watched"))
    for identity, may_be in ((f"{device + 1}:{inode}", True), (f"{device}:{inode + 1}", False)):
        first.path.write_text(json.dumps({**elsewhere, "identity": identity}))
        assert holder(tmp_path) is None and (holder(tmp_path, perhaps=True) is not None) == may_be
        waited: list[float] = []
        other = Lease(tmp_path)
        other.acquire(wait=waited.append)
        assert sum(waited) >= 30
        other.release()


@pytest.mark.parametrize("owner", [{}, "another mount"])
def test_who_looks_again_and_again_sees_an_owner_while_it_beats(tmp_path: Path, owner: dict[str, Any] | str) -> None:
    """One of another host, and one that trains here or in what this is a copy of."""
    if owner:
        first = Lease(tmp_path)
        first.acquire()
        about = tmp_path.stat()
        elsewhere = {"directory": "/elsewhere", "identity": f"{about.st_dev + 1}:{about.st_ino}"}
        owner = {**first.read(), **elsewhere}
        first.release()
    hold_elsewhere(tmp_path, **(owner := dict(owner)))
    now = 1000.0
    watch = Watch(tmp_path, clock=lambda: now)
    who = f"process {owner.get('pid', 7)} on {owner.get('host', 'other-host')}"
    for beat in range(2, 6):
        assert watch.holder() == who
        now += 14.0
        assert watch.holder() == who
        hold_elsewhere(tmp_path, **{**owner, "beat": beat})
    assert watch.holder() == who
    now += 15.0
    assert watch.holder() is None, "who takes it now watches once more"
    (tmp_path / "lease.json").write_text(json.dumps({"token": 3}))
    assert Watch(tmp_path).holder() is None


def test_who_looks_again_and_again_knows_at_once_what_can_be_known(tmp_path: Path) -> None:
    first = Lease(tmp_path)
    first.acquire()
    now = 1000.0
    watch = Watch(tmp_path, clock=lambda: now)
    for _ in range(3):
        assert watch.holder() == f"process {os.getpid()} on {socket.gethostname()}"
        now += 60.0
    first.release()
    assert watch.holder() is None
    hold_elsewhere(tmp_path, **HERE)
    assert watch.holder() is None, "it is dead"


def test_a_copy_of_a_run_that_was_killed_is_free_at_once(tmp_path: Path) -> None:
    hold_elsewhere(tmp_path, directory="/somewhere/else", **HERE)
    lease = Lease(tmp_path)
    lease.acquire(wait=lambda _seconds: pytest.fail("a dead process was waited for"))
    lease.release()


def test_a_number_of_another_boot_is_nobodys_here(tmp_path: Path) -> None:
    """Our own, on another machine of this name: the process here that has it is another one."""
    hold_elsewhere(tmp_path, pid=os.getpid(), process=OTHER_BOOT, **HERE)
    assert holder(tmp_path) is None and Lease(tmp_path).is_held(Lease(tmp_path).read())


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EPERM, errno.EMFILE])
def test_an_owner_that_cannot_be_looked_at_is_watched(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, under hidepid=2 and 1, or where this process has no file handle left."""
    first = Lease(tmp_path)
    first.acquire()
    living = first.read()
    first.release()
    pid, beats = os.getppid(), list[int]()
    hold_elsewhere(tmp_path, **(living := {**living, **known_process(pid)}))
    assert holder(tmp_path) == f"process {pid} on {socket.gethostname()}"
    stale(monkeypatch, Path(f"/proc/{pid}"), number)
    assert Lease(tmp_path).is_held(living) and Watch(tmp_path).holder() is not None
    assert holder(tmp_path) is None and holder(tmp_path, perhaps=True) is not None, "its number may be another one's"
    assert starts_again({"launcher": {**known_process(os.getpid()), **living, "directory": str(tmp_path)}})

    def beat(_seconds: float) -> None:
        beats.append(1)
        hold_elsewhere(tmp_path, **{**living, "beat": len(beats) + 1})

    with pytest.raises(StorageError, match=f"in use by process {pid}"):
        Lease(tmp_path).acquire(wait=beat)
    assert len(beats) == 1
    second, told = Lease(tmp_path), list[str]()
    second.acquire(wait=lambda _seconds: None, say=told.append)
    assert told and told[0].endswith("watching for 30 s whether it lives"), "one that does not beat has lost it"
    second.release()


@pytest.mark.parametrize("denied", [True, False])
def test_without_proc_a_process_of_another_user_lives(
    denied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(_pid: int, _signal: int) -> None:
        raise PermissionError if denied else ProcessLookupError

    stale(monkeypatch, Path("/proc"), errno.ENOENT)
    monkeypatch.setattr(os, "kill", ask)
    hold_elsewhere(tmp_path, host=socket.gethostname(), process="running")
    assert (holder(tmp_path) is not None) == denied


def test_a_process_that_does_not_know_itself_is_watched_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc shows processes alone (subset=pid); its end could not be told either."""
    stale(monkeypatch, BOOT_ID, errno.ENOENT)
    first = Lease(tmp_path)
    first.acquire()
    assert first.read()["process"] is None and first.is_held(first.read())
    first.check()
    first.release()
    hold_elsewhere(tmp_path, **HERE, process=None)
    waited: list[float] = []
    second = Lease(tmp_path)
    second.acquire(wait=waited.append)
    assert sum(waited) >= 30
    second.release()


def test_an_owner_that_lost_the_directory_may_not_commit(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    lease.acquire()
    hold_elsewhere(tmp_path, token=99)
    with pytest.raises(StorageError, match="other-host"):
        lease.check()
    lease.release()
    assert json.loads((tmp_path / "lease.json").read_text())["token"] == 99


def test_of_two_that_took_the_same_token_one_may_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume without locks: both have read what was there, and the later one's name is in the file."""
    monkeypatch.setattr("rankzero.run_dir.lease.BEAT_SECONDS", 0.01)
    lease = Lease(tmp_path)
    lease.acquire()
    lease._stop.set()
    hold_elsewhere(tmp_path, token=1, owner="another")
    theirs = (tmp_path / "lease.json").read_text()
    with pytest.raises(StorageError, match="in use by process 7 on other-host"):
        lease.check()
    lease._stop.clear()
    lease._beat()  # comes to an end
    lease.release()
    assert (tmp_path / "lease.json").read_text() == theirs


def test_the_heartbeat_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.run_dir.lease.BEAT_SECONDS", 0.01)
    lease = Lease(tmp_path)
    lease.acquire()
    deadline = time.monotonic() + 300
    while json.loads((tmp_path / "lease.json").read_text())["beat"] < 2 and time.monotonic() < deadline:
        pass
    lease.release()
    assert json.loads((tmp_path / "lease.json").read_text()) == {"token": 1}


def test_a_directory_that_cannot_be_written_is_said_to_be_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close(monkeypatch, tmp_path)
    with pytest.raises(StorageError, match="Permission denied"):
        Lease(tmp_path).acquire()


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o2775, 0o777])
def test_who_may_write_a_directory_may_lock_in_it(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    mask = os.umask(0o077)
    try:
        with exclusive(tmp_path / ".lock"):
            pass
    finally:
        os.umask(mask)
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == mode & 0o666


def test_a_lock_that_another_process_keeps_is_waited_for_a_while_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    with exclusive(tmp_path / ".lock"), exclusive_if_free(tmp_path / ".lock", wait=waited.append) as why:
        assert "another process" in why
    assert 1.0 < sum(waited) < 10.0
    with exclusive_if_free(tmp_path / ".lock", wait=pytest.fail) as why:
        assert why == ""
    close(monkeypatch, tmp_path)
    with exclusive_if_free(tmp_path / ".lock", wait=pytest.fail) as why:
        assert why == "Permission denied"


def test_a_lock_that_another_process_keeps_for_ever_is_said_and_keeps_nobody(tmp_path: Path) -> None:
    waited: list[float] = []
    lease = Lease(tmp_path)
    lease.acquire(wait=pytest.fail)
    with exclusive(tmp_path / ".lease.lock"):
        with pytest.raises(StorageError, match="another process has held this lock for 60 s(?s:.*)fuser"):
            Lease(tmp_path).acquire(wait=waited.append)
        assert 59 < sum(waited) < 61
        lease.release()
    assert json.loads((tmp_path / "lease.json").read_text()) == {"token": 1}


def test_a_directory_that_somebody_removed_is_no_other_runs(tmp_path: Path) -> None:
    lease = Lease(tmp_path / "run")
    lease.acquire()
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StorageError, match="run: the run directory is not as this run left it\n  hint: was it removed"):
        lease.check()
    lease.release()
    assert not (tmp_path / "run/lease.json").exists()
