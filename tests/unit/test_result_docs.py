"""docs/result.md: its commands run in the order in which they stand, on a tiny run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rankzero.model.proof import BUILT_IN, LONGEST
from rankzero.spec.resolve import to_yaml
from tests.support.cli import Cli
from tests.unit.model.test_export import converter
from tests.unit.model.test_merge import trained
from tests.unit.test_recipe_docs import typed

PAGE = Path(__file__).parents[2] / "docs/result.md"
_WRITES_A_FILE = 'open(out, "wb").write(b"GGUF" + bytes([3, 0, 0, 0, 9]) + bytes(15))\n'


def test_its_commands_run(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "runs/my-run"
    run.mkdir(parents=True)
    spec, _ = trained("llama", run)
    (run / "run.yaml").write_text(to_yaml(spec))
    converter(tmp_path / "gguf-converter", _WRITES_A_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    commands = typed(PAGE.read_text())
    assert [words[0] for words in commands] == ["merge", "report", "export", "export", "export"]
    for words in commands[:-1]:
        done = cli(shlex.join(words))
        assert done.code == 0, (words, done.err)
    assert "How far the merged model is" in (run / "report.html").read_text()
    assert (tmp_path / "merged/model.safetensors").is_file() and (tmp_path / "my-run.gguf").is_file()
    assert json.loads((tmp_path / "exported/merge.json").read_text())["layers"] == 8
    done = cli(shlex.join(commands[-1]))  # all that this test lacks for it
    assert done.code == 78 and done.err.count("error:") == 2
    assert "network is not to be used" in done.err and "no token" in done.err


def test_its_numbers_are_those_of_the_code() -> None:
    text = " ".join(PAGE.read_text().split())
    assert len(BUILT_IN) == 4 and "four built-in texts" in text
    assert f"up to {LONGEST} tokens of each prompt" in text
