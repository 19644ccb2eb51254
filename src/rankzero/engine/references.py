"""What answers are compared with, as the answers are read. Knows prompts and tokenizers; compares nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from rankzero.data.prompts import Prompt
from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.engine.text_scores import without_reasoning
from rankzero.model.generate import Speaker, without_special_tokens


class References:
    """What the answers of one model are compared with."""

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker

    def comparable(self, prompt: Prompt) -> Prompt:
        """The prompt with its reference as an answer of this model is read: raw text may have special tokens in it, and
        reasoning whose first mark the prompt has; a call is what the chat template writes of it."""
        if prompt.call is not None and prompt.reference is None:
            return replace(prompt, reference=self._written(prompt, prompt.call))
        if prompt.templated is not False or prompt.reference is None:
            return prompt
        said = without_reasoning(without_special_tokens(self._speaker.tokenizer, prompt.reference))
        return replace(prompt, reference=said or None)

    @cached_property
    def _renderer(self) -> Renderer:
        """Made once: taking a large tokenizer apart takes most of a second."""
        vision = None if self._speaker.vision is None else self._speaker.vision.rules
        rules = TokenRules(vision=vision, template_kwargs=self._speaker.template_kwargs)
        # As of labels: an answer that was written has no need of a token that a model could learn to stop by.
        return Renderer(take_apart(self._speaker.tokenizer, "label"), rules)

    def _written(self, prompt: Prompt, call: Message) -> str | None:
        """What is trained of an answer that calls tools; None where no template writes it, or a slow tokenizer does not
        say where special tokens begin and end."""
        tokenizer = self._speaker.tokenizer
        if tokenizer.chat_template is None or not tokenizer.is_fast:
            return None
        # Images have no part in how an answer is written.
        asked = (replace(message, train=False, image_offsets=()) for message in prompt.messages)
        turns = (*asked, replace(call, train=True, image_offsets=()))
        row = Conversation(turns, templated=True, line=1, tools=prompt.tools, template_kwargs=prompt.template_kwargs)
        rendered = self._renderer.render(row)
        if not isinstance(rendered, Rendered):
            return None
        text = "".join(rendered.text[start:end] for start, end in rendered.spans)
        return without_reasoning(without_special_tokens(tokenizer, text)) or None
