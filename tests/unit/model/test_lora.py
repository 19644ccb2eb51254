"""Where adapters go in each architecture, that wrong names are caught early, and that plain peft loads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    BambaConfig,
    BioGptConfig,
    BloomConfig,
    CanineConfig,
    CTRLConfig,
    FalconH1Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    ModernBertDecoderConfig,
    NemotronHConfig,
    PhiConfig,
)

from rankzero.engine.setup import to_train
from rankzero.errors import ConfigError, StorageError
from rankzero.model import lora as model_lora
from rankzero.model.load import empty_model, load_config, meta_model
from rankzero.model.lora import load_adapter, lora_config, parameter_counts, token_numbers
from rankzero.model.merge import merge
from rankzero.model.parts import part_finder
from rankzero.model.targets import Targets, is_tied, shortest, target_modules
from rankzero.model.weights import adapter_file_names
from rankzero.spec.run_spec import ModelSpec, RunSpec
from tests.support import tiny_configs
from tests.support.tiny import tiny_tokenizer
from tests.support.tiny_configs import CONFIGS
from tests.support.unreadable import stale
from tests.support.weights import load_weights, save_weights
from tests.unit.model.support import CLASSES, loaded, logits, saved, shaken, spec_of, task_of

ALL_PARTS = {
    "qwen3_moe": ["language", "experts", "router"],
    "qwen3_vl": ["language", "projector", "vision_tower"],
    "llava": ["language", "projector", "vision_tower"],
    "gemma3": ["language", "projector", "vision_tower"],
    "qwen3_vl_moe": ["language", "experts", "router", "projector", "vision_tower"],
}


def spec_with(**lora: Any) -> RunSpec:
    return spec_of(lora={"dropout": 0, **lora})


def targets_in(model: Any, spec: RunSpec) -> Targets:
    assert spec.lora is not None
    return target_modules(spec.lora, spec.train.parts, model, spec.task_section.uses)


def targets(name: str, spec: RunSpec) -> Targets:
    return targets_in(meta_model(CONFIGS[name](), spec.model, spec.task_section.uses), spec)


def last(names: tuple[str, ...]) -> list[str]:
    return sorted({name.rpartition(".")[2] for name in names})


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("llama", ["k_proj", "o_proj", "q_proj", "v_proj"]),
        ("gpt2", ["c_attn"]),
        ("qwen3_moe", ["k_proj", "o_proj", "q_proj", "v_proj"]),
        ("deepseek_v3", ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj"]),
    ],
)
def test_auto_is_attention(name: str, modules: list[str]) -> None:
    found = targets(name, spec_with())
    assert last(found.modules) == modules
    assert not found.parameters and not found.saved


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen2_5_vl", "llava", "gemma3"])
@pytest.mark.parametrize("choice", ["auto", "all-linear"])
def test_a_vision_tower_gets_none_unless_asked(name: str, choice: str) -> None:
    spec = spec_with(target_modules=choice)
    model = meta_model(CONFIGS[name](), spec.model, spec.task_section.uses)
    found = targets_in(model, spec)
    assert found.modules and {part_finder(model)(module) for module in found.modules} == {"language"}
    adapted = to_train(model, spec, base_name="base")
    assert all(".language_model." in n for n, p in adapted.named_parameters() if p.requires_grad)


def test_all_linear_leaves_the_head_out() -> None:
    found = targets("llama", spec_with(target_modules="all-linear"))
    assert last(found.modules) == ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def test_named_modules_and_full_names() -> None:
    one = "model.layers.1.self_attn.q_proj"
    found = targets("llama", spec_with(target_modules=["v_proj", one]))
    assert found.modules == ("model.layers.0.self_attn.v_proj", one, "model.layers.1.self_attn.v_proj")


def test_every_unknown_module_is_named_with_a_guess() -> None:
    with pytest.raises(ConfigError) as wrong:
        targets("llama", spec_with(target_modules=["q_prj", "v_proj", "nothing"]))
    assert [p.what for p in wrong.value.problems] == [
        "the model has no linear module q_prj",
        "the model has no linear module nothing",
    ]
    assert "did you mean q_proj?" in wrong.value.problems[0].hint
    assert "down_proj" in wrong.value.problems[1].hint


def test_names_of_another_architecture_are_answered_with_what_knows_all() -> None:
    """What is like them in spelling is no likely wish then: GPT-2's c_proj is also the MLP's."""
    named = ["q_proj", "k_proj", "v_proj", "o_proj"]
    with pytest.raises(ConfigError) as wrong:
        targets("gpt2", spec_with(target_modules=named))
    hints = {problem.hint for problem in wrong.value.problems}
    assert len(wrong.value.problems) == 4
    assert all(hint.startswith("auto takes this model's attention projections, all-linear all of") for hint in hints)
    assert last(targets("gpt2", spec_with(target_modules="auto")).modules) == ["c_attn"]


@pytest.mark.parametrize(
    ("name", "wanted", "what", "hint"),
    [
        ("llama", "lm_head", "adapters are not put on lm_head: it is the model's head", "modules_to_save: [lm_head]"),
        ("llama", "model.embed_tokens", "not put on model.embed_tokens: it is the model's embeddings", "token_indices"),
        ("gpt2", "wte", "adapters are not put on wte: it is the model's embeddings", "lora.modules_to_save: [wte]"),
        ("llama", "input_layernorm", "input_layernorm is no linear layer", "lora.modules_to_save: [input_layernorm]"),
        ("distilbert", "classifier", "adapters are not put on classifier: it is the head", "trained in full anyway"),
        ("qwen3_moe", "experts", "experts get adapters by their part", "train.parts: [language, experts]"),
        ("llama", "self_attn", "the model has no linear module self_attn", "q_proj"),
    ],
)
def test_what_is_trained_otherwise_says_how(name: str, wanted: str, what: str, hint: str) -> None:
    spec = spec_of(task=task_of(name), lora={"dropout": 0, "target_modules": [wanted]})
    with pytest.raises(ConfigError) as refused:
        targets(name, spec)
    (problem,) = refused.value.problems
    assert problem.where == "lora.target_modules" and what in problem.what and hint in problem.hint


def test_a_module_of_a_part_that_is_not_trained_says_which() -> None:
    with pytest.raises(ConfigError) as wrong:
        targets("qwen3_vl", spec_with(target_modules=["q_proj", "qkv"]))
    assert [(p.what, p.where, p.hint) for p in wrong.value.problems] == [
        (
            "qkv is in the vision_tower, which is not trained",
            "lora.target_modules",
            "set train.parts: [language, vision_tower]",
        )
    ]


def test_parts_choose_projector_and_tower() -> None:
    spec = spec_of(lora={"dropout": 0}, train__parts=["projector", "vision_tower"])
    found = targets("qwen3_vl", spec)
    assert last(found.modules) == ["linear_fc1", "linear_fc2", "qkv"]
    assert all("merger" in name for name in found.modules if not name.endswith("qkv"))


def test_a_projector_without_a_linear_layer_is_trained_in_full() -> None:
    spec = spec_of(lora={"dropout": 0}, train__parts=["projector"])
    assert targets("gemma3", spec) == Targets((), (), ("model.multi_modal_projector",))


def test_experts_are_adapted_as_tensors_and_routers_trained_in_full() -> None:
    spec = spec_of(lora={"dropout": 0}, train__parts=["experts", "router"])
    found = targets("gpt_oss", spec)
    tensors = [f"model.layers.{n}.mlp.experts.{t}_proj" for n in (0, 1) for t in ("gate_up", "down")]
    assert found == Targets((), tuple(tensors), ("model.layers.0.mlp.router", "model.layers.1.mlp.router"))
    one = spec_of(lora={"dropout": 0, "target_modules": ["q_proj", "down_proj"]}, train__parts=["language", "experts"])
    assert last(targets("gpt_oss", one).parameters) == ["down_proj"]


def test_experts_cannot_have_dropout_or_dora() -> None:
    with pytest.raises(ConfigError) as wrong:
        targets("qwen3_moe", spec_of(lora={"dropout": 0.1, "use_dora": True}, train__parts=["experts"]))
    assert [p.where for p in wrong.value.problems] == ["lora.dropout", "lora.use_dora"]
    assert wrong.value.problems[0].hint == "set lora.dropout: 0"


@pytest.mark.parametrize(("name", "saved"), [("distilbert", ("pre_classifier", "classifier")), ("llama", ("score",))])
def test_a_classifiers_head_is_trained_in_full(name: str, saved: tuple[str, ...]) -> None:
    found = targets(name, spec_of(task="classify", lora={"target_modules": "all-linear"}))
    assert found.saved == saved
    assert not set(saved) & set(last(found.modules))


def test_berts_pooler_belongs_to_the_head() -> None:
    assert targets("bert", spec_of(task="classify", lora={})).saved == ("bert.pooler", "classifier")


def test_a_classifier_that_reads_characters_has_adapters_and_no_rows_of_tokens() -> None:
    """CANINE has no table of tokens that could be asked for."""
    spec = spec_of(task="classify", lora={"dropout": 0})
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = meta_model(CanineConfig(**sizes), spec.model, "classifies")
    adapted = to_train(model, spec, base_name="base")
    assert any("attention" in name for name, p in adapted.named_parameters() if p.requires_grad)


TIED = {
    "gpt2": ("transformer.wte", GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64, n_positions=64)),
    "bloom": ("transformer.word_embeddings", BloomConfig(n_layer=1, hidden_size=16, n_head=2, vocab_size=64)),
    "biogpt": (
        "output_projection",
        BioGptConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64),
    ),
    "llama": ("model.embed_tokens", CONFIGS["llama"]()),
    "phi": (
        "model.embed_tokens",
        PhiConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64),
    ),
    "ctrl": ("transformer.w", CTRLConfig(vocab_size=64, n_embd=16, dff=32, n_layer=1, n_head=2, n_positions=64)),
    "modernbert-decoder": (
        "decoder",
        ModernBertDecoderConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            vocab_size=64,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1),
        ),
    ),
}
"""Names that peft knows and does not, and heads with a bias, which it leaves out."""


@pytest.mark.parametrize("kind", sorted(TIED))
def test_a_table_that_is_trained_in_full_stays_tied_whatever_it_is_called(kind: str, tmp_path: Path) -> None:
    name, config = TIED[kind]
    config.tie_word_embeddings = True
    made = AutoModelForCausalLM.from_config(config)
    for part in made.parameters():
        part.data += 0.1 * torch.randn_like(part)
    made.save_pretrained(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    before = logits(model.eval())
    spec = spec_with(modules_to_save=[name.rpartition(".")[2]])
    adapted = to_train(model, spec, base_name="base")
    assert torch.equal(logits(adapted.eval()), before)
    shaken(adapted)
    assert is_tied(adapted) and any("modules_to_save" in n for n, p in adapted.named_parameters() if p.requires_grad)
    save_weights(adapted, tmp_path / "adapter")
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    assert torch.allclose(logits(plain.eval()), logits(adapted), atol=1e-5, rtol=0)


def qwen2_vl() -> Any:
    return meta_model(tiny_configs.qwen2_vl(), spec_of().model, "writes")


def test_a_part_that_is_to_be_trained_has_a_layer_that_is_named() -> None:
    """Names of the decoder's layers mean nothing in a tower that calls its own otherwise."""
    spec = spec_with(target_modules=["q_proj", "v_proj"])
    spec = spec_of(lora=spec.lora.model_dump(), train__parts=["language", "vision_tower", "projector"])  # type: ignore[union-attr]
    with pytest.raises(ConfigError) as wrong:
        targets_in(qwen2_vl(), spec)
    assert [p.what.split(" is ")[0] for p in wrong.value.problems] == [
        "no layer of the vision tower",
        "no layer of the projector",
    ]
    assert "qkv" in wrong.value.problems[0].hint
    named = spec_of(lora={"dropout": 0, "target_modules": ["q_proj", "qkv"]}, train__parts=["language", "vision_tower"])
    assert last(targets_in(qwen2_vl(), named).modules) == ["q_proj", "qkv"]


