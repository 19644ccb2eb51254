"""Rows with a `chosen` and a `rejected` answer: strings, or chat turns. Task dpo trains on them; others refuse them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import (
    CHAT_FIELDS,
    CONTEXT_KEYS,
    UNWANTED,
    chat,
    read_group,
    read_history,
    read_id,
    with_context,
)
from rankzero.data.rows.formats.format import (
    ASKING,
    CannotSayError,
    Format,
    Keys,
    Noted,
    NothingToLearnError,
    Result,
    Row,
    Writer,
    Written,
)
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.judged import are_equal, preference
from rankzero.data.rows.formats.prompt_completion import chat_only
from rankzero.data.rows.formats.roles import role_of
from rankzero.data.rows.formats.sharegpt import pair_keys
from rankzero.data.rows.formats.tools import decoded
from rankzero.data.rows.formats.turns import TURN_KEYS, read_messages, unread_keys
from rankzero.data.rows.formats.writing import as_prompt, beside, turn_row, turn_rows
from rankzero.data.rows.formats.written_calls import with_calls_read
from rankzero.data.rows.problems import RowProblem, kind

KEYS = frozenset({"chosen", "rejected"})
_TURNS = ("conversations", "conversation", "messages")
_QUESTIONS = ("question", "instruction", "query", "input")
_ASKED = (*_TURNS, *_QUESTIONS)
"""Where rows without `prompt` have what was asked."""
_AS_QUESTION = (
    "--columns question=prompt makes a chat of one question (in a run spec, "
    "data.train: [{path: …, columns: {question: prompt}}])"
)
_AS_TURNS = 'write {"prompt": [{"role": "user", …}], "chosen": […], "rejected": […]}'
"""How a row of raw text becomes a chat: one with a prompt, and one whose answers have it."""
_SPEAKS = "\n\nAssistant:"
"""What an answer stands behind in HH-RLHF's rows, which are whole dialogues as text."""


def to_conversation(row: Row, line: int) -> Result:
    """The prompt with the better answer, and the worse one beside it."""
    chosen, rejected = ([value] if isinstance(value, dict) else value for value in (row["chosen"], row["rejected"]))
    if chosen == rejected:
        what = "`chosen` and `rejected` are the same"
        return [RowProblem(line, "chosen equals rejected", what, "remove the row: there is nothing to prefer")]
    if problem := _without_a_question(row, line):
        return [problem]
    if isinstance(chosen, str) and isinstance(rejected, str):
        return _raw(row, chosen, rejected, line)
    if isinstance(chosen, list) and isinstance(rejected, list):
        return _chat(row, chosen, rejected, line)
    what = f"chosen is {kind(chosen)} and rejected is {kind(rejected)}"
    return [RowProblem(line, "chosen and rejected differ in kind", what, "both strings, or both lists of messages")]


def _without_a_question(row: Row, line: int) -> RowProblem | None:
    """That earlier rounds or a context are beside what is no question that they could be put to."""
    key = next((key for key in ("history", *CONTEXT_KEYS) if row.get(key)), None)
    if key is None or any(row.get(name) is not None for name in _QUESTIONS if row.get("prompt") is None):
        return None
    what = f"the row has `{key}`, and no question beside it"
    return RowProblem(line, f"`{key}` is not read", what, "write it into the prompt, or remove the key")


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
    if prompt is None and not problems:
        prompt, chosen, rejected = _shared(chosen, rejected)
        if not (chosen.strip() and rejected.strip()):
            key = "rejected" if chosen.strip() else "chosen"
            problems.append(RowProblem(line, f"empty {key}", f"`{key}` ends before its answer", "remove the row"))
    if prompt is not None and (not isinstance(prompt, str) or not prompt.strip()):
        what = "`prompt` has no text" if isinstance(prompt, str) else f"`prompt` is {kind(prompt)}"
        problems.append(RowProblem(line, "empty prompt", what, "give it text, or leave the key out"))
    problems += chat_only(row, line, _AS_TURNS if prompt is None else _AS_QUESTION)
    before = (Message("prompt", prompt),) if isinstance(prompt, str) else ()
    return problems or Conversation(
        (*before, Message("completion", chosen)),
        templated=False,
        line=line,
        completion_only=True,
        id=read_id(row),
        group=read_group(row),
        rejected=(Message("completion", rejected),),
        preferred=1,
    )


def _shared(chosen: str, rejected: str) -> tuple[str | None, str, str]:
    """What was asked in two dialogues that begin alike, as far as the last word that an answer follows, and the
    answers; None where there is no such word in what they share."""
    shared = os.path.commonprefix([chosen, rejected])
    at = shared.rfind(_SPEAKS)
    if at <= 0:
        return None, chosen, rejected
    at += len(_SPEAKS)
    return chosen[:at], chosen[at:], rejected[at:]


