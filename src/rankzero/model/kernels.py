"""Fused layers from libraries, put into a loaded model. Knows which library to ask; the loss stays ours.

Logits are only ever computed for trained tokens here, so the libraries' fused losses would have nothing to save.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from transformers.utils import import_utils, is_kernels_available

from rankzero.errors import ConfigError, ServiceError
from rankzero.machine import offline
from rankzero.wording import first_line

Kernels = Literal["none", "liger", "hub"]

_FIELD = "model.kernels"
_LEAVE_OUT = "set model.kernels: none"


def apply_kernels(
    model: Any, choice: Kernels, *, device_kind: str | None = None, local_files_only: bool = False
) -> None:
    """Replace layers of `model`, with or without adapters, by fused ones that train. Weights keep their names.

    `device_kind` is where it will run, absent: on the GPU where there is one. Raises ConfigError where the library, the
    model type or the device does not allow it, ServiceError where the Hub does not answer.
    """
    if choice == "none":
        return
    kind = device_kind or ("cuda" if torch.cuda.is_available() else "cpu")
    require_fusing(choice, kind)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if choice == "liger":
        _apply_liger(base)
    else:
        _apply_hub(base, kind, no_network=local_files_only or offline())


def require_fusing(choice: Kernels, device_kind: str) -> None:
    """Raise ConfigError for kernels that such a device does not run."""
    if choice != "none" and device_kind != "cuda":
        what = f"{choice} kernels need an NVIDIA GPU, and this run uses {device_kind}"
        raise ConfigError(what, where=_FIELD, hint=_LEAVE_OUT)


def _apply_liger(model: Any) -> None:
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "liger_kernel"
        what = "liger-kernel is not installed" if missing else f"liger-kernel cannot be used: {error}"
        raise ConfigError(what, where=_FIELD, hint=f"pip install liger-kernel, or {_LEAVE_OUT}") from error
    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        what = f"liger-kernel has no kernels for {model.config.model_type}"
        raise ConfigError(what, where=_FIELD, hint=f"a newer liger-kernel may; or {_LEAVE_OUT}")
    try:
        _apply_liger_kernel_to_instance(model=model, cross_entropy=False, fused_linear_cross_entropy=False)
    except (ImportError, AttributeError, TypeError) as error:  # it is written for one version of each model's code
        why = f"{model.config.model_type}: {first_line(error)}"
        what = f"liger-kernel does not go with this transformers for {why}"
        raise ConfigError(what, where=_FIELD, hint=f"another version of liger-kernel may; or {_LEAVE_OUT}") from error


def _apply_hub(model: Any, device_kind: str, *, no_network: bool) -> None:
    if not is_kernels_available():
        what = "the package kernels is not installed, or in a version that transformers cannot use"
        oldest, beyond = (getattr(import_utils, f"KERNELS_{end}_VERSION", None) for end in ("MIN", "MAX"))
        package = f"'kernels>={oldest},<{beyond}'" if oldest and beyond else "kernels"
        raise ConfigError(what, where=_FIELD, hint=f"pip install {package}, or {_LEAVE_OUT}")
    if no_network:
        what = "kernels are fetched from the Hub, and this run may not use the network"
        raise ConfigError(what, where=_FIELD, hint=f"{_LEAVE_OUT}, or take liger")
    from kernels import Mode, kernelize
    from transformers.integrations.hub_kernels import register_kernel_mapping_transformers

    register_kernel_mapping_transformers()
    try:
        # transformers' own call would look at where the weights are now, and at evaluation mode: they are still on the
        # CPU, and kernels without a backward pass would be taken.
        kernelize(model, mode=Mode.TRAINING, device=device_kind, use_fallback=True)
    except Exception as error:  # the Hub, the network or the kernel's own build; the cause is kept
        reason = first_line(error)
        raise ServiceError(f"kernels cannot be fetched: {reason}", where=_FIELD, hint=_LEAVE_OUT) from error
