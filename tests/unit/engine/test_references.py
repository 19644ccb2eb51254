"""What answers that call tools are compared with: what the model's own chat template writes of the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.data.prompts import read_questions
from rankzero.engine import held_out
from rankzero.engine.chat import Voice
from rankzero.engine.references import comparable
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
    assert comparable(speaker, prompt).reference == IN_TAGS
    monkeypatch.setattr(held_out, "_answers", lambda *_others: [Reply(IN_TAGS, 9, ended=True)])
    rows = held_out.ask_all([Voice("", speaker), Voice("base", speaker)], [prompt], max_new_tokens=9)
    assert held_out.about(rows, max_new_tokens=9, judge=None)["with_reference"] == 1
    assert held_out.summed_up(rows)["tuned"]["exact_match"] == 1.0


def test_text_beside_several_calls(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]}
    row = {"messages": [ASKED, answer], "tools": TOOLS}
    [prompt] = read_questions(SourceSpec(path=str(write_jsonl(tmp_path / "rows.jsonl", [row]))), seed=0)
    assert comparable(speaker_of(family_tokenizer("qwen3")), prompt).reference == f"I look.\n{IN_TAGS}\n{IN_TAGS}"


def test_without_a_template_that_writes_calls_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    row = {"messages": [ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}], "tools": TOOLS}
    [prompt] = read_questions(SourceSpec(path=str(write_jsonl(tmp_path / "rows.jsonl", [row]))), seed=0)
    assert comparable(speaker_of(tiny_tokenizer(chat_template=None)), prompt).reference is None
    assert comparable(speaker_of(family_tokenizer("smollm2")), prompt).reference is None
