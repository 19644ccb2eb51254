"""A conversation with a model: its next turn, sampled, told as it is written. Knows nothing of runs or terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import TextStreamer

from rankzero.errors import ConfigError
from rankzero.model.generate import (
    ANSWER,
    THOUGHT,
    Speaker,
    Turn,
    answer_limits,
    as_asked,
    prompt_inputs,
    prompt_of,
    text_of,
)
from rankzero.model.load import drawn_from, stop_token_ids
from rankzero.spec.sampling import Sampling

OnText = Callable[[str], None]
"""Is told each piece of an answer when it is written; the pieces make the answer, but for blanks around it."""


def reply(speaker: Speaker, turns: Sequence[Turn], sampling: Sampling, on_text: OnText) -> str:
    """What the model says next. Without a chat template it goes on with the last turn's text.

    Images stand where a turn has `<image>`, else before its text. Raises ConfigError where the model sees none, or
    names no end token; UsageError where there are more places than images; DataError where one cannot be read, and as
    `answer_limits` does.
    """
    stop_ids = stop_token_ids(speaker.model, speaker.tokenizer)
    if not stop_ids:
        raise ConfigError("neither the model nor the tokenizer names an end token", where="generation_config.json")
    inputs = prompt_inputs(speaker, prompt_of(speaker, turns))
    tokens = inputs["input_ids"].shape[1]
    (longest,) = answer_limits(speaker, inputs["input_ids"].tolist(), sampling.max_new_tokens, ["what was said"])
    device = next(speaker.model.parameters()).device
    streamer = _Told(speaker.tokenizer, on_text)
    warm = sampling.temperature > 0
    chosen = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k} if warm else {}
    drawn = nullcontext() if sampling.seed is None else drawn_from(sampling.seed, device)
    with torch.inference_mode(), as_asked(speaker.model), drawn:
        written_1T = speaker.model.generate(
            **{name: value.to(device) for name, value in inputs.items()},
            max_new_tokens=longest,
            do_sample=warm,
            use_cache=True,
            eos_token_id=stop_ids,
            pad_token_id=stop_ids[0],
            streamer=streamer,
            **chosen,
        )
    return text_of(speaker.tokenizer, written_1T[0, tokens:].tolist())


class _Told(TextStreamer):  # type: ignore[misc]
    """Passes on the text of each token, once its characters are whole. Where special tokens part reasoning from the
    answer, tags do in what is passed on, as in `text_of`; a message that is neither is passed on with its head."""

    def __init__(self, tokenizer: Any, on_text: OnText) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._tell = on_text
        added = tokenizer.get_added_vocab()
        self._marks = {added[mark]: mark for mark in _MARKS & added.keys()} if _HEAD in added else {}
        self._head: list[int] | None = None
        """Tokens of a message's head, while it is written."""
        self._between = False
        """Behind the end of a message, before the next one's head."""
        self._thought = self._answered = False

    def put(self, value: torch.Tensor) -> None:
        """One token of the answer; first the whole prompt."""
        mark = "" if self.next_tokens_are_prompt else self._marks.get(int(value.reshape(-1)[-1]), "")
        if mark == _HEAD:
            self._flush()
            self._head = []
        elif mark == _TEXT and self._head is not None:
            self._open(str(self.tokenizer.decode(self._head, skip_special_tokens=True)))
            self._head, self._between = None, False
        elif mark:
            self._flush()
            self._between = True
        elif self._head is not None:
            self._head += value.reshape(-1).tolist()
        elif not self._between:
            super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """One piece; the last one may be empty."""
        del stream_end
        if text:
            self._tell(text)

    def _open(self, head: str) -> None:
        """A message with this head follows."""
        kind = (head.split() or [""])[0]
        if kind == THOUGHT:
            self._tell("\n" if self._thought else "<think>\n")
            self._thought = True
        elif kind == ANSWER:
            if self._thought and not self._answered:
                self._tell("\n</think>\n\n")
            self._answered = True
        else:
            self._tell(head)

    def _flush(self) -> None:
        """Pass on what waits for its word to end."""
        self.end()
        self.next_tokens_are_prompt = False


_HEAD, _TEXT = "<|channel|>", "<|message|>"
_MARKS = frozenset({_HEAD, _TEXT, "<|start|>", "<|end|>", "<|return|>", "<|call|>"})
"""What GPT-OSS puts around the messages of an answer."""
