"""Rows with a better and a worse answer, in the shapes that other trainers and the Hub have them in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats import FORMATS, Noted, convert, preference, rename
from rankzero.data.rows.formats.fields import CONTEXT_BELOW
from rankzero.data.rows.formats.format import NothingToLearnError
from rankzero.data.rows.formats.judged import EQUAL
from rankzero.data.rows.formats.messages import PAIR_BESIDE
from rankzero.data.rows.parse import parse
from tests.unit.data.rows.formats.support import bad, good, read, reasons, turns
from tests.unit.data.support import user_assistant

IMAGES = "image without a place"
PAIR = {"chosen": "a", "rejected": "b"}
OPENAIS = ("preferred_output", "non_preferred_output")
ASKED = "\n\nHuman: p\n\nAssistant: x\n\nHuman: q\n\nAssistant:"


def bot(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


@pytest.mark.parametrize("key", ["messages", "conversation", "conversations"])
def test_what_is_wrong_with_what_was_asked_is_said_of_the_key_that_has_it(key: str) -> None:
    answers = {"chosen": [bot("a")], "rejected": [bot("b")]}
    for turns_, says in (
        ([{"from": "humn", "value": "q"}], f"{key}[0].from is 'humn'"),
        ([{"input": "p", "output": "x"}, {"input": "q", "output": None}], f"`{key}` is of pairs, input and output"),
    ):
        problems = bad({key: turns_, **answers}, "preference")
        assert [problem.what.startswith(says) for problem in problems] == [True], problems
        assert problems[0].hint and "prompt" not in problems[0].what
    other = {"chosen": [user("r"), bot("a")], "rejected": [user("r"), bot("b")]}
    assert [problem.what for problem in bad({key: [user("q")], **other}, "preference")] == [
        f"`{key}` is not how `chosen` begins"
    ]


def test_a_system_prompt_beside_raw_texts_names_the_way_to_a_chat() -> None:
    """TruthyDPO's rows; as the hint says, they are read."""
    row = {"system": "s", "prompt": "q", **PAIR}
    (problem,) = bad(row, "preference")
    assert "columns: {question: prompt}" in problem.hint and "completion" not in problem.hint
    read_as = good(rename(row, {"question": "prompt"}), "preference")
    assert turns(read_as) == [("system", "s"), ("user", "q"), ("assistant", "a")]
    (problem,) = bad({"system": "s", **PAIR}, "preference")
    assert '"chosen": […]' in problem.hint and "completion" not in problem.hint


class TestQuestionsBesideThem:
    """LLaMA-Factory's rows of one question, and those of the Hub."""

    @pytest.mark.parametrize(
        ("asked", "wanted"),
        [
            ({"instruction": "i", "input": "x"}, [("user", "i\nx")]),
            ({"instruction": "i", "input": ""}, [("user", "i")]),
            ({"instruction": "i", "history": [["p", "y"]]}, [("user", "p"), ("assistant", "y"), ("user", "i")]),
            ({"system": "s", "question": "q"}, [("system", "s"), ("user", "q")]),
            ({"system": "s", "input": "q"}, [("system", "s"), ("user", "q")]),
            ({"conversations": [{"from": "human", "value": "q"}]}, [("user", "q")]),
        ],
    )
    def test_all_that_was_asked_is_there(self, asked: dict[str, Any], wanted: list[tuple[str, str]]) -> None:
        conversation = good({**asked, **PAIR})
        assert turns(conversation) == [*wanted, ("assistant", "a")]
        assert conversation.rejected == (Message("assistant", "b"),) and conversation.preferred == 1

    def test_a_context_is_put_below_the_question(self) -> None:
        name, (conversation,), rules = read({"question": "q", "context": "c", **PAIR})
        assert (name, rules) == ("preference", (CONTEXT_BELOW,)) and turns(conversation)[0] == ("user", "q\nc")

    @pytest.mark.parametrize("turns_key", ["messages", "conversation", "conversations"])
    @pytest.mark.parametrize("form", [bot, lambda text: [bot(text)], str])
    def test_turns_before_them(self, turns_key: str, form: Callable[[str], Any]) -> None:
        """As Axolotl and LLaMA-Factory have them, the answers as single turns, as lists of one, or as texts."""
        pair = {key: form(text) for key, text in PAIR.items()}
        conversation = good({turns_key: [user("p"), bot("y"), user("q")], **pair})
        assert turns(conversation) == [("user", "p"), ("assistant", "y"), ("user", "q"), ("assistant", "a")]
        assert [turn.train for turn in conversation.messages] == [False, False, False, None]
        assert conversation.rejected == (Message("assistant", "b"),)

    @pytest.mark.parametrize("turns_key", ["messages", "conversation", "conversations"])
    @pytest.mark.parametrize("empty", [[], "[]"])
    @pytest.mark.parametrize("before", [[], [user("q")]])
    def test_no_turns_before_them(self, turns_key: str, empty: Any, before: list[Any]) -> None:
        row = {turns_key: empty, "chosen": [*before, bot("a")], "rejected": [*before, bot("b")]}
        (problem,) = FORMATS["preference"].to_conversation(row, 7)
        assert problem.reason == f"empty `{turns_key}`" and "leave the key out" in problem.hint

    @pytest.mark.parametrize(
        ("row", "found"),
        [
            ({"messages": [user("q"), bot("c")], "chosen": bot("a"), "rejected": bot("b")}, "a third answer"),
            ({"question": "q", "instruction": "i", **PAIR}, "two columns for one name"),
            ({"prompt": "q", "history": [["p", "y"]], **PAIR}, "`history` is not read"),
            ({"context": "c", **PAIR}, "`context` is not read"),
            ({"question": "q", "options": ["x"], **PAIR}, "`options` is not read"),
        ],
    )
    def test_nothing_of_it_is_left_out_in_silence(self, row: dict[str, Any], found: str) -> None:
        (problem,) = bad(row)
        assert problem.reason == found and problem.hint


