"""`rankzero data show`, as typed. The other commands are in tests/unit/cli."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankzero.cli.data.show import app
from rankzero.errors import ConfigError, DataError, RankzeroError, UsageError
from rankzero.machine import cache_root
from tests.support.tiny import tiny_tokenizer
from tests.unit.data.support import GOOD, user_assistant, write


def run(*arguments: str) -> tuple[str, RankzeroError | None]:
    """What is printed to stdout, and the error raised if any."""
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is None:
        return result.stdout, None
    assert isinstance(result.exception, RankzeroError), result.output
    return result.stdout, result.exception


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    tiny_tokenizer().save_pretrained(directory)
    return str(directory)


class TestShow:
    def test_rows(self, tmp_path: Path, model: str) -> None:
        rows = [json.dumps(user_assistant("Ping", f"Pong {i}")).encode() for i in range(5)]
        path = write(tmp_path / "f.jsonl", *rows)
        out, error = run("show", path, "--model", model)
        assert error is None
        blocks = out.split("\n\n")
        assert len(blocks) == 3
        for number, block in enumerate(blocks):
            assert re.match(rf"{re.escape(path)}:{number + 1}: \d+ tokens, \d+ trained\n", block)
            assert block.rstrip("⏎\n│").endswith(f"{number}│<|im_end|>⟧") and block.count("⟦") == 1
        only, _ = run("show", path, "--model", model, "--row", "5")
        assert only.startswith(f"{path}:5: ") and only.count(path) == 1
        two, _ = run("show", path, "--model", model, "--rows", "2")
        assert two.count(path) == 2

    def test_rules(self, tmp_path: Path, model: str) -> None:
        path = write(tmp_path / "f.jsonl", json.dumps(user_assistant("Ping", "Pong " * 30)).encode())
        assert "truncated" in run("show", path, "--model", model, "--max-length", "20")[0]
        assert run("show", path, "--model", model, "--all-tokens")[0].splitlines()[1].count("⟦") == 1
        template = tmp_path / "t.jinja"
        template.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
        out, _ = run("show", path, "--model", model, "--chat-template", str(template))
        assert "[│user│]│P" in out

    def test_a_run_spec_says_model_and_rules(self, tmp_path: Path, model: str) -> None:
        write(tmp_path / "f.jsonl", json.dumps(user_assistant("Ping", "Pong " * 30)).encode())
        spec = tmp_path / "run.yaml"
        spec.write_text(f"model: {{name: {model}}}\ndata: {{train: f.jsonl, max_length: 20}}\n", encoding="utf-8")
        out, error = run("show", str(spec))
        assert error is None and "f.jsonl:1: " in out and "truncated" in out
        assert "truncated" not in run("show", str(spec), "data.max_length=200")[0]
        _, error = run("show", str(spec), "--max-length", "30")
        assert isinstance(error, UsageError) and "data.max_length=" in error.problems[0].hint

    def test_errors(self, tmp_path: Path, model: str) -> None:
        path = write(tmp_path / "f.jsonl", GOOD)
        _, error = run("show", path)
        assert isinstance(error, UsageError) and "add --model" in error.problems[0].hint
        _, error = run("show", path, "--model", str(tmp_path / "none"))
        assert isinstance(error, ConfigError) and "there is no directory" in error.problems[0].what
        _, error = run("show", path, "--model", model, "--chat-template", str(tmp_path / "none"))
        assert isinstance(error, UsageError)
        _, error = run("show", str(tmp_path / "none"), "--model", model)
        assert isinstance(error, DataError)


def test_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKZERO_CACHE", "~/here")
    assert cache_root() == Path.home() / "here"
    monkeypatch.delenv("RANKZERO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_root() == Path("/xdg/rankzero")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "rankzero"
