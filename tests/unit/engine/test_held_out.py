"""`rankzero eval`: scores, answers of base and tuned, a judge that is only a stand-in, and what is kept and shown."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

import rankzero
from rankzero.api.evaluation import Evaluation, JudgeSpec, Listener, _why_not_kept
from rankzero.data.prompts import Prompt
from rankzero.data.rows.conversation import Message
from rankzero.engine import held_out
from rankzero.engine.chat import Voice
from rankzero.engine.held_out import Row
from rankzero.engine.judge import KEY_VARIABLE, Graded, Judge, score_in
from rankzero.engine.text_scores import without_reasoning
from rankzero.errors import AccessError, DataError, ServiceError, StorageError, UsageError
from rankzero.model import generate
from rankzero.model.generate import Reply, Speaker
from rankzero.run_dir.atomic import commit_directory, write_json
from rankzero.run_dir.evaluation import measured, of_the_base, of_this_base, together
from rankzero.run_dir.paths import RunDir
from tests.support.adapters import tiny_adapter
from tests.support.cli import Cli
from tests.support.judges import StandIn, judging
from tests.support.pipes import read_pipe
from tests.support.tiny import tiny_gpt2, write_jsonl
from tests.support.unreadable import stale

KEY = "sk-judge-0123456789abcdefghij"


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nLet me see, Lima or Quito?\n</think>\n\nLima",
        "Let me see, Lima or Quito?\n</think>\n\nLima",  # the prompt has opened it
        "Lima",
    ],
)
def test_reasoning_is_no_part_of_what_is_scored(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """References are without theirs. What is kept and shown is all that was written."""
    prompt = Prompt((Message("user", "The capital of Peru?"),), reference="Lima")
    asked: list[str] = []
    judge = cast(Judge, SimpleNamespace(grade=lambda _question, said, _wanted: asked.append(said) or Graded(7, "")))
    monkeypatch.setattr(
        held_out, "_answers", lambda _speaker, _prompts, _longest, more: more({0: Reply(text, 9, ended=True)})
    )
    voice = Voice("", cast(Speaker, None))
    [row] = held_out.graded(held_out.ask_all([voice], [prompt], max_new_tokens=9), judge)
    written = row.to_json()["tuned"]
    assert (written["text"], written["exact_match"], written["token_f1"]) == (text, True, 1.0)
    scores = held_out.summed_up([row])["tuned"]
    assert (scores["exact_match"], scores["token_f1"], asked) == (1.0, 1.0, ["Lima"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<think>\nstill at it: Lima", ""),
        ("It ends with <think> and </think>.", "It ends with <think> and </think>."),
        ("<think></think>\n<think>\nhm\n</think>\n\nLima", "Lima"),
    ],
)
def test_what_is_said_behind_reasoning(text: str, said: str) -> None:
    """Nothing, where it was cut off before; and marks that are spoken of are words."""
    assert without_reasoning(text) == said


@pytest.mark.parametrize(
    ("words", "score"),
    [
        ('{"score": 7, "reason": "1 of 2 facts"}', 7.0),
        ('```json\n{"score": "8.5"}\n```', 8.5),
        ("8/10", 8.0),
        ("Score: 8.5", 8.5),
        ("Right, but long.\n**Score:** 8/10.", 8.0),
        ("Score: 8/10\nFinal score: 3", None),
        ("9 out of 10", 9.0),
        ("{'score': 7}", 7.0),
        ('{"score": 8, "reason": "it says "yes", which', 8.0),
        ('{"score": 1e1}', 10.0),
        ('{"score": 0.8e1, "score": 1}', 1.0),
        ("between 3 and 5", None),
        ('{"score": 11}', None),
        ('{"score": -1}', None),
        ("I cannot grade this", None),
        ('<think>\nMaybe {"score": 3}, as 1 of 2.\n</think>\n\n{"score": 9, "reason": "right"}', 9.0),
        ('It is to be {"score": 0 to 10}: a 3?\n</think>\n{"score": "8/10"}', 8.0),
        ('<think>\n{"score": 3} or', None),
        ('First {"score": 3, "reason": "short"}. No: {"score": 7, "reason": "it has {all}"} I think.', 7.0),
        ('{"score": 7, "parts": [{"score": 3}]}', 7.0),
        ("7 of 7 facts", None),
        ('{"score": 4} said twice {"score": 4', 4.0),
        ('{"score": 4, "or {"score": 5', None),
        ('{"score": 1', None),
        ('{"score": null, "reason": "there are 2 answers"}', None),
        ('{"score": {"value": 9}}', None),
        ('{"score": true}', None),
        ('{"score": NaN}', None),
        ('{"score": "4/5"}', None),
        ('{"score": 4/5}', None),
        ('{"score": "3 out of 5"}', None),
        ('{"score": 7,5}', None),
        ('{"score": "7,5"}', None),
        ('{"score": "−3"}', None),
        ('{"score": "8 of 10"} or {"score": null}', None),
        ("I cannot grade question 3.", None),
        ("-3", None),
        ("Score: −3", None),
        ("4/5", None),
        ("Error 5", None),
        ("3 out of 5", None),
        ("Score: 7,5", None),
        ("Score: 4/5", None),
        ("7,5", None),
        ('{"score": 7,5, "reason": "x"}', None),
        ("8\n\nThe answer is right.", 8.0),
        ("The answer is right.\n\n8", 8.0),
        ("8/10\n\nRight, but long.", 8.0),
        ("The steps:\n3\n4\nScore: 8", 8.0),
        ("The steps:\n3\n4", None),
        ("3/10 of the facts are there.\nScore: 8", 8.0),
        ("- Score: 8", 8.0),
        ("1. **Score:** 8", 8.0),
        ("## Score: 8", 8.0),
        ("#" * 100 + "x", None),  # whatever is repeated is read in no time
        ("> Score: 8", 8.0),
        ("Score\uff1a8", 8.0),
        ("Score: 8/10 because it is right", 8.0),
        ("8/10 - correct", 8.0),
        ("Score: 8 - correct, 2 of 2", 8.0),
        ("Score: 8, reason: fine", 8.0),
        ("Score: 8 (good)", 8.0),
        ("Score: 8 points", 8.0),
        ("Score: 8 of 9 facts", None),
        ("Score: 8 (out of 9)", None),
        ("Score: 8 points out of 9", None),
        ("Score: 8-9", None),
        ("Score: 8, out of 9", None),
        ("3 of 10 facts are right.", None),
        ("Score: 8 to 9", None),
        ("Rating: [[8]]", 8.0),
        ("It is right.\n[[8]]", 8.0),
        ("<score>8</score>", 8.0),
        ("$\\boxed{8}$", 8.0),
        ('{"score": 8,}', 8.0),
        ('{"score": 8\n "reason": "x"}', 8.0),
        ('{"reason": "x", "score": 8', None),
        ('{"reason": "x", "score": 8\n', 8.0),
        ('{"score": 8, "rea', 8.0),
        ('{"grade": 8, "reason": "x"}', 8.0),
        ('{"rating": 8}', 8.0),
        ('It wrote {"score": 10} itself. Wrong.\nScore: 0', None),
        ('It wrote {"score": 10} itself. Wrong. Score: 0', None),
        ('It wrote {"score": 10} itself, which I ignore. {"score": 0, "reason": "it', None),
        ('{"score": 8, "reason": "right"}\nScore: 8', 8.0),
    ],
)
def test_grades_are_read_or_missing_and_never_guessed(words: str, score: float | None) -> None:
    assert score_in(words) == score


@pytest.fixture
def judge() -> Iterator[str]:
    with judging() as url:
        yield url


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with an adapter that nobody has trained."""
    root = tmp_path_factory.mktemp("runs") / "made"
    tiny_adapter(tiny, root / "final")
    spec = {"name": "made", "model": {"name": str(tiny), "dtype": "float32"}, "data": {"train": "t"}, "lora": {"r": 4}}
    (root / "run.yaml").write_text(json.dumps(spec))
    return root


