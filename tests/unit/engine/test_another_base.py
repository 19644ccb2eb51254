"""An adapter whose base was written anew since: nothing is made of the two, and who asks them is told."""

from __future__ import annotations

import io
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import rankzero
from rankzero.api.exports import export
from rankzero.api.results import merge
from rankzero.api.serving import plan_serving
from rankzero.data.cache.tokenize import tokenizer_fingerprint
from rankzero.errors import ConfigError, UsageError
from rankzero.model.source import weights_fingerprint
from rankzero.run_dir.atomic import commit_directory
from tests.support.adapters import tiny_adapter
from tests.support.cli import Cli
from tests.support.runs import run_here
from tests.support.tasks import task_spec
from tests.support.tiny import CHATML, chat_rows, tiny_model, tiny_tokenizer, write_jsonl

OTHERS = "these are not the weights that the run was trained on"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a result and a checkpoint, and the base beside it that they were trained on."""
    base, run = tiny_model(tmp_path / "base", seed=0), tmp_path / "run"
    adapter = tiny_adapter(base, tmp_path / "checkpoint" / "model")
    shutil.copytree(adapter, tmp_path / "final")
    template = tmp_path / "chat.jinja"
    template.write_text(CHATML)
    data = {"train": "t", "chat_template": str(template)}
    spec = {"name": "run", "model": {"name": str(base), "dtype": "float32"}, "data": data, "lora": {"r": 4}}
    (run / "checkpoints").mkdir(parents=True)
    commit_directory(tmp_path / "final", run / "final", about(run, spec))
    commit_directory(tmp_path / "checkpoint", run / "checkpoints" / "step-1", {**about(run, spec), "step": 1})
    (run / "run.yaml").write_text(json.dumps(spec))
    (run / "environment.json").write_text("{}")
    return run


def about(run: Path, spec: dict[str, Any]) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(run.parent / "base")
    tokenizer.chat_template = CHATML
    made_of = {"model": weights_fingerprint(run.parent / "base"), "tokenizer": tokenizer_fingerprint(tokenizer)}
    return {"spec": spec, **made_of}


def write_base_anew(run: Path) -> None:
    shutil.rmtree(run.parent / "base")
    tiny_model(run.parent / "base", seed=1)


def forget(run: Path, **known: Any) -> None:
    """As results of before, which did not say it; `known`: what they say all the same."""
    for place in (run / "final", run / "checkpoints" / "step-1"):
        value = json.loads((place / "manifest.json").read_text())
        staged = place.rename(run.parent / "staged")
        (staged / "manifest.json").unlink()
        commit_directory(staged, place, {"spec": value["spec"], **known})


PLACES = ("", "final", "checkpoints/step-1/model")


@pytest.mark.parametrize("place", PLACES)
def test_who_asks_it_is_told(run: Path, place: str, caplog: pytest.LogCaptureFixture) -> None:
    def said(**more: Any) -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert rankzero.generate(str(run / place), ["Ping"], max_new_tokens=2, **more)
        return caplog.text

    more = {} if place.startswith("checkpoints") else {"base": True}
    assert OTHERS not in said() and OTHERS not in said(**more)
    write_base_anew(run)
    assert f"{OTHERS}: what it learnt is about others; bring those back" in said() and OTHERS in said(**more)
    forget(run)
    assert OTHERS not in said()


OTHER_TOKENS = "this is not the tokenizer, or not the chat template, that the checkpoint was trained with"


def change_template(run: Path) -> None:
    (run.parent / "chat.jinja").write_text("{# otherwise #}" + CHATML)


def change_tokenizer(run: Path) -> None:
    tiny_tokenizer(eos="<|im_start|>").save_pretrained(run.parent / "base")


@pytest.mark.parametrize("change", [change_template, change_tokenizer])
def test_a_checkpoint_has_the_tokenizer_that_is_there_now(
    run: Path, tmp_path: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It has none of its own. The result has, whatever becomes of the run's."""
    target = run / "checkpoints/step-1/model"
    assert rankzero.generate(str(target), ["Ping"], max_new_tokens=2)
    merge(str(target), tmp_path / "as-it-was")
    assert OTHER_TOKENS not in caplog.text
    change(run)
    merge(str(run), tmp_path / "result")
    with pytest.raises(ConfigError, match=OTHER_TOKENS) as refused:
        merge(str(target), tmp_path / "merged")
    assert "model.tokenizer_dir" in refused.value.problems[0].hint and "--model" in refused.value.problems[0].hint
    assert OTHER_TOKENS not in caplog.text and not (tmp_path / "merged").exists()
    assert rankzero.generate(str(target), ["Ping"], max_new_tokens=2)
    assert caplog.text.count(OTHER_TOKENS) == 1
    merge(str(target), tmp_path / "merged", model=str(tmp_path / "base"))
    assert caplog.text.count(OTHER_TOKENS) == 2, "somebody named the base"
    forget(run)
    merge(str(target), tmp_path / "unknown")
    assert caplog.text.count(OTHER_TOKENS) == 2, "a checkpoint that does not say it"


