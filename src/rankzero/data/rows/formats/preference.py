"""Rows with a `chosen` and a `rejected` answer: strings, or chat turns. Task dpo trains on them; others refuse them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat, read_id, untrained
from rankzero.data.rows.formats.format import (
    CannotSayError,
    Format,
    Keys,
    Noted,
    Result,
    Row,
    Writer,
    Written,
    with_rules,
)
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.prompt_completion import chat_only
from rankzero.data.rows.formats.roles import role_of
from rankzero.data.rows.formats.turns import TURN_KEYS, read_messages, unread_keys
from rankzero.data.rows.formats.writing import as_prompt, beside, turn_row, turn_rows
from rankzero.data.rows.formats.written_calls import answers_without_calls, with_calls_read
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"chosen", "rejected"})
_ASKED = ("conversations", "question", "instruction", "query", "input")
"""Where rows without `prompt` have what was asked."""


def to_conversation(row: Row, line: int) -> Result:
    """The prompt with the better answer, and the worse one beside it."""
    chosen, rejected = ([value] if isinstance(value, dict) else value for value in (row["chosen"], row["rejected"]))
    if chosen == rejected:
        what = "`chosen` and `rejected` are the same"
        return [RowProblem(line, "chosen equals rejected", what, "remove the row: there is nothing to prefer")]
    if isinstance(chosen, str) and isinstance(rejected, str):
        return _raw(row, chosen, rejected, line)
    if isinstance(chosen, list) and isinstance(rejected, list):
        return _chat(row, chosen, rejected, line)
    what = f"chosen is {kind(chosen)} and rejected is {kind(rejected)}"
    return [RowProblem(line, "chosen and rejected differ in kind", what, "both strings, or both lists of messages")]


def _raw(row: Row, chosen: str, rejected: str, line: int) -> Result:
    prompt = row.get("prompt")
    asked = next((row[key] for key in _ASKED if row.get(key)), None) if prompt is None else None
    problems = [
        RowProblem(line, f"empty {key}", f"`{key}` has no text", "remove the row")
        for key, text in (("chosen", chosen), ("rejected", rejected))
        if not text.strip()
    ]
    if isinstance(prompt, list) or asked is not None:
        better, worse = ([{"role": "assistant", "content": text}] for text in (chosen, rejected))
        return problems or _chat(row, better, worse, line)
    if prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
        what = "`prompt` has no text" if isinstance(prompt, str) else f"`prompt` is {kind(prompt)}"
        problems.append(RowProblem(line, "empty prompt", what, "give it text, or leave the key out"))
    problems += chat_only(row, line)
    before = (Message("prompt", prompt),) if isinstance(prompt, str) else ()
    return problems or Conversation(
        (*before, Message("completion", chosen)),
        templated=False,
        line=line,
        completion_only=True,
        id=read_id(row),
        rejected=(Message("completion", rejected),),
        preferred=1,
    )


def _chat(row: Row, chosen: list[Any], rejected: list[Any], line: int) -> Result:
    slots, other = Slots(row, line), Slots({}, line)
    asked = next((row[key] for key in ("prompt", *_ASKED) if row.get(key) is not None), None)
    prompt, problems = _prompt(asked, chosen, line, slots)
    shared = 0
    if not prompt:  # both lists begin with what was asked
        while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
            shared += 1
    better, more = read_messages(chosen, line, "chosen", slots)
    worse, still_more = read_messages(rejected[shared:], line, "rejected", other)
    problems = problems + more + still_more
    for key, turns in (("chosen", better[shared:]), ("rejected", worse)):
        if not problems and turns[-1].role != "assistant":
            what = f"`{key}` ends with a {turns[-1].role} turn"
            problems = [*problems, RowProblem(line, "no assistant turn", what, "an answer is an assistant turn")]
    if not problems and other.used:
        what, hint = "`rejected` names images of its own", "images belong to the prompt, which both answers share"
        problems = [RowProblem(line, "image without a place", what, hint)]
    turns = (*untrained(prompt), *untrained(better[:shared]), *better[shared:])
    result = chat(row, line, turns, problems, slots, completion_only=True)
    if isinstance(result, list):
        return result
    rules = result.rules if isinstance(result, Noted) else ()
    (whole,) = result.conversations if isinstance(result, Noted) else (result,)
    if whole.tools:
        worse, problems, more_rules = with_calls_read(worse, whole.tools, line)
        rules = tuple(dict.fromkeys((*rules, *more_rules)))
    problems = problems or answers_without_calls((*whole.messages, *worse), line)
    return problems or with_rules(replace(whole, rejected=worse, preferred=len(better) - shared), rules)


def _prompt(value: object, chosen: list[Any], line: int, slots: Slots) -> tuple[tuple[Message, ...], list[RowProblem]]:
    """The turns of `prompt`, none where `chosen` says them again."""
    said = [turn for turn in chosen if isinstance(turn, dict)]
    asked = [role_of(turn.get("role", turn.get("from"))) != "assistant" for turn in said]
    if value is None:
        return (), []
    if isinstance(value, str):
        asking = [turn for turn, is_asked in zip(said, asked, strict=True) if is_asked]
        if any(turn.get("content", turn.get("value")) == value for turn in asking):
            return (), []
        if not value.strip():
            return (), [RowProblem(line, "empty prompt", "`prompt` has no text", "leave the key out")]
        turns: tuple[Message, ...] = (slots.message("user", value),)
        problems: list[RowProblem] = []
    else:
        if isinstance(value, list) and value and value == chosen[: len(value)]:
            return (), []
        turns, problems = read_messages(value, line, "prompt", slots)
    if asked and asked[0]:  # an answer of several turns has questions in it, and begins with none
        what = "`prompt` is not how `chosen` begins"
        return (), [*problems, RowProblem(line, "two prompts", what, "which of the two is meant?")]
    return turns, problems


def _near_miss(row: Row, marks: Keys, line: int) -> RowProblem | None:
    """One answer of the two."""
    lone = next((key for key in ("chosen", "rejected") if key in marks), None)
    if lone is None:
        return None
    other = "rejected" if lone == "chosen" else "chosen"
    hint = "to fine-tune on single answers, rename it to completion"
    return RowProblem(line, f"{lone} without {other}", f"the row has `{lone}` and no `{other}`", hint)


def to_row(conversation: Conversation) -> Written:
    """What was asked, the better answer and the worse one."""
    if not conversation.rejected:
        raise CannotSayError("no rejected answer", "preference needs a rejected answer")
    turns = conversation.messages
    if not conversation.templated:
        asked = {"prompt": turns[0].content} if len(turns) == 2 else {}
        pair = {"chosen": turns[-1].content, "rejected": conversation.rejected[0].content}
        return {**asked, **pair, **beside(conversation)}, ()
    rows, images = turn_rows(turns, conversation)
    at = len(turns) - conversation.preferred
    worse = [turn_row(turn, turn.content) for turn in conversation.rejected]
    before = {"prompt": as_prompt(rows[:at])} if at else {}
    return {**before, "chosen": rows[at:], "rejected": worse, **images, **beside(conversation)}, ()


FORMAT = Format(
    name="preference",
    needs=(KEYS,),
    reads=KEYS | CHAT_FIELDS | {"prompt", *_ASKED},
    shape='{"prompt": "…", "chosen": "…", "rejected": "…"}',
    to_conversation=to_conversation,
    learns_answers=False,
    marks=(KEYS, KEYS | {"prompt"}, KEYS | {"conversations"}),
    only_together=KEYS,
    near_miss=_near_miss,
    turn_lists=KEYS | {"prompt", "conversations"},
    turn_keys=TURN_KEYS,
    unread_in_turn=unread_keys,
    writers=(Writer("preference", to_row),),
)
