"""Lines of processes, told apart and without secrets; the termination message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankzero.errors import DataError, RankzeroError, StoppedError
from rankzero.launch.node.output import Output, Redactor
from rankzero.launch.node.termination import MOST_BYTES, message, write
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


def test_it_fits_and_is_json(tmp_path: Path) -> None:
    path = tmp_path / "log"
    said = message(0, RunDir(tmp_path), RankzeroError("\u2028ü" * 5000, hint="ä" * 9000), str)
    write(said, {"RANKZERO_TERMINATION_LOG": str(path)})
    assert len(path.read_bytes()) <= MOST_BYTES
    assert json.loads(path.read_text())["exit_code"] == 70
