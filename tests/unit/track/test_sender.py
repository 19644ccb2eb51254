"""The process that sends, as the one that trains starts it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from rankzero.run_dir.paths import RunDir
from rankzero.spec.local_paths import PathField, path_fields, with_paths
from rankzero.spec.resolve import spec_hash
from rankzero.spec.run_spec import RunSpec, TrackingSpec
from rankzero.track import sender
from rankzero.track.sender import Sending
from rankzero.track.spool import MADE_OF, Sent, path_of, setting_hash
from tests.support.trackers import note_start

SPEC = RunSpec.model_validate(
    {"name": "r", "model": {"name": "m"}, "data": {"train": "t.jsonl"}, "tracking": {"langfuse": True}}
)
LANGFUSE = {"LANGFUSE_HOST": "http://127.0.0.1:9", "LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1"}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Of a run that is sent to a Langfuse that is not there."""
    for name, value in LANGFUSE.items():
        monkeypatch.setenv(name, value)
    run_dir = RunDir(tmp_path)
    run_dir.spec.write_text(SPEC.model_dump_json())
    return run_dir


def may_yield() -> bool:
    """Whether this system has that class of processes, and lets one be put into it."""
    with suppress(AttributeError, OSError), subprocess.Popen(["sleep", "60"]) as other:
        try:
            os.sched_setscheduler(other.pid, os.SCHED_IDLE, os.sched_param(0))
            return True
        finally:
            other.kill()
    return False


@pytest.mark.skipif(not may_yield(), reason="no process may be made one that yields")
def test_it_runs_where_training_leaves_a_core_alone(run_dir: RunDir) -> None:
    """In its own group, which no Ctrl-C reaches, but in the session whose processors it is to yield."""
    lines: list[str] = []
    sending = Sending(run_dir, SPEC, lines.append)
    sending.start(anew={})
    process = sending._process
    assert process is not None
    try:
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        assert os.getsid(process.pid) == os.getsid(0)
        assert os.getpgid(process.pid) == process.pid
    finally:
        sending.end(lines.append)
    assert process.returncode is not None and "the end of the run not sent yet" in " ".join(lines)


