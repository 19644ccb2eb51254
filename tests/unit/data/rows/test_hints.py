"""Every hint of what is wrong with a row, followed: afterwards nothing is wrong."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

import rankzero.data.rows.formats as formats
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.parse import parse
from rankzero.data.rows.problems import RowProblem
from tests.unit.data.rows.formats.support import CALL, TOOL
from tests.unit.data.support import chat, user_assistant

Row = dict[str, Any]

USER, BOT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOLD = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
REMOVED: Row = {}
"""The hint is to remove the row."""


def turns(*items: Any, **row: Any) -> Row:
    return {"messages": list(items), **row}


def part(**keys: Any) -> Row:
    return {"role": "user", "content": [{"type": "text", "text": "q"}, keys]}


GOOD = user_assistant("q", "a")
ALPACA = {"instruction": "i", "output": "o"}
PAIR = {"prompt": "p", "chosen": "a", "rejected": "b"}
TEXT = {"type": "text", "text": "a"}
THOUGHT = {"type": "thinking", "thinking": "t"}
USE = {"type": "tool_use", "id": "call_1", "name": "add", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "3"}

# What is wrong, words of its hint, and the row once the hint is followed.
OUTPUTS = {"preferred_output": [BOT], "non_preferred_output": [{**BOT, "content": "b"}]}
CASES: list[tuple[Any, str, Row]] = [
    ([1], "accepted are", GOOD),
    ({"zzz": 1}, '{"text": "…"}', {"text": "t"}),
    ({"ask": "q", "reply": "a"}, "--columns prompt=ask,completion=reply", {"prompt": "q", "completion": "a"}),
    ({"talk": [USER, BOT], "note": {"a": 1}}, "--columns messages=talk", turns(USER, BOT)),
    ({"talk": [{"from": "human", "value": "q"}]}, "--columns conversations=talk", turns(USER, BOT)),
    ({"text": "t", "prompt": "p"}, "format: text", {"text": "t"}),
    ({"text": "t", "images": ["1"]}, "remove the key", {"text": "t"}),
    (ALPACA | {"choices": ["x"]}, "write it into the question", {"instruction": "i\nx", "output": "o"}),
    ({"text": 3}, "as a JSON string", {"text": "3"}),
    ({"text": " "}, "remove the row", REMOVED),
    (turns(USER, BOT, train=False), "or the key to train on it", GOOD),
    (turns(USER, BOT | {"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]}), "by `train`", GOOD),
    (ALPACA | {"instruction": 3}, "as a JSON string", ALPACA | {"instruction": "3"}),
    (ALPACA | {"output": 3}, "as a JSON string", ALPACA | {"output": "3"}),
    (ALPACA | {"output": ""}, "give it text", ALPACA),
    (ALPACA | {"instruction": ""}, "remove the row", REMOVED),
    (ALPACA | {"system": 3}, "as a JSON string", ALPACA | {"system": "3"}),
    (ALPACA | {"input": "x", "context": "c"}, "write into the question", {"instruction": "i\nx\nc", "output": "o"}),
    (ALPACA | {"context": ["c", "d"]}, "join it", ALPACA | {"context": "c\nd"}),
    (ALPACA | {"history": "x"}, '[["question", "answer"], …]', ALPACA | {"history": [["q", "a"]]}),
    (ALPACA | {"history": [["q"]]}, '[["question", "answer"], …]', ALPACA | {"history": [["q", "a"]]}),
    (ALPACA | {"history": [["q", ""]]}, "remove the row", REMOVED),
    (chat(("system", "s"), ("user", "q"), ("assistant", "a")) | {"system": "t"}, "which of the two", GOOD),
    (
        {"question": "q", "answer": "a", "solution": "b"},
        "columns: {response: answer}",
        {"question": "q", "answer": "a"},
    ),
    ({"text": "a", "sentence": "b", "label": 1}, "columns: {text: sentence}", {"sentence": "b", "label": 1}),
    (
        {"premise": "p", "hypothesis": "h", "label": 1},
        "join `premise`, `hypothesis` as `text`",
        {"text": "p\nh", "label": 1},
    ),
    ({"review": "t", "label": "pos", "id": "7"}, "--columns text=review ", {"text": "t", "label": "pos"}),
    ({"text": "t", "label": 0.5}, "labels are like 0, 1", {"text": "t", "label": 1}),
    ({"text": "t", "label": " "}, "name its class", {"text": "t", "label": "class"}),
    (GOOD | {"label": True}, "without the key", GOOD),
    (
        {"segments": [{"label": True, "text": "a"}], "rejected_response": "b"},
        "name the two chosen and rejected",
        {"chosen": "a", "rejected": "b"},
    ),
    (GOOD | {"rejected_response": ["b", "c"]}, "a row for each", GOOD | {"rejected_response": "b"}),
    (GOOD | {"rejected_response": "a"}, "remove the row", REMOVED),
    (GOOD | {"rejected_response": ""}, "remove the row", REMOVED),
    (
        GOOD | {"rejected_messages": [USER]},
        "an answer is an assistant turn",
        GOOD | {"rejected_messages": [USER, {**BOT, "content": "b"}]},
    ),
    (GOOD | {"rejected_response": "b", "rejected_images": ["1"]}, "both answers share", GOOD),
    (GOOD | {"image": 3}, '{"images": ["photos/1.jpg"]}', GOOD | {"images": ["photos/1.jpg"]}),
    (GOOD | {"image": "1", "images": ["2"]}, "keep one", GOOD | {"images": ["2"]}),
    (turns(part(type="image", image="1"), BOT, images=["2"]), "keep one", turns(part(type="image", image="1"), BOT)),
    (
        turns(part(type="image"), part(type="image", image="1"), BOT),
        "give all of them in `images`",
        turns(part(type="image"), part(type="image"), BOT, images=["1", "1"]),
    ),
    (
        user_assistant("<image><image>", "a") | {"images": ["1"]},
        "give every <image>",
        user_assistant("<image><image>", "a") | {"images": ["1", "2"]},
    ),
    (turns(BOT, images=["1"]), "put <image> into the text", turns({**BOT, "content": "<image>a"}, images=["1"])),
    (turns(USER), "remove the row", REMOVED),
    ({"messages": 3}, '{"messages": [{"role"', GOOD),
    ({"messages": []}, "remove the row", REMOVED),
    (turns("hi", BOT), '{"role": "user", "content": "…"}', GOOD),
    (turns({"content": "q"}, BOT), '{"role": "user"', GOOD),
    (turns({"role": 3, "content": "q"}, BOT), "roles are system", GOOD),
    (turns({"role": "usr", "content": "q"}, BOT), "did you mean user?", GOOD),
    (turns({"role": "zzzz", "content": "q"}, BOT), "roles are", GOOD),
    (turns({"role": "user", "text": "q"}, BOT), "rename text to content", GOOD),
    (turns({"role": "user", "content": None}, BOT), "give it text", GOOD),
    (turns({"role": "user", "content": 3}, BOT), "as a JSON string", GOOD),
    (turns({"role": "user", "content": []}, BOT), "give it text", GOOD),
    (
        turns(USER, {"role": "assistant", "content": ""}),
        '"loss": false',
        turns(USER, {"role": "assistant", "content": "", "loss": False}, USER, BOT),
    ),
    (turns(USER, {**BOT, "refusal": "no"}), "remove the key", GOOD),
    (turns(part(type="audio"), BOT), "write it as one of these", turns(part(type="text", text="r"), BOT)),
    (turns({"role": "user", "content": ["x"]}, BOT), "parts are text", GOOD),
    (
        turns(USER, {"role": "assistant", "content": [TEXT, THOUGHT]}),
        "before the text",
        turns(USER, {"role": "assistant", "content": [THOUGHT, TEXT]}),
    ),
    (
        turns(USER, {"role": "assistant", "content": [USE, TEXT]}),
        "comes before its calls",
        turns(USER, {"role": "assistant", "content": [TEXT, USE]}),
    ),
    (
        turns(USER, CALLING, {"role": "user", "content": [TEXT, RESULT]}, BOT),
        "put the answer first",
        turns(USER, CALLING, {"role": "user", "content": [RESULT, TEXT]}, BOT),
    ),
    (
        turns(USER, CALLING, {"role": "user", "content": [{**RESULT, "content": [{"type": "image"}]}]}, BOT),
        "text or JSON",
        turns(USER, CALLING, {"role": "user", "content": [RESULT]}, BOT),
    ),
    (
        turns(USER, CALLING, {"role": "assistant", "content": [RESULT]}, BOT),
        "tools answer in user turns",
        turns(USER, CALLING, {"role": "user", "content": [RESULT]}, BOT),
    ),
    (turns({"role": "user", "content": [USE]}, BOT), "name its role assistant", turns(USER, {**BOT, "content": [USE]})),
    (turns({**USER, "tool_calls": [CALL]}, BOT), "name its role assistant", turns(USER, {**BOT, "tool_calls": [CALL]})),
    (turns(USER, {**CALLING, "function_call": CALL["function"]}), "keep `tool_calls`", turns(USER, CALLING)),
    (turns(USER, {**CALLING, "content": [USE]}), "keep `tool_calls`", turns(USER, CALLING)),
    (turns(USER, CALLING, {**TOLD, "tool_call_id": 3}, BOT), "as a JSON string", turns(USER, CALLING, TOLD, BOT)),
    (turns(USER, CALLING, {**TOLD, "tool_call_id": "x"}, BOT), "are the same", turns(USER, CALLING, TOLD, BOT)),
    (turns(USER, {**CALLING, "tool_calls": ["f"]}), '"function": {"name"', turns(USER, CALLING)),
    (
        turns(USER, {**CALLING, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
        '"{}"',
        turns(USER, {**CALLING, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    ),
    (
        turns(USER, {**CALLING, "tool_calls": [{"function": {"name": "f"}}]}),
        '"{}"',
        turns(USER, {**CALLING, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
    ),
    (GOOD | {"tools": 3}, '"function": {"name"', GOOD | {"tools": [TOOL]}),
    (GOOD | {"tools": ["f"]}, '"function": {"name"', GOOD | {"tools": [TOOL]}),
    (GOOD | {"tools": [TOOL], "functions": [TOOL]}, "keep `tools`", GOOD | {"tools": [TOOL]}),
    (turns(USER, {**BOT, "loss": 0.5}), '"loss_weight": 0.5', turns(USER, {**BOT, "loss_weight": 0.5})),
    (turns(USER, {**BOT, "loss_weight": -1}), "0 is not trained", turns(USER, {**BOT, "loss_weight": 1})),
    (turns(USER, {**BOT, "loss": True, "weight": 0}), "keep one", turns(USER, {**BOT, "loss": True})),
    (turns({**USER, "loss": True}, BOT), "remove the key", GOOD),
    (turns(USER, {**BOT, "reasoning_content": 3}), "as a JSON string", turns(USER, {**BOT, "reasoning_content": "3"})),
    (turns({**USER, "reasoning_content": "t"}, BOT), "remove it", GOOD),
    (
        turns(USER, {"role": "assistant", "content": "<think>t</think>a", "reasoning_content": "u"}),
        "in one place",
        turns(USER, {"role": "assistant", "content": "<think>t</think>a"}),
    ),
    (
        {"conversations": [{"human": "q", "assistant": 3}]},
        "as a JSON string",
        {"conversations": [{"human": "q", "assistant": "3"}]},
    ),
    ({"prompt": "p"}, "accepted are", {"prompt": "p", "completion": "c"}),
    ({"prompt": "p", "label": "c"}, "rename label to completion", {"prompt": "p", "completion": "c"}),
    ({"completion": "c"}, '{"text": "…"}', {"text": "c"}),
    ({"prompt": "p", "completion": [BOT]}, "both lists of messages", {"prompt": [USER], "completion": [BOT]}),
    ({"prompt": "", "completion": "c"}, '{"text": "…"}', {"text": "c"}),
    ({"prompt": "p", "completion": ""}, "remove the row", REMOVED),
    (
        {"prompt": "p", "completion": "c", "system": "s"},
        '"prompt": [{"role": "user"',
        {"prompt": [USER], "completion": [BOT], "system": "s"},
    ),
    (
        {"prompt": [USER, {**BOT, "loss": True}], "completion": [BOT]},
        "belong in completion",
        {"prompt": [USER], "completion": [BOT, BOT]},
    ),
    (
        {"prompt": [USER], "completion": [USER]},
        "assistant turn of `completion`",
        {"prompt": [USER], "completion": [BOT]},
    ),
    ({"prompt": "p", "chosen": "a"}, "rename it to completion", {"prompt": "p", "completion": "a"}),
    (
        {"prompt": "p", "rejected": "b"},
        "the better answer is `chosen`",
        {"prompt": "p", "chosen": "a", "rejected": "b"},
    ),
    (PAIR | {"rejected": "a"}, "remove the row", REMOVED),
    (PAIR | {"history": [["q", "a"]]}, "write it into the prompt", PAIR),
    (
        {"messages": [USER, BOT], "chosen": {**BOT, "content": "b"}, "rejected": {**BOT, "content": "c"}},
        "the two are to follow a question",
        {"messages": [USER], "chosen": {**BOT, "content": "b"}, "rejected": {**BOT, "content": "c"}},
    ),
    (
        {"question": "q", "instruction": "i", "chosen": "a", "rejected": "b"},
        "keep one",
        {"question": "q", "chosen": "a", "rejected": "b"},
    ),
    ({"chosen": "\n\nHuman: q\n\nAssistant:", "rejected": "\n\nHuman: q\n\nAssistant: b"}, "remove the row", REMOVED),
    (PAIR | {"rejected": [BOT]}, "both strings", PAIR),
    (PAIR | {"rejected": ""}, "remove the row", REMOVED),
    (PAIR | {"prompt": ""}, "leave the key out", {"chosen": "a", "rejected": "b"}),
    (
        {"prompt": " ", "chosen": [BOT], "rejected": [{**BOT, "content": "b"}]},
        "leave the key out",
        {"chosen": [BOT], "rejected": [{**BOT, "content": "b"}]},
    ),
    (
        {"prompt": "x", "chosen": [USER, BOT], "rejected": [USER, {**BOT, "content": "b"}]},
        "which of the two",
        {"prompt": "q", "chosen": [USER, BOT], "rejected": [USER, {**BOT, "content": "b"}]},
    ),
    ({"prompt": "p", "chosen": [USER], "rejected": [BOT]}, "which of the two", PAIR),
    (
        {"input": {"messages": [USER]}, "preferred_output": [BOT]},
        "remove it where it is cut",
        OUTPUTS | {"input": {"messages": [USER]}},
    ),
    (
        OUTPUTS | {"input": {"messages": [USER]}, "preferred_output": "a"},
        "a list of turns",
        OUTPUTS | {"input": {"messages": [USER]}},
    ),
    (
        OUTPUTS | {"input": {"messages": [USER], "tools": [TOOL]}, "tools": [TOOL]},
        "keep one",
        OUTPUTS | {"input": {"messages": [USER], "tools": [TOOL]}},
    ),
    (OUTPUTS | {"input": "q"}, "what was asked: {messages: [", OUTPUTS | {"input": {"messages": [USER]}}),
    (
        OUTPUTS | {"input": {"messages": [USER], "instructions": "s"}},
        "write it into the messages",
        OUTPUTS | {"input": {"messages": [{"role": "system", "content": "s"}, USER]}},
    ),
    (
        OUTPUTS | {"input": {"messages": [USER]}, "preferred_output": [USER]},
        "an answer is an assistant turn",
        OUTPUTS | {"input": {"messages": [USER]}},
    ),
    (
        {"chosen": [USER], "rejected": [BOT]},
        "an answer is an assistant turn",
        {"chosen": [BOT], "rejected": [{**BOT, "content": "b"}]},
    ),
    (
        {"prompt": "p", "chosen": [BOT], "rejected": [{**BOT, "content": [{"type": "image", "image": "1"}]}]},
        "belong to the prompt",
        PAIR,
    ),
    *(
        (
            turns(USER, {**BOT, "content": f"<tool_call>{text}</tool_call>"}, tools=[TOOL]),
            "write it as `tool_calls`",
            turns(USER, CALLING, tools=[TOOL]),
        )
        for text in ("add(1)", "{'name': 'add', 'arguments': {'a': {1}}}", "1e999", "[" * 9999)
    ),
    (
        turns(USER, {**BOT, "content": '<tool_call>{"name": ["add"], "arguments": {}}</tool_call>'}, tools=[TOOL]),
        "write it as `tool_calls`",
        turns(USER, CALLING, tools=[TOOL]),
    ),
    (
        turns({"role": "system", "content": "<tools>add</tools>"}, USER, BOT, tools=[TOOL]),
        "or remove `tools`",
        turns({"role": "system", "content": "<tools>add</tools>"}, USER, BOT),
    ),
    (
        turns(USER, {**BOT, "content": '{"name": "add", "arguments": "a"}'}, tools=[TOOL]),
        'a call without arguments has "{}"',
        turns(USER, CALLING, tools=[TOOL]),
    ),
    (
        GOOD | {"chat_template_kwargs": 3},
        '{"enable_thinking"',
        GOOD | {"chat_template_kwargs": {"enable_thinking": False}},
    ),
    (GOOD | {"chat_template_kwargs": {"tools": []}}, "remove it there", GOOD | {"chat_template_kwargs": {}}),
    (
        {"conversation": [{"input": "q", "output": "a"}], "chosen": [BOT], "rejected": [BOT | {"content": "b"}]},
        "write them as turns",
        {"conversation": [USER, BOT, USER], "chosen": [BOT], "rejected": [BOT | {"content": "b"}]},
    ),
    (
        PAIR | {"system": "s"},
        "--columns question=prompt",
        {"question": "p", "chosen": "a", "rejected": "b", "system": "s"},
    ),
    ({"segments": 3}, '{"label": false', {"segments": [{"label": True, "text": "t"}]}),
    ({"segments": [{"text": "t"}]}, '{"label": false', {"segments": [{"label": True, "text": "t"}]}),
    ({"segments": [{"label": False, "text": "t"}]}, "remove the row", REMOVED),
    (
        {
            "contents": [{"parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}]}],
            "system": "s",
            "systemInstruction": {"parts": [{"text": "t"}]},
        },
        "keep one",
        {"contents": [{"parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}]}], "system": "s"},
    ),
    (
        {"prompt": {"text": "q", "role": "bot", "message_id": "1"}},
        "prompter, assistant",
        {
            "prompt": {
                "text": "q",
                "role": "prompter",
                "message_id": "1",
                "replies": [{"text": "a", "role": "assistant"}],
            }
        },
    ),
    (
        {"prompt": {"text": "", "role": "prompter", "message_id": "1"}},
        "mark it deleted",
        {"prompt": {"text": "", "role": "prompter", "message_id": "1", "deleted": True}},
    ),
    (
        {"prompt": {"text": "q", "role": "prompter", "replies": 3}},
        '"replies": [{…}]',
        {"prompt": {"text": "q", "role": "prompter", "replies": [{"text": "a", "role": "assistant"}]}},
    ),
]

IN_OTHER_TESTS = frozenset(
    {"flat oasst row", "orphan", "cycle", "message twice", "message without an id", "tree too deep"}  # of whole files
    | {"not in the stated format", "no label"}  # of formats that are stated
)


def problems_of(row: Any) -> list[RowProblem]:
    return parse(Chunk(0, 1, json.dumps(row).encode() + b"\n"), "auto").problems


@pytest.mark.parametrize(("row", "words", "followed"), CASES)
def test_a_hint_that_is_followed_helps(row: Any, words: str, followed: Row) -> None:
    problems = problems_of(row)
    assert any(words in problem.hint for problem in problems), [(p.what, p.hint) for p in problems]
    assert all(problem.hint for problem in problems)
    if followed is not REMOVED:
        assert problems_of(followed) == []


def test_every_problem_of_rows_has_a_hint_that_is_followed_here() -> None:
    found = {problem.reason for row, _, _ in CASES for problem in problems_of(row)}
    missing = []
    for file in sorted(Path(formats.__file__).parent.glob("*.py")):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name | ast.Attribute):
                continue
            name = call.func.id if isinstance(call.func, ast.Name) else call.func.attr
            at = {"RowProblem": 1, "_problem": 0}.get(name)
            reasons = _patterns(call.args[at]) if at is not None and len(call.args) > at else []
            for reason in reasons:
                known = [one for one in (*found, *IN_OTHER_TESTS) if re.fullmatch(reason, one, re.DOTALL)]
                if not known:
                    missing.append(f"{file.name}:{call.lineno} {reason}")
    assert not missing, missing


def _patterns(reason: ast.expr) -> list[str]:
    if isinstance(reason, ast.Constant):
        return [re.escape(str(reason.value))]
    if isinstance(reason, ast.JoinedStr):
        parts = (re.escape(str(p.value)) if isinstance(p, ast.Constant) else ".*" for p in reason.values)
        return ["".join(parts)]
    return []
