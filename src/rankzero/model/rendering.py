"""Prompts as a tokenizer's own chat template writes them, by transformers. Knows nothing of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.data.prompts import Prompt
from rankzero.data.tokens.call_form import with_ids
from rankzero.data.tokens.chat import refusal_hint
from rankzero.data.tokens.template import ChatTemplate
from rankzero.data.tokens.tokenizer import single_template, template_variables, tool_template
from rankzero.data.tokens.turns import reads_parts_only, turn_of
from rankzero.errors import DataError
from rankzero.wording import first_line


def rendered(
    tokenizer: Any, prompt: Prompt, given: Mapping[str, Any], *, sees: bool, dated_as_trained: bool = False
) -> str:
    """A prompt in the chat template, as rows are rendered for training, with one placeholder for each of its images.
    The template is `given` these besides the turns, where the prompt has none of its own, and today's date, or that of
    training; `sees`: the model is shown
    images. Raises DataError where it refuses."""
    given = {**given, **prompt.template_kwargs}
    named, calls = tokenizer.chat_template, any(message.tool_calls for message in prompt.messages)
    source = (tool_template(named) if prompt.tools or calls else None) or str(single_template(named))
    own_date = dated_as_trained and _DATE in source
    plain = not sees and not calls and all(message.plain for message in prompt.messages)
    template = None if plain and not own_date else ChatTemplate(source, {**template_variables(tokenizer), **given})
    if plain or template is None:
        turns = [turn_of(message) for message in prompt.messages]
    else:
        in_parts = sees and reads_parts_only(template)
        keys, knows, form = template.reasoning_keys, template.knows_thoughts, template.call_form
        turns = [
            turn_of(message, in_parts=in_parts, keys=keys, knows_thoughts=knows, call_form=form)
            for message in with_ids(prompt.messages, form.ids)
        ]
    try:
        if own_date and template is not None:
            return template.render(turns, tools=prompt.tools, opening=True)
        tools = {"tools": list(prompt.tools)} if prompt.tools else {}
        options = {"add_generation_prompt": True, "tokenize": False, "chat_template": source, **given, **tools}
        return str(tokenizer.apply_chat_template(turns, **options))
    except Exception as error:  # a template is foreign code: it may fail in any way
        ChatTemplate(source, {})  # raises ConfigError where it is no template at all
        what = f"the chat template says: {first_line(error)}"
        raise DataError(what, where=prompt.where or "prompt", hint=refusal_hint(what)) from error


_DATE = "strftime_now"
"""What templates that write a date ask for it."""
