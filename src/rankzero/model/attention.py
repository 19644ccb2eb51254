"""Which attention implementation computes a model, and whether rows lie end to end instead of being padded.

Knows what transformers' model classes, this machine's packages and its GPU can do; runs nothing.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
)
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available

from rankzero.errors import ConfigError, Problem
from rankzero.model import block_attention, context_attention, dropout_attention, varlen
from rankzero.model.layer_widths import head_width, layer_configs
from rankzero.model.load import ModelKind

_log = logging.getLogger("rankzero.model")

PROVEN = frozenset(
    {
        *("apertus", "arcee", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe"),
        *("exaone4", "gemma", "gemma3_text", "gemma4_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "granite"),
        *("granitemoe", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm3", "llama", "minimax_m2"),
        *("ministral", "ministral3", "mistral", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "phimoe"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "starcoder2"),
    }
)
"""Model types of which the tests show that rows laid end to end do not see each other. What transformers' classes say
of themselves is not enough: some do not hand on where rows begin."""

PROVEN_WITH_IMAGES = frozenset(
    {"idefics3", "internvl", "llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "smolvlm"}
)
"""The same of models that see images."""

_KEEP_ROWS_APART = ("flash_attention_3", "flash_attention_2", varlen.NAME, "flex_attention")
"""Without a mask of the size of all tokens squared; the fastest first."""
_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
_ROPES_BY_LENGTH = ("dynamic", "longrope")
"""Rotary embeddings that follow from the longest row of a pass, of which a slice knows nothing."""
_DROPOUTS = ("attention_dropout", "attn_pdrop", "attn_dropout", "attention_probs_dropout_prob")
_OF_A_MASK = ("block_sequence_ids", "or_mask_function", "and_mask_function")
"""Arguments of transformers' masks that its mask for flash-attention leaves out without a word."""
_FLASH_HEAD = 256
"""The widest head that flash-attention computes."""
_PACKAGES = {"flash_attention_3": "flash-attn-3", "flash_attention_2": "flash-attn"}
_CLASSES = {
    "causal": MODEL_FOR_CAUSAL_LM_MAPPING,
    "vision": MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    "classifier": MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
}


@dataclass(frozen=True, slots=True)
class Attention:
    """What is taken."""

    implementation: str | None
    """transformers' name for it; None: its own choice, sdpa or else eager."""
    padding_free: bool
    """Rows lie end to end."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What a choice depends on."""

    kind: ModelKind
    config: Any
    model: Any
    """The model class; None where it comes with the model and is not known yet."""
    device_kind: str
    dtype: torch.dtype
    drops: bool

    @property
    def half(self) -> bool:
        return self.dtype in (torch.bfloat16, torch.float16)

    @property
    def dropout(self) -> bool:
        text = self.config.get_text_config()
        return self.drops and any((getattr(text, name, None) or 0) > 0 for name in _DROPOUTS)

    @property
    def ropes(self) -> set[str]:
        """Kinds of rotary embeddings, of all its layers."""
        found = getattr(self.config.get_text_config(), "rope_parameters", None) or {}
        each = [found, *(inner for inner in found.values() if isinstance(inner, dict))]
        return {str(one["rope_type"]) for one in each if "rope_type" in one}

    def supports(self, flag: str) -> bool:
        """Whether all classes say so of themselves. One that is not known yet says it when it is loaded."""
        return all(getattr(one, flag, False) for one in self.classes)

    @property
    def classes(self) -> list[Any]:
        """The model class, and those of the text model and the towers in it, which get the same attention."""
        if self.model is None:
            return []
        parts = (_class_in(MODEL_MAPPING, getattr(self.config, name, None)) for name in self.config.sub_configs)
        return [self.model, *(part for part in parts if part is not None)]


def _class_in(mapping: Any, config: Any) -> Any:
    """The class that transformers has for a config; None where it has none."""
    found = mapping.get(type(config), None)
    return found[0] if isinstance(found, tuple) else found