def test_what_is_trained_in_full_is_of_the_wanted_parts_unless_its_name_says_where() -> None:
    saved_in = targets("qwen3_vl", spec_with(modules_to_save=["norm"])).saved
    assert saved_in == ("model.language_model.norm",)
    in_full = "model.visual.merger.norm"
    assert in_full in targets("qwen3_vl", spec_with(modules_to_save=[in_full])).saved
    with pytest.raises(ConfigError, match="norm is in the language and the projector, which are not trained"):
        targets("qwen3_vl", spec_of(lora={"dropout": 0, "modules_to_save": ["norm"]}, train__parts=["vision_tower"]))
    nowhere_else = targets("qwen3_vl", spec_with(modules_to_save=["merger"])).saved
    assert nowhere_else == ("model.visual.merger",)


def test_dense_layers_that_peft_would_take_for_experts_are_adapted_as_tensors() -> None:
    spec = spec_with(target_modules="all-linear")
    model = meta_model(CONFIGS["deepseek_v3"](), spec.model, spec.task_section.uses)
    adapted = to_train(model, spec, base_name="base")
    names = {n.split(".lora_")[0] for n, p in adapted.named_parameters() if p.requires_grad}
    assert not any(".experts" in name for name in names)
    assert any("layers.0.mlp.gate_proj" in name for name in names)
    assert any("layers.1.mlp.shared_experts.down_proj" in name for name in names)
    model = meta_model(CONFIGS["deepseek_v3"](), spec.model, spec.task_section.uses)
    with pytest.raises(ConfigError) as wrong:
        to_train(model, spec_with(target_modules="all-linear", dropout=0.05), base_name="base")
    assert wrong.value.problems[0].where == "lora.dropout"
    packed = spec_of(lora={"dropout": 0, "target_modules": "all-linear"}, model__quantization="nf4")
    with pytest.raises(ConfigError, match="cannot lie over packed weights"):
        lora_config(packed.lora, model, targets_in(model, packed), use="writes", packed=True, base_name="base")