def shapes(asked: list[Any], better: list[Any], worse: list[Any]) -> dict[str, dict[str, Any]]:
    """Rows that say one pair: each answer alone, or behind what was asked."""
    found = {
        "whole": {"chosen": [*asked, *better], "rejected": [*asked, *worse]},
        "rejected_messages": {"messages": [*asked, *better], "rejected_messages": [*asked, *worse]},
    }
    for key in ("prompt", "messages"):
        for before in ([], asked):
            for again in ([], asked):
                row = {"chosen": [*before, *better], "rejected": [*again, *worse]}
                found[f"{key}, {len(before)}, {len(again)}"] = {key: asked, **row}
    if len(asked) == 1:
        found["text"] = {"prompt": asked[0]["content"], **found["whole"]}
    return found


GO_ON = [user("go on"), bot("x"), user("go on"), bot("a")]
TWICE = [user("q"), bot("x"), user("r"), bot("a")]
GREETED = [bot("hi"), user("q"), bot("a")]


class TestTextsThatAreAskedAgain:
    """A text as `prompt` names a question. The turns before it, and whether more follow, are in the answers."""

    @pytest.mark.parametrize(
        ("text", "chosen", "rejected", "preferred", "worse"),
        [
            ("go on", GO_ON, [bot("b")], 1, 1),
            ("go on", GO_ON, [*GO_ON[:-1], bot("b")], 1, 1),
            ("q", TWICE, [bot("b")], 1, 1),
            ("q", [system("q"), user("p"), bot("x"), user("q"), bot("a")], [bot("b")], 1, 1),
            ("q", [system("q"), *TWICE], [bot("b")], 1, 1),
            ("q", GREETED, [*GREETED[:-1], bot("b")], 1, 1),
            ("r", [bot("hi"), *TWICE], [bot("hi"), user("q"), bot("y"), user("s"), bot("b")], 3, 3),
            ("go on", GO_ON[1:], [bot("y"), user("go on"), bot("b")], 3, 3),
            ("go on", GO_ON[1:], [bot("y"), user("r"), bot("b")], 3, 3),
        ],
    )
    def test_where_the_answers_begin(
        self, text: str, chosen: list[Any], rejected: list[Any], preferred: int, worse: int
    ) -> None:
        found = good({"prompt": text, "chosen": chosen, "rejected": rejected})
        before = [user(text)] if preferred == len(chosen) else []
        assert turns(found) == [(turn["role"], turn["content"]) for turn in [*before, *chosen]]
        assert [turn.content for turn in found.rejected] == [turn["content"] for turn in rejected[-worse:]]
        assert found.preferred == preferred

    @pytest.mark.parametrize(
        ("text", "chosen", "rejected"),
        [
            ("r", TWICE, [bot("y"), user("r"), bot("b")]),
            ("q", GREETED, [user("q"), bot("b")]),
            ("q", GREETED, [bot("b")]),
        ],
    )
    def test_what_could_follow_two_questions(self, text: str, chosen: list[Any], rejected: list[Any]) -> None:
        (problem,) = bad({"prompt": text, "chosen": chosen, "rejected": rejected})
        assert problem.reason == "two prompts" and problem.hint


