"""Bases held in fewer bits under adapters: which way they are loaded, our own packing within transformers' loading, and
what is done before training on them. Knows nothing of how packed weights compute (low_bits.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch.nn import functional
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.pytorch_utils import Conv1D
from transformers.quantizers.auto import AutoHfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from rankzero.errors import ConfigError
from rankzero.model.low_bits import Float8Linear, Float8Weight, Nf4Weight, hold, release, to_float8
from rankzero.model.nf4 import pack_nf4, require_bitsandbytes, unpack_nf4
from rankzero.model.targets import expert_tensors, linear_parts
from rankzero.spec.run_spec import ModelSpec

_UNPACKED_ON_THE_WAY = ("fp8", "mxfp8", "mxfp4")


def quantization_config(
    spec: ModelSpec,
    config: Any,
    dtype: torch.dtype,
    device: torch.device | None,
    *,
    pack_on: torch.device | None = None,
) -> Any:
    """What `from_pretrained` is told of quantisation; None where it reads the files as they are.

    nf4 is 4-bit NormalFloat with double quantisation; fp8 is float8_e4m3 with a scale for each 128 x 128 weights. Both
    multiply in `dtype`, so they work on every device that has the number format. Weights are packed on `pack_on`, else
    on `device`, where they are kept. Files in FP8 or MXFP4 are unpacked on the way, files of bitsandbytes are used as
    they are. May change `config`. Raises ConfigError.
    """
    wanted, source = spec.quantization, _packed_by(config)
    if wanted == "nf4":
        _require_bitsandbytes()
    if wanted == "fp8" and device is not None and device.type == "mps":
        raise ConfigError("this device has no 8-bit floats", where="model.quantization", hint="take nf4 or none")
    method = _method(source)
    if source is None:
        return None if wanted == "none" else PackedConfig(wanted, dtype, pack_on=pack_on)
    if method in _UNPACKED_ON_THE_WAY:
        forget_packing(config)
        return PackedConfig(wanted, dtype, source, pack_on=pack_on)
    if method == "bitsandbytes" and source.get("load_in_4bit") and wanted == "nf4":
        name = str(dtype).removeprefix("torch.")
        config.quantization_config = {**source, "bnb_4bit_compute_dtype": name}
        return None
    four_bit = method == "bitsandbytes" and source.get("load_in_4bit")
    hint = "take its unquantised weights" + (", or model.quantization: nf4 with a lora section" if four_bit else "")
    raise ConfigError(f"the model's files hold weights packed by {method}", where="model.name", hint=hint)


def packed_while_read(spec: ModelSpec, config: Any) -> bool:
    """Whether a quantised model's weights are packed here, rather than taken as they are packed in its files."""
    return spec.quantization != "none" and _method(_packed_by(config)) in (None, *_UNPACKED_ON_THE_WAY)


def outline_packed(model: Any, quantization: Quantization, dtype: torch.dtype) -> None:
    """Let a model without memory look as one that was packed while it was read: its layers, tensors and scales.

    bitsandbytes' own functions do the same to tensors without memory, which is how their shapes come out right.
    """
    packer = Packer(PackedConfig(quantization, dtype))
    packer.preprocess_model(model)
    pack = Pack(packer)
    if quantization == "nf4":  # it keeps the first table of numbers that it makes, which has to be a real one
        pack_nf4(torch.zeros(256), torch.uint8)
    for name in packer.packed:
        owner, _, parameter = name.rpartition(".")
        module = model.get_submodule(owner)
        weight = getattr(module, parameter)
        weight = weight.T if getattr(module, "transposed", False) else weight  # as it lies in the files
        setattr(module, parameter, pack.packed(weight, name, model))
    packer.postprocess_model(model)
    model.hf_quantizer = packer


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


def _packed_by(config: Any) -> dict[str, Any] | None:
    """How config.json says that the files are packed."""
    for holder in (config, config.get_text_config()):
        found = getattr(holder, "quantization_config", None)
        if found is not None:
            return dict(found) if isinstance(found, dict) else dict(found.to_dict())
    return None


def _method(source: dict[str, Any] | None) -> str | None:
    return None if source is None else str(source.get("quant_method", "")).removeprefix("QuantizationMethod.")


def _require_bitsandbytes() -> None:
    try:
        require_bitsandbytes()
    except ImportError as error:
        hint = "pip install 'rankzero[quantization]'"
        raise ConfigError("nf4 needs the package bitsandbytes", where="model.quantization", hint=hint) from error


METHOD = "rankzero"
Quantization = Literal["none", "nf4", "fp8"]


