"""A merged model says what base and adapter say together, is whole or not there, and brings what belongs to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import rankzero.model.merge
from rankzero.engine.setup import to_train
from rankzero.errors import ConfigError, RankzeroError
from rankzero.model.lora import load_adapter
from rankzero.model.merge import OfRun, add_adapters, merge
from rankzero.model.proof import Prompts, compare, logits_of
from rankzero.model.quantize import unpack
from rankzero.model.source import ModelSource
from rankzero.model.weights import export_final, save_whole
from rankzero.run_dir.result import find_result
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_spec import RunSpec
from tests.support.cli import Cli
from tests.support.tiny import tiny_model, tiny_tokenizer, write_jsonl
from tests.support.tiny_configs import CONFIGS, HEADS_WITH_BIAS
from tests.unit.model.support import CLASSES, loaded, logits, saved, shaken, spec_of, task_of

CLASS = {"sft": AutoModelForCausalLM, "classify": AutoModelForSequenceClassification}


def trained(
    name: str, root: Path, dtype: torch.dtype = torch.float32, *, model_vocabulary: int = 64, **changes: Any
) -> tuple[RunSpec, Any]:
    """A base in `root`/base and a moved adapter in `root`/final; the spec, and the model with the adapter on it."""
    source = saved(name, root / "base", dtype=dtype, vocabulary=model_vocabulary)
    tiny_tokenizer().save_pretrained(root / "base")
    spec = spec_of(task=task_of(name), model__name=str(root / "base"), **{"lora": {"dropout": 0}, **changes})
    tokens = () if spec.lora is None else [int(token) for token in spec.lora.trainable_token_indices]
    adapted = shaken(to_train(loaded(source, spec, dtype), spec, base_name=source.name, tokens=tokens))
    (root / "final").mkdir()
    export_final(adapted, tiny_tokenizer(), root / "final", dtype=dtype, stop_ids=[2, 3])
    return spec, adapted


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {}),
        ("llama", {"lora": {"dropout": 0, "use_dora": True, "target_modules": "all-linear"}}),
        ("llama", {"lora": {"dropout": 0, "use_rslora": True}}),
        ("llama", {"lora": {"dropout": 0, "modules_to_save": ["embed_tokens", "lm_head", "norm"]}}),
        ("gpt2", {}),
        ("gpt2", {"lora": {"dropout": 0, "modules_to_save": ["wte"]}}),
        ("distilbert", {}),
        ("bert", {}),
        ("qwen3_moe", {"train__parts": ["language", "experts", "router"]}),
        ("gpt_oss", {"train__parts": ["experts"]}),
        ("deepseek_v3", {"lora": {"dropout": 0, "target_modules": "all-linear"}}),
    ],
)
def test_merged_is_base_and_adapter(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    spec, adapted = trained(name, tmp_path, **changes)
    labels = CLASSES if spec.task == "classify" else None
    done = merge(spec.model, tmp_path / "final", tmp_path / "merged", labels=labels)
    model, report = CLASS[spec.task].from_pretrained(done.directory, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    modes = {path.stat().st_mode for path in done.directory.rglob("*") if path.is_file()}
    assert modes == {(done.directory / "manifest.json").stat().st_mode}, "the umask decides who may read"
    assert distance(logits(model.eval()), logits(adapted)) < 1e-5
    assert done.difference.largest < done.difference.tolerance < 1e-4 < done.adapter_changes
    assert json.loads((done.directory / "merge.json").read_text()) == done.to_json()
    assert distance(logits(model), logits(loaded(saved(name, tmp_path / "again"), spec))) > 1e-3, "it did change"
    if labels:
        assert model.config.id2label == dict(enumerate(labels))


@pytest.mark.parametrize("name", HEADS_WITH_BIAS)
def test_the_bias_of_a_head_whose_rows_are_trained_is_merged_and_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONFIGS, name, HEADS_WITH_BIAS[name])
    spec, adapted = trained(name, tmp_path, lora={"dropout": 0, "trainable_token_indices": [5, 9, 17]})
    merge(spec.model, tmp_path / "final", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert merged.get_output_embeddings().bias.any() and distance(logits(merged), logits(adapted)) < 1e-5
    base = loaded(ModelSource(tmp_path / "base", tmp_path / "base", "base"), spec)
    assert distance(logits(load_adapter(base, tmp_path / "final").eval()), logits(adapted)) < 1e-5


def test_a_vision_model_merges_whole(tmp_path: Path) -> None:
    parts = ["language", "projector", "vision_tower"]
    spec, adapted = trained("qwen3_vl", tmp_path, train__parts=parts)
    merge(spec.model, tmp_path / "final", tmp_path / "merged")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "merged").eval()
    assert distance(logits(model, pictures=True), logits(adapted, pictures=True)) < 1e-5


@pytest.mark.parametrize("quantization", ["nf4", "fp8"])
@pytest.mark.parametrize(("name", "parts"), [("llama", "auto"), ("qwen3_moe", ["language", "experts"])])
def test_a_packed_base_merges_as_it_was_trained_on(name: str, parts: object, quantization: str, tmp_path: Path) -> None:
    spec, adapted = trained(name, tmp_path, model__quantization=quantization, train__parts=parts)
    merge(spec.model, tmp_path / "final", tmp_path / "merged")
    on_others = merge(spec.model, tmp_path / "final", tmp_path / "files", base_weights="files")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert distance(logits(model), logits(adapted)) < 1e-5
    assert "quantization_config" not in json.loads((tmp_path / "merged/config.json").read_text())
    other = AutoModelForCausalLM.from_pretrained(tmp_path / "files").eval()
    assert distance(logits(other), logits(adapted)) > 1e-4, "the files' weights are not what was trained on"
    assert on_others.difference.largest < on_others.difference.tolerance < 1e-4 < (on_others.from_trained or 0)
    assert "from the base in fewer bits that it was trained on" in on_others.in_words
    plain = spec.model_copy(update={"model": spec.model.model_copy(update={"quantization": "none"})})
    on_files = load_adapter(loaded(saved(name, tmp_path / "same"), plain), tmp_path / "final").eval()
    assert distance(logits(other), logits(on_files)) < 1e-5


@pytest.mark.parametrize("computed", ["float32", "float16"])
@pytest.mark.parametrize("quantization", ["nf4", "fp8"])
def test_a_base_that_was_packed_from_a_wider_precision_is_rounded_once(
    quantization: str, computed: str, tmp_path: Path
) -> None:
    """Where it is saved, in the precision of its files; layers without an adapter, too."""
    spec, _ = trained("llama", tmp_path, torch.bfloat16, model__quantization=quantization)
    base = loaded(ModelSource(tmp_path / "base", tmp_path / "base", "base"), spec, getattr(torch, computed))
    unpack(base)
    done = merge(spec.model, tmp_path / "final", tmp_path / "merged", of_run=OfRun(dtype=computed))
    merged = load_file(tmp_path / "merged/model.safetensors")
    assert all(tensor.dtype is torch.bfloat16 for tensor in merged.values())
    plain = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(merged[plain], base.get_parameter(plain).to(torch.bfloat16))
    assert done.difference.largest < done.difference.tolerance / 2


@pytest.mark.parametrize("quantization", ["nf4", "fp8"])
def test_what_an_architecture_keeps_in_float32_stays_so(
    quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router's offsets, which bfloat16 cannot tell apart, and the angles of positions."""
    spec, _ = trained("deepseek_v3", tmp_path, torch.bfloat16, model__quantization=quantization)
    file, name = tmp_path / "base/model.safetensors", "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors = load_file(file)
    offsets = 5 + 0.001 * torch.arange(tensors[name].numel())
    save_file({**tensors, name: offsets}, file, metadata={"format": "pt"})
    buffers = {}

    def watched(model: Any, directory: Path, **given: Any) -> None:
        buffers.update(model.named_buffers())
        save_whole(model, directory, **given)

    monkeypatch.setattr("rankzero.model.merge.save_whole", watched)
    merge(spec.model, tmp_path / "final", tmp_path / "merged", of_run=OfRun(dtype="bfloat16"))
    merged = load_file(tmp_path / "merged/model.safetensors")
    assert merged[name].dtype is torch.float32 and torch.equal(merged[name], offsets)
    assert all(tensor.dtype is torch.bfloat16 for other, tensor in merged.items() if other != name)
    before = dict(loaded(ModelSource(tmp_path / "base", tmp_path / "base", "base"), spec).named_buffers())
    angles = {key for key in before if key.endswith("inv_freq")}
    assert angles and all(torch.equal(buffers[key], before[key]) for key in angles)


