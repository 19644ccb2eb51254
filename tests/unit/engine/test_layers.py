"""Which parts a run has its layers compute with."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, FalconConfig, OPTConfig, PersimmonConfig

from rankzero.engine.device import Device
from rankzero.engine.layers import fit_layers
from rankzero.model import cpu_products, dropout_attention
from rankzero.model.attention import Attention
from rankzero.model.dropout import PlacedDropout, Places
from tests.support.runs import metrics, run_here, small_spec
from tests.support.tiny import preference_rows, tiny_gpt2, write_jsonl
from tests.support.tiny_configs import CONFIGS

AMD, INTEL = "avx2 sse4a avx512f avx512_bf16", "avx2 avx512f avx512_bf16 avx512_fp16 amx_bf16"


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch is built without oneDNN")
@pytest.mark.parametrize(
    ("features", "dtype", "compiled", "wanted"),
    [
        (AMD, torch.float32, False, True),
        (AMD, torch.bfloat16, False, False),
        (AMD, torch.float32, True, False),
        (INTEL, torch.float32, False, False),
        (INTEL, torch.bfloat16, False, False),
        (INTEL.replace("amx_bf16", ""), torch.bfloat16, False, True),
        (INTEL.replace("amx_bf16", ""), torch.bfloat16, True, False),
    ],
)
def test_who_multiplies(
    features: str,
    dtype: torch.dtype,
    compiled: bool,
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny: Path,
) -> None:
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", features)
    spec = small_spec(tmp_path, tiny, lora=None, train={"torch_compile": compiled})
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"]()).to(dtype)
    fit_layers(model, spec, Device("cpu"), Attention("sdpa", padding_free=False), Places(0))
    kinds = {type(module) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    assert kinds == {cpu_products.Linear if wanted else torch.nn.Linear}


@pytest.mark.parametrize(
    ("name", "attention"), [("llama", "sdpa"), ("gpt2", "sdpa"), ("llama", dropout_attention.NAME)]
)
def test_places_are_made_where_something_drops_by_them(name: str, attention: str, tmp_path: Path, tiny: Path) -> None:
    """A tiny GPT-2 has modules that drop, a tiny Llama has none, and its attention is asked by its name."""
    model, places = AutoModelForCausalLM.from_config(CONFIGS[name]()).train(), Places(0)
    spec = small_spec(tmp_path, tiny, lora=None)
    fit_layers(model, spec, Device("cpu"), Attention(attention, padding_free=False), places)
    row, position, predicts = torch.zeros(2, 1), torch.arange(7)[None], torch.arange(14)
    places.begin_pass(0, row.long(), position, predicts)
    drops = any(isinstance(module, PlacedDropout) for module in model.modules()) or attention != "sdpa"
    assert drops == (name == "gpt2" or attention != "sdpa")
    assert (places.keys(torch.Size((2, 7))) is not None) == drops


OPT = OPTConfig(
    vocab_size=64, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16
)
"""Its layers call torch's function for dropout."""
OF_TEXTS = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
FALCON = FalconConfig(**OF_TEXTS)
PERSIMMON = PersimmonConfig(**OF_TEXTS, intermediate_size=32)
"""Their layers look into their config at each pass."""
RATES = (
    *("embd_pdrop", "resid_pdrop", "attn_pdrop"),
    *("dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "layerdrop"),
)


@pytest.mark.parametrize("attention", ["sdpa", "eager", dropout_attention.NAME])
@pytest.mark.parametrize("config", [CONFIGS["gpt2"](), OPT], ids=["gpt2", "opt"])
def test_a_model_drops_nothing_of_its_own_where_preferences_are_trained(
    config: Any, attention: str, tmp_path: Path, tiny: Path
) -> None:
    """Nor does it forget at which rates it does. Adapters drop as they are told."""
    config = copy.deepcopy(config)
    rates = {name: 0.4 for name in RATES if hasattr(config, name)}
    config.update(rates)
    dropout_attention.register()
    ids = torch.arange(1, 8)[None]
    for task, own, adapters in (("sft", True, 0.0), ("dpo", False, 0.0), ("dpo", False, 0.4)):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        settings = LoraConfig(target_modules="all-linear", lora_dropout=adapters, init_lora_weights=False)
        model = get_peft_model(model, settings)
        fit_layers(model, small_spec(tmp_path, tiny, task=task), Device("cpu"), Attention(attention, False), Places(0))
        dropped = model.train()(ids).logits.detach()
        whole = model.eval()(ids).logits.detach()
        assert torch.equal(dropped, whole) == (not own and not adapters), (task, adapters)
        assert {name: getattr(model.config, name) for name in rates} == rates


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapter"])
@pytest.mark.parametrize("config", [FALCON, PERSIMMON], ids=["falcon", "persimmon"])
def test_nor_what_its_layers_find_in_their_config_which_is_saved_as_it_was(
    config: Any, adapted: bool, tmp_path: Path, tiny: Path
) -> None:
    config = copy.deepcopy(config)
    rates = {name: 0.4 for name in ("attention_dropout", "hidden_dropout")}
    config.update(rates)
    ids = torch.arange(1, 8)[None]
    for task, own in (("sft", True), ("dpo", False)):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
        base, names = model, set(model.state_dict())
        if adapted:
            model = get_peft_model(model, LoraConfig(target_modules="all-linear", init_lora_weights=False))
        fit_layers(model, small_spec(tmp_path, tiny, task=task), Device("cpu"), Attention("sdpa", False), Places(0))
        once, again = (model.train()(ids, use_cache=False).logits.detach() for _ in range(2))
        assert torch.equal(once, again) != own, task
        assert base.config is model.config
        if not adapted:
            base.save_pretrained(tmp_path / task)
            saved = AutoConfig.from_pretrained(tmp_path / task)
            assert {name: getattr(saved, name) for name in rates} == rates and names == set(model.state_dict())
    parts = {id(module.config) for module in base.modules() if hasattr(module, "config")}
    assert len(parts) == 2, "those inside share one"


def test_the_loss_of_pairs_before_the_first_step_is_that_of_no_preference(tmp_path: Path) -> None:
    """Of GPT-2, which drops a tenth of its values by itself."""
    model = tiny_gpt2(tmp_path / "model")
    pairs = str(write_jsonl(tmp_path / "pairs.jsonl", preference_rows(8)))
    spec = small_spec(
        *(tmp_path, model),
        **{"task": "dpo", "data__train": pairs, "data__eval": None, "data__chat_template": "plain"},
        **{"lora": None, "train": {"max_steps": 1, "global_batch_size": 8, "learning_rate": 1e-3}},
    )
    run_here(spec)
    first = next(one for one in metrics(spec) if "loss" in one)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6) and first["train_reward_margin"] == 0
