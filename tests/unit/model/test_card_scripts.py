"""The Python of a card runs as it stands, beside every kind of result, and says what the result says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rankzero.data.prompts import question
from rankzero.data.tokens.surroundings import surroundings
from rankzero.engine.setup import to_train
from rankzero.errors import RankzeroError
from rankzero.model.generate import Turn, load_speaker, prompt_ids, prompt_of
from rankzero.model.load import load_tokenizer
from rankzero.model.merge import add_adapters, merge
from rankzero.model.quantize import unpack
from rankzero.model.source import ModelSource, locate
from rankzero.model.vision import load_vision
from rankzero.model.weights import export_final
from rankzero.run_dir.atomic import commit_directory
from rankzero.run_dir.card import CARD, Card, Licence, card_of, card_text
from rankzero.run_dir.load_snippets import Kind
from rankzero.run_dir.result import find_result
from tests.support.tiny import tiny_tokenizer
from tests.support.vision_families import save
from tests.unit.model.support import CLASSES, loaded, logits, shaken, spec_of
from tests.unit.model.test_merge import distance, trained


def run_card(text: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the card's script leaves behind."""
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    with monkeypatch.context() as patch:
        patch.chdir(directory)
        exec(compile(code, CARD, "exec"), names)
    return names


def card(kind: Kind, **changes: Any) -> Card:
    given: dict[str, Any] = {"name": "r", "base": "base", "base_id": None, "licence": Licence(), "rank": 8}
    return Card(**{**given, "kind": kind, "form": "adapter", **changes})


def test_an_adapter_and_the_merged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, adapted = trained("llama", tmp_path, model_vocabulary=384)
    made = card("causal", is_chat=True)
    found = run_card(card_text(made), tmp_path / "final", monkeypatch)
    assert distance(logits(found["model"]), logits(adapted)) < 1e-5
    done = merge(spec.model, tmp_path / "final", tmp_path / "merged", card=made)
    text = (tmp_path / "merged" / CARD).read_text()
    assert done.in_words in text and "merged into `base`" in text and "PeftModel" not in text
    kept = card_of(tmp_path / "merged")
    assert kept is not None and kept.form == "merged" and card_text(kept) == text
    merged = run_card(text, tmp_path / "merged", monkeypatch)
    assert distance(logits(merged["model"]), logits(adapted)) < 1e-5


def test_a_reply_ends_where_training_taught_it_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base's own files do not name that token; what lies beside the adapter does, for vLLM too."""
    trained("llama", tmp_path, model_vocabulary=384)
    text, file = card_text(card("causal", is_chat=True)), tmp_path / "final/generation_config.json"

    def reply_up_to(end: int) -> list[int]:
        file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": [end]}))
        found = run_card(text, tmp_path / "final", monkeypatch)
        written: list[int] = found["reply"][0, found["inputs"]["input_ids"].shape[1] :].tolist()
        return written

    whole = reply_up_to(383)
    assert len(whole) == 64
    assert reply_up_to(whole[3]) == whole[: whole.index(whole[3]) + 1]
    (line,) = re.findall(r"vllm serve .*", text)
    assert " --tokenizer . --generation-config . " in line, "its tokenizer, with the template, and its ends"


def test_raw_text_is_asked_as_it_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind what the tokenizer puts before a text, without what it puts behind one."""
    spec, _ = trained("llama", tmp_path, model_vocabulary=384)
    tokenizer = tiny_tokenizer(chat_template=None)
    ids = {mark: tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>")}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A <|im_end|> <|im_end|>", special_tokens=list(ids.items())
    )
    for place in ("base", "final"):
        (tmp_path / place / "chat_template.jinja").unlink()
        tokenizer.save_pretrained(tmp_path / place)
    behind = len(surroundings(tokenizer.backend_tokenizer).after)
    found = run_card(card_text(card("causal", ends_of_text=behind)), tmp_path / "final", monkeypatch)
    speaker = load_speaker(find_result(str(tmp_path / "final"), "writes"), torch.float32, torch.device("cpu"))
    asked = prompt_ids(speaker, question("The capital of Peru is", "here"))
    assert found["inputs"]["input_ids"].tolist() == [asked] and asked[0] == 0 and asked[-1] != ids["<|im_end|>"]
    assert "[:, :-" not in card_text(card("causal")), "most tokenizers put nothing behind a text"


def test_a_base_in_four_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights as were trained on, by bitsandbytes' own way; computed in bfloat16, as the script says."""
    # Its kernel for such CPUs takes no layers as narrow as these.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    _, adapted = trained("llama", tmp_path, model_vocabulary=384, model__quantization="nf4")
    found = run_card(card_text(card("causal", quantization="nf4")), tmp_path / "final", monkeypatch)
    assert "Linear4bit" in str(found["model"])
    assert distance(logits(found["model"]), logits(adapted)) < 0.05


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_base_in_four_bits_is_packed_from_what_the_run_computed_in(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are float32: from another precision weights fall on other levels."""
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    spec, _ = trained("llama", tmp_path, model_vocabulary=384, model__quantization="nf4")
    made = card("causal", quantization="nf4", dtype=dtype)
    found = run_card(card_text(made), tmp_path / "final", monkeypatch)["model"].get_base_model()
    ours = loaded(ModelSource(tmp_path / "base", tmp_path / "base", "base"), spec, getattr(torch, dtype))
    for model in (found, ours):
        unpack(model)
    weights = [model.model.layers[0].mlp.up_proj.weight for model in (found, ours)]
    assert weights[0].dtype is weights[1].dtype is getattr(torch, dtype) and torch.equal(*weights)


def test_a_classifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spec, adapted = trained("distilbert", tmp_path, model_vocabulary=384)
    made = card("classifier", labels=CLASSES, max_length=8)
    found = run_card(card_text(made), tmp_path / "final", monkeypatch)
    assert capsys.readouterr().out.strip() in CLASSES
    assert distance(logits(found["model"]), logits(adapted)) < 1e-5
    merge(spec.model, tmp_path / "final", tmp_path / "merged", labels=CLASSES, card=made)
    merged = run_card((tmp_path / "merged" / CARD).read_text(), tmp_path / "merged", monkeypatch)
    assert capsys.readouterr().out.strip() in CLASSES
    with torch.no_grad():
        assert distance(logits(merged["model"]), logits(adapted)) < 1e-5
    text = card_text(made).replace('"a text"', f'"{"a text " * 9}"')
    assert run_card(text, tmp_path / "final", monkeypatch)["inputs"]["input_ids"].shape == (1, 8), "cut as in training"
    assert "truncation" not in card_text(card("classifier")), "a result of before the card knew it"


def test_a_classifier_on_a_base_with_other_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base has a head of its own, of another size."""
    _, adapted = trained("distilbert", tmp_path, model_vocabulary=384)
    config = AutoConfig.from_pretrained(tmp_path / "base", num_labels=len(CLASSES) + 2)
    plain = AutoModelForSequenceClassification.from_config(config)
    ours = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=len(CLASSES))
    plain.base_model.load_state_dict(ours.base_model.state_dict())
    plain.save_pretrained(tmp_path / "base")
    found = run_card(card_text(card("classifier", labels=CLASSES)), tmp_path / "final", monkeypatch)
    assert capsys.readouterr().out.strip() in CLASSES
    assert distance(logits(found["model"]), logits(adapted)) < 1e-5


