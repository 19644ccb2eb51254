"""Facts of a model, read off the model without memory and its config."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer
from peft.utils.other import ModulesToSaveWrapper

from rankzero.model.chunked_loss import find_tail
from rankzero.model.facts import (
    IN_SEVERAL_STEPS,
    NOT_ON_A_GPU,
    PACKED_BYTES,
    Blocks,
    Experts,
    Fused,
    ModelFacts,
    adapted_bytes,
)
from rankzero.model.layer_widths import head_width, heads_of, widest_layer
from rankzero.model.load import kept_in_float32
from rankzero.model.lora import parameter_counts
from rankzero.model.norms import is_rms_norm
from rankzero.model.parts import blocks, inside, part_finder
from rankzero.spec.run_spec import Quantization
from rankzero.spec.tasks import ModelUse

_INTERMEDIATE = ("intermediate_size", "hidden_dim", "ffn_dim", "n_inner", "d_ff")
"""What configs call the width of a dense layer's inside, by architecture family."""
_VISITED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")
"""What configs call the number of experts that a token visits."""
_ALL_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What they call the number of those among which its router chooses."""


def model_facts(
    shape: Any,
    config: Any,
    dtype: torch.dtype,
    *,
    quantization: Quantization,
    use: ModelUse,
    fused: Fused = NOT_ON_A_GPU,
) -> ModelFacts:
    """Facts of `shape`, the model without memory and not yet quantised, which computes in `dtype`."""
    base = shape.get_base_model() if isinstance(shape, PeftModel) else shape
    adapters, compute = base is not shape, dtype.itemsize
    names = [name for name, _ in blocks(base)]
    part_of = part_finder(base)
    text_names = [name for name in names if part_of(name) in ("language", "experts")]
    packed_bytes = PACKED_BYTES[quantization]
    sizes: dict[str, int] = dict.fromkeys(names, 0)
    # Adapters and float16 compute by autocast, which rounds what is float32.
    kept = frozenset[str]() if adapters or dtype is torch.float16 else kept_in_float32(base, dtype)
    kept_weights = {False: 0, True: 0}
    frozen = trained = root = 0
    unpacked = {"experts": 0, "rest": 0}
    experts: list[tuple[int, int, bool]] = []
    for name, parameter in base.named_parameters():
        held = parameter.numel() * parameter.element_size()
        packed = (
            not parameter.requires_grad
            and parameter.ndim >= 2
            and inside(name, text_names)
            and part_of(name) in ("language", "experts")
        )
        if packed_bytes and packed:
            held = round(parameter.numel() * packed_bytes)
            of = "experts" if part_of(name) == "experts" else "rest"
            unpacked[of] = max(unpacked[of], parameter.numel() * compute)
        if part_of(name) == "experts" and "lora_" not in name:
            experts.append((parameter.numel(), held, parameter.requires_grad))
        kept_weights[parameter.requires_grad] += parameter.numel() if name in kept else 0
        frozen += 0 if parameter.requires_grad else held
        trained += held if parameter.requires_grad else 0
        computed = held if adapters else parameter.numel() * compute
        block = next((name_ for name_ in names if inside(name, [name_])), None)
        if block is None:
            root += computed
        else:
            sizes[block] += computed
    trainable, total = parameter_counts(shape)
    tower_names = [name for name in names if name not in text_names]
    tower = getattr(config, "vision_config", None)
    in_training = tower is not None and _is_trained(base, tower_names)
    tail = None if use == "classifies" else find_tail(shape)
    return ModelFacts(
        total=total,
        trainable=trainable,
        frozen_bytes=frozen,
        trained_bytes=trained,
        block_bytes=max(sizes.values(), default=0),
        root_bytes=root,
        unpacked_bytes=max(unpacked.values()),
        adapters=adapters,
        compute_bytes=compute,
        float16=dtype is torch.float16,
        text=_text_blocks(config.get_text_config(), base, text_names, compute, fused),
        tower=_tower_blocks(tower, base, tower_names, compute, fused) if in_training else None,
        patches=_patches(config) if tower else 1,
        logits=0 if use == "classifies" else config.get_text_config().vocab_size,
        logits_in_parts=tail is not None,
        behind=0 if tail is None else sum(weight.numel() for weight in tail.trained()),
        head_copied=0 if use == "classifies" else _copied_head(shape, compute),
        head_alone=tail is not None and tail.head_alone,
        kept_frozen=kept_weights[False],
        kept_trained=kept_weights[True],
        eager=getattr(base.config, "_attn_implementation", None) == "eager",
        idle=_idle(config.get_text_config(), sum(weights for weights, _, _ in experts)),
        experts=_experts(experts, unpacked["rest"]),
    )


def _text_blocks(text: Any, base: Any, names: list[str], compute: int, fused: Fused) -> Blocks:
    text = widest_layer(text)  # the memory of all others is no more
    hidden, heads, head = text.hidden_size, heads_of(text), head_width(text)
    keys = (getattr(text, "num_key_value_heads", None) or heads) * head
    inner = [name for name, _ in base.named_modules() if inside(name, names[:1])]
    has_norms = any(name.rpartition(".")[2] in ("q_norm", "k_norm", "q_layernorm", "k_layernorm") for name in inner)
    dense = _dense(text)
    visited = next((getattr(text, name) for name in _VISITED if getattr(text, name, None)), 0)
    intermediate = dense
    if visited:
        one = getattr(text, "moe_intermediate_size", None) or dense
        shared = getattr(text, "shared_expert_intermediate_size", None) or one * (
            getattr(text, "n_shared_experts", None) or 0
        )
        some_dense = getattr(text, "first_k_dense_replace", 0) or getattr(text, "mlp_only_layers", None)
        intermediate = max(visited * one + shared, dense if some_dense else 0)
    return Blocks(
        count=len(names),
        hidden=hidden,
        attention=heads * head,
        intermediate=intermediate,
        inside_kept=3 if visited else _inside_kept(text, base, names),
        normed=heads * head + keys if has_norms else 0,
        experts=visited,
        heads=heads,
        keys=keys,
        adapted_bytes=_adapted_bytes(base, names, compute, fused),
        adapted=_adapted(base, names),
        norm_bytes=compute if fused.norms and _norms_are_fused(base, names) else 4,
        remade_bytes=_remade(base, names, compute),
        states=0 if heads else _states(text),
    )


def _states(text: Any) -> int:
    """Of models without attention, for each token: the inside of a block, for each value of its state where that has
    several. Where tokens are computed in chunks, the state is that of a chunk, beside its pairs of tokens by heads."""
    recurrent = getattr(text, "attention_hidden_size", None)
    if recurrent:
        return 6 * int(recurrent)  # RWKV's: two sums and the largest exponent, before and after the token
    inside = _dense(text)
    values = inside * (getattr(text, "state_size", None) or 1)
    chunk = getattr(text, "chunk_size", None)
    return values if chunk is None else values // chunk + text.num_heads * chunk + inside


def _copied_head(shape: Any, compute: int) -> int:
    """How many weights a head has that is not computed with as it is held: rows of it are trained beside it, or all of
    it beside adapters, in float32."""
    head = shape.get_output_embeddings()
    if isinstance(head, TrainableTokensLayer):
        return int(head.get_base_layer().weight.numel())
    if isinstance(head, ModulesToSaveWrapper):
        held = head.modules_to_save.parameters()
        return sum(weight.numel() for weight in held if weight.element_size() > compute)
    return 0


def _experts(found: Sequence[tuple[int, int, bool]], unpacked_beside: int) -> Experts | None:
    """Of the weights, bytes and training of each of their tensors."""
    if not found:
        return None
    weights, held, trained = zip(*found, strict=True)
    return Experts(sum(weights), sum(held), any(trained), unpacked_beside)


def _idle(text: Any, experts: int) -> int:
    """How many of all experts' weights a token does not visit; 0 where the config does not say how many it does."""
    visited, every = (
        next((getattr(text, name) for name in names if getattr(text, name, None)), 0)
        for names in (_VISITED, _ALL_EXPERTS)
    )
    if not visited or not every:
        return 0
    return experts * max(0, every - visited) // every