class TestShapesOfOnePair:
    """In whichever of them a pair is written, both answers follow the same turns."""

    @pytest.mark.parametrize("asked", [[user("q")], [system("s"), user("q")], [user("p"), bot("x"), user("q")]])
    @pytest.mark.parametrize("better", [[bot("a")], [bot("a"), user("q"), bot("c")], [bot("a"), user("r"), bot("c")]])
    @pytest.mark.parametrize("worse", [[bot("b")], [bot("b"), user("q"), bot("d")], [bot("b"), user("r"), bot("c")]])
    def test_they_are_one_pair(self, asked: list[Any], better: list[Any], worse: list[Any]) -> None:
        for shape, row in shapes(asked, better, worse).items():
            _, found = convert(row, 7, trains="preferences")
            assert isinstance(found, Conversation), (shape, found)
            assert turns(found) == [(turn["role"], turn["content"]) for turn in [*asked, *better]], shape
            assert [(turn.role, turn.content) for turn in found.rejected] == [
                (turn["role"], turn["content"]) for turn in worse
            ], shape
            assert found.preferred == len(better), shape

    @pytest.mark.parametrize("more", [[], [bot("y"), user("r")]])
    def test_a_prompt_that_follows_a_greeting_is_said_once(self, more: list[Any]) -> None:
        dialogues = {key: [bot("hi"), user("q"), *more, bot(text)] for key, text in PAIR.items()}
        conversation = good({"prompt": "q", **dialogues})
        assert len(conversation.messages) == len(dialogues["chosen"]) and conversation.preferred == 1
        assert conversation.rejected == (Message("assistant", "b"),)

    def test_a_prompt_that_is_a_part_of_what_was_asked(self) -> None:
        """The answer begins behind all of it."""
        conversation = good({"prompt": "q", "chosen": [user("q"), user("r"), bot("a")], "rejected": [bot("b")]})
        assert len(conversation.messages) == 3 and conversation.preferred == 1


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": [user("q"), bot("a")], "rejected": [bot("a")]},
        {"prompt": "q", "chosen": {**bot("a"), "score": 8}, "rejected": {**bot("a"), "score": 3}},
        {"chosen": [user("q"), bot("a")], "rejected": [user("q"), {"from": "gpt", "value": "a"}]},
        {"input": {"messages": [user("q")]}, **{key: [bot("a") | {"x": key}] for key in OPENAIS}},
        {"messages": [user("q"), bot("a")], "rejected_messages": [user("q"), {"from": "gpt", "value": "a"}]},
    ],
)  # fmt: skip
def test_answers_that_are_the_same_once_read_are_named_and_not_written(row: dict[str, Any]) -> None:
    """Training leaves such a pair out, and the pair that was written is refused, since its answers are the same."""
    _, found = convert(row, 7, trains="preferences")
    if isinstance(found, list):
        assert [problem.reason for problem in found] == ["chosen equals rejected"]
        return
    assert isinstance(found, Noted) and found.rules == (EQUAL,)
    with pytest.raises(NothingToLearnError, match="answers_alike"):
        preference.to_row(found.conversations[0])


