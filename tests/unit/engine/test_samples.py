"""Prompts of a run are answered while it trains, and the run does not notice."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.data.prompts import Prompt
from rankzero.data.rows.conversation import Message
from rankzero.engine import samples as engine_samples
from rankzero.engine.checkpoint import Position
from rankzero.engine.hooks import Hooks
from rankzero.engine.samples import Samples
from rankzero.engine.worker import open_metrics
from rankzero.errors import ConfigError, DataError, ExitCode, StoppedError
from rankzero.model.generate import Reply, answer, load_speaker
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.result import find_result
from rankzero.spec.load import read_run_spec
from rankzero.spec.run_spec import EvalSpec, RunSpec
from tests.support.runs import log, run_here, run_root, small_spec, stop_in
from tests.support.tiny import write_jsonl
from tests.unit.engine.test_resume import assert_same_state, final_state

PROMPTS = ["What is the capital of Peru?", "Name a prime number.", "Hello"]
CLOCKS = ("time", "seconds")
FEW_PASSES: dict[str, Any] = {"train__micro_batch_tokens": 256}
"""Two or so for a step."""


def asked(root: Path, tiny: Path, **changes: Any) -> RunSpec:
    """Evaluations, and so answers, after steps 4, 8 and 12."""
    return small_spec(root, tiny, eval__prompts=PROMPTS, eval__max_new_tokens=6, **{**FEW_PASSES, **changes})


def samples(spec: RunSpec) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_root(spec) / "samples.jsonl").read_text().splitlines()]


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in CLOCKS} for row in rows]


@pytest.fixture(scope="module")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("whole")
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        spec = asked(root, tiny, tracking__tensorboard=True)
        run_here(spec, log_level="INFO")
    return spec


def test_each_prompt_is_answered_before_at_each_evaluation_and_at_the_end(whole: RunSpec) -> None:
    rows = samples(whole)
    assert [(row["step"], row["prompt"]) for row in rows] == [(step, p) for step in (0, 4, 8, 12) for p in PROMPTS]
    assert all(0 < row["tokens"] <= 6 and (row["ended"] or row["tokens"] == 6) for row in rows)
    speaker = load_speaker(find_result(str(run_root(whole)), "writes"), torch.float32, torch.device("cpu"))
    final = json.loads((run_root(whole) / "report.json").read_text())["final_step"]
    kept = [row["text"] for row in rows if row["step"] == final]
    assert kept == [answer(speaker, [prompt], max_new_tokens=6)[0] for prompt in PROMPTS]
    assert "[SAMPLE] step 12: 'Hello' -> " in log(whole)
    page = (run_root(whole) / "report.html").read_text()
    assert "What is the capital of Peru?" in page


def test_the_run_does_not_notice(whole: RunSpec, tiny: Path, tmp_path: Path) -> None:
    plain = small_spec(tmp_path, tiny, **FEW_PASSES)
    run_here(plain)
    assert_same_state(final_state(whole), final_state(plain))


def test_tensorboard_has_them_as_text(whole: RunSpec) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_root(whole) / "events"))
    events.Reload()
    found = events.Tensors("samples")
    assert [event.step for event in found] == [0, 4, 8, 12]
    assert b"    What is the capital of Peru?" in found[0].tensor_proto.string_val[0]
    assert events.PluginTagToContent("text").keys() == {"samples"}


def test_tensorboard_keeps_the_step_whose_answers_were_cut_short(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    spec = asked(tmp_path, tiny, tracking__tensorboard=True, train__max_steps=8)
    reply = engine_samples.reply

    def stopping(*arguments: Any, **options: Any) -> Any:
        if step["now"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return reply(*arguments, **options)

    step = {"now": 0}
    with monkeypatch.context() as patch:
        patch.setattr(engine_samples, "reply", stopping)
        with pytest.raises(StoppedError, match="saved at step 4"):
            run_here(spec, hooks=Hooks(step_begins=lambda begun: step.update(now=begun)))
    run_here(spec)
    events = EventAccumulator(str(run_root(spec) / "events"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 9))
    assert [event.step for event in events.Scalars("eval/eval_loss")] == [4, 8]
    assert [event.step for event in events.Tensors("samples")] == [0, 4, 8]


@pytest.mark.parametrize("step", [4, 6])
def test_stopped_and_resumed_it_answers_once(step: int, whole: RunSpec, tiny: Path, tmp_path: Path) -> None:
    spec = asked(tmp_path, tiny)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(step))
    run_here(spec)
    assert without_clock(samples(spec)) == without_clock(samples(whole))
    assert_same_state(final_state(spec), final_state(whole))


@pytest.mark.parametrize("at", [0, 4, 12])
def test_a_stop_between_tokens_is_answered_and_nothing_of_the_step_is_kept(
    at: int, whole: RunSpec, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankzero.engine import samples as module

    computed: list[int] = []
    reply = module.reply

    def stopping(*arguments: Any, cut_short: Any, **options: Any) -> Any:
        def asked_with_each_token() -> bool:
            if step["now"] == at:
                computed.append(1)
                if len(computed) == 8:  # in the second answer
                    os.kill(os.getpid(), signal.SIGTERM)
            return bool(cut_short())

        return reply(*arguments, cut_short=asked_with_each_token, **options)

    step = {"now": 0}
    hooks = Hooks(step_begins=lambda begun: step.update(now=begun))
    monkeypatch.setattr(module, "reply", stopping)
    spec = asked(tmp_path, tiny)
    with pytest.raises(StoppedError) as stopped:
        run_here(spec, hooks=hooks)
    assert stopped.value.exit_code == ExitCode.STOPPED
    assert len(computed) <= 9
    monkeypatch.undo()
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path / "cache"))
    assert at not in {row["step"] for row in (samples(spec) if at else [])}
    run_here(spec)
    assert without_clock(samples(spec)) == without_clock(samples(whole))
    assert_same_state(final_state(spec), final_state(whole))


def test_rows_of_a_file_are_compared_with_their_answers(tiny: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "World"}]},
        {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]},
        {"prompt": "The quick brown", "completion": " fox<|im_end|>"},
    ]
    path = write_jsonl(tmp_path / "prompts.jsonl", rows)
    spec = small_spec(
        tmp_path, tiny, eval_rows=0, eval__prompts=str(path), eval__max_new_tokens=3, train__max_steps=1, lora__r=2
    )
    run_here(spec, log_level="INFO")
    found = samples(spec)
    assert [row["prompt"] for row in found if row["step"] == 1] == [
        "Hello",
        "system: Be short.\nuser: Hi",
        "The quick brown",
    ]
    assert [row.get("reference") for row in found[:3]] == ["World", None, "fox"]
    assert [row.get("exact_match") for row in found[:3]] == [False, None, False]
    assert "0 of 2 answers are those of their rows" in log(spec)


def test_reasoning_is_not_compared_with_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are without theirs; what is kept is all that was written."""
    text = "<think>\nHm.\n</think>\n\nWorld"
    monkeypatch.setattr(engine_samples, "reply", lambda *_asked, **_how: Reply(text, 9, ended=True))
    prompt = Prompt((Message("user", "Hello"),), reference="World")
    unused: Any = None
    one = Samples((prompt,), unused, (), EvalSpec(), unused, unused, unused, torch.device("cpu"), nullcontext)
    row = one._answered(1, 0, lambda: False, together=False)
    assert row is not None and (row["text"], row["exact_match"]) == (text, True)


