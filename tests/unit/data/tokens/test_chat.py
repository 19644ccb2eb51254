"""Trained characters: which, for every family, and what is said where it cannot be known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat import Renderer, TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import ConfigError, ExitCode
from tests.support.families import FAMILIES, family_tokenizer, template_text
from tests.support.tiny import CHATML, tiny_tokenizer
from tests.unit.data.support import chat, user_assistant


def render(row: dict[str, Any], tokenizer: Any, **rules: Any) -> Any:
    _, conversation = convert(row, 5)
    assert isinstance(conversation, Conversation), conversation
    return Renderer(take_apart(tokenizer), TokenRules(**rules)).render(conversation)


def trained(row: dict[str, Any], tokenizer: Any, **rules: Any) -> list[str]:
    result = render(row, tokenizer, **rules)
    assert not isinstance(result, RowProblem), result
    return [result.text[start:end] for start, end in result.spans]


def problem(row: dict[str, Any], tokenizer: Any) -> RowProblem:
    result = render(row, tokenizer)
    assert isinstance(result, RowProblem), result
    assert result.line == 5
    return result


@pytest.mark.parametrize("name", [*FAMILIES])
@pytest.mark.parametrize("system", [False, True])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_assistant_turns_with_their_end_token(name: str, system: bool, turns: int) -> None:
    family = FAMILIES[name]
    if system and not family.system:
        pytest.skip("no system role")
    contents = [text for i in range(turns) for text in (f"question {i}?", f"Answer {i}: 🙂 é.")]
    row = user_assistant(*contents)
    if system:
        row["messages"].insert(0, {"role": "system", "content": "Be kind."})
    expected = [family.opening + content + family.end for content in contents[1::2]]
    if name == "qwen3":
        expected[-1] = "<think>\n\n</think>\n\n" + expected[-1]
    if name == "gpt_oss":
        expected[-1] = expected[-1].replace("<|end|>", "<|return|>")
    assert trained(row, family_tokenizer(name)) == expected


def test_smollm2_has_its_own_system_turn() -> None:
    rendered = render(user_assistant("q", "a"), family_tokenizer("smollm2"))
    assert rendered.text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert not rendered.add_eos and not rendered.raw


MODE = "{{ 'Mode: ' ~ mode ~ ', ' ~ custom_instructions ~ '\n' }}"


def test_what_a_row_gives_the_template_stands_before_what_the_spec_does() -> None:
    tokenizer = tiny_tokenizer(chat_template=MODE + CHATML)
    row = user_assistant("q", "a")
    given = {"mode": "brief", "custom_instructions": "Be kind.", "python_tools": None}
    own = render(row | {"chat_template_kwargs": given}, tokenizer, template_kwargs={"mode": "long"})
    assert own.text.startswith("Mode: brief, Be kind.\n")
    as_text = render(row | {"chat_template_kwargs": json.dumps(given)}, tokenizer)  # as columns of text have it
    assert as_text.text == own.text
    assert render(row, tokenizer, template_kwargs={"mode": "long"}).text.startswith("Mode: long, \n")
    for nothing in ({}, None, "", {"mode": None}):
        kept = render(row | {"chat_template_kwargs": nothing}, tokenizer, template_kwargs={"mode": "long"})
        assert kept.text.startswith("Mode: long, \n")


def test_rows_that_give_the_template_other_values_one_after_the_other() -> None:
    renderer = Renderer(take_apart(tiny_tokenizer(chat_template=MODE + CHATML)), TokenRules())
    texts = []
    for number in [*range(200), 0]:
        _, row = convert(user_assistant("q", "a") | {"chat_template_kwargs": {"mode": number}}, 1)
        assert isinstance(row, Conversation)
        rendered = renderer.render(row)
        assert not isinstance(rendered, RowProblem)
        texts.append(rendered.text.split(",")[0])
    assert texts == [f"Mode: {number}" for number in [*range(200), 0]]


def test_both_answers_follow_what_the_row_gives_the_template() -> None:
    row = {"prompt": [{"role": "user", "content": "q"}], "chat_template_kwargs": {"mode": "brief"}}
    row |= {"chosen": [{"role": "assistant", "content": "a"}], "rejected": [{"role": "assistant", "content": "b"}]}
    rendered = render(row, tiny_tokenizer(chat_template=MODE + CHATML), trains="preferences")
    assert rendered.text.startswith("Mode: brief, ") and rendered.rejected.text.startswith("Mode: brief, ")


@pytest.mark.parametrize("value", ["brief", ["mode"], {"tools": []}, {"messages": [1]}, 3])
def test_what_no_template_can_be_given(value: object) -> None:
    _, found = convert(user_assistant("q", "a") | {"chat_template_kwargs": value}, 5)
    assert isinstance(found, list) and found[0].reason == "bad chat_template_kwargs" and found[0].hint


def test_qwen_3_forgets_earlier_thoughts_and_keeps_the_last() -> None:
    row = user_assistant("q", "<think>\nsecret\n</think>\n\nfirst", "r", "<think>\nplan\n</think>\n\nsecond")
    assert trained(row, family_tokenizer("qwen3"), reasoning="last") == [
        "first<|im_end|>",
        "<think>\nplan\n</think>\n\nsecond<|im_end|>",
    ]


def test_qwen_3_with_tools_between() -> None:
    row = chat(("user", "q"), ("assistant", "call"), ("tool", "42"), ("assistant", "done"))
    assert trained(row, family_tokenizer("qwen3")) == ["call<|im_end|>", "<think>\n\n</think>\n\ndone<|im_end|>"]


def test_content_that_looks_like_the_template() -> None:
    row = user_assistant("<|im_start|>assistant\nx<|im_end|>", "m", "m", "end<|im_end|>\n", "q", "<|im_end|>")
    contents = ["m", "end<|im_end|>\n", "<|im_end|>"]
    assert trained(row, family_tokenizer("smollm2")) == [content + "<|im_end|>" for content in contents]


@pytest.mark.parametrize("content", ["  padded \n", "\n\nlines\n\n", "\u00a0nbsp\u00a0", "trailing\u3000"])
@pytest.mark.parametrize("name", ["smollm2", "llama3", "gemma", "generation"])
def test_space_around_content(name: str, content: str) -> None:
    family = FAMILIES[name]
    kept = content.strip() if family.strips else content
    expected = [kept + family.end] * 2
    assert trained(user_assistant("q", content, "r", content), family_tokenizer(name)) == expected


@pytest.mark.parametrize("name", [*FAMILIES])
def test_turns_marked_false_are_not_trained(name: str) -> None:
    family = FAMILIES[name]
    row = chat(("user", "q"), ("assistant", "one", False), ("user", "r"), ("assistant", "two"))
    (only,) = trained(row, family_tokenizer(name))
    end = "<|return|>" if name == "gpt_oss" else family.end
    assert only.endswith(family.opening + "two" + end) and "one" not in only


def test_last_turn_marked_false_learns_no_end() -> None:
    row = chat(("user", "q"), ("assistant", "one"), ("user", "r"), ("assistant", "two", False))
    rendered = render(row, family_tokenizer("headings"))
    assert not rendered.add_eos and rendered.text.endswith("two\n\n")


def test_conversation_that_ends_with_the_user() -> None:
    row = user_assistant("q", "a", "r")
    for name in ("smollm2", "llama3", "gemma", "mistral", "generation", "generation_bare", "qwen3"):
        family = FAMILIES[name]
        assert trained(row, family_tokenizer(name)) == [family.opening + "a" + family.end], name


def test_conversation_that_begins_with_the_assistant() -> None:
    row = chat(("assistant", "Hello!"), ("user", "q"), ("assistant", "a"))
    assert trained(row, family_tokenizer("smollm2")) == ["Hello!<|im_end|>", "a<|im_end|>"]


def test_assistant_twice_in_a_row() -> None:
    row = chat(("user", "q"), ("assistant", "a"), ("assistant", "b"))
    assert trained(row, family_tokenizer("smollm2")) == ["a<|im_end|>", "b<|im_end|>"]


def test_without_an_end_token_eos_is_added_right_behind_the_last_turn() -> None:
    rendered = render(user_assistant("q", "a", "r", "b"), family_tokenizer("headings"))
    assert rendered.add_eos and rendered.text.endswith("### assistant:\nb")
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["a", "b"]


def test_phi_s_second_end_token_is_not_the_turn_s() -> None:
    rendered = render(user_assistant("q", "end", "r", "b"), family_tokenizer("phi"))
    assert rendered.text.endswith("b<|end|>\n<|endoftext|>") and not rendered.add_eos
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["end<|end|>", "b<|end|>"]


def test_an_answer_that_is_opened_otherwise_in_use() -> None:
    row = chat(("user", "q"), ("assistant", "<think>x"), ("user", "r"), ("assistant", "<think>\n\ny", False))
    rendered = render(row, family_tokenizer("empty_thought"))
    assert [rendered.text[start:end] for start, end in rendered.spans] == ["<think>x<|im_end|>"]
    assert rendered.unopened == "<think>\n\n</think>\n\n"
    rendered = render(user_assistant("q", "a"), family_tokenizer("smollm2"))
    assert rendered.unopened == ""


class TestEveryToken:
    def test_everything_is_trained(self) -> None:
        rendered = render(user_assistant("q", "a"), family_tokenizer("smollm2"), assistant_only_loss=False)
        assert rendered.spans == [(0, len(rendered.text))]

    def test_but_turns_marked_false(self) -> None:
        row = chat(("user", "q", False), ("assistant", "one", False), ("user", "r"), ("assistant", "two"))
        rendered = render(row, family_tokenizer("llama3"), assistant_only_loss=False)
        assert [rendered.text[start:end] for start, end in rendered.spans] == [
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            rendered.text[rendered.text.index("<|start_header_id|>user<|end_header_id|>\n\nr") :],
        ]

    def test_prompt_and_completion_say_themselves_what_is_trained(self) -> None:
        row = {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]}
        for assistant_only_loss in (True, False):
            rules = {"assistant_only_loss": assistant_only_loss}
            assert trained(row, family_tokenizer("smollm2"), **rules) == ["a<|im_end|>"]
            assert trained({"prompt": "p", "completion": "c"}, family_tokenizer("smollm2"), **rules) == ["c"]
            assert trained({"text": "t"}, family_tokenizer("smollm2"), **rules) == ["t"]

    def test_a_template_that_rewrites_is_no_obstacle_unless_it_leaves_out(self) -> None:
        tokenizer = tiny_tokenizer(chat_template=template_text("mistral_last_system"), specials=("[INST]",), eos="</s>")
        rendered = render(user_assistant("q", "a"), tokenizer, assistant_only_loss=False)
        assert rendered.text == "[INST] q[/INST] a</s>" and rendered.spans == [(0, len(rendered.text))]
        found = render(chat(("system", "S"), ("user", "q"), ("assistant", "a")), tokenizer, assistant_only_loss=False)
        assert found.reason == "turn left out by the chat template" and "turn 1 out (system): 'S'" in found.what


class TestProblems:
    def test_template_that_rewrites_what_came_before(self) -> None:
        tokenizer = tiny_tokenizer(chat_template=template_text("mistral_last_system"), specials=("[INST]",), eos="</s>")
        found = problem(chat(("system", "S"), ("user", "q"), ("assistant", "a")), tokenizer)
        assert found.reason == "chat template rewrites earlier turns"
        assert "before turn 3" in found.what
        assert "'[INST] S\\n\\nq[/INST]' becomes '[INST] q[/INST] a</s>'" in found.what
        assert "data.chat_template" in found.hint

    def test_system_role(self) -> None:
        found = problem(chat(("system", "S"), ("user", "q"), ("assistant", "a")), family_tokenizer("gemma"))
        assert found.what == "the chat template says: System role not supported" and "first user turn" in found.hint

    def test_alternation(self) -> None:
        found = problem(chat(("user", "q"), ("user", "r"), ("assistant", "a")), family_tokenizer("mistral"))
        assert "must alternate" in found.what and "join turns" in found.hint

    def test_template_that_fails(self) -> None:
        found = problem(user_assistant("q", "a"), tiny_tokenizer(chat_template="{{ messages[0].name.first }}"))
        assert found.reason == "refused by the chat template" and "data.chat_template" in found.hint

    def test_blocks_that_do_not_match_the_turns(self) -> None:
        tokenizer = tiny_tokenizer(chat_template="{% generation %}{{ messages[1].content }}{% endgeneration %}")
        found = problem(user_assistant("q", "a", "r", "b"), tokenizer)
        assert "1 {% generation %} blocks for 2 assistant turns" in found.what

    @pytest.mark.parametrize(("template", "what"), [("{% trans %}", "not valid Jinja"), (" \n", "is empty")])
    def test_an_invalid_template_is_a_configuration_error(self, template: str, what: str) -> None:
        with pytest.raises(ConfigError, match=what) as caught:
            render(user_assistant("q", "a"), tiny_tokenizer(chat_template=template))
        assert caught.value.exit_code == ExitCode.CONFIG and "chat_template.jinja" in caught.value.problems[0].hint

    @pytest.mark.parametrize("template", [None, "{% trans %}"])
    def test_raw_text_needs_no_template(self, template: str | None) -> None:
        assert trained({"text": "t"}, tiny_tokenizer(chat_template=template)) == ["t"]


def test_no_more_renderings_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering is what chat rows cost: once, as soon as it is known how the template writes turns in that order."""
    from rankzero.data.tokens.template import ChatTemplate

    calls = []
    original = ChatTemplate.render_marked
    monkeypatch.setattr(
        ChatTemplate, "render_marked", lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
    )
    for name in ("smollm2", "llama3", "gemma", "mistral", "qwen3", "phi"):
        renderer = Renderer(take_apart(family_tokenizer(name)), TokenRules())
        for contents in (("q", "one ", "r", "two", "s", "three"), ("a?", "b", "c?", "d", "e?", "sixth")):
            calls.clear()
            _, conversation = convert(user_assistant(*contents), 5)
            assert isinstance(conversation, Conversation)
            renderer.render(conversation)
        assert len(calls) == 1, name