def choose_attention(
    kind: ModelKind,
    config: Any,
    device_kind: str,
    dtype: torch.dtype,
    *,
    wanted: str,
    free: Literal["auto"] | bool,
    sliced: bool = False,
    drops: bool = True,
) -> Attention:
    """Resolve model.attention (`wanted`) and train.padding_free (`free`) for a model that computes in `dtype` on
    `device_kind`. `sliced`: the tokens of a pass lie on several ranks (train.context_parallel). `drops`: where the
    config has dropout of attention, it is trained with.

    Raises ConfigError with everything that was asked for and cannot be had.
    """
    case = _Case(kind, config, _class_in(_CLASSES[kind], config), device_kind, dtype, drops)
    if sliced:
        return _over_slices(case)
    together = _cannot_lie_end_to_end(case)
    problems = [*_asked_for(case, wanted), *_padding_free_asked_for(together, wanted, free)]
    if problems:
        raise ConfigError(problems)
    varlen.register()
    dropout_attention.register()
    block_attention.register()
    if wanted == "auto" and free is not True and case.dropout and case.supports("_supports_sdpa"):
        _log.debug("rows are padded: attention has dropout, which fused kernels do not tie to places")
        return Attention(dropout_attention.NAME, False)
    if wanted != "auto":
        return Attention(wanted, free is True or (free == "auto" and together is None and _gains(case, wanted)))
    if free is True or (free == "auto" and _gains(case, wanted)):
        if together is None:
            name = next((name for name in _candidates(case, free) if not list(_asked_for(case, name))), None)
            if name is not None:
                return Attention(name, True)
            together = "no attention that keeps rows apart can be used here"
            if free is True:
                raise ConfigError(list(_asked_for(case, varlen.NAME)))
        _log.debug("rows are padded: %s", together)
    known = case.model is not None
    fastest = next((name for name in _PACKAGES if known and not list(_asked_for(case, name))), None)
    if fastest is None and _blocks_are_faster(case):
        fastest = block_attention.NAME
    return Attention(fastest, False)


def _over_slices(case: _Case) -> Attention:
    """Rows end to end whose keys and values come from other ranks too."""
    reasons = []
    together = "rows with images are not cut" if case.kind == "vision" else _cannot_lie_end_to_end(case)
    if together is not None:
        reasons.append(together)
    if not case.supports("_supports_sdpa"):
        reasons.append(f"{case.config.model_type} cannot be computed with sdpa")
    if case.dropout:
        reasons.append("the model has attention dropout, which slices cannot drop alike")
    by_length = sorted(case.ropes.intersection(_ROPES_BY_LENGTH))
    if by_length:
        reasons.append(f"rotary embeddings of kind {by_length[0]} depend on the longest row of a pass")
    if reasons:
        hint = "leave it out, and data.max_length at what one device takes"
        what = "rows of this model cannot lie over several processes"
        raise ConfigError([Problem(f"{what}: {reason}", "train.context_parallel", hint) for reason in reasons])
    context_attention.register()
    return Attention(context_attention.NAME, True)


def _blocks_are_faster(case: _Case) -> bool:
    """Whether rows are causal, and torch's kernel the slower one: on a CPU in bfloat16 (benchmarks/README.md)."""
    here = case.device_kind == "cpu" and case.dtype is torch.bfloat16
    return here and case.kind == "causal" and case.model is not None and case.supports("_supports_sdpa")


def _candidates(case: _Case, free: str | bool) -> tuple[str, ...]:
    """What may be taken for rows end to end. varlen row by row in torch's kernel gains nothing: only when asked."""
    fast = _blocks_are_faster(case) or (case.device_kind == "cuda" and case.half and varlen.has_kernel())
    return _KEEP_ROWS_APART[:3] if fast or free is True else _KEEP_ROWS_APART[:2]


def _gains(case: _Case, wanted: str) -> bool:
    """Whether `padding_free: auto` means yes. On a CPU it gains nothing over rows of like length in float32; who asks
    for varlen, which is there for nothing else, has it everywhere."""
    fast = case.device_kind == "cuda" or _blocks_are_faster(case)
    return wanted == varlen.NAME or (wanted in ("auto", *_KEEP_ROWS_APART) and fast)


def _cannot_lie_end_to_end(case: _Case) -> str | None:
    """Why rows have to be padded, whatever the attention."""
    if case.kind == "classifier":
        return "rows of a classifier are padded"
    text = case.config.get_text_config()
    layers = set(getattr(text, "layer_types", None) or ()) - _ATTENTION_LAYERS
    if layers or getattr(case.model, "_is_stateful", False):
        which = ", ".join(sorted(layers)) or "recurrent"
        return f"{case.config.model_type} has {which} layers, which carry what they saw from one row into the next"
    if case.model is None or not _proven(case):
        return f"{case.config.model_type} has not been shown to keep rows apart that lie end to end"
    return None


