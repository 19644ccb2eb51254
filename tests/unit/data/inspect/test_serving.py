"""Training's rendering beside serving's: every difference that a template can make, and none where there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankzero.api.tokenizers import TokenizerPlace, served_prompt, stop_tokens
from rankzero.data.inspect.report import Sample
from rankzero.data.inspect.serving import Comparison, compare
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.parse import parse
from rankzero.data.tokens.chat import TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from tests.support.families import FAMILIES, family_tokenizer
from tests.support.tiny import CHATML, tiny_tokenizer
from tests.unit.data.support import chat, user_assistant

RULES = TokenRules()


def rows(*values: dict[str, Any]) -> list[Sample]:
    data = b"".join(json.dumps(value).encode() + b"\n" for value in values)
    return [Sample("f.jsonl", conversation, ".") for conversation in parse(Chunk(0, 1, data), "auto").conversations]


def compared(tokenizer: Any, *values: dict[str, Any], stops: Sequence[str] = ()) -> Comparison:
    return compare(rows(*values), take_apart(tokenizer), RULES, partial(served_prompt, tokenizer), stops)


QUESTION = user_assistant("Name a prime.", "Seven.", "And another?", "Eleven, of course.")


@pytest.mark.parametrize("name", ["smollm2", "mistral", "generation", "generation_bare", "headings"])
def test_templates_that_only_append(name: str) -> None:
    found = compared(family_tokenizer(name), QUESTION)
    assert (found.rows, found.answers) == (1, 2)
    assert not found.causes, found.first


@pytest.mark.parametrize("name", ["llama3", "gemma", "phi"])
def test_another_end_token_than_the_tokenizer_s(name: str) -> None:
    tokenizer, family = family_tokenizer(name), FAMILIES[name]
    found = compared(tokenizer, QUESTION)
    assert found.causes == {"end token": 1}
    first = found.first["end token"]
    assert (first.where, first.turn, first.training, first.serving) == ("f.jsonl:1", 4, family.end, family.eos)
    assert not compared(tokenizer, QUESTION, stops=[family.end]).causes


def test_a_think_block_that_only_serving_has() -> None:
    found = compared(family_tokenizer("empty_thought"), QUESTION, user_assistant("a", "b"))
    assert found.causes == {"think block in serving": 2}
    first = found.first["think block in serving"]
    text = "<|im_start|>user\nName a prime.<|im_end|>\n<|im_start|>assistant\n"
    assert (first.turn, first.offset) == (2, len(text))
    assert "Seven." in first.training and "<think>" in first.serving and "<think>" not in first.training


def test_a_think_block_that_training_writes() -> None:
    found = compared(family_tokenizer("qwen3"), QUESTION)
    first = found.first["think block in training"]
    assert found.causes == {"think block in training": 1} and first.turn == 4
    assert "<think>" in first.training and "Eleven" in first.serving
    thought = user_assistant("q", "<think>\nIt is small.\n</think>\n\nSeven.")
    assert not compared(family_tokenizer("qwen3"), thought).causes


def test_reasoning_that_serving_forgets() -> None:
    first, second = "<think>\nIt is small.\n</think>\n\nSeven.", "<think>\nThe next.\n</think>\n\nEleven."
    row = user_assistant("Name a prime.", first, "And another?", second)
    for name in ("qwen3", "deepseek_r1"):
        found = compared(family_tokenizer(name), row)
        assert found.causes == {"earlier reasoning": 1}, found.first
        difference = found.first["earlier reasoning"]
        assert difference.turn == 4 and "small" in difference.training and "small" not in difference.serving
        for rules in (TokenRules(reasoning="drop"), TokenRules(train_on="last_turn"), TokenRules(reasoning="last")):
            tokenizer = family_tokenizer(name)
            serve = partial(served_prompt, tokenizer)
            causes = compare(rows(row), take_apart(tokenizer), rules, serve).causes
            assert "earlier reasoning" not in causes, (name, rules, causes)


def test_reasoning_under_a_key_and_a_channel_for_it() -> None:
    row = user_assistant("Name a prime.", "Seven.")
    row["messages"][1]["reasoning_content"] = "It is small."
    for name in ("qwen3", "gpt_oss", "smollm2"):
        found = compared(family_tokenizer(name), row)
        assert found.answers == 1 and not found.causes, found.first


def test_an_end_token_before_the_one_that_stops() -> None:
    assert not compared(family_tokenizer("cohere2"), QUESTION).causes


def test_what_the_spec_gives_the_template() -> None:
    tokenizer, kwargs = family_tokenizer("qwen3"), {"enable_thinking": False}
    rules, serve = TokenRules(template_kwargs=kwargs), partial(served_prompt, tokenizer)
    assert not compare(rows(user_assistant("q", "a")), take_apart(tokenizer), rules, serve).causes
    assert compare(rows(user_assistant("q", "a")), take_apart(tokenizer), RULES, serve).causes


def test_what_a_row_gives_the_template() -> None:
    tokenizer = family_tokenizer("qwen3")
    row = user_assistant("q", "a") | {"chat_template_kwargs": {"enable_thinking": False}}
    assert not compared(tokenizer, row).causes
    rules, serve = TokenRules(template_kwargs={"enable_thinking": True}), partial(served_prompt, tokenizer)
    assert not compare(rows(row), take_apart(tokenizer), rules, serve).causes, "the row's own value is what counts"


def test_a_date() -> None:
    dated = "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>\n' }}" + CHATML
    found = compared(tiny_tokenizer(chat_template=dated), QUESTION)
    first = found.first["date"]
    assert found.causes == {"date": 1}
    assert "26 Jul 2024" in first.training and "26 Jul 2024" not in first.serving
    # How many characters are shown before the first that differs is fixed, and that is another one on each 26th.
    assert "system\nToday is " in first.serving and first.offset >= len("<|im_start|>system\nToday is ")


def test_another_opening() -> None:
    opening = CHATML.replace("'<|im_start|>assistant\n' }}{% endif", "'<|im_start|>assistant\n>> ' }}{% endif")
    first = compared(tiny_tokenizer(chat_template=opening), user_assistant("a", "b")).first["generation prompt"]
    assert first.serving.endswith("assistant\n>> ") and first.training.endswith("assistant\nb<|im_end|>\n")


def test_an_answer_whose_space_the_template_rewrites() -> None:
    template = CHATML.replace("message['content']", "(message['content'] | replace('  ', ' '))")
    found = compared(tiny_tokenizer(chat_template=template), user_assistant("Which?", "My  colour is red."))
    first = found.first["answer"]
    assert "My  colour" in first.serving and "My colour " in first.training


def test_a_row_that_cannot_be_trained_is_not_compared() -> None:
    template = CHATML.replace("message['content']", "(message['content'] | replace('colour', 'color'))")
    found = compared(tiny_tokenizer(chat_template=template), user_assistant("Which?", "My colour is red."))
    assert (found.rows, found.answers) == (1, 0)


def test_a_server_with_a_renderer_of_its_own() -> None:
    tokenizer = tiny_tokenizer()

    def serve(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> str:
        return served_prompt(tokenizer, turns, tools, given).replace("user", "USER")

    found = compare(rows(QUESTION), take_apart(tokenizer), RULES, serve)
    assert found.causes == {"rendering": 1} and found.first["rendering"].offset == len("<|im_start|>")


def test_a_server_that_refuses_what_stands_before_an_answer() -> None:
    raising = compare(rows(QUESTION), take_apart(tiny_tokenizer()), RULES, served_nothing)
    assert raising.causes == {"refused": 1} and raising.first["refused"].serving == "out of order"


def served_nothing(turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], given: object) -> str:
    raise ValueError("out of order\nwith details")


def test_what_is_not_compared() -> None:
    untrained = chat(("user", "q"), ("assistant", "a", False), ("user", "q"), ("assistant", "b"))
    first_turn = chat(("assistant", "hello"), ("user", "q"), ("assistant", "b"))
    found = compared(tiny_tokenizer(), {"text": "plain"}, untrained, first_turn)
    assert (found.rows, found.answers) == (2, 2)
    without = compared(tiny_tokenizer(chat_template=None), QUESTION)
    assert without.as_json() == {"rows": 0, "answers": 0, "rows_by_cause": {}, "first": []}


def test_tools_and_calls() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    template = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML.replace(
        "message['content']",
        "(message['content'] or '') + (message['tool_calls'] | tojson if message['tool_calls'] else '')",
    )
    row = {
        "messages": [
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
            {"role": "assistant", "content": "2"},
        ],
        "tools": tools,
    }
    found = compared(tiny_tokenizer(chat_template=template), row)
    assert found.answers == 2 and not found.causes, found.first


def test_stop_tokens_of_the_generation_config(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(specials=("<|im_start|>", "<|im_end|>", "<|stop|>"))
    place = TokenizerPlace(str(tmp_path))
    assert stop_tokens(tokenizer, place) == []
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [tokenizer.convert_tokens_to_ids("<|stop|>")]}))
    assert stop_tokens(tokenizer, place) == ["<|stop|>"]
    file.write_text(json.dumps({"eos_token_id": tokenizer.convert_tokens_to_ids("<|im_end|>")}))
    assert stop_tokens(tokenizer, place) == ["<|im_end|>"]
    for broken in ("{", "[]", "{}"):
        file.write_text(broken)
        assert stop_tokens(tokenizer, place) == []


def test_json() -> None:
    found = compared(family_tokenizer("empty_thought"), QUESTION).as_json()
    assert json.loads(json.dumps(found)) == found
    assert found["rows_by_cause"] == {"think block in serving": 1}
    assert found["first"][0]["where"] == "f.jsonl:1" and "think block" in found["first"][0]["meaning"]
