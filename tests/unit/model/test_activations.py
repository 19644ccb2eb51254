"""Offloaded activations: the same gradients bit for bit, whatever is moved, and weights never are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from rankzero.model import activations
from rankzero.model.activations import offloaded


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Everything but weights is moved, from the CPU to the CPU; the tensors that were."""
    seen: list[torch.Tensor] = []

    def worth_moving(tensor: torch.Tensor) -> bool:
        return type(tensor) is torch.Tensor and not activations._is_weight(tensor)

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor.detach().clone()

    monkeypatch.setattr(activations, "_worth_moving", worth_moving)
    monkeypatch.setattr(activations, "_to_host", to_host)
    return seen


def gradients(enabled: bool, *, checkpointing: bool = False, autocast: bool = False) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 96}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1))
    model.model.layers[0].self_attn.q_proj.weight.requires_grad_(False)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    ids = torch.randint(0, 96, (2, 24))
    torch.manual_seed(1)
    with offloaded(enabled), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_are_the_same_to_the_bit(moved: list[Any], checkpointing: bool, autocast: bool) -> None:
    plain = gradients(False, checkpointing=checkpointing, autocast=autocast)
    assert not moved
    with_offloading = gradients(True, checkpointing=checkpointing, autocast=autocast)
    assert len(moved) > 2
    assert plain.keys() == with_offloading.keys() and len(plain) > 10
    assert all(torch.equal(plain[name], with_offloading[name]) for name in plain)


def test_on_a_cpu_nothing_is_moved() -> None:
    x = torch.randn(1024, 512, requires_grad=True)
    seen = []
    with offloaded(True):
        y = x.exp()
        seen.append(y.grad_fn._saved_result)  # type: ignore[union-attr]
    assert seen[0].data_ptr() == y.data_ptr()


def test_weights_stay_whatever_form_they_are_saved_in(moved: list[torch.Tensor]) -> None:
    """As they are, transposed, frozen, and as autocast casts them."""
    trained = torch.nn.Parameter(torch.randn(64, 64))
    frozen = torch.nn.Parameter(torch.randn(64, 64), requires_grad=False)
    x = torch.randn(8, 64, requires_grad=True)
    with offloaded(True):
        y = torch.nn.functional.linear(x, trained)
        y = torch.nn.functional.linear(y, frozen) * trained[0]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.nn.functional.linear(y, trained)
    y.float().sum().backward()
    assert {tensor.shape for tensor in moved} == {(8, 64)}


def test_a_tensor_that_several_operations_save_is_moved_once(moved: list[torch.Tensor]) -> None:
    x = torch.randn(8, 64, requires_grad=True)
    with offloaded(True):
        hidden = x * 2
        y = sum(torch.nn.functional.linear(hidden, torch.nn.Parameter(torch.randn(64, 64))).sum() for _ in range(3))
    assert sum(tensor.shape == (8, 64) for tensor in moved) == 1
    assert isinstance(y, torch.Tensor)
    y.backward()
    assert x.grad is not None


def test_an_address_that_is_used_again_is_not_taken_for_the_tensor_before(moved: list[torch.Tensor]) -> None:
    """Without the weak reference, the second tensor would come back with the first one's values."""
    host, memory = activations._Host(), bytearray(4000)
    first = torch.frombuffer(memory, dtype=torch.float32)
    packed = host.pack(first.fill_(1.0))
    moved.clear()
    del first
    second = torch.frombuffer(memory, dtype=torch.float32).fill_(2.0)
    assert activations._unpack(host.pack(second)).unique().tolist() == [2.0]
    assert activations._unpack(packed).unique().tolist() == [1.0]


def test_values_changed_in_place_afterwards_are_another_tensor(moved: list[torch.Tensor]) -> None:
    host, x = activations._Host(), torch.ones(10)
    before = host.pack(x)
    x += 1
    after = host.pack(x)
    assert activations._unpack(before).unique().tolist() == [1.0]
    assert activations._unpack(after).unique().tolist() == [2.0]


def test_what_is_moved_comes_back_with_its_layout() -> None:
    transposed = torch.randn(6, 4, 5).permute(2, 0, 1)
    back = activations._unpack(activations._Moved(activations._to_host(transposed), transposed.device))
    assert back.stride() == transposed.stride() and torch.equal(back, transposed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_on_a_gpu_memory_is_freed_and_gradients_do_not_change(checkpointing: bool) -> None:
    results = []
    for enabled in (False, True):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(1024, 1024, device="cuda") for _ in range(16)]
        x = torch.randn(4096, 1024, device="cuda")
        at_rest = torch.cuda.memory_allocated()
        y = x.requires_grad_()
        with offloaded(enabled):
            for layer in layers:
                block = torch.nn.Sequential(layer, torch.nn.GELU())
                y = checkpoint(block, y, use_reentrant=False) if checkpointing else block(y)
        held = torch.cuda.memory_allocated() - at_rest
        y.square().sum().backward()
        results.append((held, [layer.weight.grad for layer in layers]))
    (plain, exact), (offloading, found) = results
    assert offloading < plain / 4
    assert all(torch.equal(a, b) for a, b in zip(exact, found, strict=True))
