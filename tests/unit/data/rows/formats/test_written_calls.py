"""Calls that answers have as text, and what only looks like them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats import Noted
from rankzero.data.rows.formats.written_calls import CALLS_READ, NOT_CLOSED, UNLISTED, with_calls_read
from rankzero.data.rows.parse import ReadRow, read_row
from rankzero.data.tokens.call_form import with_ids

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "look"}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'


def read(*turns: Message) -> tuple[list[Message], list[str]]:
    found, problems, _ = with_calls_read(turns, TOOLS, 1)
    return list(found), [problem.reason for problem in problems]


@pytest.mark.parametrize("before", ["", "Let me see.\n", "<think>I should write a <tool_call> here.</think>\n"])
def test_a_call_at_the_end_of_an_answer_is_read(before: str) -> None:
    (turn,), problems = read(Message("assistant", before + CALL))
    assert not problems
    assert turn.tool_calls[0]["function"]["name"] == "look" and turn.content == before.rstrip()


@pytest.mark.parametrize(
    "text",
    [
        "Agents write `<tool_call>` tags around JSON.",
        f"<think>maybe {CALL} ok</think>It is sunny.",
        "<tool_call> is a tag.",
        f"As in {CALL}, you see.",
        '{"a": 1, "a": 2}',
        '{"name": "other", "arguments": {}}',
        "[1, 2]",
    ],
)
def test_what_only_speaks_of_calls_is_an_answer(text: str) -> None:
    turn = Message("assistant", text)
    assert read(turn) == ([turn], [])


def test_a_row_that_has_calls_as_such_has_none_as_text() -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    turns = [Message("assistant", "", tool_calls=(call,)), Message("assistant", f"I wrote {CALL}")]
    assert read(*turns) == (turns, [])


OPEN = CALL.removesuffix("\n</tool_call>")
"""As a stop token leaves it, which is no part of the text."""


def rules_of(*turns: Message) -> tuple[str, ...]:
    return with_calls_read(turns, TOOLS, 1)[2]


@pytest.mark.parametrize("before", ["", "Let me see.\n", "<think>Where?</think>\n", f"{CALL}\n"])
def test_a_call_whose_closing_tag_is_missing_is_read_and_counted(before: str) -> None:
    (turn,), problems = read(Message("assistant", before + OPEN))
    whole, _ = read(Message("assistant", before + CALL))
    assert not problems and [turn] == whole
    assert rules_of(Message("assistant", before + OPEN)) == (CALLS_READ, NOT_CLOSED)
    assert rules_of(Message("assistant", before + CALL)) == (CALLS_READ,)


@pytest.mark.parametrize(
    "text",
    [
        f"As in {OPEN}, you see.",
        'It writes <tool_call>{"name": "other", "arguments": {}}',
        f"Tags are <tool_call> and </tool_call>. {CALL} {CALL} <tool_call> is the first.",
    ],
)
def test_open_tags_in_what_only_speaks_of_calls(text: str) -> None:
    turn = Message("assistant", text)
    assert read(turn) == ([turn], [])


@pytest.mark.parametrize("is_text", [True, False])
def test_calls_of_tools_that_the_row_does_not_list_are_counted(is_text: bool) -> None:
    function = {"name": "other", "arguments": {"at": 1}}
    turn = Message("assistant", CALL.replace("look", "other"))
    if not is_text:
        turn = Message("assistant", "", tool_calls=({"type": "function", "function": function},))
    (found,), problems = read(turn)
    assert not problems and found.tool_calls[0]["function"] == function
    assert rules_of(turn)[-1] == UNLISTED
    assert UNLISTED not in rules_of(Message("assistant", CALL))


@pytest.mark.parametrize("cut", ['<tool_call>{"name": "look"', f"{CALL}\nDone."])
def test_a_call_that_cannot_be_read_is_a_problem(cut: str) -> None:
    assert read(Message("assistant", cut))[1] == ["tool call as text"]


def test_instructions_beside_a_list_of_tools_stay() -> None:
    listing = f'# Tools\n\n<tools>\n{{"name": "look"}}\n</tools>\nExample:\n{CALL}'
    own = "You are Acme's agent. Never quote prices."
    assert read(Message("system", f"{own}\n\n{listing}"))[0] == [Message("system", own)]
    assert read(Message("system", listing)) == ([], [])
    assert read(Message("system", f"{listing}\nAnswer in French."))[1] == ["tools in two places"]
    assert read(Message("system", listing.removeprefix("# Tools")))[1] == ["tools in two places"]


def test_answers_have_the_ids_of_the_calls_whose_function_they_name() -> None:
    """For templates that write a function's name in its id alone."""

    def call(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "arguments": {}}}

    for count in (1, 2, 3):
        for named in itertools.permutations("fgh", count):
            answers = [Message("tool", "x", name=name) for name in named]
            later = [Message("assistant", "", tool_calls=(call("k"),)), Message("tool", "y")]
            first = Message("assistant", "", tool_calls=tuple(map(call, "fgh")))
            turns = with_ids([first, *answers, *later], "named")
            found = [turn.tool_call_id for turn in turns if turn.role == "tool"]
            assert found == [f"functions.{name}:{'fghk'.index(name)}" for name in (*named, "k")]


