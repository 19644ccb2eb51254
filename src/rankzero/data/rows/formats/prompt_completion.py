"""Rows with `prompt` and `completion`: raw strings, or chat turns. Knows nothing of templates or tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat, read_group, read_id, untrained
from rankzero.data.rows.formats.format import SYSTEM_KEYS, CannotSayError, Format, Keys, Result, Row, Writer, Written
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.tools import TOOL_KEYS
from rankzero.data.rows.formats.turns import TURN_KEYS, read_messages, unread_keys
from rankzero.data.rows.formats.writing import as_prompt, beside, one_round, require_plain, turn_rows
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"prompt", "completion"})

CHAT_AS_RAW = "a question and its answer become raw prompt and completion"
TEMPLATE_KWARGS_LEFT_OUT = "chat_template_kwargs are left out: raw text has no chat template"

_ANSWERS = ("completion", "response", "output", "answer", "target", "label")
_CHAT_ONLY = (*SYSTEM_KEYS, *TOOL_KEYS, "images", "image")


def to_conversation(row: Row, line: int) -> Result:
    """Raw text whose second part is trained, or a chat whose later turns are."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str) and isinstance(completion, str):
        return _raw(row, prompt, completion, line)
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat(row, prompt, completion, line)
    what = f"prompt is {kind(prompt)} and completion is {kind(completion)}"
    return [RowProblem(line, "prompt and completion differ in kind", what, "both strings, or both lists of messages")]


def _raw(row: Row, prompt: str, completion: str, line: int) -> Result:
    problems = []
    if not prompt.strip():
        hint = 'text that needs no prompt is {"text": "…"}'
        problems.append(RowProblem(line, "empty prompt", "`prompt` has no text", hint))
    if not completion.strip():
        problems.append(RowProblem(line, "empty completion", "`completion` has no text to train on", "remove the row"))
    name = group = None
    if len(row) > 2:
        problems += chat_only(row, line)
        name, group = read_id(row), read_group(row)
    segments = (Message("prompt", prompt), Message("completion", completion))
    return problems or Conversation(segments, False, line, completion_only=True, id=name, group=group)


_AS_TURNS = 'write {"prompt": [{"role": "user", …}], "completion": […]}'


def chat_only(row: Row, line: int, as_chat: str = _AS_TURNS) -> list[RowProblem]:
    """What raw text has no place for. `as_chat`: how the row becomes a chat."""
    key = next((key for key in _CHAT_ONLY if row.get(key)), None)
    if key is None:
        return []
    hint = f"a chat template puts it in its place: {as_chat}"
    return [RowProblem(line, f"`{key}` is not read", f"the row is raw text and has `{key}`, which needs turns", hint)]


def _chat(row: Row, prompt: list[Any], completion: list[Any], line: int) -> Result:
    slots = Slots(row, line)
    before, problems = read_messages(prompt, line, "prompt", slots)
    after, more = read_messages(completion, line, "completion", slots)
    problems = problems + more
    if any(turn.train for turn in before):
        hint = "turns to be trained belong in completion"
        problems.append(RowProblem(line, "trained prompt", "a turn of `prompt` asks to be trained", hint))
    if not problems and not any(turn.role == "assistant" for turn in after):
        hint = "the answer to learn is an assistant turn of `completion`"
        problems.append(RowProblem(line, "no assistant turn", "`completion` has no assistant turn", hint))
    return chat(row, line, (*untrained(before), *after), problems, slots, completion_only=True)


def _near_miss(row: Row, marks: Keys, line: int) -> RowProblem | None:
    """One of the two without the other."""
    if marks == {"prompt"}:
        near = next((key for key in _ANSWERS if row.get(key) is not None), None)
        hint = f"rename {near} to completion" if near else ""
        return RowProblem(line, "prompt without completion", "the row has `prompt` and no `completion`", hint)
    if marks == {"completion"}:
        what = "the row has `completion` and no `prompt`"
        return RowProblem(line, "completion without prompt", what, 'plain text is {"text": "…"}')
    return None


def to_row(conversation: Conversation) -> Written:
    """Raw strings as such, chats as lists of turns: what comes before the first trained turn is the prompt."""
    require_plain(conversation, "prompt_completion")
    if not conversation.templated:
        return to_columns(conversation)
    turns = conversation.messages
    at = next((i for i, turn in enumerate(turns) if turn.role == "assistant" and turn.train is not False), 0)
    if not at:
        what = "prompt_completion needs turns before the first one that is trained"
        raise CannotSayError("no prompt", what, "use --as messages")
    rows, images = turn_rows(turns, conversation)
    return {"prompt": as_prompt(rows[:at]), "completion": rows[at:], **images, **beside(conversation)}, ()


def to_columns(conversation: Conversation) -> Written:
    """Two strings, as tables can hold them."""
    require_plain(conversation, "prompt_completion")
    if conversation.templated:
        turns, rules = one_round(conversation, "prompt_completion in a table", system=False)
        row = {"prompt": turns[0].content, "completion": turns[1].content}
        if conversation.template_kwargs:
            conversation, rules = replace(conversation, template_kwargs={}), (*rules, TEMPLATE_KWARGS_LEFT_OUT)
        return {**row, **beside(conversation)}, (*rules, CHAT_AS_RAW)
    if len(conversation.messages) != 2:
        what = "prompt_completion needs a prompt, and the row is plain text"
        raise CannotSayError("plain text", what, "use --as text")
    prompt, completion = conversation.messages
    return {"prompt": prompt.content, "completion": completion.content, **beside(conversation)}, ()


FORMAT = Format(
    name="prompt_completion",
    needs=(KEYS,),
    reads=KEYS | CHAT_FIELDS,
    shape='{"prompt": "…", "completion": "…"}',
    to_conversation=to_conversation,
    marks=(KEYS,),
    near_miss=_near_miss,
    turn_lists=KEYS,
    turn_keys=TURN_KEYS,
    unread_in_turn=unread_keys,
    writers=(Writer("prompt_completion", to_row, {"prompt": "text", "completion": "text"}, to_columns),),
)
