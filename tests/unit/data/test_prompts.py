"""What is asked of a model, from a list or from rows of any shape, with their answers or without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.data.prompts import read_prompts
from rankzero.errors import DataError
from tests.support.images import draw
from tests.support.tiny import write_jsonl

CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
ROWS: list[tuple[dict[str, Any], str, bool | None, str | None]] = [
    ({"messages": [{"role": "user", "content": "a"}]}, "a", True, None),
    ({"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "B"}]}, "b", True, "B"),
    ({"conversations": [{"from": "human", "value": "c"}]}, "c", True, None),
    ({"prompt": "d"}, "d", None, None),
    ({"prompt": "e", "completion": " E"}, "e", False, "E"),
    ({"prompt": [{"role": "user", "content": "f"}]}, "f", True, None),
    ({"instruction": "g", "input": "h"}, "g\nh", True, None),
    ({"question": "i"}, "i", True, None),
    ({"question": "j", "answer": "J"}, "j", True, "J"),
    ({"text": "k"}, "k", None, None),
    (
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "l"},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "content": "1"},
                {"role": "assistant", "content": "<think>so</think>\n\nL"},
            ]
        },
        "system: s\nuser: l\nassistant: \ntool: 1",
        True,
        "L",
    ),
]


def test_rows_of_every_shape(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [row for row, *_ in ROWS])
    found = read_prompts(str(path), seed=1)
    assert [(prompt.text, prompt.templated, prompt.reference) for prompt in found] == [tuple(rest) for _, *rest in ROWS]
    assert found[3].where == f"{path}:4"


@pytest.mark.parametrize(
    ("segments", "asked", "answer"),
    [
        ((("[INST] a [/INST]", False), (" A</s>", True)), "[INST] a [/INST]", "A</s>"),
        ((("a", False), (" A", True), ("</s>", True), ("\n", False)), "a", "A</s>"),
        ((("a", False), ("A", True), ("b", False), ("B", True), (" ", True)), "aAb", "B"),
        ((("all of it", True),), "all of it", None),
    ],
)
def test_segments_are_asked_as_they_stand(
    segments: tuple[tuple[str, bool], ...], asked: str, answer: str | None, tmp_path: Path
) -> None:
    """They have a form already, special tokens and all."""
    row = {"segments": [{"text": text, "label": label} for text, label in segments]}
    (prompt,) = read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", [row])), seed=1)
    assert (prompt.text, prompt.templated, prompt.verbatim, prompt.reference) == (asked, False, True, answer)


def test_the_same_is_asked_once_and_the_same_words_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\n\ntwo\none\n")
    assert [prompt.text for prompt in read_prompts(str(tmp_path / "lines.txt"), seed=1)] == ["one", "two"]
    path = write_jsonl(tmp_path / "rows.jsonl", [{"text": "one"}, {"prompt": "one", "completion": "1"}])
    assert [prompt.text for prompt in read_prompts(str(path), seed=1)] == ["one", "one (2)"]
    assert [prompt.text for prompt in read_prompts(["a", "b", "a"], seed=1)] == ["a", "b"]


def test_images_are_named_in_the_text(tmp_path: Path) -> None:
    for name in ("red", "blue"):
        draw(tmp_path / f"{name}.png", name)
    rows = [
        {"prompt": "Which?", "image": "red.png"},
        {"messages": [{"role": "user", "content": "<image> or <image>?"}], "images": ["red.png", "blue.png"]},
    ]
    first, second = read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", rows)), seed=1)
    assert first.text == "<red.png>Which?" and first.images == (str(tmp_path / "red.png"),)
    assert second.text == "<red.png> or <blue.png>?"


def test_a_sample_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"{n}\n" for n in range(500)))
    some = [prompt.text for prompt in read_prompts(f"{tmp_path}/lines.txt#7", seed=1)]
    assert len(some) == 7 and some == sorted(some, key=int)
    assert some == [prompt.text for prompt in read_prompts(f"{tmp_path}/lines.txt#7", seed=1)]
    with pytest.raises(DataError, match="a sample of 501 rows of only 500"):
        read_prompts(f"{tmp_path}/lines.txt#501", seed=1)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"foo": 1}\n{"prompt": ""}\nnope\n{"prompt": "Which?", "image": "no.png"}\n')
    with pytest.raises(DataError) as raised:
        read_prompts(str(path), seed=1)
    places = [problem.where for problem in raised.value.problems]
    assert places == [f"{path}:{line}" for line in (1, 2, 3, 4)]
    path.write_text("\n")
    with pytest.raises(DataError, match="there are no prompts in it"):
        read_prompts(str(path), seed=1)
