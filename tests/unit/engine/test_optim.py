"""Optimizers: what reaches the float32 result and what does not, what is random, and what a checkpoint brings back."""

from __future__ import annotations

import builtins
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import AutoModelForCausalLM, get_scheduler

from rankzero.engine import adamw_bfloat16
from rankzero.engine.adamw_bfloat16 import BFloat16AdamW, random_bits, round_at_random
from rankzero.engine.optim import make_optimizer, set_learning_rate
from rankzero.engine.parallel.base import optimizer_tensors, restore_optimizer
from rankzero.errors import ConfigError
from rankzero.spec.run_spec import TrainSpec
from rankzero.spec.schedule import make_schedule
from tests.support.tiny_configs import gpt_oss

KEEPS = ("kahan", "stochastic_rounding")
CPU = torch.device("cpu")
Named = dict[str, torch.nn.Parameter]


class Regression:
    """y = x·w for 64 weights near 1.5, where bfloat16 has a number every 1/128: steps of 1/400 are less than half."""

    rate, steps = 1 / 400, 200

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        self.x = torch.randn(512, 64, generator=draw)
        self.start = 1.5 + 0.1 * (torch.rand(1, 64, generator=draw) - 0.5)
        self.y = self.x @ (self.start + 0.2 * (torch.rand(1, 64, generator=draw) - 0.5)).T + 0.05

    def weights(self, dtype: torch.dtype) -> Named:
        named = {"weight": self.start.clone(), "bias": torch.zeros(1)}
        return {name: torch.nn.Parameter(tensor.to(dtype)) for name, tensor in named.items()}

    def loss(self, named: Named, rows: slice = slice(None)) -> torch.Tensor:
        predicted = self.x[rows] @ named["weight"].float().T + named["bias"].float()
        return (predicted - self.y[rows]).square().mean()

    def final_loss(self, named: Named) -> float:
        return float(self.loss(named).detach())

    def train(self, named: Named, optimizer: torch.optim.Optimizer, first: int = 0, last: int = 200) -> None:
        for step in range(first, last):
            optimizer.param_groups[0]["lr"] = self.rate * (1 - step / self.steps)
            rows = slice(step % 8 * 64, step % 8 * 64 + 64)
            self.loss(named, rows).backward()
            optimizer.step()
            optimizer.zero_grad()

    def trained(self, dtype: torch.dtype, **spec: Any) -> float:
        named = self.weights(dtype)
        self.train(named, make_optimizer(named, TrainSpec(**spec), self.rate))
        return self.final_loss(named)


@pytest.fixture(scope="module")
def regression() -> Regression:
    return Regression()


@pytest.mark.parametrize("keep", KEEPS)
def test_bfloat16_reaches_the_loss_of_float32_and_plain_rounding_does_not(regression: Regression, keep: Any) -> None:
    before = regression.final_loss(regression.weights(torch.float32))
    reference = regression.trained(torch.float32)
    plain = regression.weights(torch.bfloat16)
    regression.train(plain, torch.optim.AdamW(plain.values(), lr=regression.rate, weight_decay=0))
    kept = regression.trained(torch.bfloat16, master_weights=keep)
    assert reference < 0.002 * before  # float32 learns it
    assert torch.equal(plain["weight"], regression.weights(torch.bfloat16)["weight"])  # not one weight has moved
    assert regression.final_loss(plain) > 0.9 * before
    # What is left is that weights near 1 lie 1/128 apart: of errors to the nearest, 64 · (1/128)²/12 = 3.3e-4.
    assert abs(kept - reference) < (8e-4 if keep == "kahan" else 2e-3) < 0.01 * before


def test_weight_and_compensation_together_are_nearly_float32(regression: Regression) -> None:
    """Steps that a bfloat16 cannot see one by one add up in the compensation."""
    named, exact = regression.weights(torch.bfloat16), regression.weights(torch.float32)
    with torch.no_grad():
        exact["weight"].copy_(named["weight"])
    optimizer = make_optimizer(named, TrainSpec(master_weights="kahan"), regression.rate)
    reference = make_optimizer(exact, TrainSpec(), regression.rate)
    regression.train(named, optimizer)
    regression.train(exact, reference)
    whole = named["weight"].float() + optimizer.state[named["weight"]]["compensation"].float()
    moved = (exact["weight"] - regression.start).abs().mean()
    assert (whole - exact["weight"]).abs().mean() < 0.03 * moved  # gradients are taken at rounded weights


