"""Which attention is taken, and when rows lie end to end: by model, machine and what was asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from transformers import AutoConfig

from rankzero.errors import ConfigError
from rankzero.model import attention, varlen
from rankzero.model.attention import Attention, choose_attention
from rankzero.model.load import kind_of
from rankzero.spec.no_effect import in_vain_on_cpus
from rankzero.spec.run_spec import Attention as AttentionName
from rankzero.spec.run_spec import RunSpec


def spec(attention: str = "auto", padding_free: Any = "auto", task: str = "sft") -> RunSpec:
    return RunSpec.model_validate(
        {
            "task": task,
            "model": {"name": "m", "attention": attention},
            "data": {"train": "t.jsonl"},
            "train": {"padding_free": padding_free},
        }
    )


def config(model_type: str = "llama", **values: Any) -> Any:
    return AutoConfig.for_model(model_type, **values)


def choose(wanted: RunSpec, config: Any, device_kind: str, dtype: torch.dtype) -> Attention:
    kind = kind_of(config, wanted.task_section.uses)
    asked = {"wanted": wanted.model.attention, "free": wanted.train.padding_free}
    return choose_attention(kind, config, device_kind, dtype, **asked)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU that is not there: compute capability, installed flash-attention packages, torch's kernel."""

    def pretend(major: int = 9, installed: tuple[str, ...] = (), kernel: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (major, 0))
        monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: "flash_attention_2" in installed)
        monkeypatch.setattr(attention, "is_flash_attn_3_available", lambda: "flash_attention_3" in installed)
        monkeypatch.setattr(varlen, "has_kernel", lambda: kernel)

    return pretend


BOTH = ("flash_attention_2", "flash_attention_3")


