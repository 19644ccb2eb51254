"""What an architecture itself has frozen is not trained in a full fine-tune, though a loaded model has forgotten it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rankzero.engine import setup
from rankzero.errors import StoppedError
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from tests.support.recipes import sentiment_rows
from tests.support.runs import final_weights, run_here, run_root, small_spec, stop_in
from tests.support.tiny import tiny_tokenizer, write_jsonl

TABLE = "roformer.encoder.embed_positions.weight"
"""Sines and cosines, which weight decay would shrink."""


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    from transformers import RoFormerConfig, RoFormerForSequenceClassification

    tokenizer = tiny_tokenizer(pad="<pad>")
    sizes = {"embedding_size": 32, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": len(tokenizer)}
    config = RoFormerConfig(**sizes, **layers, pad_token_id=tokenizer.pad_token_id)
    RoFormerForSequenceClassification(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = str(write_jsonl(tmp_path / "rows.jsonl", sentiment_rows(24)))
    data = {"data__train": rows, "data__labels": ["negative", "positive"], "data__max_length": 64}
    changes = {"train__weight_decay": 0.1, "train__max_steps": 4, "checkpoint__every": 1}
    return small_spec(tmp_path, tmp_path / "model", eval_rows=0, task="classify", lora=None, **data, **changes)


def before(spec: RunSpec) -> dict[str, torch.Tensor]:
    return load_file(Path(str(spec.model.name)) / "model.safetensors")


def test_it_stays_as_it_was(spec: RunSpec) -> None:
    run_here(spec)
    base, trained = before(spec), final_weights(spec)
    assert torch.equal(base[TABLE], trained[TABLE])
    other = TABLE.replace("encoder.embed_positions", "embeddings.word_embeddings")
    assert not torch.equal(base[other], trained[other])


def test_a_run_that_trained_it_goes_on_without(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """As older versions did: their checkpoints have the optimizer's state of it too."""
    with monkeypatch.context() as patch:
        patch.setattr(setup, "freeze_as", lambda model, _like: model.requires_grad_(True))
        with pytest.raises(StoppedError):
            run_here(spec, hooks=stop_in(2))
    run_here(spec)
    left = load_file(RunDir(run_root(spec)).checkpoint(4) / "optimizer.safetensors")
    assert left and not any(TABLE in name for name in left)
    assert not torch.equal(before(spec)[TABLE], final_weights(spec)[TABLE]), "it was trained for two steps"
