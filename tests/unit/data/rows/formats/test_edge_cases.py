"""Every edge case of real files in every format: kept, a named problem, or left out by a named rule. Each is stated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.formats import FORMATS
from rankzero.data.rows.parse import Parsed, parse
from tests.unit.data.rows.formats.support import ROWS, TREE

Row = dict[str, Any]

FIRST_TEXT = {
    "messages": ("messages", 0, "content"),
    "prompt_completion": ("prompt",),
    "text": ("text",),
    "alpaca": ("instruction",),
    "sharegpt": ("conversations", 0, "value"),
    "query_response": ("question",),
    "openorca": ("question",),
    "oasst": ("prompt", "text"),
    "preference": ("prompt",),
    "openai_preference": ("input", "messages", 0, "content"),
    "classification": ("sentence",),
    "gemini": ("systemInstruction", "parts", 0, "text"),
    "segments": ("segments", 0, "text"),
}
"""Where the first text of the first row of each format stands."""

TWICE = {name: path[-1] for name, path in FIRST_TEXT.items()}


def parsed(data: bytes, wanted: str = "auto") -> Parsed:
    result = parse(Chunk(0, 1, data), wanted)
    bad = {problem.line for problem in result.problems}
    assert result.rows == result.formats.total() + result.dropped.total() + len(bad)
    return result


def line(name: str) -> bytes:
    return json.dumps(ROWS[name][0], ensure_ascii=False).encode()


def with_text(name: str, text: Any) -> Row:
    """The first row of this format, its first text another."""
    row = json.loads(line(name))
    place = row
    for key in FIRST_TEXT[name][:-1]:
        place = place[key]
    place[FIRST_TEXT[name][-1]] = text
    return row


BYTES: dict[str, tuple[Callable[[bytes], bytes], str | None]] = {
    "byte-order mark at the start": (lambda row: b"\xef\xbb\xbf" + row, None),
    "byte-order mark in the middle": (lambda row: row + b"\n\xef\xbb\xbf" + row, "byte-order mark inside the file"),
    "joined on one line": (lambda row: row + b"\xef\xbb\xbf" + row, "byte-order mark inside the file"),
    "carriage returns": (lambda row: row + b"\r\n" + row + b"\r\n", None),
    "blank lines": (lambda row: b"\n \t\n" + row + b"\n\n", None),
    "trailing comma": (lambda row: row[:-1] + b",}", "not valid JSON"),
    "cut off": (lambda row: row[: len(row) // 2], None),  # where the cut falls decides; see below
    "UTF-16": (lambda row: row.decode().encode("utf-16-le"), "NUL byte"),
    "Latin-1 byte": (lambda row: row.replace(b'": "', b'": "\xe9', 1), "not UTF-8"),
    "lone surrogate": (lambda row: row.replace(b'": "', b'": "\\ud83d', 1), "not valid JSON"),
    "NaN where nobody reads": (lambda row: row[:-1] + b', "score": NaN}', None),
    "NaN beside a long number": (lambda row: row[:-1] + b', "score": NaN, "n": 123456789012345678901}', None),
    "NaN where it counts": (lambda row: re.sub(rb'("id"|": )"[^"]*"', rb"\1NaN", row, count=1), "not valid JSON"),
    "NUL": (lambda row: row.replace(b'": "', b'": "\0', 1), "NUL byte"),
    "two rows on a line": (lambda row: row + row, "not valid JSON"),
    "a list": (lambda row: b"[" + row + b"]", "not an object"),
    "no bytes": (lambda row: b"", None),
}


@pytest.mark.parametrize("case", BYTES)
@pytest.mark.parametrize("name", FORMATS)
def test_bytes(name: str, case: str) -> None:
    change, reason = BYTES[case]
    result = parsed(change(line(name)))
    if case == "cut off":
        assert result.rows == 1 and result.problems[0].reason in ("not valid JSON", "not UTF-8")
    elif reason is None:
        assert not result.problems and set(result.formats) == ({name} if result.rows else set())
    else:
        assert {problem.reason for problem in result.problems} == {reason}
    assert result.rows == {"carriage returns": 2, "byte-order mark in the middle": 2, "no bytes": 0}.get(case, 1)


@pytest.mark.parametrize("name", FORMATS)
def test_a_key_twice(name: str) -> None:
    for space in (b"", b" "):
        key = f'"{TWICE[name]}"'.encode()
        twice = line(name).replace(key + b":", key + space + b': "x", ' + key + space + b":", 1)
        assert [problem.reason for problem in parsed(twice).problems] == ["duplicate key"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_line_of_40_megabytes(name: str) -> None:
    text = "word " * 8_000_000
    result = parsed(json.dumps(with_text(name, text)).encode())
    assert not result.problems and text in [message.content for message in result.conversations[0].messages][0]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", ["a\u2028b", "a\u2029b", "a\u0085b", "a\x1eb", "a\u0000b", "\ufeffa", "🙂é"])
def test_characters_that_are_text(name: str, text: str) -> None:
    for ascii_only in (True, False):
        data = json.dumps(with_text(name, text), ensure_ascii=ascii_only).encode()
        (conversation,) = parsed(data + b"\n").conversations
        assert conversation.messages[0].content == text


def contents(*turns: tuple[str, Any], **row: Any) -> Row:
    return {"contents": [{"role": role, "parts": [{"text": text}]} for role, text in turns], **row}


def segments(*texts: tuple[bool, Any], **row: Any) -> Row:
    return {"segments": [{"label": label, "text": text} for label, text in texts], **row}


def chat(*turns: tuple[str, Any], **row: Any) -> Row:
    return {"messages": [{"role": role, "content": content} for role, content in turns], **row}


def pairs(*turns: tuple[str, Any], **row: Any) -> Row:
    return {"conversations": [{"from": role, "value": value} for role, value in turns], **row}


def split(*turns: tuple[str, Any]) -> Row:
    messages = chat(*turns)["messages"]
    return {"prompt": messages[:1], "completion": messages[1:]}


def node(role: str, text: Any, *replies: Row) -> Row:
    return {"message_id": f"{role}{text}", "role": role, "text": text, "replies": list(replies)}


def tree(root: Row) -> Row:
    return {"message_tree_id": "t", "prompt": root}


def prefer(*turns: tuple[str, Any]) -> Row:
    return {"chosen": chat(*turns)["messages"], "rejected": chat(*turns[:-1], ("assistant", "bad"))["messages"]}


def outputs(*turns: tuple[str, Any], **row: Any) -> Row:
    asked, better, worse = (chat(*some)["messages"] for some in (turns[:-1], turns[-1:], [("assistant", "bad")]))
    return {"input": {"messages": asked}, "preferred_output": better, "non_preferred_output": worse, **row}


NONE: tuple[Row, str] = ({}, "unknown row shape")
"""The format has no such thing; asserted all the same, with an empty row."""

KEPT = ""

USER, HUMAN = ("user", "q"), ("human", "q")
BOT, GPT, MODEL = ("assistant", "a"), ("gpt", "a"), ("model", "a")
READ, LEARNT = (False, "q"), (True, "a")

# What stands in each cell: a row, and its outcome: kept, a problem's reason, or `dropped:` and the rule.
CASES: dict[str, dict[str, tuple[Row, str]]] = {
    "null text": {
        "messages": (chat(("user", None), BOT), "content is null"),
        "prompt_completion": (split(("user", None), BOT), "content is null"),
        "text": ({"text": None}, "unknown row shape"),
        "alpaca": (
            {"instruction": None, "input": "q", "output": "a"},
            KEPT,
        ),  # null is absent: input and output are left
        "sharegpt": (pairs(("human", None), GPT), "content is null"),
        "query_response": ({"query": None, "response": "a"}, "unknown row shape"),
        "openorca": ({"system_prompt": None, "question": "q", "response": "a"}, KEPT),
        "oasst": (tree(node("prompter", None, node("assistant", "a"))), "message without text"),
        "preference": (prefer(("user", None), BOT), "content is null"),
        "openai_preference": (outputs(("user", None), BOT), "content is null"),
        "classification": ({"text": "t", "label": None}, "dropped:unlabelled"),
        "gemini": (contents(("user", None), MODEL), "unknown content part"),
        "segments": (segments((False, None), LEARNT), "bad segments"),
    },
    "empty answer": {
        "messages": (chat(USER, ("assistant", "")), "empty assistant turn"),
        "prompt_completion": ({"prompt": "p", "completion": ""}, "empty completion"),
        "text": ({"text": ""}, "empty text"),
        "alpaca": ({"instruction": "q", "input": "", "output": ""}, "empty output"),
        "sharegpt": (pairs(HUMAN, ("gpt", "")), "empty assistant turn"),
        "query_response": ({"query": "q", "response": ""}, "empty response"),
        "openorca": ({"system_prompt": "", "question": "q", "response": ""}, "empty response"),
        "oasst": (tree(node("prompter", "q", node("assistant", ""))), "message without text"),
        "preference": ({"prompt": "p", "chosen": "", "rejected": "b"}, "empty chosen"),
        "openai_preference": (outputs(USER, ("assistant", "")), "empty assistant turn"),
        "classification": ({"text": "t", "label": ""}, "bad label"),
        "gemini": (contents(USER, ("model", "")), "empty assistant turn"),
        "segments": (segments(READ, (True, " ")), "no trained segment"),
    },
    "empty question": {
        "messages": (chat(("user", ""), BOT), KEPT),  # some chats do begin with nothing; the template decides
        "prompt_completion": ({"prompt": "", "completion": "c"}, "empty prompt"),
        "text": ({"text": " "}, "empty text"),
        "alpaca": ({"instruction": "", "input": "", "output": "a"}, "empty prompt"),
        "sharegpt": (pairs(("human", ""), GPT), KEPT),
        "query_response": ({"query": "", "response": "a"}, "empty query"),
        "openorca": ({"system_prompt": "", "question": "", "response": "a"}, "empty question"),
        "oasst": (tree(node("prompter", "", node("assistant", "a"))), "message without text"),
        "preference": ({"prompt": "", "chosen": "a", "rejected": "b"}, "empty prompt"),
        "openai_preference": (outputs(("user", ""), BOT), KEPT),
        "classification": ({"text": "", "label": 1}, "empty text"),
        "gemini": (contents(("user", ""), MODEL), KEPT),
        "segments": (segments((False, ""), LEARNT), KEPT),
    },
    "no turns": {
        "messages": (chat(), "empty `messages`"),
        "prompt_completion": ({"prompt": [], "completion": [{"role": "assistant", "content": "a"}]}, "empty `prompt`"),
        "text": NONE,
        "alpaca": ({"instruction": "q", "output": "a", "history": []}, KEPT),
        "sharegpt": (pairs(), "empty `conversations`"),
        "query_response": ({"query": "q", "response": "a", "history": []}, KEPT),
        "openorca": NONE,
        "oasst": (tree(node("prompter", "q")), "dropped:tree_without_reply"),
        "preference": ({"chosen": [], "rejected": [1]}, "empty `chosen`"),
        "openai_preference": (outputs(BOT), "input without messages"),
        "classification": NONE,
        "gemini": (contents(), "empty `contents`"),
        "segments": (segments(), "no trained segment"),
    },
    "system in the middle": {
        "messages": (chat(USER, ("system", "s"), BOT), KEPT),  # whether it can be rendered, the template says
        "prompt_completion": (split(USER, ("system", "s"), BOT), KEPT),
        "text": NONE,
        "alpaca": ({"instruction": "q", "output": "a", "system": ""}, KEPT),
        "sharegpt": (pairs(HUMAN, ("system", "s"), GPT), KEPT),
        "query_response": ({"query": "q", "response": "a", "system_prompt": ""}, KEPT),
        "openorca": ({"system_prompt": "s", "question": "q", "response": "a", "system": "t"}, "two system prompts"),
        "oasst": (tree(node("prompter", "q", node("system", "s"))), "unknown role"),
        "preference": (prefer(USER, ("system", "s"), BOT), KEPT),
        "openai_preference": (outputs(USER, ("system", "s"), BOT), KEPT),
        "classification": ({"text": "t", "label": 1, "system": "s"}, "`system` is not read"),
        "gemini": (contents(USER, ("system", "s"), MODEL), KEPT),
        "segments": (segments(READ, LEARNT, system="s"), "`system` is not read"),
    },
    "the same role twice": {
        "messages": (chat(USER, USER, BOT, BOT), KEPT),
        "prompt_completion": (split(USER, USER, BOT), KEPT),
        "text": NONE,
        "alpaca": ({"instruction": "q", "output": "a", "response": "b"}, KEPT),  # `response` is counted as not read
        "sharegpt": (pairs(HUMAN, HUMAN, GPT, GPT), KEPT),
        "query_response": ({"query": "q", "response": "a", "answer": "b"}, "two columns for one name"),
        "openorca": ({"system_prompt": "s", "question": "q", "response": "a", "query": "r"}, KEPT),
        "oasst": (tree(node("prompter", "q", node("prompter", "r", node("assistant", "a")))), KEPT),
        "preference": (prefer(USER, USER, BOT), KEPT),
        "openai_preference": (outputs(USER, USER, BOT), KEPT),
        "classification": ({"text": "t", "sentence": "t", "label": 1}, "two columns for one name"),
        "gemini": (contents(USER, USER, MODEL, MODEL), KEPT),
        "segments": (segments(READ, READ, LEARNT, LEARNT), KEPT),
    },
    "images: null": {
        "messages": (chat(USER, BOT, images=None), KEPT),
        "prompt_completion": ({"prompt": "p", "completion": "c", "images": None}, KEPT),
        "text": ({"text": "t", "images": None}, KEPT),
        "alpaca": ({"instruction": "q", "output": "a", "images": None}, KEPT),
        "sharegpt": (pairs(HUMAN, GPT, images=None), KEPT),
        "query_response": ({"query": "q", "response": "a", "images": None}, KEPT),
        "openorca": ({"system_prompt": "", "question": "q", "response": "a", "images": None}, KEPT),
        "oasst": ({**TREE, "images": None}, KEPT),
        "preference": ({"prompt": "p", "chosen": "a", "rejected": "b", "images": None}, KEPT),
        "openai_preference": (outputs(USER, BOT, images=None), KEPT),
        "classification": ({"text": "t", "label": 1, "images": None}, KEPT),
        "gemini": (contents(USER, MODEL, images=None), KEPT),
        "segments": (segments(READ, LEARNT, images=None), KEPT),
    },
    "images": {
        "messages": (chat(USER, BOT, images=["1"]), KEPT),
        "prompt_completion": ({"prompt": "p", "completion": "c", "images": ["1"]}, "`images` is not read"),
        "text": ({"text": "t", "images": ["1"]}, "`images` is not read"),
        "alpaca": ({"instruction": "q", "output": "a", "images": ["1"]}, KEPT),
        "sharegpt": (pairs(HUMAN, GPT, images=["1"]), KEPT),
        "query_response": ({"query": "q", "response": "a", "images": ["1"]}, KEPT),
        "openorca": ({"system_prompt": "", "question": "q", "response": "a", "images": ["1"]}, KEPT),
        "oasst": ({**TREE, "images": ["1"]}, "`images` is not read"),
        "preference": ({"prompt": "p", "chosen": "a", "rejected": "b", "images": ["1"]}, "`images` is not read"),
        "openai_preference": (outputs(USER, BOT, images=["1"]), KEPT),
        "classification": ({"text": "t", "label": 1, "images": ["1"]}, "`images` is not read"),
        "gemini": (contents(USER, MODEL, images=["1"]), KEPT),
        "segments": (segments(READ, LEARNT, images=["1"]), "`images` is not read"),
    },
    "text in parts": {
        "messages": (chat(("user", [{"type": "text", "text": "q"}]), BOT), KEPT),
        "prompt_completion": (split(("user", [{"type": "text", "text": "q"}]), BOT), KEPT),
        "text": ({"text": [{"type": "text", "text": "q"}]}, "text is not a string"),
        "alpaca": ({"instruction": ["q"], "output": "a"}, "instruction is not a string"),
        "sharegpt": (pairs(("human", ["q"]), GPT), "content is not a string"),
        "query_response": ({"query": ["q"], "response": "a"}, "query is not a string"),
        "openorca": ({"system_prompt": "", "question": ["q"], "response": "a"}, "question is not a string"),
        "oasst": (tree(node("prompter", ["q"], node("assistant", "a"))), "message without text"),
        "preference": (prefer(("user", [{"type": "text", "text": "q"}]), BOT), KEPT),
        "openai_preference": (outputs(("user", [{"type": "text", "text": "q"}]), BOT), KEPT),
        "classification": ({"text": ["t"], "label": 1}, "text is not a string"),
        "gemini": (contents(USER, MODEL), KEPT),
        "segments": (segments((False, [{"text": "q"}]), LEARNT), "bad segments"),
    },
    "another tool's roles": {
        "messages": (chat(("student", "q"), BOT), "unknown role"),
        "prompt_completion": (split(("student", "q"), BOT), "unknown role"),
        "text": NONE,
        "alpaca": ({"student": "q", "teacher": "a"}, "unknown row shape"),
        "sharegpt": (pairs(("student", "q"), GPT), "unknown role"),
        "query_response": ({"student": "q", "response": "a"}, "unknown row shape"),
        "openorca": NONE,
        "oasst": (tree(node("student", "q", node("assistant", "a"))), "unknown role"),
        "preference": (prefer(("student", "q"), BOT), "unknown role"),
        "openai_preference": (outputs(("student", "q"), BOT), "unknown role"),
        "classification": NONE,
        "gemini": (contents(("student", "q"), MODEL), "unknown role"),
        "segments": NONE,
    },
    "the answer first": {
        "messages": (chat(BOT, USER), KEPT),
        "prompt_completion": (split(BOT, USER), "no assistant turn"),
        "text": NONE,
        "alpaca": NONE,
        "sharegpt": (pairs(GPT, HUMAN), KEPT),  # and counted, see test_adapters
        "query_response": NONE,
        "openorca": NONE,
        "oasst": (tree(node("assistant", "a", node("prompter", "q"))), KEPT),
        "preference": (prefer(BOT, USER), "no assistant turn"),
        "openai_preference": (outputs(BOT, USER), "no assistant turn"),
        "classification": NONE,
        "gemini": (contents(MODEL, USER), KEPT),
        "segments": (segments(LEARNT, READ), KEPT),
    },
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FORMATS)
def test_rows(name: str, case: str) -> None:
    row, outcome = CASES[case][name]
    result = parsed(json.dumps(row).encode())
    assert result.rows == 1
    if outcome.startswith("dropped:"):
        assert result.dropped == {outcome.removeprefix("dropped:"): 1} and not result.problems
    elif outcome:
        assert outcome in [problem.reason for problem in result.problems] and not result.conversations
    else:
        assert not result.problems and len(result.conversations) == 1


def test_the_table_is_whole() -> None:
    assert all(cells.keys() == FORMATS.keys() for cells in CASES.values())


def test_texts_and_parts_and_a_late_loss_in_one_file() -> None:
    rows = [
        chat(USER, BOT),
        chat(("user", [{"type": "text", "text": "q"}]), BOT),
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "loss": False}]},
        *(row for rows in ROWS.values() for row in rows),
    ]
    result = parsed("\n".join(json.dumps(row) for row in rows).encode())
    assert not result.problems and set(result.formats) == set(FORMATS)
    assert [conversation.messages[1].train for conversation in result.conversations[:3]] == [None, None, False]


CALL = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
OTHER_CALL = {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 2}}


def said(role: str, content: Any) -> Row:
    return {"role": role, "content": content}


def result(of: str, text: str) -> Row:
    return {"type": "tool_result", "tool_use_id": of, "content": text}


TWO_RESULTS = [
    said("user", "q"),
    said("assistant", [{"type": "text", "text": "ok"}, CALL, OTHER_CALL]),
    said("user", [result("c1", "one"), result("c2", "two")]),
]
RESULT_AND_TEXT = [
    said("user", "q"),
    said("assistant", [CALL]),
    said("user", [result("c1", "one"), {"type": "text", "text": "and now?"}]),
]
FUNCTIONS = [
    {"from": "human", "value": "q"},
    {"from": "gpt", "value": "let me see"},
    {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
    {"from": "observation", "value": "1"},
]
GOOD, BAD = said("assistant", "good"), said("assistant", "bad")
PAIRS: dict[str, Row] = {
    "one turn that is read as several": {"chosen": [*TWO_RESULTS, GOOD], "rejected": [*TWO_RESULTS, BAD]},
    "a result and words in one turn": {"chosen": [*RESULT_AND_TEXT, GOOD], "rejected": [*RESULT_AND_TEXT, BAD]},
    "several turns that are read as one": {"chosen": [*FUNCTIONS, GOOD], "rejected": [*FUNCTIONS, BAD]},
    "a dialogue and an answer": {"prompt": "q", "chosen": [said("user", "q"), GOOD], "rejected": [BAD]},
    "the same without a prompt": {"chosen": [said("user", "q"), GOOD], "rejected": [BAD]},
    "an answer and a dialogue": {"prompt": "q", "chosen": [GOOD], "rejected": [said("user", "q"), BAD]},
    "the same with a list": {"prompt": [said("user", "q")], "chosen": [GOOD], "rejected": [said("user", "q"), BAD]},
    "the same written in two ways": {
        "chosen": [said("user", "q"), GOOD],
        "rejected": [said("user", [{"type": "text", "text": "q"}]), BAD],
    },
    "answers that differ from their first turn on": {
        "chosen": [said("user", "q"), said("assistant", "a"), said("user", "r"), GOOD],
        "rejected": [said("user", "q"), said("assistant", "a"), said("user", "s"), BAD],
    },
    "a later turn of the person differs": {
        "messages": [said("user", "q"), said("assistant", "a"), said("user", "r"), GOOD],
        "rejected_messages": [said("user", "q"), said("assistant", "a"), said("user", "s"), BAD],
    },
    "texts": {"prompt": "q", "chosen": "good", "rejected": "bad"},
} | {f"{name} of the fixtures": row for name, row in enumerate(ROWS["preference"])}


@pytest.mark.parametrize("case", PAIRS)
def test_both_answers_of_a_preference_follow_the_same(case: str) -> None:
    (pair,) = parsed(json.dumps(PAIRS[case]).encode()).conversations
    chosen, rejected = pair.with_chosen, pair.with_rejected
    before = len(chosen.messages) - pair.preferred
    assert chosen.messages[:before] == rejected.messages[:before] and pair.preferred
    assert all(turn.train is False or turn.role == "prompt" for turn in chosen.messages[:before])
    for one in (chosen, rejected):
        assert (
            one.messages[before].role in ("assistant", "completion")
            and one.messages[-1].role == one.messages[before].role
        )
    assert chosen.messages[before:] != rejected.messages[before:]


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": [said("user", "q"), GOOD], "rejected": [said("user", "other"), BAD]},
        {"system": "s", "prompt": "q", "chosen": [GOOD], "rejected": [said("system", "s"), said("user", "q"), BAD]},
        {"chosen": [said("user", "q"), said("user", "more"), GOOD], "rejected": [said("user", "q"), BAD]},
        {"messages": [said("user", "q"), GOOD], "rejected_messages": [said("user", "other"), BAD]},
    ],
)
def test_answers_to_two_questions_are_no_preference(row: Row) -> None:
    (problem,) = parsed(json.dumps(row).encode()).problems
    assert problem.reason == "two prompts" and "do not follow the same turns" in problem.what
