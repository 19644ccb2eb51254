"""Calls of tools and their answers that rows have as text, in the tags of one model family or as bare JSON, though the
row names its tools. Knows turns; no format and no template.

A chat template writes tools, calls and answers in its own way, around or beside what is there as text already.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile, zip_longest
from typing import Any

import orjson

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats.json_text import read_text
from rankzero.data.rows.formats.tool_lists import without_list
from rankzero.data.rows.formats.tools import read_calls
from rankzero.data.rows.problems import RowProblem

CALLS_READ = "tool calls in the text are read as calls"
ANSWERS_READ = "answers of tools are taken out of their tags"
NOT_CLOSED = "a tool call in the text that lacks its closing tag alone is read as a call"
UNLISTED = "calls of tools that the row's own list of tools lacks are kept"
TOOLS_TWICE = "what lists the row's tools in a system prompt is left out: chat templates list them"

_CALL, _ANSWER, _TOOLS = "tool_call", "tool_response", "tools"
_CALL_KEYS = frozenset({"name", "arguments", "parameters", "id", "type", "function"})

Found = tuple[tuple[Message, ...], list[RowProblem], tuple[str, ...]]


def with_calls_read(turns: Sequence[Message], tools: Iterable[Mapping[str, Any]], line: int) -> Found:
    """The turns of a row that names its tools, with calls and answers as such; what is wrong with them; the rules that
    were applied. Raises TwiceReadError."""
    names = {tool["function"]["name"] for tool in tools}
    read: list[Message] = []
    problems: list[RowProblem] = []
    rules: dict[str, None] = {}
    has_calls = any(turn.tool_calls for turn in turns)
    for i, turn in enumerate(turns):
        found: Sequence[Message] | RowProblem | None = None
        applied: tuple[str, ...] = ()
        if turn.image_offsets:
            pass
        elif turn.role == "assistant":
            found = None if has_calls else _calling(turn, names, line, i)
            applied = (CALLS_READ, NOT_CLOSED) if _is_open(turn.answer) else (CALLS_READ,)
        elif turn.role in ("tool", "user"):
            found, applied = _answering(turn), (ANSWERS_READ,)
        elif turn.role == "system" and (listed := _inside(turn.content, _TOOLS)):
            found, applied = _listing(turn, names, listed, line), (TOOLS_TWICE,)
        if isinstance(found, RowProblem):
            problems.append(found)
        elif found is None:
            read.append(turn)
        else:
            read += found
            rules |= dict.fromkeys(applied)
    if any(call["function"]["name"] not in names for turn in read for call in turn.tool_calls):
        rules[UNLISTED] = None
    return _with_ids(read) if CALLS_READ in rules else tuple(read), problems, tuple(rules)


def answers_without_calls(turns: Iterable[Message], line: int) -> list[RowProblem]:
    """Tool turns that name a call, and none before them is it."""
    made: set[Any] = set()
    for turn in turns:
        if turn.tool_calls:
            made.update(call.get("id") for call in turn.tool_calls)
        if turn.tool_call_id is not None and turn.tool_call_id not in made:
            what = f"a tool answers the call {turn.tool_call_id[:40]!r}, and none before it has this id"
            return [RowProblem(line, "tool answer without its call", what, "the ids of call and answer are the same")]
    return []


def _with_ids(turns: Sequence[Message]) -> tuple[Message, ...]:
    """Calls that were text, of which those without ids have the ids that the answers behind them name, in order."""
    found = []
    for i, turn in enumerate(turns):
        if turn.tool_calls and not any("id" in call for call in turn.tool_calls):
            ids = [answer.tool_call_id for answer in takewhile(lambda later: later.role == "tool", turns[i + 1 :])]
            calls = zip_longest(turn.tool_calls, ids[: len(turn.tool_calls)])
            turn = replace(turn, tool_calls=tuple({"id": name, **call} if name else call for call, name in calls))
        found.append(turn)
    return tuple(found)


def _calling(turn: Message, names: set[str], line: int, i: int) -> list[Message] | RowProblem | None:
    """A turn that ends with calls in tags, or whose answer is calls of the row's tools as JSON. The last call may lack
    its closing tag, which is where some servers stop: behind other text it has to be one of the row's tools."""
    thought = turn.content[: len(turn.content) - len(turn.answer)]
    before, opened, rest = turn.answer.partition(f"<{_CALL}>")
    ends = turn.answer.rstrip().endswith(f"</{_CALL}>")
    begins = not before.strip() and rest.lstrip().startswith(("{", "["))  # and may have been cut off
    is_open = _is_open(turn.answer)
    if opened and (ends or begins or is_open):
        written = _inside(f"{opened}{rest}</{_CALL}>" if is_open else opened + rest, _CALL, alone=True)
        values = [_value(text) for text in written]
        calls, problems = read_calls(values, line, f"turn {i + 1}") if written and None not in values else ((), [])
        known = all(call["function"]["name"] in names for call in calls)
        if calls and not problems and (ends or begins or known):
            return [replace(turn, content=f"{thought}{before}".rstrip(), tool_calls=calls)]
        if ends or begins:
            if turn.train is False:
                return None
            what = f"turn {i + 1} has a tool call as text that cannot be read: {(opened + rest)[:60]!r}"
            hint = "write it as `tool_calls`, or remove the row's tools to train its text as it stands"
            return RowProblem(line, "tool call as text", what, hint)
    answer = turn.answer.strip()
    if not answer.startswith(("{", "[")):
        return None
    try:
        value = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    items = value if isinstance(value, list) else [value]
    if not items or not all(_is_call(item, names) for item in items):
        return None  # any answer in JSON, which is trained as it stands
    value = read_text(answer)
    calls, problems = read_calls(value if isinstance(value, list) else [value], line, f"turn {i + 1}")
    return problems[0] if problems else [replace(turn, content=thought.rstrip(), tool_calls=calls)]