def _proven(case: _Case) -> bool:
    if case.kind == "causal":
        return case.config.model_type in PROVEN
    text = case.config.get_text_config().model_type
    own = case.config.model_type in PROVEN_WITH_IMAGES
    return own and (text in PROVEN or text.startswith(case.config.model_type))  # Qwen-VL's text model is one of its own


def _padding_free_asked_for(together: str | None, wanted: str, free: str | bool) -> Iterator[Problem]:
    if free is not True:
        return
    if together is not None:
        yield Problem(together, "train.padding_free", "leave it out: rows of like length share a pass")
    if wanted not in ("auto", *_KEEP_ROWS_APART):
        what = f"{wanted} would keep rows apart by a mask of the size of all tokens squared"
        hint = f"set model.attention to auto or to one of {', '.join(_KEEP_ROWS_APART)}"
        yield Problem(what, "train.padding_free", hint)


def _asked_for(case: _Case, name: str) -> Iterator[Problem]:
    """Everything that keeps an implementation from being used."""
    check = {
        "sdpa": _no_sdpa,
        "varlen": _no_varlen,
        "flex_attention": _no_flex,
        "flash_attention_2": _no_flash,
        "flash_attention_3": _no_flash,
    }.get(name)
    for what, hint in check(case, name) if check is not None else ():
        yield Problem(what, "model.attention", hint)


def _no_sdpa(case: _Case, _name: str) -> Iterator[tuple[str, str]]:
    if not case.supports("_supports_sdpa"):
        yield f"{case.config.model_type} cannot be computed with sdpa", "leave it out, or take eager"


def _no_varlen(case: _Case, name: str) -> Iterator[tuple[str, str]]:
    together = _cannot_lie_end_to_end(case)
    if together is not None:
        yield f"varlen is for rows end to end, and {together}", "leave it out, or take sdpa"
    yield from _no_sdpa(case, name)
    if case.dropout:
        yield "varlen has no attention dropout, and the model has", "leave it out, or take sdpa"


def _no_flex(case: _Case, _name: str) -> Iterator[tuple[str, str]]:
    if not case.supports("_supports_flex_attn"):
        yield f"{case.config.model_type} cannot be computed with flex_attention", "leave it out"
    if case.device_kind != "cuda":
        yield f"flex_attention has no backward pass on {case.device_kind}", "leave it out, or take sdpa or varlen"
    if case.dropout:
        yield "flex_attention has no attention dropout, and the model has", "leave it out, or take sdpa"


def _no_flash(case: _Case, name: str) -> Iterator[tuple[str, str]]:
    if case.device_kind != "cuda":
        yield f"{name} needs an NVIDIA GPU", "leave it out: auto takes the fastest that there is"
        return
    if not case.half:
        yield f"{name} computes in 16 bits only", "set model.dtype: bfloat16, or leave model.attention out"
    if not _installed(name):
        yield f"{_PACKAGES[name]} is not installed", f"pip install {_PACKAGES[name]}, or leave it out"
    major = torch.cuda.get_device_capability()[0]
    if major < 8 or (name == "flash_attention_3" and major != 9):
        yield f"{name} does not run on this GPU", "leave it out: auto takes the fastest that there is"
    flavours = [getattr(one, "_compatible_flash_implementations", None) for one in case.classes]
    if not case.supports("_supports_flash_attn") or any(each is not None and name not in each for each in flavours):
        yield f"{case.config.model_type} cannot be computed with {name}", "leave it out"
    if case.kind == "vision" and case.model is not None and _has_masks_of_its_own(case.model):
        yield f"{case.config.model_type} has masks of its own, which {name} ignores", "leave it out, or take sdpa"
    widest = max(map(head_width, layer_configs(case.config.get_text_config())))
    if widest > _FLASH_HEAD:
        yield f"the model has heads of {widest} values, and {name} computes {_FLASH_HEAD} at most", "leave it out"
    if name == "flash_attention_3" and case.dropout:
        yield "flash_attention_3 has no attention dropout, and the model has", "take flash_attention_2"


@lru_cache
def _has_masks_of_its_own(model: Any) -> bool:
    """Whether a model that sees images may hand transformers more of a mask than causality and a window, for tokens of
    one image that see each other both ways. No class says it of itself: its code is read, as transformers reads it
    for what implementations it takes."""
    try:
        code = inspect.getsource(sys.modules[model.__module__])
    except (KeyError, OSError, TypeError):
        return True
    return any(argument in code for argument in _OF_A_MASK)


def _installed(name: str) -> bool:
    return bool(is_flash_attn_3_available() if name == "flash_attention_3" else is_flash_attn_2_available())
