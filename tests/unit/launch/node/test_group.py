"""Commands of a warm pod, each a process of its own as a pod runs them: which ends which, and what is told of it."""

from __future__ import annotations

import errno
import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rankzero.launch.node import group

_PROGRAM = [sys.executable, "-P", "-m", "rankzero.launch.node.group"]
_LIVELY = [
    sys.executable,
    "-P",
    "-c",
    "from rankzero.launch.node import beat, group; beat.SECONDS = 0.01; group.main()",
]
SAVES = """
import pathlib, signal, sys, time


def save(*_):
    print("told", flush=True)
    while not pathlib.Path("saved").exists():
        time.sleep(0.01)
    sys.exit(75)


signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""
"""Leaves when a file is there; until then it saves."""
LEAVES_A_FILE = "open('new', 'w').close()"


def until(true: Callable[[], object]) -> None:
    """Raises where it does not come."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@dataclass
class Pod:
    """ROOT of a warm pod."""

    root: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.root / "work"

    def run(
        self, script: str, grace: float = 600.0, program: Sequence[str] = _PROGRAM, **more: str | float
    ) -> subprocess.Popen[str]:
        """Start a script as a command."""
        told = {"command": [sys.executable, "-c", script], "env": {}, "work": "work", "grace": grace, **more}
        words = [*program, str(self.root), "run", json.dumps(told)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self.started.append(process)
        return process

    def end(self, *order: str) -> str:
        """What is said of it."""
        words = [*_PROGRAM, str(self.root), "end", *order]
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path / "pod")
    made.work.mkdir(parents=True)
    yield made
    (made.work / "saved").touch()
    made.end()
    for process in made.started:
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_an_order_that_is_ended_while_the_earlier_command_still_saves_starts_nothing(pod: Pod) -> None:
    earlier = pod.run(SAVES, id="1")
    assert line(earlier) == "up"
    later = pod.run(LEAVES_A_FILE, id="2")
    assert line(earlier) == "told"
    assert pod.end("2") == group.NOT_BEGUN
    assert earlier.poll() is None, "it still saves"
    (pod.work / "saved").touch()
    assert (later.wait(60), earlier.wait(60)) == (143, 75)
    assert not (pod.work / "new").exists()


def test_one_that_is_ended_before_it_came_starts_nothing(pod: Pod) -> None:
    pod.end("1")
    assert pod.run(LEAVES_A_FILE, id="1").wait(60) == 143
    assert not (pod.work / "new").exists()
    assert pod.run(LEAVES_A_FILE, id="2").wait(60) == 0
    assert {path.name for path in pod.root.rglob("*") if path.is_file()} == {"group.json", "lock", "new"}, "no note"


