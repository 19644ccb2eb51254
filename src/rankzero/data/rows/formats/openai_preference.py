"""Rows of OpenAI's preference fine-tuning: what was asked in `input`, then `preferred_output` and
`non_preferred_output`. Knows nothing of templates or tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rankzero.data.rows.formats import preference
from rankzero.data.rows.formats.fields import CHAT_FIELDS, UNWANTED
from rankzero.data.rows.formats.format import ASKING, Claim, Format, Keys, Noted, Result, Row
from rankzero.data.rows.formats.roles import role_of
from rankzero.data.rows.formats.tools import TOOL_KEYS, decoded
from rankzero.data.rows.formats.turns import TURN_KEYS, unread_keys
from rankzero.data.rows.problems import RowProblem, kind

CHOSEN, REJECTED = "preferred_output", "non_preferred_output"
KEYS = frozenset({"input", CHOSEN, REJECTED})
SHAPE = '{"input": {"messages": […]}, "preferred_output": […], "non_preferred_output": […]}'

_TOOLS, _HOW = "tools", "parallel_tool_calls"
_NOT_READ = f"`input.{_HOW}` is how OpenAI's model would be asked, and is not read"
_READ = frozenset({"messages", _TOOLS, _HOW})
_WORDS = {"chosen": CHOSEN, "rejected": REJECTED, "prompt": "input.messages"}
"""What this shape calls what a preference has."""


def to_conversation(row: Row, line: int) -> Result:
    """A preference whose prompt are the messages of `input`."""
    asked = decoded(row["input"])
    if not isinstance(asked, dict) or not asked.get("messages"):
        what = f"`input` is {kind(asked)}" if not isinstance(asked, dict) else "`input` has no `messages`"
        return [RowProblem(line, "input without messages", what, "what was asked: {messages: [{role, content}, …]}")]
    turns = {"input.messages": _turns(asked["messages"]), **{key: _turns(row[key]) for key in (CHOSEN, REJECTED)}}
    for name, value in turns.items():
        if not isinstance(value, list):
            what, hint = f"`{name}` is {kind(value)}", "a list of turns: [{role, content}, …]"
            return [RowProblem(line, "no list of turns", what, hint)]
    if problems := _beside(asked, row, line) or [*_questions(turns, line)]:
        return problems
    read = {key: value for key, value in row.items() if key not in KEYS}
    read |= {_TOOLS: asked[_TOOLS]} if asked.get(_TOOLS) else {}
    read |= {ours: turns[theirs] for ours, theirs in _WORDS.items()}
    found = preference.to_conversation(read, line)
    if isinstance(found, list):
        return list(_in_its_words(found))
    if asked.get(_HOW) is None:
        return found
    noted = found if isinstance(found, Noted) else Noted(found if isinstance(found, tuple) else (found,))
    return Noted(noted.conversations, (*noted.rules, _NOT_READ), noted.dropped)


def _turns(value: object) -> Any:
    """As a list, also of one turn, and of JSON in a string."""
    read = decoded(value)
    return [read] if isinstance(read, dict) else read


def _questions(turns: dict[str, Any], line: int) -> Iterable[RowProblem]:
    """The answers that begin with somebody else's turn."""
    for key in (CHOSEN, REJECTED):
        first = turns[key][0] if turns[key] else None
        role = role_of(first.get("role", first.get("from"))) if isinstance(first, dict) else None
        if role not in (None, "assistant"):  # what is no role is told as in any turn
            what = f"`{key}` begins with a {role} turn"
            yield RowProblem(line, "no assistant turn", what, "an answer is an assistant turn")


def _beside(asked: Row, row: Row, line: int) -> list[RowProblem]:
    """What `input` has beside its messages and would be lost."""
    unread = sorted(key for key, value in asked.items() if key not in _READ and value is not None)
    if unread:
        what = f"`input` has `{unread[0]}` beside its messages"
        return [RowProblem(line, f"`{unread[0]}` is not read", what, "remove the key, or write it into the messages")]
    twice = next((key for key in TOOL_KEYS if row.get(key)), None) if asked.get(_TOOLS) else None
    if twice is None:
        return []
    what = f"`input` has `{_TOOLS}`, and the row has `{twice}` beside it"
    return [RowProblem(line, "tools in two places", what, "which of the two are meant? keep one")]


def _in_its_words(problems: Iterable[RowProblem]) -> Iterable[RowProblem]:
    """As the row has the question and the two answers."""
    for problem in problems:
        texts = [problem.reason, problem.what, problem.hint]
        for ours, theirs in _WORDS.items():
            texts = [re.sub(rf"\b{ours}(?=[`[])", theirs, text) for text in texts]
        reason, what = (re.sub(r"\b(chosen|rejected)\b", lambda word: _WORDS[word[0]], text) for text in texts[:2])
        yield RowProblem(problem.line, reason, what, texts[2])


def _near_miss(row: Row, marks: Keys, line: int) -> RowProblem | None:
    """An answer without what it is an answer to, or without the other one."""
    del marks
    there = [key for key in (CHOSEN, REJECTED) if row.get(key)]
    missing = [key for key in ("input", CHOSEN, REJECTED) if not row.get(key)]
    if not there or not missing:
        return None
    what = f"the row has `{there[0]}` and no `{missing[0]}`"
    return RowProblem(line, f"{there[0]} without {missing[0]}", what, f"a row is {SHAPE}; remove it where it is cut")


FORMAT = Format(
    name="openai_preference",
    needs=(KEYS,),
    reads=(KEYS | CHAT_FIELDS) - {*UNWANTED},
    shape=SHAPE,
    to_conversation=to_conversation,
    unread=ASKING,
    learns_answers=False,
    claims=(Claim(KEYS),),
    near_miss=_near_miss,
    turn_lists=frozenset({"input.messages", CHOSEN, REJECTED}),
    turn_keys=TURN_KEYS,
    unread_in_turn=unread_keys,
    nests=True,
)
