"""What the README shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ExitCode
from rankzero.spec.load import load_run_spec
from rankzero.spec.row_formats import ROW_FORMATS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_specs_load(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text)
    load_run_spec(tmp_path / "run.yaml", env={})


def test_commands_exist(cli: Any) -> None:
    typed = set(re.findall(r"^rankzero ((?:data )?[a-z]+)", "\n".join(blocks("")), flags=re.MULTILINE))
    assert {"init", "train", "data check", "data show", "generate"} <= typed
    for command in typed:
        assert cli(f"{command} --help").code == 0, command


def test_row_shapes() -> None:
    words = {13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen"}
    assert f"in {words[len(ROW_FORMATS)]} shapes" in README


def test_exit_codes() -> None:
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    assert table == {int(code) for code in ExitCode}


def test_files_to_read_first_exist() -> None:
    named = re.search(r"Read these five files first: (.*)\n", README)
    assert named is not None
    paths = re.findall(r"`([^`]+)`", named.group(1))
    assert len(paths) == 5 and all((ROOT / "src/rankzero" / path).is_file() for path in paths)
