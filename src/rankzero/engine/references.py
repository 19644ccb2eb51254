"""What answers are compared with, as the answers are read. Knows prompts and tokenizers; compares nothing."""

from __future__ import annotations

from dataclasses import replace

from rankzero.data.prompts import Prompt
from rankzero.engine.text_scores import without_reasoning
from rankzero.model.generate import Speaker, without_special_tokens


def comparable(speaker: Speaker, prompt: Prompt) -> Prompt:
    """The prompt with its reference as an answer of this model is read: raw text may have special tokens in it, and
    reasoning whose first mark the prompt has."""
    if prompt.templated is not False or prompt.reference is None:
        return prompt
    said = without_reasoning(without_special_tokens(speaker.tokenizer, prompt.reference))
    return replace(prompt, reference=said or None)
