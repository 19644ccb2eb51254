"""A conversation with a model: its next turn, sampled, told as it is written. Knows nothing of runs or terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

from rankzero.errors import ConfigError
from rankzero.model.generate import (
    ANSWER,
    THOUGHT,
    Speaker,
    Turn,
    answer_limits,
    as_asked,
    marks_of,
    prompt_inputs,
    prompt_of,
    text_of,
)
from rankzero.model.load import drawn_from, stop_token_ids
from rankzero.model.while_writing import Numbers
from rankzero.spec.sampling import Sampling

OnText = Callable[[str], None]
"""Is told each piece of an answer when it is written; the pieces make the answer, but for blanks around it."""


def reply(speaker: Speaker, turns: Sequence[Turn], sampling: Sampling, on_text: OnText) -> str:
    """What the model says next. Without a chat template it goes on with the last turn's text.

    Images stand where a turn has `<image>`, else before its text. Raises ConfigError where the model sees none, or
    names no end token; NonFiniteError where what it computes is NaN; UsageError where there are more places than
    images; DataError where one cannot be read, and as `answer_limits` does.
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
            logits_processor=LogitsProcessorList([Numbers("the message")]),
            **chosen,
        )
    written = written_1T[0, tokens:].tolist()
    was_cut_off = bool(written) and written[-1] not in stop_ids
    begun = inputs["input_ids"][0].tolist() if was_cut_off and streamer.began_inside else ()
    return text_of(speaker.tokenizer, written, begun)


class _Told(BaseStreamer):  # type: ignore[misc]
    """Passes on the text of each token, once its characters are whole. Where special tokens part reasoning from the
    answer, tags do in what is passed on, as in `text_of`; a message that is neither is passed on with its head."""

    def __init__(self, tokenizer: Any, on_text: OnText) -> None:
        self._tokenizer, self._tell = tokenizer, on_text
        self._prompt_is_next = True
        self._tokens: list[int] = []
        """Of the answer, or of this message of it."""
        self._begin = self._told = 0
        """Of `tokens`: behind which all are passed on, and where the last piece began. A decoder drops a blank before
        the first token that it is given, which none of these is."""
        added = tokenizer.get_added_vocab()
        self._marks = {added[mark]: mark for mark in _MARKS & added.keys()} if _HEAD in added else {}
        self._head: list[int] | None = None
        """Tokens of a message's head, while it is written."""
        self._between = False
        """Behind the end of a message, before the next one's head."""
        self._thought = self._answered = False
        self._around = marks_of(tokenizer)
        """What stands around reasoning in a template of another kind."""
        self._lead: str | None = None
        """What was written of the head of reasoning, or of blanks before it and behind it; None: neither comes."""
        self.began_inside = False
        """Whether the prompt ends between these marks."""
        self._due = THOUGHT
        """What comes behind the lead."""
        self._blanks = ""
        """What is passed on once something follows."""

    def put(self, value: torch.Tensor) -> None:
        """One token of the answer; first the whole prompt."""
        if self._prompt_is_next:
            self._prompt_is_next = False
            self._begin_inside(value.reshape(-1).tolist())
            return
        if self._around is not None and self._is_around(int(value.reshape(-1)[-1])):
            return
        mark = self._marks.get(int(value.reshape(-1)[-1]), "")
        if mark == _HEAD:
            self._flush()
            self._head = []
        elif mark == _TEXT and self._head is not None:
            self._open(str(self._tokenizer.decode(self._head, skip_special_tokens=True)))
            self._head, self._between = None, False
        elif mark:
            self._flush()
            self._between = True
        elif self._head is not None:
            self._head += value.reshape(-1).tolist()
        elif not self._between:
            self._tokens += value.reshape(-1).tolist()
            self._pass_on()

    def end(self) -> None:
        """The answer is over."""
        self._flush()

    def _pass_on(self, *, all_of_it: bool = False) -> None:
        """What the tokens since the last piece add to its text; a character whose bytes are not all there waits, unless
        `all_of_it` is wanted."""
        before, now = self._decoded(self._tokens[self._begin : self._told]), self._decoded(self._tokens[self._begin :])
        if len(now) <= len(before) or (now.endswith(_UNFINISHED) and not all_of_it):
            return
        self._say(now[len(before) :])
        self._begin, self._told = self._told, len(self._tokens)

    def _say(self, text: str) -> None:
        """A piece of the text, but for blanks and a head before it; blanks behind it wait."""
        if self._lead is not None and self._around is not None:
            text, head = (self._lead + text).lstrip(), self._head_due()
            said = text.removeprefix(head).lstrip()
            if not said or head.startswith(text):
                self._lead = text
                return
            text, self._lead = said, None
            self._open(self._due)
        text = self._blanks + text
        kept = text.rstrip()
        self._blanks = text[len(kept) :]
        if kept:
            self._tell(kept)

    def _head_due(self) -> str:
        """What a template puts before the text that is due."""
        return self._around.head if self._around is not None and self._due == THOUGHT else ""

    def _begin_inside(self, prompt: list[int]) -> None:
        """A template may begin the reasoning itself, at the end of the prompt."""
        if self._around is None:
            return
        tail = str(self._tokenizer.decode(prompt[-_HEAD_TOKENS:])).rpartition(self._around.opens)
        if tail[1] and tail[2].strip() in ("", self._around.head):
            self._lead, self.began_inside = "", True

    def _is_around(self, token: int) -> bool:
        """Whether a token is a mark around reasoning, for which a tag is passed on where there is any."""
        assert self._around is not None
        text = str(self._tokenizer.convert_ids_to_tokens(token))
        if text not in (self._around.opens, self._around.closes):
            return False
        self._flush()
        self._lead, self._due = "", THOUGHT if text == self._around.opens else ANSWER
        return True

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))

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
        """Pass on what waits for its bytes; what follows is another text."""
        self._pass_on(all_of_it=True)
        if self._lead and (rest := self._lead.strip().removeprefix(self._head_due())):
            self._open(self._due)
            self._tell(rest)
        self._tokens, self._begin, self._told = [], 0, 0
        self._lead, self._blanks = None, ""


_HEAD_TOKENS = 8
"""More than the head of reasoning has."""
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_HEAD, _TEXT = "<|channel|>", "<|message|>"
_MARKS = frozenset({_HEAD, _TEXT, "<|start|>", "<|end|>", "<|return|>", "<|call|>"})
"""What GPT-OSS puts around the messages of an answer."""
