"""What a turn says beside who speaks and what: whether it is trained, how much it counts, its reasoning; and the rest,
which is counted as unread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.rows.conversation import Message
from tests.unit.data.rows.formats.support import bad, good, read, reasons
from tests.unit.data.support import GOOD, check_file, only_problem, user_assistant, write

THOUGHT = "It is small."


def last(**keys: Any) -> Message:
    """The last turn of a row whose last turn has these keys."""
    content = keys.pop("content", "a")
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": content, **keys}]}
    return good(row).messages[1]


def last_is_bad(**keys: Any) -> str:
    content = keys.pop("content", "a")
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": content, **keys}]}
    (reason,) = reasons(row)
    return reason


class TestLoss:
    @pytest.mark.parametrize(
        ("keys", "train", "weight"),
        [
            ({"train": False}, False, 1.0),
            ({"train": True}, True, 1.0),
            ({"loss_weight": 0.25}, True, 0.25),
            ({"loss_scale": 2}, True, 2.0),
            ({"loss_scale": 0}, False, 1.0),
            ({"weight": 0.5}, True, 0.5),
            ({"loss": True, "loss_weight": 0.5}, True, 0.5),
            ({"loss": False, "weight": 0.0}, False, 1.0),
            ({"weight": 3, "loss_weight": 3.0}, True, 3.0),
            ({"weight": 1e-12}, True, 1e-12),
            ({"weight": 1e12}, True, 1e12),
            ({"train": None, "loss_weight": None}, None, 1.0),
        ],
    )
    @pytest.mark.parametrize("form", ["role", "from"])
    def test_what_a_turn_says(self, form: str, keys: dict[str, Any], train: bool | None, weight: float) -> None:
        if form == "role":
            turn = last(**keys)
        else:
            answer = {"from": "gpt", "value": "a", **keys}
            turn = good({"conversations": [{"from": "human", "value": "q"}, answer]}).messages[1]
        assert (turn.train, turn.weight) == (train, weight)

    @pytest.mark.parametrize(
        ("keys", "reason"),
        [
            ({"train": 1}, "bad loss flag"),
            ({"loss": 0.5}, "bad loss flag"),
            ({"train": "no"}, "bad loss flag"),
            ({"loss_weight": True}, "bad weight"),
            ({"loss_weight": -1}, "bad weight"),
            ({"loss_weight": 1e-50}, "bad weight"),  # 0 in float32
            ({"loss_weight": 1e-40}, "bad weight"),
            ({"loss_weight": 1e39}, "bad weight"),  # infinite in float32
            ({"loss_weight": 10**400}, "bad weight"),
            ({"loss_weight": float("nan")}, "bad weight"),
            ({"loss_weight": float("inf")}, "bad weight"),
            ({"loss_scale": "ignore"}, "bad weight"),
            ({"loss_scale": [1, 2]}, "bad weight"),
            ({"train": False, "loss_weight": 0.5}, "bad loss flag"),
            ({"train": True, "loss": False}, "bad loss flag"),
            ({"weight": 1, "loss_weight": 0.5}, "bad loss flag"),
        ],
    )
    def test_what_it_cannot_mean(self, keys: dict[str, Any], reason: str) -> None:
        assert last_is_bad(**keys) == reason

    def test_only_the_assistant_is_asked_for(self) -> None:
        row = {
            "messages": [{"role": "user", "content": "q", "loss_weight": 0.5}, *user_assistant("q", "a")["messages"]]
        }
        assert reasons(row) == ["training another role"]
        row["messages"][0]["loss_weight"] = 0
        assert good(row).messages[0].train is False

    def test_a_flag_that_stands_twice(self, tmp_path: Path) -> None:
        line = GOOD.replace(b'"content":"a"', b'"content":"a","train":true,"train":false')
        assert only_problem(write(tmp_path / "f.jsonl", line)).what == "key `train` is there twice in one object"


class TestReasoning:
    @pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
    def test_under_a_key_of_its_own(self, key: str) -> None:
        turn = last(**{key: THOUGHT})
        assert (turn.content, turn.reasoning, turn.thought, turn.answer) == ("a", THOUGHT, THOUGHT, "a")
        assert turn.without_thought() == Message("assistant", "a")
        turn = good(
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", key: THOUGHT}]}
        ).messages[1]
        assert (turn.thought, turn.answer) == (THOUGHT, "a")

    def test_in_parts(self) -> None:
        parts = [{"type": "thinking", "thinking": THOUGHT, "signature": "x"}, {"type": "text", "text": "a"}]
        turn = last(content=parts)
        assert (turn.thought, turn.content) == (THOUGHT, "a")
        parts[0]["thinking"] = [{"type": "text", "text": THOUGHT}]  # type: ignore[assignment]
        assert last(content=parts).thought == THOUGHT
        assert last_is_bad(content=parts[::-1]) == "reasoning after the text"

    @pytest.mark.parametrize(
        ("content", "thought", "answer"),
        [
            ("<think>\nIt is small.\n</think>\n\nSeven.", THOUGHT, "Seven."),
            (" <think>It is small.</think>Seven.", THOUGHT, "Seven."),
            ("<think></think>Seven.", "", "Seven."),
            ("Tags: <think>x</think>", "", "Tags: <think>x</think>"),
            ("no end: <think>", "", "no end: <think>"),
            ("<think>a</think>b</think>c", "a", "b</think>c"),
        ],
    )
    def test_at_the_beginning_of_the_text(self, content: str, thought: str, answer: str) -> None:
        turn = last(content=content)
        assert (turn.content, turn.reasoning, turn.thought, turn.answer) == (content, "", thought, answer)
        asked = good(user_assistant(content, "a")).messages[0]
        assert (asked.thought, asked.answer) == ("", content), "what a user writes is no reasoning"

    def test_an_image_behind_the_reasoning_keeps_its_place(self) -> None:
        row = user_assistant("<image>q", "<think>x</think>see <image>!") | {"images": ["a.png", "b.png"]}
        turn = good(row).messages[1]
        assert turn.without_thought().content == "see !" and turn.without_thought().image_offsets == (4,)

    def test_nothing_is_no_reasoning(self) -> None:
        for empty in (None, "", " \n"):
            assert last(reasoning_content=empty).thought == ""

    @pytest.mark.parametrize(
        ("keys", "reason"),
        [
            ({"reasoning_content": ["x"]}, "reasoning is not a string"),
            ({"thinking": True}, "reasoning is not a string"),
            ({"reasoning_content": "x", "thinking": "y"}, "reasoning in two places"),
            ({"reasoning_content": "x", "content": "<think>y</think>a"}, "reasoning in two places"),
        ],
    )
    def test_what_it_cannot_mean(self, keys: dict[str, Any], reason: str) -> None:
        assert last_is_bad(**keys) == reason

    def test_only_the_assistant_reasons(self) -> None:
        row = user_assistant("q", "a")
        row["messages"][0]["reasoning_content"] = "x"
        assert reasons(row) == ["reasoning of another role"]


class TestUnread:
    def test_keys_of_turns_are_counted_as_those_of_rows_are(self, tmp_path: Path) -> None:
        rows = [
            user_assistant("q", "a") | {"source": "x"},
            {
                "messages": [
                    {"role": "user", "content": "q", "name": "Ann", "id": 1},
                    {"role": "assistant", "content": "a", "id": 2, "tool_calls": None, "weight": 1},
                ]
            },
            {"conversations": [{"from": "human", "value": "q", "mood": "good"}, {"from": "gpt", "value": "a"}]},
            {"conversation": [{"human": "q", "assistant": "a", "system": "s", "note": "n"}]},
        ]
        path = write(tmp_path / "f.jsonl", *(json.dumps(row).encode() for row in rows))
        report = check_file(path)
        assert report.ok
        assert report.counts.ignored_keys == {
            "source": 1,
            "messages[].name": 1,
            "messages[].id": 1,
            "conversations[].mood": 1,
            "conversation[].note": 1,
        }

    def test_turns_of_a_list_that_is_not_read_are_not_looked_into(self, tmp_path: Path) -> None:
        turns = [{"role": "user", "content": "q", "id": 1}, {"role": "assistant", "content": "a"}]
        row = {"messages": turns, "prompt": turns[:1]}  # says again how the messages begin
        report = check_file(write(tmp_path / "f.jsonl", json.dumps(row).encode()))
        assert report.counts.ignored_keys == {"prompt": 1, "messages[].id": 1}

    def test_keys_of_parts_and_calls_are_counted_by_their_paths(self, tmp_path: Path) -> None:
        call = {
            "id": "c",
            "type": "function",
            "index": 0,
            "function": {"name": "add", "arguments": "{}", "strict": True},
        }
        use = {"type": "tool_use", "id": "d", "name": "add", "input": {"unit": "m"}, "caller": {"type": "direct"}}
        result = {
            "type": "tool_result",
            "tool_use_id": "d",
            "is_error": True,
            "content": [{"text": "no", "lang": "en"}],
        }
        turns = [
            {"role": "user", "content": [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, use]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": "a"},
        ]
        row = {"messages": turns, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]}
        wanted = {
            *("messages[].content[].cache_control", "messages[].content[].signature", "messages[].content[].caller"),
            *("messages[].content[].is_error", "messages[].content[].content[].lang", "system[].cache_control"),
            *("messages[].tool_calls[].index", "messages[].tool_calls[].function.strict"),
        }
        in_text = [turns[0], {**turns[1], "tool_calls": json.dumps([call])}, *turns[2:]]
        for given in (row, {**row, "messages": in_text}):
            report = check_file(write(tmp_path / "f.jsonl", json.dumps(given).encode()))
            assert report.ok and report.counts.ignored_keys == dict.fromkeys(wanted, 1)

    def test_what_tool_turns_have_is_read(self, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        turns = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "name": "add", "content": "3"},
            {"role": "assistant", "content": "3", "train": True, "reasoning_content": "x"},
        ]
        assert not check_file(write(tmp_path / "f.jsonl", json.dumps({"messages": turns}).encode())).counts.ignored_keys


class TestJudgedAnswers:
    CHAT = user_assistant("q", "a")

    @pytest.mark.parametrize(
        "row",
        [
            CHAT,
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            {"prompt": "q", "completion": "a"},
            {"instruction": "q", "output": "a"},
            {"question": "q", "answer": "a"},
        ],
    )
    @pytest.mark.parametrize("judged", [{"label": False}, {"label": True}, {"kto_tag": False}, {"label": "false"}])
    def test_rows_for_kto_are_not_trained_as_chats(self, row: dict[str, Any], judged: dict[str, Any]) -> None:
        (problem,) = bad({**row, **judged})
        assert problem.reason == "no task trains on single judged answers"
        assert "is true, without the key" in problem.hint

    def test_other_labels_are_unread_keys(self, tmp_path: Path) -> None:
        line = json.dumps({**self.CHAT, "label": "maths"}).encode()
        assert check_file(write(tmp_path / "f.jsonl", line)).counts.ignored_keys == {"label": 1}


@pytest.mark.parametrize(
    "pair",
    [
        {"human": "q", "assistant": "a", "loss": False},
        {"input": "q", "output": "a", "output_with_loss": False},
        {"human": "q", "assistant": "a", "weight": 0},
    ],
)
def test_an_answer_of_a_pair_says_of_its_loss_what_a_turn_says(pair: dict[str, Any]) -> None:
    """XTuner's rows are pairs."""
    trained = {key: value for key, value in pair.items() if key not in ("loss", "output_with_loss", "weight")}
    turns = good({"conversation": [pair, trained]}).messages
    assert [turn.train for turn in turns] == [None, False, None, None]


