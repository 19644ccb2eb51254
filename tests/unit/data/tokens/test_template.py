"""Templates: the same text as transformers renders, blocks found, strangers' code kept in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError
from rankzero.errors import ConfigError, ExitCode
from tests.support.families import FAMILIES, family_tokenizer, template_text

CONTENTS = st.text(st.characters(codec="utf-8", exclude_characters="\ufdd0\ufdd1"), max_size=12)


def render(source: str, *turns: tuple[str, str], opening: bool = False) -> str:
    return ChatTemplate(source, {"eos_token": "</s>"}).render(
        [{"role": role, "content": content} for role, content in turns], opening=opening
    )


@pytest.mark.parametrize("name", [*FAMILIES])
@given(contents=st.lists(CONTENTS, min_size=1, max_size=5), opening=st.booleans())
@settings(max_examples=20, deadline=None)
def test_text_equals_that_of_transformers(name: str, contents: list[str], opening: bool) -> None:
    tokenizer = family_tokenizer(name)
    turns = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    ours = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens_map)
    theirs = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=opening)
    assert ours.render(turns, opening=opening) == theirs


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0] | tojson }} {{ messages | tojson(indent=2) }}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
        "{%- set ns = namespace(n=1, s='<') %}{%- set ns.n = ns.n + 1 %}{{ ns.n ~ ns.s ~ dict(a=1) }}",
        "  {% if tools is none %}\n  no tools\n  {% endif %}\n{{ documents }}",
        "{{ undefined_name }}{{ messages[-1].content | upper }}\n",
    ],
)
def test_what_templates_use_works_as_in_transformers(source: str) -> None:
    turns = [{"role": "user", "content": "a<b>é"}, {"role": "assistant", "content": "c"}]
    theirs = family_tokenizer("smollm2").apply_chat_template(turns, chat_template=source, tokenize=False)
    assert ChatTemplate(source, {}).render(turns) == theirs


def test_the_date_stands_still() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}", ("user", "q")) == "26 Jul 2024"


def test_generation_blocks() -> None:
    source = "{% for m in messages %}<{% generation %}{{ m.content | trim }}{% endgeneration %}>{% endfor %}"
    text, spans = ChatTemplate(source, {}).render_marked([{"content": c, "role": "x"} for c in ("ab ", "", "c")])
    assert text == "<ab><><c>" and [text[start:end] for start, end in spans] == ["ab", "c"]


def test_generation_blocks_that_the_template_moves() -> None:
    source = "{% set x %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endset %}[{{ x | trim }}]"
    assert ChatTemplate(source, {}).render_marked([{"role": "x", "content": "abc"}]) == ("[abc]", [(1, 4)])


def test_generation_blocks_that_cannot_be_told_apart() -> None:
    source = "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}"
    with pytest.raises(TemplateRefusedError, match="nested"):
        render(source, ("user", "q"))


def test_bad_syntax_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"line 2 of the template") as caught:
        ChatTemplate("fine\n{% for %}", {})
    assert caught.value.exit_code == ExitCode.CONFIG


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[9].content }}",
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__subclasses__() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
    ],
)
def test_failures_and_escapes_are_refusals(source: str) -> None:
    with pytest.raises(TemplateRefusedError):
        render(source, ("user", "q"))


def test_trap_template_renders_as_documented() -> None:
    trap: Any = template_text("mistral_last_system")
    asked = render(trap, ("system", "S"), ("user", "q"))
    answered = render(trap, ("system", "S"), ("user", "q"), ("assistant", "a"))
    assert (asked, answered) == ("[INST] S\n\nq[/INST]", "[INST] q[/INST] a</s>")
