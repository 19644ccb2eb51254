"""What answers that call tools are compared with: what the model's own chat template writes of the call."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankzero
from rankzero.data.prompts import question, read_questions
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.engine import held_out, references
from rankzero.engine.chat import Voice
from rankzero.engine.references import References
from rankzero.errors import ConfigError, DataError
from rankzero.model.generate import Reply, Speaker
from rankzero.spec.run_spec import SourceSpec
from tests.support.families import family_tokenizer
from tests.support.tiny import tiny_tokenizer, write_jsonl

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
ASKED = {"role": "user", "content": "Where is it?"}
CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
IN_TAGS = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
ANSWERS: dict[str, dict[str, Any]] = {
    "as such": {"content": "", "tool_calls": [CALL]},
    "in tags": {"content": IN_TAGS},
    "as Python prints it": {"content": "<tool_call>\n{'name': 'look', 'arguments': {'at': 1}}\n</tool_call>"},
    "as JSON": {"content": '{"name": "look", "arguments": {"at": 1}}'},
    "behind reasoning": {"content": f"<think>\nWhere?\n</think>\n\n{IN_TAGS}"},
}


def speaker_of(tokenizer: Any) -> Speaker:
    return Speaker(None, tokenizer, None)


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_call_is_scored_in_the_form_of_the_model(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"messages": [ASKED, {"role": "assistant", **ANSWERS[answer]}], "tools": TOOLS}
    [prompt] = read_questions(SourceSpec(path=str(write_jsonl(tmp_path / "rows.jsonl", [row]))), seed=0)
    speaker = speaker_of(family_tokenizer("qwen3"))
    assert References(speaker).comparable(prompt).reference == IN_TAGS
    said = Reply(IN_TAGS, 9, ended=True)
    monkeypatch.setattr(held_out, "_answers", lambda _speaker, _prompts, _longest, more: more({0: said}))
    voices = [Voice("", speaker), Voice("base", speaker)]
    [wanted] = held_out.to_compare(voices, [[prompt]])
    rows = held_out.ask_all(voices, wanted, max_new_tokens=9)
    assert held_out.about(rows, max_new_tokens=9, judge=None)["with_reference"] == 1
    assert held_out.summed_up(rows)["tuned"]["exact_match"] == 1.0


def test_text_beside_several_calls(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]}
    row = {"messages": [ASKED, answer], "tools": TOOLS}
    [prompt] = read_questions(SourceSpec(path=str(write_jsonl(tmp_path / "rows.jsonl", [row]))), seed=0)
    assert (
        References(speaker_of(family_tokenizer("qwen3"))).comparable(prompt).reference
        == f"I look.\n{IN_TAGS}\n{IN_TAGS}"
    )


def test_without_a_template_that_writes_calls_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    row = {"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}], "tools": TOOLS}
    [prompt] = read_questions(SourceSpec(path=str(write_jsonl(tmp_path / "rows.jsonl", [row]))), seed=0)
    assert References(speaker_of(tiny_tokenizer(chat_template=None))).comparable(prompt).reference is None
    assert References(speaker_of(family_tokenizer("smollm2"))).comparable(prompt).reference is None


def test_a_tokenizer_is_taken_apart_once_for_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a real model takes the better part of a second."""
    rows = [{"messages": [ASKED, {"role": "assistant", **answer}], "tools": TOOLS} for answer in ANSWERS.values()]
    prompts = read_questions(SourceSpec(path=str(write_jsonl(tmp_path / "rows.jsonl", rows))), seed=0)
    taken: list[Any] = []
    monkeypatch.setattr(references, "take_apart", lambda *given: taken.append(given) or take_apart(*given))
    one = References(speaker_of(family_tokenizer("qwen3")))
    assert [one.comparable(prompt).reference for prompt in prompts] == [IN_TAGS] * len(ANSWERS)
    assert len(taken) == 1


@pytest.mark.parametrize("lacks", ["an end", "places of characters"])
def test_what_training_needs_of_a_tokenizer_is_not_asked_of_one_that_is_measured(lacks: str, tmp_path: Path) -> None:
    rows = [{"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}], "tools": TOOLS}]
    [prompt] = read_questions(SourceSpec(path=str(write_jsonl(tmp_path / "rows.jsonl", rows))), seed=0)
    tokenizer = copy.deepcopy(family_tokenizer("qwen3"))
    if lacks == "an end":
        tokenizer.eos_token = None
        assert References(speaker_of(tokenizer)).comparable(prompt).reference == IN_TAGS
    else:
        slow = SimpleNamespace(is_fast=False, chat_template=tokenizer.chat_template)
        assert References(speaker_of(slow)).comparable(prompt).reference is None


def test_what_cannot_be_compared_is_refused_before_anything_is_asked(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers take hours."""
    known = {"messages": [ASKED, {"role": "assistant", "content": "There."}]}
    calls = {"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}], "tools": TOOLS}
    sets = [write_jsonl(tmp_path / f"{n}.jsonl", [row]) for n, row in enumerate((known, calls))]

    def refuse(*_given: object) -> None:
        raise ConfigError("no such template")

    monkeypatch.setattr(references, "take_apart", refuse)
    monkeypatch.setattr(held_out, "_answers", lambda *_others: pytest.fail("it was asked"))
    with pytest.raises(ConfigError, match="no such template"):
        rankzero.evaluate(str(tiny), sets)


def test_a_model_whose_answers_nothing_ends_is_named_before_it_is_asked() -> None:
    tokenizer = copy.deepcopy(family_tokenizer("qwen3"))
    model = SimpleNamespace(config=SimpleNamespace(eos_token_id=None))
    tokenizer.eos_token = None
    voices = [Voice("", Speaker(model, tokenizer, None))]
    with pytest.raises(ConfigError, match="names an end token"):
        held_out.require_askable(voices, [question("Where is it?")], 9)


def test_sets_of_which_nothing_can_be_compared_are_not_asked(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the chat template writes no calls: known once it is there."""
    text, call = {"content": "There."}, {"content": "", "tool_calls": [CALL]}
    rows = [{"messages": [ASKED, {"role": "assistant", **answer}], "tools": TOOLS} for answer in (text, call)]
    some = write_jsonl(tmp_path / "some.jsonl", rows)
    none = [write_jsonl(tmp_path / f"{name}.jsonl", rows[1:]) for name in ("one", "two")]
    assert rankzero.evaluate(str(tiny), some, max_new_tokens=2).sets["some.jsonl"]["with_reference"] == 1
    monkeypatch.setattr(held_out, "_answers", lambda *_others: pytest.fail("it was asked"))
    with pytest.raises(DataError, match="no row has an answer to compare with") as caught:
        rankzero.evaluate(str(tiny), [some, *none])
    assert [problem.where for problem in caught.value.problems] == list(map(str, none))
    assert "the model's chat template writes" in caught.value.problems[0].hint