class TestWholeDialogues:
    """HH-RLHF's: each answer is the whole dialogue as text."""

    def test_what_both_begin_with_was_asked(self) -> None:
        conversation = good({"chosen": f"{ASKED} good", "rejected": f"{ASKED} going"})
        assert turns(conversation) == [("prompt", ASKED), ("completion", " good")]
        assert conversation.rejected == (Message("completion", " going"),) and not conversation.templated

    def test_dialogues_that_part_earlier(self) -> None:
        first, begins = (
            "\n\nHuman: p\n\nAssistant:",
            (" x\n\nHuman: q\n\nAssistant: a", " y\n\nHuman: r\n\nAssistant: b"),
        )
        conversation = good({"chosen": first + begins[0], "rejected": first + begins[1]})
        assert turns(conversation) == [("prompt", first), ("completion", begins[0])]
        assert conversation.rejected == (Message("completion", begins[1]),)

    @pytest.mark.parametrize("answers", [("good", "bad"), ("Human: a\nAssistant: A", "Human: a\nAssistant: B")])
    def test_other_texts_are_answers_as_they_stand(self, answers: tuple[str, str]) -> None:
        conversation = good({"chosen": answers[0], "rejected": answers[1]})
        assert turns(conversation) == [("completion", answers[0])]
        assert conversation.rejected == (Message("completion", answers[1]),)

    def test_a_dialogue_without_its_answer(self) -> None:
        assert reasons({"chosen": f"{ASKED} a", "rejected": ASKED}) == ["empty rejected"]
        assert reasons({"chosen": ASKED, "rejected": f"{ASKED} a"}) == ["empty chosen"]


class TestBesideOtherMarks:
    """UltraFeedback has the better answer once more in `messages`, to be learnt."""

    ROW = {
        "prompt": "q", "prompt_id": "1", "score_chosen": 8.0, "score_rejected": 4.0,
        "messages": [user("q"), bot("a")], "chosen": [user("q"), bot("a")], "rejected": [user("q"), bot("b")],
    }  # fmt: skip

    def test_the_task_decides(self) -> None:
        name, (chat,), rules = read(self.ROW)
        assert name == "messages" and chat.rejected == () and rules == (PAIR_BESIDE,)
        name, result = convert(self.ROW, 7, "auto", "preferences")
        assert name == "preference" and isinstance(result, Conversation)
        assert turns(result) == [("user", "q"), ("assistant", "a")]
        assert result.rejected == (Message("assistant", "b"),) and result.preferred == 1

    def test_a_question_for_other_tasks_is_none_for_this_one(self) -> None:
        row = {"prompt": "p", "completion": "c", **PAIR}
        assert reasons(row) == ["ambiguous row"] and isinstance(convert(row, 7, trains="answers")[1], list)
        assert convert(row, 7, trains="preferences")[0] == "preference"
        assert convert({"prompt": "p", "completion": "c"}, 7, trains="preferences")[0] == "prompt_completion"


