"""Which class a config and a task become, where heads come from, and what is refused before it is trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from rankzero.errors import ConfigError
from rankzero.model import load
from rankzero.model.load import (
    ClassHead,
    drawn_from,
    empty_model,
    kind_of,
    load_config,
    load_model,
    load_tokenizer,
    stored_dtype,
)
from tests.support.tiny import tiny_tokenizer
from tests.support.tiny_configs import CONFIGS
from tests.unit.model.support import CLASSES, loaded, saved, spec_of


@pytest.mark.parametrize(
    ("name", "use", "kind"),
    [
        ("llama", "writes", "causal"),
        ("qwen3_moe", "writes", "causal"),
        ("qwen3_vl", "writes", "vision"),
        ("gemma3", "writes", "vision"),
        ("llama", "classifies", "classifier"),
        ("distilbert", "classifies", "classifier"),
    ],
)
def test_kind_follows_from_config_and_use(name: str, use: str, kind: str) -> None:
    assert kind_of(CONFIGS[name](), use) == kind  # type: ignore[arg-type]


def test_an_encoder_does_not_write_text() -> None:
    with pytest.raises(ConfigError, match="distilbert is no model that writes text") as refused:
        kind_of(CONFIGS["distilbert"](), "writes")
    assert refused.value.problems[0].hint == "task: classify puts texts into classes"
    masked = CONFIGS["bert"]()
    masked.architectures = ["BertForMaskedLM"]  # transformers would load it as a language model that sees ahead
    with pytest.raises(ConfigError, match="no model that writes text"):
        kind_of(masked, "writes")


@pytest.mark.parametrize("kind", ["bart", "marian", "mbart", "pegasus", "plbart", "whisper"])
def test_of_an_encoder_and_a_decoder_none_is_trained_alone(kind: str, tmp_path: Path) -> None:
    """transformers has a class for the decoder, which is what it would load of the files of both."""
    config = AutoConfig.for_model(kind)
    with pytest.raises(ConfigError, match=f"{kind} is an encoder and a decoder") as refused:
        kind_of(config, "writes")
    assert "Qwen" in refused.value.problems[0].hint
    config.is_encoder_decoder, config.is_decoder = False, True  # as a decoder that was trained alone is saved
    assert kind_of(config, "writes") == "causal"


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
OTHER_SIZES = {"d_model": 16, "d_inner": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64}


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("bert", {}),
        ("bert", {"is_decoder": True}),
        ("xlm-roberta", {}),
        ("electra", {}),
        ("bert-generation", {}),
        ("xlnet", OTHER_SIZES),
        ("gpt_neox", {}),
        ("bart", {"d_model": 16, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}),
        ("llama", {}),
        ("llama", {"is_causal": False}),
        ("gemma3_text", {"head_dim": 8, "num_key_value_heads": 2, "use_bidirectional_attention": True}),
        ("gemma3_text", {"head_dim": 8, "num_key_value_heads": 2}),
    ],
)
def test_a_model_that_sees_what_it_is_to_predict_is_refused(model_type: str, changes: dict[str, Any]) -> None:
    """Whatever class its files were saved by. What a model does shows in what a token says once others stand behind
    it."""
    config = AutoConfig.for_model(model_type, **(changes if "d_model" in changes else {**SIZES, **changes}))
    config.architectures = ["OfItsPreTraining"]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ids = torch.randint(3, 60, (1, 8))
    other = torch.cat([ids[:, :5], torch.randint(3, 60, (1, 3))], dim=1)
    with torch.no_grad():
        said, again = (model(input_ids=tokens, use_cache=False).logits[:, :5] for tokens in (ids, other))
    if torch.allclose(said, again, atol=1e-4):
        assert kind_of(config, "writes") == "causal"
    else:
        with pytest.raises(ConfigError, match=f"{model_type} is no model that writes text"):
            kind_of(config, "writes")


def test_a_model_with_a_two_way_prefix_is_told_what_it_is() -> None:
    """PaliGemma's text model has the mask of an encoder over the question; task: sft was what was asked."""
    with pytest.raises(ConfigError, match="paligemma is no model that writes text from left to right") as refused:
        kind_of(AutoConfig.for_model("paligemma"), "writes")
    assert refused.value.problems[0].hint == "take another model"


