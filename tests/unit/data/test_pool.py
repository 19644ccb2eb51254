"""Ordered work: order, bounds, errors, what a worker is like."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from pickle import PicklingError

import pytest

import rankzero.data.pool
from rankzero.data.pool import SMALL_BYTES, ordered_map, worker_count
from rankzero.errors import DataError, RankzeroError
from tests.support.tiny import chat_rows, write_jsonl


def make_slow(factor: int) -> Callable[[int], tuple[int, int]]:
    def work(number: int) -> tuple[int, int]:
        time.sleep(0.01 * (number % 3))
        return number * factor, os.getpid()

    return work


def make_failing() -> Callable[[int], int]:
    def work(number: int) -> int:
        if number == 3:
            raise DataError("bad", where="f:3")
        return number

    return work


def make_dying() -> Callable[[int], int]:
    return lambda number: os.kill(os.getpid(), signal.SIGKILL) or number


def make_nothing() -> Callable[[int], int]:
    raise DataError("no worker can be made")


class UnsendableError(Exception):
    """As of a library: a copy of it cannot be made."""

    def __init__(self, what: str, more: str) -> None:
        super().__init__(what)


def make_unsendable() -> Callable[[int], int]:
    def work(_number: int) -> int:
        raise UnsendableError("of a library", "more")

    return work


class Absent:
    """Work that a worker does not get: reading it there fails."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return __import__, ("no_such_module",)

    def __call__(self) -> Callable[[int], int]:
        raise AssertionError


class Panic(BaseException):
    """As of an extension in Rust: no Exception."""


def make_panicking() -> Callable[[int], int]:
    def work(number: int) -> int:
        if number == 2:
            raise Panic("of an extension")
        if number == 3:
            raise SystemExit(3)
        return number

    return work


def make_functions() -> Callable[[int], Callable[[], int]]:
    return lambda number: lambda: number


def make_leaving() -> Callable[[int], int]:
    return lambda number: os._exit(number)


def make_child(pids: Path) -> Callable[[int], int]:
    def work(_number: int) -> int:
        nowhere = subprocess.DEVNULL
        child = subprocess.Popen(["sleep", "600"], stdout=nowhere, stderr=nowhere, close_fds=False)
        with pids.open("a") as file:
            file.write(f"{child.pid}\n")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return work


def make_endless() -> Callable[[int], int]:
    return lambda number: time.sleep(600 * number) or os.getpid()


class Kept:
    """Counts how many of them a worker holds."""

    there = 0

    def __init__(self) -> None:
        Kept.there += 1

    def __del__(self) -> None:
        Kept.there -= 1

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()


def make_counting() -> Callable[[Kept], tuple[int, Kept]]:
    return lambda _task: (Kept.there, Kept())


def make_environment() -> Callable[[str], str | None]:
    return os.environ.get


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    results = list(ordered_map(partial(make_slow, 10), iter(range(20)), workers))
    assert [result for result, _ in results] == [number * 10 for number in range(20)]
    pids = {pid for _, pid in results}
    assert (pids == {os.getpid()}) if workers == 1 else (os.getpid() not in pids)


def test_tasks_are_drawn_as_results_are_taken() -> None:
    drawn: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    results = ordered_map(partial(make_slow, 1), tasks(), 2)
    for _ in range(5):
        next(results)
    assert len(drawn) <= 5 + 2 + 2
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_errors_come_back_whole(workers: int) -> None:
    with pytest.raises(DataError) as caught:
        list(ordered_map(make_failing, range(9), workers))
    assert caught.value.problems[0].where == "f:3"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_cannot_be_made_says_why(workers: int) -> None:
    with pytest.raises(DataError, match="no worker can be made"):
        list(ordered_map(make_nothing, range(9), workers))


def test_what_breaks_in_a_worker_is_said_with_its_place() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)in work.*UnsendableError: of a library"):
        list(ordered_map(make_unsendable, range(4), 2))
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
        list(ordered_map(Absent(), range(4), 2))
    assert "in a data worker process" in caught.value.__notes__[0]


def test_a_task_that_cannot_be_read_is_answered_with_why() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        list(ordered_map(partial(make_slow, 1), [Absent()], 2))  # type: ignore[list-item]


def test_a_result_that_cannot_be_sent_is_answered_with_why() -> None:
    with pytest.raises((AttributeError, PicklingError), match="make_functions"):
        list(ordered_map(make_functions, range(4), 2))


@pytest.mark.parametrize(("number", "what"), [(2, "Panic: of an extension"), (3, "SystemExit: 3")])
def test_what_is_no_exception_ends_neither_process(number: int, what: str) -> None:
    with pytest.raises(RuntimeError, match=rf"(?s)in work.*{what}"):
        list(ordered_map(make_panicking, [number], 2))


def test_a_worker_holds_no_task_or_result_that_is_done() -> None:
    """Of a chunk of rows each may be large."""
    assert [there for there, _ in ordered_map(make_counting, [Kept() for _ in range(6)], 2)] == [1] * 6


