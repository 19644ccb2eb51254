"""Results alone on stdout, lines without secrets, and no run that ends because its lines go nowhere."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankzero.data.progress import told
from rankzero.engine.console import (
    STEPS,
    RunConsole,
    Speed,
    logger,
    print_result,
    results_alone_on_stdout,
    step_in_words,
)
from rankzero.engine.process import hand_over
from rankzero.errors import DataError, ServiceError
from rankzero.run_dir.handover import read_error
from rankzero.wording import printable
from tests.support.gone import Gone


def test_what_libraries_print_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    print_result("before")
    with results_alone_on_stdout():
        print("a library says something")
        os.write(1, b"another, in C\n")
        subprocess.run([sys.executable, "-c", "print('a child')"], check=True)
    print_result("after")
    captured = capfd.readouterr()
    assert captured.out == "before\nafter\n"
    assert set(captured.err.splitlines()) == {"a library says something", "another, in C", "a child"}


def test_stdout_is_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="x"), results_alone_on_stdout():
        raise ValueError("x")
    print_result("after")
    assert capfd.readouterr().out == "after\n"


def test_the_last_of_several_threads_gives_stdout_back(capfd: pytest.CaptureFixture[str]) -> None:
    """Each may be done while the other is not, as two that ask a model."""
    stdout = sys.stdout
    first, second = results_alone_on_stdout(), results_alone_on_stdout()
    for enter, leave in ((first, second), (second, first)):
        enter.__enter__()
        with ThreadPoolExecutor(1) as thread:
            thread.submit(leave.__enter__).result()
            enter.__exit__(None, None, None)
            print("a library")
            thread.submit(leave.__exit__, None, None, None).result()
        print_result("a result")
        os.write(1, b"of a child\n")
    assert capfd.readouterr() == ("a result\nof a child\n" * 2, "a library\n" * 2)
    assert sys.stdout is stdout


@pytest.fixture
def open_consoles() -> Iterator[list[RunConsole]]:
    consoles: list[RunConsole] = []
    yield consoles
    for console in consoles:
        console.close()


@pytest.mark.parametrize("speaks", [True, False])
def test_neither_console_nor_rank_log_shows_a_secret(
    speaks: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    open_consoles: list[RunConsole],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    console = RunConsole(speaks=speaks, level="DEBUG")
    open_consoles.append(console)
    logger.info("before there is a file: %s", "https://user:canary-4711@hub")
    console.log_to(tmp_path / "logs/rank-0.log")
    try:
        raise OSError("cannot open canary-4711")
    except OSError:
        logger.exception("with a traceback")
    written = (tmp_path / "logs/rank-0.log").read_text()
    shown = capfd.readouterr().err
    assert "https://user:[hidden]@hub" in written and "OSError: cannot open [hidden]" in written
    assert ("user:[hidden]@hub" in shown) == speaks
    assert "canary-4711" not in written + shown
    marked = [line.split(" ")[1] for line in written.splitlines() if line[2:3] == ":"]
    assert marked == ["before", "ERROR"], "what is a warning can be told from the file"


@pytest.mark.parametrize("width", [80, 120])
def test_progress_is_one_line_with_all_there_is_to_know(width: int) -> None:
    """Steps, loss, speed, epoch, learning rate, gradient norm, memory, elapsed and remaining: also at 80 columns."""
    from rich.console import Console

    stream = io.StringIO()
    terminal = Console(file=stream, width=width, force_terminal=True, color_system=None)
    facts = {"loss": 1.2345, "epoch": 12.34, "learning_rate": 1.5e-4, "grad_norm": 0.523}
    with told(STEPS, "step", 3000, 1199, terminal=terminal, say=print) as advance:
        advance(1, step_in_words({**facts, "peak_memory_bytes": 12_340_000_000}, 2043.4))
    shown = printable(stream.getvalue().replace("\r", "\n")).splitlines()
    last = next(line for line in reversed(shown) if "tok/s" in line)
    assert len(last.rstrip()) <= width
    words = "1200/3000 loss 1.2345 2,043 tok/s ep 12.34 lr 1.5e-4 |g| 0.52 12.3GB 0:0"
    assert words in last and "<" in last and ("━" in last) == (width >= 100)


def test_a_narrow_terminal_shows_the_time_left_first() -> None:
    from rich.console import Console

    stream = io.StringIO()
    terminal = Console(file=stream, width=40, force_terminal=True, color_system=None)
    with told(STEPS, "step", 3000, 1199, terminal=terminal, say=print) as advance:
        advance(1, "loss 1.2345 2,043 tok/s ep 12.34 lr 1.5e-4")
    last = next(
        line for line in reversed(printable(stream.getvalue().replace("\r", "\n")).splitlines()) if "loss" in line
    )
    assert re.search(r"1200/3000 0:0\d<\S+ loss 1.2345", last) and len(last.rstrip()) <= 40


def test_the_speed_is_that_of_the_last_steps() -> None:
    speed = Speed(seconds=10)
    slow, quick = {"tokens": 100, "tokens_per_second": 1.0}, {"tokens": 100, "tokens_per_second": 50.0}
    assert (speed.after(slow), speed.after(quick)) == (1.0, 200 / 102)
    assert [speed.after(quick) for _ in range(5)][-1] == 50.0


def test_an_error_is_handed_over_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    monkeypatch.setenv("RANKZERO_ERROR_FILE", str(tmp_path / "error.json"))
    for error in (
        ServiceError("canary-4711", where="canary-4711", hint="canary-4711"),
        ZeroDivisionError("canary-4711"),
    ):
        try:
            raise error
        except Exception as raised:
            hand_over(raised)
        assert "canary-4711" not in (tmp_path / "error.json").read_text()
    assert "Traceback" in json.loads((tmp_path / "error.json").read_text())["traceback"]


def test_an_error_for_which_there_is_no_room_keeps_its_exit_code_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/tmp is full; that the same command would fail again is known all the same."""
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    (tmp_path / "file").touch()
    monkeypatch.setenv("RANKZERO_ERROR_FILE", str(tmp_path / "file/error.json"))
    assert hand_over(DataError("not valid JSON, canary-4711", where="rows.jsonl:1", hint="mend it")) == 65
    said = capsys.readouterr().err
    assert "rows.jsonl:1: not valid JSON" in said and "mend it" in said and "canary" not in said
    assert "TMPDIR" in said and "output_dir" not in said