@pytest.mark.parametrize(("files", "computed"), [("float16", "bfloat16"), ("bfloat16", "float16")])
@pytest.mark.parametrize("quantization", ["nf4", "fp8"])
def test_a_base_of_the_other_half_precision_stays_in_sixteen_bits(
    quantization: str, files: str, computed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory; what was trained keeps all that was saved of it, and each sum is rounded once."""
    lora = {"dropout": 0, "modules_to_save": ["embed_tokens", "lm_head", "norm"]}
    spec, _ = trained("llama", tmp_path, getattr(torch, files), model__quantization=quantization, lora=lora)
    base = loaded(ModelSource(tmp_path / "base", tmp_path / "base", "base"), spec, getattr(torch, computed))
    unpack(base)
    sizes, saved_with = [], load_file(tmp_path / "final/adapter_model.safetensors")
    exact = load_adapter(base.float(), tmp_path / "final")
    add_adapters(exact, torch.float32)

    def watched(adapted: Any, dtype: torch.dtype) -> int:
        sizes.extend(w.element_size() for n, w in adapted.named_parameters() if "lora_" not in n)
        layers = add_adapters(adapted, dtype)
        sizes.extend(w.element_size() for n, w in adapted.named_parameters() if "lora_" not in n)
        return layers

    monkeypatch.setattr("rankzero.model.merge.add_adapters", watched)
    done = merge(spec.model, tmp_path / "final", tmp_path / "merged", of_run=OfRun(dtype=computed))
    assert set(sizes) == {2} and done.dtype == files
    assert done.difference.largest < done.difference.tolerance / 2
    merged = load_file(tmp_path / "merged/model.safetensors")
    for name, tensor in saved_with.items():
        if "lora_" not in name:
            name = name.removeprefix("base_model.model.")
            assert torch.equal(merged[name], tensor.to(merged[name].dtype)), name
    for name, weight in exact.unload().named_parameters():
        if "_proj" in name:
            assert torch.equal(merged[name], weight.to(getattr(torch, files))), name


def test_sums_are_rounded_once_to_the_precision_of_the_base(tmp_path: Path) -> None:
    spec, adapted = trained("llama", tmp_path, torch.bfloat16)
    assert merge(spec.model, tmp_path / "final", tmp_path / "merged").dtype == "bfloat16"
    name = "model.layers.0.self_attn.q_proj"
    layer = adapted.get_base_model().get_submodule(name)
    exact = layer.base_layer.weight.float() + layer.get_delta_weight("default").float()
    merged = load_file(tmp_path / "merged/model.safetensors")
    assert all(tensor.dtype is torch.bfloat16 for tensor in merged.values())
    assert torch.equal(merged[f"{name}.weight"], exact.to(torch.bfloat16))
    assert json.loads((tmp_path / "merged/config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(("name", "said_in"), [("llama", None), ("qwen3_vl", "text_config"), ("qwen3_vl", None)])
def test_the_precision_of_the_base_is_found_wherever_it_is_said(name: str, said_in: str | None, tmp_path: Path) -> None:
    """Of models that see images a config often says it of the part that writes alone, and of others not at all."""
    spec, _ = trained(name, tmp_path, torch.bfloat16)
    config = json.loads((tmp_path / "base/config.json").read_text())
    for section in (config, *(value for value in config.values() if isinstance(value, dict))):
        section.pop("dtype", None)
    if said_in is not None:
        config[said_in]["dtype"] = "bfloat16"
    (tmp_path / "base/config.json").write_text(json.dumps(config))
    assert merge(spec.model, tmp_path / "final", tmp_path / "merged").dtype == "bfloat16"
    merged = load_file(tmp_path / "merged/model.safetensors")
    assert all(tensor.dtype is torch.bfloat16 for tensor in merged.values())


def test_tokenizer_template_and_generation_config_come_along(tmp_path: Path) -> None:
    spec, _ = trained("llama", tmp_path)
    (tmp_path / "base/preprocessor_config.json").write_text("{}")
    template = (tmp_path / "final/chat_template.jinja").read_text() + " "
    (tmp_path / "final/chat_template.jinja").write_text(template)
    merge(spec.model, tmp_path / "final", tmp_path / "merged")
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == template, "the adapter's comes first"
    assert json.loads((tmp_path / "merged/generation_config.json").read_text())["eos_token_id"] == [2, 3]
    assert (tmp_path / "merged/preprocessor_config.json").read_text() == "{}", "what the adapter lacks is the base's"
    assert not list((tmp_path / "merged").glob("adapter*"))


def test_the_tokenizer_of_an_adapter_is_not_mixed_with_its_bases(tmp_path: Path) -> None:
    """The base's files of older forms, which a saved tokenizer has no more, would come before what it says."""
    spec, _ = trained("llama", tmp_path)
    tokenizer = tiny_tokenizer(chat_template=None, eos="<|im_start|>")
    for file in (tmp_path / "final").glob("*token*"):
        file.unlink()
    (tmp_path / "final/chat_template.jinja").unlink()
    tokenizer.save_pretrained(tmp_path / "final")
    (tmp_path / "base/special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (tmp_path / "base/added_tokens.json").write_text("{}")
    assert (tmp_path / "base/chat_template.jinja").is_file()
    merge(spec.model, tmp_path / "final", tmp_path / "merged")
    merged = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert (merged.eos_token, merged.chat_template) == ("<|im_start|>", None)
    assert not (tmp_path / "merged/special_tokens_map.json").exists()
    assert not (tmp_path / "merged/added_tokens.json").exists()


def test_an_adapter_without_a_tokenizer_gets_all_of_its_bases(tmp_path: Path) -> None:
    spec, _ = trained("llama", tmp_path)
    for file in (*(tmp_path / "final").glob("*token*"), tmp_path / "final/chat_template.jinja"):
        file.unlink()
    (tmp_path / "base/special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    merge(spec.model, tmp_path / "final", tmp_path / "merged")
    merged = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert (merged.eos_token, bool(merged.chat_template)) == ("<|im_start|>", True)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    spec, _ = trained("llama", tmp_path)
    (tmp_path / "merged").mkdir()
    with pytest.raises(ConfigError, match="there is something already"):
        merge(spec.model, tmp_path / "final", tmp_path / "merged")
    assert not list((tmp_path / "merged").iterdir())


@pytest.mark.parametrize("what", ["a directory", "a file"])
def test_what_comes_to_stand_there_meanwhile_stays(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, _ = trained("llama", tmp_path)
    precious = tmp_path / "merged" / "precious" if what == "a directory" else tmp_path / "merged"
    ask = rankzero.model.merge._say_again

    def meanwhile(*arguments: Any) -> Any:
        precious.parent.mkdir(exist_ok=True)
        precious.write_text("somebody's")
        return ask(*arguments)

    monkeypatch.setattr("rankzero.model.merge._say_again", meanwhile)
    with pytest.raises(ConfigError, match="something has come to stand here meanwhile") as refused:
        merge(spec.model, tmp_path / "final", tmp_path / "merged")
    assert refused.value.problems[0].where == str(tmp_path / "merged")
    assert precious.read_text() == "somebody's" and not list(tmp_path.glob(".tmp-*"))


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, _ = trained("llama", tmp_path)
    monkeypatch.setattr("rankzero.model.merge.commit_directory", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        merge(spec.model, tmp_path / "final", tmp_path / "merged")
    assert {path.name for path in tmp_path.iterdir()} & {"base", "final", "merged"} == {"base", "final"}
    assert not list(tmp_path.glob(".tmp-*"))


HALVES = [
    ("llama", {"lora": {"dropout": 0, "use_dora": True, "target_modules": "all-linear"}}),
    ("llama", {"lora": {"dropout": 0, "modules_to_save": ["embed_tokens", "lm_head", "norm"]}}),
    ("llama", {"lora": {"dropout": 0, "trainable_token_indices": [5, 9, 17]}}),
    ("gpt2", {"lora": {"dropout": 0, "modules_to_save": ["wte"]}}),
    ("bert", {}),
    ("qwen3_moe", {"train__parts": ["language", "experts", "router"]}),
    ("gpt_oss", {"train__parts": ["experts"]}),
    ("deepseek_v3", {"lora": {"dropout": 0, "target_modules": "all-linear"}}),
    ("qwen3_vl", {"train__parts": ["language", "projector", "vision_tower"]}),
    ("qwen3_moe", {"model__quantization": "nf4", "train__parts": ["language", "experts"]}),
]
"""What of a merge is different, in a precision that rounds."""


@pytest.mark.parametrize(("name", "changes"), HALVES)
def test_the_proof_takes_a_right_merge_and_no_wrong_one(
    name: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 a right one stays well inside of the tolerance, and the error of a wrong scaling is far beyond it."""
    spec, _ = trained(name, tmp_path, torch.bfloat16, **changes)
    labels = CLASSES if spec.task == "classify" else None
    done = merge(spec.model, tmp_path / "final", tmp_path / "merged", labels=labels)
    assert 0 < done.difference.largest < done.difference.tolerance / 2 < done.adapter_changes / 5

    factor = 1.5 if spec.task == "sft" else 8  # most of what a classifier has learned is in its head

    def too_much(adapted: Any, dtype: torch.dtype) -> int:
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter *= factor
        return add_adapters(adapted, dtype)

    monkeypatch.setattr("rankzero.model.merge.add_adapters", too_much)
    with pytest.raises(RankzeroError, match="does not say what base and adapter say") as caught:
        merge(spec.model, tmp_path / "final", tmp_path / "wrong", labels=labels)
    assert caught.value.exit_code == 70
    assert not (tmp_path / "wrong").exists() and not list(tmp_path.glob(".tmp-*"))


def test_what_is_written_is_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is lost on the way to the disk is found, though the model in memory was right."""
    spec, _ = trained("llama", tmp_path)

    def forgetful(model: Any, directory: Path, **given: Any) -> None:
        with torch.no_grad():
            model.get_submodule("model.layers.1.self_attn.v_proj").weight.zero_()
        save_whole(model, directory, **given)

    monkeypatch.setattr("rankzero.model.merge.save_whole", forgetful)
    with pytest.raises(RankzeroError, match="nothing was written"):
        merge(spec.model, tmp_path / "final", tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_a_head_that_is_parted_from_its_embeddings_stays_so_and_no_other(tmp_path: Path) -> None:
    """Parted by an adapter on the head alone, as other tools make them; trained in full, GPT-2's embeddings are not."""
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(tiny_model(tmp_path / "base"), dtype=torch.float32)
    settings = LoraConfig(target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    adapted = shaken(get_peft_model(base, settings))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    spec = spec_of(model__name=str(tmp_path / "base")).model
    done = merge(spec, tmp_path / "adapter", tmp_path / "merged")
    assert done.layers == 3 and done.difference.is_small
    other = tmp_path / "gpt2"
    other.mkdir()
    of_gpt2, _ = trained("gpt2", other, lora={"dropout": 0, "modules_to_save": ["wte"]})
    merge(of_gpt2.model, other / "final", other / "merged")
    for merged, tied in ((tmp_path / "merged", False), (other / "merged", True)):
        assert json.loads((merged / "config.json").read_text())["tie_word_embeddings"] is tied
        model = AutoModelForCausalLM.from_pretrained(merged)
        assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight) is tied


def test_not_a_number_is_refused() -> None:
    right = torch.randn(3, 5)
    wrong = right.clone()
    wrong[1, 2] = float("nan")
    assert not compare(right, wrong, dtype=torch.bfloat16, rounded=4, routed=False).is_small
    assert compare(right, right, dtype=torch.bfloat16, rounded=4, routed=False).is_small


def test_a_router_may_send_single_tokens_elsewhere_and_not_many() -> None:
    right = torch.randn(8, 5)
    for wrong_tokens, good in ((2, True), (3, False)):
        other = right.clone()
        other[:wrong_tokens] += torch.randn(wrong_tokens, 5) + 1
        found = compare(right, other, dtype=torch.bfloat16, rounded=4, routed=True)
        assert found.is_small is good and found.largest > found.tolerance
        assert not compare(right, other, dtype=torch.bfloat16, rounded=4, routed=False).is_small


def test_all_compute_in_float32_and_are_as_they_were_afterwards(tmp_path: Path) -> None:
    spec, adapted = trained("llama", tmp_path, torch.bfloat16)
    before = {name: (parameter.dtype, parameter.data_ptr()) for name, parameter in adapted.named_parameters()}
    prompts = Prompts([[5, 9, 17, 33], [7, 44]])
    said = logits_of(adapted, prompts)
    assert {name: (p.dtype, p.data_ptr()) for name, p in adapted.named_parameters()} == before
    wide = adapted.float()
    assert distance(said, logits_of(wide, prompts)) < 1e-6, "as a model of float32 whose weights are the same"


def test_an_adapter_that_diverged_is_refused(tmp_path: Path) -> None:
    spec, adapted = trained("llama", tmp_path)
    with torch.no_grad():
        next(p for p in adapted.parameters() if p.requires_grad).fill_(float("nan"))
    export_final(adapted, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[2])
    with pytest.raises(ConfigError, match="NaN or Inf"):
        merge(spec.model, tmp_path / "final", tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_command_takes_an_adapter_that_no_run_made(tmp_path: Path, cli: Cli) -> None:
    _, adapted = trained("llama", tmp_path)
    done = cli(f"merge {tmp_path}/final -o {tmp_path}/out/merged --json")
    said = json.loads(done.out)
    named = {name: said[name] for name in ("directory", "base", "base_weights", "dtype", "layers")}
    assert named == {
        "directory": str(tmp_path / "out/merged"),
        "base": str(tmp_path / "base"),
        "base_weights": "trained",
        "dtype": "float32",
        "layers": 8,
    }
    assert said["logits_largest"] < said["logits_tolerance"] < said["adapter_changes"] and said["from_trained"] is None
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out/merged").eval()
    assert distance(logits(model), logits(adapted)) < 1e-5


def test_the_command_finds_a_run_of_any_of_its_directories(tmp_path: Path, cli: Cli) -> None:
    spec, adapted = trained("distilbert", tmp_path, data__labels=CLASSES, data__eval="rows.jsonl#10")
    (tmp_path / "run.yaml").write_text(to_yaml(spec))
    rows = [{"text": f"row {number}", "label": CLASSES[number % 3]} for number in range(6)]
    for number, where in enumerate((tmp_path, tmp_path / "final")):
        done = cli(f"merge {where} -o {tmp_path}/m{number}")
        assert done.code == 0, done.err
        noted = json.loads((tmp_path / "merge.json").read_text())
        assert noted["directory"] == str(tmp_path / f"m{number}") and noted["prompts"] == 4 + noted["rows_of_data"]
        assert noted["rows_of_data"] == (0 if number == 0 else 4), "of files that are here"
        assert f"over {noted['prompts']} prompts" in done.out and "rounding explains" in done.out
        write_jsonl(tmp_path / "rows.jsonl", rows)
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / f"m{number}").eval()
        assert model.config.id2label == dict(enumerate(CLASSES))
        assert distance(logits(model), logits(adapted)) < 1e-5


@pytest.mark.parametrize("longest", [16, 1000])
def test_what_is_made_of_a_classifier_cuts_texts_as_it_was_trained(longest: int, tmp_path: Path, cli: Cli) -> None:
    spec, _ = trained("distilbert", tmp_path, data__labels=CLASSES, data__max_length=longest)
    (tmp_path / "run.yaml").write_text(to_yaml(spec))
    assert cli(f"merge {tmp_path} -o {tmp_path}/merged").code == 0
    assert cli(f"export {tmp_path}/merged -o {tmp_path}/exported").code == 0
    for place in ("merged", "exported"):
        found = find_result(str(tmp_path / place), "classifies")
        assert found.max_length == min(longest, 64), "the model has no more positions"


def test_the_page_of_a_run_shows_what_the_proof_has_found(tmp_path: Path, cli: Cli) -> None:
    spec, _ = trained("llama", tmp_path)
    (tmp_path / "run.yaml").write_text(to_yaml(spec))
    assert cli(f"merge {tmp_path} -o {tmp_path}/m").code == 0
    assert cli(f"report {tmp_path}").code == 0
    page, noted = (tmp_path / "report.html").read_text(), json.loads((tmp_path / "merge.json").read_text())
    assert "How far the merged model is from base and adapter" in page
    assert f"{noted['logits_largest']:.3g}" in page and str(tmp_path / "m") in page


def test_the_command_says_what_is_missing(tmp_path: Path, cli: Cli) -> None:
    done = cli(f"merge {tmp_path} -o {tmp_path}/m")
    assert done.code == 78 and "there is no adapter: adapter_config.json is missing" in done.err
