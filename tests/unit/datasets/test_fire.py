"""Steps of trajectories as rows: the exact layout, the window, the policies, and both shapes against each other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert as read_row
from rankzero.datasets.fire import FirePolicy, convert
from rankzero.datasets.tally import Converted, Dropped, Tally
from tests.unit.datasets.support import fire_row, many_fire_rows, trajectory


def rows_of(row: dict[str, Any], policy: FirePolicy | None = None) -> list[dict[str, Any]]:
    tally = Tally()
    found = convert(row, tally, policy or FirePolicy())
    assert isinstance(found, Converted), found
    assert tally.steps_in == tally.steps_out + tally.steps_dropped.total() and found.steps == tally.steps_out
    return found.rows


def test_the_layout_exactly() -> None:
    row = fire_row("fire-1", "x.jpg", trajectory(3), "<image>\nWhat colour is the bus?", "Green")
    last = rows_of(row)[2]
    assert last == {
        "id": "t2",
        "messages": [
            {
                "role": "user",
                "content": "<image>\nQuestion:\nWhat colour is the bus?"
                "\n\nAttempt 1:\nThought: t1.\nAnswer: a1\n\nFeedback 1:\nf1"
                "\n\nAttempt 2:\nThought: t2.\nAnswer: a2\n\nFeedback 2:\nf2",
            },
            {"role": "assistant", "content": "Thought: t3.\nAnswer: a3"},
        ],
    }
    assert rows_of(row)[0]["messages"][0]["content"] == "<image>\nQuestion:\nWhat colour is the bus?"


def test_nine_rounds_and_a_window_of_six_keep_absolute_numbers() -> None:
    state = rows_of(fire_row("a", "x.jpg", trajectory(9)))[8]["messages"][0]["content"]
    assert [f"Attempt {n}:" in state for n in range(1, 10)] == [False, False, *[True] * 6, False]
    assert "Attempt 3:\nThought: t3." in state and state.endswith("Feedback 8:\nf8")
    assert "f9" not in state, "the feedback on the last attempt is in no state"


@pytest.mark.parametrize(
    ("window", "numbers"), [(0, []), (1, [4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]), (99, [1, 2, 3, 4])]
)
def test_other_windows(window: int, numbers: list[int]) -> None:
    policy = FirePolicy(max_history_rounds=window)
    state = rows_of(fire_row("a", "x.jpg", trajectory(5)), policy)[4]["messages"][0]["content"]
    assert [n for n in range(1, 6) if f"Attempt {n}:" in state] == numbers


def test_missing_feedback_is_left_out_with_its_heading() -> None:
    row = fire_row("a", "x.jpg", [("s", "one"), ("s", "two"), ("t", "Score: 3"), ("s", "three")])
    state = rows_of(row)[2]["messages"][0]["content"]
    assert state == "<image>\nQuestion:\nWhat is it?\n\nAttempt 1:\none\n\nAttempt 2:\ntwo"


def test_raw_feedback_shows_the_score() -> None:
    state = rows_of(fire_row("a", "x.jpg", trajectory(2)), FirePolicy(raw_feedback=True))[1]["messages"][0]["content"]
    assert state.endswith("Feedback 1:\nScore: 1.\nFeedback: f1")


@pytest.mark.parametrize(
    ("policy", "steps", "left_out"),
    [
        (FirePolicy(skip_first=True), [1, 2, 3], {"first attempt": 1}),
        (FirePolicy(min_score=3), [2], {"score below the minimum": 2, "no score": 1}),
        (FirePolicy(final_only=True), [3], {"not the final attempt": 3}),
        (FirePolicy(skip_first=True, min_score=1), [1, 2], {"first attempt": 1, "no score": 1}),
    ],
)
def test_policies(policy: FirePolicy, steps: list[int], left_out: dict[str, int]) -> None:
    tally = Tally()
    found = convert(fire_row("a", "x.jpg", trajectory(4)[:-1]), tally, policy)
    assert isinstance(found, Converted)
    assert [row["id"] for row in found.rows] == [f"t{step}" for step in steps]
    assert tally.steps_dropped == left_out and tally.steps_in == 4
    assert tally.histograms == {"rounds": {"4": 1}, "scores": {"1": 1, "2": 1, "3": 1, "none": 1}}


@pytest.mark.parametrize("policy", [FirePolicy(skip_first=True), FirePolicy(min_score=5)])
def test_a_trajectory_of_which_nothing_is_left(policy: FirePolicy) -> None:
    tally = Tally()
    found = convert(fire_row("a", "x.jpg", trajectory(1)), tally, policy)
    assert isinstance(found, Dropped) and found.rule == "no step left"
    assert (tally.steps_in, tally.steps_out, tally.steps_dropped.total()) == (1, 0, 1)


def test_multi_turn_shares_a_row_while_the_history_fits() -> None:
    rows = rows_of(fire_row("a", "x.jpg", trajectory(9)), FirePolicy(shape="multi-turn"))
    assert [row["id"] for row in rows] == ["t6", "t7", "t8"]
    assert [turn["role"] for turn in rows[0]["messages"]] == ["user", "assistant"] * 7
    assert [turn["loss"] for turn in rows[0]["messages"][1::2]] == [True] * 7
    assert [turn["loss"] for turn in rows[2]["messages"][1::2]] == [False] * 6 + [True]
    assert rows[2]["messages"][0]["content"] == "<image>\nWhat is it?"
    assert rows[2]["messages"][1]["content"] == "Thought: t3.\nAnswer: a3"


def test_multi_turn_with_a_policy_trains_the_chosen_turns_alone() -> None:
    policy = FirePolicy(shape="multi-turn", min_score=2, skip_first=True)
    (row,) = rows_of(fire_row("a", "x.jpg", trajectory(4)), policy)
    assert [turn["loss"] for turn in row["messages"][1::2]] == [False, True, True, True]


def test_multi_turn_cannot_do_without_feedback_between_attempts() -> None:
    tally = Tally()
    row = fire_row("a", "x.jpg", [("s", "one"), ("s", "two")])
    found = convert(row, tally, FirePolicy(shape="multi-turn"))
    assert isinstance(found, Dropped) and found.rule == "attempts without feedback between them"
    assert tally.steps_dropped == {"attempts without feedback between them": 2} and tally.steps_in == 2
    assert len(rows_of(row)) == 2, "the flattened state can"


@given(st.integers(1, 12), st.integers(0, 8), st.booleans())
def test_both_shapes_train_the_same_steps_with_the_same_history(rounds: int, window: int, skip: bool) -> None:
    row = fire_row("a", "x.jpg", trajectory(max(rounds, 1 + skip)))
    flat = rows_of(row, FirePolicy(window, skip_first=skip))
    chats = rows_of(row, FirePolicy(window, skip_first=skip, shape="multi-turn"))
    steps = []
    for chat in chats:
        turns = chat["messages"]
        for index, turn in enumerate(turns):
            if turn.get("loss"):
                history = [said["content"] for said in turns[1:index]]
                steps.append((turn["content"], history))
    assert len(steps) == len(flat)
    for (action, history), step in zip(steps, flat, strict=True):
        state = step["messages"][0]["content"]
        assert action == step["messages"][1]["content"]
        assert len(history) == 2 * state.count("Attempt ")
        assert all(text in state for text in history)


@given(st.integers(1, 12))
def test_the_steps_reproduce_the_trajectory(rounds: int) -> None:
    rows = rows_of(fire_row("a", "x.jpg", trajectory(rounds)), FirePolicy(max_history_rounds=99))
    assert [row["messages"][1]["content"] for row in rows] == [
        f"Thought: t{n}.\nAnswer: a{n}" for n in range(1, rounds + 1)
    ]
    last = rows[-1]["messages"][0]["content"]
    for row, following in zip(rows, rows[1:], strict=False):
        state, action = (turn["content"] for turn in row["messages"])
        assert following["messages"][0]["content"].startswith(state + "\n\nAttempt ")
        assert action in following["messages"][0]["content"]
    assert [f"f{n}" in last for n in range(1, rounds + 1)] == [True] * (rounds - 1) + [False]


TEXTS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), max_size=20) | st.sampled_from(
    ["<image>", "<im<image>age>", "Score: 3", "Feedback:", "\n\nAttempt 2:\n", "", "\u2028"]
)


@given(
    st.lists(st.tuples(st.sampled_from("st"), TEXTS), max_size=10), TEXTS, st.sampled_from(["flattened", "multi-turn"])
)
def test_every_row_loads_as_messages_with_one_image(turns: list[tuple[str, str]], question: str, shape: Any) -> None:
    row = fire_row("a", "x.jpg", turns, question, "GROUND-TRUTH-MARKER")
    tally = Tally()
    found = convert(row, tally, FirePolicy(shape=shape))
    assert tally.steps_in == tally.steps_out + tally.steps_dropped.total()
    if isinstance(found, Dropped):
        assert found.rule
        return
    for made in found.rows:
        assert "GROUND-TRUTH-MARKER" not in str(made)
        assert sum(turn["content"].count("<image>") for turn in made["messages"]) == 1
        name, conversation = read_row({**made, "images": ["x.jpg"]}, 1)
        assert name == "messages" and isinstance(conversation, Conversation), conversation
        assert conversation.images == ("x.jpg",) and conversation.messages[0].image_offsets == (0,)


def test_a_thousand_trajectories_equal_a_slow_independent_reading() -> None:
    for window in (6, 2):
        for row in many_fire_rows(1000, seed=window):
            assert [
                tuple(turn["content"] for turn in made["messages"]) for made in rows_of(row, FirePolicy(window))
            ] == list(slow_steps(row, window))


def slow_steps(row: dict[str, Any], window: int) -> list[tuple[str, str]]:
    """Written from the description alone, for well-formed rows."""
    turns = row["conversations"]
    if "raw" in row:
        turns = turns[1:]
        question = row["raw"]["question"]["value"]
    else:
        question = row["question"]["value"]
    attempts = [turn["value"] for turn in turns[0::2]]
    answers = [turn["value"] for turn in turns[1::2]]
    steps = []
    for t in range(len(attempts)):
        lines = ["<image>", "Question:", question]
        numbers = [h for h in range(t) if t - h <= window]
        for h in numbers:
            lines += ["", f"Attempt {h + 1}:", *attempts[h].strip().split("\n")]
            lines += ["", f"Feedback {h + 1}:", answers[h].split("Feedback:")[1].strip()]
        steps.append(("\n".join(lines), attempts[t].strip()))
    return steps
