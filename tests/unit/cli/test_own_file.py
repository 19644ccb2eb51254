"""What flags name is replaced where such a command wrote it, and nothing of somebody else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankzero.cli import own_file
from tests.support.cli import Cli

GOOD = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
BAD = '{"messages": []}\n'
MINE = '{"messages": "what took me a week"}\n'


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(GOOD * 4 + BAD)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("data check rows.jsonl --max-bad 9 --html {}", "--html"),
        ("data stats rows.jsonl --html {}", "--html"),
        ("data check rows.jsonl --max-bad 9 --quarantine {}", "--quarantine"),
        ("eval nothing --data rows.jsonl --answers {}", "--answers"),
        ("serve nothing --ready-file {}", "--ready-file"),
        ("train model.name=nothing --report-json {}", "--report-json"),
    ],
)
def test_what_somebody_else_wrote_stays(line: str, flag: str, cli: Cli) -> None:
    for name in ("mine.jsonl", "link.jsonl"):
        Path("mine.jsonl").write_text(MINE)
        Path("link.jsonl").unlink(missing_ok=True)
        Path("link.jsonl").symlink_to("mine.jsonl")
        done = cli(line.format(name))
        assert done.code == 78 and f"{name}: there is a file that is no" in done.err and flag in done.err, done.err
        assert Path("mine.jsonl").read_text() == MINE
        assert not Path("mine.reasons.jsonl").exists()


@pytest.mark.parametrize("command", ["check", "stats"])
def test_a_page_is_made_anew(command: str, cli: Cli) -> None:
    codes = {cli(f"data {command} rows.jsonl --html page.html").code for _ in range(2)}
    assert codes == {65 if command == "check" else 0}
    page = Path("page.html").read_text()
    older = "".join(line for line in page.splitlines(keepends=True) if "generator" not in line)
    assert older != page
    Path("page.html").write_text(older)
    cli(f"data {command} rows.jsonl --html page.html")
    assert Path("page.html").read_text() == page, "a page of a version that did not sign it"


def test_a_quarantine_is_made_anew(cli: Cli) -> None:
    line = "data check rows.jsonl --quarantine aside.jsonl"
    assert cli(line).code == 65 and Path("aside.jsonl").read_text() == BAD
    Path("rows.jsonl").write_text(BAD * 2)
    assert cli(line).code == 65 and Path("aside.jsonl").read_text() == BAD * 2
    Path("rows.jsonl").write_text(GOOD)
    assert cli(line).code == 0 and Path("aside.jsonl").read_text() == "", "those of an earlier check do not stay"
    assert cli(line).code == 0, "both are empty"


@pytest.mark.parametrize("kept", ["aside.jsonl", "aside.reasons.jsonl"])
def test_both_files_of_a_quarantine_are_its_own(kept: str, cli: Cli) -> None:
    line = "data check rows.jsonl --quarantine aside.jsonl"
    Path(kept).write_text(MINE)
    done = cli(line)
    assert done.code == 78 and f"{kept}: there is a file" in done.err and Path(kept).read_text() == MINE


def test_what_this_process_prints_into_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--answers /dev/stdout >> all.log`."""
    path = tmp_path / "all.log"
    path.write_text(MINE)
    with path.open("a") as out:
        monkeypatch.setattr("rankzero.run_dir.atomic.is_own_output", lambda one: os.path.samefile(one, out.name))
        own_file.require_rows(path, "--answers", "answers", ("set", "where", "prompt"))


def test_answers_reports_and_notes_of_servers_are_known(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    answer = {"set": "rows.jsonl", "where": "rows.jsonl:1", "prompt": "a", "reference": None}
    path.write_text((json.dumps(answer) + "\n") * 2)
    own_file.require_rows(path, "--answers", "answers", ("set", "where", "prompt"))
    path.write_text(json.dumps({"steps": 1, "versions": {}}, indent=2))
    own_file.require_object(path, "--report-json", "report", ("steps", "versions"))
    path.write_bytes(b"\xff\xfe[")
    with pytest.raises(own_file.ConfigError, match="no report of rankzero's"):
        own_file.require_object(path, "--report-json", "report", ("steps", "versions"))
    path.write_text("")
    own_file.require_object(path, "--report-json", "report", ("steps", "versions"))
