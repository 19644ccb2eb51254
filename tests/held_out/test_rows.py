"""Rows as other tools and data sets write them, each with what it says written down beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.parse import Parsed, parse
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.row_tokens import Encoder
from rankzero.data.tokens.tokenizer import take_apart
from tests.held_out.families import FAMILIES, tokenizer

ROWS = Path(__file__).with_name("rows")
SOURCES = sorted(file.stem for file in ROWS.glob("*.jsonl") if not file.stem.endswith(".expected"))
CASES = [
    pytest.param(line, json.loads(expected), id=f"{source}:{number}")
    for source in SOURCES
    for number, (line, expected) in enumerate(
        zip(
            (ROWS / f"{source}.jsonl").read_bytes().splitlines(),
            (ROWS / f"{source}.expected.jsonl").read_bytes().splitlines(),
            strict=True,
        ),
        1,
    )
]


def rows_of(name: str) -> list[bytes]:
    return (ROWS / f"{name}.jsonl").read_bytes().splitlines()


def read(line: bytes) -> Parsed:
    return parse(Chunk(0, 1, line + b"\n"), "auto")


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_a_row_says_what_was_written_down(line: bytes, expected: dict[str, Any]) -> None:
    parsed = read(line)
    if "refused" in expected:
        assert parsed.problems, "nothing may be read that is not understood"
        for problem in parsed.problems:
            assert expected["refused"] in problem.what and problem.hint, problem
        return
    assert not parsed.problems, parsed.problems
    (row,) = parsed.conversations
    found = said(row)
    if "parameters" not in expected:
        found.pop("parameters", None)
    assert found == expected


def said(row: Conversation) -> dict[str, Any]:
    """The row in the form in which it is written down: what is not there is left out."""
    if row.verbatim:
        return {"segments": [[turn.content, turn.role == "completion"] for turn in row.messages]}
    said: dict[str, Any] = {"turns": [[turn.role, turn.content] for turn in row.messages]}
    asked = row.completion_only  # of such rows the prompt is context by their shape
    by_turn: dict[str, dict[str, Any]] = {
        "calls": {str(i): [list(call["function"].values()) for call in t.tool_calls] for i, t in turns_of(row)},
        "thoughts": {str(i): turn.reasoning for i, turn in turns_of(row)},
        "names": {str(i): turn.name for i, turn in turns_of(row)},
        "train": {} if asked else {str(i): t.train for i, t in turns_of(row) if t.weight == 1},
        "weights": {str(i): turn.weight for i, turn in turns_of(row) if turn.weight != 1},
    }
    for what, turns in by_turn.items():
        if kept := {i: value for i, value in turns.items() if value not in ([], "", None)}:
            said[what] = kept
    if row.images:
        said["images"] = list(row.images)
    if row.tools:
        said["tools"] = [tool["function"]["name"] for tool in row.tools]
        said["parameters"] = row.tools[0]["function"].get("parameters")
    if row.rejected:
        said["rejected"] = [[turn.role, turn.content] for turn in row.rejected]
    return said


def turns_of(row: Conversation) -> list[tuple[int, Any]]:
    return list(enumerate(row.messages))


_READ_WHOLE = {"tools", "functions", "toolConfig", "arguments", "input", "args", "response", "json"}


def _objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where objects lie in it, but for those that are kept as they are."""
    if isinstance(value, dict):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if key not in _READ_WHOLE:
            yield from _objects(inner, (*path, key))


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_no_object_of_a_row_has_a_key_that_is_left_out_in_silence(line: bytes, expected: dict[str, Any]) -> None:
    if "refused" in expected:
        return
    for path in _objects(json.loads(line)):
        row = json.loads(line)
        place = row
        for step in path:
            place = place[step]
        place["zzz"] = "said"
        parsed = read(json.dumps(row).encode())
        named = {key.split(".")[-1] for key in parsed.ignored_keys} & {"zzz", *path}
        told = any("zzz" in turn.content for row in parsed.conversations for turn in row.messages)
        assert named or told or parsed.problems, path


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_as_text_come_to_what_calls_come_to(family: str) -> None:
    """Whichever form a row has them in, they are in the form of the template, and nothing of it is there twice."""
    renderer = Renderer(take_apart(tokenizer(family)), TokenRules())
    apart = 0
    for line, expected in zip(*(rows_of(name) for name in ("calls_as_text", "calls_as_text.expected")), strict=True):
        if "calls" not in (wanted := json.loads(expected)):
            continue
        (row,) = read(line).conversations
        turns = [{"role": role, "content": text} for role, text in wanted["turns"]]
        for i, calls in wanted["calls"].items():
            turns[int(i)]["tool_calls"] = [{"function": {"name": name, "arguments": args}} for name, args in calls]
        (same,) = read(json.dumps({"messages": turns, "tools": list(row.tools)}).encode()).conversations
        got = renderer.render(row)
        assert got == renderer.render(replace(same, line=row.line))
        if isinstance(got, Rendered):
            apart += 1
            assert not re.search(r"<tool_(call|response)>\s*<tool_\1>", got.text)
    assert apart or family not in ("hermes", "qwen2_5", "qwen3", "llama3_1", "mistral_nemo", "kimi_k2", "gpt_oss")


def test_segments_are_tokens_as_they_stand_and_trained_as_they_say() -> None:
    (line, *_) = (ROWS / "axolotl.jsonl").read_bytes().splitlines()
    (conversation,) = read(line).conversations
    parts = take_apart(tokenizer("mistral_v1"))  # which itself would begin a text with <s>
    rules = TokenRules()
    rendered = Renderer(parts, rules).render(conversation)
    assert isinstance(rendered, Rendered)
    (row,) = Encoder(parts, rules).encode([rendered])
    assert tokenizer("mistral_v1").decode(row.ids) == "<s>Question: q\nAnswer: a</s>\nQuestion: r\nAnswer: b</s>"
    trained = [tokenizer("mistral_v1").decode(row.ids[start:end]) for start, end in row.ranges]
    assert trained == ["Answer: a</s>", "Answer: b</s>"]
