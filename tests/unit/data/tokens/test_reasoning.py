"""Reasoning through templates: what is to be trained is trained, or it is said; what is left out is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat import AS_TEXT, Rendered, Renderer, TokenRules
from rankzero.data.tokens.token_rules import EARLIER_LEFT_OUT, LEFT_OUT
from rankzero.data.tokens.tokenizer import take_apart
from tests.support.families import FAMILIES, family_tokenizer, template_text
from tests.support.tiny import CHATML, tiny_tokenizer
from tests.unit.data.support import chat, user_assistant

FIRST, SECOND = "<think>\nIt is small.\n</think>\n\nSeven.", "<think>\nThe next one.\n</think>\n\nEleven."
TWICE = user_assistant("Name a prime.", FIRST, "And another?", SECOND)
ONCE = user_assistant("Name a prime.", FIRST)
QWEN3_NOTE = "chat template: rankzero's qwen3 for training, since the model's own leaves out reasoning"
R1_NOTE = QWEN3_NOTE.replace("qwen3", "deepseek_r1")


def apart(row: dict[str, Any], key: str = "reasoning_content") -> dict[str, Any]:
    """The same row with its reasoning under a key."""
    turns = []
    for turn in row["messages"]:
        thought, _, answer = turn["content"].removeprefix("<think>\n").partition("\n</think>\n\n")
        turns.append({**turn, "content": answer, key: thought} if answer else turn)
    return {**row, "messages": turns}


def render(row: dict[str, Any], tokenizer: Any, **rules: Any) -> Rendered | RowProblem:
    _, conversation = convert(row, 5)
    assert isinstance(conversation, Conversation), conversation
    return Renderer(take_apart(tokenizer), TokenRules(**rules)).render(conversation)


def rendered(row: dict[str, Any], tokenizer: Any, **rules: Any) -> Rendered:
    result = render(row, tokenizer, **rules)
    assert isinstance(result, Rendered), result
    return result


def trained(row: dict[str, Any], tokenizer: Any, **rules: Any) -> list[str]:
    result = rendered(row, tokenizer, **rules)
    return [result.text[start:end] for start, end in result.spans]


def problem(row: dict[str, Any], tokenizer: Any, **rules: Any) -> RowProblem:
    result = render(row, tokenizer, **rules)
    assert isinstance(result, RowProblem) and result.line == 5, result
    return result


FORMS = pytest.mark.parametrize(
    "form", [lambda row: row, apart, lambda row: apart(row, "thinking")], ids=["text", "reasoning_content", "thinking"]
)


class TestKept:
    @FORMS
    def test_qwen_3(self, form: Any) -> None:
        tokenizer = family_tokenizer("qwen3")
        assert trained(form(TWICE), tokenizer) == [FIRST + "<|im_end|>", SECOND + "<|im_end|>"]
        assert rendered(form(TWICE), tokenizer).notes == (QWEN3_NOTE,)

    @FORMS
    def test_deepseek_r1(self, form: Any) -> None:
        tokenizer, end = family_tokenizer("deepseek_r1"), FAMILIES["deepseek_r1"].end
        for row in (TWICE, ONCE):
            answers = [turn["content"].removeprefix("<think>\n") + end for turn in row["messages"][1::2]]
            assert trained(form(row), tokenizer) == answers, "what opens the thought stands in the prompt in use"
            assert rendered(form(row), tokenizer).notes == (R1_NOTE,)
        assert rendered(TWICE, tokenizer).text.count("<｜Assistant｜><think>\n") == 2

    def test_the_model_s_own_template_where_it_keeps_what_is_trained(self) -> None:
        tokenizer = family_tokenizer("qwen3")
        assert trained(ONCE, tokenizer) == [FIRST + "<|im_end|>"]
        earlier = chat(("user", "q"), ("assistant", FIRST, False), ("user", "r"), ("assistant", SECOND))
        for row in (ONCE, earlier, apart(earlier)):
            assert rendered(row, tokenizer).notes == ()
        assert "small" not in rendered(earlier, tokenizer).text, "earlier reasoning is no context in use either"
        assert trained(TWICE, tokenizer, train_on="last_turn") == [SECOND + "<|im_end|>"]
        assert rendered(TWICE, tokenizer, train_on="last_turn").notes == ()

    def test_every_token(self) -> None:
        result = rendered(TWICE, family_tokenizer("qwen3"), assistant_only_loss=False)
        assert result.spans == [(0, len(result.text))] and "small" in result.text and result.notes == (QWEN3_NOTE,)

    @pytest.mark.parametrize("name", ["smollm2", "llama3", "phi"])
    def test_a_template_that_knows_no_reasoning_writes_it_as_text(self, name: str) -> None:
        tokenizer, end = family_tokenizer(name), FAMILIES[name].end
        assert trained(TWICE, tokenizer) == [FIRST + end, SECOND + end] == trained(apart(TWICE), tokenizer)
        assert (rendered(TWICE, tokenizer).notes, rendered(apart(TWICE), tokenizer).notes) == ((), (AS_TEXT,))

    @FORMS
    def test_a_template_with_a_channel_for_it(self, form: Any) -> None:
        (only,) = trained(form(ONCE), family_tokenizer("gpt_oss"))
        assert only == (
            "<|channel|>analysis<|message|>It is small.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Seven.<|return|>"
        )

    @FORMS
    def test_no_template_keeps_it(self, form: Any) -> None:
        found = problem(form(TWICE), family_tokenizer("gpt_oss"))
        assert found.reason == "reasoning left out by the chat template"
        assert "reasoning of turn 2" in found.what and "'It is small.'" in found.what
        assert "data.reasoning: last or drop" in found.hint and "data.chat_template" in found.hint

    def test_the_assistant_begins(self) -> None:
        row = chat(("assistant", FIRST), ("user", "q"), ("assistant", "a"))
        assert trained(apart(row), family_tokenizer("qwen3"))[0] == FIRST + "<|im_end|>"


class TestLessOfIt:
    @FORMS
    @pytest.mark.parametrize("name", ["qwen3", "deepseek_r1", "gpt_oss", "smollm2"])
    def test_drop(self, name: str, form: Any) -> None:
        tokenizer = family_tokenizer(name)
        bare = rendered(user_assistant("Name a prime.", "Seven.", "And another?", "Eleven."), tokenizer)
        result = rendered(form(TWICE), tokenizer, reasoning="drop")
        assert (result.text, result.spans) == (bare.text, bare.spans)
        assert result.notes == (LEFT_OUT,) and bare.notes == ()

    @FORMS
    def test_last(self, form: Any) -> None:
        for name, note in (("qwen3", ()), ("gpt_oss", ()), ("deepseek_r1", (R1_NOTE,))):
            result = rendered(form(TWICE), family_tokenizer(name), reasoning="last")
            assert "small" not in result.text and "The next one." in result.text
            assert result.notes == (EARLIER_LEFT_OUT, *note)
            assert rendered(form(ONCE), family_tokenizer(name), reasoning="last").notes == note

    def test_last_keeps_that_of_every_turn_behind_the_last_question(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        turns = [
            *user_assistant("q", FIRST, "1+2?")["messages"],
            {"role": "assistant", "content": "<think>\ncall\n</think>\n\nI add.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "assistant", "content": "<think>\nread\n</think>\n\nThree."},
        ]
        result = rendered({"messages": turns}, family_tokenizer("qwen3"), reasoning="last")
        assert "small" not in result.text and "call" in result.text and "read" in result.text

    def test_raw_text(self) -> None:
        tokenizer = tiny_tokenizer()
        raw = {"prompt": "p", "completion": FIRST}
        assert trained(raw, tokenizer) == trained(raw, tokenizer, reasoning="last") == [FIRST]
        assert trained(raw, tokenizer, reasoning="drop") == ["Seven."]
        assert trained({"text": FIRST}, tokenizer, reasoning="drop") == [FIRST], "plain text has no answer"

    def test_nothing_but_reasoning(self) -> None:
        row = user_assistant("q", "<think>\nHm.\n</think>\n")
        assert problem(row, family_tokenizer("qwen3"), reasoning="drop").reason == "nothing but reasoning"
        assert trained(row, family_tokenizer("qwen3"))


class TestTrainingTemplates:
    """They render what the model's own template renders, wherever there is no reasoning."""

    DIALOGUES = [
        user_assistant("q", "a"),
        user_assistant("q", "a", "r", "b", "s", "c"),
        chat(("system", "Be kind."), ("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")),
        chat(("user", "q"), ("assistant", "\n a "), ("assistant", "b")),
    ]

    @pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}], ids=str)
    @pytest.mark.parametrize("row", DIALOGUES, ids=range(len(DIALOGUES)))
    @pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
    def test_token_for_token(self, name: str, row: dict[str, Any], kwargs: dict[str, Any]) -> None:
        tokenizer = family_tokenizer(name)
        renderer = Renderer(take_apart(tokenizer), TokenRules(template_kwargs=kwargs))
        keeping = renderer._keeps_reasoning
        assert keeping is not None and keeping.name == name
        turns = row["messages"]
        for until in range(1, len(turns) + 1):
            for opening in (True, False):
                expected = tokenizer.apply_chat_template(
                    turns[:until], add_generation_prompt=opening, tokenize=False, **kwargs
                )
                assert keeping.template.render(turns[:until], opening=opening) == expected

    @pytest.mark.parametrize(("opened", "empty"), [(True, True), (True, False), (False, False)])
    def test_relatives_of_qwen_3(self, opened: bool, empty: bool) -> None:
        """Its thinking models open the thought in the prompt; QwQ besides knows no empty one."""
        template = template_text("qwen3")
        if opened:
            ending = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
            template = template[: template.index("{%- if add_generation_prompt %}")] + ending
        if not empty:
            template = template.replace("(loop.last or thought)", "false")
        tokenizer = tiny_tokenizer(chat_template=template)
        keeping = Renderer(take_apart(tokenizer), TokenRules())._keeps_reasoning
        assert keeping is not None and keeping.name == "qwen3"
        for row in self.DIALOGUES:
            for opening in (True, False):
                turns = row["messages"]
                expected = tokenizer.apply_chat_template(turns, add_generation_prompt=opening, tokenize=False)
                assert keeping.template.render(turns, opening=opening) == expected
        answers = [FIRST, SECOND] if not opened else [text.removeprefix("<think>\n") for text in (FIRST, SECOND)]
        assert trained(TWICE, tokenizer) == [answer + "<|im_end|>" for answer in answers]

    def test_with_tools(self) -> None:
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
        calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": n}}} for n in (1, 2)]
        turns = [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "I see.", "tool_calls": calls[:1]},
            {"role": "tool", "content": "1"},
            {"role": "assistant", "content": "done"},
            {"role": "user", "content": "thanks"},
        ]
        tokenizer = family_tokenizer("qwen3")
        keeping = Renderer(take_apart(tokenizer), TokenRules())._keeps_reasoning
        assert keeping is not None
        for until in range(2, len(turns) + 1):
            expected = tokenizer.apply_chat_template(
                turns[:until], tools=tools, add_generation_prompt=True, tokenize=False
            )
            assert keeping.template.render(turns[:until], tools=tools, opening=True) == expected

    def test_calls_and_reasoning(self) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        turns = [
            {"role": "user", "content": "1+2?"},
            {"role": "assistant", "content": None, "reasoning_content": "I call.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "3"},
            {"role": "assistant", "content": "Three.", "reasoning_content": "I read."},
            {"role": "user", "content": "Sure?"},
            {"role": "assistant", "content": "Yes."},
        ]
        assert trained({"messages": turns}, family_tokenizer("qwen3")) == [
            '<think>\nI call.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call><|im_end|>',
            "<think>\nI read.\n</think>\n\nThree.<|im_end|>",
            "<think>\n\n</think>\n\nYes.<|im_end|>",
        ]

    def test_an_empty_thought_that_the_prompt_has_is_not_trained(self) -> None:
        row = user_assistant("q", FIRST, "r", "b")
        tokenizer = family_tokenizer("qwen3")
        rules = {"template_kwargs": {"enable_thinking": False}}
        assert trained(row, tokenizer, **rules) == [FIRST + "<|im_end|>", "b<|im_end|>"]
        assert trained(row, tokenizer)[1] == "<think>\n\n</think>\n\nb<|im_end|>"

    def test_a_template_that_renders_otherwise_is_left_alone(self) -> None:
        template = template_text("qwen3").replace("'<|im_end|>\\n'", "'<|im_end|>\\n\\n'")
        found = problem(TWICE, tiny_tokenizer(chat_template=template))
        assert found.reason == "reasoning left out by the chat template"


class TestOwnWords:
    def test_words_that_the_template_changes(self) -> None:
        template = CHATML.replace("message['content']", "(message['content'] | replace('colour', 'color'))")
        found = problem(user_assistant("Which?", "My colour is red."), tiny_tokenizer(chat_template=template))
        assert found.reason == "words left out by the chat template"
        assert "turn 2" in found.what and "'My colour is red.'" in found.what and "loss" in found.hint

    def test_words_that_a_block_leaves_out(self) -> None:
        template = (
            "{% for m in messages %}{{ m.role + ':' }}{% if m.role == 'assistant' %}{{ m.content[:3] }}"
            "{% generation %}{{ m.content[3:] }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
            "{% endfor %}"
        )
        assert problem(user_assistant("q", "answer"), tiny_tokenizer(chat_template=template)).reason == (
            "words left out by the chat template"
        )

    def test_words_of_turns_that_are_not_trained_may_change(self) -> None:
        template = CHATML.replace("message['content']", "(message['content'] | replace('colour', 'color'))")
        row = chat(("user", "Which?"), ("assistant", "My colour.", False), ("user", "And?"), ("assistant", "Red."))
        assert trained(row, tiny_tokenizer(chat_template=template)) == ["Red.<|im_end|>"]

    def test_space_may_change(self) -> None:
        template = CHATML.replace("message['content']", "(message['content'] | trim | replace('\\n', '\\n  '))")
        row = user_assistant("q", "  one\ntwo ")
        assert trained(row, tiny_tokenizer(chat_template=template)) == ["one\n  two<|im_end|>"]

    def test_every_token_of_an_answer_that_is_cut(self) -> None:
        template = CHATML.replace("message['content']", "message['content'][:4]")
        row = user_assistant("long question", "long answer")
        found = problem(row, tiny_tokenizer(chat_template=template), assistant_only_loss=False)
        assert found.reason == "words left out by the chat template"

    def test_a_system_turn_that_vanishes(self) -> None:
        template = "{% for message in messages if message['role'] != 'system' %}" + CHATML.split("%}", 1)[1]
        row = chat(("system", "Be kind."), ("user", "q"), ("assistant", "a"))
        found = problem(row, tiny_tokenizer(chat_template=template))
        assert found.reason == "turn left out by the chat template" and "'Be kind.'" in found.what

    def test_a_role_that_the_template_does_not_know(self) -> None:
        template = CHATML.replace(
            "{% for message in messages %}", "{% for message in messages if message.role in 'user assistant system' %}"
        )
        row = chat(("developer", "Be kind."), ("user", "q"), ("assistant", "a"))
        found = problem(row, tiny_tokenizer(chat_template=template))
        assert "turn 1 out (developer)" in found.what and found.hint.startswith(
            "name its role system, or set data.chat"
        )


class TestKwargs:
    def test_they_reach_the_template(self) -> None:
        template = "{% for d in documents or [] %}{{ d.title }}{% endfor %}" + CHATML
        rules = {"template_kwargs": {"documents": [{"title": "Primes"}]}}
        tokenizer = tiny_tokenizer(chat_template=template)
        row = user_assistant("q", "a")
        assert rendered(row, tokenizer, **rules).text == "Primes" + rendered(row, tokenizer).text
        assert json.dumps(TokenRules(**rules).as_json())
