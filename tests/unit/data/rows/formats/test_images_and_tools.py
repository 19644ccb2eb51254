"""Images and their tags, tools and calls, in the formats that have them."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats.images import ANSWERED, PREPENDED
from rankzero.data.rows.formats.writing import turn_rows
from tests.unit.data.rows.formats.support import CALL, ROWS, TOOL, bad, good, read, reasons


def asked(content: Any, **row: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}], **row}


def answered(question: str, answer: str, **row: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], **row}


class TestImages:
    def test_tags_become_offsets(self) -> None:
        conversation = good(ROWS["messages"][2])
        assert conversation.images == ("a/1.jpg", "a/2.jpg")
        assert conversation.messages[0] == Message("user", "\nWhat is ?", image_offsets=(0, 9))

    def test_one_image_as_a_string(self) -> None:
        assert good(asked("<image>q", image="1.jpg")).images == ("1.jpg",)
        assert good(asked("<image>q", images={"path": "1.jpg", "bytes": None})).images == ("1.jpg",)

    def test_a_tag_in_a_row_without_images_is_text(self) -> None:
        for nothing in ({}, {"images": None}, {"images": []}, {"image": ""}):
            conversation = good(asked("what is <image>?", **nothing))
            assert conversation.messages[0].content == "what is <image>?" and not conversation.images

    def test_missing_tags_are_put_before_the_first_question_and_counted(self) -> None:
        _, (conversation,), rules = read(asked("which <image>?", images=["1", "2", "3"], system="s"))
        assert conversation.messages[1].image_offsets == (0, 0, 6) and rules == (PREPENDED,)
        assert conversation.images == ("1", "2", "3")

    def test_a_tag_in_an_answer_is_text_where_the_images_have_their_places(self) -> None:
        said = "Use the <image> tag."
        for question in ("<image>Which tag?", "Which tag?"):
            _, (conversation,), rules = read(answered(question, said, images=["1"]))
            user, answer = conversation.messages
            assert user.image_offsets == (0,) and (answer.content, answer.image_offsets) == (said, ())
            assert rules == (() if "<" in question else (PREPENDED,))

    def test_images_in_answers_that_the_questions_do_not_account_for_stay_and_are_counted(self) -> None:
        _, (conversation,), rules = read(answered("<image>Draw it.", "Here: <image>", images=["1", "2"]))
        assert conversation.messages[1] == Message("assistant", "Here: ", image_offsets=(6,)) and rules == (ANSWERED,)

    def test_images_of_answers_alone_are_written_as_parts(self) -> None:
        """As tags they would be read as text."""
        row = answered("Draw it.", "")
        row["messages"][1]["content"] = [{"type": "text", "text": "Here: "}, {"type": "image", "image": "1"}]
        conversation = good(row)
        written, beside = turn_rows(conversation.messages, conversation)
        again = good({"messages": written, **beside})
        assert (again.messages, again.images) == (conversation.messages, ("1",))

    def test_parts(self) -> None:
        content = [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "https://x/1.png"}},
            {"type": "text", "text": "b"},
            {"type": "image", "image": "2.png"},
        ]
        conversation = good(asked(content))
        assert conversation.messages[0] == Message("user", "ab", image_offsets=(1, 2))
        assert conversation.images == ("https://x/1.png", "2.png")
        places = [{"type": "image"}, {"type": "text", "text": "q"}]
        assert good(asked(places, images=["1"])).messages[0].image_offsets == (0,)

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            (asked("<image><image>", images=["1"]), "more image tags than images"),
            (asked([{"type": "image"}]), "more image tags than images"),
            (asked([{"type": "image", "image": "1"}], images=["2"]), "images in two places"),
            (asked([{"type": "image", "image": "1"}, {"type": "image"}]), "image part without an image"),
            (asked("q", images=["1"], image="2"), "images in two places"),
            (asked("q", images=[3]), "image is not a path"),
            (asked("q", images=[{"bytes": "…"}]), "image is not a path"),
            ({"messages": [{"role": "assistant", "content": "a"}], "images": ["1"]}, "image without a place"),
            ({"prompt": "p", "completion": "c", "images": ["1"]}, "`images` is not read"),
            ({"text": "t", "images": ["1"]}, "`images` is not read"),
        ],
    )
    def test_problems(self, row: Any, reason: str) -> None:
        assert reasons(row) == [reason]

    @pytest.mark.parametrize(
        "row",
        [
            {"conversations": [{"from": "human", "value": "<image>\nq"}, {"from": "gpt", "value": "a"}]},
            {"instruction": "<image>\nq", "output": "a"},
            {"query": "<image>\nq", "response": "a"},
            {
                "prompt": [{"role": "user", "content": "<image>\nq"}],
                "completion": [{"role": "assistant", "content": "a"}],
            },
            {"conversation": [{"human": "<image>\nq", "assistant": "a"}]},
            {
                "prompt": "<image>\nq",
                "chosen": [{"role": "assistant", "content": "a"}],
                "rejected": [{"role": "assistant", "content": "b"}],
            },
        ],
    )
    def test_every_chat_format_has_them(self, row: dict[str, Any]) -> None:
        conversation = good(row | {"images": ["dir/1.jpg"]})
        assert conversation.images == ("dir/1.jpg",)
        assert (conversation.messages[0].content, conversation.messages[0].image_offsets) == ("\nq", (0,))
        assert good(row).messages[0].content == "<image>\nq"


class TestTools:
    def test_calls_and_answers(self) -> None:
        conversation = good(ROWS["messages"][1])
        _, _, call, answer, final = conversation.messages
        function = {"name": "add", "arguments": {"a": 1, "b": [2, "é"]}}
        assert call.tool_calls == ({"id": "call_1", "type": "function", "function": function},) and call.content == ""
        assert answer == Message("tool", "3", tool_call_id="call_1", name="add") and final.train is True
        assert conversation.tools == (TOOL,)

    def test_openai_s_older_names(self) -> None:
        row = {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "1"},
                {"role": "assistant", "content": "a"},
            ],
            "functions": [{"name": "f", "parameters": {}}],
        }
        conversation = good(row)
        assert conversation.tools == ({"type": "function", "function": {"name": "f", "parameters": {}}},)
        assert conversation.messages[1].tool_calls[0]["function"] == {"name": "f", "arguments": {}}
        assert conversation.messages[2] == Message("tool", "1", name="f")

    @pytest.mark.parametrize("nothing", [None, [], ""])
    def test_no_tools(self, nothing: Any) -> None:
        row = asked("q", tools=nothing)
        row["messages"][1]["tool_calls"] = nothing
        assert good(row).tools == () and good(row).messages[1].tool_calls == ()

    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            ({"function": {"name": "f", "arguments": "{oops"}}, "tool call arguments are not JSON"),
            ({"function": {"name": "f", "arguments": ""}}, "tool call arguments are not JSON"),
            ({"function": {"name": "f", "arguments": "[1]"}}, "tool call arguments are not an object"),
            ({"function": {"name": "f"}}, "tool call arguments are not an object"),
            ({"function": {"name": "", "arguments": "{}"}}, "bad tool call"),
            ({"function": "f"}, "bad tool call"),
            ("f", "bad tool call"),
            (None, "bad tool call"),
        ],
    )
    def test_bad_calls(self, call: Any, reason: str) -> None:
        row = asked("q")
        row["messages"][1] = {"role": "assistant", "content": None, "tool_calls": [call]}
        (problem,) = bad(row)
        assert problem.reason == reason and "messages[1].tool_calls[0]" in problem.what

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda turns: turns[1].update(tool_calls=[CALL]), "tool call of another role"),
            (lambda turns: turns[2].update(function_call={"name": "f"}), "tool calls in two places"),
            (lambda turns: turns[3].update(tool_call_id="other"), "tool answer without its call"),
            (lambda turns: turns[3].update(tool_call_id=3), "bad tool answer"),
            (lambda turns: turns[3].update(content=None), "content is null"),
            (lambda turns: turns[2].update(tool_calls=[]), "content is null"),
        ],
    )
    def test_bad_turns(self, change: Any, reason: str) -> None:
        row = ROWS["messages"][1] | {"messages": [dict(turn) for turn in ROWS["messages"][1]["messages"]]}
        change(row["messages"])
        assert reason in reasons(row)

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ({"tools": {"name": "f"}}, "bad tools"),
            ({"tools": "f"}, "bad tools"),
            ({"tools": [{"function": {}}]}, "bad tools"),
            ({"tools": ["f"]}, "bad tools"),
            ({"tools": [TOOL], "functions": [TOOL]}, "tools in two places"),
        ],
    )
    def test_bad_tools(self, row: dict[str, Any], reason: str) -> None:
        assert reasons(asked("q", **row)) == [reason]
