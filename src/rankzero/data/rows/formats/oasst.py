"""Conversation trees of Open Assistant: one tree a row, or one message a row. Knows nothing of files or tokens.

A tree has many conversations. The best one follows the best-ranked reply at every turn and ends with the assistant;
all of them share the tree as their group, so none is held out while another is trained. Messages that are spread over a
file's rows become trees first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message, Role
from rankzero.data.rows.formats.fields import as_name
from rankzero.data.rows.formats.format import Claim, Format, Joined, Noted, Pieces, Result, Row, Whole
from rankzero.data.rows.problems import RowProblem, kind

SHAPE = '{"message_tree_id": "…", "prompt": {"text": "…", "role": "prompter", "replies": [{…}]}}'

SKIPPED = "oasst: deleted and refused messages are left out, with the replies to them"
NOT_BEST = "oasst: replies beside the best path are left out"
SEVERAL = "oasst: one tree gives a row for each of its paths"
NO_REPLY = "tree_without_reply"
ROOT_REFUSED = "tree_deleted"

MAX_DEPTH = 200
"""Messages in a row. A tree is written as nested JSON, and what reads that stops at 254 levels."""

_FLAT = frozenset({"message_id", "text", "role"})
_KEPT = ("message_id", "text", "role", "rank", "deleted", "review_result")
_ROLES: dict[str, Role] = {"prompter": "user", "assistant": "assistant"}

Node = Mapping[str, Any]
_Path = tuple[tuple[Node, Message], ...]


def is_tree(row: Row) -> bool:
    """Whether the row is a whole tree."""
    return isinstance(row.get("prompt"), dict) and "text" in row["prompt"]


def is_flat(row: Row) -> bool:
    """Whether the row is one message of a tree."""
    return all(row.get(key) is not None for key in _FLAT) and "parent_id" in row


def to_conversation(row: Row, line: int) -> Result:
    """The tree's best conversation."""
    return read_tree(row, line)


def read_tree(row: Row, line: int, *, all_paths: bool = False) -> Result:
    """The tree's best conversation, or with `all_paths` every one that ends with the assistant."""
    if not is_tree(row):
        if is_flat(row):
            what = "the row is one message of a tree, and the tree's other messages are on other lines"
            hint = "join the file's rows first: rankzero data convert FILE --as messages -o rows.jsonl"
            return [RowProblem(line, "flat oasst row", what, hint)]
        return [RowProblem(line, "bad tree", "`prompt` is not a message with replies", f"expected: {SHAPE}")]
    root: Node = row["prompt"]
    if _refused(root):
        return Noted((), (), ROOT_REFUSED)
    paths, rules, problems = _walk(root, line, all_paths)
    if problems:
        return problems
    group = as_name(row.get("message_tree_id")) or as_name(root.get("message_id"))
    conversations = tuple(
        Conversation(
            tuple(turn for _, turn in path), True, line, id=as_name(path[-1][0].get("message_id")), group=group
        )
        for path in paths
    )
    if len(conversations) > 1:
        rules = (*rules, SEVERAL)
    if not conversations:
        return Noted((), rules, NO_REPLY)
    return Noted(conversations, rules) if rules else conversations[0]


def _walk(root: Node, line: int, all_paths: bool) -> tuple[list[_Path], tuple[str, ...], list[RowProblem]]:
    """Root to leaf; not recursive, since a file may nest deeper than Python's stack."""
    found: dict[int, _Path] = {}
    skipped = beside = False
    waiting: list[tuple[Node, _Path]] = [(root, ())]
    while waiting:
        node, before = waiting.pop()
        turn = _read_node(node, line)
        if isinstance(turn, RowProblem):
            return [], (), [turn]
        path = (*before, (node, turn))
        replies = node.get("replies") or []
        if not isinstance(replies, list) or not all(isinstance(reply, dict) for reply in replies):
            what = "`replies` of a message is not a list of messages"
            return [], (), [RowProblem(line, "bad tree", what, f"expected: {SHAPE}")]
        kept = sorted((reply for reply in replies if not _refused(reply)), key=_rank)
        skipped = skipped or len(kept) < len(replies)
        if not all_paths:
            beside = beside or len(kept) > 1
            kept = kept[:1]
        waiting += [(reply, path) for reply in reversed(kept)]
        if not kept:
            while path and path[-1][1].role != "assistant":
                path = path[:-1]
            if path:
                found.setdefault(id(path[-1][0]), path)  # two questions may follow the same, last answer
    rules = ((SKIPPED,) if skipped else ()) + ((NOT_BEST,) if beside else ())
    return list(found.values()), rules, []


def _read_node(node: Node, line: int) -> Message | RowProblem:
    text, role = node.get("text"), node.get("role")
    name = as_name(node.get("message_id"))
    where = f"message {name[:60]!r}" if name else "a message"
    if not isinstance(role, str) or role not in _ROLES:
        shown = repr(role[:40]) if isinstance(role, str) else kind(role)
        return RowProblem(line, "unknown role", f"role of {where} is {shown}", "roles are prompter, assistant")
    if not isinstance(text, str) or not text.strip():
        what = f"text of {where} is {'empty' if isinstance(text, str) else kind(text)}"
        return RowProblem(line, "message without text", what, "mark it deleted, or remove it with its replies")
    return Message(_ROLES[role], text)


def _refused(node: Node) -> bool:
    return node.get("deleted") is True or node.get("review_result") is False


def _rank(node: Node) -> tuple[bool, float]:
    """0 is the best; a reply that nobody ranked comes last."""
    rank = node.get("rank")
    ranked = isinstance(rank, (int, float)) and not isinstance(rank, bool)
    return not ranked, rank if ranked and rank is not None else 0


def group_flat_rows(rows: Iterable[tuple[int, Row]]) -> Joined:
    """Rows with their line numbers as trees. Rows that no root leads to are problems, one each."""
    joined = Joined()
    nodes: dict[str, dict[str, Any]] = {}
    lines: dict[str, int] = {}
    parents: dict[str, str] = {}
    trees: dict[str, str | None] = {}
    for line, row in rows:
        name, parent = as_name(row.get("message_id")), as_name(row.get("parent_id"))
        if name is None or (parent is None and row.get("parent_id") not in (None, "")):
            what = "`message_id` or `parent_id` is neither a string nor a number"
            hint = "every message has an id, and its parent's where it answers one"
            joined.problems.append(RowProblem(line, "message without an id", what, hint))
        elif name in nodes:
            what = f"message {name[:60]!r} is on line {lines[name]} already"
            joined.problems.append(RowProblem(line, "message twice", what, "which of the two is meant?"))
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
            hint = "remove the tree, or cut it"
            joined.problems += [RowProblem(lines[name], "tree too deep", what, hint) for name in members]
        else:
            row = {"message_tree_id": tree or root, "prompt": nodes[root]}
            joined.wholes.append(Whole(lines[root], row, len(members)))
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
        joined.problems.append(problem)
    joined.problems.sort(key=lambda problem: problem.line)
    return joined


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


FORMAT = Format(
    name="oasst",
    needs=(frozenset({"prompt"}), frozenset({"message_id", "text"})),
    reads=frozenset({"message_tree_id", "prompt", "parent_id", "replies", *_KEPT}),
    shape=SHAPE,
    to_conversation=to_conversation,
    learns_answers=False,
    claims=(Claim(_FLAT, beside=frozenset({"text"}), judge=lambda row, _keys, _line: is_flat(row)),),
    settles=lambda row, marks: marks == {"prompt"} and is_tree(row),
    nests=True,
    pieces=Pieces(is_flat, group_flat_rows),
)