def _chat(row: Row, chosen: list[Any], rejected: list[Any], line: int) -> Result:
    slots, other = Slots(row, line), Slots({}, line)
    asked, said, problems, noted = _asked(row, chosen, line, slots)
    again = _said_again(asked, chosen, rejected)
    prompt, more = ((), []) if again else _prompt(_key_asked(row), asked, chosen, rejected, line, slots)
    prompt, problems = (*said, *prompt), problems + more
    shared = 0 if prompt else _shared_turns(chosen, rejected)
    alone = isinstance(asked, list) and again and not shared and _is_answering(next(iter(rejected), None))
    better, more = read_messages(chosen, line, "chosen", slots)
    worse, still_more = read_messages(rejected[shared:], line, "rejected", other)
    problems = problems + more + still_more
    before = 0
    if not problems:
        before, worse = _answers(prompt, better, worse, chosen[: _behind(asked, chosen) if alone else shared], line)
    answers = (("chosen", better[before:]), ("rejected", worse))
    for key, turns in answers if not problems else ():
        if turns[-1].role != "assistant":
            what = f"`{key}` ends with a {turns[-1].role} turn"
            problems = [*problems, RowProblem(line, "no assistant turn", what, "an answer is an assistant turn")]
    if not problems and other.used:
        what, hint = "`rejected` names images of its own", "images belong to the prompt, which both answers share"
        problems = [RowProblem(line, "image without a place", what, hint)]
    result = chat(row, line, (*prompt, *better), problems, slots, noted, completion_only=True)
    if isinstance(result, list):
        return result
    rules = result.rules if isinstance(result, Noted) else ()
    (whole,) = result.conversations if isinstance(result, Noted) else (result,)
    preferred = len(better) - before
    if whole.tools:  # one turn may be the answers of several tools
        read, unreadable, _ = with_calls_read(better[before:], whole.tools, line)
        preferred = len(read) + len(unreadable)
    return preference(whole, worse, preferred, line, rules)


def _shared_turns(chosen: list[Any], rejected: list[Any]) -> int:
    """How many turns both lists begin with that are no answer's: one that has begun differs from there on."""
    shared = 0
    while shared < min(len(chosen), len(rejected)) - 1 and chosen[shared] == rejected[shared]:
        shared += 1
    while shared and _is_answering(chosen[shared - 1]):
        shared -= 1
    return shared


def _is_answering(turn: object) -> bool:
    return isinstance(turn, dict) and role_of(turn.get("role", turn.get("from"))) == "assistant"


def _said_again(asked: object, chosen: list[Any], rejected: list[Any]) -> bool:
    """Whether what was asked is among the turns of `chosen` that stand before its answer."""
    if isinstance(asked, list):
        return bool(asked) and asked == chosen[: len(asked)]
    # without turns that both have, a list that begins with an answer is that answer, and asks in its middle
    is_answer = any(map(_is_answering, chosen[:1])) and not _shared_turns(chosen, rejected)
    return not is_answer and any(_asks(turn, asked) for turn in chosen)


def _behind(asked: list[Any], chosen: list[Any]) -> int:
    """How many turns of `chosen`, which begins with what was asked, stand before its answer."""
    until = len(asked)
    while until < len(chosen) and not _is_answering(chosen[until]):
        until += 1
    return min(until, len(chosen) - 1)


def _asks(turn: object, text: object) -> bool:
    return isinstance(turn, dict) and not _is_answering(turn) and turn.get("content", turn.get("value")) == text


def _answers(
    prompt: Sequence[Message], better: tuple[Message, ...], worse: tuple[Message, ...], shared: list[Any], line: int
) -> tuple[int, tuple[Message, ...]]:
    """With how many of the turns of the better answer's list it does not begin yet, and the worse one's turns. `shared`
    are those at the beginning of the first that both lists have: one may become several when it is read."""
    before = len(read_messages(shared, line, "chosen", Slots({}, line))[0])
    again = [(turn.role, turn.content) for turn in worse[: len(prompt)]]
    if prompt and again == [(turn.role, turn.content) for turn in prompt]:  # what was asked once more
        worse = worse[len(prompt) :] or worse
    while len(worse) > 1 and before < len(better) - 1 and better[before].role != "assistant":
        if better[before] != worse[0]:  # the same in another way of writing is
            break
        before, worse = before + 1, worse[1:]
    if not before and len(worse) == 1 and worse[0].role == "assistant" and better[0].role != "assistant":
        before = len(better) - 1  # the one is a whole dialogue, the other an answer in it
    return before, worse


def _key_asked(row: Row) -> str:
    """The key that has what was asked: `prompt` where none does."""
    return next((key for key in ("prompt", *_ASKED) if row.get(key) is not None), "prompt")


