"""Rows converted to another format and back: they mean the same."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.data.convert.convert import convert
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import WRITERS
from rankzero.data.rows.formats.prompt_completion import CHAT_AS_RAW, TEMPLATE_KWARGS_LEFT_OUT
from rankzero.data.rows.formats.sharegpt import CALL_IDS, CALLS_JOINED
from rankzero.data.rows.formats.writing import NAMES_AS_TEXT, REASONING_AS_TEXT
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.convert.convert_support import conversations, read_rows, run, table_rows, write_rows
from tests.unit.data.rows.formats.support import ROWS, TOOL
from tests.unit.data.support import chat, user_assistant


class TestThereAndBack:
    CHATS = [
        *ROWS["messages"],
        user_assistant("q", "a", "r", "b"),
        {
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "loss": True}],
            "id": "i",
        },
        chat(("user", "where is <image>?"), ("assistant", "there")),
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "is <image> a tag? "}, {"type": "image", "image": "1"}],
                },
                {"role": "assistant", "content": "no"},
            ]
        },
    ]

    @pytest.mark.parametrize("to", ["messages", "prompt_completion"])
    def test_chats(self, tmp_path: Path, to: str) -> None:
        _, there = run(self.CHATS, to, tmp_path, "there.jsonl")
        result = convert([SourceSpec(path=str(there))], tmp_path / "back.jsonl", "messages")
        assert result.rows_out == len(self.CHATS)
        assert conversations(tmp_path / "back.jsonl") == conversations(there) == conversations(tmp_path / "in.jsonl")

    @pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
    @pytest.mark.parametrize("to", ["messages", "sharegpt", "alpaca"])
    def test_what_a_row_gives_its_chat_template(self, tmp_path: Path, to: str, name: str) -> None:
        rows = [user_assistant("q", "a") | {"chat_template_kwargs": {"mode": "brief", "tools_as": ["f"]}}]
        _, out = run([*rows, user_assistant("r", "b")], to, tmp_path, name)
        path = tmp_path / "in.jsonl"
        convert([SourceSpec(path=str(out))], tmp_path / "back.jsonl", "messages")
        assert conversations(tmp_path / "back.jsonl") == conversations(path)
        assert conversations(path)[0].template_kwargs == {"mode": "brief", "tools_as": ["f"]}
        with pytest.raises(DataError, match="no place for what a chat template is given"):
            convert([SourceSpec(path=str(path))], tmp_path / "openai.jsonl", "openai")

    @pytest.mark.parametrize("name", ["out.csv", "out.tsv"])
    def test_what_a_row_gives_its_chat_template_is_not_left_out_of_lines_of_texts(
        self, tmp_path: Path, name: str
    ) -> None:
        rows = [user_assistant("q", "a") | {"chat_template_kwargs": {"mode": "brief"}}, user_assistant("r", "b")]
        with pytest.raises(DataError, match="no column for `chat_template_kwargs`"):
            run(rows, "alpaca", tmp_path, name)
        _, out = run(rows[1:], "alpaca", tmp_path, name)
        assert table_rows(out) == [{"instruction": "r", "input": "", "output": "b", "system": ""}]

    @pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.parquet"])
    def test_raw_text_has_no_chat_template_to_give_something(self, tmp_path: Path, name: str) -> None:
        rows = [user_assistant("q", "a") | {"chat_template_kwargs": {"mode": "brief"}}, user_assistant("r", "b")]
        result, out = run(rows, "prompt_completion", tmp_path, name)
        assert result.rules == {CHAT_AS_RAW: 2, TEMPLATE_KWARGS_LEFT_OUT: 1}
        assert table_rows(out) == [{"prompt": "q", "completion": "a"}, {"prompt": "r", "completion": "b"}]
        _, out = run(rows, "prompt_completion", tmp_path)
        assert conversations(out) == conversations(tmp_path / "in.jsonl"), "as turns they say all"

    @pytest.mark.parametrize("to", ["messages", "prompt_completion"])
    def test_reasoning_and_weights(self, tmp_path: Path, to: str) -> None:
        row = user_assistant("q", "a", "r", "<think>\ny\n</think>\n\nb")
        row["messages"][1] |= {"reasoning_content": "x", "loss_weight": 0.5}
        _, out = run([row], to, tmp_path)
        assert conversations(out) == conversations(tmp_path / "in.jsonl")

    @pytest.mark.parametrize("to", ["openai", "sharegpt", "alpaca"])
    def test_reasoning_where_there_is_no_place_for_it(self, tmp_path: Path, to: str) -> None:
        row = user_assistant("q", "a")
        row["messages"][1]["reasoning_content"] = "x"
        result, out = run([row], to, tmp_path)
        assert result.rules == {REASONING_AS_TEXT: 1}
        (turn,) = (turn for turn in conversations(out)[0].messages if turn.role == "assistant")
        assert (turn.thought, turn.answer) == ("x", "a")

    @pytest.mark.parametrize("to", ["openai", "sharegpt", "alpaca"])
    def test_a_weight_is_not_left_out_in_silence(self, tmp_path: Path, to: str) -> None:
        row = user_assistant("q", "a")
        row["messages"][1]["loss_weight"] = 0.5
        with pytest.raises(DataError, match="cannot say how much a turn counts"):
            run([row], to, tmp_path)

    def test_openai_keeps_all_but_names_of_rows(self, tmp_path: Path) -> None:
        run(self.CHATS, "openai", tmp_path)
        kept = [replace(c, id=None, group=None) for c in conversations(tmp_path / "in.jsonl")]
        assert conversations(tmp_path / "out.jsonl") == kept
        first = read_rows(tmp_path / "out.jsonl")[1]
        assert first["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"a":1,"b":[2,"é"]}'
        assert first["messages"][2]["content"] is None and first["tools"] == [TOOL]

    def test_sharegpt(self, tmp_path: Path) -> None:
        calls = [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": '[{"name":"f","arguments":{}},{"name":"g","arguments":{"x":1}}]'},
            {"from": "observation", "value": "1"},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "a"},
        ]
        rows = [*ROWS["sharegpt"], {"conversations": calls, "tools": [TOOL]}]
        rows.append({"conversations": [{"from": "human", "value": "<image>q"}, *calls[4:]], "images": ["1"]})
        run(rows, "messages", tmp_path, "there.jsonl")
        convert([SourceSpec(path=str(tmp_path / "there.jsonl"))], tmp_path / "back.jsonl", "sharegpt")
        assert conversations(tmp_path / "back.jsonl") == conversations(tmp_path / "in.jsonl")

    def test_ids_of_calls_in_order_can_be_left_out(self, tmp_path: Path) -> None:
        row = json.loads(json.dumps(ROWS["messages"][1]))
        del row["messages"][3]["name"], row["messages"][4]["weight"]
        result, out = run([row], "sharegpt", tmp_path)
        assert result.rules == {CALL_IDS: 1}
        assert [turn["from"] for turn in read_rows(out)[0]["conversations"]] == [
            *("system", "human", "function_call", "observation", "gpt")
        ]

    def test_calls_that_sharegpt_joins_with_the_turn_before_are_counted(self, tmp_path: Path) -> None:
        """Each pair is one turn once it is read, which a chat template writes in another way."""
        calling, answer = _bot("", tool_calls=[_CALL]), {"role": "tool", "content": "3"}
        for name, before in (("text", _bot("Let me look.")), ("call", calling)):
            row = {"messages": [_user("q"), before, calling, answer, *([answer] * (before is calling)), _bot("z")]}
            result, out = run([row | {"tools": [TOOL]}], "sharegpt", tmp_path, f"{name}.jsonl")
            (read,) = conversations(out)
            assert result.rules == {CALLS_JOINED: 1}
            assert [turn.role for turn in read.messages if turn.role != "tool"] == ["user", "assistant", "assistant"]
            assert len(read.messages[1].tool_calls) == 1 + (before is calling)
        named = [_bot("", tool_calls=[_CALL | {"id": name}]) for name in "ab"]
        second = {"messages": [_user("q"), *named, answer | {"tool_call_id": "b"}, _bot("z")]}
        with pytest.raises(DataError, match="cannot say which call a tool answers"):
            run([second | {"tools": [TOOL]}], "sharegpt", tmp_path, "second.jsonl")
        apart = [_user("q"), calling, answer, calling, answer, _bot("z")]
        assert not run([{"messages": apart, "tools": [TOOL]}], "sharegpt", tmp_path, "apart.jsonl")[0].rules

    @pytest.mark.parametrize("name", ["preference", "classification", "text"])
    def test_formats_of_their_own(self, tmp_path: Path, name: str) -> None:
        run(ROWS[name], name, tmp_path)
        assert conversations(tmp_path / "out.jsonl") == conversations(tmp_path / "in.jsonl")

    TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(lambda text: text.strip())

    @given(pairs=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6))
    @settings(max_examples=60, deadline=None)
    @pytest.mark.parametrize("name", ["there.csv", "there.tsv", "there.jsonl", "there.parquet"])
    @pytest.mark.parametrize("to", ["prompt_completion", "alpaca"])
    def test_tables(
        self, tmp_path_factory: pytest.TempPathFactory, name: str, to: str, pairs: list[tuple[str, str]]
    ) -> None:
        folder = tmp_path_factory.mktemp("tables")
        rows = [{"prompt": p, "completion": c} for p, c in pairs]
        held = [pair for pair in pairs if not any(self.no_table_holds(text, name) for text in pair)]
        if not held:
            with pytest.raises(DataError, match="is refused"):
                run(rows, to, folder, name)
            return
        _, there = run(rows, to, folder, name, quarantine=folder / "bad.jsonl")
        write_rows(folder / "read.jsonl", table_rows(there))
        for source in (folder / "read.jsonl", there):  # by another reader, and by ours
            convert([SourceSpec(path=str(source))], folder / "back.jsonl", "prompt_completion", overwrite=True)
            back = conversations(folder / "back.jsonl")
            assert [tuple(m.content for m in c.messages) for c in back] == held

    @staticmethod
    def no_table_holds(text: str, name: str) -> bool:
        return (name.endswith("sv") and "\0" in text) or (name.endswith(".tsv") and "\t" in text and "\n" in text)

    @given(
        rounds=st.lists(st.tuples(TEXT, TEXT, st.sampled_from([None, True, False])), min_size=1, max_size=4),
        system=st.none() | TEXT,
        to=st.sampled_from(["messages", "openai", "prompt_completion"]),
    )
    @settings(max_examples=80, deadline=None)
    def test_any_chat(
        self, tmp_path_factory: pytest.TempPathFactory, rounds: list[Any], system: str | None, to: str
    ) -> None:
        folder = tmp_path_factory.mktemp("chats")
        turns: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for question, answer, loss in rounds:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            if loss is not None:
                turns[-1]["loss"] = loss
        if to == "prompt_completion" and all(
            turn.get("loss") is False for turn in turns if turn["role"] == "assistant"
        ):
            turns[-1].pop("loss")
        run([{"messages": turns}], to, folder, "there.jsonl")
        convert([SourceSpec(path=str(folder / "there.jsonl"))], folder / "back.jsonl", "messages")
        (back,), (given_row,) = conversations(folder / "back.jsonl"), conversations(folder / "in.jsonl")
        for one in (back, given_row):  # untrained before the first trained turn: in a prompt, whether marked or not
            assert [(m.role, m.content) for m in one.messages] == [(t["role"], t["content"]) for t in turns]
        trained = [[m.train is not False for m in one.messages if m.role == "assistant"] for one in (back, given_row)]
        assert trained[0] == trained[1]

    def test_shuffled_rows_give_the_same_set(self, tmp_path: Path) -> None:
        rows = [user_assistant(f"q{i}", f"a{i}") for i in range(40)] + [{"bad": i} for i in range(5)]
        results = []
        for seed in range(5):
            random.Random(seed).shuffle(rows)
            (tmp_path / str(seed)).mkdir()
            counts, out = run(rows, "sharegpt", tmp_path / str(seed), quarantine=tmp_path / str(seed) / "bad.jsonl")
            results.append((sorted(out.read_text().splitlines()), counts.as_json()))
        assert all(result == results[0] for result in results)


def _user(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def _bot(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


_IMAGE = {"type": "image", "image": "a.png"}
_CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a":null,"b":12345678901234567890123}'}}
ANY = [
    *(row for rows in ROWS.values() for row in rows),
    {"messages": [_user("q"), _bot("a")], "id": "i", "conversation_id": 5},
    {"messages": [_user("q"), _bot("a", loss_weight=0.5), _user("q2"), _bot("b", loss=False)]},
    {"messages": [_user("q"), _bot("", loss=False), _user("r"), _bot("z")]},
    {"messages": [_user("q"), _bot("a", reasoning_content="x </thin k> y")]},
    {"messages": [_user("q"), _bot("a", reasoning_content="x </think> y")]},
    {"messages": [_user("q"), _bot("<think>x</think>a"), _user("r"), _bot("</think>b", reasoning_content="y")]},
    {"messages": [_user("q"), _bot("<think>a", loss=False), _user("r"), _bot("b", reasoning_content="<think>y")]},
    {
        "messages": [_user("q"), _bot("", tool_calls=[_CALL]), {"role": "tool", "content": ""}, _bot("z")],
        "tools": [TOOL],
    },
    {"messages": [_user("q"), _bot("look"), _bot("", tool_calls=[_CALL]), {"role": "tool", "content": ""}, _bot("z")]},
    {"messages": [_user("<image> what <image>?"), _bot("two")], "images": ["a.png", "b.png"]},
    {"messages": [_user("draw"), _bot([_IMAGE])]},
    {"messages": [_user("draw"), _bot([_text("here: "), _IMAGE, _text(" done")])]},
    {"messages": [_user([_IMAGE]), _bot([_text("more: "), _IMAGE]), _user("q"), _bot("a")]},
    {"messages": [_user("draw"), _bot([_IMAGE]), _user("once more"), _bot([_IMAGE, _text(" here")])]},
    {"messages": [_bot([_text("look: "), _IMAGE])]},
    {"prompt": [_user("q"), _bot("x"), _user("q2")], "completion": [_bot("a"), _user("u"), _bot("b")]},
    {"prompt": "p ", "completion": " c", "id": 7},
    {
        "chosen": [_user("p"), _bot("x"), _user("y"), _bot("c")],
        "rejected": [_user("p"), _bot("x"), _user("y"), _bot("r")],
    },
    {
        "chosen": [_user("p"), _bot("c"), _user("y"), _bot("d")],
        "rejected": [_user("p"), _bot("r"), _user("y"), _bot("s")],
    },
    {"chosen": "\n\nHuman: p\n\nAssistant: c", "rejected": "\n\nHuman: p\n\nAssistant: r"},
    {"system": "s", "instruction": "p", "input": "x", "history": [["q", "a"]], "chosen": "c", "rejected": "r"},
    {"messages": [_user("p"), _bot("x"), _user("y"), _bot("c")], "rejected_response": "r", "id": "w"},
    {"system": "s", "query": "p", "response": "c", "rejected_messages": [_user("p"), _bot("r")]},
    {"prompt": [_user("p")], "chosen": [_bot("c", loss_weight=2)], "rejected": [_bot("r")]},
    {
        "conversations": [
            {"from": "gpt", "value": "hello"},
            {"from": "human", "value": "q"},
            {"from": "gpt", "value": "z"},
        ]
    },
    {"segments": [{"text": "a<s>", "label": False}, {"text": "b", "label": True}], "id": "s"},
]


def _said(row: Conversation) -> Conversation:
    """The row with what is trained of it, which its turns say or their places, and with its reasoning, likewise."""
    label = None if row.label is None else str(row.label)  # a class is known by its words
    turns = (replace(turn, train=turn.train is not False).with_thought_apart() for turn in row.messages)
    return replace(row, label=label, messages=tuple(turns))


@pytest.mark.parametrize("container", ["jsonl", "parquet", "csv", "tsv"])
@pytest.mark.parametrize("to", WRITERS)
def test_what_is_written_is_read_as_it_was_or_a_rule_says_what_changed(to: str, container: str, tmp_path: Path) -> None:
    writer = WRITERS[to]
    if container != "jsonl" and not (writer.flat or (container == "parquet" and writer.columns)):
        pytest.skip("no such table")
    written = 0
    for number, row in enumerate(ANY):
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            result, out = run([row], to, folder, f"there.{container}")
        except DataError:  # it says what the format has no place for
            continue
        written += 1
        given, read = conversations(folder / "in.jsonl"), conversations(out)
        if result.rules.keys() <= {REASONING_AS_TEXT, NAMES_AS_TEXT}:
            assert list(map(_said, read)) == list(map(_said, given)), row
    assert written
