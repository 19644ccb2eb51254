"""The adapter of a checkpoint is used and merged as the result would be, had the run ended there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rankzero.model.generate import load_speaker
from rankzero.model.load import load_config, load_model
from rankzero.model.lora import load_adapter
from rankzero.model.proof import Prompts, logits_of
from rankzero.model.quantize import unpack
from rankzero.model.source import locate
from rankzero.run_dir.atomic import commit_directory, read_manifest
from rankzero.run_dir.result import find_result
from tests.support.cli import Cli
from tests.support.runs import run_here, run_root, small_spec
from tests.support.tiny import CHATML, tiny_gpt2, tiny_model, tiny_tokenizer


def named_base(root: Path) -> tuple[Path, dict[str, Any]]:
    """A base whose template and end token are not those of the run."""
    tokenizer = tiny_tokenizer()
    base = tiny_model(root / "base", tokenizer=tokenizer)
    other = tiny_tokenizer(eos="<|im_start|>")
    other.save_pretrained(root / "tokenizer")
    (root / "mine.jinja").write_text("{# mine #}" + CHATML)
    return base, {"data__chat_template": str(root / "mine.jinja"), "model__tokenizer_dir": str(root / "tokenizer")}


def base_without_a_template(root: Path) -> tuple[Path, dict[str, Any]]:
    return tiny_gpt2(root / "base"), {}


@pytest.mark.parametrize("make", [named_base, base_without_a_template])
def test_a_checkpoint_is_merged_and_asked_as_the_result(make: Any, tmp_path: Path, cli: Cli) -> None:
    base, changes = make(tmp_path)
    told = {"enable_thinking": False}
    spec = small_spec(tmp_path, base, data__chat_template_kwargs=told, **changes)
    run_here(spec)
    run = run_root(spec)
    saved = run / "checkpoints/step-12/model"
    for name, target in (("final", run / "final"), ("saved", saved)):
        done = cli(f"merge {target} -o {tmp_path}/{name}")
        assert done.code == 0, done.err
        assert json.loads((run / "merge.json").read_text())["rows_of_data"] == 4
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "saved" / file).read_text() == (tmp_path / "final" / file).read_text()
    names = [{file.name for file in (tmp_path / name).iterdir()} for name in ("final", "saved")]
    assert names[0] - {"README.md"} == names[1]
    assert cli(f"export {tmp_path}/saved -o {tmp_path}/exported").code == 0
    for target in (run, saved, tmp_path / "final", tmp_path / "saved", tmp_path / "exported"):
        assert find_result(str(target), "writes").chat_template_kwargs == told, target
    speakers = [
        load_speaker(find_result(str(target), "writes"), torch.float32, torch.device("cpu")) for target in (run, saved)
    ]
    templates = [speaker.tokenizer.chat_template for speaker in speakers]
    assert templates[0] == templates[1] is not None


UNPACKED = "without its run it is added to the base as its files have it"
UNSURE = "nothing says in which precision its base was packed"


@pytest.mark.parametrize("quantization", ["nf4", "fp8"])
def test_a_base_is_packed_in_the_precision_that_the_run_packed_it_in(
    quantization: str, tmp_path: Path, bfloat16_computed: None, cli: Cli, caplog: pytest.LogCaptureFixture
) -> None:
    """Its files are float32 and the run computed in bfloat16: packed from those, weights fall on other levels."""
    changes = {"model__quantization": quantization, "model__dtype": "bfloat16", "train__max_steps": 2}
    spec = small_spec(tmp_path, tiny_model(tmp_path / "base", hidden=64), rows=16, eval_rows=0, **changes)
    run_here(spec)
    run, asked = run_root(spec), Prompts([[5, 9, 17, 33, 21, 40, 8, 3, 50]])
    source = locate(spec.model)
    base = load_model(source, spec.model, load_config(source, spec.model), torch.bfloat16)
    unpack(base)
    trained = logits_of(load_adapter(base, run / "final"), asked)

    def off(place: Path) -> float:
        merged = AutoModelForCausalLM.from_pretrained(place)
        assert merged.dtype is torch.float32
        return float((logits_of(merged, asked) - trained).abs().max())

    done = json.loads(cli(f"merge {run} -o {tmp_path}/merged --json").out)
    assert off(tmp_path / "merged") < done["logits_tolerance"] < 1e-3
    files = json.loads(cli(f"merge {run} -o {tmp_path}/files --base files --json").out)
    assert files["from_trained"] > 10 * done["logits_tolerance"], "and of those it is said how far they are"
    assert UNPACKED not in caplog.text
    shutil.copytree(run / "final", tmp_path / "copied")
    assert cli(f"merge {tmp_path}/copied -o {tmp_path}/alone").code == 0
    assert f"trained on a base in {quantization}: {UNPACKED}" in caplog.text
    forget_dtype(run / "final")
    assert UNSURE not in caplog.text
    assert cli(f"merge {run} -o {tmp_path}/unsure").code == 0 and UNSURE in caplog.text


def forget_dtype(final: Path) -> None:
    """As a result of a version whose manifests did not say it."""
    manifest = read_manifest(final)
    (final / "manifest.json").unlink()
    staged = final.rename(final.parent / "staged")
    commit_directory(staged, final, {"spec": manifest["spec"]})


@pytest.mark.parametrize("command", ["merge", "export"])
def test_nothing_is_written_where_it_would_be_deleted_with_its_checkpoint(
    command: str, tmp_path: Path, cli: Cli
) -> None:
    """Also by way of a link to it."""
    spec = small_spec(tmp_path, tiny_gpt2(tmp_path / "base"), train__max_steps=1)
    run_here(spec)
    run = run_root(spec)
    for place in ("checkpoints/step-1/model/merged", "last/merged"):
        done = cli(f"{command} {run} -o {run}/{place}")
        assert done.code == 78 and "be deleted with it once the run has newer ones" in done.err, done.err
    assert not list(run.rglob("merged"))
    assert cli(f"{command} {run} -o {run}/checkpoints/merged").code == 0, "in no checkpoint"
