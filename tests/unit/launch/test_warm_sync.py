"""Files that are sent to several pods: packed once, announced, and let go by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

import pytest

from rankzero.errors import ServiceError
from rankzero.launch.backend import Backend, Ended, Hear
from rankzero.launch.node.workspace import apply, present
from rankzero.launch.warm import sync as module
from rankzero.launch.warm.each import MOST, each
from rankzero.launch.warm.sync import Synced, marks, sync


class Pods:
    """Each is a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def execute(self, pod: str, command: Sequence[str], hear: Hear, stdin: IO[bytes] | None = None) -> Ended:
        root, place, verb = self.root / pod, *command[5:7]
        root.mkdir(exist_ok=True)
        said = present(root, place) if verb == "list" else apply(root, place, cast("IO[bytes]", stdin))
        hear(json.dumps(said).encode())
        return Ended(0)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path | bytes]:
    (tmp_path / "a.py").write_text("a", encoding="utf-8")
    return {"a.py": tmp_path / "a.py", "b": b"b"}


def test_what_several_pods_lack_is_packed_once(
    tmp_path: Path, files: dict[str, Path | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[list[str]] = []
    pack = module.pack
    monkeypatch.setattr(module, "pack", lambda changed, *more: [packed.append([*changed]), pack(changed, *more)])
    pods = cast(Backend, Pods(tmp_path))
    sync(pods, ["dev-2"], "work", {"b": b"b"}, print)
    packed.clear()
    done = sync(pods, ["dev-0", "dev-1", "dev-2"], "work", files, print)
    assert packed == [["a.py", "b"], ["a.py"]] and [one.put for one in done] == [2, 2, 1]
    assert sync(pods, ["dev-0", "dev-1"], "work", files, print) == [Synced(), Synced()]
    assert [one.removed for one in sync(pods, ["dev-0", "dev-1"], "work", {"b": b"b"}, print)] == [1, 1]


def test_what_is_much_is_said_before_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    pods = cast(Backend, Pods(tmp_path))
    sync(pods, ["dev-0", "dev-1"], "work", {"a": b"1"}, said.append)
    assert said == []
    sync(pods, ["dev-0", "dev-1"], "work", {"a": b"1", "big": bytes(12_000_000)}, said.append)
    assert said == ["sending 1 files, 12 MB, to 2 pods"]


@pytest.mark.parametrize("change", ["vanishes", "shrinks"])
def test_a_file_that_changes_while_it_is_packed_is_told_with_what_to_do(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"1" * 100_000)
    known, real = marks({"log.txt": log}), os.fstat
    monkeypatch.setattr(module, "marks", lambda _files: known)
    if change == "vanishes":
        log.unlink()
    else:  # once its size was looked at
        log.write_bytes(b"")
        monkeypatch.setattr(os, "fstat", lambda number: os.stat_result((*real(number)[:6], 100_000, *real(number)[7:])))
    with pytest.raises(ServiceError, match="changed while it was sent") as caught:
        sync(cast(Backend, Pods(tmp_path)), ["dev-0"], "work", {"log.txt": log}, print)
    assert caught.value.problems[0].hint == "give the same command again"


def test_ctrl_c_waits_for_no_pod() -> None:
    goes_on = threading.Event()

    def work(one: int) -> None:
        if one == 0:
            os.kill(os.getpid(), signal.SIGINT)
        assert goes_on.wait(60)

    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        each([0, 1], work)
    assert all(one.daemon for one in threading.enumerate() if one not in before), "the process does not wait either"
    goes_on.set()


def test_all_are_done_in_their_order_and_the_first_error_is_raised() -> None:
    assert each(range(3 * MOST), lambda one: -one) == [-one for one in range(3 * MOST)]
    done: list[int] = []

    def work(one: int) -> None:
        done.append(one)
        if one in (1, 2):
            raise ServiceError(f"pod {one}")

    with pytest.raises(ServiceError, match="pod 1"):
        each(range(4), work)
    assert sorted(done) == [0, 1, 2, 3]
    assert each([], work) == []
