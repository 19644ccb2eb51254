"""Raw FIRE rows: both shapes, the score rule, and every decision at the edges."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rankzero.datasets.fire_rows import Trajectory, feedback_of, read_trajectory, score_of
from rankzero.datasets.tally import Dropped
from tests.unit.datasets.support import fire_row, llava_row, trajectory


def read(row: dict[str, Any]) -> tuple[Trajectory, Counter[str]]:
    notes: Counter[str] = Counter()
    found = read_trajectory(row, notes)
    assert isinstance(found, Trajectory), found
    return found, notes


def dropped(row: dict[str, Any]) -> str:
    found = read_trajectory(row, Counter())
    assert isinstance(found, Dropped)
    return found.rule


def test_both_shapes_are_the_same_trajectory() -> None:
    turns = trajectory(3)
    one, _ = read(fire_row("a", "x.jpg", turns, "<image>\nWhich?", "T"))
    other, _ = read(llava_row("a", "x.jpg", turns, "Which?", "T"))
    assert one == other
    assert [attempt.attempt for attempt in one.rounds] == [f"Thought: t{n}.\nAnswer: a{n}" for n in (1, 2, 3)]
    assert [(attempt.feedback, attempt.score) for attempt in one.rounds] == [("f1", 1), ("f2", 2), ("f3", 3)]
    assert one.rounds[0].feedback_raw == "Score: 1.\nFeedback: f1"


@pytest.mark.parametrize(
    ("turn", "score"),
    [
        ("Score: 6.\nFeedback: x", 6),
        ("Score: 7.5\nFeedback: x", 7),
        ("Score: 8/10", 8),
        ("Score: 10.", 10),
        ("The Score: is 4 of 10", 4),
        ("Attempt 2. Score: 7", 2),  # the first digits of the line, as the official rule has it
        ("Score: none\nFeedback: 9", None),
        ("Feedback: fine\nScore: 9", None),
        ("score: 9", None),
        ("", None),
    ],
)
def test_score(turn: str, score: int | None) -> None:
    assert score_of(turn) == score


@pytest.mark.parametrize(
    ("turn", "feedback"),
    [
        ("Score: 6.\nFeedback: Look.\nFeedback: again", "Look.\nFeedback: again"),
        ("Score: 6.\nLook again.", "Look again."),
        ("Score: 6.", ""),
        ("Look again.", "Look again."),
        ("Feedback:  Look. ", "Look."),
    ],
)
def test_feedback(turn: str, feedback: str) -> None:
    assert feedback_of(turn) == feedback


def test_empty_attempts_go_with_their_feedback_and_the_rest_is_renumbered() -> None:
    turns = [
        ("s", "one"),
        ("t", "Feedback: a"),
        ("s", " \n"),
        ("t", "Feedback: b"),
        ("s", "three"),
        ("t", "Feedback: c"),
    ]
    found, notes = read(fire_row("a", "x.jpg", turns))
    assert [(attempt.attempt, attempt.feedback) for attempt in found.rounds] == [("one", "a"), ("three", "c")]
    assert notes == {"empty attempt": 1}


def test_consecutive_turns() -> None:
    turns = [("s", "one"), ("s", "two"), ("t", "Score: 3\nFeedback: a"), ("t", "Feedback: b"), ("s", "three")]
    for make in (fire_row, llava_row):
        found, notes = read(make("a", "x.jpg", turns))
        assert [(one.attempt, one.feedback, one.score) for one in found.rounds] == [
            ("one", "", None),
            ("two", "a\nb", 3),
            ("three", "", None),
        ]
        assert notes["feedback turns joined"] == 1


def test_feedback_before_any_attempt_and_empty_feedback_are_counted() -> None:
    found, notes = read(fire_row("a", "x.jpg", [("t", "Feedback: early"), ("s", "one"), ("t", ""), ("s", "two")]))
    assert [one.feedback for one in found.rounds] == ["", ""]
    assert notes == {"feedback before any attempt": 1, "empty feedback": 1}


def test_tags_leave_every_text() -> None:
    turns = [("s", "see <image> here"), ("t", "Feedback: <image>\nLook"), ("s", "<im<image>age>two")]
    found, notes = read(fire_row("a", "x.jpg", turns, "What\n<image>"))
    assert found.question == "What"
    assert [one.attempt for one in found.rounds] == ["see here", "two"] and found.rounds[0].feedback == "Look"
    assert notes == {"<image> tag taken out": 5}


def test_the_question_of_the_second_shape() -> None:
    row = llava_row("a", "x.jpg", trajectory(1), "Which?")
    row["conversations"].insert(1, {"from": "human", "value": "Answer in a word."})
    assert read(row)[0].question == "Which?\nAnswer in a word."
    row["conversations"] = row["conversations"][2:]
    assert read(row)[0].question == "Which?", "from raw, where no human turn asks"


def test_rows_of_a_critic_are_dropped() -> None:
    row = {
        "image": "x.jpg",
        "conversations": [
            {"from": "human", "value": "<image>\nQuestion: q\nGround truth: SECRET\nStudent: a"},
            {"from": "gpt", "value": "Score: 3.\nFeedback: no"},
        ],
    }
    assert dropped(row) == "row of a critic"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"conversations": []}, "no turns"),
        ({"conversations": None}, "no turns"),
        ({"conversations": "text"}, "no turns"),
        ({"conversations": ["text"]}, "turn is not an object"),
        ({"conversations": [{"role": "judge", "value": "x"}]}, "unknown role"),
        ({"conversations": [{"role": "student", "value": 3}]}, "turn is not text"),
        ({"conversations": [{"role": "teacher", "value": "Feedback: x"}]}, "no attempt"),
        ({"conversations": [{"role": "student", "value": "  "}]}, "no attempt"),
        ({"question": {"value": " <image> "}}, "no question"),
        ({"question": None}, "no question"),
        ({"question": 3}, "no question"),
    ],
)
def test_rows_that_give_nothing(change: dict[str, Any], rule: str) -> None:
    assert dropped(fire_row("a", "x.jpg", trajectory(2)) | change) == rule


def test_turns_are_known_by_their_type_where_they_have_no_role() -> None:
    row = fire_row("a", "x.jpg", trajectory(2))
    for turn in row["conversations"]:
        del turn["role"]
    assert len(read(row)[0].rounds) == 2