@pytest.mark.parametrize(
    ("wanted", "others", "suffixes"),
    [
        (["a.0.q", "a.1.q"], ["a.0.k"], ["q"]),
        (["a.0.q", "a.1.q"], ["b.0.q"], ["a.0.q", "a.1.q"]),
        (["a.x.q", "b.x.q"], ["a.y.q"], ["x.q"]),
        (["a.0.q"], ["a.0.bq"], ["q"]),
    ],
)
def test_names_are_as_short_as_they_can_be(wanted: list[str], others: list[str], suffixes: list[str]) -> None:
    assert shortest(wanted, others) == suffixes
    assert shortest(["a.gate"], ["a.shared_gate"], boundary="") == ["a.gate"]


def test_meta_models_take_no_memory() -> None:
    config = LlamaConfig(hidden_size=8192, num_hidden_layers=80, intermediate_size=28672, num_attention_heads=64)
    spec = spec_with()
    model = to_train(meta_model(config, spec.model, spec.task_section.uses), spec, base_name="base")
    trainable, total = parameter_counts(model)
    assert total > 60e9 and trainable == 80 * 4 * 8 * 2 * 8192


def test_adapters_start_equal_on_every_rank_whatever_was_drawn_before(tmp_path: Path) -> None:
    source, spec = saved("llama", tmp_path), spec_of(lora={"r": 2}, train__seed=5)
    states = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        torch.rand(noise)
        adapted = to_train(loaded(source, spec), spec, base_name="base")
        states.append({name: p for name, p in adapted.named_parameters() if p.requires_grad})
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("name", sorted(ALL_PARTS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_trained_is_float32_and_the_empty_model_is_the_same(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    spec = spec_of(lora={"dropout": 0, "target_modules": "all-linear"}, train__parts=ALL_PARTS[name])
    source = saved(name, tmp_path)
    full = to_train(loaded(source, spec, dtype), spec, base_name="base")
    empty = to_train(empty_model(spec.model, load_config(source, spec.model), dtype), spec, base_name="base")

    def facts(model: Any) -> dict[str, Any]:
        return {n: (p.shape, p.dtype, p.requires_grad) for n, p in model.named_parameters()}

    assert facts(full) == facts(empty)
    assert all(p.is_meta for p in empty.parameters()) and not any(p.is_meta for p in full.parameters())
    assert {p.dtype for p in full.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in full.parameters() if not p.requires_grad} == {dtype}


@pytest.mark.parametrize("switch", ["use_dora", "use_rslora"])
def test_switches_reach_peft(switch: str) -> None:
    spec = spec_with(r=2, **{switch: True})
    adapted = to_train(meta_model(CONFIGS["llama"](), spec.model, spec.task_section.uses), spec, base_name="base")
    config = adapted.peft_config["default"]
    assert getattr(config, switch) is True
    assert config.base_model_name_or_path == "base"


def test_gpt2s_layers_are_known_to_be_transposed() -> None:
    spec = spec_with()
    model = meta_model(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16), spec.model, spec.task_section.uses)
    assert to_train(model, spec, base_name="base").peft_config["default"].fan_in_fan_out is True


PLAIN = {"causal": AutoModelForCausalLM, "vision": AutoModelForImageTextToText}


SOME_LAYERS = [["o_proj", "gate_proj"], ["up_proj", "down_proj"], ["o_proj", "down_proj"]]
NAMES = ["llama", "gpt2", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "distilbert", "bert"]


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        *((name, choice) for name in NAMES for choice in ("auto", "all-linear")),
        *(("deepseek_v3", some) for some in SOME_LAYERS),
    ],
)
def test_plain_peft_gives_the_same_logits(name: str, choice: str | list[str], tmp_path: Path) -> None:
    spec = spec_of(task=task_of(name), lora={"dropout": 0, "target_modules": choice, "r": 4})
    if "router" in part_names(name, spec):
        spec = spec_of(lora=spec.lora.model_dump(), train__parts=["language", "experts", "router"])  # type: ignore[union-attr]
    source = saved(name, tmp_path / "base")
    adapted = shaken(to_train(loaded(source, spec), spec, base_name=source.name))
    save_weights(adapted, tmp_path / "adapter")
    if spec.task == "classify":
        base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=len(CLASSES))
    else:
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    plain = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    assert torch.allclose(logits(plain), logits(adapted), atol=1e-5, rtol=0)
    with plain.disable_adapter():
        assert (logits(plain) - logits(adapted)).abs().max() > 1e-2, "the adapter does something"


