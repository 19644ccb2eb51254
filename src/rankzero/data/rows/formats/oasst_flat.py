"""Messages of trees, one a row, as trees. Pure: told the rows, returns trees; knows nothing of files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rankzero.data.rows.formats.fields import as_name
from rankzero.data.rows.formats.format import Row
from rankzero.data.rows.problems import RowProblem

MAX_DEPTH = 200
"""Messages in a row. A tree is written as nested JSON, and what reads that stops at 254 levels."""

_KEPT = ("message_id", "text", "role", "rank", "deleted", "review_result")


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree with the line of its root, and how many rows it is made of."""

    line: int
    row: Row
    rows: int


@dataclass(slots=True)
class Grouped:
    """The trees in the order of their roots. Every row is in one of them, or has a problem."""

    trees: list[Tree] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)


def group_flat_rows(rows: Iterable[tuple[int, Row]]) -> Grouped:
    """Rows with their line numbers as trees. Rows that no root leads to are problems, one each."""
    grouped = Grouped()
    nodes: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    parents: dict[str, str] = {}
    trees: dict[str, str | None] = {}
    for line, row in rows:
        name, parent = as_name(row.get("message_id")), as_name(row.get("parent_id"))
        if name is None or (parent is None and row.get("parent_id") not in (None, "")):
            what = "`message_id` or `parent_id` is neither a string nor a number"
            grouped.problems.append(RowProblem(line, "message without an id", what))
        elif name in nodes:
            what = f"message {name[:60]!r} is on line {lines[name]} already"
            grouped.problems.append(RowProblem(line, "message twice", what, "which of the two is meant?"))
        else:
            nodes[name] = {key: row[key] for key in _KEPT if row.get(key) is not None}
            lines[name] = line
            if parent is None:
                trees[name] = as_name(row.get("message_tree_id"))
            else:
                parents[name] = parent
    children: dict[str, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    reached: set[str] = set()
    for root, tree in trees.items():
        members, depth = _descend(root, nodes, children)
        reached.update(members)
        if depth > MAX_DEPTH:
            what = f"the tree is {depth} messages deep, more than {MAX_DEPTH}"
            grouped.problems += [RowProblem(lines[name], "tree too deep", what) for name in members]
        else:
            row = {"message_tree_id": tree or root, "prompt": nodes[root]}
            grouped.trees.append(Tree(lines[root], row, len(members)))
    orphans: set[str] = set()
    for parent in children.keys() - nodes.keys():
        for name in children[parent]:
            orphans.update(_descend(name, nodes, children)[0])
    for name in nodes.keys() - reached:
        if name in orphans:
            what = f"message {name[:60]!r} hangs on one that is not in the file"
            problem = RowProblem(lines[name], "orphan", what, "add the rest of its tree, or remove the row")
        else:
            what = f"message {name[:60]!r} is its own ancestor"
            problem = RowProblem(lines[name], "cycle", what, "parent_id leads in a circle")
        grouped.problems.append(problem)
    grouped.problems.sort(key=lambda problem: problem.line)
    return grouped


def _descend(root: str, nodes: dict[str, dict[str, Any]], children: dict[str, list[str]]) -> tuple[list[str], int]:
    """Everything under the root, itself included, with replies hung in; and how deep that goes."""
    members: list[str] = []
    level, depth = [root], 0
    while level:
        depth += 1
        members += level
        for name in level:
            if name in children:
                nodes[name]["replies"] = [nodes[child] for child in children[name]]
        level = [child for name in level for child in children.get(name, ())]
    return members, depth