SCRIPT = """
import os, sys
import rankzero
import rankzero.data.pool as pool

started = []
sys.addaudithook(lambda event, given: started.append(given[1]) if event == "subprocess.Popen" else None)
pool.SMALL_BYTES, pool.usable_cores = 0, lambda: 2
with open("effects", "a") as file:
    file.write("once ")
print(rankzero.data.check("rows.jsonl").ok, any("rankzero.data.pool" in " ".join(command) for command in started))
"""


@pytest.mark.parametrize("by", ["its name", "standard input", "-m"])
def test_a_script_of_the_user_is_run_once(tmp_path: Path, by: str) -> None:
    """Whatever is at its top: it needs no `if __name__ == "__main__"`."""
    write_jsonl(tmp_path / "rows.jsonl", chat_rows(20))
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = {"its name": ["script.py"], "standard input": ["-"], "-m": ["-m", "script"]}[by]
    done = subprocess.run(
        [sys.executable, *arguments], input=SCRIPT, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")
    assert (tmp_path / "effects").read_text() == "once "


def test_a_killed_worker_is_said_to_be_one() -> None:
    with pytest.raises(RankzeroError, match="worker process was killed") as caught:
        list(ordered_map(make_dying, range(4), 2))
    assert "memory" in caught.value.problems[0].hint


def test_a_worker_that_ends_by_itself_is_said_with_its_exit_code() -> None:
    with pytest.raises(RankzeroError, match="worker process ended with exit code 7") as caught:
        list(ordered_map(make_leaving, [7], 2))
    assert "memory" not in caught.value.problems[0].hint


def test_a_program_that_a_worker_started_does_not_keep_its_end_from_being_seen(tmp_path: Path) -> None:
    """It is seen while that program goes on."""
    pids = tmp_path / "pids"
    with pytest.raises(RankzeroError, match="worker process was killed"):
        list(ordered_map(partial(make_child, pids), range(4), 2))
    children = [int(pid) for pid in pids.read_text().split()]
    assert children
    for child in children:
        os.kill(child, signal.SIGKILL)  # raises where it has ended


def test_a_second_ctrl_c_leaves_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while what is at work is waited for."""
    results = ordered_map(make_endless, range(9), 2)
    worker = next(results)

    def shutdown(*_given: object, **_how: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown)
    with pytest.raises(KeyboardInterrupt):
        results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


ELSEWHERE = """
import os, sys
{insert}
import rankzero.data.pool, rankzero.work
os.chdir("elsewhere")
[(place, flags)] = rankzero.data.pool.ordered_map(rankzero.work.make, [0], 2)
print(place == rankzero.__file__, place.startswith({copied!r}), flags)
"""


@pytest.mark.parametrize("how", ["sys.path.insert(0, {copied!r})", "relative PYTHONPATH", "the working directory"])
def test_a_worker_has_the_rankzero_and_the_flags_of_its_parent(tmp_path: Path, how: str) -> None:
    """Also where it is on the parent's sys.path alone, and another one is installed."""
    copied = str(tmp_path / "copied")
    shutil.copytree(
        Path(rankzero.__file__).parent, Path(copied) / "rankzero", ignore=shutil.ignore_patterns("__pycache__")
    )
    (Path(copied) / "elsewhere").mkdir()
    (Path(copied) / "rankzero" / "work.py").write_text(
        "import rankzero, sys\ndef make(): return work\ndef work(n):\n"
        "    return rankzero.__file__, (sys.flags.dont_write_bytecode, sys.warnoptions)\n"
    )
    insert = how.format(copied=copied) if how.startswith("sys") else ""
    script = ELSEWHERE.format(insert=insert, copied=copied)
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    if how == "relative PYTHONPATH":
        env["PYTHONPATH"] = "."
    if how != "the working directory":
        script = "import sys; sys.path.remove('')\n" + script
    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore::UserWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=copied,
        env=env,
    )
    assert (done.stdout, done.stderr) == ("True True (1, ['ignore::UserWarning'])\n", "")


def test_workers_do_not_start_threads_of_their_own() -> None:
    assert list(ordered_map(make_environment, ["TOKENIZERS_PARALLELISM"], 2)) == ["false"]


def test_workers_do_not_import_what_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue", "random", "selectors", "tempfile"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert list(ordered_map(make_environment, ["HOME"], 2)) == [os.environ["HOME"]]
    assert "PYTHONSAFEPATH" not in os.environ


def test_small_inputs_take_no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankzero.data.pool, "usable_cores", lambda: 64)
    assert worker_count(SMALL_BYTES - 1, 8) == 1
    assert worker_count(SMALL_BYTES, 8) == 8
    assert worker_count(SMALL_BYTES, 0) == 1
    assert worker_count(SMALL_BYTES) == 16
    monkeypatch.undo()
    assert 1 <= worker_count(SMALL_BYTES) <= (os.cpu_count() or 1)