def part_names(name: str, spec: RunSpec) -> set[str]:
    model = meta_model(CONFIGS[name](), spec.model, spec.task_section.uses)
    return {part_finder(model)(n) for n, _ in model.named_parameters()}


@pytest.mark.parametrize("parts", ["auto", ["language", "projector", "vision_tower"]])
def test_plain_peft_gives_a_vision_model_the_same_logits(parts: object, tmp_path: Path) -> None:
    spec = spec_of(lora={"dropout": 0}, train__parts=parts)
    source = saved("qwen3_vl", tmp_path / "base")
    adapted = shaken(to_train(loaded(source, spec), spec, base_name=source.name))
    save_weights(adapted, tmp_path / "adapter")
    base = AutoModelForImageTextToText.from_pretrained(tmp_path / "base")
    before = logits(base.eval(), pictures=True)
    plain = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    assert torch.allclose(logits(plain, pictures=True), logits(adapted, pictures=True), atol=1e-5, rtol=0)
    assert (before - logits(adapted, pictures=True)).abs().max() > 1e-2
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == source.name and config["inference_mode"] is True


WHOLE: list[dict[str, Any]] = [
    {"modules_to_save": ["embed_tokens"]},
    {"modules_to_save": ["lm_head", "input_layernorm"]},
    {"trainable_token_indices": [0, 7, 9]},
]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("lora", WHOLE, ids=["embeddings", "head", "tokens"])
def test_embeddings_are_trained_saved_loaded_and_merged(lora: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    """As plain peft does, and back into a checkpoint's model bit for bit."""
    spec = spec_with(**lora)
    config = CONFIGS["llama"]()
    config.tie_word_embeddings = tied
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")

    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(tmp_path / "base")

    tokens = tuple(int(token) for token in spec.lora.trainable_token_indices) if spec.lora else ()
    adapted = shaken(to_train(base(), spec, base_name="base", tokens=tokens))
    extra = {name for name, p in adapted.named_parameters() if p.requires_grad and "lora_" not in name}
    assert extra and all(adapted.get_parameter(name).dtype is torch.float32 for name in extra)
    if tokens:
        assert {tuple(adapted.get_parameter(name).shape) for name in extra} == {(3, config.hidden_size)}
    save_weights(adapted, tmp_path / "adapter")
    assert set(adapter_file_names(adapted).values()) == {n for n, p in adapted.named_parameters() if p.requires_grad}
    plain = PeftModel.from_pretrained(base(), str(tmp_path / "adapter")).eval()
    assert torch.allclose(logits(plain), logits(adapted), atol=1e-5, rtol=0)
    second = to_train(base(), spec, base_name="base", tokens=tokens)
    load_weights(second, tmp_path / "adapter")
    assert torch.equal(logits(second.eval()), logits(adapted))
    done = merge(ModelSpec(name=str(tmp_path / "base")), tmp_path / "adapter", tmp_path / "merged")
    merged, report = AutoModelForCausalLM.from_pretrained(done.directory, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.allclose(logits(merged.eval()), logits(adapted), atol=1e-5, rtol=0)
    assert not torch.allclose(logits(base().eval()), logits(adapted), atol=1e-3, rtol=0)


def test_what_cannot_be_trained_in_full_is_refused_at_once() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    unknown = spec_with(modules_to_save=["embed_token", "q_proj"])
    with pytest.raises(ConfigError, match="no module embed_token with weights") as error:
        targets_in(model, unknown)
    assert "did you mean embed_tokens?" in str(error.value)
    assert "q_proj would have an adapter and be trained in full" in str(error.value)
    twice = spec_with(modules_to_save=["embed_tokens"], trainable_token_indices=[10**6])
    with pytest.raises(ConfigError, match="token 1000000 has no embedding") as error:
        to_train(model, twice, base_name="base", tokens=(10**6,))
    assert "trained in full already" in str(error.value)
    packed = spec_of(lora={"dropout": 0, "modules_to_save": ["down_proj"]}, model__quantization="nf4")
    with pytest.raises(ConfigError, match="held in fewer bits"):
        to_train(model, packed, base_name="base")


def test_tokens_are_named_by_their_text() -> None:
    tokenizer = tiny_tokenizer()
    vocabulary = tokenizer.get_vocab()
    word = next(iter(vocabulary))
    lora = spec_with(trainable_token_indices=[word, 3]).lora
    assert lora is not None and set(token_numbers(lora, tokenizer)) == {vocabulary[word], 3}
    lora = spec_with(trainable_token_indices=["<no such>", "<nor this>"]).lora
    assert lora is not None
    with pytest.raises(ConfigError, match="no token '<no such>'") as error:
        token_numbers(lora, tokenizer)
    assert len(error.value.problems) == 2


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_that_is_cut_off_is_said_to_be(name: str, tmp_path: Path) -> None:
    spec = spec_with()
    source = saved("llama", tmp_path / "base")
    save_weights(to_train(loaded(source, spec), spec, base_name="base"), tmp_path / "adapter")
    file = tmp_path / "adapter" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ConfigError, match="cannot be read") as error:
        load_adapter(loaded(source, spec), tmp_path / "adapter")
    assert "cut off" in error.value.problems[0].hint
    if name == "adapter_config.json":
        with pytest.raises(ConfigError, match="adapter_config.json cannot be read"):
            merge(spec.model, tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize("name", ["", "adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_that_cannot_be_read_now_is_neither_damaged_nor_of_another_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with()
    source = saved("llama", tmp_path / "base")
    save_weights(to_train(loaded(source, spec), spec, base_name="base"), tmp_path / "adapter")
    model = loaded(source, spec)
    stale(monkeypatch, tmp_path / "adapter" / name)
    with pytest.raises(StorageError, match="cannot be read at the moment"):
        load_adapter(model, tmp_path / "adapter")


def test_an_adapter_of_another_model_is_refused(tmp_path: Path) -> None:
    spec = spec_with()
    source = saved("llama", tmp_path / "base")
    save_weights(to_train(loaded(source, spec), spec, base_name="base"), tmp_path / "adapter")
    config = CONFIGS["llama"]()
    config.hidden_size, config.head_dim = 32, 16
    wider = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ConfigError, match="the adapter does not fit the model"):
        load_adapter(wider, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("q_proj.lora_A", None, "2 of its weights are not in the adapter's files: model.layers.0.self_attn.q_proj"),
        ("norm", None, "model.norm"),
        (".layers.1.", ".language_model.layers.1.", "have no place in this model: model.language_model.layers.1"),
    ],
)
def test_an_adapter_of_which_only_a_part_would_be_used_is_refused(
    old: str, new: str | None, says: str, tmp_path: Path
) -> None:
    """peft puts in what it finds a place for; the rest would be as if it had never been trained."""
    spec = spec_with(modules_to_save=["model.norm"])
    source = saved("llama", tmp_path / "base")
    save_weights(to_train(loaded(source, spec), spec, base_name="base"), tmp_path / "adapter")
    load_adapter(loaded(source, spec), tmp_path / "adapter")
    file = tmp_path / "adapter/adapter_model.safetensors"
    tensors = {
        name.replace(old, new or ""): tensor for name, tensor in load_file(file).items() if new or old not in name
    }
    save_file(tensors, file)
    with pytest.raises(ConfigError, match="the adapter does not fit the model") as error:
        load_adapter(loaded(source, spec), tmp_path / "adapter")
    assert says in str(error.value)


def test_adapters_that_could_not_be_read_back_are_refused_before_they_are_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on Laguna's shared experts: what renames the files of a base also renames the adapter's, to other names."""
    spec = spec_with(target_modules="all-linear")
    to_train(meta_model(CONFIGS["llama"](), spec.model, "writes"), spec, base_name="base")

    def renaming(_model: Any, _config: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {
            name.replace(".mlp.up_", ".mlp.ups_").replace(".mlp.down_", "."): value for name, value in state.items()
        }

    monkeypatch.setattr(model_lora, "convert_peft_adapter_state_dict_for_transformers", renaming)
    with pytest.raises(ConfigError, match=r"adapters on down_proj and up_proj") as error:
        to_train(meta_model(CONFIGS["llama"](), spec.model, "writes"), spec, base_name="base")
    assert error.value.problems[0].where == "lora.target_modules"
    spec = spec_with(target_modules=["q_proj"])
    to_train(meta_model(CONFIGS["llama"](), spec.model, "writes"), spec, base_name="base")


def test_what_peft_does_not_adapt_is_refused_in_its_words() -> None:
    """Of models with states, whose kernels would compute past an adapter."""
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ConfigError, match="'out_proj' is incompatible with Mamba-based models") as error:
        to_train(model, spec_with(target_modules="all-linear"), base_name="base")
    assert error.value.problems[0].where == "lora.target_modules"


HYBRID = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
HYBRID |= {"vocab_size": 64, "pad_token_id": 0}


def falcon_h1() -> Any:
    sizes = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4}
    return FalconH1Config(**HYBRID, **sizes, num_hidden_layers=2)


def nemotron_h() -> Any:
    sizes = {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 1, "head_dim": 8}
    return NemotronHConfig(**HYBRID, **sizes, layers_block_type=["mamba", "attention"])


def bamba() -> Any:
    sizes = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 4}
    return BambaConfig(**HYBRID, **sizes, num_hidden_layers=2, attn_layer_indices=[1])


@pytest.mark.parametrize("config", [falcon_h1, nemotron_h, bamba])
def test_auto_leaves_layers_with_states_alone_in_a_model_with_attention(config: Callable[[], Any]) -> None:
    """Mamba's out_proj is called as attention's in other models, and peft refuses it in most of them."""
    model = meta_model(config(), spec_with().model, "writes")
    assert any(name.endswith(".out_proj") for name, _ in model.named_modules())
    assert last(targets_in(model, spec_with()).modules) == ["k_proj", "o_proj", "q_proj", "v_proj"]
    to_train(model, spec_with(), base_name="base")


def test_auto_takes_what_can_be_adapted_of_a_model_with_states_alone() -> None:
    model = AutoModelForCausalLM.from_config(MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1))
    assert last(targets_in(model, spec_with()).modules) == ["dt_proj", "in_proj", "x_proj"]
    to_train(model, spec_with(), base_name="base")


def test_every_tensor_of_the_file_is_a_parameter_of_the_model(tmp_path: Path) -> None:
    spec = spec_of(lora={"dropout": 0}, train__parts=ALL_PARTS["qwen3_moe"])
    adapted = to_train(loaded(saved("qwen3_moe", tmp_path / "base"), spec), spec, base_name="base")
    save_weights(adapted, tmp_path / "adapter")
    names = adapter_file_names(adapted)
    assert names.keys() == load_file(tmp_path / "adapter/adapter_model.safetensors").keys()
    assert set(names.values()) == {name for name, p in adapted.named_parameters() if p.requires_grad}