def test_a_name_that_is_no_utf_8_is_handed_over_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "error.json"
    monkeypatch.setenv("RANKZERO_ERROR_FILE", str(file))
    assert hand_over(DataError("not valid JSON", where="b\udcff ü.jsonl:1")) == 65
    error = read_error(file)
    assert isinstance(error, DataError) and error.problems[0].where == "b\udcff ü.jsonl:1"
    assert "ü" in file.read_text(encoding="utf-8")


def test_the_logger_is_as_it_was_when_the_console_is_closed(tmp_path: Path) -> None:
    """Whoever calls from Python may have set it up. Another console takes the place of one that nobody has closed."""
    theirs = logging.FileHandler(tmp_path / "theirs.log")
    logger.addHandler(theirs)
    try:
        before = list(logger.handlers), logger.propagate, logger.level
        for _ in range(2):
            console = RunConsole(speaks=False, level="DEBUG")
            console.log_to(tmp_path / "ours.log")
            logger.debug("meanwhile")
            assert not logger.propagate and theirs not in logger.handlers
        console.close()
        console.close()
        assert (logger.handlers, logger.propagate, logger.level) == before
        logger.warning("afterwards")
    finally:
        logger.removeHandler(theirs)
        theirs.close()
    assert (tmp_path / "theirs.log").read_text() == "afterwards\n"
    assert (tmp_path / "ours.log").read_text().count("meanwhile") == 2


def test_a_console_that_cannot_be_leaves_the_logger() -> None:
    before = list(logger.handlers), logger.propagate, logger.level
    with pytest.raises(ValueError, match="LOUD"):
        RunConsole(speaks=False, level="LOUD")
    assert (logger.handlers, logger.propagate, logger.level) == before


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO])
def test_a_console_that_is_gone_ends_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_consoles: list[RunConsole]
) -> None:
    """`rankzero train … | head`, or a terminal that was closed: the run goes on, and the log file has its lines."""
    console = RunConsole(speaks=True, level="INFO")
    open_consoles.append(console)
    console.log_to(tmp_path / "rank-0.log")
    monkeypatch.setattr(sys, "stderr", Gone(number))
    logger.info("a line")
    assert (tmp_path / "rank-0.log").read_text().endswith("a line\n")


def test_a_log_file_that_is_full_is_said_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], open_consoles: list[RunConsole]
) -> None:
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    console = RunConsole(speaks=True, level="INFO")
    open_consoles.append(console)
    console.log_to(tmp_path / "rank-0.log")
    for number in range(3):
        logger.info("line %d", number)
    shown = capfd.readouterr().err
    assert shown.count("takes no more lines: No space left on device") == 1
    assert "line 2" in shown
    assert "Traceback" not in shown
