"""Rows with `prompt` and `completion`: raw strings, or chat turns. Knows nothing of templates or tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rankzero.data.conversation import Conversation, Message
from rankzero.data.formats.messages import read_messages
from rankzero.data.problems import RowProblem, kind

KEYS = frozenset({"prompt", "completion"})
SHAPE = '{"prompt": "…", "completion": "…"}'

_MOVE = "turns to be trained belong in completion"


def to_conversation(row: Mapping[str, Any], line: int) -> Conversation | list[RowProblem]:
    """Raw text whose second part is trained, or a chat whose later turns are."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return _raw(prompt, completion, line)
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat(prompt, completion, line)
    what = f"prompt is {kind(prompt)} and completion is {kind(completion)}"
    return [RowProblem(line, "prompt and completion differ in kind", what, "both strings, or both lists of messages")]


def _raw(prompt: str, completion: str, line: int) -> Conversation | list[RowProblem]:
    problems = []
    if not prompt.strip():
        hint = 'text that needs no prompt is {"text": "…"}'
        problems.append(RowProblem(line, "empty prompt", "`prompt` has no text", hint))
    if not completion.strip():
        problems.append(RowProblem(line, "empty completion", "`completion` has no text to train on", "remove the row"))
    segments = (Message("prompt", prompt), Message("completion", completion))
    return problems or Conversation(segments, templated=False, line=line, completion_only=True)


def _chat(prompt: list[Any], completion: list[Any], line: int) -> Conversation | list[RowProblem]:
    before, problems = read_messages(prompt, line, "prompt")
    after, more = read_messages(completion, line, "completion")
    problems += more
    if any(turn.train for turn in before):
        problems.append(RowProblem(line, "trained prompt", "a turn of `prompt` asks to be trained", _MOVE))
    if not problems and not any(turn.role == "assistant" for turn in after):
        problems.append(RowProblem(line, "no assistant turn", "`completion` has no assistant turn"))
    turns = (*(replace(turn, train=False) for turn in before), *after)
    return problems or Conversation(turns, templated=True, line=line, completion_only=True)
