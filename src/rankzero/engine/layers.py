"""How a run has the layers of its model compute: what takes the place of which, on which device, in this order. Knows
nothing of how each of them does it, and no model's name."""

from __future__ import annotations

from typing import Any

from rankzero.engine.device import Device
from rankzero.model import block_attention, dropout_attention
from rankzero.model.attention import Attention
from rankzero.model.compiling import compile_blocks
from rankzero.model.cpu_products import multiply_faster, own_precisions
from rankzero.model.dropout import Places, place_dropout
from rankzero.model.facts import fused_of
from rankzero.model.float32_sums import sum_in_float32
from rankzero.model.fused_lora import fuse_adapters
from rankzero.model.norms import fuse_norms
from rankzero.model.own_dropout import leave_own_dropout_out
from rankzero.model.rescaling import leave_weights_as_they_are
from rankzero.model.saved_modules import compute_in_base_precision, look_up_trained_tokens
from rankzero.spec.run_spec import RunSpec


def fit_layers(model: Any, spec: RunSpec, device: Device, attention: Attention, places: Places) -> str | None:
    """Have the model's layers compute as this run does on this device, in place. Returns what `compile_blocks` does."""
    if not keeps_own_dropout(spec):
        leave_own_dropout_out(model)
    leave_weights_as_they_are(model)
    dropping = place_dropout(model, places) > 0
    fused = fused_of(spec, device.kind)
    if fused.adapters:
        fuse_adapters(model)
    if fused.norms and spec.model.kernels == "none":
        fuse_norms(model)
    sum_in_float32(model, device.kind)
    if spec.lora is not None:
        compute_in_base_precision(model)
        look_up_trained_tokens(model)
    if attention.implementation == dropout_attention.NAME:
        dropout_attention.place_attention(model, places)
        dropping = True
    places.wanted = dropping
    own = own_products(spec, device)
    block_attention.compute_in_float32("bfloat16" in own)
    if spec.train.torch_compile:
        return compile_blocks(model)
    if own:
        multiply_faster(model)
    return None


def keeps_own_dropout(spec: RunSpec) -> bool:
    """Whether a run trains with the dropout that its model brings along. Rewards are measured against the model as it
    was without any: what is dropped by chance would be in every one of them."""
    return spec.task_section.trains != "preferences"


def own_products(spec: RunSpec, device: Device) -> frozenset[str]:
    """In which precisions (float32, bfloat16) linear layers multiply as model/cpu_products.py does, not as torch
    would."""
    return own_precisions() if device.kind == "cpu" and not spec.train.torch_compile else frozenset()
