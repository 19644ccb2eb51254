"""Runs whose numbers go to a Langfuse on loopback: one trace a run, whatever the server and the run go through."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rankzero.errors import StoppedError
from rankzero.run_dir.paths import RunDir
from rankzero.spec.load import load_run_spec
from rankzero.track.langfuse import LangfuseTrace, problems
from rankzero.track.server import RunFacts
from tests.support.cli import Cli
from tests.support.runs import log, metrics, run_here, run_root, small_spec, stop_in
from tests.support.tiny import write_jsonl
from tests.support.trackers import PUBLIC, SECRET, Langfuse, langfuse

CANARY = "canary-0123456789abcdef"


def told(receiver: Langfuse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of who uses it."""
    for name, value in {"HOST": receiver.url, "PUBLIC_KEY": PUBLIC, "SECRET_KEY": SECRET}.items():
        monkeypatch.setenv(f"LANGFUSE_{name}", value)


def test_a_run_that_is_stopped_while_its_server_is_away(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing arrives in the first start, everything in the second, and a third finds nothing left to send."""
    asked = {"every": 4, "prompts": str(tmp_path / "asked.jsonl"), "max_new_tokens": 3}
    rows = [{"question": "Who?", "answer": "Nobody"}, {"prompt": f"What is {CANARY}?"}]
    write_jsonl(tmp_path / "asked.jsonl", rows)
    monkeypatch.setenv("SOME_TOKEN", CANARY)
    spec = small_spec(tmp_path, tiny, tracking__langfuse=True, train__num_train_epochs=2, eval=asked)
    with langfuse() as receiver:
        told(receiver, monkeypatch)
        receiver.mood = "error"
        with pytest.raises(StoppedError):
            run_here(spec, hooks=stop_in(3))
        assert receiver.asked.is_set() and not receiver.spans
        assert "answered 500" in log(spec) and "rankzero track sync" in log(spec)

        receiver.mood = "well"
        report = run_here(spec, log_level="INFO")
        steps = [row["step"] for row in metrics(spec)]
        names = {f"evaluation {n}" if n in (4, 8) else f"step {n}" for n in steps}
        saves = {f"checkpoint {n}" for n in (3, 4, 5, 8)}
        samples = {f"sample {n}" for n in (0, 4, 8)}
        assert set(receiver.sent) == names | saves | samples | {"small"}
        assert all(receiver.sent[name] == 1 for name in names | saves)
        assert all(receiver.sent[name] == 2 for name in samples)
        assert "langfuse has the whole run" in log(spec)

        traces = {span["traceId"] for span in receiver.spans.values()}
        [root] = receiver.named("small")
        assert len(traces) == 1
        assert {span.get("parentSpanId") for span in receiver.spans.values()} == {None, root["spanId"]}
        about = root["attributes"]
        assert about["langfuse.trace.metadata.state"] == "finished"
        assert json.loads(about["langfuse.trace.output"])["eval_loss"] == report["eval_loss"]
        assert json.loads(about["langfuse.trace.input"])["lora.r"] == 4
        scores = {(s["name"], s["observationId"]): s["value"] for s in receiver.scores.values()}
        [evaluation] = receiver.named("evaluation 8")
        assert scores["eval_loss", evaluation["spanId"]] == metrics(spec)[-1]["eval_loss"]
        loss = json.loads(receiver.named("step 2")[0]["attributes"]["langfuse.observation.output"])["loss"]
        assert loss == next(row["loss"] for row in metrics(spec) if row["step"] == 2)

        answers = [json.loads(line) for line in (run_root(spec) / "samples.jsonl").read_text().splitlines()]
        first, second = receiver.named("sample 8")
        generation = first["attributes"]
        assert generation["langfuse.observation.type"] == "generation"
        assert generation["langfuse.observation.input"] == "Who?"
        assert generation["langfuse.observation.output"] == answers[-2]["text"]
        assert generation["langfuse.observation.metadata.reference"] == "Nobody"
        assert json.loads(generation["langfuse.observation.usage_details"]) == {"output": answers[-2]["tokens"]}
        assert scores["exact_match", first["spanId"]] == 0
        assert scores["ended", second["spanId"]] == answers[-1]["ended"]
        assert ("exact_match", second["spanId"]) not in scores
        assert CANARY not in json.dumps([span["attributes"] for span in receiver.spans.values()])

        requests = receiver.sent.total()
        run_here(spec)
        assert receiver.sent.total() == requests
    written = "".join(path.read_text(errors="replace") for path in run_root(spec).rglob("*") if path.is_file())
    assert SECRET not in written and PUBLIC not in written


def test_what_is_left_is_sent_by_a_command(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """The server refuses, or answers with a page, until somebody has mended it."""
    spec = small_spec(tmp_path, tiny, tracking__langfuse=True, train__max_steps=2, eval_rows=0)
    command = f"track sync {run_root(spec)}"
    with langfuse() as receiver:
        told(receiver, monkeypatch)
        receiver.mood = "refused"
        run_here(spec)
        assert "answered 401" in log(spec)
        receiver.mood = "garbage"
        failed = cli(command)
        assert failed.code == 69 and "no JSON" in failed.err
        receiver.mood = "well"
        assert cli(command).code == 0
        assert cli(command).code == 0
        assert {"step 1", "step 2"} <= set(receiver.sent)
        assert [receiver.sent[f"step {n}"] for n in (1, 2)] == [1, 1]


def test_a_tracker_that_is_switched_on_after_the_end(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run's own command sends everything, or says which one does; what was trained stays as it was."""
    spec = small_spec(tmp_path, tiny, train__max_steps=2, eval_rows=0)
    run_here(spec)
    refused = cli(f"track sync {run_root(spec)}")
    assert refused.code == 78 and "tracking.mlflow=true" in refused.err
    before = load_run_spec(run_root(spec) / "run.yaml", env={}).spec
    spec = small_spec(tmp_path, tiny, tracking__langfuse=True, train__max_steps=2, eval_rows=0)
    with langfuse() as receiver:
        told(receiver, monkeypatch)
        receiver.mood = "error"
        run_here(spec)
        said = capfd.readouterr().err
        [command] = re.findall(r"`rankzero (track sync [^`]*)` sends the rest", said)
        assert "answered 500" in said
        receiver.mood = "well"
        assert cli(command).code == 0
        assert {"step 1": 1, "step 2": 1}.items() <= receiver.sent.items()
        [root] = receiver.named("small")
        assert root["attributes"]["langfuse.trace.metadata.state"] == "finished"
    after = load_run_spec(run_root(spec) / "run.yaml", env={}).spec
    assert after.tracking.langfuse and after.model_copy(update={"tracking": before.tracking}) == before


def test_an_evaluation_that_follows_its_step_is_an_observation_of_its_own(tmp_path: Path) -> None:
    """A stop cuts it short, and it comes alone when the run continues: what was measured of the step stays. What is
    sent again is written over."""
    step = {"step": 4, "time": 1.0, "loss": 2.0, "learning_rate": 1e-4}
    later = {"step": 4, "time": 1.0, "eval_loss": 1.5}
    with langfuse() as receiver:
        trace = LangfuseTrace(receiver.url, (PUBLIC, SECRET))
        trace.begin(RunFacts("r", RunDir(tmp_path), {}), "key", "ab" * 16)
        for row in (step, later, later, step):
            trace.send("metrics", [row])
        outputs = {
            span["name"]: json.loads(span["attributes"]["langfuse.observation.output"])
            for span in receiver.spans.values()
        }
        assert outputs == {"step 4": {"loss": 2.0, "learning_rate": 1e-4}, "evaluation 4": {"eval_loss": 1.5}}
        assert len(receiver.spans) == 2
        [score] = receiver.scores.values()
        assert score["observationId"] == receiver.named("evaluation 4")[0]["spanId"]


def test_what_is_missing_is_said_before_the_run() -> None:
    assert {problem.what for problem in problems({"LANGFUSE_HOST": "http://x"})} == {
        "LANGFUSE_PUBLIC_KEY is not set",
        "LANGFUSE_SECRET_KEY is not set",
    }
    assert problems({"LANGFUSE_HOST": "h", "LANGFUSE_PUBLIC_KEY": "p", "LANGFUSE_SECRET_KEY": "s"}) == []
