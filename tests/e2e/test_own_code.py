"""A model that brings its own code: it runs where a spec allows it, and what is made of it says how it is asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import chat_rows, write_jsonl

CODE = """
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def own_model(tmp_path: Path, tiny: Path) -> Path:
    own = Path(shutil.copytree(tiny, tmp_path / "own"))
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "own", "architectures": ["OwnForCausalLM"]}
    classes = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnForCausalLM"}
    config |= {"auto_map": {**classes, "AutoModelForSequenceClassification": "me/never-run--others.OwnClassifier"}}
    (own / "config.json").write_text(json.dumps(config))
    (own / "own_code.py").write_text(CODE)
    return own


@pytest.mark.parametrize("adapter", ["lora.r=2", "lora=null"])
def test_what_is_made_of_it_is_asked_by_its_run(adapter: str, tmp_path: Path, tiny: Path, cli: Any) -> None:
    """A directory is no spec: nothing in it may allow its own code to run."""
    own = own_model(tmp_path, tiny)
    data, run = write_jsonl(tmp_path / "train.jsonl", chat_rows(4)), tmp_path / "runs/a"
    line = f"train --model {own} --data {data} --output {run} {adapter} train.max_steps=1"
    done = cli(line)
    assert done.code == 78 and "model.trust_remote_code" in done.err, done.err
    assert cli(f"{line} model.trust_remote_code=true").code == 0
    assert cli(f"generate {run} Hi").code == 0
    model = run / "final"
    if adapter == "lora.r=2":
        model = tmp_path / "merged"
        assert cli(f"merge {run} -o {model}").code == 0
    else:
        model = Path(shutil.copytree(model, tmp_path / "copied"))
    done = cli(f"generate {model} Hi")
    assert done.code == 78 and "its run directory" in done.err and str(model) in done.err, done.err


def test_a_run_is_not_continued_with_other_code(tmp_path: Path, tiny: Path, cli: Any) -> None:
    own = own_model(tmp_path, tiny)
    data, run = write_jsonl(tmp_path / "train.jsonl", chat_rows(4)), tmp_path / "runs/a"
    line = f"train --model {own} --data {data} --output {run} model.trust_remote_code=true"
    assert cli(f"{line} train.max_steps=1").code == 0
    (own / "own_code.py").write_text(f"{CODE}\n\nSCALE = 2\n")
    done = cli(f"{line} train.max_steps=2 --allow-change train.max_steps")
    assert done.code == 78 and "weights or its own code changed" in done.err, done.err
    assert "--allow-change model" in done.err  # also of a full fine-tune, whose weights are the checkpoint's
    (own / "own_code.py").write_text(CODE)
    done = cli(f"{line} train.max_steps=2 --allow-change train.max_steps")
    assert done.code == 0, done.err