def row_of(*turns: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "?"}, *turns], "tools": TOOLS, **more}).encode()


def called(call: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"}


def answered(name: str) -> dict[str, Any]:
    return {"role": "tool", "content": "1", "tool_call_id": name}


DONE = {"role": "assistant", "content": "It is 1."}


@pytest.mark.parametrize("named", ['"id": "c1", ', ""])
def test_answers_name_calls_that_are_text(named: str) -> None:
    """Where the text has no ids, its calls are those that are answered, in order."""
    first, second = (f'{{{named}"name": "look", "arguments": {{"at": {at}}}}}' for at in (1, 2))
    second = second.replace("c1", "c2")
    both = {"role": "assistant", "content": f"<tool_call>{first}</tool_call>\n<tool_call>{second}</tool_call>"}
    found = read_row(row_of(both, answered("c1"), answered("c2"), DONE), 1, "auto")
    assert isinstance(found, ReadRow)
    (conversation,) = found.result.conversations if isinstance(found.result, Noted) else ()
    calling, *answers = conversation.messages[1:4]
    assert [call["id"] for call in calling.tool_calls] == [turn.tool_call_id for turn in answers] == ["c1", "c2"]


def test_a_prompt_calls_and_its_completion_begins_with_the_answer() -> None:
    prompt = [{"role": "user", "content": "?"}, called('{"id": "c1", "name": "look", "arguments": {}}')]
    row = {"prompt": prompt, "completion": [answered("c1"), DONE], "tools": TOOLS}
    assert isinstance(read_row(json.dumps(row).encode(), 1, "auto"), ReadRow)


@pytest.mark.parametrize(
    "turns",
    [
        (called('{"id": "c1", "name": "look", "arguments": {}}'), answered("c2"), DONE),
        (answered("c1"), called('{"id": "c1", "name": "look", "arguments": {}}'), DONE),
        (called('{"name": "look", "arguments": {}}'), answered("c1"), answered("c2"), DONE),
        (DONE, answered("c1"), DONE),
    ],
)
def test_answers_without_their_calls_are_refused(turns: tuple[dict[str, Any], ...]) -> None:
    found = read_row(row_of(*turns), 1, "auto")
    assert isinstance(found, list) and [problem.reason for problem in found] == ["tool answer without its call"]


def test_a_rejected_answer_is_looked_at_too() -> None:
    call = called('{"id": "c1", "name": "look", "arguments": {}}')
    for name, is_read in (("c1", True), ("c2", False)):
        asked = {"role": "user", "content": "?"}
        row = {"chosen": [asked, DONE], "rejected": [asked, call, answered(name), DONE], "tools": TOOLS}
        assert isinstance(read_row(json.dumps(row).encode(), 1, "auto"), ReadRow) == is_read
