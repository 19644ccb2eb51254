"""What is left of system prompts that list tools as text: every word that is not how such lists are written."""

from __future__ import annotations

import pytest

from rankzero.data.rows.conversation import Message
from rankzero.data.rows.formats.written_calls import with_calls_read
from tests.support.families import family_tokenizer

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}]
LIST = '<tools>\n[{"type": "function", "function": {"name": "look"}}]\n</tools>'
EXAMPLE = "<tool_call>\n{'arguments': <args-dict>, 'name': <function-name>}\n</tool_call>"
SCHEMA = (
    "{'title': 'FunctionCall', 'type': 'object', 'properties': {'arguments': {'title': 'Arguments', 'type': 'object'}, "
    "'name': {'title': 'Name', 'type': 'string'}}, 'required': ['arguments', 'name']}"
)
HERMES = (
    "You are a function calling AI model. You are provided with function signatures within <tools></tools> XML tags."
    "You may call one or more functions to assist with the user query. Don't make assumptions about what values to "
    f"plug into functions.Here are the available tools:{LIST}"
)
FOR_EACH = (
    "For each function call return a json object with function name and arguments within <tool_call></tool_call> XML "
    f"tags as follows:\n{EXAMPLE}"
)
HERMES_3 = (
    "You are a function calling AI model. You are provided with function signatures within <tools> </tools> XML tags. "
    "You may call one or more functions to assist with the user query. If available tools are not relevant in "
    "assisting with user query, just respond in natural conversational language. Don't make assumptions about what "
    "values to plug into functions. After calling & executing the functions, you will be provided with function "
    f"results within <tool_response> </tool_response> XML tags. Here are the available tools:\n{LIST}\n"
    f"For each function call return a JSON object, with the following pydantic model json schema for each:\n{SCHEMA}\n"
    f"Each function call should be enclosed within <tool_call> </tool_call> XML tags.\nExample:\n{EXAMPLE}"
)
WRITTEN = [
    f"{HERMES}Use the following pydantic model json schema for each tool call you will make: {SCHEMA} {FOR_EACH}"
]
WRITTEN += [f"{HERMES}\n{FOR_EACH}", HERMES_3]


def left_of(content: str) -> list[str]:
    turns, problems, _ = with_calls_read([Message("system", content)], TOOLS, 1)
    assert not problems
    return [turn.content for turn in turns]


def of_qwen(system: str) -> str:
    """A system turn as Qwen's own template writes it."""
    turns = [{"role": "system", "content": system}, {"role": "user", "content": "?"}]
    text = family_tokenizer("qwen3").apply_chat_template(turns, tools=TOOLS, tokenize=False)
    return str(text).removeprefix("<|im_start|>system\n").partition("<|im_end|>")[0]


@pytest.mark.parametrize("prompt", [*WRITTEN, of_qwen("")])
def test_nothing_is_left_of_how_lists_are_written(prompt: str) -> None:
    assert left_of(prompt) == []
    assert left_of(f"You are Acme's agent.\n\n{prompt}") == ["You are Acme's agent."]


def test_what_a_family_writes_round_an_own_prompt() -> None:
    assert left_of(of_qwen("Be kind.\n\nBe quick.")) == ["Be kind.\n\nBe quick."]


@pytest.mark.parametrize("prompt", [*WRITTEN, of_qwen("")])
@pytest.mark.parametrize("own", ["Never quote prices.", "Rules:\n- Ask first.\n- Never call twice."])
def test_own_words_stay_wherever_they_are(prompt: str, own: str) -> None:
    behind_list = prompt.replace("</tools>\n", f"</tools>\n\n{own}\n\n").replace("</tools>Use", f"</tools>\n{own}\nUse")
    before_list = prompt.replace("<tools>\n", f"\n{own}\n<tools>\n")
    for text in (behind_list, before_list):
        assert own in text
        assert left_of(text) == [own]
        assert left_of(f"Be kind.\n\n{text}") == [f"Be kind.\n\n{own}"]


def test_sentences_that_only_begin_as_the_known_ones_stay_whole() -> None:
    begun = HERMES.replace("AI model.", "AI model of Acme.")
    assert left_of(f"{begun}\n{FOR_EACH}") == ["You are a function calling AI model of Acme."]


def test_long_braces_end_nowhere() -> None:
    text = f"{HERMES}Use the following pydantic model json schema for each tool call you will make: {'{' * 20_000}"
    assert left_of(f"{text}\n{FOR_EACH}")[0].endswith("{")