class TestMsSwift:
    """Rows of any format, with the worse answer beside them."""

    CHAT = user_assistant("q", "a")

    @pytest.mark.parametrize(
        "row",
        [
            CHAT,
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
            {"instruction": "q", "output": "a"},
            {"query": "q", "response": "a"},
        ],
    )
    @pytest.mark.parametrize(
        "worse",
        [
            {"rejected_response": "b"},
            {"rejected_messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]},
            {"rejected_response": "b", "rejected_messages": None, "id": 12345678901234567890123},
        ],
    )
    def test_rows_of_ms_swift_are_preferences(self, row: dict[str, Any], worse: dict[str, Any]) -> None:
        conversation = good({**row, **worse})
        assert turns(conversation) == [("user", "q"), ("assistant", "a")]
        assert conversation.rejected == (Message("assistant", "b"),) and conversation.preferred == 1
        assert [turn.train for turn in conversation.messages] == [False, None] and conversation.completion_only
        line = json.dumps({**row, **worse}).encode()
        (read,) = parse(Chunk(0, 1, line + b"\n"), "auto").conversations
        assert read.rejected == conversation.rejected and not parse(Chunk(0, 1, line + b"\n"), "auto").ignored_keys

    def test_a_worse_end_of_several_turns_begins_where_it_is_another(self) -> None:
        said = user_assistant("q", "a", "r", "b")
        worse = user_assistant("q", "a", "r", "c")["messages"]
        system = {"system": "s", **said, "rejected_messages": worse}
        conversation = good(system)
        assert turns(conversation)[0] == ("system", "s") and conversation.preferred == 1
        assert conversation.rejected == (Message("assistant", "c"),)
        earlier = good({**said, "rejected_messages": user_assistant("q", "x", "r", "b")["messages"]})
        assert earlier.preferred == 3 and [turn.content for turn in earlier.rejected] == ["x", "r", "b"]

    @pytest.mark.parametrize("before", [{}, {"system": "s"}, {"messages": [system("s"), *CHAT["messages"]]}])
    def test_a_worse_answer_alone_is_in_the_place_of_the_last(self, before: dict[str, Any]) -> None:
        conversation = good({**self.CHAT, **before, "rejected_messages": [bot("b")]})
        assert turns(conversation)[-2:] == [("user", "q"), ("assistant", "a")] and conversation.preferred == 1
        assert conversation.rejected == (Message("assistant", "b"),)

    def test_dialogues_under_a_system_prompt_that_begin_with_a_greeting(self) -> None:
        said = [bot("hi"), *self.CHAT["messages"]]
        conversation = good({"system": "s", "messages": said, "rejected_messages": [*said[:-1], bot("b")]})
        assert conversation.preferred == 1 and conversation.rejected == (Message("assistant", "b"),)

    def test_a_raw_answer_has_a_raw_one_beside_it(self) -> None:
        conversation = good({"prompt": "q", "completion": " a", "rejected_response": " b"})
        assert conversation.rejected == (Message("completion", " b"),) and not conversation.templated

    @pytest.mark.parametrize(
        ("worse", "reason"),
        [
            ({"rejected_response": "a"}, "chosen equals rejected"),
            ({"rejected_response": " "}, "empty rejected_response"),
            ({"rejected_response": ["b", "c"]}, "rejected_response is not a string"),
            ({"rejected_messages": "b"}, "`rejected_messages` is not a list"),
            ({"rejected_messages": [{"role": "user", "content": "q"}]}, "no assistant turn"),
            ({"rejected_messages": [{"role": "assistant", "content": [{"type": "image", "image": "1"}]}]}, IMAGES),
            ({"rejected_response": "b", "rejected_images": ["1"]}, IMAGES),
            ({"rejected_response": "b", "rejected_messages": CHAT["messages"]}, "an answer that is not wanted"),
        ],
    )
    def test_worse_answers_that_are_none(self, worse: dict[str, Any], reason: str) -> None:
        assert [problem.reason for problem in bad({**self.CHAT, **worse})] == [reason]
        assert not good({**self.CHAT, **dict.fromkeys(worse)}).rejected

    def test_a_text_has_no_better_answer(self) -> None:
        (problem,) = bad({"segments": [{"label": True, "text": "a"}], "rejected_response": "b"})
        assert problem.reason == "an answer that is not wanted" and "chosen and rejected" in problem.hint


OUTPUT = {"preferred_output": [{"role": "assistant", "content": "Pong"}]}
OTHER = {"non_preferred_output": [{"role": "assistant", "content": "No."}]}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
QUESTION = {"messages": [{"role": "user", "content": "Ping"}]}


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CUT_OFF = '<tool_call>\n{"name": "f", "arguments":\n</tool_call>'
TWICE = '<tool_call>\n{"name": "f", "arguments": {"a": 1, "a": 2}}\n</tool_call>'


@pytest.mark.parametrize(("call", "found"), [(CUT_OFF, "tool call as text"), (TWICE, "duplicate key")])
@pytest.mark.parametrize("key", ["rejected", "rejected_response", "rejected_messages", "non_preferred_output"])
def test_a_worse_answers_call_that_cannot_be_read_is_a_problem_of_the_row(key: str, call: str, found: str) -> None:
    worse = call if key == "rejected_response" else [bot(call)]
    beside: dict[str, Any] = {"messages": [user("q"), bot("a")]}
    if key == "rejected":
        beside = {"prompt": [user("q")], "chosen": [bot("a")]}
    if key == "non_preferred_output":
        beside = {"input": {"messages": [user("q")]}, "preferred_output": [bot("a")]}
    assert reasons({**beside, key: worse, "tools": [TOOL]}) == [found]


def test_answers_of_tools_in_one_turn_are_turns_of_the_better_answer() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    found = user("<tool_response>1</tool_response><tool_response>2</tool_response>")
    better, worse = [bot(f"{call}{call}"), found, bot("3")], [bot("b")]
    conversation = good({"prompt": [user("q")], "chosen": better, "rejected": worse, "tools": [TOOL]})
    assert [turn.role for turn in conversation.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert conversation.preferred == 4 and conversation.messages[1].train is None


def test_worse_turns_as_json_that_says_a_key_twice_are_a_problem_of_the_row() -> None:
    worse = '[{"role": "user", "content": "q"}, {"role": "assistant", "role": "assistant", "content": "b"}]'
    assert reasons({"messages": [user("q"), bot("a")], "rejected_messages": worse}) == ["duplicate key"]


def test_openais_preferences_are_pairs() -> None:
    tools = [ADD]
    row = {"input": {**QUESTION, "tools": tools}, **OUTPUT, **OTHER, "id": "a"}
    found = FORMATS["openai_preference"].to_conversation(row, 7)
    ours = {"prompt": QUESTION["messages"], "chosen": OUTPUT["preferred_output"], "tools": tools, "id": "a"}
    wanted = FORMATS["preference"].to_conversation({**ours, "rejected": OTHER["non_preferred_output"]}, 7)
    assert found == wanted and not isinstance(found, list)
    result = parse(Chunk(0, 1, json.dumps(row).encode()), "auto")
    assert result.formats == {"openai_preference": 1} and not result.problems


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"input": "Ping"}, "`input` is a string"),
        ({"input": {"messages": []}}, "`input` has no `messages`"),
        ({"input": {**QUESTION, "instructions": "Be kind."}}, "`input` has `instructions` beside its messages"),
        ({"preferred_output": OTHER["non_preferred_output"]}, "`preferred_output` and `non_preferred_output` are the"),
        ({"non_preferred_output": []}, "`non_preferred_output` is empty"),
        ({"preferred_output": QUESTION["messages"]}, "`preferred_output` begins with a user turn"),
        ({"preferred_output": [{"content": 1, "role": "assistant"}]}, "preferred_output"),
        ({"preferred_output": "Pong", "non_preferred_output": "No."}, "`preferred_output` is a string"),
        ({"input": {"messages": "Ping"}}, "`input.messages` is a string"),
        ({"input": {**QUESTION, "tools": [ADD]}, "tools": [ADD]}, "`input` has `tools`, and the row has `tools`"),
    ],
)
def test_what_is_wrong_with_openais_preferences_is_said_in_their_words(row: dict[str, Any], says: str) -> None:
    problems = FORMATS["openai_preference"].to_conversation({"input": QUESTION, **OUTPUT, **OTHER, **row}, 7)
    assert isinstance(problems, list) and says in problems[0].what
    assert all(problem.line == 7 and problem.hint for problem in problems)
    said = " ".join(f"{problem.reason} {problem.what}" for problem in problems)
    assert not re.search(r"\bchosen\b|\brejected\b|`prompt`", said)