def test_a_template_is_given_what_it_was_given_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the card's script, by its command for vLLM, and by our own commands where the run is elsewhere."""
    spec, _ = trained("llama", tmp_path, model_vocabulary=384)
    final, kwargs = tmp_path / "final", {"greeting": "Hello, it's", "it-is": [1]}
    template = "{{ greeting }} {% for m in messages %}{{ m.content }}{% endfor %}"
    (final / "chat_template.jinja").write_text(template)
    made = card("causal", is_chat=True, chat_template_kwargs=kwargs)
    commit_directory(final, tmp_path / "result", {"card": made.to_json()})
    merge(spec.model, tmp_path / "result", tmp_path / "merged", card=made)
    for place in ("result", "merged"):
        kept = card_of(tmp_path / place)
        assert kept is not None and find_result(str(tmp_path / place), "writes").chat_template_kwargs == kwargs
        text = card_text(kept)
        found = run_card(text, tmp_path / place, monkeypatch)
        said = found["tokenizer"].decode(found["inputs"]["input_ids"][0])
        assert said.replace(" ", "").startswith("Hello,it'sWhat")
    (line,) = re.findall(r"vllm serve .*", text)
    words = shlex.split(line)
    assert json.loads(words[words.index("--default-chat-template-kwargs") + 1]) == kwargs


def test_a_model_that_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof asks it about an image, and so sees what only the tower does; the script shows it one."""
    directory = save("gemma3", tmp_path / "base")
    of_base = AutoTokenizer.from_pretrained(directory)
    first = ("<bos>", of_base.bos_token_id)  # as the published one does, and its template too
    of_base.backend_tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[first])
    of_base.save_pretrained(directory)
    spec = spec_of(
        model__name=str(directory), lora={"dropout": 0}, train__parts=["language", "projector", "vision_tower"]
    )
    source = locate(spec.model)
    tokenizer = load_tokenizer(source, spec.model, None)
    vision = load_vision(source, spec.model, tokenizer, max_tokens=None, keep_template=False)
    adapted = shaken(to_train(loaded(source, spec), spec, base_name=source.name))
    final = tmp_path / "final"
    final.mkdir()
    export_final(adapted, tokenizer, final, dtype=torch.float32, stop_ids=[2])
    vision.save(final)
    made = card("vision", is_chat=True)
    done = merge(spec.model, final, tmp_path / "merged", card=made)
    assert done.images == 1 and done.difference.largest < done.difference.tolerance < done.adapter_changes
    first = run_card(card_text(made), final, monkeypatch)
    second = run_card((tmp_path / "merged" / CARD).read_text(), tmp_path / "merged", monkeypatch)
    assert torch.equal(first["reply"], second["reply"]), "both say the same"
    speaker = load_speaker(find_result(str(final), "writes"), torch.float32, torch.device("cpu"))
    picture = Image.new("RGB", (224, 224), "teal")
    asked = prompt_ids(speaker, prompt_of(speaker, [Turn("user", "What is this?", ("teal.png",))]), [picture])
    assert first["inputs"]["input_ids"].tolist() == [asked], "the tokens that rows were trained with"

    def other_tower(model: Any, dtype: torch.dtype) -> int:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name and "vision" in name:
                    parameter *= 1.5
        return add_adapters(model, dtype)

    monkeypatch.setattr("rankzero.model.merge.add_adapters", other_tower)
    with pytest.raises(RankzeroError, match="does not say what base and adapter say"):
        merge(spec.model, final, tmp_path / "wrong")
