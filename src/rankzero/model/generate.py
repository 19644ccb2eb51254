"""What a model reads of a conversation, and its greedy answers, about images where it sees them. Knows no run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rankzero.data.images.decode import load_rgb
from rankzero.data.rows.conversation import Message, Role
from rankzero.data.rows.formats.images import Slots
from rankzero.data.tokens.template import ChatTemplate
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.data.tokens.turns import reads_parts_only, turn_of
from rankzero.errors import ConfigError, UsageError
from rankzero.model.load import kind_of, load_config, load_model, load_tokenizer, stop_token_ids
from rankzero.model.lora import load_adapter
from rankzero.model.source import locate
from rankzero.model.vision import Vision, load_vision
from rankzero.run_dir.result import Result


@dataclass(frozen=True, slots=True)
class Turn:
    """What somebody said, and the files of the images that it is about."""

    role: Role
    text: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model in evaluation mode with what its prompts become tokens by."""

    model: Any
    tokenizer: Any
    vision: Vision | None
    """Of a model that sees images."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given besides the turns."""


def load_speaker(result: Result, dtype: torch.dtype, device: torch.device) -> Speaker:
    """The model, with its adapter on top where it has one. Raises ConfigError, AccessError, ServiceError."""
    spec = result.model
    source = locate(spec)
    tokenizer = load_tokenizer(source, spec, result.chat_template)
    config = load_config(source, spec)
    if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
        hint = f"use `rankzero predict {spec.name} --text …`"
        raise ConfigError(f"{spec.name} puts texts into classes; it writes none", where="model", hint=hint)
    vision = None
    if kind_of(config, "writes") == "vision":
        limit, template = result.image_max_tokens, result.chat_template
        vision = load_vision(source, spec, tokenizer, max_tokens=limit, chat_template=template)
    model = load_model(source, spec, config, dtype, device=device)
    if result.adapter is not None:
        model = load_adapter(model, result.adapter)
    if spec.quantization == "none":
        model.to(device)
    model.eval()
    return Speaker(model, tokenizer, vision, result.chat_template_kwargs)


def answer(
    speaker: Speaker, questions: Sequence[str], *, images: Sequence[str] = (), max_new_tokens: int = 64
) -> list[str]:
    """One greedy reply to each question, as a chat where the tokenizer has a template, else as raw text.

    Every question is about all `images`, which stand where it has `<image>`, else before it. Raises ConfigError where
    the model sees none, UsageError where there are more places than images, DataError where one cannot be read.
    """
    model, tokenizer = speaker.model, speaker.tokenizer
    stop_ids = stop_token_ids(model, tokenizer)
    if not stop_ids:
        raise ConfigError("neither the model nor the tokenizer names an end token", where="generation_config.json")
    if images:
        asked = [Turn("user", question, tuple(images)) for question in questions]
        return [_replies(speaker, inputs_of(speaker, [turn]), stop_ids, max_new_tokens)[0] for turn in asked]
    prompts = [_prompt_ids(speaker, Message("user", question)) for question in questions]
    width = max(map(len, prompts))
    ids_BT = torch.full((len(prompts), width), stop_ids[0])
    mask_BT = torch.zeros((len(prompts), width), dtype=torch.long)
    for i, prompt in enumerate(prompts):  # padding on the left: all replies start in the same column
        ids_BT[i, width - len(prompt) :] = torch.tensor(prompt)
        mask_BT[i, width - len(prompt) :] = 1
    return _replies(speaker, {"input_ids": ids_BT, "attention_mask": mask_BT}, stop_ids, max_new_tokens)


def inputs_of(speaker: Speaker, turns: Sequence[Turn]) -> dict[str, torch.Tensor]:
    """What the model reads of a conversation, up to where it goes on: a batch of one. Without a chat template, the text
    of the last turn.

    Raises ConfigError where there are images and the model sees none, UsageError where a turn has more places than
    images, DataError where one cannot be read.
    """
    vision, tokenizer = speaker.vision, speaker.tokenizer
    paths = [path for turn in turns for path in turn.images]
    if paths and (vision is None or tokenizer.chat_template is None):
        lacks = "sees no images" if vision is None else "has no chat template that says where images stand"
        hint = "name a vision-language model, or leave --image out" if vision is None else "set data.chat_template"
        raise ConfigError(f"{type(speaker.model).__name__} {lacks}", where="model", hint=hint)
    if tokenizer.chat_template is None:
        return _batch_of_one(tokenizer(turns[-1].text)["input_ids"])
    text = _prompt(speaker, [_placed(turn) for turn in turns])
    if not paths or vision is None:
        return _batch_of_one(tokenizer(text, add_special_tokens=False)["input_ids"])
    images = [load_rgb(Path(path).name, Path(path).parent) for path in paths]
    inputs = _batch_of_one(vision.prompt_ids(text, images, tokenizer))
    extra = vision.token_inputs(inputs["input_ids"].numpy())
    return {**inputs, **{name: torch.from_numpy(value) for name, value in extra.items()}, **vision.inputs(images)}


def _batch_of_one(ids: list[int]) -> dict[str, torch.Tensor]:
    ids_1T = torch.tensor([ids])
    return {"input_ids": ids_1T, "attention_mask": torch.ones_like(ids_1T)}


def _placed(turn: Turn) -> Message:
    """A turn with its own images in their places."""
    slots = Slots({"images": list(turn.images)} if turn.images else {}, 0)
    placed = slots.place((slots.message(turn.role, turn.text),), 0)
    if placed.problems:
        raise UsageError(placed.problems[0].what, where="prompt", hint="give one --image for each <image>")
    return placed.turns[0]


def _replies(speaker: Speaker, inputs: dict[str, torch.Tensor], stop_ids: list[int], longest: int) -> list[str]:
    """What the model writes behind `input_ids` (B, T), as text."""
    device = next(speaker.model.parameters()).device
    with torch.inference_mode():
        replies_BT = speaker.model.generate(
            **{name: value.to(device) for name, value in inputs.items()},
            max_new_tokens=longest,
            do_sample=False,
            use_cache=True,
            eos_token_id=stop_ids,
            pad_token_id=stop_ids[0],
        )
    start = inputs["input_ids"].shape[1]
    texts = speaker.tokenizer.batch_decode(replies_BT[:, start:], skip_special_tokens=True)
    return [text.strip() for text in texts]


def _prompt_ids(speaker: Speaker, message: Message) -> list[int]:
    """The ids of a question without images."""
    tokenizer = speaker.tokenizer
    if tokenizer.chat_template is None:
        ids: list[int] = tokenizer(message.content)["input_ids"]
        return ids
    ids = tokenizer(_prompt(speaker, [message]), add_special_tokens=False)["input_ids"]
    return ids


def _prompt(speaker: Speaker, messages: Sequence[Message]) -> str:
    """A conversation in the chat template, with one placeholder for each of its images."""
    in_parts = False
    if speaker.vision is not None:
        parts = take_apart(speaker.tokenizer)
        in_parts = reads_parts_only(ChatTemplate(str(parts.chat_template), parts.variables))
    turns = [turn_of(message, in_parts=in_parts) for message in messages]
    options = {"add_generation_prompt": True, "tokenize": False, **speaker.template_kwargs}
    return str(speaker.tokenizer.apply_chat_template(turns, **options))