def test_what_cannot_classify_says_so() -> None:
    with pytest.raises(ConfigError, match="qwen3_vl is no text classifier"):
        kind_of(CONFIGS["qwen3_vl"](), "classifies")


@pytest.mark.parametrize("name", ["llama", "qwen3_vl", "gpt_oss"])
def test_a_model_is_loaded_as_its_own_class_loads_it(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path)
    model = loaded(source, spec_of())
    files = load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in files.values()) == sum(p.numel() for p in model.parameters())
    assert model.config.use_cache is False


def test_a_classifier_has_the_labels_and_knows_the_padding(tmp_path: Path) -> None:
    source, spec = saved("llama", tmp_path), spec_of(task="classify")
    config = load_config(source, spec.model)
    model = load_model(source, spec.model, config, torch.float32, head=ClassHead(CLASSES, 7))
    assert model.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert model.config.label2id == {"bad": 0, "fair": 1, "good": 2}
    assert model.score.weight.shape == (3, 16)
    assert model.config.pad_token_id == 7
    assert config.pad_token_id == 0, "the run's own config stays as it was read"
    rows = torch.tensor([[5, 9, 17, 7, 7], [5, 9, 17, 33, 4]])
    with torch.no_grad():
        assert torch.allclose(model(input_ids=rows).logits[0], model(input_ids=rows[:1, :3]).logits[0], atol=1e-6)