def _tower_blocks(tower: Any, base: Any, names: list[str], compute: int, fused: Fused) -> Blocks:
    return Blocks(
        count=len(names),
        hidden=tower.hidden_size,
        attention=tower.hidden_size,
        intermediate=_dense(tower),
        inside_kept=_inside_kept(tower, base, names),
        heads=getattr(tower, "num_attention_heads", None) or getattr(tower, "num_heads", None) or 1,
        adapted_bytes=_adapted_bytes(base, names, compute, fused),
        adapted=_adapted(base, names),
        remade_bytes=_remade(base, names, compute),
    )


def _dense(config: Any) -> int:
    found = next((getattr(config, name) for name in _INTERMEDIATE if getattr(config, name, None)), None)
    if isinstance(found, Iterable):
        return int(max(found))
    return int(found or 4 * config.hidden_size)


def _inside_kept(config: Any, base: Any, names: list[str]) -> int:
    """By the feed-forward weights of a block: two matrices, or three where one of them is a gate."""
    inner = _dense(config)
    sizes = (
        parameter.numel()
        for name, parameter in base.named_parameters()
        if inside(name, names[:1]) and parameter.ndim == 2 and {inner, 2 * inner} & set(parameter.shape)
    )
    if sum(sizes) > 2.5 * inner * config.hidden_size:
        return 3
    activation = getattr(config, "hidden_act", getattr(config, "activation_function", None))
    return 4 if activation in IN_SEVERAL_STEPS else 1