@register_quantization_config(METHOD)
class PackedConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """What `from_pretrained` is given: the format, the precision to compute in, and how the files are packed.

    `weights` none unpacks a checkpoint and packs nothing. `pack_on`: weights go there to be packed, and back.
    """

    def __init__(
        self,
        weights: Quantization,
        dtype: torch.dtype,
        source: dict[str, Any] | None = None,
        *,
        pack_on: torch.device | None = None,
    ) -> None:
        self.quant_method = METHOD
        self.weights = weights
        self.dtype = dtype
        self.source = source
        self.pack_on = pack_on

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
        block = (self.quantization_config.source or {}).get("weight_block_size")
        for converter in converters:
            if block is not None:
                _let_blocks_be_cut(converter, tuple(block))
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


def _let_blocks_be_cut(converter: Any, block: tuple[int, int]) -> None:
    """Unpack weights whose last blocks are cut off by the weight's edge. transformers 5.23 takes all blocks of a weight
    to be of one size, and so finds scales for other places than they were made for, or none."""
    for operation in converter.operations:
        if isinstance(operation, Fp8Dequantize):
            operation._dequantize_one = partial(_unpacked_by_blocks, operation._dequantize_one, block)


def _unpacked_by_blocks(
    unpack_whole: Callable[..., torch.Tensor],
    block: tuple[int, int],
    packed: torch.Tensor,
    scales: torch.Tensor,
    output_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    rows, columns = packed.shape[-2:]
    below, beside = -rows % block[0], -columns % block[1]
    grid = ((rows + below) // block[0], (columns + beside) // block[1])
    if packed.element_size() != 1 or tuple(scales.shape[-2:]) != grid:  # a scale for all of it, or for each row
        return unpack_whole(packed, scales, output_dtype=output_dtype)
    whole = functional.pad(packed.view(torch.uint8), (0, beside, 0, below)).view(packed.dtype)
    return unpack_whole(whole, scales, output_dtype=output_dtype)[..., :rows, :columns].contiguous()


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
        return {
            key: self.packed(value[0] if isinstance(value, list) else value, _full_name(key, full_layer_name), model)
            for key, value in input_dict.items()
        }

    @torch.no_grad()
    def packed(self, weight: torch.Tensor, name: str, model: Any) -> Any:
        """The parameter `name` of `model` for a weight as it is in the files."""
        if name not in self._packer.packed:
            return weight.to(model.get_parameter_or_buffer(name).dtype)
        settings, home = self._packer.quantization_config, weight.device
        module, weight = (
            model.get_submodule(name.rpartition(".")[0]),
            weight.to(settings.pack_on or home, settings.dtype),
        )
        if getattr(module, "transposed", False):
            weight = weight.T
        if settings.weights == "fp8":
            packed, scale = _one_by_one(weight) if weight.ndim == 3 else to_float8(weight)
            return _kept(packed.to(home), Float8Weight(scale.to(home), settings.dtype))
        from bitsandbytes.nn import Linear4bit, Params4bit

        packed, state = pack_nf4(weight, settings.dtype)
        packed = packed.to(home)
        if home.type != "meta":
            state.to(home)
        if not isinstance(module, Linear4bit):
            return _kept(packed, Nf4Weight(state))
        module.quant_state = state
        parameter = Params4bit(
            packed,
            requires_grad=False,
            quant_state=state,
            blocksize=state.blocksize,
            quant_type="nf4",
            quant_storage=settings.dtype,
            module=module,
            bnb_quantized=True,
        )
        if home.type == "meta":  # theirs cannot be copied without memory, as peft does for DoRA, and need not be
            parameter.__deepcopy__ = lambda _memo: parameter
        return parameter


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


def unpack(model: Any) -> set[str]:
    """Replace every packed weight by the weight that it stands for, exactly as it was computed with. Returns the names
    of these."""
    unpacked = set()
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Linear4bit":
            model.set_submodule(name, _plain_layer(module))
            unpacked.add(f"{name}.weight")
        for parameter in list(getattr(module, "parametrizations", ())):
            release(module, parameter)
            unpacked.add(f"{name}.{parameter}")
            if isinstance(module, Float8Linear):
                model.set_submodule(name, _plain_layer(module))
    if getattr(model, "hf_quantizer", None) is not None:
        model.hf_quantizer.remove_quantization_config(model)
    model.is_loaded_in_4bit = False
    model._weight_conversions = None
    return unpacked


def _plain_layer(module: Any) -> torch.nn.Module:
    """The layer that a packed one replaced. Its weight is already unpacked, or of bitsandbytes."""
    weight = module.weight
    if (state := getattr(weight, "quant_state", None)) is not None:
        weight = unpack_nf4(weight.data, state)
    transposed = getattr(module, "transposed", False) or getattr(module, "source_cls", None) is Conv1D
    with torch.device("meta"):
        rows, columns = weight.shape
        plain = Conv1D(rows, columns) if transposed else torch.nn.Linear(columns, rows, bias=module.bias is not None)
    plain.weight = torch.nn.Parameter(weight.data.T.contiguous() if transposed else weight.data, requires_grad=False)
    plain.bias = module.bias
    return plain
