"""What is asked of a model, from a list or from rows of any shape, with their answers or without."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankzero.data import prompts as prompts_module
from rankzero.data.prompts import Prompt, read_prompts
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.parse import parse
from rankzero.errors import DataError
from rankzero.model.rendering import rendered
from tests.held_out.test_rows import CASES
from tests.support.images import draw
from tests.support.tiny import CHATML, tiny_tokenizer, write_jsonl

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


def test_what_a_row_gives_the_template_is_given_when_it_is_asked(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": {"mode": "brief"}}
    path = write_jsonl(tmp_path / "rows.jsonl", [row])
    (prompt,) = read_prompts(str(path), seed=1)
    tokenizer = tiny_tokenizer(chat_template="{{ mode }}|" + CHATML)
    assert rendered(tokenizer, prompt, {"mode": "long"}, sees=False).startswith("brief|")
    assert rendered(tokenizer, replace(prompt, template_kwargs={}), {"mode": "long"}, sees=False).startswith("long|")


NAMES, WHO = ("role", "content"), ("user", "assistant")


def turns(*said: str, names: tuple[str, str] = NAMES, who: tuple[str, str] = WHO) -> Any:
    return [dict(zip(names, (who[i % 2], text), strict=True)) for i, text in enumerate(said)]


def parts(*said: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "model")[i % 2], "parts": [{"text": text}]} for i, text in enumerate(said)]


SHAREGPT = ("from", "value")
TALKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "messages": ({"messages": turns("a", "A", "b", "B")}, {"messages": turns("a", "A", "b")}),
    "messages as JSON": (
        {"messages": json.dumps(turns("a", "A", "b", "B"))},
        {"messages": json.dumps(turns("a", "A", "b"))},
    ),
    "messages of from and value": (
        {"messages": turns("a", "A", "b", "B", names=SHAREGPT, who=("human", "gpt"))},
        {"messages": turns("a", "A", "b", names=SHAREGPT, who=("human", "gpt"))},
    ),
    "conversation": ({"conversation": turns("a", "A", "b", "B")}, {"conversation": turns("a", "A", "b")}),
    "pairs": (
        {"conversation": [{"human": "a", "assistant": "A"}, {"human": "b", "assistant": "B"}]},
        {"conversation": [{"human": "a", "assistant": "A"}, {"human": "b"}]},
    ),
    "pairs of input and output": (
        {"conversations": [{"input": "a", "output": "A"}, {"input": "b", "output": "B"}]},
        {"conversations": [{"input": "a", "output": "A"}, {"input": "b", "output": None}]},
    ),
    "texts in turn": ({"conversations": ["a", "A", "b", "B"]}, {"conversations": ["a", "A", "b"]}),
    "texts": ({"texts": turns("a", "A", "b", "B")}, {"texts": turns("a", "A", "b")}),
    "contents": ({"contents": parts("a", "A", "b", "B")}, {"contents": parts("a", "A", "b")}),
    "contents as JSON": (
        {"contents": json.dumps(parts("a", "A", "b", "B"))},
        {"contents": json.dumps(parts("a", "A", "b"))},
    ),
    "prompt and completion": (
        {"prompt": turns("a", "A", "b"), "completion": [{"role": "assistant", "content": "B"}]},
        {"prompt": turns("a", "A", "b")},
    ),
    "preference": (
        {"prompt": turns("a", "A", "b"), "chosen": turns("B", who=("assistant", "")), "rejected": [turns("", "C")[1]]},
        {"prompt": turns("a", "A", "b"), "chosen": None, "rejected": None},
    ),
    "history": (
        {"history": [["a", "A"]], "query": "b", "response": "B"},
        {"history": [["a", "A"]], "query": "b"},
    ),
    "history beside a prompt": (
        {"history": [["a", "A"]], "prompt": "b", "response": "B"},
        {"history": [["a", "A"]], "prompt": "b"},
    ),
    **{
        f"speaker {word}": (
            {"conversations": turns("a", "A", "b", "B", names=SHAREGPT, who=("human", word))},
            {"conversations": turns("a", "A", "b", names=SHAREGPT, who=("human", word))},
        )
        for word in ("gpt", "chatgpt", "bot", "Assistant", "ai", "bing", "bard", "model")
    },
}
QUESTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one turn": ({"messages": turns("a", "A")}, {"messages": turns("a")}),
    "one turn in parts": ({"contents": parts("a", "A")}, {"contents": parts("a")}),
    "one pair": ({"conversations": [{"human": "a", "assistant": "A"}]}, {"conversations": [{"human": "a"}]}),
    "one text": ({"conversations": ["a", "A"]}, {"conversations": ["a"]}),
    "alpaca": ({"instruction": "a", "output": "A"}, {"instruction": "a", "output": None}),
    "openorca": (
        {"system_prompt": "", "question": "a", "response": "A"},
        {"system_prompt": "", "question": "a", "response": None},
    ),
    "oasst": (
        {"prompt": {"text": "a", "role": "prompter", "replies": [{"text": "A", "role": "assistant"}]}},
        {"conversation": turns("a")},
    ),
    **{
        f"{asks} and {answers}": ({asks: "a", answers: "A"}, {asks: "a"})
        for asks in ("query", "input", "question", "problem", "inputs")
        for answers in ("response", "answer", "output", "target", "targets", "solution")
    },
}


@pytest.mark.parametrize("name", [*TALKS, *QUESTIONS])
def test_the_last_answer_is_compared_with_and_what_is_before_it_is_asked(name: str, tmp_path: Path) -> None:
    answered, asked = {**TALKS, **QUESTIONS}[name]
    said = ["a", "A", "b", "B"] if name in TALKS else ["a", "A"]
    for row, reference in ((answered, said[-1]), (asked, None)):
        (prompt,) = read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", [row])), seed=1)
        assert [message.content for message in prompt.messages] == said[:-1]
        assert [message.role for message in prompt.messages] == ["user", "assistant", "user"][: len(said) - 1]
        assert (prompt.templated, prompt.reference) == (True, reference)


@pytest.mark.parametrize("answers", ["response", "answer", "output", "target", "solution"])
def test_a_prompt_with_its_answer_under_another_name_is_a_question_of_a_chat(answers: str, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", answers: "A"}])
    (prompt,) = read_prompts(str(path), seed=1)
    assert (prompt.text, prompt.templated, prompt.reference) == ("a", True, "A")


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_rows_of_other_tools_are_asked_as_they_are_trained(
    line: bytes, expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts_module, "locate", lambda image, root: root / image)
    if "refused" in expected:
        return
    (row,) = parse(Chunk(0, 1, line + b"\n"), "auto").conversations
    (tmp_path / "rows.jsonl").write_bytes(line + b"\n")
    before, last = question_and_answer(row)
    if not before:
        with pytest.raises(DataError, match="nothing is asked"):
            read_prompts(str(tmp_path / "rows.jsonl"), seed=1)
        return
    (prompt,) = read_prompts(str(tmp_path / "rows.jsonl"), seed=1)
    assert prompt.messages == tuple(before) and prompt.templated is row.templated and prompt.tools == row.tools
    assert prompt.reference == last and len(prompt.images) == sum(len(message.image_offsets) for message in before)


def question_and_answer(row: Conversation) -> tuple[list[Message], str | None]:
    """By hand: of turns the last one, of segments the last that are trained."""
    rest = list(row.messages)
    while row.verbatim and rest[-1].role == "prompt":
        rest.pop()
    answer = [rest.pop()] if rest[-1].role in ("assistant", "completion") else []
    while row.verbatim and rest and rest[-1].role == "completion":
        answer.insert(0, rest.pop())
    if row.verbatim and not rest:
        return list(row.messages), None
    said = "".join(one.answer for one in answer).strip()
    return rest, None if not said or any(one.tool_calls for one in answer) else said


def test_segments_are_asked_as_they_stand(tmp_path: Path) -> None:
    def segments(*said: tuple[bool, str]) -> dict[str, Any]:
        return {"segments": [{"label": label, "text": text} for label, text in said]}

    asked = (False, "<s>[INST] a [/INST]")
    rows = [
        segments(asked, (True, "A"), (True, "B</s>")),
        segments(asked, (True, "A"), (False, "</s>")),  # an end that is not to be learnt
        segments(asked),
        {"segments": json.dumps(segments(asked, (True, "C"))["segments"])},
        segments((True, "all of"), (True, " it")),
    ]
    found = read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", rows)), seed=1)
    assert [prompt._text for prompt in found] == ["<s>[INST] a [/INST]"] * 4 + ["all of it"]
    assert [prompt.templated for prompt in found] == [False] * 5
    assert [prompt.reference for prompt in found] == ["AB</s>", "A", None, "C", None]


def test_a_row_is_looked_at_as_closely_as_for_training(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    call = '{"id": "c", "function": {"name": "f", "arguments": {"x": 123456789012345678901234}}}'
    said = '{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [' + call + "]}"
    path.write_text(
        '{"question": "a", "score": NaN}\n'
        '{"messages": [' + said + ', {"role": "tool", "content": "1", "tool_call_id": "c"}]}\n'
        '{"tools": [{"name": "f", "parameters": {"least": 123456789012345678901234}}], "question": "a"}\n'
    )
    first, second, third = read_prompts(str(path), seed=1)
    assert first.text == "a" and first.reference is None
    assert second.messages[1].tool_calls[0]["function"]["arguments"] == {"x": 123456789012345678901234}
    assert third.tools[0]["function"]["parameters"] == {"least": 123456789012345678901234} and third.reference is None
    for line, what in (
        ('{"question": "a", "question": "b"}', "key `question` is there twice"),
        ('{"question": NaN}', "JSON has no NaN"),
    ):
        path.write_text(line + "\n")
        with pytest.raises(DataError, match=what):
            read_prompts(str(path), seed=1)


def test_segments_that_end_with_a_question_are_asked_it(tmp_path: Path) -> None:
    said = [(False, "Q1"), (True, "A1</s>"), (False, "[INST] Q2 [/INST]")]
    row = {"segments": [{"label": label, "text": text} for label, text in said]}
    (prompt,) = read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", [row])), seed=1)
    assert (prompt.text, prompt.reference) == ("Q1A1</s>[INST] Q2 [/INST]", None)


def test_a_blank_answer_is_none_to_compare_with(tmp_path: Path) -> None:
    row = {"segments": [{"label": False, "text": "Q"}, {"label": True, "text": "\n"}]}
    (prompt,) = read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", [row])), seed=1)
    assert prompt.reference is None and "\ufdd4" not in prompt.text


def test_an_answer_without_a_question_is_none(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "assistant", "content": "A"}]},
        {"conversations": [{"from": "gpt", "value": "A"}]},
        {"chosen": "Human: a\nAssistant: A", "rejected": "Human: a\nAssistant: B"},
    ]
    with pytest.raises(DataError, match=r"nothing is asked.*also at 2, 3"):
        read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", rows)), seed=1)


def test_what_only_calls_a_tool_or_says_nothing_is_no_answer_to_compare_with(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "a"}
    rows = [
        {"messages": [asked, {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
        {"messages": [asked, {"role": "assistant", "content": "I look it up", "tool_calls": [CALL]}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": json.dumps(CALL)}]},
        {"messages": [asked, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n"}]},
        {"messages": [asked, {"role": "assistant", "content": "", "loss": False}]},
    ]
    path = str(write_jsonl(tmp_path / "rows.jsonl", rows))
    found: list[Prompt] = prompts_module.read_questions(prompts_module.SourceSpec(path=path), seed=1)
    assert [(prompt.text, prompt.reference) for prompt in found] == [("a", None)] * 5


def test_what_is_wrong_with_a_row_is_said_of_the_row_and_not_of_the_answer_it_lacks(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "solution": "A", "answer": "A"},
        {"conversations": [{"assistant": "A"}]},
        {"messages": [{"role": "usr", "content": "a"}]},
        {"prompt": 5},
    ]
    with pytest.raises(DataError) as raised:
        read_prompts(str(write_jsonl(tmp_path / "rows.jsonl", rows)), seed=1)
    two, half, role, number = (problem.what for problem in raised.value.problems)
    assert two == "`answer`, `solution` could each be the response" and half == "conversations[0].human is null"
    assert role == "messages[0].role is 'usr'" and number == "the row has `prompt` and no `completion`"


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
