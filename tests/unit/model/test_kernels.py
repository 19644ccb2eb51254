"""Fused layers: what libraries are asked for, and what is refused. The kernels themselves need a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.integrations import hub_kernels

from rankzero.errors import ConfigError, ServiceError
from rankzero.model import kernels
from rankzero.model.kernels import apply_kernels


def llama() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=96))


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A liger-kernel that knows llama: it replaces norms, and unless told not to, the forward pass by one of its own
    with the loss in it."""

    def apply(model: Any, cross_entropy: bool = True, fused_linear_cross_entropy: bool = True) -> None:
        for layer in model.model.layers:
            layer.input_layernorm.forward = fused
        if cross_entropy or fused_linear_cross_entropy:
            model.forward = fused

    package, transformers, patches = (
        ModuleType(name)
        for name in ("liger_kernel", "liger_kernel.transformers", "liger_kernel.transformers.monkey_patch")
    )
    transformers._apply_liger_kernel_to_instance = apply  # type: ignore[attr-defined]
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": None}  # type: ignore[attr-defined]
    for module in (package, transformers, patches):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def fused(x: Any) -> Any:
    return x


def has_fused_layers(model: Any) -> bool:
    return any(module.__dict__.get("forward") is fused for module in model.modules())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A kernels package that fetches nothing."""
    package = ModuleType("kernels")
    package.Mode = SimpleNamespace(TRAINING="training")  # type: ignore[attr-defined]
    package.kernelize = Mock()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernels", package)
    monkeypatch.setattr(kernels, "is_kernels_available", lambda: True)
    monkeypatch.setattr(hub_kernels, "register_kernel_mapping_transformers", Mock(), raising=False)
    monkeypatch.setattr(kernels, "offline", lambda: False)
    return package.kernelize  # type: ignore[attr-defined,no-any-return]


def test_none_changes_nothing_anywhere() -> None:
    model = llama()
    before = dict(model.__dict__)
    apply_kernels(model, "none", device_kind="cpu")
    assert model.__dict__ == before


@pytest.mark.parametrize("choice", ["liger", "hub"])
@pytest.mark.usefixtures("liger")
def test_kernels_are_refused_where_there_is_no_gpu(choice: Any, hub: Mock) -> None:
    model = llama()
    with pytest.raises(ConfigError, match=f"{choice} kernels need an NVIDIA GPU, and this run uses cpu") as caught:
        apply_kernels(model, choice, device_kind="cpu")
    assert caught.value.problems[0].where == "model.kernels"
    assert not has_fused_layers(model) and not hub.called
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="uses cpu"):
            apply_kernels(llama(), choice)


@pytest.mark.usefixtures("liger")
@pytest.mark.parametrize("adapters", [False, True])
def test_liger_fuses_layers_under_adapters_too_and_leaves_the_loss_alone(adapters: bool) -> None:
    model = llama()
    whole = get_peft_model(model, LoraConfig(target_modules=["q_proj"])) if adapters else model
    apply_kernels(whole, "liger", device_kind="cuda")
    assert all(layer.input_layernorm.forward is fused for layer in model.model.layers)
    assert "forward" not in model.__dict__


@pytest.mark.usefixtures("liger")
def test_liger_is_refused_for_a_model_that_it_does_not_know() -> None:
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=64))
    with pytest.raises(ConfigError, match="no kernels for gpt2"):
        apply_kernels(model, "liger", device_kind="cuda")
    assert not has_fused_layers(model)


class Nowhere:
    """Hides liger-kernel, where it is installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == "liger_kernel":
            raise ModuleNotFoundError(name, name=name)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.split(".")[0] == "liger_kernel"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Nowhere(), *sys.meta_path])
    monkeypatch.setattr(kernels, "is_kernels_available", lambda: False)
    for choice, package in (("liger", "liger-kernel"), ("hub", "kernels")):
        with pytest.raises(ConfigError, match="not installed") as caught:
            apply_kernels(llama(), choice, device_kind="cuda")  # type: ignore[arg-type]
        assert caught.value.problems[0].hint.startswith("pip install ") and package in caught.value.problems[0].hint


@pytest.mark.usefixtures("liger")
def test_a_liger_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", None)
    with pytest.raises(ConfigError, match="liger-kernel cannot be used: "):
        apply_kernels(llama(), "liger", device_kind="cuda")


@pytest.mark.usefixtures("liger")
def test_a_liger_that_does_not_go_with_this_transformers_is_told_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its patches are of one version of each model: liger-kernel 0.8.5 looks for a class of Qwen3-VL's that
    transformers 5.23 no longer has."""

    def apply(**_: Any) -> None:
        raise ImportError("cannot import name 'LigerQwen3VLCausalLMOutputWithPast'")

    monkeypatch.setattr(sys.modules["liger_kernel.transformers"], "_apply_liger_kernel_to_instance", apply)
    with pytest.raises(ConfigError, match="does not go with this transformers for llama: cannot import") as caught:
        apply_kernels(llama(), "liger", device_kind="cuda")
    (problem,) = caught.value.problems
    assert (
        problem.where == "model.kernels"
        and problem.hint == "another version of liger-kernel may; or set model.kernels: none"
    )


def test_hub_kernels_are_for_training_on_the_gpu_wherever_the_weights_are_now(hub: Mock) -> None:
    """transformers' own call would take kernels for a CPU and for evaluation at this point."""
    model = llama().eval()
    apply_kernels(get_peft_model(model, LoraConfig(target_modules=["q_proj"])), "hub", device_kind="cuda")
    hub.assert_called_once_with(model, mode="training", device="cuda", use_fallback=True)


@pytest.mark.parametrize("local_files_only", [False, True])
def test_hub_kernels_are_refused_without_the_network(
    local_files_only: bool, hub: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "offline", lambda: not local_files_only)
    with pytest.raises(ConfigError, match="may not use the network"):
        apply_kernels(llama(), "hub", device_kind="cuda", local_files_only=local_files_only)
    assert not hub.called


def test_a_hub_that_does_not_answer_is_a_service_error(hub: Mock) -> None:
    hub.side_effect = OSError("no route to host\nsecond line")
    with pytest.raises(ServiceError, match="kernels cannot be fetched: no route to host") as caught:
        apply_kernels(llama(), "hub", device_kind="cuda")
    assert "second line" not in str(caught.value)


REAL_LIGER = """
import importlib.machinery, json, sys
from unittest.mock import MagicMock


class Triton:  # imported, never run: a stand-in for the compiler that a CPU does not have
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name, __version__="3.5.0")
        module.jit = lambda f=None, **options: f or (lambda g: g)
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Triton())
from rankzero.model.kernels import apply_kernels
from tests.unit.model.test_kernels import llama

model = llama()
names = list(model.state_dict())
apply_kernels(model, "liger", device_kind="cuda")
layer = model.model.layers[0]
assert list(model.state_dict()) == names
assert "forward" not in model.__dict__ and "liger" not in type(model).forward.__module__, "the loss is fused"
print(json.dumps([m.forward.__func__.__module__ for m in (layer.mlp, layer.input_layernorm, model.model.norm)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="needs liger-kernel")
def test_the_real_liger_replaces_norms_and_mlps_and_not_the_forward_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REAL_LIGER],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("liger_kernel.transformers") == 3
