"""Volcano rows: kept word for word, recognised by their prompts, dropped only by named rules."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert as read_row
from rankzero.datasets.tally import Converted, Dropped, Tally
from rankzero.datasets.volcano import convert, kind_of

CRITIQUE = (
    "<image>\nGenerate the feedback given initial answer referring to question and image.\n"
    "Question: Is there a dog?\nInitial answer: Yes"
)
REVISE = (
    "Adjust the initial response considering the feedback and image.\n"
    "Question: Is there a dog?\nInitial answer: Yes\nFeedback: There is a cat."
)
OPTIONS = "Answer with the option's letter from the given choices directly."
DECIDE = f"Is there a dog?\nA. Yes\nB. No\n{OPTIONS}"
DECIDE_POPE = f"Is there a dog?\n{OPTIONS}\nA. No\nB. Yes"


def row(*values: str, image: str | None = "gqa/images/1.jpg") -> dict[str, Any]:
    turns = [{"from": "human" if i % 2 == 0 else "gpt", "value": value} for i, value in enumerate(values)]
    return {"id": "v", "conversations": turns} | ({"image": image} if image else {})


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        (CRITIQUE, "critique"),
        (REVISE, "revise"),
        (DECIDE, "decide"),
        (DECIDE_POPE, "decide"),
        (f"Which?\nA. x\nB. y\nC. z\nD. w\n{OPTIONS}", "answer"),
        ("Is there a dog?\nAnswer the question using a single word or phrase.", "answer"),
    ],
)
def test_kinds_by_prompt(prompt: str, kind: str) -> None:
    tally = Tally()
    assert isinstance(convert(row(prompt, "x"), tally), Converted)
    assert tally.histograms["kinds"] == {kind: 1}


def test_a_later_turn_can_give_the_kind_away() -> None:
    assert kind_of(["What is it?", REVISE], has_image=True) == "revise"


def test_text_only_rows_are_kept_word_for_word() -> None:
    tally = Tally()
    found = convert(row("Define <image> in HTML. ", "A tag.", image=None), tally)
    assert isinstance(found, Converted) and tally.histograms["kinds"] == {"text": 1} and not tally.notes
    assert found.rows[0]["messages"] == [
        {"role": "user", "content": "Define <image> in HTML. "},
        {"role": "assistant", "content": "A tag."},
    ]
    name, conversation = read_row(found.rows[0] | {"id": "v"}, 1)
    assert name == "messages" and isinstance(conversation, Conversation) and not conversation.images
    assert conversation.messages[0].content == "Define <image> in HTML. "


@pytest.mark.parametrize("prompt", ["<image>\nWhat?", "What?\n<image>"])
def test_the_tag_stays_where_it_is(prompt: str) -> None:
    found = convert(row(prompt, "x", "More?", "y"), Tally())
    assert isinstance(found, Converted) and found.rows[0]["messages"][0]["content"] == prompt


def test_a_missing_tag_is_put_first_and_counted() -> None:
    tally = Tally()
    found = convert(row("What?", "x"), tally)
    assert isinstance(found, Converted) and found.rows[0]["messages"][0]["content"] == "<image>\nWhat?"
    assert tally.notes == {"<image> tag put first": 1}


def test_a_system_prompt_may_come_first() -> None:
    value = row("What?", "x")
    value["conversations"].insert(0, {"from": "system", "value": "Be brief."})
    found = convert(value, Tally())
    assert isinstance(found, Converted)
    assert [turn["role"] for turn in found.rows[0]["messages"]] == ["system", "user", "assistant"]


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (row(), "no turns"),
        ({"image": "x.jpg"}, "no turns"),
        ({"conversations": [3]}, "turn is not an object"),
        ({"conversations": [{"from": "bing", "value": "x"}]}, "unknown role"),
        ({"conversations": [{"value": "x"}]}, "unknown role"),
        (row("What?", ""), "turn without text"),
        ({"conversations": [{"from": "human", "value": None}]}, "turn without text"),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "does not begin with human"),
        ({"conversations": [{"from": "system", "value": "x"}]}, "does not begin with human"),
        ({"conversations": [{"from": "human", "value": "x"}] * 2}, "turns of one role in a row"),
        (row("What?"), "no answer"),
        (row("<image><image>", "x"), "more <image> tags than images"),
        (row("What?", "see <image>"), "<image> tag outside a question"),
    ],
)
def test_rows_that_give_nothing(value: dict[str, Any], rule: str) -> None:
    found = convert(value, Tally())
    assert isinstance(found, Dropped) and found.rule == rule