def test_a_new_head_is_drawn_from_the_seed_alone(tmp_path: Path) -> None:
    source = saved("distilbert", tmp_path)
    heads = []
    for noise, seed in ((1, 42), (2, 42), (3, 43)):
        torch.manual_seed(noise)
        before = torch.get_rng_state()
        heads.append(loaded(source, spec_of(task="classify", train__seed=seed)).classifier.weight)
        assert torch.equal(torch.get_rng_state(), before), "loading draws no numbers from the run's generator"
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_a_head_for_other_classes_is_drawn_anew_and_one_for_as_many_is_kept(tmp_path: Path) -> None:
    spec = spec_of(task="classify")
    trained = loaded(saved("distilbert", tmp_path / "base"), spec)
    with torch.no_grad():
        trained.classifier.weight.fill_(1.5)
    trained.save_pretrained(tmp_path / "trained")
    source = saved("distilbert", tmp_path / "unused").__class__(tmp_path / "trained", tmp_path / "trained", "trained")
    assert (loaded(source, spec).classifier.weight == 1.5).all()
    config = load_config(source, spec.model)
    two = load_model(source, spec.model, config, torch.float32, head=ClassHead(("no", "yes")))
    assert two.classifier.weight.shape == (2, 16) and not (two.classifier.weight == 1.5).any()
    assert torch.equal(two.pre_classifier.weight, trained.pre_classifier.weight)


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if "layers.1.self_attn.q_proj" not in name}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="1 of the model's weights are not in its files") as refused:
        loaded(source, spec_of())
    assert "model.layers.1.self_attn.q_proj.weight" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "task"), [("llama", "sft"), ("gpt2", "sft"), ("qwen3_moe", "sft"), ("distilbert", "classify")]
)
def test_layers_that_a_config_leaves_out_are_said(
    name: str, task: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A smaller model is made of the same files without a word otherwise, by a slip or as somebody's cut."""
    source, spec = saved(name, tmp_path), spec_of(task=task)
    loaded(source, spec)
    assert "num_hidden_layers" not in caplog.text
    config = json.loads((tmp_path / "config.json").read_text())
    field = next(field for field in ("num_hidden_layers", "n_layer", "n_layers") if field in config)
    if "layer_types" in config:
        config["layer_types"] = None
    for fewer, words in ((1, "1 layer more"), (0, "2 layers more")):
        (tmp_path / "config.json").write_text(json.dumps({**config, field: fewer}))
        caplog.clear()
        loaded(source, spec)
        assert f"{tmp_path}: its files have {words} than config.json says (num_hidden_layers)" in caplog.text


def test_another_shape_is_refused(tmp_path: Path) -> None:
    source = saved("llama", tmp_path)
    config = CONFIGS["llama"]()
    config.intermediate_size = 48
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="the weights cannot be loaded"):
        loaded(source, spec_of())


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_empty_model_is_the_loaded_one_without_memory(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    spec = spec_of(task="classify" if name in ("bert", "distilbert") else "sft")
    source = saved(name, tmp_path)
    full = loaded(source, spec, dtype)
    head = ClassHead(CLASSES) if spec.task == "classify" else None
    empty = empty_model(spec.model, load_config(source, spec.model), dtype, head=head)
    assert {n: (p.shape, p.dtype) for n, p in empty.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in full.named_parameters()
    }
    assert {n: b.dtype for n, b in empty.named_buffers()} == {n: b.dtype for n, b in full.named_buffers()}
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert type(empty) is type(full)


def test_attention_is_passed_on(tmp_path: Path) -> None:
    spec, source = spec_of(), saved("llama", tmp_path)
    config = load_config(source, spec.model)
    model = load_model(source, spec.model, config, torch.float32, attention="eager")
    assert model.config._attn_implementation == "eager"
    assert empty_model(spec.model, config, torch.float32, attention="eager").config._attn_implementation == "eager"


@pytest.mark.parametrize(("wanted", "where"), [("auto", None), ("eager", "model.attention")])
def test_a_missing_package_is_attention_s_only_where_one_was_asked_for(
    wanted: str, where: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none was, rankzero has chosen one by what is installed."""

    class Lacks:
        def from_pretrained(self, *_: object, **__: object) -> None:
            raise ImportError("no module named wanted_package")

        from_config = from_pretrained

    spec, source = spec_of(model__attention=wanted), saved("llama", tmp_path)
    config = load_config(source, spec.model)
    monkeypatch.setattr(load, "kind_of", lambda *_: "causal")
    monkeypatch.setitem(load._CLASSES, "causal", Lacks())
    with pytest.raises(ConfigError, match="wanted_package") as loading:
        load_model(source, spec.model, config, torch.float32, attention="eager")
    with pytest.raises(ConfigError, match="wanted_package") as outlining:
        empty_model(spec.model, config, torch.float32, attention="eager")
    for refused, place in ((loading, source.weights), (outlining, spec.model.name)):
        (problem,) = refused.value.problems
        assert problem.where == (where or str(place))
        assert ("install it" in problem.hint) == (where is None)


def test_a_config_that_is_wrong_is_not_the_tokenizer_s_fault(tmp_path: Path) -> None:
    """transformers reads it with the tokenizer, which comes first."""
    spec, source = spec_of(), saved("llama", tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": "</s>"}))
    with pytest.raises(ConfigError, match=r"config\.json cannot be used: .*eos_token_id.* expected int"):
        load_tokenizer(source, spec.model, None)


@pytest.mark.parametrize("said", [5, "int8", {"": "bfloat16"}])
def test_a_precision_that_no_weights_have_is_not_believed(said: object, tmp_path: Path) -> None:
    spec, source = spec_of(), saved("llama", tmp_path, dtype=torch.bfloat16)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dtype": said}))
    assert stored_dtype(load_config(source, spec.model), source.weights) is torch.bfloat16


def test_numbers_drawn_inside_do_not_move_those_outside() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with drawn_from(5):
        first = torch.rand(2)
    assert torch.equal(torch.rand(3), expected)
    with drawn_from(5):
        assert torch.equal(torch.rand(2), first)