@pytest.mark.parametrize(
    ("wanted", "there", "chosen"),
    [
        (spec(), {}, Attention("varlen", True)),
        (spec(), {"installed": BOTH}, Attention("flash_attention_3", True)),
        (spec(), {"installed": BOTH, "major": 8}, Attention("flash_attention_2", True)),
        (spec(), {"installed": BOTH, "major": 10}, Attention("flash_attention_2", True)),
        (spec(), {"installed": BOTH, "major": 7, "kernel": False}, Attention(None, False)),
        (spec(), {"kernel": False}, Attention(None, False)),
        (spec(padding_free=False), {}, Attention(None, False)),
        (spec(padding_free=False), {"installed": BOTH}, Attention("flash_attention_3", False)),
        (spec(padding_free=True), {"kernel": False}, Attention("varlen", True)),
        (spec("sdpa"), {"installed": BOTH}, Attention("sdpa", False)),
        (spec("eager"), {}, Attention("eager", False)),
        (spec("flex_attention"), {}, Attention("flex_attention", True)),
        (spec("flash_attention_2"), {"installed": BOTH}, Attention("flash_attention_2", True)),
        (spec("flash_attention_2", False), {"installed": BOTH}, Attention("flash_attention_2", False)),
        (spec("varlen", False), {}, Attention("varlen", False)),
    ],
)
def test_on_a_gpu(wanted: RunSpec, there: dict[str, Any], chosen: Attention, machine: Any) -> None:
    machine(**there)
    assert choose(wanted, config(), "cuda", torch.bfloat16) == chosen


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (spec(), Attention(None, False)),
        (spec(padding_free=True), Attention("varlen", True)),
        (spec("varlen"), Attention("varlen", True)),
        (spec("varlen", True), Attention("varlen", True)),
        (spec("sdpa"), Attention("sdpa", False)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu(wanted: RunSpec, chosen: Attention, dtype: torch.dtype) -> None:
    if chosen.implementation is None and dtype is torch.bfloat16:
        chosen = Attention("varlen", True) if wanted.train.padding_free == "auto" else Attention("blocks", False)
    assert choose(wanted, config(), "cpu", dtype) == chosen


@pytest.mark.parametrize("name", get_args(AttentionName))
def test_what_is_refused_on_a_cpu_is_said_before_rows_are_read(name: Any) -> None:
    refused = False
    try:
        choose(spec(name), config(), "cpu", torch.float32)
    except ConfigError:
        refused = True
    assert [problem.where for problem in in_vain_on_cpus(spec(name))] == ["model.attention"] * refused


def test_float32_on_a_gpu_is_padded_unless_asked_otherwise(machine: Any) -> None:
    machine(installed=BOTH)
    assert choose(spec(), config(), "cuda", torch.float32) == Attention(None, False)
    assert choose(spec(padding_free=True), config(), "cuda", torch.float32) == Attention("varlen", True)


PADDED = ("distilbert", "qwen3_next", "lfm2", "mamba", "gpt_oss", "gemma2", "nemotron", "llama4_text")


@pytest.mark.parametrize("model_type", PADDED)
def test_models_whose_rows_cannot_lie_end_to_end_are_padded(
    model_type: str, machine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    machine()
    task = "classify" if model_type == "distilbert" else "sft"
    with caplog.at_level("DEBUG", logger="rankzero.model"):
        chosen = choose(spec(task=task), config(model_type), "cuda", torch.bfloat16)
    assert chosen == Attention("placed_dropout" if model_type == "distilbert" else None, False)
    assert "rows are padded: " in caplog.text


@pytest.mark.parametrize(
    ("wanted", "sizes", "chosen"),
    [
        (spec(), {}, Attention("placed_dropout", False)),
        (spec(), {"attn_pdrop": 0.0}, Attention("flash_attention_3", True)),
        (spec("sdpa"), {}, Attention("sdpa", False)),
        (spec("flash_attention_2"), {}, Attention("flash_attention_2", True)),
        (spec(padding_free=True), {}, Attention("flash_attention_2", True)),
    ],
)
def test_attention_dropout_is_tied_to_places_unless_asked_otherwise(
    wanted: RunSpec, sizes: dict[str, float], chosen: Attention, machine: Any
) -> None:
    machine(installed=BOTH)
    model = config("gpt2")
    model.update(sizes)
    assert choose(wanted, model, "cuda", torch.bfloat16) == chosen


def test_attention_dropout_that_is_not_trained_with_decides_nothing(machine: Any) -> None:
    machine(installed=BOTH)
    found = choose_attention("causal", config("gpt2"), "cuda", torch.bfloat16, wanted="auto", free="auto", drops=False)
    assert found == Attention("flash_attention_3", True)


def test_rows_with_images_lie_end_to_end_where_that_is_shown(machine: Any) -> None:
    machine(installed=BOTH)
    assert choose(spec(), config("qwen3_vl"), "cuda", torch.bfloat16) == Attention("flash_attention_3", True)
    assert choose(spec(), config("qwen3_vl"), "cpu", torch.bfloat16) == Attention(None, False)
    assert choose(spec(), config("mistral3"), "cuda", torch.bfloat16) == Attention("flash_attention_3", False)
    other = config("llava", text_config={"model_type": "nemotron"})  # a text model of which nobody has shown it
    assert not choose(spec(), other, "cuda", torch.bfloat16).padding_free
    machine()
    assert choose(spec(), config("qwen3_vl"), "cuda", torch.bfloat16) == Attention("varlen", True)
    with pytest.raises(ConfigError, match="rows with images are not cut"):
        choose_attention("vision", config("qwen3_vl"), "cuda", torch.bfloat16, wanted="auto", free="auto", sliced=True)


SEEN_BOTH_WAYS = ("gemma3", "gemma4", "gemma4_unified", "molmo2", "paligemma", "pi0", "shieldgemma2")
CAUSAL = ("idefics3", "internvl", "llava", "llava_next", "mistral3", "qwen2_5_vl", "qwen3_vl", "smolvlm")


@pytest.mark.parametrize("model_type", SEEN_BOTH_WAYS)
def test_masks_that_flash_attention_ignores_are_not_left_to_it(model_type: str, machine: Any) -> None:
    """Tokens of one image see each other both ways there, of which flash-attention's own mask knows nothing."""
    machine(installed=BOTH)
    how = {
        "kind": "vision",
        "config": config(model_type),
        "device_kind": "cuda",
        "dtype": torch.bfloat16,
        "free": "auto",
    }
    assert choose_attention(**how, wanted="auto") == Attention(None, False)
    for name in BOTH:
        with pytest.raises(ConfigError, match=f"masks of its own.*{name}") as caught:
            choose_attention(**how, wanted=name)
        assert {problem.where for problem in caught.value.problems} == {"model.attention"}
    assert choose_attention(**how, wanted="sdpa") == Attention("sdpa", False)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_causal_models_that_see_images_have_flash_attention(model_type: str, machine: Any) -> None:
    machine(installed=BOTH)
    for wanted, taken in (("auto", "flash_attention_3"), *((name, name) for name in BOTH)):
        end_to_end = model_type in attention.PROVEN_WITH_IMAGES
        assert choose(spec(wanted), config(model_type), "cuda", torch.bfloat16) == Attention(taken, end_to_end)


def test_code_that_cannot_be_read_has_masks_that_nobody_knows(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(installed=BOTH)

    def unreadable(_module: object) -> str:
        raise OSError("no source")

    monkeypatch.setattr(attention.inspect, "getsource", unreadable)
    attention._has_masks_of_its_own.cache_clear()
    assert choose(spec(), config("mistral3"), "cuda", torch.bfloat16) == Attention(None, False)
    attention._has_masks_of_its_own.cache_clear()


@pytest.mark.parametrize("model_type", ["fast_vlm", "lfm2_vl", "perception_lm"])
def test_towers_without_flash_attention_keep_it_from_the_whole(model_type: str, machine: Any) -> None:
    """transformers would refuse to load them: a model's attention is that of its towers too."""
    machine(installed=BOTH)
    assert choose(spec(), config(model_type), "cuda", torch.bfloat16) == Attention(None, False)
    with pytest.raises(ConfigError, match=f"{model_type} cannot be computed with flash_attention_2"):
        choose(spec("flash_attention_2"), config(model_type), "cuda", torch.bfloat16)


def test_a_text_model_without_flash_attention_keeps_it_from_the_whole(machine: Any) -> None:
    """InternVL around a GPT-OSS, whose sinks flash-attention does not know."""
    machine(installed=BOTH)
    model = config("internvl", text_config={"model_type": "gpt_oss"})
    assert choose(spec(), model, "cuda", torch.bfloat16) == Attention(None, False)


@pytest.mark.parametrize("widest", [256, 512])
def test_heads_that_are_too_wide_for_flash_attention(widest: int, machine: Any) -> None:
    """Gemma 4's layers that see all of a row have wider heads than the others."""
    machine(installed=BOTH)
    model = config("gemma4_text", global_head_dim=widest)
    fits = widest == 256
    assert choose(spec(), model, "cuda", torch.bfloat16).implementation == ("flash_attention_3" if fits else "varlen")
    wanted = spec("flash_attention_2", padding_free=False)
    if fits:
        assert choose(wanted, model, "cuda", torch.bfloat16) == Attention("flash_attention_2", False)
        return
    with pytest.raises(ConfigError, match="heads of 512 values, and flash_attention_2 computes 256 at most"):
        choose(wanted, model, "cuda", torch.bfloat16)
    assert choose(spec(padding_free=False), model, "cuda", torch.bfloat16) == Attention(None, False)


@pytest.mark.parametrize(
    ("wanted", "of", "where", "message"),
    [
        (spec("sdpa", True), config(), "train.padding_free", "sdpa would keep rows apart by a mask"),
        (spec("eager", True), config(), "train.padding_free", "eager would keep rows apart by a mask"),
        (spec(padding_free=True), config("lfm3"), "train.padding_free", "lfm3 has conv layers"),
        (spec(padding_free=True), config("qwen3_next"), "train.padding_free", "has linear_attention layers"),
        (spec(padding_free=True), config("rwkv"), "train.padding_free", "rwkv has recurrent layers"),
        (spec(padding_free=True), config("nemotron"), "train.padding_free", "nemotron has not been shown"),
        (spec(padding_free=True), config("gemma3"), "train.padding_free", "gemma3 has not been shown"),
        (spec(padding_free=True), config("gpt2"), "model.attention", "varlen has no attention dropout"),
        (spec("varlen"), config("gpt_oss"), "model.attention", "gpt_oss cannot be computed with sdpa"),
        (spec("varlen"), config("gemma3"), "model.attention", "gemma3 has not been shown"),
        (spec("varlen", task="classify"), config("distilbert"), "model.attention", "classifier are padded"),
        (spec("sdpa"), config("gemma2"), "model.attention", "gemma2 cannot be computed with sdpa"),
        (spec("flex_attention"), config(), "model.attention", "no backward pass on cpu"),
        (spec("flash_attention_2"), config(), "model.attention", "flash_attention_2 needs an NVIDIA GPU"),
    ],
)
def test_what_cannot_be_had_is_refused(wanted: RunSpec, of: Any, where: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        choose(wanted, of, "cpu", torch.bfloat16)
    assert where in {problem.where for problem in caught.value.problems}
    assert all(problem.hint for problem in caught.value.problems)


def test_all_problems_are_told_at_once(machine: Any) -> None:
    machine(major=8)
    with pytest.raises(ConfigError) as caught:
        choose(spec("flash_attention_3", True), config("nemotron"), "cuda", torch.float32)
    whats = [problem.what for problem in caught.value.problems]
    assert whats == [
        "flash_attention_3 computes in 16 bits only",
        "flash-attn-3 is not installed",
        "flash_attention_3 does not run on this GPU",
        "nemotron has not been shown to keep rows apart that lie end to end",
    ]
    assert caught.value.problems[1].hint.startswith("pip install flash-attn-3")


def test_code_that_comes_with_the_model_is_padded(machine: Any) -> None:
    machine(installed=BOTH)
    own = SimpleNamespace(model_type="llama", get_text_config=lambda: SimpleNamespace())
    assert choose_attention("causal", own, "cuda", torch.bfloat16, wanted="auto", free="auto") == Attention(None, False)
