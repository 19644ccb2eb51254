"""Calls that answers have as text, and what only looks like them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats.written_calls import with_calls_read
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
