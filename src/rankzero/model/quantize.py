"""Bases held in fewer bits under adapters: which way they are loaded, and what is done before training on them."""

from __future__ import annotations

from typing import Any

import torch

from rankzero.errors import ConfigError
from rankzero.model.quantizer import PackedConfig
from rankzero.spec.run_spec import ModelSpec

_UNPACKED_ON_THE_WAY = ("fp8", "mxfp8", "mxfp4")


def quantization_config(spec: ModelSpec, config: Any, dtype: torch.dtype, device: torch.device | None) -> Any:
    """What `from_pretrained` is told of quantisation; None where it reads the files as they are.

    nf4 is 4-bit NormalFloat with double quantisation; fp8 is float8_e4m3 with a scale for each 128 x 128 weights. Both
    multiply in `dtype`, so they work on every device that has the number format. Files in FP8 or MXFP4 are
    unpacked on the way, files of bitsandbytes are used as they are. May change `config`. Raises ConfigError.
    """
    wanted, source = spec.quantization, _packed_by(config)
    if wanted == "nf4":
        _require_bitsandbytes()
    if wanted == "fp8" and device is not None and device.type == "mps":
        raise ConfigError("this device has no 8-bit floats", where="model.quantization", hint="take nf4 or none")
    method = None if source is None else str(source.get("quant_method", "")).removeprefix("QuantizationMethod.")
    if source is None:
        return None if wanted == "none" else PackedConfig(wanted, dtype)
    if method in _UNPACKED_ON_THE_WAY:
        forget_packing(config)
        return PackedConfig(wanted, dtype, source)
    if method == "bitsandbytes" and source.get("load_in_4bit") and wanted == "nf4":
        name = str(dtype).removeprefix("torch.")
        config.quantization_config = {**source, "bnb_4bit_compute_dtype": name}
        return None
    four_bit = method == "bitsandbytes" and source.get("load_in_4bit")
    hint = "take its unquantised weights" + (", or model.quantization: nf4 with a lora section" if four_bit else "")
    raise ConfigError(f"the model's files hold weights packed by {method}", where="model.name", hint=hint)


def forget_packing(config: Any) -> None:
    """Let a config be that of the unpacked model."""
    for holder in (config, config.get_text_config()):
        if hasattr(holder, "quantization_config"):
            del holder.quantization_config


def is_quantised(model: Any) -> bool:
    """Whether some weights of a loaded model are packed."""
    return bool(getattr(model, "is_quantized", False))


def keep_layout(model: Any) -> None:
    """Let no 4-bit layer rearrange its weight, on any CPU.

    On one with avx512_bf16 those of bitsandbytes would, in the first evaluation pass: for kernels that have no backward
    pass, with scales rounded to bfloat16, and without ever undoing it. Training would go on with other weights and
    wrong gradients, and narrow layers would crash.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def prepare_quantized(model: Any) -> None:
    """Freeze a packed model and put its norms in float32, where a rounded sum of squares would cost the most.

    peft's `prepare_model_for_kbit_training` without its other half: gradients for the inputs belong to activation
    checkpointing, which the loop turns on, and embeddings and heads stay as they are since autocast computes with them.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(torch.float32)


def _packed_by(config: Any) -> dict[str, Any] | None:
    """How config.json says that the files are packed."""
    for holder in (config, config.get_text_config()):
        found = getattr(holder, "quantization_config", None)
        if found is not None:
            return dict(found) if isinstance(found, dict) else dict(found.to_dict())
    return None


def _require_bitsandbytes() -> None:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        hint = "pip install 'rankzero[quantization]'"
        raise ConfigError("nf4 needs the package bitsandbytes", where="model.quantization", hint=hint) from error
