"""Answers that a row says are not wanted: beside one that is, the row is a preference. Knows no format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import UNWANTED, untrained
from rankzero.data.rows.formats.format import Keys, Noted, Result, Row, with_rules
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.turns import read_messages
from rankzero.data.rows.formats.written_calls import answers_without_calls, with_calls_read
from rankzero.data.rows.problems import RowProblem, kind

_WANTED = ("label", "kto_tag")

UNTRAINED = "no task trains on single judged answers"
"""Why rows of single answers, wanted or not, are refused."""
PREFERENCES = "preferences are for task dpo"
"""Why rows of better and worse answers are refused by other tasks."""
EQUAL = "both answers are the same once they are read, and nothing is learnt from the pair"
"""Said of such rows. They are not refused: training has always left them out."""
LEARN_CHOSEN = (
    "set task: dpo in run.yaml; to fine-tune on the chosen ones alone: columns {completion: chosen}, or {messages: "
    "chosen} without a prompt; OpenAI's preferences become such rows by rankzero data convert --as preference"
)

JUDGED: Keys = frozenset({*_WANTED, *UNWANTED, "rejected_images"})
"""Keys that may say so."""


def judged(row: Row, result: Result, line: int, reads: Keys) -> Result:
    """What the row is by what it says of its answers: a preference, where an unwanted one is beside the one that was
    read. `reads`: the keys that its format has a place for."""
    for key in _WANTED:
        said = str(row.get(key)).lower()
        if said in ("true", "false") or (key == "kto_tag" and said in ("0", "1")):  # a label of 0 may be a class
            what = f"`{key}` says whether the answer is wanted, as for kto: {UNTRAINED}"
            hint = f"to fine-tune on the wanted answers, keep the rows whose `{key}` is true, without the key"
            return [RowProblem(line, UNTRAINED, what, hint)]
    worse = [key for key in UNWANTED if row.get(key) is not None]
    if not worse or isinstance(result, list):
        return result
    key = worse[0]
    rules = result.rules if isinstance(result, Noted) else ()
    read = result.conversations if isinstance(result, Noted) else result if isinstance(result, tuple) else (result,)
    if len(worse) > 1 or len(read) != 1 or key not in reads:
        what = f"`{key}` is an answer that is not wanted, and the row is not one answer beside it"
        return [RowProblem(line, "an answer that is not wanted", what, "name the two chosen and rejected")]
    if row.get("rejected_images"):
        return [_own_images("rejected_images", line)]
    whole = read[0]
    found = _turns(row[key], whole, key, line) if key == "rejected_messages" else _text(row[key], whole, key, line)
    if isinstance(found, list):
        return found
    return with_worse(whole, found, line, rules, key=key)


def _text(value: object, whole: Conversation, key: str, line: int) -> tuple[Message, ...] | list[RowProblem]:
    """What is said in the place of the row's last turn."""
    if not isinstance(value, str):
        what, hint = (
            f"`{key}` is {kind(value)}, not a string",
            "one answer as a JSON string; of several, a row for each",
        )
        return [RowProblem(line, f"{key} is not a string", what, hint)]
    return (Message(whole.messages[-1].role, value),)


def _turns(value: object, whole: Conversation, key: str, line: int) -> tuple[Message, ...] | list[RowProblem]:
    """The worse answer alone, or the conversation with its worse end. The system prompt may stand beside its turns."""
    slots = Slots({}, line)
    turns, problems = read_messages(value, line, key, slots)
    if slots.used:
        problems = [*problems, _own_images(key, line)]
    first = whole.messages[0]
    if len(turns) > 1 and first.role == "system" and turns[0].role != "system":
        turns = (first, *turns)
    return problems or turns


def with_worse(
    whole: Conversation, worse: tuple[Message, ...], line: int, rules: tuple[str, ...] = (), *, key: str
) -> Conversation | Noted | list[RowProblem]:
    """The row, which ends with the better answer, beside its worse end, which `key` has: that of as many turns as it
    takes, or the whole of it, of which the beginning is what was asked."""
    shared, turns = len(whole.messages) - 1, whole.messages
    if len(worse) > 1:
        most = min(len(worse), len(turns)) - 1
        shared = next((i for i in range(most) if not _same(worse[i], turns[i])), most)
        while shared and turns[shared - 1].role == "assistant":  # an answer that has begun differs from there on
            shared -= 1
        worse = worse[shared:]
    for name, last in (("the row", turns[-1]), (f"`{key}`", worse[-1])):
        if last.role not in ("assistant", "completion"):
            what = f"{name} ends with a {last.role} turn"
            return [RowProblem(line, "no assistant turn", what, "an answer is an assistant turn")]
    if not worse[-1].content.strip() and not worse[-1].tool_calls:
        return [RowProblem(line, f"empty {key}", f"`{key}` has no text", "remove the row")]
    better = turns[shared:]
    if are_equal(better, worse):
        what = f"`{key}` is the answer that is wanted"
        return [RowProblem(line, "chosen equals rejected", what, "remove the row: there is nothing to prefer")]
    return preference(whole, worse, len(better), line, rules)


def _same(one: Message, other: Message) -> bool:
    return replace(one, train=None) == replace(other, train=None)


def are_equal(better: Sequence[Message], worse: Sequence[Message]) -> bool:
    """Whether two answers say the same."""
    return len(better) == len(worse) and all(map(_same, better, worse))


def preference(
    whole: Conversation, worse: tuple[Message, ...], preferred: int, line: int, rules: tuple[str, ...] = ()
) -> Conversation | Noted | list[RowProblem]:
    """The row, of whose messages the last `preferred` are the better answer, with the worse one: its calls of tools
    read, and what they lack said. What was asked is context."""
    if whole.tools:
        worse, problems, more = with_calls_read(worse, whole.tools, line)
        if problems:  # turns that cannot be read are not among the others
            return problems
        rules = tuple(dict.fromkeys((*rules, *more)))
    problems = answers_without_calls((*whole.messages, *worse), line)
    at = len(whole.messages) - preferred
    if whole.templated and {whole.messages[at].role, worse[0].role} != {"assistant"}:
        what, hint = "its two answers do not follow the same turns", "of a pair both are answers to the same question"
        problems = [*problems, RowProblem(line, "two prompts", what, hint)]
    turns = (*untrained(whole.messages[:at]), *whole.messages[at:]) if whole.templated else whole.messages
    if are_equal(turns[at:], worse):
        rules = (*rules, EQUAL)
    row = replace(whole, messages=turns, rejected=worse, preferred=preferred, completion_only=True)
    return problems or with_rules(row, rules)


def _own_images(key: str, line: int) -> RowProblem:
    what, hint = f"`{key}` names images of its own", "images belong to the prompt, which both answers share"
    return RowProblem(line, "image without a place", what, hint)
