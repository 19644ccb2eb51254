"""docs/getting-started.md as a newcomer types it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli import Cli
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"
NAMED = "Qwen/Qwen3-0.6B"


def test_every_command_of_the_page(
    tmp_path: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    text, cli = PAGE.read_text(encoding="utf-8"), Cli(capfd, monkeypatch)
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "tiny")
    write_jsonl(tmp_path / "train.jsonl", chat_rows(30))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    (spec,) = [block for language, block in blocks if language == "yaml"]
    (tmp_path / "run.yaml").write_text(spec.replace(NAMED, "tiny"), encoding="utf-8")
    commands = [
        line.removeprefix("rankzero ").replace(NAMED, "tiny")
        for language, block in blocks
        for line in block.splitlines()
        if not language and line.startswith("rankzero ")
    ]
    assert len(commands) >= 15
    said = {}
    for command in commands:
        done = cli(command)
        assert done.code == 0, f"{command}\n{done.out}\n{done.err}"
        said[command] = done.out + done.err
    assert "trainable" in said["train run.yaml --dry-run"] or "trained" in said["train run.yaml --dry-run"]
    assert "capitals" in said["list"] and "Succeeded" in said["status capitals"]
    assert (tmp_path / "runs/capitals/report.html").is_file()
    assert (tmp_path / "capitals-merged/model.safetensors").is_file()
    assert "lora.r" in said["compare capitals capitals-r16"]
    assert "kind: " in said["render run.yaml --cluster docker data.train=/outputs/train.jsonl"]
