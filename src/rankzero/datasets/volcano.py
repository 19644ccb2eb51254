"""Volcano's raw rows: LLaVA-style chats, some of which criticise, revise or choose an answer. Text-only rows are kept.

A row is kept word for word; only the names of roles change. What a row is for shows in its first human turn that has
one of the prompts:

    critique   "Generate the feedback given initial answer referring to question and image."
    revise     "Adjust the initial response considering the feedback and image."
    decide     two options, A and B alone, "Answer with the option's letter from the given choices directly." The
               mixture's own two-option questions look the same, so this count is an upper bound.
    answer     other rows with an image
    text       other rows without one

Rules (each has a test): the first turn that is not a system prompt is human's, turns alternate, none is empty, and a
row with an image has one `<image>` in a human turn; where it has none, one is put first, and counted. In a row without
an image `<image>` is text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankzero.data.rows.formats.unread import Reads
from rankzero.data.rows.problems import kind
from rankzero.datasets.fire_rows import IMAGE_TAG
from rankzero.datasets.tally import Converted, Dropped, Tally

HUB_ID = "kaist-ai/volcano-train"
FILE_NAME = "volcano_{split}.jsonl"

READS: Reads = {"id": {}, "image": {}, "images": {}, "conversations": {"from": {}, "value": {}}}

_CRITIQUE = "Generate the feedback given initial answer referring to question and image."
_REVISE = "Adjust the initial response considering the feedback and image."
_DECIDE = "Answer with the option's letter from the given choices directly."
_OPTION = re.compile(r"^([A-Z])\. ", re.MULTILINE)
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def convert(row: Mapping[str, Any], tally: Tally) -> Converted | Dropped:
    """The training row of one raw row, without its image."""
    turns = _turns(row.get("conversations"))
    if isinstance(turns, Dropped):
        return turns
    has_image = bool(row.get("image"))
    if has_image and (dropped := _place_tag(turns, tally)):
        return dropped
    tally.histogram("kinds")[kind_of([turn["content"] for turn in turns if turn["role"] == "user"], has_image)] += 1
    tally.histogram("turns")[str(len(turns))] += 1
    return Converted([{"id": "", "messages": turns}])


def kind_of(prompts: list[str], has_image: bool) -> str:
    """What a row with these human turns is for."""
    for prompt in prompts:
        if _CRITIQUE in prompt:
            return "critique"
        if _REVISE in prompt:
            return "revise"
        if _DECIDE in prompt and _OPTION.findall(prompt) == ["A", "B"]:
            return "decide"
    return "answer" if has_image else "text"


def _turns(value: object) -> list[dict[str, Any]] | Dropped:
    if not isinstance(value, list) or not value:
        return Dropped("no turns", f"`conversations` is {kind(value) if value != [] else 'empty'}")
    turns: list[dict[str, Any]] = []
    for index, item in enumerate(value):
        where = f"conversations[{index}]"
        if not isinstance(item, Mapping):
            return Dropped("turn is not an object", f"{where} is {kind(item)}")
        role, text = _ROLES.get(str(item.get("from"))), item.get("value")
        if role is None or (role == "system" and index):
            return Dropped("unknown role", f"{where}.from is {str(item.get('from'))[:40]!r}")
        if not isinstance(text, str) or not text.strip():
            return Dropped("turn without text", f"{where}.value is {'empty' if text == '' else kind(text)}")
        turns.append({"role": role, "content": text})
    return _order(turns) or turns


def _order(turns: list[dict[str, Any]]) -> Dropped | None:
    spoken = [turn["role"] for turn in turns if turn["role"] != "system"]
    if not spoken or spoken[0] != "user":
        return Dropped("does not begin with human", "the first turn is not a question")
    if any(one == other for one, other in zip(spoken, spoken[1:], strict=False)):
        return Dropped("turns of one role in a row", "human and gpt do not alternate")
    return None if "assistant" in spoken else Dropped("no answer", "there is no gpt turn to learn")


def _place_tag(turns: list[dict[str, Any]], tally: Tally) -> Dropped | None:
    tags = sum(turn["content"].count(IMAGE_TAG) for turn in turns)
    asked = sum(turn["content"].count(IMAGE_TAG) for turn in turns if turn["role"] == "user")
    if tags > 1:
        return Dropped("more <image> tags than images", f"{tags} tags and one image")
    if tags != asked:
        return Dropped("<image> tag outside a question", "the tag is not in a human turn")
    if not tags:
        first = next(turn for turn in turns if turn["role"] == "user")
        first["content"] = f"{IMAGE_TAG}\n{first['content']}"
        tally.notes["<image> tag put first"] += 1
    return None
