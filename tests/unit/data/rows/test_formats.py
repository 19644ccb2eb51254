"""Row shapes: what each becomes, and what is wrong with a row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats import convert
from rankzero.data.rows.problems import RowProblem
from tests.unit.data.support import chat, user_assistant


def good(row: Any, wanted: str = "auto") -> Conversation:
    _, result = convert(row, 7, wanted)
    assert isinstance(result, Conversation), result
    assert result.line == 7
    return result


def bad(row: Any, wanted: str = "auto") -> list[RowProblem]:
    _, result = convert(row, 7, wanted)
    assert isinstance(result, list) and result, result
    assert all(problem.line == 7 for problem in result)
    return result


def bad_turn(**turn: Any) -> RowProblem:
    """The one problem of a row whose second turn is this."""
    rows = {"messages": [{"role": "user", "content": "q"}, turn, {"role": "assistant", "content": "a"}]}
    (problem,) = bad(rows)
    assert "messages[1]" in problem.what
    return problem


class TestMessages:
    def test_turns(self) -> None:
        row = chat(("system", ""), ("developer", "d"), ("user", "q"), ("tool", "t"), ("assistant", "a"))
        conversation = good(row)
        assert conversation.templated and not conversation.completion_only
        assert [m.role for m in conversation.messages] == ["system", "developer", "user", "tool", "assistant"]
        assert all(m.train is None for m in conversation.messages)

    def test_text_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert good(chat(("user", "q"), ("assistant", parts))).messages[1].content == "ab"  # type: ignore[arg-type]

    @pytest.mark.parametrize(("content", "kind"), [(None, "null"), (3, "3"), (True, "true"), ({}, "an object")])
    def test_content_that_is_no_string(self, content: Any, kind: str) -> None:
        assert f"content is {kind}" in bad_turn(role="user", content=content).what

    @pytest.mark.parametrize("parts", [[], [{"type": "audio"}], [{"type": "text"}], ["x"], [{"type": "image_url"}]])
    def test_parts_that_are_neither_text_nor_image(self, parts: Any) -> None:
        assert bad_turn(role="user", content=parts).reason == "unknown content part"

    @pytest.mark.parametrize(
        ("role", "meant"),
        [("human", "user"), ("gpt", "assistant"), ("User", "user"), ("bing", "assistant"), ("model", "assistant")],
    )
    def test_words_of_other_tools_for_who_speaks(self, role: str, meant: str) -> None:
        row = {"messages": [{"role": role, "content": "x"}, {"role": "assistant", "content": "a"}]}
        assert good(row).messages[0].role == meant

    @pytest.mark.parametrize(
        ("role", "meant"),
        [("usr", "user"), ("asistant", "assistant"), ("Systm", "system")],
    )
    def test_unknown_role_is_corrected(self, role: str, meant: str) -> None:
        problem = bad_turn(role=role, content="x")
        assert (problem.reason, problem.hint) == ("unknown role", f"did you mean {meant}?")

    def test_unknown_role_without_a_guess(self) -> None:
        assert "developer" in bad_turn(role="zzzz", content="x").hint

    def test_role_that_is_missing_or_no_string(self) -> None:
        assert bad_turn(content="x").reason == "turn without role"
        assert bad_turn(role=3, content="x").reason == "role is not a string"

    def test_sharegpt_keys_inside_messages(self) -> None:
        row = {"messages": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
        assert good(row).messages == good(user_assistant("q", "a")).messages

    def test_turn_that_is_no_object(self) -> None:
        assert bad({"messages": ["hi", {"role": "assistant", "content": "a"}]})[0].reason == "turn is not an object"

    def test_empty_messages(self) -> None:
        assert bad({"messages": []})[0].reason == "empty `messages`"

    def test_messages_as_json_in_a_string(self) -> None:
        turns = user_assistant("q", "a")
        assert good({"messages": json.dumps(turns["messages"])}) == good(turns)

    @pytest.mark.parametrize("value", ['[{"role": "user"', {"role": "user"}, 3])
    def test_messages_that_are_no_list(self, value: Any) -> None:
        assert bad({"messages": value})[0].reason == "`messages` is not a list"

    def test_nothing_to_train_on(self) -> None:
        assert "only system turns" in bad(chat(("system", "s")))[0].what
        assert "only system, user turns" in bad(chat(("system", "s"), ("user", "q"), ("user", "r")))[0].what

    @pytest.mark.parametrize("content", ["", " \n"])
    def test_empty_assistant_turn(self, content: str) -> None:
        assert bad(user_assistant("q", content))[0].reason == "empty assistant turn"
        assert good(chat(("user", "q"), ("assistant", content, False), ("assistant", "a")))

    def test_same_role_twice_is_the_template_s_business(self) -> None:
        assert len(good(chat(("user", "a"), ("user", "b"), ("assistant", "c"))).messages) == 3

    @pytest.mark.parametrize(
        ("flags", "train"),
        [
            ({"loss": True}, True),
            ({"loss": False}, False),
            ({"weight": 1}, True),
            ({"weight": 0}, False),
            ({"weight": 0.0}, False),
            ({"loss": None, "weight": None}, None),
            ({"loss": True, "weight": 1}, True),
            ({}, None),
        ],
    )
    def test_train_flags(self, flags: dict[str, Any], train: bool | None) -> None:
        row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", **flags}]}
        assert good(row).messages[1].train is train

    @pytest.mark.parametrize(
        ("flags", "reason"),
        [
            ({"weight": -0.5}, "bad weight"),
            ({"weight": True}, "bad weight"),
            ({"weight": "1"}, "bad weight"),
            ({"loss": 1}, "bad loss flag"),
            ({"loss": "yes"}, "bad loss flag"),
            ({"loss": True, "weight": 0}, "bad loss flag"),
        ],
    )
    def test_bad_train_flags(self, flags: dict[str, Any], reason: str) -> None:
        assert bad_turn(role="assistant", content="x", **flags).reason == reason

    def test_only_assistant_turns_can_be_asked_for(self) -> None:
        assert bad_turn(role="user", content="x", loss=True).reason == "training another role"
        assert good(chat(("user", "q", False), ("assistant", "a"))).messages[0].train is False

    @pytest.mark.parametrize("key", ["audio", "refusal", "images"])
    def test_what_the_model_would_have_to_see_is_not_left_out_in_silence(self, key: str) -> None:
        assert bad_turn(role="assistant", content="x", **{key: ["y"]}).reason == f"`{key}` is not read"
        for empty in (None, [], ""):
            assert good(chat(("user", "q"), ("assistant", "a")) | {key: empty})

    def test_all_problems_of_a_row(self) -> None:
        row = {"messages": [{"role": "student", "content": None}, {"role": "assistant", "content": ""}]}
        assert [p.reason for p in bad(row)] == ["unknown role", "content is null", "empty assistant turn"]

    def test_extra_keys_are_allowed(self) -> None:
        assert good(user_assistant("q", "a") | {"id": 3, "metadata": {"x": 1}, "source": None})


class TestPromptCompletion:
    def test_strings(self) -> None:
        conversation = good({"prompt": "p ", "completion": "c"})
        assert not conversation.templated
        assert conversation.messages == (Message("prompt", "p "), Message("completion", "c"))

    def test_turns(self) -> None:
        row = {"prompt": user_assistant("q", "a")["messages"], "completion": user_assistant("r", "b")["messages"]}
        conversation = good(row)
        assert conversation.templated and conversation.completion_only
        assert [m.train for m in conversation.messages] == [False, False, None, None]

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ({"prompt": "", "completion": "c"}, "empty prompt"),
            ({"prompt": " ", "completion": "c"}, "empty prompt"),
            ({"prompt": "p", "completion": ""}, "empty completion"),
            (
                {"prompt": "p", "completion": [{"role": "assistant", "content": "a"}]},
                "prompt and completion differ in kind",
            ),
            ({"prompt": 1, "completion": 2}, "prompt and completion differ in kind"),
            ({"prompt": [], "completion": [{"role": "assistant", "content": "a"}]}, "empty `prompt`"),
            ({"prompt": [{"role": "user", "content": "q"}], "completion": []}, "empty `completion`"),
            (
                {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "user", "content": "q"}]},
                "no assistant turn",
            ),
            (
                {
                    "prompt": [{"role": "assistant", "content": "q", "loss": True}],
                    "completion": [{"role": "assistant", "content": "q"}],
                },
                "trained prompt",
            ),
            ({"prompt": "p"}, "prompt without completion"),
            ({"completion": "c"}, "completion without prompt"),
        ],
    )
    def test_problems(self, row: Any, reason: str) -> None:
        assert [problem.reason for problem in bad(row)] == [reason]

    def test_the_answer_under_a_name_that_nobody_uses_for_one(self) -> None:
        assert bad({"prompt": "p", "label": "r"})[0].hint == "rename label to completion"


class TestText:
    def test_text(self) -> None:
        conversation = good({"text": "t"})
        assert not conversation.templated and conversation.messages == (Message("completion", "t"),)

    @pytest.mark.parametrize(
        ("value", "reason"), [("", "empty text"), ("\n", "empty text"), (3, "text is not a string")]
    )
    def test_problems(self, value: Any, reason: str) -> None:
        assert bad({"text": value})[0].reason == reason


class TestDetection:
    def test_null_is_absent(self) -> None:
        row = {"messages": None, "prompt": None, "completion": None, "text": "t"}
        assert convert(row, 1)[0] == "text"

    @pytest.mark.parametrize("prompt", ["q", [{"role": "user", "content": "q"}]])
    def test_prompt_that_repeats_the_messages(self, prompt: Any) -> None:
        assert convert(user_assistant("q", "a") | {"prompt": prompt}, 1)[0] == "messages"

    def test_prompt_that_repeats_the_messages_after_a_system_turn(self) -> None:
        row = chat(("system", "s"), ("user", "q"), ("assistant", "a")) | {"prompt": "q"}
        assert convert(row, 1)[0] == "messages"

    @pytest.mark.parametrize(
        "extra",
        [{"prompt": "other"}, {"prompt": [{"role": "user"}]}, {"text": "t"}, {"prompt": "q", "completion": "a"}],
    )
    def test_ambiguous_rows(self, extra: dict[str, Any]) -> None:
        row = user_assistant("q", "a") | extra
        (problem,) = bad(row)
        assert problem.reason == "ambiguous row" and "format: messages" in problem.hint
        assert good(row, "messages").templated

    def test_text_beside_prompt_and_completion(self) -> None:
        (problem,) = bad({"prompt": "p", "completion": "c", "text": "pc"})
        assert "format: prompt_completion" in problem.hint

    def test_stated_format_is_held(self) -> None:
        (problem,) = bad({"text": "t", "id": 1}, "messages")
        assert problem.reason == "not in the stated format" and "`text`, `id`" in problem.what

    def test_unknown_shape_lists_keys_and_shapes(self) -> None:
        (problem,) = bad({"title": "q", "x" * 100: 1})
        assert "`title`" in problem.what and "x" * 41 not in problem.what
        assert '{"messages"' in problem.hint and '{"text"' in problem.hint

    def test_unknown_shape_of_nulls(self) -> None:
        assert "`text` is null" in bad({"text": None})[0].what
        assert "keys are none" in bad({})[0].what

    @pytest.mark.parametrize("key", ["documents", "video", "audios"])
    def test_row_keys_the_model_would_have_to_see(self, key: str) -> None:
        (problem,) = bad(user_assistant("q", "a") | {key: ["x"]})
        assert problem.reason == f"`{key}` is not read"
        assert good(user_assistant("q", "a") | {key: None})
