"""The process that sends, as the one that trains starts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from rankzero.track.sender import Sending

LANGFUSE = {"LANGFUSE_HOST": "http://127.0.0.1:9", "LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such class of processes")
def test_it_runs_where_training_leaves_a_core_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own group, which no Ctrl-C reaches, but in the session whose processors it is to yield."""
    for name, value in LANGFUSE.items():
        monkeypatch.setenv(name, value)
    fields = {"name": "r", "model": {"name": "m"}, "data": {"train": "t.jsonl"}, "tracking": {"langfuse": True}}
    run_dir, spec = RunDir(tmp_path), RunSpec.model_validate(fields)
    run_dir.spec.write_text(spec.model_dump_json())
    lines: list[str] = []
    sending = Sending(run_dir, spec, lines.append)
    sending.start(anew=True)
    process = sending._process
    assert process is not None
    try:
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        assert os.getsid(process.pid) == os.getsid(0)
        assert os.getpgid(process.pid) == process.pid
    finally:
        sending.end(lines.append)
    assert process.returncode == 0 and "the end of the run not sent yet" in " ".join(lines)