@pytest.mark.parametrize(
    "more",
    [{"train": False}, {"loss": False}, {"training": False}, {"weight": 0}, {"weight": 0.0}, {"loss_weight": "0"}],
)
@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"prompt": "p", "completion": "c"},
        {"text": "t"},
    ],
)
def test_a_row_that_is_not_to_be_trained_is_not_trained_in_silence(row: dict[str, Any], more: dict[str, Any]) -> None:
    (problem,) = bad({**row, **more})
    assert problem.reason == "row that is not to be trained" and problem.hint.startswith("remove the row")
    assert read({**row, **{key: None for key in more}})[0] == read(row)[0]


def test_a_round_that_is_not_trained_may_have_no_answer() -> None:
    asked = {"input": "q", "output": "", "output_with_loss": False}
    turns = good({"conversation": [asked, {"input": "q", "output": "a"}]}).messages
    assert [(turn.content, turn.train) for turn in turns] == [("q", None), ("", False), ("q", None), ("a", None)]
    assert reasons({"conversation": [asked | {"output_with_loss": True}]}) == ["empty assistant turn"]


def test_what_else_rows_are_weighed_by_is_not_taken_for_that() -> None:
    for more in ({"weight": 0.5}, {"loss": 0.0}, {"train": True}, {"weight": 3}):
        assert read({"text": "t", **more})[0] == "text"
