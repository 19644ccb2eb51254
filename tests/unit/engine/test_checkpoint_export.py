"""A full fine-tune's checkpoint is exported as the result would be, had the run ended there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rankzero.run_dir.atomic import verify_directory
from rankzero.spec.run_spec import RunSpec
from tests.support.cli import Cli
from tests.support.runs import run_here, run_root, small_spec
from tests.support.tiny import tiny_tokenizer, write_jsonl
from tests.support.tiny_configs import CONFIGS
from tests.unit.engine.test_merging import named_base
from tests.unit.model.test_export import converter


def routed(root: Path) -> RunSpec:
    """Whose experts lie in one tensor in memory, and in many in files."""
    tokenizer, base = tiny_tokenizer(), root / "base"
    config = CONFIGS["qwen3_moe"]()
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 512
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(base)
    tokenizer.save_pretrained(base)
    return small_spec(root, base, lora=None, train__max_steps=2)


def with_its_own_words(root: Path) -> RunSpec:
    base, changes = named_base(root)
    told = {"enable_thinking": False}
    return small_spec(root, base, lora=None, data__chat_template_kwargs=told, train__max_steps=2, **changes)


def classifier(root: Path) -> RunSpec:
    base, _ = named_base(root)
    write_jsonl(root / "texts.jsonl", [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(40)])
    changes: dict[str, Any] = {"data__train": str(root / "texts.jsonl"), "data__eval": None, "train__max_steps": 2}
    return small_spec(root, base, task="classify", lora=None, **changes)


@pytest.mark.parametrize("make", [routed, with_its_own_words, classifier])
def test_a_checkpoint_is_exported_as_the_result(make: Any, tmp_path: Path, cli: Cli) -> None:
    spec = make(tmp_path)
    run_here(spec)
    final, saved = run_root(spec) / "final", run_root(spec) / "checkpoints/step-2/model"
    done = cli(f"export {saved} -o {tmp_path}/out --json")
    assert done.code == 0, done.err
    verify_directory(tmp_path / "out")
    names = {path.name for path in final.iterdir()} - {"README.md", "manifest.json"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*names, "manifest.json"}
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (final / name).read_bytes(), name
    about = [json.loads((place / "manifest.json").read_text()) for place in (final, tmp_path / "out")]
    assert about[1]["labels"] == about[0]["labels"]
    assert about[1]["chat_template_kwargs"] == spec.data.chat_template_kwargs
    assert about[1].get("max_length") == (2048 if make is classifier else None)
    assert "had it ended there" in json.loads(done.out)["notes"][0]


def test_a_base_of_another_width_is_said_and_nothing_is_written(tmp_path: Path, cli: Cli) -> None:
    spec, other = routed(tmp_path), CONFIGS["qwen3_moe"]()
    run_here(spec)
    other.vocab_size, other.max_position_embeddings, other.moe_intermediate_size = len(tiny_tokenizer()), 512, 24
    AutoModelForCausalLM.from_config(other).save_pretrained(tmp_path / "wide")
    tiny_tokenizer().save_pretrained(tmp_path / "wide")
    done = cli(f"export {run_root(spec)}/checkpoints/step-2/model --model {tmp_path}/wide -o {tmp_path}/out")
    assert done.code == 74 and "do not fit this model" in done.err and "the shapes of model.layers" in done.err
    assert not (tmp_path / "out").exists()


def test_what_else_is_made_of_a_checkpoint(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GGUF file, of the same; to the Hub nothing goes that nobody can load."""
    spec = with_its_own_words(tmp_path)
    run_here(spec)
    saved = run_root(spec) / "checkpoints/step-2/model"
    body = """
assert os.path.isfile(os.path.join(sys.argv[1], "tokenizer.json"))
open(out, "wb").write(b"GGUF" + (3).to_bytes(4, "little") + (21).to_bytes(8, "little") + bytes(8))
"""
    program = converter(tmp_path / "program", body)
    done = cli(f"export {saved} --to gguf -o {tmp_path}/m.gguf --converter {program}")
    assert done.code == 0, done.err
    assert not list(tmp_path.glob(".tmp-*")) and (tmp_path / "m.gguf").is_file()
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_canarycanarycanary")
    monkeypatch.setattr("rankzero.model.push.offline", lambda: False)
    done = cli(f"export {saved} --to hub --repo me/mine")
    assert done.code == 78 and "weights as training holds them" in done.err
    assert f"rankzero export {saved} -o " in done.err
