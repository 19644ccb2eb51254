"""Every held-out template with every dialogue: the tokens and masks that were written down, or an honest refusal."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat import Renderer, TokenRules
from rankzero.data.tokens.row_tokens import Encoder
from rankzero.data.tokens.tokenizer import take_apart
from tests.held_out.dialogues import DIALOGUES
from tests.held_out.families import FAMILIES, tokenizer
from tests.held_out.wire import ID, UnsayableError, Wire

Outcome = Literal["same", "refused", "wrong"]
Rows = tuple[str, list[int], list[bool]]
"""Text, tokens and which of these are trained."""

_RULES = TokenRules(max_length=100_000)
_DOCS = Path(__file__).parents[2] / "docs" / "data.md"


@cache
def renderer(family: str) -> tuple[Renderer, Encoder]:
    parts = take_apart(tokenizer(family))
    return Renderer(parts, _RULES), Encoder(parts, _RULES)


def ours(family: str, dialogue: str) -> Rows | RowProblem:
    """What rankzero makes of it."""
    name, conversation = convert(DIALOGUES[dialogue].row(), 1)
    assert name == "messages" and isinstance(conversation, Conversation), conversation
    render, encoder = renderer(family)
    row = render.render(conversation)
    if isinstance(row, RowProblem):
        return row
    (encoded,) = encoder.encode([row])
    trained = [any(start <= at < end for start, end in encoded.ranges) for at in range(len(encoded.ids))]
    text = row.text + (FAMILIES[family].eos if row.add_eos else "")
    return text, encoded.ids, trained


def written_down(family: str, dialogue: str, text: str) -> Rows:
    """What it should be; `text` decides about ids whose form alone is prescribed. Raises UnsayableError."""
    expected = FAMILIES[family].write(DIALOGUES[dialogue])
    pieces = _with_ids(expected, text)
    ids: list[int] = []
    trained: list[bool] = []
    whole = "".join(piece for piece, _ in pieces)
    encoding = tokenizer(family)(whole, add_special_tokens=False, return_offsets_mapping=True)
    learnt = [learn for piece, learn in pieces for _ in piece]
    for token, (start, _) in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True):
        ids.append(token)
        trained.append(learnt[start])
    return whole, ids, [False, *trained[1:]]  # nothing predicts the first token


def _with_ids(expected: Wire, text: str) -> list[tuple[str, bool]]:
    marks = [ID.format(n) for n in range(9) if ID.format(n) in expected.text]
    pattern = re.escape(expected.text)
    for mark in marks:
        pattern = pattern.replace(re.escape(mark), f"(?P<{'abcdefghi'[marks.index(mark)]}>[a-zA-Z0-9]{{9}})", 1)
        pattern = pattern.replace(re.escape(mark), f"(?P={'abcdefghi'[marks.index(mark)]})")
    found = re.fullmatch(pattern, text, re.DOTALL) if marks else None
    pieces = expected.pieces
    if found:
        for mark, name in zip(marks, found.groups(), strict=True):
            pieces = [(piece.replace(mark, name), learn) for piece, learn in pieces]
    return pieces


@cache
def outcome(family: str, dialogue: str) -> tuple[Outcome, str]:
    """Which of the three it is, and why."""
    got = ours(family, dialogue)
    if isinstance(got, RowProblem):
        assert got.what and got.hint, "a refusal says what to do"
        return "refused", f"{got.reason}: {got.what}"
    try:
        expected = written_down(family, dialogue, got[0])
    except UnsayableError as reason:
        return "wrong", f"it has no place for {reason}, and got {got[0]!r}"
    if got == expected:
        return "same", ""
    return "wrong", f"expected {_shown(family, expected)}\n     got {_shown(family, got)}"


def _shown(family: str, rows: Rows) -> str:
    """The text, what is trained in ⟦ ⟧."""
    _, ids, trained = rows
    out, inside = "", False
    for token, learn in zip(ids, trained, strict=True):
        out += ("⟦" if learn else "⟧") if learn != inside else ""
        out, inside = out + tokenizer(family).decode([token]), learn
    return repr(out + ("⟧" if inside else ""))


@pytest.mark.parametrize("family", [*FAMILIES])
def test_no_row_is_wrong(family: str) -> None:
    found = {dialogue: outcome(family, dialogue) for dialogue in DIALOGUES}
    wrong = {dialogue: why for dialogue, (what, why) in found.items() if what == "wrong"}
    assert not wrong, "\n\n".join(f"{dialogue}: {why}" for dialogue, why in wrong.items())


@pytest.mark.parametrize("family", [*FAMILIES])
@pytest.mark.parametrize("whole", [False, True], ids=["answers", "everything"])
def test_calls_are_trained_with_their_names_and_arguments(family: str, whole: bool) -> None:
    rules = TokenRules(max_length=100_000, assistant_only_loss=not whole)
    renderer = Renderer(take_apart(tokenizer(family)), rules)
    for name, dialogue in DIALOGUES.items():
        _, conversation = convert(dialogue.row(), 1)
        assert isinstance(conversation, Conversation)
        row = renderer.render(conversation)
        if isinstance(row, RowProblem):
            continue
        trained = "".join(row.text[start:end] for start, end in row.spans)
        for call in (call for turn in dialogue.turns if turn.learn for call in turn.calls):
            without_tools = trained.split("What is the weather", 1)[-1]
            missing = [text for text in (call.name, *map(str, call.arguments.values())) if text not in without_tools]
            assert not missing, (name, row.text)


def sayable(family: str, dialogue: str) -> bool:
    try:
        FAMILIES[family].write(DIALOGUES[dialogue])
    except UnsayableError:
        return False
    return True


@pytest.mark.parametrize("family", [*FAMILIES])
def test_what_the_format_can_say_is_rendered(family: str) -> None:
    refused = {d: outcome(family, d)[1] for d in DIALOGUES if sayable(family, d) and outcome(family, d)[0] == "refused"}
    assert not refused, "\n\n".join(f"{dialogue}: {why}" for dialogue, why in refused.items())


@pytest.mark.parametrize("family", [*FAMILIES])
def test_what_was_written_down_is_what_transformers_renders(family: str) -> None:
    """So that the two halves of this folder do not agree with rankzero alone."""
    about = FAMILIES[family]
    compared = 0
    for name, dialogue in DIALOGUES.items():
        if about.dated or any(turn.thought for turn in dialogue.turns) or not sayable(family, name):
            continue
        expected = about.write(dialogue).text
        if ID.format(0) in expected or (about.eos == "<|endoftext|>" and family == "glm4_5"):
            continue
        if (about.arguments_as_text or about.named_ids) and any(turn.calls for turn in dialogue.turns):
            continue  # transformers takes null contents away, which one template asks for, and leaves ids as they are
        row: dict[str, Any] = dialogue.row()
        for turn in row["messages"]:
            for call in turn.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            turn.pop("loss", None)
        text = tokenizer(family).apply_chat_template(row["messages"], tools=row.get("tools"), tokenize=False)
        assert text == expected, name
        compared += 1
    assert compared >= 8 or about.dated or family == "glm4_5"


def table() -> str:
    """The outcomes as docs/data.md shows them."""
    lines = ["| template | same | refused | wrong | what is refused |", "|---|---|---|---|---|"]
    tools = [name for name, dialogue in DIALOGUES.items() if dialogue.tools or name == "calls alone"]
    for family in FAMILIES:
        found = {dialogue: outcome(family, dialogue)[0] for dialogue in DIALOGUES}
        counts = Counter(found.values())
        refused = [dialogue for dialogue, what in found.items() if what == "refused"]
        if set(tools) <= set(refused):
            refused = [dialogue for dialogue in refused if dialogue not in tools] + [f"all {len(tools)} with tools"]
        lines.append(
            f"| {family} | {counts['same']} | {counts['refused']} | {counts['wrong']} | {', '.join(refused) or '–'} |"
        )
    return "\n".join(lines)


def test_the_table_of_the_docs_is_what_is_found() -> None:
    assert table() in _DOCS.read_text(encoding="utf-8"), table()