@pytest.mark.parametrize("empty", [None, []])
def test_tools_beside_an_input_without_are_the_rows(empty: Any) -> None:
    row = {"input": {**QUESTION, "tools": empty}, "tools": [ADD], **OUTPUT, **OTHER}
    (read_row,) = parse(Chunk(0, 1, json.dumps(row).encode()), "auto").conversations
    assert len(read_row.tools) == 1


def test_openais_turns_as_json_in_strings_are_turns() -> None:
    row = {"input": json.dumps(QUESTION), **{key: json.dumps(value) for key, value in (OUTPUT | OTHER).items()}}
    plain = {"input": QUESTION, **OUTPUT, **OTHER}
    found, wanted = (parse(Chunk(0, 1, json.dumps(one).encode()), "auto").conversations for one in (row, plain))
    assert found == wanted and found[0].templated


def test_openais_outputs_may_name_their_speaker_in_other_words() -> None:
    row = {"input": QUESTION, **OTHER, "preferred_output": [{"role": "model", "content": "Pong"}]}
    plain = {"input": QUESTION, **OUTPUT, **OTHER}
    found, wanted = (parse(Chunk(0, 1, json.dumps(one).encode()), "auto").conversations for one in (row, plain))
    assert found == wanted


def test_what_nothing_reads_of_openais_turns_is_counted() -> None:
    asked = {"messages": [{"role": "user", "content": "Ping", "zz": 1}], "parallel_tool_calls": True}
    result = parse(Chunk(0, 1, json.dumps({"input": asked, **OUTPUT, **OTHER}).encode()), "auto")
    assert result.ignored_keys == {"input.messages[].zz": 1}
    assert [rule for rule in result.rules if "parallel_tool_calls" in rule]


@pytest.mark.parametrize("key", ["input", "preferred_output", "non_preferred_output"])
def test_an_answer_of_openais_alone_is_not_proposed_for_training(key: str) -> None:
    row = {"input": QUESTION, **OUTPUT, **OTHER, key: None}
    (problem,) = parse(Chunk(0, 1, json.dumps(row).encode()), "auto").problems
    assert f"without {key}" in problem.reason and "columns" not in problem.hint
