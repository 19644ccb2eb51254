"""Trees: which of their conversations are taken; messages a row to trees."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import Noted
from rankzero.data.rows.formats.oasst import (
    MAX_DEPTH,
    NO_REPLY,
    NOT_BEST,
    ROOT_REFUSED,
    SEVERAL,
    SKIPPED,
    group_flat_rows,
    read_tree,
)
from tests.unit.data.rows.formats.support import TREE, good, reasons, turns


def message(name: str, *replies: Any, rank: int | None = None, **more: Any) -> dict[str, Any]:
    """A message named by whoever speaks: p… is a question, a… an answer."""
    role = "prompter" if name.startswith("p") else "assistant"
    return {"message_id": name, "text": name, "role": role, "rank": rank, "replies": list(replies), **more}


def tree(root: dict[str, Any]) -> dict[str, Any]:
    return {"message_tree_id": "t", "prompt": root}


def paths(row: dict[str, Any], **options: Any) -> list[str]:
    """The conversations as the names of their messages."""
    result = read_tree(row, 7, **options)
    assert not isinstance(result, list), result
    conversations = result.conversations if isinstance(result, Noted) else (result,)
    assert all(isinstance(conversation, Conversation) for conversation in conversations)
    return [" ".join(m.content for m in conversation.messages) for conversation in conversations]  # type: ignore[union-attr]


def rules(row: dict[str, Any], **options: Any) -> tuple[str, ...]:
    result = read_tree(row, 7, **options)
    return result.rules if isinstance(result, Noted) else ()


BRANCHED = tree(
    message(
        "p1",
        message("a1", message("p2", message("a2")), rank=1),
        message("a3", message("p3", message("a4"), rank=1), message("p4", rank=0), rank=0),
        message("a5"),
    )
)


def test_the_best_path_follows_the_ranks_and_ends_with_the_assistant() -> None:
    assert turns(good(TREE)) == [("user", "Why is the sky blue?"), ("assistant", "Rayleigh scattering.")]
    assert (good(TREE).group, good(TREE).id) == ("t1", "b")
    assert paths(BRANCHED) == ["p1 a3"] and rules(BRANCHED) == (NOT_BEST,)


def test_all_paths_share_their_group() -> None:
    assert paths(BRANCHED, all_paths=True) == ["p1 a3", "p1 a3 p3 a4", "p1 a1 p2 a2", "p1 a5"]
    assert rules(BRANCHED, all_paths=True) == (SEVERAL,)
    result = read_tree(BRANCHED, 7, all_paths=True)
    assert isinstance(result, Noted) and {c.group for c in result.conversations} == {"t"}


@pytest.mark.parametrize("refusal", [{"deleted": True}, {"review_result": False}])
def test_refused_messages_are_left_out_with_what_follows(refusal: dict[str, Any]) -> None:
    row = tree(message("p1", message("a1", message("p2", message("a2")), rank=0, **refusal), message("a3", rank=1)))
    assert paths(row, all_paths=True) == paths(row) == ["p1 a3"]
    assert rules(row) == (SKIPPED,)
    assert read_tree(tree(message("p1", message("a1"), **refusal)), 7) == Noted((), dropped=ROOT_REFUSED)


def test_nobody_s_review_is_no_refusal() -> None:
    assert paths(tree(message("p1", message("a1", review_result=None, deleted=False)))) == ["p1 a1"]


def test_a_tree_without_an_answer_is_left_out_by_name() -> None:
    assert read_tree(tree(message("p1")), 7) == Noted((), (), NO_REPLY)
    assert read_tree(tree(message("p1", message("a1", deleted=True))), 7) == Noted((), (SKIPPED,), NO_REPLY)


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        (message("p1", message("a1", text="")), "message without text"),
        (message("p1", message("a1", text=None)), "message without text"),
        (message("p1", message("a1", role="bot")), "unknown role"),
        (message("p1", message("a1", role=None)), "unknown role"),
        (message("p1", "a1"), "bad tree"),
        (message("p1") | {"replies": {"a": 1}}, "bad tree"),
    ],
)
def test_problems(root: Any, reason: str) -> None:
    assert reasons(tree(root)) == [reason]


def test_deep_trees_do_not_use_up_the_stack() -> None:
    row = message("a")
    for i in range(5000):
        row = message("p" if i % 2 == 0 else "a", row)
    assert len(good(tree(message("p", row))).messages) == 5002


FLAT = [
    {"message_id": "a", "parent_id": None, "message_tree_id": "a", "role": "prompter", "text": "q", "lang": "en"},
    {"message_id": "b", "parent_id": "a", "message_tree_id": "a", "role": "assistant", "text": "x", "rank": 0},
    {"message_id": "c", "parent_id": "a", "message_tree_id": "a", "role": "assistant", "text": "y", "rank": 1},
    {"message_id": "d", "parent_id": None, "message_tree_id": "d", "role": "prompter", "text": "r"},
    {"message_id": "e", "parent_id": "d", "message_tree_id": "d", "role": "assistant", "text": "z"},
]


def test_flat_rows_become_trees_in_any_order() -> None:
    for seed in range(20):
        rows = list(enumerate(FLAT, 1))
        random.Random(seed).shuffle(rows)
        grouped = group_flat_rows(rows)
        assert not grouped.problems
        found = {tree.line: (paths(dict(tree.row)), tree.rows) for tree in grouped.wholes}
        assert found == {1: (["q x"], 3), 4: (["r z"], 2)}


def test_a_lone_flat_row_says_that_its_file_is_needed() -> None:
    for wanted in ("auto", "oasst"):
        assert reasons(FLAT[1], wanted) == ["flat oasst row"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({2: {"parent_id": "zz"}}, {2: "orphan"}),
        ({1: {"parent_id": "b"}, 2: {"parent_id": "a"}}, {1: "cycle", 2: "cycle", 3: "cycle"}),
        ({1: {"parent_id": "a"}}, {1: "cycle", 2: "cycle", 3: "cycle"}),
        ({4: {"parent_id": "zz"}}, {4: "orphan", 5: "orphan"}),
        ({3: {"message_id": "b"}}, {3: "message twice"}),
        ({3: {"message_id": []}}, {3: "message without an id"}),
        ({3: {"parent_id": {}}}, {3: "message without an id"}),
    ],
)
def test_every_row_that_no_root_leads_to_has_a_problem(changes: dict[int, Any], expected: dict[int, str]) -> None:
    grouped = group_flat_rows((line, row | changes.get(line, {})) for line, row in enumerate(FLAT, 1))
    assert {problem.line: problem.reason for problem in grouped.problems} == expected
    assert len(grouped.problems) + sum(tree.rows for tree in grouped.wholes) == len(FLAT)


def test_chains_too_deep_to_be_written_as_a_tree() -> None:
    rows = [FLAT[0] | {"message_id": i, "parent_id": i - 1 if i else None} for i in range(MAX_DEPTH + 1)]
    grouped = group_flat_rows(enumerate(rows, 1))
    assert not grouped.wholes and {problem.reason for problem in grouped.problems} == {"tree too deep"}
    assert len(grouped.problems) == MAX_DEPTH + 1