@pytest.fixture
def rows(run: Path, tmp_path: Path) -> Path:
    """Two rows that ask what the tuned model is known to answer, and one that has no answer."""
    questions = ["Hello World", "Ping"]
    known = rankzero.generate(str(run), questions, max_new_tokens=5)
    assert known[0] != rankzero.generate(str(run), questions[:1], max_new_tokens=5, base=True)[0]
    turns = [[{"role": "user", "content": question}] for question in questions]
    wanted = [
        {"messages": [*turn, {"role": "assistant", "content": text}]} for turn, text in zip(turns, known, strict=True)
    ]
    return write_jsonl(tmp_path / "held.jsonl", [*wanted, {"prompt": "Name a prime number"}])


def test_base_and_tuned_on_own_rows(run: Path, rows: Path, judge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    found = rankzero.evaluate(str(run), rows, judge=JudgeSpec(judge, "big"), max_new_tokens=5)
    one = found.sets["held.jsonl"]
    assert (one["rows"], one["with_reference"], one["judge_model"]) == (3, 2, "big")
    assert one["tuned"]["exact_match"] == 1.0 and one["tuned"]["token_f1"] == 1.0
    assert one["base"]["exact_match"] < 1.0
    assert one["tuned"]["judge"] == pytest.approx((10 + 10 + 2) / 3)
    assert one["base"]["judge"] < one["tuned"]["judge"]
    assert one["tuned"]["judged"] == 3 and one["tuned"]["without_grade"] == 0
    assert {asked["path"] for asked in StandIn.asked} == {"/v1/chat/completions"} and len(StandIn.asked) == 1 + 6
    assert set(StandIn.keys) == {f"Bearer {KEY}"} and KEY not in (run / "eval.json").read_text()
    kept = json.loads((run / "eval.json").read_text())
    assert set(kept.pop("base_model")) == {"model", "tokenizer"} and kept == json.loads(json.dumps(found.to_json()))
    assert found.table[0][:2] == ("held.jsonl (3 rows)", "exact match") and found.table[0][3] == "100.0 %"
    assert "base    tuned" in str(found)
    alone = replace(found, sets={"held.jsonl": {key: value for key, value in one.items() if key != "base"}})
    assert "tuned" in str(alone) and "base" not in str(alone), "no column of what was not asked"
    assert "tuned" in str(found) and found._repr_html_().count("<tr>") == 4


def test_one_file_asked_in_two_ways_is_two_sets(run: Path, tmp_path: Path) -> None:
    [known] = rankzero.generate(str(run), ["Ping"], max_new_tokens=5)
    path = str(write_jsonl(tmp_path / "two_ways.jsonl", [{"q": "Ping", "known": known, "other": "never said"}]))
    data = [{"path": path, "columns": {"question": "q", "answer": name}} for name in ("known", "other")]
    for _ in range(2):  # measured again, each takes its own place
        found = rankzero.evaluate(str(run), data, base=False, max_new_tokens=5)
        sets = json.loads((run / "eval.json").read_text())["sets"]
        for one in (found.sets, {name: sets[name] for name in sets if name.startswith("two_ways")}):
            scores = {name: measured["tuned"]["exact_match"] for name, measured in one.items()}
            assert scores == {"two_ways.jsonl": 1.0, "two_ways.jsonl (2)": 0.0}
    with pytest.raises(rankzero.UsageError, match="only training has epochs"):
        rankzero.evaluate(str(run), {**data[0], "weight": 3})


def test_special_tokens_of_raw_rows_are_no_part_of_what_is_wanted(run: Path, tmp_path: Path, judge: str) -> None:
    """As they are none of what the model says."""
    asked = "<|im_start|>user\nPing<|im_end|>\n<|im_start|>assistant\n"
    [known] = rankzero.generate(str(run), ["Ping"], max_new_tokens=5)
    segments = [{"label": False, "text": asked}, {"label": True, "text": f"{known}<|im_end|>"}]
    rows = write_jsonl(tmp_path / "raw.jsonl", [{"segments": segments}])
    found = rankzero.evaluate(str(run), rows, judge=JudgeSpec(judge, "big"), base=False, max_new_tokens=5)
    scores = found.sets["raw.jsonl"]["tuned"]
    assert (scores["exact_match"], scores["token_f1"], scores["judge"]) == (1.0, 1.0, 10.0)
    assert found.rows["raw.jsonl"][0].to_json()["reference"] == known.strip()


def test_the_command_and_the_page(run: Path, rows: Path, tmp_path: Path, cli: Cli) -> None:
    other = write_jsonl(tmp_path / "other.jsonl", [{"q": "Ping", "a": "Pong"}])
    done = cli(
        f"eval {run} --data {other} --columns question=q,answer=a --max-new-tokens 5 --answers {tmp_path}/a.jsonl"
    )
    assert done.code == 0, done.err
    assert "other.jsonl (1 rows)" in done.out and "exact match" in done.out and "cut off at 5 tokens" in done.err
    [row] = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert row["reference"] == "Pong" and row["where"].endswith("other.jsonl:1") and set(row) >= {"base", "tuned"}
    done = cli(f"eval {run} --data {rows} --no-base --max-new-tokens 5 --json")
    assert (
        set(json.loads(done.out)["sets"]["held.jsonl"]) >= {"tuned"}
        and "base" not in json.loads(done.out)["sets"]["held.jsonl"]
    )
    assert "1 rows have no answer" in done.err
    assert {"held.jsonl", "other.jsonl"} <= set(json.loads((run / "eval.json").read_text())["sets"]), "both are kept"
    page = rankzero.Run(run).report().path.read_text()
    assert "held.jsonl" in page and "exact match" in page


def test_a_table_without_names_of_columns(run: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rows.csv").write_text("Ping is what?,Pong.\nHello,World\n")
    command = f"eval {run} --data {tmp_path}/rows.csv --no-base --max-new-tokens 2 --columns question=column_1"
    done = cli(f"{command},answer=column_2 --json")
    assert done.code == 65 and "looks like a row" in done.err and "--no-header" in done.err
    done = cli(f"{command},answer=column_2 --no-header --json")
    assert done.code == 0 and json.loads(done.out)["sets"]["rows.csv"]["with_reference"] == 2, done.err


def test_sets_of_one_file_name_are_kept_apart(run: Path, rows: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "eval.json").unlink(missing_ok=True)
    english, german = tmp_path / "en" / "held.jsonl", tmp_path / "de" / "held.jsonl"
    for place, lines in ((english, 2), (german, 1)):
        place.parent.mkdir()
        place.write_text("".join(rows.read_text().splitlines(keepends=True)[:lines]))

    def kept(place: Path, **more: Any) -> dict[str, Any]:
        rankzero.evaluate(str(copy), place, max_new_tokens=5, **more)
        sets: dict[str, Any] = json.loads((copy / "eval.json").read_text())["sets"]
        return {name: (one["path"], one["rows"], "base" in one) for name, one in sets.items()}

    first = {"held.jsonl": (str(english), 2, True)}
    assert kept(english) == first
    both = {**first, "held.jsonl (2)": (str(german), 1, True)}
    assert kept(german) == both
    assert kept(german, base=False) == both, "the base was asked the same before"
    with contextlib.chdir(tmp_path):
        assert kept(Path("en/held.jsonl")) == both
    german.write_text(rows.read_text().splitlines(keepends=True)[1])
    assert kept(german, base=False) == {**first, "held.jsonl (2)": (str(german), 1, False)}, "its scores are of others"


KEEPER = """
import sys
from pathlib import Path
from rankzero.api.evaluation import Evaluation, _why_not_kept
from rankzero.run_dir.paths import RunDir

for n in range(30):
    name = f"{sys.argv[2]}{n}.jsonl"
    found = Evaluation({name: {"path": f"/x/{name}", "rows": 1, "tuned": {"exact_match": 1.0}}})
    assert not _why_not_kept(RunDir(Path(sys.argv[1])), found, None, {}, {})
"""


def test_two_commands_keep_what_both_have_measured(tmp_path: Path) -> None:
    commands = [[sys.executable, "-c", KEEPER, str(tmp_path), name] for name in "ab"]
    together_ = [subprocess.Popen(command) for command in commands]
    assert [process.wait() for process in together_] == [0, 0]
    assert len(json.loads((tmp_path / "eval.json").read_text())["sets"]) == 60


def test_scores_that_cannot_be_read_now_are_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir(tmp_path)
    one, other = (Evaluation({name: {"path": f"/x/{name}", "rows": 1, "tuned": {"exact_match": 1.0}}}) for name in "ab")
    assert not _why_not_kept(run_dir, one, None, {}, {})
    with monkeypatch.context() as patch:
        stale(patch, run_dir.evaluation)
        assert "Stale file handle" in _why_not_kept(run_dir, other, None, {}, {})
    with monkeypatch.context() as patch:
        stale(patch, run_dir.final)
        assert "Stale file handle" in _why_not_kept(run_dir, other, None, {}, {}), "nobody knows of which result it is"
    assert json.loads(run_dir.evaluation.read_text())["sets"].keys() == {"a"}


def test_scores_are_not_credited_to_another_result(
    run: Path, rows: Path, judge: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that the run has come to while the one before was measured."""
    place = RunDir(tmp_path / "grows")
    shutil.copytree(run, place.root)
    (place.root / "eval.json").unlink(missing_ok=True)

    def commit() -> None:
        commit_directory(shutil.move(place.final, place.root / "staged"), place.final, {"model": "m", "tokenizer": "t"})

    def go_on(_rows: object) -> None:
        (place.final / "manifest.json").unlink()
        weights = load_file(place.final / "adapter_model.safetensors")
        save_file({name: one + 1 for name, one in weights.items()}, place.final / "adapter_model.safetensors")
        commit()

    commit()
    changed: list[object] = []
    once = Listener(answered=lambda asked: None if changed else (changed.append(asked), go_on(asked))[1])
    found = rankzero.evaluate(str(place.root), rows, judge=JudgeSpec(judge, "big"), max_new_tokens=5, listener=once)
    assert found.sets["held.jsonl"]["tuned"]["exact_match"] == 1.0
    assert caplog.text.count("is another result by now") == 1
    one = json.loads((place.root / "eval.json").read_text())["sets"]["held.jsonl"]
    assert "tuned" not in one and one["base"]["judged"] == 3, "which came later"


def test_scores_of_another_base_are_left_out() -> None:
    sets = {"a": {"base": {"exact_match": 0.1}, "tuned": {"exact_match": 0.5}}, "b": {"tuned": {}}}
    kept = of_this_base(
        {"sets": sets, "base_model": {"model": "1", "tokenizer": "t"}}, {"model": "1", "tokenizer": "t"}
    )
    assert kept["sets"] == sets
    assert of_the_base(kept)["sets"] == {"a": {"base": {"exact_match": 0.1}}}
    other = of_this_base(kept, {"model": "2", "tokenizer": "t"})
    assert other["sets"]["a"] == {"tuned": {"exact_match": 0.5}} and of_the_base(other)["sets"] == {}


@pytest.mark.parametrize("unknown", [{}, {"base_model": None}, {"base_model": {"model": None, "tokenizer": None}}])
def test_scores_of_an_unknown_base_are_not_those_of_another(unknown: dict[str, Any]) -> None:
    """Neither where eval.json does not say it nor where the run does not; what one of them knows stays known."""
    sets = {"a": {"base": {"exact_match": 0.1}, "tuned": {"exact_match": 0.5}}}
    known = {"model": "1", "tokenizer": "t"}
    assert of_this_base({"sets": sets, **unknown}, known) == {"sets": sets, "tasks": {}, "base_model": known}
    assert of_this_base({"sets": sets, "base_model": known}, {})["sets"] == sets
    assert of_this_base(of_this_base({"sets": sets, "base_model": known}, {}), {"model": "2"})["sets"] != sets


def test_scores_of_a_base_that_stopped_elsewhere_are_left_out_or_said(
    tiny: Path, rows: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An older version let the base of a full fine-tune go on where the result stops, and did not say it."""
    place = RunDir(tmp_path / "full")
    shutil.copytree(tiny, place.final)
    write_json(place.final / "generation_config.json", {"eos_token_id": [1, 2]})
    spec = {"name": "full", "model": {"name": str(tiny), "dtype": "float32"}, "data": {"train": "t"}}
    (place.root / "run.yaml").write_text(json.dumps(spec))
    kept = {"sets": {"a": {"path": "/a", "base": {"exact_match": 0.1}, "tuned": {"exact_match": 0.9}}}}
    said = (({}, True, True), ({"stop_ids": [1, 2]}, True, False), ({"stop_ids": [1]}, False, False))
    for of_base, stays, told in said:
        write_json(place.evaluation, {**kept, "base_model": of_base})
        caplog.clear()
        rankzero.evaluate(str(place.root), rows, base=False, max_new_tokens=2)
        found = json.loads(place.evaluation.read_text())
        assert ("base" in found["sets"]["a"]) is stays and found["base_model"]["stop_ids"] == [1, 2]
        assert ("went on where the result stops" in caplog.text) is told


def test_scores_of_the_base_stay_in_a_run_without_checkpoints(run: Path, rows: Path, tmp_path: Path) -> None:
    """As `pull` brings one, with its result alone."""
    pulled = shutil.copytree(run, tmp_path / "pulled")
    base = {"model": "m", "tokenizer": "t"}
    commit_directory(shutil.move(pulled / "final", pulled / "staged"), pulled / "final", base)
    kept = {"sets": {"a": {"path": "/a", "base": {"exact_match": 0.1}, "tuned": {"exact_match": 0.9}}}}
    (pulled / "eval.json").write_text(json.dumps({**kept, "base_model": base}))
    rankzero.evaluate(str(pulled), rows, base=False, max_new_tokens=5)
    found = json.loads((pulled / "eval.json").read_text())
    assert found["sets"]["a"] == kept["sets"]["a"] and found["base_model"] == base


def test_a_set_whose_file_has_moved_is_the_same() -> None:
    old = {"sets": {"a.jsonl": {"path": "/x/a.jsonl", "asked": "1", "base": {"exact_match": 0.5}, "tuned": {}}}}
    moved = {"path": "/y/a.jsonl", "asked": "1", "tuned": {"exact_match": 0.9}}
    found = together(old, {"sets": {"a.jsonl": moved}})["sets"]
    assert found == {"a.jsonl": {**moved, "base": {"exact_match": 0.5}}}
    other = {**moved, "asked": "2"}
    assert set(together(old, {"sets": {"a.jsonl": other}})["sets"]) == {"a.jsonl", "a.jsonl (2)"}


def test_what_an_older_version_kept_is_replaced_and_what_is_damaged_is_left() -> None:
    old = {"sets": {"a": {"rows": 1, "base": {"exact_match": 0.5}}, "b": 3}, "tasks": []}
    new = {"sets": {"a": {"path": "/x/a", "rows": 2}}, "tasks": {}}
    assert together(old, new) == new
    tasks = {"t": {"limit": 5, "base": {"acc": 0.1}, "tuned": {"acc": 0.2}}}
    again = {"t": {"limit": 5, "tuned": {"acc": 0.3}}}
    assert together({"tasks": tasks}, {"tasks": again})["tasks"]["t"] == {**again["t"], "base": {"acc": 0.1}}
    assert together({"tasks": tasks}, {"tasks": {"t": {"limit": 9}}})["tasks"] == {"t": {"limit": 9}}


def test_some_rows_of_a_task_do_not_take_the_place_of_all() -> None:
    full = {"t": {"limit": None, "directory": None, "base": {"acc": 0.1}, "tuned": {"acc": 0.2}}}
    few = {"t": {"limit": 5, "directory": None, "tuned": {"acc": 0.9}}}
    both = together({"tasks": full}, {"tasks": few})
    assert both["tasks"] == {**full, "t (limit 5)": few["t"]}
    assert together(both, {"tasks": few}) == both
    labels = [label for label, *_ in measured(both)]
    assert labels == ["t", "t (limit 5)"] == [label for label, *_ in measured({"tasks": {**full, **both["tasks"]}})]
    assert together({"tasks": few}, {"tasks": full})["tasks"]["t"] == full["t"]
    [row] = Evaluation(tasks={"t": {"tuned": {"acc": 0.9}}}, limit=5).table
    assert row[0] == "t (limit 5)"
    old = {"t": {"tuned": {"acc": 0.2}}}  # which did not say how many
    assert set(together({"tasks": old}, {"tasks": few})["tasks"]) == {"t", "t (limit 5)"}


def _graded(
    model: str, grade: float | None, matched: float, who: tuple[str, ...] = ("base", "tuned")
) -> dict[str, Any]:
    """Scores of a set; without a grade as they are kept before the judge has graded."""
    grades = {} if grade is None else {"judge": grade, "judged": 3, "without_grade": 0}
    about = {} if grade is None else {"judge_model": model, "judge_best": 10}
    scores = {name: {"exact_match": matched, **grades} for name in who}
    return {"path": "/x", "asked": "q", "rows": 3, "max_new_tokens": 256, **about, **scores}


def test_grades_stay_with_the_answers_that_they_are_of() -> None:
    """Scores are kept before a judge is asked, whichever it is; what it then fails at takes nothing along."""

    def kept(before: dict[str, Any], *then: dict[str, Any]) -> Any:
        found: dict[str, Any] = {"sets": {"x": before}}
        for one in then:
            found = together(found, {"sets": {"x": one}})
        return found["sets"]["x"]

    of_a, plain, alone = _graded("A", 3.0, 0.5), _graded("", None, 0.5), _graded("", None, 0.5, ("tuned",))
    assert kept(of_a, plain) == of_a == kept(of_a, alone)
    assert kept(of_a, _graded("", None, 0.9)) == _graded("", None, 0.9), "of other answers"
    assert kept(plain, alone) == plain == kept(plain, alone, plain)
    of_b = _graded("B", 9.0, 0.5, ("tuned",))
    assert kept(of_a, alone, of_b) == {**of_b, "base": plain["base"]}, "another judge's grades are no comparison"
    again = _graded("A", 9.0, 0.5, ("tuned",))
    assert kept(of_a, alone, again) == {**again, "base": of_a["base"]}


def test_some_rows_of_a_task_are_found_again_where_they_stand() -> None:
    full = {"t": {"limit": None, "directory": None, "tuned": {"acc": 0.2}}}
    few = {"t": {"limit": 5, "directory": None, "base": {"acc": 0.1}, "tuned": {"acc": 0.3}}}
    left = of_the_base(together({"tasks": full}, {"tasks": few}))
    assert set(left["tasks"]) == {"t (limit 5)"}
    again = {"limit": 5, "directory": None, "tuned": {"acc": 0.4}}
    both = together(left, {"tasks": {"t": again}})
    assert both["tasks"] == {"t (limit 5)": {**again, "base": {"acc": 0.1}}}
    assert Evaluation(tasks=few, limit=5).to_json()["tasks"] == {"t": {**few["t"]}}


def _call(name: str, city: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": {"city": city}}}


def test_tools_and_calls_are_part_of_what_is_asked_and_graded() -> None:
    def prompt(city: str, tool: str, wanted: str) -> Prompt:
        said = (Message("user", "q"), Message("assistant", "", tool_calls=(_call(tool, city),)), Message("tool", "sun"))
        call = Message("assistant", "", tool_calls=(_call(tool, wanted),))
        return Prompt(said, templated=True, tools=({"name": tool},), call=call)

    def asked(of: Prompt) -> str:
        return str(held_out.about([held_out.Row(of, {}, {})], max_new_tokens=4, judge=None)["asked"])

    prompts = [prompt("Lima", "weather", "Rome"), prompt("Oslo", "weather", "Rome"), prompt("Lima", "forecast", "Rome")]
    prompts.append(prompt("Lima", "weather", "Kyiv"))
    assert len({asked(one) for one in prompts}) == 4
    plain = Prompt((Message("user", "q"),), reference="a")
    assert asked(plain) == hashlib.sha256(repr(("q", "a")).encode()).hexdigest()[:16], "as older versions kept it"
    shown: list[tuple[str, str | None]] = []
    judge = SimpleNamespace(grade=lambda question, _said, wanted: shown.append((question, wanted)) or Graded(7, ""))
    held_out.graded([held_out.Row(prompts[0], {"tuned": Reply("x", 1, ended=True)}, {})], cast(Judge, judge))
    [(question, wanted)] = shown
    assert '"city": "Lima"' in question and '[{"name": "weather"}]' in question and '"city": "Rome"' in str(wanted)


def test_what_is_refused(run: Path, tmp_path: Path, cli: Cli) -> None:
    asked = write_jsonl(tmp_path / "asked.jsonl", [{"prompt": "Ping"}])
    with pytest.raises(DataError, match="no row has an answer"):
        rankzero.evaluate(str(run), asked)
    with pytest.raises(DataError, match=r"bad.jsonl:1"):
        rankzero.evaluate(str(run), write_jsonl(tmp_path / "bad.jsonl", [{"nothing": 1}]))
    with pytest.raises(UsageError, match="nothing to measure with"):
        rankzero.evaluate(str(run))
    assert cli(f"eval {run} --data {asked} --judge http://127.0.0.1:1").code == 2
    assert cli(f"eval {run} --task-dir .").code == 2


def test_a_judge_that_is_busy_is_asked_again_and_one_that_refuses_is_not(judge: str) -> None:
    waited: list[float] = []
    StandIn.statuses = [503, 429]
    with Judge(judge, "big", {}, waited.append) as asked:
        assert asked.grade("q", "a", "a").score == 10.0
    assert waited == [2.0, 4.0] and StandIn.keys[0] is None
    StandIn.statuses = [401]
    with Judge(judge, "big", {KEY_VARIABLE: KEY}, waited.append) as asked, pytest.raises(AccessError) as refused:
        asked.grade("q", "a", None)
    assert KEY not in str(refused.value) and KEY_VARIABLE in str(refused.value)
    StandIn.statuses = [500] * 4
    with Judge(judge, "big", {}, waited.append) as asked, pytest.raises(ServiceError, match="answered 500, 4 times"):
        asked.grade("q", "a", None)
    StandIn.words = "between 3 and 5"
    with Judge(judge, "big", {}, waited.append) as asked:
        assert asked.grade("q", "a", None).score is None


@pytest.mark.parametrize(
    "url", ["http://host:port/v1", "http://[::1/v1", "host/v1", "localhost:8000/v1", "ftp://host/v1", "http:///v1", ""]
)
def test_what_is_no_url_is_not_asked(url: str) -> None:
    with pytest.raises(UsageError, match="this is no URL") as raised:
        Judge(url, "big", {}, pytest.fail)
    assert "https://host/v1" in raised.value.problems[0].hint


@pytest.mark.parametrize("key", ["schlüssel-0123456789", "sk-0123456789\nexport"])
def test_what_is_no_key_is_said_and_not_shown(key: str) -> None:
    with pytest.raises(AccessError, match=KEY_VARIABLE) as raised:
        Judge("http://host/v1", "big", {KEY_VARIABLE: key}, pytest.fail)
    assert "0123456789" not in str(raised.value)


def test_a_judge_that_refuses_everything_is_down(judge: str) -> None:
    """It took the made-up answer before; whether it still does is asked where it refuses several in a row."""
    with Judge(judge, "big", {}, pytest.fail) as asked:
        StandIn.statuses = [400, 413, 200, 400, 422, 400]
        assert [asked.grade("q", "a", "a").refused for _ in range(6)] == [True, True, False, True, True, True]
        assert len(StandIn.asked) == 7 and asked.grade("q", "a", "a").score == 10.0
        StandIn.statuses = [400] * 4
        assert all(asked.grade("q", "a", "a").refused for _ in range(2))
        with pytest.raises(ServiceError, match="answered 400"):
            asked.grade("q", "a", "a")


def test_a_judge_says_when_it_may_be_asked_again(judge: str) -> None:
    waited: list[float] = []
    for after, wanted in (("7", 7.0), ("1", 2.0), ("86400", 60.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 2.0)):
        StandIn.statuses, StandIn.retry_after = [429], after
        with Judge(judge, "big", {}, waited.append) as asked:
            assert asked.grade("q", "a", "a").score == 10.0
        assert waited.pop() == wanted


def error(code: object, message: str = "Provider returned error") -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


@pytest.mark.parametrize("busy", [408, error(502), error(429), error("503"), {"choices": [error(502)]}])
def test_an_error_that_comes_with_200_is_one_of_its_code(judge: str, busy: int | dict[str, Any]) -> None:
    waited: list[float] = []
    StandIn.statuses = [busy]
    with Judge(judge, "big", {}, waited.append) as asked:
        assert asked.grade("q", "a", "a").score == 10.0
    assert waited == [2.0]


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (error(402, "Insufficient credits"), ServiceError, "answered 402: Insufficient credits"),
        (error(401, "No auth credentials found"), AccessError, KEY_VARIABLE),
        (error("model_not_found", "There is no model big"), ServiceError, "There is no model big"),
        ({"error": "There is no model big"}, ServiceError, "There is no model big"),
        ({"object": "error"}, ServiceError, "no chat completion"),
    ],
)
def test_what_an_error_with_200_says_is_shown(
    judge: str, said: dict[str, Any], kind: type[Exception], words: str
) -> None:
    StandIn.statuses = [said]
    with Judge(judge, "big", {}, pytest.fail) as asked, pytest.raises(kind) as raised:
        asked.grade("q", "a", "a")
    assert words in str(raised.value)


def test_an_error_with_200_that_stays_ends_in_its_words_and_one_of_a_row_costs_that_row(judge: str) -> None:
    StandIn.statuses = [
        error(400, "maximum context length"),
        error(503),
        error(503),
        error(503),
        error(503, "Overloaded"),
    ]
    with Judge(judge, "big", {}, lambda _seconds: None) as asked:
        refused = asked.grade("q", "a", "a")
        assert refused.refused and "maximum context length" in refused.words
        with pytest.raises(ServiceError, match="answered 503: Overloaded, 4 times"):
            asked.grade("q", "a", "a")


def test_a_grade_in_parts_is_in_their_texts_and_not_in_the_reasoning(judge: str) -> None:
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Perhaps so.\nScore: 3"}]}
    for content, score in (
        ([thought, {"type": "text", "text": "8"}], 8.0),
        ([{"type": "text", "text": '{"score": 7, '}, {"type": "text", "text": '"reason": "x"}'}], 7.0),
        ([thought], None),
        (None, None),
    ):
        StandIn.statuses = [{"choices": [{"message": {"role": "assistant", "content": content}}]}]
        with Judge(judge, "big", {}, pytest.fail) as asked:
            assert asked.grade("q", "a", "a").score == score
    StandIn.statuses = [{"choices": [{"message": {"content": ["8"]}}]}]
    with Judge(judge, "big", {}, pytest.fail) as asked, pytest.raises(ServiceError, match="no chat completion"):
        asked.grade("q", "a", "a")


@pytest.mark.parametrize("end", ["", "/", "/chat/completions", "/chat/completions/"])
@pytest.mark.parametrize("query", ["", "?api-version=2024-10-21&key=sk-hidden"])
def test_a_judges_query_stays_behind_its_route_and_is_not_shown(judge: str, end: str, query: str) -> None:
    with Judge(f"{judge}{end}{query}", "big", {}, pytest.fail) as asked:
        assert asked.grade("q", "a", "a").score == 10.0
        assert StandIn.asked[-1]["path"] == f"/v1/chat/completions{query}"
        StandIn.statuses = [404]
        with pytest.raises(ServiceError) as raised:
            asked.grade("q", "a", "a")
    assert "/v1/chat/completions" in str(raised.value) and "hidden" not in str(raised.value)


@pytest.mark.parametrize("refusal", [400, 422])
def test_a_judge_that_takes_no_temperature_is_asked_without(judge: str, refusal: int) -> None:
    StandIn.refuses, StandIn.refusal = "temperature", refusal
    with Judge(judge, "big", {}, pytest.fail) as asked:
        assert asked.grade("q", "a", "a").score == asked.grade("q", "b", "b").score == 10.0
    assert ["temperature" in body for body in StandIn.asked] == [True, False, False]
    StandIn.refuses, StandIn.refusal = "messages", 400
    with Judge(judge, "big", {}, pytest.fail) as asked, pytest.raises(ServiceError, match="400.*Unsupported value"):
        asked.require_answer()


class TestNothingIsLost:
    """Answers take hours: what can be wrong besides them is found first, or costs only itself."""

    def test_a_judge_is_asked_before_anything_is_generated(
        self, run: Path, rows: Path, judge: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(held_out, "ask_all", lambda *_others, **_more: pytest.fail("it was asked"))
        for status, code in ((401, 77), (404, 69)):
            StandIn.statuses = [status]
            assert cli(f"eval {run} --data {rows} --judge {judge} --judge-model big").code == code

    def test_answers_stay_where_grading_fails(
        self, run: Path, rows: Path, judge: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rankzero.engine.judge.PAUSE_SECONDS", 0.0)
        (run / "eval.json").unlink(missing_ok=True)
        StandIn.fails_after = 3
        kept, part = tmp_path / "answers.jsonl", tmp_path / "answers.jsonl.partial"
        flags = f"--judge {judge} --judge-model big --max-new-tokens 5 --answers {kept}"
        done = cli(f"eval {run} --data {rows} {flags}")
        assert done.code == 69 and "answered 500" in done.err and "exact match" in done.out
        assert f"the answers so far are in {part}" in done.err and not kept.exists()
        one = json.loads((run / "eval.json").read_text())["sets"]["held.jsonl"]
        assert one["path"] == str(rows) and one["tuned"]["exact_match"] == 1.0 and "judge" not in one["tuned"]
        answers = [json.loads(line) for line in part.read_text().splitlines()]
        assert [set(answer) >= {"base", "tuned"} for answer in answers] == [True] * 3
        StandIn.fails_after = None
        assert cli(f"eval {run} --data {rows} {flags}").code == 0
        assert all("judge" in json.loads(line)["tuned"] for line in kept.read_text().splitlines())
        assert not part.exists()
        StandIn.fails_after = len(StandIn.asked) + 2
        assert cli(f"eval {run} --data {rows} --no-base {flags}").code == 69
        one = json.loads((run / "eval.json").read_text())["sets"]["held.jsonl"]
        assert "judge" in one["base"] and "judge" in one["tuned"], "asked the same"

    def test_grades_of_a_set_stay_where_the_judge_fails_at_the_next(
        self, run: Path, rows: Path, judge: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rankzero.engine.judge.PAUSE_SECONDS", 0.0)
        (run / "eval.json").unlink(missing_ok=True)
        other = shutil.copy(rows, rows.parent / "other.jsonl")
        StandIn.fails_after = 1 + 3 + 1
        flags = f"--no-base --judge {judge} --judge-model big --max-new-tokens 5"
        assert cli(f"eval {run} --data {rows} --data {other} {flags}").code == 69
        sets = json.loads((run / "eval.json").read_text())["sets"]
        assert sets["held.jsonl"]["tuned"]["judged"] == 3 and sets["held.jsonl"]["judge_model"] == "big"
        assert "judge_model" not in sets["other.jsonl"] and "exact_match" in sets["other.jsonl"]["tuned"]

    def test_grades_stay_in_the_answers_where_the_judge_fails(
        self, run: Path, rows: Path, judge: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("rankzero.engine.judge.PAUSE_SECONDS", 0.0)
        (run / "eval.json").unlink(missing_ok=True)
        StandIn.fails_after = 1 + 2
        kept = tmp_path / "answers.jsonl"
        flags = f"--no-base --judge {judge} --judge-model big --max-new-tokens 5 --answers {kept}"
        assert cli(f"eval {run} --data {rows} {flags}").code == 69
        answers = [json.loads(line)["tuned"] for line in Path(f"{kept}.partial").read_text().splitlines()]
        assert ["judge" in answer for answer in answers] == [True, True, False]
        assert "judge" not in json.loads((run / "eval.json").read_text())["sets"]["held.jsonl"]["tuned"], "of a part"

    @pytest.mark.parametrize("error", [ServiceError("the judge is gone"), KeyboardInterrupt()])
    @pytest.mark.parametrize("asks", [False, True], ids=["graded", "asked"])
    def test_what_ended_it_is_raised_where_the_answers_so_far_cannot_be_kept_either(
        self, asks: bool, error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        prompt, tried = Prompt((Message("user", "Ping"),)), list[int]()

        def fails(*_others: Any) -> Graded:
            raise error

        def one_then_none(_speaker: Any, _prompts: Any, _longest: int, more: Any) -> None:
            more({0: Reply("Pong", 1, ended=True)})
            raise error

        def full_disk(rows: Any) -> None:
            tried.append(len(rows))
            raise StorageError("no space left on device", where="answers.jsonl.partial")

        monkeypatch.setattr(held_out, "_answers", one_then_none)
        with pytest.raises(type(error)) as raised:
            if asks:
                voice = Voice("", cast(Speaker, None))
                held_out.ask_all([voice], [prompt], max_new_tokens=9, so_far=full_disk)
            else:
                row = Row(prompt, {"tuned": Reply("Pong", 1, ended=True)}, {})
                held_out.graded([row], cast(Judge, SimpleNamespace(grade=fails)), so_far=full_disk)
        assert raised.value is error and tried == [1]
        assert "no space left on device" in caplog.text and "answers.jsonl.partial" in caplog.text

    def test_one_answer_that_the_judge_refuses_has_no_grade(
        self, run: Path, rows: Path, judge: str, cli: Cli, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As one that is too long for it."""
        StandIn.statuses = [200, 413, 200, 400]
        done = cli(f"eval {run} --data {rows} --no-base --judge {judge} --judge-model big --max-new-tokens 5 --json")
        scores = json.loads(done.out)["sets"]["held.jsonl"]["tuned"]
        assert done.code == 0 and (scores["judged"], scores["without_grade"]) == (1, 2)
        assert "refused 2 answers" in caplog.text and "held.jsonl:1: answered 413" in caplog.text

    def test_scores_stay_where_a_task_fails(
        self, run: Path, rows: Path, judge: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_others: Any, **_more: Any) -> None:
            raise ServiceError("the harness cannot fetch it")

        monkeypatch.setattr("rankzero.engine.harness.find_tasks", lambda *_others: None)
        monkeypatch.setattr("rankzero.engine.harness.run_tasks", fail)
        (run / "eval.json").unlink(missing_ok=True)
        flags = f"--judge {judge} --judge-model big --max-new-tokens 5 --answers {tmp_path}/a.jsonl --json"
        done = cli(f"eval {run} --data {rows} --task arc_easy {flags}")
        scores = json.loads(done.out)["sets"]["held.jsonl"]
        assert done.code == 69 and scores == json.loads((run / "eval.json").read_text())["sets"]["held.jsonl"]
        assert scores["tuned"]["judged"] == 3 and '"judge"' in (tmp_path / "a.jsonl.partial").read_text()

    def test_a_run_that_cannot_be_written_keeps_nothing_and_the_scores_are_told(
        self, run: Path, rows: Path, tmp_path: Path, cli: Cli, caplog: pytest.LogCaptureFixture
    ) -> None:
        theirs = tmp_path / "theirs"
        shutil.copytree(run, theirs)
        (theirs / "eval.json").unlink(missing_ok=True)
        (theirs / "eval.json").mkdir()
        done = cli(f"eval {theirs} --data {rows} --no-base --max-new-tokens 5 --answers {tmp_path}/a.jsonl")
        assert done.code == 0 and "100.0 %" in done.out and "does not keep what was measured" in caplog.text
        assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3

    @pytest.mark.parametrize(
        ("error", "said"), [(torch.OutOfMemoryError("CUDA out of memory"), "out of memory"), (KeyboardInterrupt(), "")]
    )
    def test_answers_of_a_set_that_is_not_done_stay(
        self, error: BaseException, said: str, run: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those of the batches before, and the scores of the sets before, whatever ends it; and yesterday's."""
        (run / "eval.json").unlink(missing_ok=True)
        (tmp_path / "a.jsonl").write_text(
            yesterday := '{"set": "few.jsonl", "where": "few.jsonl:1", "prompt": "Ping"}\n'
        )
        batch, asked = generate._in_a_batch, list[int]()

        def fails(speaker: Speaker, rows: Any, *others: Any) -> list[Reply]:
            asked.append(len(rows))
            if len(asked) > 4:
                raise error
            return batch(speaker, rows, *others)

        monkeypatch.setattr(generate, "_in_a_batch", fails)
        few = write_jsonl(tmp_path / "few.jsonl", [{"q": "Ping", "a": "Pong"}])
        many = [{"q": f"Ping {n} " + "please " * n, "a": "Pong"} for n in range(20)]
        held = write_jsonl(tmp_path / "held.jsonl", many)
        flags = f"--columns question=q,answer=a --max-new-tokens 5 --answers {tmp_path}/a.jsonl"
        done = cli(f"eval {run} --data {few} --data {held} {flags}")
        assert done.code in (70, 130) and said in done.err and "internal" not in done.err
        assert "few.jsonl (1 rows)" in done.out and "few.jsonl" in json.loads((run / "eval.json").read_text())["sets"]
        assert (tmp_path / "a.jsonl").read_text() == yesterday and "a.jsonl.partial" in done.err
        answers = [json.loads(line) for line in (tmp_path / "a.jsonl.partial").read_text().splitlines()]
        assert [answer["set"] for answer in answers] == ["few.jsonl"] + ["held.jsonl"] * 20
        assert asked[:4] == [1, 1, 16, 4] and "tuned" not in answers[-1] and "base" in answers[-1]

    def test_each_row_is_scored_for_the_file_once(
        self, run: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many data sets follow, and however many batches a set has: nothing is written for a batch."""
        made, scored = list[str](), list[int]()
        to_json, summed_up = Row.to_json, held_out.summed_up

        def counted(row: Row) -> dict[str, Any]:
            made.append(row.prompt.where)
            return to_json(row)

        def scores(rows: Any) -> Any:
            scored.append(len(rows))
            return summed_up(rows)

        monkeypatch.setattr(Row, "to_json", counted)
        monkeypatch.setattr(held_out, "summed_up", scores)
        rows = [{"q": f"Ping {n}", "a": "Pong"} for n in range(20)]
        data = " ".join(f"--data {write_jsonl(tmp_path / f'{n}.jsonl', rows)}" for n in range(3))
        flags = f"--columns question=q,answer=a --max-new-tokens 1 --answers {tmp_path}/a.jsonl"
        assert cli(f"eval {run} {data} {flags}").code == 0
        assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 60
        assert len(made) == 60 and scored == [20] * 3

    def test_a_place_for_answers_is_tried_first(
        self, run: Path, rows: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(held_out, "ask_all", lambda *_others, **_more: pytest.fail("it was asked"))
        (tmp_path / "b.jsonl.partial").mkdir()
        for place in (tmp_path, rows / "answers.jsonl", tmp_path / "b.jsonl"):
            done = cli(f"eval {run} --data {rows} --answers {place}")
            assert done.code == 74 and "--answers" in done.err

    def test_answers_are_not_written_over_what_is_asked(self, run: Path, rows: Path, cli: Cli) -> None:
        before = rows.read_bytes()
        (rows.parent / "link.jsonl").symlink_to(rows)
        others = ((rows.parent, rows), (rows.parent, rows.parent / "new.jsonl"), (f"'{rows.parent}/*.jsonl'", rows))
        part = rows.rename(rows.parent / "held.jsonl.partial")
        done = cli(f"eval {run} --data {part} --answers {rows}")
        assert done.code == 2 and "it is read and would be written" in done.err
        part.rename(rows)
        also = ((f"file://{rows}", rows), *others)
        for asked, place in ((rows, rows), (f"{rows}#2", rows), (rows, rows.parent / "link.jsonl"), *also):
            done = cli(f"eval {run} --data {asked} --answers {place}")
            assert done.code == 2 and "it is read and would be written" in done.err and rows.read_bytes() == before

    def test_a_pipe_is_given_all_answers_once(self, run: Path, rows: Path, tmp_path: Path, cli: Cli) -> None:
        with read_pipe(tmp_path / "pipe") as found:
            done = cli(f"eval {run} --data {rows} --no-base --max-new-tokens 5 --answers {tmp_path}/pipe")
        assert done.code == 0, done.err
        assert [json.loads(line)["set"] for line in found[0].splitlines()] == ["held.jsonl"] * 3

    def test_rows_that_are_too_long_are_named_before_anything_is_asked(
        self, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from transformers import GPT2LMHeadModel

        model = tiny_gpt2(tmp_path / "model")
        small = GPT2LMHeadModel.from_pretrained(model)
        small.transformer.wpe = torch.nn.Embedding(24, 32)
        small.config.n_positions = 24
        small.save_pretrained(model)
        rows = [{"q": text, "a": "Pong"} for text in ("Ping", "Hello " * 40, "Hi", "Ping " * 40)]
        held = write_jsonl(tmp_path / "held.jsonl", rows)
        command = f"eval {model} --columns question=q,answer=a --data"
        done = cli(f"{command} {write_jsonl(tmp_path / 'short.jsonl', rows[::2])} --max-new-tokens 100 --json")
        assert done.code == 0 and json.loads(done.out)["sets"]["short.jsonl"]["tuned"]["cut_off"] == 2
        monkeypatch.setattr(held_out, "ask_all", lambda *_others, **_more: pytest.fail("it was asked"))
        done = cli(f"{command} {held}")
        assert (
            done.code == DataError.exit_code and "held.jsonl:2: it has" in done.err and "held.jsonl:4: it" in done.err
        )

    def test_unknown_tasks_are_found_before_anything_is_asked(
        self, run: Path, rows: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(held_out, "ask_all", lambda *_others, **_more: pytest.fail("it was asked"))
        register = SimpleNamespace(TaskManager=lambda **_places: SimpleNamespace(match_tasks=lambda _names: []))
        module = ModuleType("lm_eval")
        module.__spec__ = ModuleSpec("lm_eval", None)
        monkeypatch.setitem(sys.modules, "lm_eval", module)
        monkeypatch.setitem(sys.modules, "lm_eval.tasks", cast(ModuleType, register))
        done = cli(f"eval {run} --data {rows} --task no_such_task")
        assert done.code == 78 and "there is no task no_such_task" in done.err


def test_tasks_of_a_directory(run: Path, tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    write_jsonl(tmp_path / "rows.jsonl", [{"q": "Ping", "a": "Pong"}, {"q": "Hello", "a": "World"}])
    task = {
        "task": "own_rows",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{q}}",
        "doc_to_target": " {{a}}",
        "metric_list": [{"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False}],
    }
    (tmp_path / "own_rows.yaml").write_text(json.dumps(task))
    done = cli(f"eval {run} --task own_rows --task-dir {tmp_path} --json")
    assert done.code == 0, done.err
    scores = json.loads(done.out)["tasks"]["own_rows"]
    assert scores["base"]["perplexity,none"] > 1 and scores["base"] != scores["tuned"]
    assert cli(f"eval {run} --task no_such_task --task-dir {tmp_path}").code == 78


def test_tables_of_tasks() -> None:
    found = Evaluation(tasks={"own": {"base": {"acc,none": 0.25}, "tuned": {"acc,none": 0.5}}})
    assert found.table == [("own", "acc,none", "0.25", "0.5")]
