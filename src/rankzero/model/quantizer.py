"""Packing weights while transformers reads them, one at a time, so that the whole model is never there unpacked.

Layers and experts of the text model are packed. Embeddings, norms, routers, heads, projectors and vision towers are
not: they are a small share of the bytes and a large one of the error. A checkpoint in FP8 or MXFP4 is unpacked on
the way.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AutoHfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from rankzero.model.low_bits import Float8Linear, Float8Weight, Nf4Weight, hold, release, to_float8
from rankzero.model.targets import expert_tensors, linear_parts

METHOD = "rankzero"
Quantization = Literal["none", "nf4", "fp8"]


@register_quantization_config(METHOD)
class PackedConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """What `from_pretrained` is given: the format, the precision to compute in, and how the files are packed.

    `weights` none unpacks a checkpoint and packs nothing.
    """

    def __init__(self, weights: Quantization, dtype: torch.dtype, source: dict[str, Any] | None = None) -> None:
        self.quant_method = METHOD
        self.weights = weights
        self.dtype = dtype
        self.source = source

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": METHOD, "weights": self.weights, "dtype": str(self.dtype)}


@register_quantizer(METHOD)
class Packer(HfQuantizer):  # type: ignore[misc]
    """The hooks that transformers calls before, during and after reading weights."""

    quantization_config: PackedConfig

    def __init__(self, quantization_config: PackedConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.packed: tuple[str, ...] = ()
        """Names of the parameters that are packed, in the model's order."""
        source = quantization_config.source
        self.source = None
        if source is not None:  # transformers then lets our own operations decide about precision
            self.pre_quantized = True
            self.source = AutoHfQuantizer.from_config({**source, "dequantize": True}, pre_quantized=True)

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        del kwargs
        if self.quantization_config.weights == "none":
            return
        layers = [
            name
            for name, part in linear_parts(model).items()
            if part in ("language", "experts") and type(model.get_submodule(name)) in (torch.nn.Linear, Conv1D)
        ]
        self.packed = (*(f"{name}.weight" for name in layers), *expert_tensors(model))
        for name in layers:
            layer = model.get_submodule(name)
            with torch.device("meta"):
                replacement = self._layer(layer)
            replacement.requires_grad_(False)
            model.set_submodule(name, replacement)

    def _layer(self, layer: Any) -> torch.nn.Module:
        transposed = isinstance(layer, Conv1D)
        rows, columns = layer.weight.T.shape if transposed else layer.weight.shape
        bias = layer.bias is not None
        new: torch.nn.Module
        if self.quantization_config.weights == "fp8":
            new = Float8Linear(columns, rows, bias)
        else:
            from bitsandbytes.nn import Linear4bit

            dtype = self.quantization_config.dtype
            new = Linear4bit(columns, rows, bias, dtype, quant_type="nf4", quant_storage=dtype)
        new.transposed = transposed  # type: ignore[assignment]
        return new

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        del model, kwargs
        return param_name in self.packed

    def get_quantize_ops(self) -> Any:
        return Pack(self)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        if self.source is None:
            return weight_conversions
        conversions: list[Any] = self.source.update_weight_conversions(weight_conversions, model)
        converters = [conversion for conversion in conversions if isinstance(conversion, WeightConverter)]
        for converter in converters:
            converter.operations = [*converter.operations, Pack(self)]
        if not any("weight" in converter.target_patterns for converter in converters):  # layers are read as they are
            conversions.append(WeightConverter(["weight"], ["weight"], [Pack(self)]))
        return conversions

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        del kwargs
        for name in self.packed:
            module, parameter = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
            unpack = getattr(getattr(module, parameter), "unpack", None)
            if unpack is not None:
                hold(module, parameter, unpack)
        model.is_loaded_in_4bit = self.quantization_config.weights == "nf4"
        if self.quantization_config.weights == "none":
            self.remove_quantization_config(model)
            model._weight_conversions = None  # saving would otherwise pack the weights again
        return model

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return True


