"""Rows of OpenAI's preference fine-tuning: what was asked in `input`, then `preferred_output` and
`non_preferred_output`. Knows nothing of templates or tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rankzero.data.rows.formats import preference
from rankzero.data.rows.formats.fields import CHAT_FIELDS, UNWANTED
from rankzero.data.rows.formats.format import ASKING, Claim, Format, Result, Row
from rankzero.data.rows.formats.turns import TURN_KEYS, unread_keys
from rankzero.data.rows.problems import RowProblem, kind

ANSWERS = {"chosen": "preferred_output", "rejected": "non_preferred_output"}
_WORDS = {**ANSWERS, "prompt": "input.messages"}
"""What this shape calls what a preference has."""
KEYS = frozenset({"input", *ANSWERS.values()})
SHAPE = '{"input": {"messages": […]}, "preferred_output": […], "non_preferred_output": […]}'

_READ = frozenset({"messages", "tools"})
_OF_THE_CALL = frozenset({"parallel_tool_calls"})
"""Beside the messages: how OpenAI's model would be asked, and nothing that it is shown."""


def to_conversation(row: Row, line: int) -> Result:
    """A preference whose prompt are the messages of `input`."""
    asked = row["input"]
    if not isinstance(asked, dict) or not asked.get("messages"):
        what = f"`input` is {kind(asked)}" if not isinstance(asked, dict) else "`input` has no `messages`"
        return [RowProblem(line, "input without messages", what, "what was asked: {messages: [{role, content}, …]}")]
    for key in ANSWERS.values():
        first = row[key][0] if isinstance(row[key], list) and row[key] else None
        if isinstance(first, dict) and first.get("role", "assistant") != "assistant":
            what = f"`{key}` begins with a turn of {first['role']!r}"
            return [RowProblem(line, "no assistant turn", what, "an answer is an assistant turn")]
    unread = sorted(key for key, value in asked.items() if key not in _READ | _OF_THE_CALL and value is not None)
    if unread:
        what = f"`input` has `{unread[0]}` beside its messages"
        return [RowProblem(line, f"`{unread[0]}` is not read", what, "remove the key, or write it into the messages")]
    beside = {key: value for key, value in row.items() if key not in KEYS}
    pair = {ours: row[theirs] for ours, theirs in ANSWERS.items()}
    read = {key: value for key, value in asked.items() if key in _READ}
    found = preference.to_conversation({**beside, **read, "prompt": read.pop("messages"), **pair}, line)
    return list(_in_its_words(found)) if isinstance(found, list) else found


def _in_its_words(problems: Iterable[RowProblem]) -> Iterable[RowProblem]:
    """As the row has the two answers."""
    for problem in problems:
        texts = [problem.reason, problem.what, problem.hint]
        for ours, theirs in _WORDS.items():
            texts = [re.sub(rf"\b{ours}(?=[`[])", theirs, text) for text in texts]
        yield RowProblem(problem.line, *texts)


FORMAT = Format(
    name="openai_preference",
    needs=(KEYS,),
    reads=(KEYS | CHAT_FIELDS) - {*UNWANTED},
    shape=SHAPE,
    to_conversation=to_conversation,
    unread=ASKING,
    learns_answers=False,
    claims=(Claim(KEYS),),
    turn_lists=frozenset(ANSWERS.values()),
    turn_keys=TURN_KEYS,
    unread_in_turn=unread_keys,
    nests=True,
)