def _asked(
    row: Row, chosen: list[Any], line: int, slots: Slots
) -> tuple[Any, list[Message], list[RowProblem], tuple[str, ...]]:
    """What `prompt`, or another key in its place, has; the rounds before it; what is wrong; the rules applied."""
    key = _key_asked(row)
    if row.get(key) is None:
        return None, [], [], ()
    asked: Any = decoded(row[key]) if key in _TURNS else row[key]
    if key in _TURNS and isinstance(asked, list):
        if not asked:
            return None, [], [RowProblem(line, f"empty `{key}`", f"`{key}` is empty", "leave the key out")], ()
        if asked[-len(chosen) :] == chosen:  # the better answer once more
            asked = asked[: -len(chosen)] or None
        elif pair := pair_keys(asked[0]):
            what = f"`{key}` is of pairs, {' and '.join(pair)}, which are not read beside two answers"
            hint = 'write them as turns: {"role": "user", "content": "…"}, …, the question last'
            return None, [], [RowProblem(line, f"`{key}` is of pairs", what, hint)], ()
        elif _is_answering(asked[-1]):
            what = f"`{key}` ends with an answer that is neither `chosen` nor `rejected`"
            hint = "remove it: the two are to follow a question"
            return None, [], [RowProblem(line, "a third answer", what, hint)], ()
    if key not in _QUESTIONS or not isinstance(asked, str):
        return asked, [], [], ()
    others = [other for other in _QUESTIONS if other not in (key, "input") and row.get(other) is not None]
    if others:
        what = f"`{key}` and `{others[0]}` could each be the question"
        return None, [], [RowProblem(line, "two columns for one name", what, "which of the two is meant? keep one")], ()
    below = row.get("input")
    if key == "instruction" and isinstance(below, str) and below.strip():  # as Alpaca has it
        asked = f"{asked}\n{below}"
    said, problems = read_history(row, line, slots)
    asked, more, rules = with_context(row if key == "instruction" else {**row, "input": None}, asked, line)
    return asked, said, problems + more, rules


def _prompt(
    key: str, value: object, chosen: list[Any], rejected: list[Any], line: int, slots: Slots
) -> tuple[tuple[Message, ...], list[RowProblem]]:
    """The turns of `prompt`, or of the `key` in its place, which `chosen` does not say again."""
    if value is None:
        return (), []
    if isinstance(value, str):
        if not value.strip():
            return (), [RowProblem(line, f"empty {key}", f"`{key}` has no text", "leave the key out")]
        if any(_asks(turn, value) for turn in chosen) and not (len(rejected) > 1 and _is_answering(rejected[0])):
            what = f"`chosen` asks `{key}` behind an answer, and `rejected` has no answer before it"
            hint = "write the turns that both answers follow into prompt, as a list"
            return (), [RowProblem(line, "two prompts", what, hint)]
        turns: tuple[Message, ...] = (slots.message("user", value),)
        problems: list[RowProblem] = []
    else:
        turns, problems = read_messages(value, line, key, slots)
    first = next((turn for turn in chosen if isinstance(turn, dict)), None)
    if first is not None and not _is_answering(first):  # an answer has questions in it, and begins with none
        what = f"`{key}` is not how `chosen` begins"
        return (), [*problems, RowProblem(line, "two prompts", what, "which of the two is meant?")]
    return turns, problems


def _settles(row: Row, marks: Keys) -> bool:
    """Whether the turns in `messages` are what was asked, and both answers follow: an answer begins with none of it."""
    if marks != KEYS | {"messages"}:
        return False
    chosen = row["chosen"]
    if isinstance(chosen, str):
        return True
    first = chosen[0] if isinstance(chosen, list) and chosen else chosen
    return isinstance(first, dict) and role_of(first.get("role", first.get("from"))) == "assistant"


def _near_miss(row: Row, marks: Keys, line: int) -> RowProblem | None:
    """One answer of the two."""
    lone = next((key for key in ("chosen", "rejected") if key in marks), None)
    if lone is None:
        return None
    other = "rejected" if lone == "chosen" else "chosen"
    hint = "to fine-tune on single answers, rename it to completion"
    if lone == "rejected":  # nobody means to train on it
        hint = "the better answer is `chosen`; to fine-tune on that alone, leave `rejected` out of the rows"
    return RowProblem(line, f"{lone} without {other}", f"the row has `{lone}` and no `{other}`", hint)


def to_row(conversation: Conversation) -> Written:
    """What was asked, the better answer and the worse one."""
    if not conversation.rejected:
        raise CannotSayError("no rejected answer", "preference needs a rejected answer")
    turns = conversation.messages
    if are_equal(turns[-conversation.preferred :], conversation.rejected):
        raise NothingToLearnError("answers_alike")
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
    reads=(KEYS | CHAT_FIELDS | {"prompt", "history", *_ASKED, *CONTEXT_KEYS}) - {*UNWANTED},
    shape='{"prompt": "…", "chosen": "…", "rejected": "…"}',
    to_conversation=to_conversation,
    unread=ASKING,
    learns_answers=False,
    first_for="preferences",
    marks=(KEYS, KEYS | {"prompt"}, KEYS | {"conversations"}, KEYS | {"conversation"}),
    only_together=KEYS,
    settles=_settles,
    near_miss=_near_miss,
    turn_lists=KEYS | {"prompt", *_TURNS},
    turn_keys=TURN_KEYS,
    unread_in_turn=unread_keys,
    writers=(Writer("preference", to_row),),
)
