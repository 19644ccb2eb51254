"""Products made elsewhere than by torch are torch's, forward and backward, in plain layers and under adapters:
float32 by oneDNN, bfloat16 in float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.checkpoint import checkpoint

from rankzero.data.batches.collators.text import PaddedText
from rankzero.model import cpu_products
from rankzero.model.cpu_products import multiply_faster, own_precisions
from rankzero.model.dropout import Places, place_dropout
from rankzero.model.fused_lora import fuse_adapters
from tests.unit.model.packed import Rows, collated, losses, tiny

AMD, INTEL, WITH_AMX = "avx2 sse4a avx512f avx512_bf16", "avx512f avx512_bf16 avx512_fp16", "avx512_bf16 amx_bf16"


@pytest.fixture
def however_few(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On AMD's CPUs products of any size are oneDNN's; how many rows each had."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch is built without oneDNN")
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", AMD)
    monkeypatch.setattr(cpu_products, "_FEWEST", 1)
    own, calls = torch.ops.mkldnn._linear_pointwise, []

    def counted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(x[..., 0].numel())
        result: torch.Tensor = own(x, *rest)
        return result

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", counted)
    return calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24), (1, 24), (0, 24), (24,)])
@pytest.mark.usefixtures("however_few")
def test_a_layer_computes_what_it_did(shape: tuple[int, ...], trained: bool, bias: bool) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Linear(24, 40, bias=bias).requires_grad_(trained)
    ours = copy.deepcopy(theirs)
    assert (multiply_faster(ours), multiply_faster(ours)) == (1, 0)
    assert isinstance(ours, torch.nn.Linear) and type(ours).__name__ == "Linear"
    x = torch.randn(shape)
    found = []
    for layer in (ours, theirs):
        here = x.clone().requires_grad_()
        out = layer(here)
        out.backward(torch.linspace(-1, 1, 40).expand(out.shape))
        found.append([out, here.grad, *(p.grad for p in layer.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("features", "dtype"), [(AMD, torch.float32), (INTEL, torch.bfloat16)])
@pytest.mark.usefixtures("however_few", "however_few_tokens")
def test_what_is_returned_may_be_changed_in_place_and_recomputed(
    features: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", features)
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(24, 40).to(dtype), torch.randn(6, 24).to(dtype)
    found = []
    for _ in range(2):
        here = x.clone().requires_grad_()
        layer.zero_grad()
        changed = checkpoint(lambda x: layer(x).add_(1).relu_(), here, use_reentrant=False)
        changed.sum().backward()
        found.append([changed, here.grad, *(p.grad.clone() for p in layer.parameters())])
        multiply_faster(layer)
    close = 1e-5 if dtype is torch.float32 else 1e-2
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=close, atol=close)


def test_other_precisions_and_autocast_stay_as_they_are(however_few: list[int]) -> None:
    layer, x = torch.nn.Linear(24, 40), torch.randn(6, 24)
    half = torch.nn.Linear(24, 40).bfloat16()
    assert (multiply_faster(layer), multiply_faster(half)) == (1, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    assert layer.bfloat16()(x.bfloat16()).dtype is torch.bfloat16 and not however_few


def trained_as(how: str, model: Any, places: Places) -> Any:
    """In full, or with adapters on it."""
    if how != "full":
        torch.manual_seed(1)
        dropout = 0.3 if "drop" in how else 0.0
        config = LoraConfig(r=4, target_modules="all-linear", lora_dropout=dropout, init_lora_weights=False)
        model = get_peft_model(model.requires_grad_(False), config)
        place_dropout(model, places)
    if "fused" in how:
        fuse_adapters(model)
    return model.train()


@pytest.mark.parametrize("model_type", ["llama", "falcon"])
@pytest.mark.parametrize("how", ["full", "adapters", "fused adapters", "fused adapters that drop"])
def test_a_models_loss_and_gradients_are_the_same(model_type: str, how: str, however_few: list[int]) -> None:
    places, batch = Places(3), collated(Rows(), PaddedText())
    model = trained_as(how, tiny(model_type, "sdpa"), places)

    def gradients() -> list[torch.Tensor]:
        places.begin_pass(5, batch.row_of_BT, batch.position_BT, batch.predicts_N)
        model.zero_grad()
        loss = losses(model, batch).sum()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.requires_grad)]

    wanted = gradients()
    assert not however_few and multiply_faster(model) > 0
    for ours, theirs in zip(gradients(), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=3e-6 * max(1.0, float(theirs.abs().max())))
    assert however_few


def test_small_products_are_not_worth_a_call(monkeypatch: pytest.MonkeyPatch, however_few: list[int]) -> None:
    monkeypatch.setattr(cpu_products, "_FEWEST", 100 * 24 * 40)
    layer = torch.nn.Linear(24, 40)
    multiply_faster(layer)
    layer(torch.randn(99, 24))
    assert not however_few
    layer(torch.randn(100, 24))
    assert however_few == [100]


@pytest.fixture
def however_few_tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """On Intel's CPUs without AMX all products of bfloat16 are made in float32, some rows of a weight at a time; how
    many rows each time."""
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", INTEL)
    monkeypatch.setattr(cpu_products, "_FEWEST_TOKENS", 1)
    monkeypatch.setattr(cpu_products, "_AT_ONCE", 24 * 15)
    own, calls = cpu_products._widened, []

    def counted(weight: torch.Tensor, precision: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
        for rows, wide in own(weight, precision):
            calls.append(len(wide))
            yield rows, wide

    monkeypatch.setattr(cpu_products, "_widened", counted)
    return calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24), (1, 24), (0, 24), (24,)])
def test_bfloat16_is_multiplied_in_float32_and_rounded_once(
    shape: tuple[int, ...], held: torch.dtype, trained: bool, bias: bool, however_few_tokens: list[int]
) -> None:
    """Weights in either precision under autocast, as a run computes: what comes out is next to the exact result."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(24, 40, bias=bias).to(held).requires_grad_(trained)
    exact = torch.nn.Linear(24, 40, bias=bias).double().requires_grad_(trained)
    exact.load_state_dict({name: value.bfloat16() for name, value in layer.state_dict().items()})
    assert (multiply_faster(layer), multiply_faster(layer)) == (1, 0)
    x, of_out = torch.randn(shape).bfloat16(), torch.randn(*shape[:-1], 40).bfloat16()
    found = []
    for one, dtype in ((layer, torch.bfloat16), (exact, torch.float64)):
        here = x.to(dtype, copy=True).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            out = one(here)
        assert out.dtype is dtype
        out.backward(of_out.to(dtype))
        found.append([out, here.grad, *(p.grad for p in one.parameters())])
    for ours, wanted in zip(*found, strict=True):
        assert (ours is None) == (wanted is None)
        if ours is not None and wanted is not None:
            assert ours.dtype in (torch.bfloat16, held)
            torch.testing.assert_close(ours.double(), wanted, rtol=2**-8, atol=1e-5)
    assert however_few_tokens == ([15, 15, 10] * 2 if len(shape) > 1 and 0 not in shape else [])


