"""Reasoning that a turn gives apart from its text: under keys of its own, or in parts. Knows nothing of templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.data.rows.problems import RowProblem, kind

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Names under which turns have it: a string."""

_PLACES = 'a turn has its reasoning in one place: "reasoning_content": "…", or <think>…</think> before the answer'


def read_reasoning(
    item: Mapping[str, Any], part_thought: str, content: str, role: object, line: int, where: str
) -> str | RowProblem:
    """The turn's reasoning, "" where it has none apart from its text. `part_thought`: what its content parts have."""
    given = {key: item[key] for key in REASONING_KEYS if item.get(key) not in (None, "")}
    for key, value in given.items():
        if not isinstance(value, str):
            what = f"{where}.{key} is {kind(value)}, not a string"
            return RowProblem(line, "reasoning is not a string", what, "write it as a JSON string")
    thoughts = {thought for thought in (*given.values(), part_thought) if thought.strip()}
    if not thoughts:
        return ""
    if role != "assistant":
        what = f"{where} has reasoning, and is not the assistant's"
        return RowProblem(line, "reasoning of another role", what, "remove it")
    if len(thoughts) > 1 or content.lstrip().startswith("<think>"):
        return RowProblem(line, "reasoning in two places", f"{where} has reasoning in two places", _PLACES)
    (thought,) = thoughts
    return str(thought)


def thinking_part(part: Mapping[str, Any]) -> str | None:
    """The reasoning of a content part; None where it is another part."""
    if part.get("type") not in ("thinking", "reasoning"):
        return None
    value = next((part[key] for key in ("thinking", "reasoning", "text", "value") if part.get(key) is not None), None)
    if isinstance(value, list) and all(isinstance(item, dict) and isinstance(item.get("text"), str) for item in value):
        return "".join(item["text"] for item in value)
    return value if isinstance(value, str) else None