def test_arithmetic_is_that_of_adamw() -> None:
    """Over float32 weights, which need no rounding, it is torch's AdamW, weight decay and warm-up included."""
    draw = torch.Generator().manual_seed(1)
    weights = [torch.nn.Parameter(torch.randn(4, 8, generator=torch.Generator().manual_seed(2))) for _ in range(2)]
    groups = [{"params": weights[:1], "weight_decay": 0.1, "numbers": [0], "begins": [0]}]
    ours = BFloat16AdamW(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-8, keep="kahan", seed=0)
    theirs = torch.optim.AdamW(weights[1:], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    for step in range(20):
        gradient = torch.randn(4, 8, generator=draw)
        for weight, optimizer in zip(weights, (ours, theirs), strict=True):
            weight.grad = gradient.clone()
            optimizer.param_groups[0]["lr"] = 0.001 * (step + 1)
            optimizer.step()
    assert torch.allclose(weights[0], weights[1], rtol=1e-6, atol=1e-7)
    assert "compensation" not in ours.state[weights[0]]


def test_a_second_moment_falls_when_gradients_become_small() -> None:
    """Rounded to the nearest it would stay for ever: 0.999 v is v again."""
    weight = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = make_optimizer({"w": weight}, TrainSpec(master_weights="stochastic_rounding"), 0.0)
    for step in range(700):
        weight.grad = torch.full_like(weight, 1.0 if step == 0 else 0.0)
        optimizer.step()
    v = optimizer.state[weight]["exp_avg_sq"]
    assert v.dtype is torch.bfloat16
    wanted = 0.001 * 0.999**699
    assert float(v.float().mean()) == pytest.approx(wanted, rel=0.02)
    nearest = torch.tensor(0.001, dtype=torch.bfloat16)
    assert torch.equal(nearest, (nearest.float() * 0.999).to(torch.bfloat16))


def test_rounding_at_random_is_right_on_average() -> None:
    values = torch.tensor([1.0, 1.001, 1.0039, 1.0077, -0.3, 3.1e-5, -7.77e8, 0.0])
    count = 2**18
    bits = (random_bits("seed", 0, count * len(values), CPU) >> 16) & 0xFFFF
    spread = values.repeat_interleave(count)
    rounded = round_at_random(spread, bits).float().view(len(values), count)
    for value, found in zip(values, rounded, strict=True):
        below, above = found.min(), found.max()
        assert len(found.unique()) == (1 if value == value.bfloat16().float() else 2) and below <= value <= above
        error = (found.double().mean() - value.double()).abs()
        assert error <= 5 * (above - below) / 2 / count**0.5  # five standard errors, at most


def test_random_bits_are_uniform_and_independent() -> None:
    count = 2**20
    draws = [
        random_bits(key, 0, count, CPU) for key in ("1/0/1/weight", "1/0/2/weight", "1/1/1/weight", "2/0/1/weight")
    ]
    for bits in draws:
        for half in ((bits >> 16) & 0xFFFF, bits & 0xFFFF):
            counts = torch.bincount(half >> 6, minlength=1024).double()
            chi_square = ((counts - count / 1024).square() / (count / 1024)).sum()
            assert abs(chi_square - 1023) < 6 * (2 * 1023) ** 0.5
    for i, first in enumerate(draws):
        assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 6 / count**0.5
        for second in draws[i + 1 :]:
            assert abs(np.corrcoef(first, second)[0, 1]) < 6 / count**0.5


def test_random_bits_are_a_function_of_key_and_place() -> None:
    """The same as in whole numbers without a bound, so that they cannot depend on how a device multiplies."""
    whole = random_bits("a key", 0, 1000, CPU)
    assert torch.equal(random_bits("a key", 300, 50, CPU), whole[300:350])
    assert not torch.equal(random_bits("another", 0, 1000, CPU), whole)
    digest = hashlib.blake2b(b"a key", digest_size=8).digest()
    first, second = int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")

    def expected(place: int) -> int:
        x = (place + first) % 2**32
        x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32 ^ second
        x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
        x ^= x >> 16
        return x - 2**32 if x >= 2**31 else x

    assert whole.tolist() == [expected(place) for place in range(1000)]
    far = 5 * 2**32 - 3
    assert random_bits("a key", far, 6, CPU).tolist() == [expected(far + i) for i in range(6)]


@pytest.mark.parametrize("master_weights", KEEPS)
def test_parts_of_a_weight_move_as_the_whole_does(master_weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever spreads a weight, and however much is computed at once."""
    whole, spec = torch.randn(10, 6).to(torch.bfloat16), TrainSpec(master_weights=master_weights, weight_decay=0.1)
    gradients = [torch.randn(10, 6).to(torch.bfloat16) for _ in range(3)]

    def moved(rows: slice, chunk: int) -> torch.Tensor:
        monkeypatch.setitem(adamw_bfloat16.CHUNK_ELEMENTS, "cpu", chunk)
        named = {name: torch.nn.Parameter(whole[rows].clone()) for name in ("other", "weight")}
        optimizer = make_optimizer(named, spec, 0.01, begins=dict.fromkeys(named, (rows.start or 0) * 6))
        for gradient in gradients:
            for parameter in named.values():
                parameter.grad = gradient[rows].clone()
            optimizer.step()
        return named["weight"].detach()

    all_rows = moved(slice(None), 2**24)
    assert torch.equal(torch.cat([moved(slice(0, 7), 2**24), moved(slice(7, 10), 2**24)]), all_rows)
    assert torch.equal(moved(slice(None), 7), all_rows)
    assert not torch.equal(all_rows, whole)


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("master_weights", ("float32", *KEEPS))
def test_weights_may_be_dtensors(master_weights: Any) -> None:
    """As FSDP2 makes them: state is of the same kind, and what comes out is the same."""
    mesh = init_device_mesh("cpu", (1,))
    dtype = torch.float32 if master_weights == "float32" else torch.bfloat16
    start, gradient = torch.randn(6, 4).to(dtype), torch.randn(6, 4).to(dtype)
    plain = {"w": torch.nn.Parameter(start.clone())}
    spread = {"w": torch.nn.Parameter(distribute_tensor(start.clone(), mesh, [Shard(0)]))}
    plain["w"].grad, spread["w"].grad = gradient.clone(), distribute_tensor(gradient.clone(), mesh, [Shard(0)])
    made = [make_optimizer(named, TrainSpec(master_weights=master_weights), 0.01) for named in (plain, spread)]
    for optimizer in made:
        optimizer.step()
    assert torch.equal(spread["w"].full_tensor(), plain["w"])
    for name, value in made[1].state[spread["w"]].items():
        assert isinstance(value, DTensor) is (name != "step")


MAKES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "adamw": (torch.float32, {}),
    "kahan": (torch.bfloat16, {"master_weights": "kahan"}),
    "stochastic_rounding": (torch.bfloat16, {"master_weights": "stochastic_rounding"}),
    "adamw_8bit": (torch.float32, {"optimizer": "adamw_8bit"}),
}


@pytest.mark.parametrize("make", MAKES)
def test_a_run_continues_bit_for_bit_from_its_saved_state(make: str, tmp_path: Path) -> None:
    if make == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    dtype, choices = MAKES[make]
    spec = TrainSpec(weight_decay=0.01, **choices)
    draw = torch.Generator().manual_seed(0)
    gradients = [torch.randn(80, 64, generator=draw).to(dtype) for _ in range(10)]

    def weights() -> Named:
        start = torch.Generator().manual_seed(1)
        tensors = {"a.weight": torch.randn(80, 64, generator=start), "b.bias": torch.randn(64, generator=start)}
        return {name: torch.nn.Parameter(tensor.to(dtype)) for name, tensor in tensors.items()}

    def move(named: Named, optimizer: torch.optim.Optimizer, some: list[torch.Tensor]) -> None:
        for gradient in some:
            named["a.weight"].grad, named["b.bias"].grad = gradient.clone(), gradient[0].clone()
            optimizer.step()

    through = weights()
    uninterrupted = make_optimizer(through, spec, 0.01)
    move(through, uninterrupted, gradients)

    stopped = weights()
    optimizer = make_optimizer(stopped, spec, 0.01)
    move(stopped, optimizer, gradients[:6])
    save_file(optimizer_tensors(optimizer, stopped), tmp_path / "optimizer.safetensors")
    save_file({name: p.detach() for name, p in stopped.items()}, tmp_path / "weights.safetensors")

    saved = load_file(tmp_path / "weights.safetensors")
    continued = {name: torch.nn.Parameter(saved[name]) for name in through}
    optimizer = make_optimizer(continued, spec, 0.01)
    restore_optimizer(optimizer, continued, load_file(tmp_path / "optimizer.safetensors"))
    move(continued, optimizer, gradients[6:])
    assert all(torch.equal(continued[name], through[name]) for name in through)
    ours, theirs = optimizer_tensors(optimizer, continued), optimizer_tensors(uninterrupted, through)
    assert ours.keys() == theirs.keys() and {key.rpartition("/")[0] for key in ours} == {"a.weight", "b.bias"}
    assert all(torch.equal(ours[key], theirs[key]) and ours[key].dtype is theirs[key].dtype for key in ours)
    assert float(ours["a.weight/step"]) == 10


def test_8_bits_are_8_bits_and_learn(regression: Regression) -> None:
    pytest.importorskip("bitsandbytes")
    big = torch.nn.Parameter(torch.zeros(64, 64))
    small = torch.nn.Parameter(torch.zeros(64))
    optimizer = make_optimizer({"big": big, "small": small}, TrainSpec(optimizer="adamw_8bit"), 0.1)
    target = torch.randn(64, 64)
    for _ in range(200):
        (big - target).square().sum().backward()
        small.grad = torch.zeros_like(small)
        optimizer.step()
        optimizer.zero_grad()
    assert (big - target).abs().mean() < 0.05
    state = optimizer.state[big]
    assert state["state1"].dtype is torch.uint8 and state["state2"].dtype is torch.uint8
    assert optimizer.state[small]["state1"].dtype is torch.float32
    assert optimizer.param_groups[1]["weight_decay"] == 0


def test_missing_bitsandbytes_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError("No module named 'bitsandbytes'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError) as caught:
        make_optimizer({"w": torch.nn.Parameter(torch.zeros(2, 2))}, TrainSpec(optimizer="adamw_8bit"), 0.1)
    assert caught.value.problems[0].where == "train.optimizer" and "rankzero[quantization]" in str(caught.value)


def test_bitsandbytes_without_kernels_for_this_device_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    optim = pytest.importorskip("bitsandbytes.optim")

    def step(self: Any, closure: Any = None) -> None:
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(optim.AdamW8bit, "step", step)
    with pytest.raises(ConfigError, match="does not run on cpu here: no kernel"):
        make_optimizer({"w": torch.nn.Parameter(torch.zeros(2, 2))}, TrainSpec(optimizer="adamw_8bit"), 0.1)


def test_matrices_alone_decay() -> None:
    named = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in (("w", (3, 2)), ("b", (2,)))}
    optimizer = make_optimizer(named, TrainSpec(weight_decay=0.5), 0.1)
    for parameter in named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(named["w"], torch.full((3, 2), 0.95)) and torch.equal(named["b"], torch.ones(2))


def test_a_bias_of_each_expert_is_no_matrix() -> None:
    """Though GPT-OSS holds those of a layer in one tensor of two dimensions."""
    with torch.device("meta"):
        named = dict(AutoModelForCausalLM.from_config(gpt_oss()).named_parameters())
    optimizer = make_optimizer(named, TrainSpec(weight_decay=0.5), 1.0)
    decayed = {id(weight) for group in optimizer.param_groups if group["weight_decay"] for weight in group["params"]}
    names = [name for name, weight in named.items() if id(weight) in decayed]
    assert {name.rpartition(".")[2] for name in names} == {"weight", "gate_up_proj", "down_proj"}
    assert not [name for name in names if "norm" in name]


@pytest.mark.parametrize("master_weights", KEEPS)
def test_float32_weights_take_the_fused_optimizer(master_weights: Any) -> None:
    """A machine that does not compute in bfloat16 holds float32 weights, and nothing needs to be kept."""
    named = {"w": torch.nn.Parameter(torch.zeros(2, 2))}
    optimizer = make_optimizer(named, TrainSpec(master_weights=master_weights), 0.1)
    assert type(optimizer) is torch.optim.AdamW and optimizer.defaults["fused"]


def test_the_learning_rate_is_every_groups() -> None:
    named = {name: torch.nn.Parameter(torch.ones(shape).bfloat16()) for name, shape in (("w", (3, 2)), ("b", (2,)))}
    optimizer = make_optimizer(named, TrainSpec(master_weights="kahan"), 0.1)
    set_learning_rate(optimizer, 0.025)
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.025]


@pytest.mark.parametrize("shape", ["linear", "cosine", "constant"])
def test_schedules_are_those_of_transformers_but_for_the_step_that_a_warm_up_begins_with(shape: Any) -> None:
    """Theirs begins with a step at 0, so our warm-up is one step ahead; what comes after it is the same."""
    theirs = {"constant": "constant_with_warmup"}.get(shape, shape)
    ours = make_schedule(10, TrainSpec(lr_scheduler_type=shape, warmup_steps=4, max_steps=20))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    (factor,) = get_scheduler(theirs, optimizer, num_warmup_steps=4, num_training_steps=20).lr_lambdas
    for step in range(21):
        assert ours.learning_rate(step, 0.5) == pytest.approx(0.5 * factor(step + (step < 4))), step
