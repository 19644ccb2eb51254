"""The row shapes that are read: a dict of adapters, and which one a row is meant for. Knows nothing of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rankzero.data.conversation import Conversation
from rankzero.data.formats import messages, prompt_completion, text
from rankzero.data.problems import RowProblem, kind

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """One row shape: the keys that make it, how it looks, and how its values are read."""

    keys: frozenset[str]
    shape: str
    to_conversation: Callable[[Row, int], Conversation | list[RowProblem]]


FORMATS: dict[str, Format] = {
    "messages": Format(messages.KEYS, messages.SHAPE, messages.to_conversation),
    "prompt_completion": Format(prompt_completion.KEYS, prompt_completion.SHAPE, prompt_completion.to_conversation),
    "text": Format(text.KEYS, text.SHAPE, text.to_conversation),
}

ALL_KEYS = ("messages", "prompt", "completion", "text")

_SHAPES = "; ".join(format_.shape for format_ in FORMATS.values())

# Other tools' shapes: the keys that give them away, and what to do until there is an adapter.
_FOREIGN: tuple[tuple[frozenset[str], str, str], ...] = (
    (
        frozenset({"conversations"}),
        "ShareGPT rows (`conversations`) are not read yet",
        "rename conversations to messages, from to role (human: user, gpt: assistant) and value to content",
    ),
    (
        frozenset({"instruction", "output"}),
        "Alpaca rows (`instruction`, `output`) are not read yet",
        'write them as {"prompt": instruction + "\\n" + input, "completion": output} or as messages',
    ),
    (
        frozenset({"chosen", "rejected"}),
        "preference rows (`chosen`, `rejected`) are not read yet",
        "to fine-tune on the chosen answers, write them as messages",
    ),
)
_ANSWERS = ("completion", "response", "output", "answer", "target", "label")

# The model would have to see these, so leaving them out in silence would train something else.
_UNREAD = ("tools", "functions", "documents", "system", "image", "images", "video", "videos", "audio", "audios")


def convert(row: object, line: int, wanted: str = "auto") -> tuple[str, Conversation | list[RowProblem]]:
    """The name of the row's format and the row as a conversation, or all that is wrong with it."""
    if not isinstance(row, dict):
        what = f"the line is {kind(row)}, not an object"
        return wanted, [RowProblem(line, "not an object", what, f"accepted: {_SHAPES}")]
    name = detect(row, line) if wanted == "auto" else _asserted(row, line, wanted)
    if isinstance(name, RowProblem):
        return wanted, [name]
    result = FORMATS[name].to_conversation(row, line)
    unread = [key for key in _UNREAD if row.get(key)]
    if unread:
        problem = RowProblem(
            line,
            f"`{unread[0]}` is not read",
            f"the row has {_listed(unread)}, which is not read yet",
            "put a system prompt first in messages" if "system" in unread else "remove the key to train without it",
        )
        result = [*(result if isinstance(result, list) else ()), problem]
    return name, result


def detect(row: Row, line: int) -> str | RowProblem:
    """The format that the row's keys call for. A key whose value is null counts as absent."""
    present = [key for key in ALL_KEYS if row.get(key) is not None]
    keys = frozenset(present)
    for name, format_ in FORMATS.items():
        if keys == format_.keys:
            return name
    if present == ["messages", "prompt"] and _repeats(row["prompt"], row["messages"]):
        return "messages"
    possible = next((name for name, format_ in FORMATS.items() if format_.keys <= keys), None)
    if possible is None:
        return _no_match(row, line)
    return RowProblem(
        line,
        "ambiguous row",
        f"the row has {_listed(present)}: which is to be trained?",
        f"say so for the file: data.train: [{{path: …, format: {possible}}}]",
    )


def _repeats(prompt: object, turns: object) -> bool:
    """Whether `prompt` only says again how the messages begin, as in UltraChat: the first turn, or the second after
    a system turn."""
    if not isinstance(turns, list):
        return False
    if isinstance(prompt, list):
        return prompt == turns[: len(prompt)]
    return prompt in [turn.get("content") for turn in turns[:2] if isinstance(turn, dict)]


def _asserted(row: Row, line: int, wanted: str) -> str | RowProblem:
    if all(row.get(key) is not None for key in FORMATS[wanted].keys):
        return wanted
    what = f"the row is not in format {wanted}: its keys are {_listed(row)}"
    return RowProblem(line, "not in the stated format", what, f"expected: {FORMATS[wanted].shape}")


def _no_match(row: Row, line: int) -> RowProblem:
    for keys, what, hint in _FOREIGN:
        if keys <= row.keys():
            return RowProblem(line, what, what, hint)
    if row.get("prompt") is not None:
        near = next((key for key in _ANSWERS if row.get(key) is not None), None)
        hint = f"rename {near} to completion" if near else f"accepted: {_SHAPES}"
        return RowProblem(line, "prompt without completion", "the row has `prompt` and no `completion`", hint)
    if row.get("completion") is not None:
        what = "the row has `completion` and no `prompt`"
        return RowProblem(line, "completion without prompt", what, 'plain text is {"text": "…"}')
    nulls = [key for key in ALL_KEYS if key in row]
    what = f"the row's keys are {_listed(row)}" + (f"; {_listed(sorted(nulls))} is null" if nulls else "")
    return RowProblem(line, "unknown row shape", what, f"accepted: {_SHAPES}")


def _listed(keys: Mapping[str, Any] | list[str]) -> str:
    names = [f"`{key[:40]}`" for key in list(keys)[:12]]
    return (", ".join(names) + (", …" if len(keys) > 12 else "")) or "none"
