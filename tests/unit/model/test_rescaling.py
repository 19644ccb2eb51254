"""RWKV's models divide weights in place once they evaluate: what is saved in between is whole, and is what was
trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, RwkvConfig, RwkvForCausalLM

from rankzero.run_dir.paths import RunDir
from tests.support.runs import log, metrics, run_here, run_root, small_spec
from tests.support.tiny import tiny_tokenizer

LAYERS, EVERY = 4, 2


@pytest.fixture(scope="module")
def rwkv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, tokenizer = tmp_path_factory.mktemp("rwkv"), tiny_tokenizer(pad="<pad>")
    torch.manual_seed(0)
    config = RwkvConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        attention_hidden_size=32,
        context_length=512,
        num_hidden_layers=LAYERS,
        rescale_every=EVERY,
        bos_token_id=1,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = RwkvForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("at_once", [1, 2])
def test_weights_are_saved_as_they_were_trained(
    at_once: int, rwkv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankzero.forecast.forecast.WORTH_A_THREAD", 0 if at_once == 2 else 1e30)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    train = {"max_steps": 2, "global_batch_size": 8, "learning_rate": 1e-9, "micro_batch_tokens": 64}
    spec = small_spec(
        tmp_path,
        rwkv,
        rows=16,
        eval_rows=4,
        lora=None,
        **{f"train__{name}": value for name, value in train.items()},
        data__max_length=64,
        eval__every=1,
        eval__on_start=True,
    )
    run_here(spec, log_level="INFO")
    assert ("2 passes at a time" in " ".join(log(spec).split())) is (at_once == 2)
    name, root = f"rwkv.blocks.{LAYERS - 1}.attention.output.weight", RunDir(run_root(spec))
    base = AutoModelForCausalLM.from_pretrained(rwkv)
    saved = [root.final, *(root.checkpoint(step) / "model" for step in root.committed_steps())]
    assert len(saved) > 1
    for place in saved:
        found = load_file(place / "model.safetensors")
        assert torch.allclose(found[name], base.state_dict()[name], atol=1e-6), place
    assert RwkvConfig.from_pretrained(root.final).rescale_every == EVERY
    losses = [one["eval_loss"] for one in metrics(spec) if "eval_loss" in one]
    assert len(losses) == 3 and max(losses) - min(losses) < 1e-4
