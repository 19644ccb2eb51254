"""Whether two models say the same: their logits for the same prompts. Knows nothing of files.

Both are computed in float32, whatever their weights are held in, so that they differ by their weights alone. A module's
weights are float32 only while it runs: a model of 16-bit weights takes its own size and that of its largest module.

How far two models may differ whose weights are equal but for one rounding to a precision of machine epsilon e: a
rounded weight is off by up to e / 2 of itself, at random, and so is what a layer adds to the residual stream. Errors of
n rounded layers add up as random ones do, to sqrt(n). With s, how far logits lie from their mean, the largest of all
logits may be off by

    4 · s · sqrt(n) · max(e, 2^-17)

where 2^-17 is what sums of float32 differ by when they are added up in another order, and 4 stands for the largest of
thousands of logits: over the architectures of the tests correct models come to a third of it at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

from rankzero.model.vision import Vision

BUILT_IN = (
    "What is the capital of Peru? The capital of Peru is Lima.",
    "def mean(values):\n    return sum(values) / len(values)\n",
    "In 1969, 2 of 3 astronauts walked on the moon; 7 × 8 = 56.",
    "Der Regen fällt leise auf die Stadt. 雨が静かに降る。 Идёт дождь.",
)
"""Prose, code, numbers, several scripts: what any model has seen."""
LONGEST = 48
"""Tokens of a prompt that are looked at; logits of a large vocabulary take a megabyte for one or two."""
_FLOAT32_SUMS = 2.0**-17
_ROUTED = 0.75
_HALVES = (torch.float16, torch.bfloat16)
_PICTURE = 96


@dataclass(frozen=True, slots=True)
class Prompts:
    """What both models are asked."""

    rows: Sequence[Sequence[int]]
    pictures: Sequence[Mapping[str, torch.Tensor]] = ()
    """Inputs of passes with an image."""

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return sum(map(len, self.rows))


@dataclass(frozen=True, slots=True)
class Difference:
    """Two models' logits beside each other."""

    largest: float
    """Of all logits of all tokens; NaN where there is one among them."""
    tolerance: float
    within: float
    """Share of tokens, none of whose logits differs by more than the tolerance."""
    needed: float
    """The least share: all, but for models with routers, where a rounding may send a token to another expert."""

    @property
    def is_small(self) -> bool:
        """Whether the two say the same."""
        return self.within >= self.needed


def prompts_for(
    model: Any, tokenizer: Any, rows: Sequence[Sequence[int]] = (), vision: Vision | None = None
) -> Prompts:
    """The built-in prompts, `rows` of token ids, and where the model sees images one of these in a row of its own."""
    known = model.get_input_embeddings().weight.shape[0]  # tokenizers may have ids that a model has no row for
    texts = [tokenizer(text)["input_ids"] for text in BUILT_IN]
    cut = [[token for token in row if token < known][:LONGEST] for row in (*texts, *rows)]
    found = [row for row in cut if row] or [list(range(min(known, LONGEST)))]
    return Prompts(found, [] if vision is None else [_picture(vision, tokenizer)])


def logits_of(model: Any, prompts: Prompts) -> torch.Tensor:
    """What a model says about each token of the prompts, or of a classifier about each prompt: (N, V) in float32."""
    model.eval()
    named = getattr(model.config.get_text_config(), "pad_token_id", None)  # CodeGen's config has no such field
    pad = named if isinstance(named, int) else 0
    width = max(map(len, prompts.rows))
    ids_BT = torch.full((len(prompts.rows), width), pad)
    mask_BT = torch.zeros((len(prompts.rows), width), dtype=torch.long)
    for place, row in enumerate(prompts.rows):
        ids_BT[place, : len(row)] = torch.tensor(row)
        mask_BT[place, : len(row)] = 1
    with torch.inference_mode(), in_float32(model):
        logits = model(input_ids=ids_BT, attention_mask=mask_BT).logits.float()
        found = [logits if logits.ndim == 2 else logits[mask_BT.bool()]]
        found += [model(**inputs).logits.float()[0] for inputs in prompts.pictures]
    return torch.cat(found)


def compare(
    expected_NV: torch.Tensor, found_NV: torch.Tensor, *, dtype: torch.dtype, rounded: int, routed: bool
) -> Difference:
    """Logits of a model and of one whose weights are the same but that `rounded` layers are rounded to `dtype`."""
    centred = expected_NV - expected_NV.mean(dim=-1, keepdim=True)
    scale = float(centred.square().mean().sqrt())
    tolerance = 4 * scale * math.sqrt(max(rounded, 1)) * max(torch.finfo(dtype).eps, _FLOAT32_SUMS)
    off_N = (expected_NV - found_NV).abs().amax(dim=-1)  # NaN, where there is any, is larger than all
    return Difference(
        largest=float(off_N.max()),
        tolerance=tolerance,
        within=float((off_N <= tolerance).float().mean()),
        needed=_ROUTED if routed else 1.0,
    )


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Let every module compute in float32: while it runs its own weights are, and what it is given."""
    held: list[tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]] = []

    def widen(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if isinstance(module, ParamWrapper):  # reads the tensor that it adapts before its layer runs
            own.append(getattr(module.get_base_layer(), module.parameter_name))
        if isinstance(module, TrainableTokensLayer):  # computes with its table itself, which it does not run
            own += module.get_base_layer().parameters(recurse=False)
        halves = [(tensor, tensor.data) for tensor in own if tensor.dtype in _HALVES]
        held.append((module, halves))
        for tensor, narrow in halves:
            tensor.data = narrow.float()
        if not own:
            return args, kwargs
        return tuple(map(_wide, args)), {name: _wide(value) for name, value in kwargs.items()}

    def narrow_again(module: Any, *_: Any) -> None:
        of, halves = held.pop()
        assert of is module
        for tensor, narrow in halves:
            tensor.data = narrow

    hooks = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(widen, prepend=True, with_kwargs=True))
        hooks.append(module.register_forward_hook(narrow_again, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALVES else value


def _picture(vision: Vision, tokenizer: Any) -> dict[str, torch.Tensor]:
    """A pass about an image that has a pattern: an even one would tell towers apart by little."""
    from PIL import Image

    image = Image.linear_gradient("L").resize((_PICTURE, _PICTURE)).convert("RGB")
    ids = vision.prompt_ids(f"What is this?\n{vision.rules.placeholder}\nA gradient.", [image], tokenizer)
    ids_1T = torch.tensor([ids])
    extra = {name: torch.from_numpy(value) for name, value in vision.token_inputs(ids_1T.numpy()).items()}
    return {"input_ids": ids_1T, "attention_mask": torch.ones_like(ids_1T), **extra, **vision.inputs([image])}