@pytest.fixture
def starved(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> tuple[Sending, subprocess.Popen[bytes], list[str]]:
    """One whose process gets no time, as one that stands still; that process, and what it says."""
    monkeypatch.setattr(sender, "_IDLE_SECONDS", 0.2)
    lines: list[str] = []
    sending = Sending(run_dir, SPEC, lines.append)
    sending.start(anew={})
    process = sending._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    return sending, process, lines


def test_one_that_gets_no_time_is_replaced_when_the_run_is_over(
    starved: tuple[Sending, subprocess.Popen[bytes], list[str]],
) -> None:
    """The other one has what it takes to say why nothing is sent."""
    sending, first, lines = starved
    sending.end(lines.append)
    second = sending._process
    assert second is not None and (first.returncode, second.returncode) == (-signal.SIGKILL, 0)
    assert "Connection refused" in " ".join(lines)


def test_what_is_not_sent_is_said_where_no_other_can_be_started(
    starved: tuple[Sending, subprocess.Popen[bytes], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sending, _, lines = starved

    def refused() -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(sending, "_started", refused)
    with suppress(OSError):
        sending.end(lines.append)
    assert "rankzero track sync" in " ".join(lines)


def test_an_end_that_an_earlier_start_sent_is_not_that_of_the_run(run_dir: RunDir) -> None:
    for begun in (1000.0, 2000.0):
        note_start(run_dir, begun, "finished")
    Sent(ended="finished", ended_start=1000.0).write(run_dir.tracking / "langfuse.json")
    lines: list[str] = []
    sending = Sending(run_dir, SPEC, lines.append)
    sending.finish_what_is_left()
    sending.end(lines.append)
    assert "the end of the run not sent yet" in " ".join(lines)
    Sent(ended="finished", ended_start=2000.0).write(run_dir.tracking / "langfuse.json")
    done = Sending(run_dir, SPEC, lines.append)
    done.finish_what_is_left()
    assert done._process is None, "there is nothing left to send"


def test_what_a_server_has_refused_is_said_of_a_run_whose_end_it_has(run_dir: RunDir) -> None:
    note_start(run_dir, 1000.0, "finished")
    sent = Sent(ended="finished", ended_start=1000.0, error="samples.jsonl refused: ValueError: no")
    sent.write(run_dir.tracking / "langfuse.json")
    lines: list[str] = []
    sending = Sending(run_dir, SPEC, lines.append)
    sending._started = lambda: subprocess.Popen(["true"])  # type: ignore[method-assign]
    sending.finish_what_is_left()
    sending.end(lines.append)
    assert "langfuse: not all of it is sent yet (samples.jsonl refused: ValueError: no); `rankzero" in " ".join(lines)


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize(
    "begun_by",
    ["another", "this", "a version before", "elsewhere", "nobody", "other data", "other rows to evaluate on"],
)
def test_a_run_that_begins_is_not_taken_for_an_earlier_one_in_its_directory(
    begun_by: str, sends: bool, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither goes on where that one is at a server, nor has its numbers of the machine: now, or by a start to come."""
    spec = SPEC if sends else SPEC.model_copy(update={"tracking": TrackingSpec()})
    sent, system = run_dir.tracking / "langfuse.json", path_of("system", run_dir)
    run_dir.tracking.mkdir()
    system.write_text('{"step": 0}\n{"step": 1}\n')
    made_of = {"model": "m", "tokenizer": "t", "data": "d", "eval_data": "e"}
    if begun_by != "nobody":
        mended = {"other data": {"data": "mended since"}, "other rows to evaluate on": {"eval_data": "mended since"}}
        about = {**made_of, **mended.get(begun_by, {})}
        there = spec.model_copy(update={"data": spec.data.model_copy(update={"train": "/before/t.jsonl"})})
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"train": "/now/t.jsonl"})})
        noted = {"another": "other", "a version before": spec_hash(spec), "elsewhere": setting_hash(there)}
        by = noted.get(begun_by, setting_hash(spec))
        if begun_by == "a version before":
            del about["eval_data"]
        Sent(spec=by, made_of=about, last={"system": 1}).write(sent)
    started: list[bool] = []
    sending = Sending(run_dir, spec, print)
    monkeypatch.setattr(sending, "_started", lambda: started.append(True) or subprocess.Popen(["true"]))
    sending.start(anew={**made_of, "dtype": "float32"})
    sending.end(print)
    assert started == [True] * sends
    goes_on = begun_by in ("this", "a version before", "elsewhere")
    assert system.exists() == goes_on and sent.exists() == (sends or goes_on)
    assert Sent.read(sent).last == ({"system": 1} if goes_on else {})
    known = (spec_hash(spec), setting_hash(spec)) if goes_on else (setting_hash(spec),)
    assert not sends or (Sent.read(sent).spec in known and (Sent.read(sent).made_of or {}).items() <= made_of.items())


def test_what_lies_at_every_path_of_a_spec_tells_runs_apart() -> None:
    """By its content where a run knows it, which manifests have; else by its place."""
    source, prompts = {"path": "/v1/t.jsonl", "image_root": "/v1/images"}, "/v1/p.jsonl"
    value = {
        "name": "r",
        "model": {"name": "/v1/m", "tokenizer_dir": "/v1/t"},
        "data": {"train": [source], "eval": "/v1/e.jsonl", "chat_template": "/v1/c.jinja"},
        "eval": {"prompts": prompts, "every": 2},
        "train": {"sharding": "zero2", "deepspeed": "/v1/ds.json"},
        "output_dir": "/v1/runs",
    }
    specs = [RunSpec.model_validate(value)]
    specs.append(RunSpec.model_validate({**value, "model": {"name": "org/m", "local_dir": "/v1/m"}}))
    assert len({field.field for spec in specs for field in path_fields(spec)}) == 10
    told = set()
    for spec in specs:
        for one in path_fields(spec):

            def elsewhere(field: PathField, changed: PathField = one) -> str:
                return field.text.replace("/v1", "/v2") if field == changed else field.text

            if setting_hash(with_paths(spec, elsewhere)) != setting_hash(spec):
                told.add(one.field)
    assert told == {"eval.prompts", "train.deepspeed"}
    assert MADE_OF == ("model", "tokenizer", "data", "eval_data")