def _is_open(answer: str) -> bool:
    """Whether the last tag that begins a call is not closed; in an answer in JSON it is an argument's."""
    return not answer.lstrip().startswith(("{", "[")) and answer.rfind(f"<{_CALL}>") > answer.rfind(f"</{_CALL}>")


def _answering(turn: Message) -> list[Message] | None:
    """A turn that is nothing but answers in tags: each a tool's."""
    answers = _inside(turn.content, _ANSWER, alone=True)
    if not answers:
        return None
    call = turn.tool_call_id if len(answers) == 1 else None
    return [replace(turn, role="tool", content=answer.strip(), tool_call_id=call) for answer in answers]


def _listing(turn: Message, names: set[str], listed: Sequence[str], line: int) -> list[Message] | RowProblem | None:
    """A system prompt that lists tools: what it says besides."""
    if not all(any(name in text for text in listed) for name in names):
        return None
    own = without_list(turn.content)
    if own is not None:
        return [replace(turn, content=own)] if own else []
    what = f"the row's tools are listed in its system prompt, too: {listed[-1].strip()[:60]!r}"
    return RowProblem(line, "tools in two places", what, "take the list out of the system prompt, or remove `tools`")


def _inside(text: str, tag: str, *, alone: bool = False) -> list[str]:
    """What stands in each pair of these tags; of texts that are to hold these `alone`, nothing where there is more."""
    found: list[str] = []
    before, *pieces = text.split(f"<{tag}>")
    outside = before.strip()
    for piece in pieces:
        inside, closed, behind = piece.partition(f"</{tag}>")
        found += [inside] if closed else []
        outside += behind.strip() if closed else piece
    return [] if alone and outside else found


def _is_call(value: object, names: set[str]) -> bool:
    if not isinstance(value, Mapping) or not _CALL_KEYS.issuperset(value):
        return False
    function = value.get("function", value)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return False
    return function["name"] in names and ("arguments" in function or "parameters" in function)


def _value(text: str) -> Any:
    """A call as JSON, or as Python prints it, which some data sets have."""
    value = _json(text)
    if value is not None:
        return value
    try:  # what JSON has no word for, a set say, is no argument
        return json.loads(json.dumps(ast.literal_eval(text.strip()), allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _json(text: str) -> Any:
    try:
        return read_text(text)
    except orjson.JSONDecodeError:
        return None
