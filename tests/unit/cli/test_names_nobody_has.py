"""A word of the command line that can be no file's name, a link that leads to itself, and an output that takes nothing
are told as what they are, by every command: none of them is an internal error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import rankzero
from rankzero.cli.main import app
from rankzero.errors import ExitCode
from tests.support.cli import Cli
from tests.support.tiny import chat_rows, write_jsonl

LINES = (
    "quickstart --output-dir {}",
    "init -o {}",
    "init --cluster {}",
    "doctor --output {}",
    "doctor --cluster {}",
    "train {}",
    "train {}.yaml",
    "train run.yaml model.name=./{}",
    "train run.yaml data.train={}",
    "train run.yaml output_dir={}",
    "train --model ./{} --data rows.jsonl",
    "train --model m --data {}",
    "sweep {}.yaml",
    "smoke --cluster {}",
    "smoke --cluster docker --output {}",
    "generate {} hello",
    "chat {}",
    "chat m --image {}",
    "serve {}",
    "serve {}.yaml",
    "eval {} --data rows.jsonl",
    "eval m --data {}",
    "eval m --data rows.jsonl --answers {}",
    "predict {} rows.jsonl",
    "predict m {}",
    "merge {} -o out",
    "merge m -o {}",
    "export {} --to gguf -o out",
    "export m --to gguf -o {}",
    "list {}",
    "status {}",
    "watch {}",
    "logs {}",
    "compare {} run",
    "compare run {}",
    "report {}",
    "report run -o {}",
    "pull {} -o out",
    "pull run -o {}",
    "plan {}.yaml",
    "plan run.yaml --cluster {}",
    "render run.yaml --cluster {}",
    "render run.yaml -o {}",
    "submit {}.yaml",
    "submit run.yaml --cluster {}",
    "describe {}",
    "cancel {}",
    "delete {} --yes",
    "data check {}",
    "data check {}.jsonl",
    "data check rows.jsonl --html {}",
    "data check rows.jsonl --quarantine {}",
    "data check rows.jsonl --model {}",
    "data stats {}.jsonl",
    "data convert {}.jsonl -o out.jsonl",
    "data convert rows.jsonl -o {}.jsonl",
    "data show {}.jsonl --model m",
    "data prepare {}.yaml",
    "data fire --output_dir {} --image_dir images --input rows.jsonl",
    "data fire --output_dir out --image_dir {} --input rows.jsonl",
    "data fire --output_dir out --image_dir images --input {}",
    "data volcano --output_dir {} --image_dir images --input rows.jsonl",
    "data volcano --output_dir out --image_dir images --input {}",
    "open tensorboard {}",
    "track sync {}",
    "cache list",
    "cache prune {} --keep 1GB",
    "cluster plan -f {}",
    "cluster create -f {}",
    "cluster credentials -f {}",
    "cluster delete -f {} --yes",
    "dev up --cluster {}",
    "dev sync --cluster {}",
    "dev run --cluster {} -- ls",
    "dev shell --cluster {}",
    "dev jupyter --cluster {}",
    "dev gpu --cluster {}",
    "dev down --cluster {}",
    "secret set KEY --from-env-file rows.jsonl --cluster {}",
    "secret set KEY --cluster docker --from-env-file {}",
)


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield " ".join(words)
        return
    for name, below in command.commands.items():
        yield from _commands(below, (*words, name))


@pytest.fixture(scope="module")
def parser() -> Any:
    """Made once: that takes longer than most of these commands."""
    return typer.main.get_command(app)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path, parser: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rankzero.cli.main.app", parser)
    write_jsonl(tmp_path / "rows.jsonl", chat_rows(2))
    for suffix in ("", ".yaml", ".jsonl"):
        (tmp_path / f"loop{suffix}").symlink_to(f"loop{suffix}")
    (tmp_path / "run.yaml").write_text("name: r\nmodel: {name: ./m}\ndata: {train: rows.jsonl}\n")
    (tmp_path / "m").mkdir()
    return tmp_path


def test_every_command_is_among_them(parser: Any) -> None:
    missing = [name for name in _commands(parser) if not any(f"{line} ".startswith(f"{name} ") for line in LINES)]
    assert not missing


@pytest.mark.parametrize("name", ["x" * 300, "loop", "\udcff"], ids=["too long", "a link to itself", "no UTF-8"])
@pytest.mark.usefixtures("here")
def test_none_is_an_internal_error(cli: Cli, name: str) -> None:
    skipped = "quickstart" if name == "loop" else "no command"  # reads its rows before it looks at the directory
    told = {line: cli(line.format(name)) for line in LINES if not line.startswith(skipped)}
    assert not {
        line: done.err for line, done in told.items() if done.code == ExitCode.INTERNAL or "Traceback" in done.err
    }


@pytest.mark.usefixtures("here")
def test_what_is_wrong_with_a_name_is_said(cli: Cli) -> None:
    done = cli(f"generate '{'a question? ' * 30}'")  # the run is forgotten
    assert done.code == 2 and "a question? a question? " in done.err and len(done.err) < 300, done.err
    assert "File name too long\n" in done.err and "does a word stand where another one is meant to?" in done.err
    done = cli("data check \udcff.jsonl")
    assert done.code == 2 and "error: '\\udcff.jsonl': this name is no UTF-8 text" in done.err, done.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize(
    "line", ["--help", "--version", "init --list", "doctor", "list .", "data check rows.jsonl", "cache list"]
)
@pytest.mark.usefixtures("here")
def test_an_output_without_room(cli: Cli, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        done = cli(line)
        assert done.code == ExitCode.STORAGE, done.err
        assert "error: standard output: No space left on device\n  hint: free space there" in done.err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_the_process_ends_so_too() -> None:
    """Nothing that waits to be written fails once more."""
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "rankzero", "--help"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == ExitCode.STORAGE and len(done.stderr.splitlines()) == 2, done.stderr


def test_links_are_followed_by_what_takes_every_link() -> None:
    """Of a looping link `Path.resolve` raises RuntimeError up to Python 3.12, os.path.realpath never."""
    source = Path(rankzero.__file__).parent
    assert not [str(file) for file in source.rglob("*.py") if ".resolve()" in file.read_text(encoding="utf-8")]