def test_a_weight_is_widened_for_enough_tokens_alone(
    monkeypatch: pytest.MonkeyPatch, however_few_tokens: list[int]
) -> None:
    monkeypatch.setattr(cpu_products, "_FEWEST_TOKENS", 8)
    layer = torch.nn.Linear(24, 40).bfloat16()
    multiply_faster(layer)
    for x in (torch.randn(7, 24), torch.randn(2, 3, 24)):
        layer(x.bfloat16().requires_grad_()).sum().backward()
    assert not however_few_tokens
    layer(torch.randn(2, 4, 24).bfloat16())
    assert however_few_tokens == [15, 15, 10]


def test_float32_and_float64_are_torchs_where_bfloat16_is_ours(however_few_tokens: list[int]) -> None:
    layer, wide = torch.nn.Linear(24, 40), torch.nn.Linear(24, 40).double()
    assert (multiply_faster(layer), multiply_faster(wide)) == (1, 0)
    assert layer(torch.randn(3, 24)).dtype is torch.float32 and not however_few_tokens
    with torch.autocast("cpu", dtype=torch.float16):
        assert layer(torch.randn(3, 24)).dtype is torch.float16 and not however_few_tokens


@pytest.mark.parametrize("held", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("how", ["full", "adapters", "fused adapters", "fused adapters that drop"])
def test_a_models_gradients_in_bfloat16_are_as_exact_as_torchs(
    how: str, held: torch.dtype, however_few_tokens: list[int]
) -> None:
    """As far from those in float32 as what torch itself computes is, but for rounding here and there."""
    batch, places = collated(Rows(), PaddedText()), Places(3)

    def model_in(dtype: torch.dtype) -> Any:
        return trained_as(how, tiny("llama", "sdpa").to(dtype), places)

    def gradients(model: Any, autocast: bool) -> torch.Tensor:
        places.begin_pass(5, batch.row_of_BT, batch.position_BT, batch.predicts_N)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = losses(model, batch).sum()
        loss.backward()
        return torch.cat([loss.detach().view(1).float()] + [p.grad.flatten().float() for p in trained_of(model)])

    exact, theirs = gradients(model_in(torch.float32), False), gradients(model_in(held), True)
    model = model_in(held)
    assert multiply_faster(model) > 0 and not however_few_tokens
    ours = gradients(model, True)
    assert however_few_tokens
    far = [float((found - exact).norm() / exact.norm()) for found in (ours, theirs)]
    assert far[0] < 1.2 * far[1] + 1e-3 and far[0] < 0.05


def trained_of(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        (AMD, {"float32"}),
        ("avx2 fma sse4a", set()),  # where MKL uses all there is
        ("avx2 fma sse4a avx512_bf16 avx512_fp16", set()),
        (WITH_AMX, set()),
        ("avx512_bf16 avx512_fp16 amx_bf16", set()),
        ("avx512f avx512_bf16", set()),  # Cooper Lake
        (INTEL, {"bfloat16"}),
        ("", set()),
    ],
)
def test_which_cpus(features: str, wanted: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if wanted == {"float32"} and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch is built without oneDNN")
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", features)
    assert own_precisions() == wanted
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert own_precisions() == wanted - {"float32"}
    if not own_precisions():
        assert multiply_faster(torch.nn.Linear(4, 4)) == 0