class Pack(ConversionOps):  # type: ignore[misc]
    """One weight, as read, to the parameter that is kept."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer

    @torch.no_grad()
    def convert(
        self,
        input_dict: dict[str, Any],
        *,
        full_layer_name: str,
        model: Any,
        source_patterns: Any = None,
        target_patterns: Any = None,
        config: Any = None,
        missing_keys: Any = None,
    ) -> dict[str, Any]:
        del source_patterns, target_patterns, config, missing_keys
        return {key: self._packed(value, _full_name(key, full_layer_name), model) for key, value in input_dict.items()}

    def _packed(self, value: Any, name: str, model: Any) -> Any:
        weight: torch.Tensor = value[0] if isinstance(value, list) else value
        if name not in self._packer.packed:
            return weight.to(model.get_parameter_or_buffer(name).dtype)
        settings = self._packer.quantization_config
        module, weight = model.get_submodule(name.rpartition(".")[0]), weight.to(settings.dtype)
        if getattr(module, "transposed", False):
            weight = weight.T
        if settings.weights == "fp8":
            packed, scale = _one_by_one(weight) if weight.ndim == 3 else to_float8(weight)
            return _kept(packed, Float8Weight(scale, settings.dtype))
        from bitsandbytes.functional import quantize_4bit
        from bitsandbytes.nn import Linear4bit, Params4bit

        if isinstance(module, Linear4bit):
            options = {"quant_type": "nf4", "quant_storage": settings.dtype, "module": module}
            return Params4bit(weight.contiguous(), requires_grad=False, **options).to(weight.device)
        packed, state = quantize_4bit(
            weight.contiguous(), compress_statistics=True, quant_type="nf4", quant_storage=settings.dtype
        )
        return _kept(packed, Nf4Weight(state))


def _one_by_one(experts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`to_float8` without float32 copies of all experts at once."""
    pairs = [to_float8(expert) for expert in experts]
    return torch.stack([packed for packed, _ in pairs]), torch.stack([scale for _, scale in pairs])


def _kept(packed: torch.Tensor, unpack: torch.nn.Module) -> torch.nn.Parameter:
    """A parameter that carries what reads it, until the module that it is put into holds it."""
    parameter = torch.nn.Parameter(packed, requires_grad=False)
    parameter.unpack = unpack  # type: ignore[attr-defined]
    return parameter


def _full_name(key: str, full_layer_name: str) -> str:
    """An operation names its tensors by the end of their names, or whole."""
    prefix, found, _ = full_layer_name.partition(key)
    return prefix + key if found else full_layer_name


def unpack(model: Any) -> None:
    """Replace every packed weight by the weight that it stands for, exactly as it was computed with."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Linear4bit":
            model.set_submodule(name, _plain_layer(module))
        for parameter in list(getattr(module, "parametrizations", ())):
            release(module, parameter)
            if isinstance(module, Float8Linear):
                model.set_submodule(name, _plain_layer(module))
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    model.is_loaded_in_4bit = False
    model._weight_conversions = None


def _plain_layer(module: Any) -> torch.nn.Module:
    """The layer that a packed one replaced. Its weight is already unpacked, or of bitsandbytes."""
    weight = module.weight
    if (state := getattr(weight, "quant_state", None)) is not None:
        from bitsandbytes.functional import dequantize_4bit

        weight = dequantize_4bit(weight.data, state)
    transposed = getattr(module, "transposed", False) or getattr(module, "source_cls", None) is Conv1D
    with torch.device("meta"):
        rows, columns = weight.shape
        plain = Conv1D(rows, columns) if transposed else torch.nn.Linear(columns, rows, bias=module.bias is not None)
    plain.weight = torch.nn.Parameter(weight.data.T.contiguous() if transposed else weight.data, requires_grad=False)
    plain.bias = module.bias
    return plain