def _patches(config: Any) -> int:
    """Patches that one image token is made of: merged squares of them (Qwen, Idefics, InternVL), or an image's, pooled
    (Gemma)."""
    tower = config.vision_config
    merged, pooled = getattr(tower, "spatial_merge_size", None), getattr(config, "mm_tokens_per_image", None)
    merged = merged or getattr(config, "scale_factor", None) or 1 / getattr(config, "downsample_ratio", 1)
    if merged > 1:
        return round(merged**2)
    return max(1, (tower.image_size // tower.patch_size) ** 2 // pooled) if pooled else 1


def _adapted_linear(base: Any, names: list[str]) -> dict[str, Any]:
    return {n: layer for n, layer in _adapters(base, names).items() if not isinstance(layer, ParamWrapper)}


def _adapted(base: Any, names: list[str]) -> int:
    layers = _adapted_linear(base, names).values()
    return int(sum(layer.in_features + layer.out_features for layer in layers)) // max(len(names), 1)


def _adapters(base: Any, names: list[str]) -> dict[str, Any]:
    found = base.named_modules()
    return {name: module for name, module in found if isinstance(module, LoraLayer) and inside(name, names)}


def _adapted_bytes(base: Any, names: list[str], compute: int, fused: Fused) -> int:
    layers = _adapted_linear(base, names)
    # DoRA keeps what a layer gives besides, by its base, its adapter and both: they are scaled to one magnitude.
    inputs = {
        n: layer.in_features + (3 * layer.out_features if layer.lora_variant else 0) for n, layer in layers.items()
    }
    rank = 0
    if layers:
        rank = max(max(layer.r.values()) for layer in layers.values())
    return adapted_bytes(inputs, len(names), compute, fused, rank)


def _norms_are_fused(base: Any, names: list[str]) -> bool:
    return any(is_rms_norm(module) for name, module in base.named_modules() if inside(name, names[:1]))


def _remade(base: Any, names: list[str], compute: int) -> int:
    tensors = [layer.get_param() for layer in _adapters(base, names).values() if isinstance(layer, ParamWrapper)]
    values: int = sum(tensor.numel() for tensor in tensors)
    return values * compute // max(len(names), 1)


def _is_trained(base: Any, names: list[str]) -> bool:
    return any(parameter.requires_grad for name, parameter in base.named_parameters() if inside(name, names))
