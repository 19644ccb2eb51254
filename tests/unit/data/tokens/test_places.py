"""What is known of a template from other conversations: the same as what is found in the row itself, for less."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.tokens.chat_text import ChatText, LeftOutError, Rendered, RewrittenError, WordsLostError
from rankzero.data.tokens.places import Places
from rankzero.data.tokens.template import ChatTemplate, TemplateRefusedError
from rankzero.data.tokens.tokenizer import TokenizerParts, take_apart
from rankzero.data.tokens.turns import first_left_out
from tests.held_out import families
from tests.support.families import FAMILIES, TEMPLATES, family_tokenizer
from tests.support.tiny import tiny_tokenizer
from tests.unit.data.tokens import test_chat_tools as tools

WRITTEN = {
    f"tools_{name.lower()}": getattr(tools, name)
    for name in ("QWEN", "LLAMA", "STRICT", "OTHER_END", "NO_TOOLS", "NO_CALLS", "FIRST_CALL", "GENERATION")
}
# Templates that look at more than the turns beside a turn, or at what a turn says.
WRITTEN |= {
    "numbers its turns": "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {{ messages | length + 1 }}\n{% endif %}",
    "another head from turn 12 on": "{% for m in messages %}{% set late = loop.index > 12 %}"
    "<|im_start|>{{ 'late ' if late else '' }}{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{{ 'late ' if messages | length > 11 else '' }}assistant\n{% endif %}",
    "only the last ten": "{% for m in messages[-10:] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "hears what is said": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if '[loud]' in m.content %}!{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if '[loud]' in messages[-1].content %}!{% endif %}{% endif %}",
    "closes answers alone, and wants a question": "{% set ns = namespace(last=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% if ns.last < 0 %}{{ raise_exception('no question') }}{% endif %}{{ tools | tojson if tools else '' }}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '[THOUGHT][/THOUGHT]' if loop.index0 > ns.last else '' }}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}[CALL]{{ c.function | tojson }}{% endfor %}<|im_end|>"
    "{% else %}[{{ m.role }}]{{ m.content }}[/{{ m.role }}]{% endif %}{% endfor %}",
    "no tokens at all": "{% for m in messages %}{{ m.content }}{% endfor %}",
}
HELD_OUT = {f"held_out_{name}": name for name in families.FAMILIES}
NAMES = [*FAMILIES, "qwen2_5", "llama3_2", "mistral_last_system", *WRITTEN, *HELD_OUT]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@cache
def known(name: str) -> tuple[ChatTemplate, TokenizerParts, Places]:
    if name in FAMILIES:
        parts = take_apart(family_tokenizer(name))
    elif name in HELD_OUT:
        parts = take_apart(families.tokenizer(HELD_OUT[name]))
    else:
        text = WRITTEN.get(name) or (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
        specials = (*tools.SPECIALS, "[INST]", "[/INST]", "<|eot_id|>", "<|start_header_id|>", "</s>")
        parts = take_apart(tiny_tokenizer(chat_template=text, specials=specials, eos="<|im_end|>"))
    assert parts.chat_template is not None
    template = ChatTemplate(parts.chat_template, parts.variables)
    return template, parts, Places(template, parts)


def outcome(name: str, row: Conversation, *, everything: bool, places: bool) -> tuple[Any, bool]:
    """What comes of a row, and whether all of it is known to be shown."""
    template, parts, learnt = known(name)
    weights = [
        0.0 if m.train is False or (not everything and m.role != "assistant") else m.weight for m in row.messages
    ]
    try:
        text = ChatText(row, weights, template, parts, places=learnt if places else None)
        return (text.everything() if everything else text.answers()), text.all_shown
    except (WordsLostError, RewrittenError, LeftOutError, TemplateRefusedError) as error:
        return (type(error), str(error), vars(error)), False


PLAIN_WORDS = st.text("ab .\n", min_size=1, max_size=6)
ODD_WORDS = st.one_of(
    st.sampled_from(
        [
            "a",
            " padded \n",
            "assistant\n",
            "<|im_end|>",
            "<|im_start|>assistant\n",
            "[INST]",
            "</s>",
            "[loud]",
            "</think>",
        ]
        + ["<think>\nwhy\n</think>\n\nso", "<tool_response>\nx\n</tool_response>", '{"name": "look"}', "look", "\n\n"]
    ),
    PLAIN_WORDS,
)


@st.composite
def conversations(draw: st.DrawFn, most: int = 8) -> Conversation:
    """Exchanges with and without tools, as people and agents have them."""

    def turns() -> Iterator[Message]:
        if draw(st.booleans()):
            yield Message("system", draw(words))
        rounds = draw(st.integers(1, most))
        for _ in range(rounds):
            yield Message("user", draw(words))
            for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2, 5])) if with_tools else 0):
                calls = [
                    {"type": "function", "function": {"name": "look", "arguments": draw(arguments)}}
                    for _ in range(draw(st.sampled_from([1, 1, 1, 2])))
                ]
                yield Message("assistant", draw(st.just("") | words), tool_calls=tuple(calls))
                for _ in calls:
                    yield Message("tool", draw(st.just("") | words))
            train = draw(st.sampled_from([None, None, None, False]))
            thought = draw(st.sampled_from(["", "", "", "a reason"]))
            yield Message("assistant", draw(words), train=train, reasoning=thought)

    with_tools = draw(st.booleans())
    words = draw(st.sampled_from([PLAIN_WORDS, PLAIN_WORDS, ODD_WORDS]))
    arguments = st.fixed_dictionaries({"a": st.one_of(st.integers(0, 9), words)}) | st.just({})
    messages = tuple(turns())
    cut = draw(st.sampled_from([0, 0, 0, 1]))
    return Conversation(messages[: len(messages) - cut], templated=True, line=1, tools=(TOOL,) if with_tools else ())


@pytest.mark.parametrize("name", NAMES)
@given(row=conversations(), everything=st.booleans())
@settings(max_examples=8, deadline=None)
def test_spans_are_those_found_in_the_row_itself(name: str, row: Conversation, everything: bool) -> None:
    if not row.messages:
        return
    found, _ = outcome(name, row, everything=everything, places=False)
    fast, all_shown = outcome(name, row, everything=everything, places=True)
    assert fast == found
    if all_shown:
        template, parts, learnt = known(name)
        text = ChatText(row, [1.0] * len(row.messages), template, parts, places=learnt)
        assert first_left_out(template, text.turns, text.tools) is None


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize("system", [[], [Message("system", "Be brief.")]])
@pytest.mark.parametrize("name", NAMES)
def test_answers_end_alike_where_the_last_word_is_a_tool_s(name: str, system: list[Message], places: bool) -> None:
    """Also in templates where a tool's answer is closed by something else than an end token, a question by none, or
    that refuse what is only a part of a conversation."""
    said = [Message("user", "What?"), Message("assistant", "This.")]
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    asked = [*system, *said, *said, said[0], Message("assistant", "", tool_calls=(call,)), Message("tool", "5")]
    rows = (Conversation(tuple(turns), templated=True, line=1, tools=(TOOL,)) for turns in (asked, [*asked, said[1]]))
    found = [outcome(name, row, everything=False, places=places)[0] for row in rows]
    assert isinstance(found[0], Rendered) == isinstance(found[1], Rendered)
    if all(isinstance(one, Rendered) for one in found):  # else the template has no place for tools
        first, whole = ([one.text[start:end] for start, end in one.spans[:2]] for one in found)
        assert first == whole


def agent_trace(calls: int) -> Conversation:
    """One question and that many calls, with a word now and then."""
    messages = [Message("system", "Be brief."), Message("user", "What is the sum?")]
    for i in range(calls):
        call = {"type": "function", "function": {"name": "look", "arguments": {"at": i, "where": f"place {i}"}}}
        messages.append(Message("assistant", f"Step {i}." if i % 3 else "", tool_calls=(call,)))
        messages.append(Message("tool", f'{{"found": {i}}}'))
    messages.append(Message("assistant", "It is 3."))
    return Conversation(tuple(messages), templated=True, line=1, tools=(TOOL,))


@pytest.mark.parametrize("name", ["qwen3", "tools_qwen", "tools_strict", "tools_llama", "tools_generation"])
def test_an_agent_trace_is_rendered_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is; what is learnt of a template is learnt of short conversations."""
    rendered: list[int] = []
    original = ChatTemplate.render_marked

    def count(self: ChatTemplate, turns: Any, **given: Any) -> Any:
        rendered.append(len(turns))
        return original(self, turns, **given)

    row = agent_trace(60)
    if name == "tools_llama":  # it has no place for text beside a call
        row = Conversation(
            tuple(Message(m.role, "" if m.tool_calls else m.content, tool_calls=m.tool_calls) for m in row.messages),
            templated=True, line=1, tools=row.tools,
        )  # fmt: skip
    expected, _ = outcome(name, row, everything=False, places=False)
    assert len(expected.spans) == 61
    monkeypatch.setattr(ChatTemplate, "render_marked", count)
    assert outcome(name, row, everything=False, places=True) == (expected, True)
    assert rendered.count(len(row.messages)) == 1
    assert max([turns for turns in rendered if turns != len(row.messages)], default=0) <= 16
    del rendered[:]
    longer = agent_trace(61) if name != "tools_llama" else row
    outcome(name, longer, everything=False, places=True)
    assert rendered.count(len(longer.messages)) == 1
    del rendered[:]
    outcome(name, longer, everything=False, places=True)
    assert rendered in ([len(longer.messages)], [len(longer.messages), 2])  # and what comes before the first answer
