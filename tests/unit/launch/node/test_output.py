"""Lines of processes, told apart and without secrets; the termination message."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rankzero.engine.console import RunConsole
from rankzero.errors import DataError, Problem, RankzeroError, StoppedError
from rankzero.launch.log_lines import read_stamp
from rankzero.launch.node.output import Output
from rankzero.launch.node.termination import MOST_BYTES, internal, message, write
from rankzero.redaction import Redactor
from rankzero.run_dir.paths import RunDir


def test_lines_stay_whole_and_are_told_apart(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output(Redactor({"HF_TOKEN": "canary-1", "API_KEY": "abc", "HOME": "/home/canary"}))
    first, second = output.pipe(""), output.pipe("[rank 1] ")
    first.write("one\ncanary-1 and abc\u2028x\n".encode())
    second.write(b"two \xff\nlast without an end")
    first.close()
    second.close()
    output.flush()
    output.say("three canary-1")
    lines = capfd.readouterr().err.split("\n")
    assert "one" in lines
    assert "[hidden] and abc\u2028x" in lines
    assert "[rank 1] two \ufffd" in lines
    assert "[rank 1] last without an end" in lines
    assert "[NODE] three [hidden]" in lines


def test_no_line_of_a_private_key_is_copied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A key goes over several lines, between which come those of other ranks."""
    output = Output(Redactor({}))
    first, second = output.pipe("", tmp_path / "last"), output.pipe("[rank 1] ")
    for line in ("-----BEGIN PRIVATE KEY-----", "MIIEvQIBADAN", "Bgkqhkn=", "-----END PRIVATE KEY-----", "step 1"):
        first.write(f"{line}\n".encode())
        first.flush()
        second.write(b"done\n")
        second.flush()
    first.close()
    second.close()
    output.flush()
    said = capfd.readouterr().err
    assert "MIIE" not in said and "Bgkq" not in said and "step 1\n" in said
    assert said.count("[rank 1] done\n") == 5
    assert "MIIE" not in (tmp_path / "last").read_text()


def test_the_message(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.metrics.write_text('{"step": 3}\n{"step": 4}\n')
    run.report.write_text('{"steps": 9}')
    run.checkpoint(2).mkdir(parents=True)
    error = DataError("bad canary-1", where="train.jsonl:3", hint="mend it")
    said = message(1, run, error, Redactor({"X_TOKEN": "canary-1"}))
    assert said["what"] == "bad [hidden]"
    assert (said["outcome"], said["exit_code"], said["node"]) == ("failed", 65, 1)
    assert (said["step"], said["total_steps"], said["checkpoint"]) == (4, 9, 2)
    assert message(0, run, None, str)["outcome"] == "done"
    assert message(0, run, StoppedError("s"), str)["outcome"] == "stopped"


@pytest.mark.parametrize("text", ["\u2028ü", "\U0001f4a5", "\ud800", "\n\t\\"])
def test_it_fits_and_is_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    said = message(0, RunDir(tmp_path), RankzeroError(text * 5000, where=text * 2000, hint=text * 9000), str)
    write(said, {"RANKZERO_TERMINATION_LOG": str(path)})
    assert len(path.read_bytes()) <= MOST_BYTES
    assert json.loads(path.read_text())["exit_code"] == 70


def test_an_error_nobody_expected_is_printed_without_secrets(capfd: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError("cannot open canary-1")
    except ValueError as error:
        Output(Redactor({"HF_TOKEN": "canary-1"})).error(internal(error))
    shown = capfd.readouterr().err
    assert "internal error: ValueError: cannot open [hidden]" in shown
    assert "Traceback" in shown and "canary-1" not in shown


def test_each_line_of_a_secret_of_several_is_one() -> None:
    redact = Redactor({"SSH_PRIVATE_KEY": "-----BEGIN-----\ncanary-4711\nab\n"})
    assert redact("x canary-4711 ab") == "x [hidden] ab"


def test_how_far_an_unfinished_run_was(tmp_path: Path) -> None:
    """From rank 0's log, as the engine writes it, and a metrics file that a kill cut off."""
    run = RunDir(tmp_path)
    run.metrics.write_text('{"step": 11}\n{"step": 12}\n{"step": 1')
    console = RunConsole(speaks=False, level="INFO")
    console.log_to(run.log(0))
    try:
        with RunConsole.progress(_Speaking(console), "step", 60, 11) as advance:  # type: ignore[arg-type]
            advance(1, "loss 1.2345 1,234 tok/s")
    finally:
        console.close()
    said = message(0, run, DataError("one"), str)
    assert (said["step"], said["total_steps"]) == (12, 60)


class _Speaking:
    """Rank 0's console where there is no terminal."""

    def __init__(self, _console: RunConsole) -> None:
        self.speaks, self.live = True, False


def test_more_than_one_problem_is_counted(tmp_path: Path) -> None:
    said = message(0, RunDir(tmp_path), DataError([Problem("a"), Problem("b"), Problem("c")]), str)
    assert said["what"] == "a (and 2 more in the log)"


def test_lines_have_their_times_where_the_platform_keeps_none(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(Redactor({"HF_TOKEN": "canary-1"}), stamps=True)
    output.say("hello canary-1")
    stamped = read_stamp(capsys.readouterr().err.rstrip("\n"))
    assert stamped.text == "[NODE] hello [hidden]" and stamped.time is not None
    assert abs((datetime.now(UTC) - stamped.time).total_seconds()) < 3600
