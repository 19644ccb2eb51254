"""Each format: what its rows become, and what is wrong with those that cannot be read."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats.alpaca import INPUT_BELOW
from rankzero.data.rows.formats.fields import CONTEXT_BELOW, EMPTY_SYSTEM
from rankzero.data.rows.formats.query_response import FIRST_ANSWER
from rankzero.data.rows.formats.sharegpt import ASSISTANT_FIRST
from tests.unit.data.rows.formats.support import ROWS, bad, good, read, reasons, turns


@pytest.mark.parametrize("name", ROWS)
def test_every_format_is_found_by_its_keys_and_by_its_name(name: str) -> None:
    for row in ROWS[name]:
        assert read(row) == read(row, name)
        assert read(row)[0] == name


class TestAlpaca:
    def test_input_is_on_the_next_line(self) -> None:
        without, with_input, rich = ROWS["alpaca"]
        assert turns(good(without)) == [("user", "Name a prime."), ("assistant", "7")]
        assert turns(good(with_input)) == [("user", "Translate to French.\nGood day"), ("assistant", "Bonjour")]
        assert [read(row)[2] for row in (without, with_input, rich)] == [(), (INPUT_BELOW,), ()]
        roles = ["system", "user", "assistant", "user", "assistant"]
        assert [role for role, _ in turns(good(rich))] == roles and good(rich).templated

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            ({"instruction": "", "input": " ", "output": "o"}, ["empty prompt"]),
            ({"instruction": "i", "output": ""}, ["empty output"]),
            ({"instruction": 3, "input": [], "output": "o"}, ["instruction is not a string", "input is not a string"]),
            ({"instruction": "i", "output": 3}, ["output is not a string"]),
            ({"instruction": "i", "output": "o", "history": [["a"]]}, ["bad history"]),
            ({"instruction": "i", "output": "o", "history": "x"}, ["bad history"]),
            ({"instruction": "i", "output": "o", "history": [["a", ""]]}, ["empty assistant turn"]),
            ({"instruction": "i", "output": "o", "context": ["c"]}, ["context is not a string"]),
            ({"instruction": "i", "input": "x", "output": "o", "context": "c"}, ["context in two places"]),
            ({"instruction": "i", "output": "o", "choices": ["c"]}, ["`choices` is not read"]),
            ({"instruction": "Add", "output": "12", "text": "something else"}, ["ambiguous row"]),
        ],
    )
    def test_problems(self, row: Any, found: list[str]) -> None:
        assert reasons(row) == found

    def test_an_input_without_instruction_is_the_question(self) -> None:
        assert turns(good({"instruction": "", "input": "i", "output": "o"}))[0] == ("user", "i")


class TestShareGpt:
    def test_roles(self) -> None:
        names = ("system", "human", "gpt", "user", "chatgpt", "tool", "assistant", "observation", "gpt")
        row = {"conversations": [{"from": name, "value": name} for name in names]}
        assert [role for role, _ in turns(good(row))] == [
            *("system", "user", "assistant", "user", "assistant", "tool", "assistant", "tool", "assistant")
        ]

    def test_pairs(self) -> None:
        expected = [("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")]
        assert turns(good(ROWS["sharegpt"][1])) == expected

    def test_turns_of_role_and_content(self) -> None:
        row = {"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
        assert turns(good(row)) == [("user", "q"), ("assistant", "a")]

    def test_calls(self) -> None:
        row = {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
                {"from": "observation", "value": "1"},
                {"from": "gpt", "value": "a", "loss": True},
            ],
            "tools": '[{"name": "add", "parameters": {}}]',
        }
        conversation = good(row)
        call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
        assert conversation.messages[1] == Message("assistant", "", tool_calls=(call,))
        assert conversation.tools == ({"type": "function", "function": {"name": "add", "parameters": {}}},)
        assert conversation.messages[3].train is True

    def test_a_row_that_the_assistant_begins_is_kept_and_counted(self) -> None:
        row = {"conversations": [{"from": "gpt", "value": "…on"}, {"from": "human", "value": "q"}]}
        _, (conversation,), rules = read(row)
        assert turns(conversation) == [("assistant", "…on"), ("user", "q")] and rules == (ASSISTANT_FIRST,)

    @pytest.mark.parametrize(
        ("items", "found"),
        [
            ([{"from": "human", "value": "q"}, {"from": "gpt", "value": ""}], ["empty assistant turn"]),
            ([{"human": "q", "assistant": " "}], ["empty assistant turn"]),
            ([{"human": "q"}], ["assistant is not a string"]),
            ([{"from": "student", "value": "x"}, {"from": "gpt", "value": "a"}], ["unknown role"]),
            ([{"from": 3, "value": "x"}, {"from": "gpt", "value": "a"}], ["role is not a string"]),
            ([{"value": "x"}, {"from": "gpt", "value": "a"}], ["turn without role"]),
            ([{"from": "human"}, {"from": "gpt", "value": "a"}], ["turn without content"]),
            ([{"from": "human", "value": None}, {"from": "gpt", "value": "a"}], ["content is null"]),
            ([{"from": "human", "value": ["x"]}, {"from": "gpt", "value": "a"}], ["content is not a string"]),
            ([{"from": "human", "value": "q"}], ["no assistant turn"]),
            ([{"from": "human", "value": "q"}, {"from": "function_call", "value": "add(1)"}], ["bad tool call"]),
            ([{"from": "human", "value": "q", "loss": True}, {"from": "gpt", "value": "a"}], ["training another role"]),
            (["q", {"from": "gpt", "value": "a"}], ["turn is not an object"]),
            ([], ["empty `conversations`"]),
            ("x", ["`conversations` is not a list"]),
        ],
    )
    def test_problems(self, items: Any, found: list[str]) -> None:
        assert reasons({"conversations": items}) == found


class TestQueryResponse:
    @pytest.mark.parametrize("query", ["query", "prompt", "input", "instruction", "question", "problem"])
    @pytest.mark.parametrize("response", ["response", "answer", "target", "answer_key", "solution"])
    def test_names(self, query: str, response: str) -> None:
        conversation = good({query: "q", response: "a"})
        assert turns(conversation) == [("user", "q"), ("assistant", "a")] and conversation.templated

    @pytest.mark.parametrize("response", ["text", "content", "completion"])
    def test_names_that_mean_other_things_have_to_be_asked_for(self, response: str) -> None:
        row = {"question": "q", response: "a"}
        assert turns(good(row, "query_response")) == [("user", "q"), ("assistant", "a")]
        assert bad(row)

    @pytest.mark.parametrize(
        ("row", "columns"),
        [
            ({"question": "q", "answer": "a", "solution": "b"}, "`answer`, `solution`"),
            ({"query": "q", "prompt": "p", "response": "r"}, "`query`, `prompt`"),
            ({"instruction": "q", "input": "p", "response": "r"}, "`input`, `instruction`"),
            ({"query": "q", "response": "r", "system": "s", "system_prompt": "t"}, "`system`, `system_prompt`"),
        ],
    )
    def test_two_columns_for_one_name_are_never_a_silent_choice(self, row: Any, columns: str) -> None:
        (problem,) = bad(row)
        assert problem.reason == "two columns for one name" and columns in problem.what and "columns:" in problem.hint

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            ({"query": "", "response": ""}, ["empty query", "empty response"]),
            ({"query": 1, "response": ["r"]}, ["query is not a string", "response is not a string"]),
            ({"question": "q", "answer": "a", "context": {}, "passage": 3}, ["passage is not a string"]),
            ({"question": "q", "answer": "a", "context": "c", "passage": "p"}, ["context in two places"]),
            ({"question": "q", "answers": {"text": []}}, ["answers is not a string"]),
        ],
    )
    def test_problems(self, row: Any, found: list[str]) -> None:
        assert reasons(row) == found

    def test_what_is_put_together_is_counted(self) -> None:
        _, (conversation,), rules = read({"question": "q", "answer": "a", "context": "c"})
        assert turns(conversation)[0] == ("user", "q\nc") and rules == (CONTEXT_BELOW,)
        _, (conversation,), rules = read({"question": "q", "answers": {"text": ["a", "b"]}})
        assert turns(conversation)[1] == ("assistant", "a") and rules == (FIRST_ANSWER,)

    def test_missing_columns(self) -> None:
        assert reasons({"title": "x"}, "query_response") == ["no query", "no response"]

    def test_system(self) -> None:
        for key in ("system", "system_prompt"):
            assert turns(good({"query": "q", "response": "r", key: "s"}))[0] == ("system", "s")


class TestOpenOrca:
    def test_an_empty_system_prompt_is_left_out_and_counted(self) -> None:
        empty, full = ROWS["openorca"]
        _, (conversation,), rules = read(empty)
        assert turns(conversation) == [("user", "2+3?"), ("assistant", "5")] and rules == (EMPTY_SYSTEM,)
        assert turns(good(full))[0] == ("system", "You are concise.") and good(full).id == "niv.9"

    def test_problems(self) -> None:
        row = {"system_prompt": 1, "question": "", "response": " "}
        assert reasons(row) == ["empty question", "empty response", "system_prompt is not a string"]


class TestPreference:
    def test_strings(self) -> None:
        conversation = good(ROWS["preference"][0])
        assert turns(conversation) == [("prompt", "p"), ("completion", "good")]
        assert conversation.rejected == (Message("completion", "bad"),) and not conversation.templated
        assert turns(good({"chosen": "good", "rejected": "bad"})) == [("completion", "good")]

    @pytest.mark.parametrize("prompt", [{}, {"prompt": "q"}, {"prompt": [{"role": "user", "content": "q"}]}])
    def test_turns_with_the_question_in_both(self, prompt: dict[str, Any]) -> None:
        conversation = good(ROWS["preference"][1] | prompt)
        assert turns(conversation) == [("user", "q"), ("assistant", "good")]
        assert [message.train for message in conversation.messages] == [False, None]
        assert conversation.rejected == (Message("assistant", "bad"),)

    @pytest.mark.parametrize("prompt", ["q", [{"role": "user", "content": "q"}]])
    def test_turns_after_a_prompt(self, prompt: Any) -> None:
        answers = {key: [{"role": "assistant", "content": key}] for key in ("chosen", "rejected")}
        conversation = good({"prompt": prompt, **answers})
        assert turns(conversation) == [("user", "q"), ("assistant", "chosen")]
        assert conversation.rejected == (Message("assistant", "rejected"),)

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            ({"prompt": "p", "chosen": "a", "rejected": "a"}, ["chosen equals rejected"]),
            ({"prompt": "p", "chosen": "a", "rejected": ["a"]}, ["chosen and rejected differ in kind"]),
            ({"prompt": "", "chosen": "a", "rejected": " "}, ["empty rejected", "empty prompt"]),
            ({"prompt": "p", "chosen": "a"}, ["chosen without rejected"]),
            ({"rejected": "a"}, ["rejected without chosen"]),
            ({"chosen": [], "rejected": [{"role": "assistant", "content": "a"}]}, ["empty `chosen`"]),
            (
                {"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "assistant", "content": "a"}]},
                ["no assistant turn"],
            ),
            (ROWS["preference"][1] | {"prompt": "another"}, ["two prompts"]),
            (ROWS["preference"][1] | {"messages": [{"role": "user", "content": "q"}]}, ["ambiguous row"]),
            (
                {"prompt": "p", "completion": "c", "label": True},
                ["no task trains on single judged answers"],
            ),
        ],
    )
    def test_problems(self, row: Any, found: list[str]) -> None:
        assert reasons(row) == found


@pytest.mark.parametrize("key", ["segments", "contents", "texts"])
def test_names_that_are_common_elsewhere_do_not_turn_a_text_into_a_question(key: str) -> None:
    assert read({"text": "t", key: [{"start": 0, "text": "t"}]})[0] == "text"


class TestClassification:
    @pytest.mark.parametrize("label", [0, 1, "neg", "0"])
    @pytest.mark.parametrize("key", ["text", "sentence"])
    def test_labels(self, key: str, label: Any) -> None:
        conversation = good({key: "t", "label": label})
        assert conversation.label == label and turns(conversation) == [("prompt", "t")] and not conversation.templated

    def test_a_whole_number_is_one_in_whatever_column(self) -> None:
        """pandas has numbers beside a missing one as floats."""
        label = good({"text": "t", "label": 1.0}).label
        assert (label, type(label)) == (1, int)

    @pytest.mark.parametrize("label", [True, False])
    def test_true_and_false_are_classes_as_json_writes_them(self, label: bool) -> None:
        assert good({"text": "t", "label": label}).label == str(label).lower()

    @pytest.mark.parametrize("label", [-1, "-1", -1.0, None])
    def test_rows_without_a_label_are_left_out_by_name(self, label: Any) -> None:
        from rankzero.data.rows.formats import Noted, convert

        name, result = convert({"text": "t", "label": label}, 7)
        assert name == "classification" and isinstance(result, Noted)
        assert (result.conversations, result.dropped) == ((), "unlabelled")

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            ({"text": "t", "label": 0.5}, ["bad label"]),
            ({"text": "t", "label": [True]}, ["bad label"]),
            ({"text": "t", "label": ""}, ["bad label"]),
            ({"text": "", "label": 1}, ["empty text"]),
            ({"sentence": 3, "label": 1}, ["sentence is not a string"]),
            ({"text": "a", "sentence": "b", "label": 1}, ["two columns for one name"]),
        ],
    )
    def test_problems(self, row: Any, found: list[str]) -> None:
        assert reasons(row) == found

    def test_asked_for_and_not_there(self) -> None:
        assert reasons({"text": "t"}, "classification") == ["no label"]


class TestSystemBesideTheTurns:
    def test_it_comes_first(self) -> None:
        row = ROWS["messages"][0] | {"system": "s"}
        assert turns(good(row))[0] == ("system", "s")

    def test_twice(self) -> None:
        assert reasons(ROWS["messages"][1] | {"system": "another"}) == ["two system prompts"]
        assert reasons(ROWS["messages"][0] | {"system": 3}) == ["system is not a string"]
        assert reasons(ROWS["messages"][0] | {"system": "s", "system_prompt": "t"}) == ["two system prompts"]

    @pytest.mark.parametrize("key", ["system", "system_prompt", "systemInstruction", "system_instruction"])
    @pytest.mark.parametrize(
        "row",
        [
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            {"conversations": [{"human": "q", "assistant": "a"}]},
            {"instruction": "q", "output": "a"},
            {"query": "q", "response": "a"},
            {"contents": [{"parts": [{"text": "q"}]}, {"role": "model", "parts": [{"text": "a"}]}]},
            {
                "prompt": [{"role": "user", "content": "q"}],
                "completion": [{"role": "assistant", "content": "a"}],
            },
        ],
        ids=lambda row: next(iter(row)),
    )
    def test_under_each_of_its_names_in_every_format_with_turns(self, row: Any, key: str) -> None:
        assert turns(good(row | {key: "s"})) == [("system", "s"), ("user", "q"), ("assistant", "a")]

    @pytest.mark.parametrize("row", [{"prompt": "p", "completion": "c"}, {"text": "t"}])
    def test_raw_text_has_no_place_for_it(self, row: Any) -> None:
        assert "`system_prompt` is not read" in reasons(row | {"system_prompt": "s"})

    def test_said_again_in_the_same_words(self) -> None:
        _, (conversation,), rules = read(ROWS["messages"][1] | {"system": "s", "system_prompt": "s"})
        assert conversation == good(ROWS["messages"][1]) and rules == ()

    def test_in_the_rounds_of_xtuner(self) -> None:
        rounds = [
            {"system": "s", "input": "q", "output": "a"},
            {"system": "s", "input": "r", "output": "b"},
            {"input": "t", "output": "c"},
        ]
        said = [role for role, _ in turns(good({"conversation": rounds}))]
        assert said == ["system", *["user", "assistant"] * 3]
        _, (conversation,), rules = read({"conversation": [{"system": "", "input": "q", "output": "a"}]})
        assert turns(conversation) == [("user", "q"), ("assistant", "a")] and rules == (EMPTY_SYSTEM,)
        assert reasons({"conversation": [{"system": 3, "input": "q", "output": "a"}]}) == ["system is not a string"]


_UNREAD_IN_TURN = ("image", "images", "image_url", "video", "videos", "audio", "audios", "tools", "functions")


@pytest.mark.parametrize("key", _UNREAD_IN_TURN)
def test_what_the_model_would_have_to_see_is_not_left_out_of_a_turn(key: str) -> None:
    turn = {"role": "system", "content": "s", key: [{"name": "add"}]}
    rest = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (problem,) = bad({"messages": [turn, *rest]})
    assert problem.reason == f"`{key}` is not read" and problem.hint
    assert reasons({"conversations": [{"human": "q", "assistant": "a", key: "x"}]}) == [f"`{key}` is not read"]
    assert good({"messages": [{**turn, key: None}, *rest]})


def test_ids_and_groups() -> None:
    row = ROWS["messages"][0]
    assert (good(row).id, good(row).group) == ("m1", None)
    assert (good(row | {"id": 7, "conversation_id": "c"}).id, good(row | {"conversation_id": "c"}).group) == ("7", "c")
    assert good(row | {"id": {"$oid": "5f"}}).id == '{"$oid":"5f"}' and good(row | {"id": True}).id is None
    for given, name in ((12, "12"), (12.0, "12"), (12.5, "12.5"), (None, None), ("", None), (True, None)):
        assert good(row | {"conversation_id": given}).group == name


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "p", "completion": "c"},
        {"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]},
        {"prompt": "p", "chosen": "c", "rejected": "r"},
        {"prompt": "p", "completion": "c", "rejected_response": "r"},
        {"instruction": "p", "output": "c"},
    ],
)
def test_rows_of_one_conversation_are_a_group_in_whatever_form(row: dict[str, Any]) -> None:
    assert good(row | {"conversation_id": "g", "id": 1}).group == "g" and good(row).group is None
    one, other = ({"$oid": "5f", "n": [1, 2**70]}, {"n": [1, 2**70], "$oid": "5f"})
    assert good(row | {"conversation_id": one}).group == good(row | {"conversation_id": other}).group is not None
    nested = ({"$oid": ""}, {"k": {"oid": None}}, [""], [{}], [[]], {"k": [{"oid": ""}, None]})
    for nothing in ({}, [], {"$oid": None}, [None], *nested):  # as tables have objects that are not there
        assert good(row | {"conversation_id": nothing}).group is None
    for something in ([0], {"k": False}, [" "]):
        assert good(row | {"conversation_id": something}).group is not None
    deep = reduce(lambda inner, _: [inner], range(2000), "g")
    assert good(row | {"conversation_id": deep, "id": deep}).group is None