def test_a_prompt_that_cannot_be_answered_is_refused_before_anything_is_loaded(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"eval.prompts\[1\]: \d+ tokens and an answer of 6, and the model takes 512"):
        run_here(small_spec(tmp_path, tiny, eval__prompts=["Hi", "very " * 600], eval__max_new_tokens=6))
    picture = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "<image>Which?", "image": "cat.png"}])
    with pytest.raises(DataError, match="no such image"):
        run_here(small_spec(tmp_path, tiny, eval__prompts=str(picture)))
    (tmp_path / "cat.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="sees no images"):
        run_here(small_spec(tmp_path, tiny, eval__prompts=str(picture)))
    many = tmp_path / "many.txt"
    many.write_text("".join(f"question {i}\n" for i in range(300)))
    with pytest.raises(DataError, match=r"more than 200 prompts(.|\n)*many.txt#20"):
        run_here(small_spec(tmp_path, tiny, eval__prompts=str(many)))
    assert not (tmp_path / "runs").exists()


def test_a_prompt_in_place_of_a_file_is_told_how_a_list_is_written(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "t.txt").write_text("a text\n")
    (tmp_path / "run.yaml").write_text(
        f"model: {{name: {tmp_path}}}\ndata: {{train: t.txt}}\neval: {{prompts: Is it?}}\n"
    )
    done = cli(f"train {tmp_path}/run.yaml")
    assert "run.yaml:3 eval.prompts: " in done.err and "Is it?: no file matches the pattern" in done.err
    assert "a list of one prompt is written [Is it?]" in done.err


def test_a_classifier_answers_none(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("task: classify\nmodel: {name: m}\ndata: {train: t}\neval: {prompts: [Hi]}\n")
    reading = read_run_spec(tmp_path / "run.yaml", env={})
    assert [problem.what for problem in reading.problems] == ["a model that puts texts into classes writes none"]


def test_a_run_that_begins_again_keeps_no_line_of_the_one_before(tmp_path: Path) -> None:
    """Of one that was killed before its first checkpoint, with what it evaluated and answered before its first step."""
    run_dir = RunDir(tmp_path)
    for path in (run_dir.metrics, run_dir.samples, run_dir.saves):
        path.write_text('{"step": 0}\n')
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t"}, "tracking": {"tensorboard": False}})
    with ExitStack() as stack:
        log = open_metrics(run_dir, spec, Position(), stack)
        assert not log.has_samples(0)
    assert run_dir.metrics.read_text() == run_dir.samples.read_text() == run_dir.saves.read_text() == ""