def test_a_template_that_is_gone_is_the_results(run: Path, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").unlink()
    merge(str(run / "checkpoints/step-1/model"), tmp_path / "merged")
    assert (tmp_path / "merged/chat_template.jinja").read_text() == CHATML


def test_an_adapter_alone_is_told_of_by_its_manifest(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = shutil.copytree(run / "final", run.parent / "alone")
    write_base_anew(run)
    rankzero.generate(str(alone), ["Ping"], max_new_tokens=2)
    assert OTHERS in caplog.text


def test_nothing_is_made_of_it(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", chat_rows(2))
    write_base_anew(run)
    for place in PLACES:
        with pytest.raises(ConfigError, match=OTHERS) as refused:
            merge(str(run / place), tmp_path / "merged")
        (problem,) = refused.value.problems
        assert problem.where == str(tmp_path / "base") and "(--model)" in problem.hint
    with pytest.raises(ConfigError, match=OTHERS):
        export(run, tmp_path / "exported")
    with pytest.raises(ConfigError, match=OTHERS):
        rankzero.evaluate(str(run), rows, max_new_tokens=2)
    assert not any((tmp_path / name).exists() for name in ("merged", "exported")) and not (run / "eval.json").exists()
    assert OTHERS not in caplog.text
    merge(str(run), tmp_path / "merged", model=str(tmp_path / "base"))
    assert OTHERS in caplog.text, "somebody named it"
    forget(run)
    rankzero.evaluate(str(run), rows, max_new_tokens=2)
    kept = json.loads((run / "eval.json").read_text())["base_model"]
    assert kept["model"] == weights_fingerprint(tmp_path / "base"), "which was asked"


def test_what_is_served_has_a_place_for_each_base(run: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter that does not say what it was trained on may be merged with any; one that does, with that alone."""
    monkeypatch.setattr("rankzero.launch.serving.choose_engine", lambda _engine: "vllm")
    first = plan_serving(str(run)).server.model
    write_base_anew(run)
    assert plan_serving(str(run)).server.model == first
    forget(run)
    second = plan_serving(str(run)).server.model
    assert second != first and plan_serving(str(run)).server.model == second
    (run.parent / "base" / "model.safetensors").write_bytes(b"another")
    assert plan_serving(str(run)).server.model != second


@pytest.fixture
def moved(run: Path, tmp_path: Path) -> Path:
    """Where the base lies now."""
    return (tmp_path / "base").rename(tmp_path / "mount")


@pytest.mark.parametrize("place", PLACES)
def test_a_base_that_has_moved_is_named(
    run: Path, moved: Path, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, target = write_jsonl(tmp_path / "rows.jsonl", chat_rows(2)), str(run / place)
    for use in (
        lambda: rankzero.generate(target, ["Ping"], max_new_tokens=2),
        lambda: rankzero.chat(target),
        lambda: rankzero.evaluate(target, rows, max_new_tokens=2),
        lambda: plan_serving(target),
        lambda: merge(target, tmp_path / "merged"),
        lambda: export(target, tmp_path / "exported"),
    ):
        with pytest.raises(ConfigError, match="the base is not here any more") as refused:
            use()
        (problem,) = refused.value.problems
        assert str(tmp_path / "base") in problem.what and "--model" in problem.hint and problem.where.startswith(target)
    assert rankzero.generate(target, ["Ping"], max_new_tokens=2, model=str(moved))
    short = rankzero.Sampling(max_new_tokens=2)
    assert rankzero.chat(target, short, compare=not place.startswith("checkpoints"), model=str(moved)).ask("Ping")
    assert rankzero.evaluate(target, rows, max_new_tokens=2, model=str(moved)).sets
    assert (run / "eval.json").exists() == (not place.startswith("checkpoints"))
    assert OTHERS not in caplog.text


def test_commands_take_the_base_from_where_it_is_now(
    run: Path, moved: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "rows.jsonl", chat_rows(2))
    monkeypatch.setattr("sys.stdin", io.StringIO("Ping\n"))
    for command in (
        f'generate {run} "Ping" --max-new-tokens 2',
        f"chat {run} --max-new-tokens 2",
        f"eval {run} --data {tmp_path}/rows.jsonl --max-new-tokens 2",
        f"serve {run} --print --engine transformers",
    ):
        refused = cli(command)
        assert refused.code == 78 and "say where it is now: --model" in refused.err, refused.err
        done = cli(f"{command} --model {moved}")
        assert done.code == 0 and OTHERS not in done.err, done.err
    assert f"rankzero merge {run} -o " in done.out and f" --model {moved}\n" in done.out


def test_another_base_that_is_named_is_taken_and_said(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by merge; what comes of it is not kept as the run's."""
    rows, other = write_jsonl(tmp_path / "rows.jsonl", chat_rows(2)), str(tiny_model(tmp_path / "other", seed=1))
    rankzero.evaluate(str(run), rows, max_new_tokens=2)
    kept = (run / "eval.json").read_text()
    assert OTHERS not in caplog.text
    rankzero.generate(str(run), ["Ping"], max_new_tokens=2, model=other)
    assert caplog.text.count(OTHERS) == 1
    rankzero.evaluate(str(run), rows, max_new_tokens=2, model=other)
    assert caplog.text.count(OTHERS) == 2 and "does not keep what was measured" in caplog.text
    assert (run / "eval.json").read_text() == kept


def test_a_served_merge_is_of_the_base_that_was_named(
    run: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankzero.launch.serving.choose_engine", lambda _engine: "vllm")
    own = plan_serving(str(run)).server.model
    same = shutil.copytree(tmp_path / "base", tmp_path / "mount")
    assert plan_serving(str(run), model=str(same)).server.model == own
    other = tiny_model(tmp_path / "other", seed=1)
    places = [plan_serving(str(run), model=name).server.model for name in (str(other), "org/base")]
    assert len({own, *places}) == 3


def test_a_file_that_is_named_as_the_base_is_served_as_that_file(
    run: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is called from where: a relative path is another file elsewhere, and may be written anew."""
    monkeypatch.setattr("rankzero.launch.serving.choose_engine", lambda _engine: "vllm")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "base.gguf").write_bytes(b"GGUF")

    def place(directory: str, name: str = "base.gguf") -> Path:
        monkeypatch.chdir(tmp_path / directory)
        return plan_serving(str(run), model=name).server.model

    first = place("a")
    assert first == place("b", str(tmp_path / "a" / "base.gguf")) != place("b")
    (tmp_path / "a" / "base.gguf").write_bytes(b"GGUF, another")
    assert place("a") != first


@pytest.mark.parametrize("says", ["nothing", "with code that is not here"])
def test_a_base_that_nobody_can_tell_from_another_is_not_the_run_s(
    run: Path, says: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("rankzero.launch.serving.choose_engine", lambda _engine: "vllm")
    told = {"spec": {"model": {"name": "base", "trust_remote_code": True}}, "model": "code:of-both"}
    forget(run, **({} if says == "nothing" else told))
    own = plan_serving(str(run)).server.model
    other = str(tiny_model(tmp_path / "other", seed=1))
    assert plan_serving(str(run), model=other).server.model != own
    rows = write_jsonl(tmp_path / "rows.jsonl", chat_rows(2))
    rankzero.evaluate(str(run), rows, max_new_tokens=2, model=other)
    assert "is not known to be the one that was trained on" in caplog.text and OTHERS not in caplog.text
    assert not (run / "eval.json").exists()


def test_a_whole_model_has_no_base_to_name(run: Path, tmp_path: Path) -> None:
    for target in (str(tmp_path / "base"), "org/model"):
        with pytest.raises(UsageError, match="needs no base"):
            rankzero.generate(target, ["Ping"], model="elsewhere")
        with pytest.raises(UsageError, match="needs no base"):
            rankzero.evaluate(target, write_jsonl(tmp_path / "rows.jsonl", chat_rows(2)), model="elsewhere")


def test_a_classifier_takes_its_base_from_where_it_is_now(tmp_path: Path, cli: Cli) -> None:
    spec = task_spec("classify", tmp_path, lora={"r": 2, "target_modules": "all-linear"}, train__max_steps=1)
    run_here(spec)
    command = f'predict {tmp_path}/runs/small --text "dull" --json'
    before = cli(command)
    moved = (tmp_path / "model").rename(tmp_path / "mount")
    refused = cli(command)
    assert refused.code == 78 and "say where it is now: --model" in refused.err, refused.err
    done = cli(f"{command} --model {moved}")
    assert (done.code, done.out) == (0, before.out) and OTHERS not in done.err, done.err
    whole = cli(f"predict {moved} --text dull --model {moved}")
    assert whole.code == 2 and "this is a whole model" in whole.err