def test_orders_wait_for_each_other_and_one_that_is_ended_meanwhile_ends_nothing(pod: Pod) -> None:
    """Two that begin at once would both run, and only one could be found again."""
    earlier = pod.run(SAVES, id="1")
    assert line(earlier) == "up"
    with (pod.root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        later = pod.run(LEAVES_A_FILE, program=_LIVELY, id="2")
        assert later.stderr is not None and later.stderr.read(3) == "\0\0\0", "whoever waits sees that it lives"
        pod.end("2")
        assert later.poll() is None
    assert later.wait(60) == 143 and earlier.poll() is None
    third = pod.run(LEAVES_A_FILE, id="3")
    assert line(earlier) == "told"
    (pod.work / "saved").touch()
    assert (third.wait(60), earlier.wait(60)) == (0, 75)


@pytest.mark.parametrize("younger_comes_first", [True, False])
def test_of_two_that_are_given_at_once_the_same_one_runs_in_whatever_order_they_come(
    pod: Pod, younger_comes_first: bool
) -> None:
    """Each comes to its pods in an order of its own: where the last one ended the other, neither ran in all."""
    (pod.work / "saved").touch()
    orders = [{"id": "1", "by": "bob@here", "at": 1000.5}, {"id": "2", "by": "ann@there", "at": 1000.0}]
    told = orders if younger_comes_first else orders[::-1]
    first = pod.run(SAVES, **told[0])
    assert line(first) == "up"
    second = pod.run(SAVES, **told[1])
    if younger_comes_first:
        assert line(second) == "not started: another `dev run`, of bob@here, was started at the same time, and goes on"
        assert second.wait(60) == 69 and first.poll() is None
    else:
        assert line(second).startswith("the command of ann@there that still ran here is ended first")
        assert line(second) == "up" and first.wait(60) == 75


@pytest.mark.parametrize("told", [{"at": 1.0}, {}])
def test_a_clock_that_is_behind_keeps_nobody_from_ending_what_ran_for_long(pod: Pod, told: dict[str, float]) -> None:
    (pod.work / "saved").touch()
    first = pod.run(SAVES, id="1", at=1000.0)
    assert line(first) == "up"
    note = json.loads((pod.root / "group.json").read_text())
    if told:
        note["begun"] -= group.SAME_MOMENT_SECONDS + 1
    (pod.root / "group.json").write_text(json.dumps(note))
    assert pod.run(LEAVES_A_FILE, id="2", **told).wait(60) == 0 and first.wait(60) == 75


def test_the_order_of_another_leaves_a_command_alone(pod: Pod) -> None:
    first = pod.run(SAVES, id="1")
    assert line(first) == "up"
    pod.end("2")
    assert first.poll() is None
    (pod.work / "saved").touch()
    assert pod.end("1") == "" == pod.end("1")
    assert first.wait(60) == 75


def test_an_older_rankzero_names_no_order(pod: Pod) -> None:
    first = pod.run(SAVES)
    assert line(first) == "up"
    (pod.work / "saved").touch()
    pod.end()
    assert first.wait(60) == 75


def no_notes(pod: Pod) -> None:
    """As on a disk that takes nothing more, or is broken."""
    (pod.root / "ended").touch()


def test_where_no_note_can_be_left_what_runs_is_ended_all_the_same(pod: Pod) -> None:
    no_notes(pod)
    (pod.work / "saved").touch()
    process = pod.run(SAVES, id="1")
    assert line(process) == "up"
    pod.end("1")
    assert process.communicate() == ("told\n", "\0") and process.returncode == 75


def test_an_order_that_can_neither_be_found_nor_kept_from_starting_is_told_in_words(pod: Pod) -> None:
    no_notes(pod)
    done = subprocess.run([*_PROGRAM, str(pod.root), "end", "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr == f"FileExistsError: [Errno 17] File exists: '{pod.root}/ended'\n"


def test_a_disk_on_which_no_turn_can_be_waited_for_is_told_in_words(pod: Pod) -> None:
    (pod.root / "lock").mkdir()
    process = pod.run(LEAVES_A_FILE, id="1")
    assert process.communicate() == ("", f"IsADirectoryError: [Errno 21] Is a directory: '{pod.root}/lock'\n")
    assert process.returncode == 1 and not (pod.work / "new").exists()


def test_a_command_that_nobody_could_find_again_is_not_started(pod: Pod) -> None:
    """As on a full disk."""
    (pod.root / "group.new").mkdir()
    process = pod.run(LEAVES_A_FILE, id="1")
    assert line(process) == f"not started: {pod.root}/group.json: Is a directory"
    assert process.wait(60) == 74
    assert not (pod.work / "new").exists()


def test_where_its_leader_cannot_be_noted_it_is_ended_at_once(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import os, time; open('new', 'w').write(str(os.getpid())); time.sleep(600)"
    real = Path.replace

    def full(self: Path, target: Path) -> Path:
        if not (pod.root / "group.json").exists():
            return real(self, target)
        until((pod.work / "new").exists)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(group.UnnotedError, match="No space left"):
        group.begin(pod.root, group.Order([sys.executable, "-c", script], {}), pod.work)
    assert (pod.work / "new").exists() and not group.end_group(pod.root), "nothing of it runs"


TITLED = """
import ctypes, os, time
words = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(words[47]), int(words[48])
ctypes.memset(start, 0, end - start)
with open(f"staged-{os.getpid()}", "w") as file:
    file.write("")
os.rename(file.name, f"titled-{os.getpid()}")
time.sleep(60)
"""
"""What setproctitle does: its place for the title is the environment."""


def test_what_has_written_over_its_environment_ends_with_its_command(pod: Pod) -> None:
    """As vLLM's and Ray's processes, whose memory and GPU the next command needs; launchers give them groups."""
    script = f"""
import glob, subprocess, sys, time
for group in ({{}}, {{"process_group": 0}}):
    subprocess.Popen([sys.executable, "-c", {TITLED!r}], **group)
while len(glob.glob("titled-*")) < 2:
    time.sleep(0.01)
sys.exit(3)
"""
    process = pod.run(script, id="1")
    assert process.wait(60) == 3
    titled = [int(path.name.removeprefix("titled-")) for path in pod.work.glob("titled-*")]
    assert len(titled) == 2 and not any(group._started(pid) for pid in titled)


def test_a_program_that_is_not_there_is_told_as_a_shell_would(pod: Pod) -> None:
    assert group.run(pod.root, group.Order(["no-such-program"], {}), pod.work) == 127


def test_whoever_listens_is_shown_that_it_waits_for_the_earlier_command(pod: Pod) -> None:
    earlier = pod.run(SAVES)
    assert line(earlier) == "up"
    later = pod.run(LEAVES_A_FILE, program=_LIVELY)
    assert later.stderr is not None and later.stderr.read(3) == "\0\0\0"
    assert earlier.poll() is None
    (pod.work / "saved").touch()
    assert later.wait(60) == 0 and (pod.work / "new").exists()


def test_where_nobody_listens_any_more_when_the_earlier_command_has_ended_nothing_starts(pod: Pod) -> None:
    earlier = pod.run(SAVES)
    assert line(earlier) == "up"
    later = pod.run(LEAVES_A_FILE)
    assert line(earlier) == "told" and later.stderr is not None
    later.stderr.close()
    (pod.work / "saved").touch()
    assert later.wait(60) != 0 and not (pod.work / "new").exists()


def test_a_command_that_nobody_listens_to_any_more_is_ended(pod: Pod) -> None:
    (pod.work / "saved").touch()
    process = pod.run(SAVES, program=_LIVELY)
    assert line(process) == "up" and process.stderr is not None
    process.stderr.close()
    assert line(process) == "told" and process.wait(60) != 0


def test_whoever_ends_another_s_command_hears_of_it_and_so_does_the_other(pod: Pod) -> None:
    earlier = pod.run(SAVES, id="1", by="ann@there")
    assert line(earlier) == "up"
    later = pod.run(LEAVES_A_FILE, id="2", by="bob@here")
    assert line(later) == "the command of ann@there that still ran here is ended first; it has 600 s to save"
    assert line(earlier) == "told"
    (pod.work / "saved").touch()
    assert line(earlier) == "ended by another `dev run`, of bob@here"
    assert (later.wait(60), earlier.wait(60)) == (0, 75)
    assert not list((pod.root / "ended").iterdir())


def test_nothing_is_said_where_nothing_ran(pod: Pod) -> None:
    assert pod.run(LEAVES_A_FILE, id="1", by="ann@there").wait(60) == 0
    second = pod.run(LEAVES_A_FILE, id="2", by="bob@here")
    assert second.communicate() == ("", "\0")
