"""`rankzero data check`: its verdict is the same in words, as JSON, on the page, in Python and as an exit status."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

import rankzero
from tests.support.cli import Cli
from tests.unit.data.support import GOOD, user_assistant, write

_PREFERENCE = b'{"prompt": "2+2", "chosen": "4", "rejected": "5"}'
_LONG_PROMPT = json.dumps(user_assistant("Ping " * 50, "pong")).encode()
_LONG_ANSWER = json.dumps(user_assistant("Ping", "pong " * 600)).encode()


@pytest.mark.parametrize(
    ("rows", "length"),
    [
        ([GOOD], 64),
        ([GOOD, b"{oops"], None),
        ([], None),
        ([_PREFERENCE], None),
        ([_PREFERENCE, GOOD], None),
        ([_PREFERENCE, b"{oops"], None),
        ([b'{"text": "a film", "label": -1}'], None),
        ([_LONG_PROMPT], 16),
        ([_LONG_PROMPT, b"{oops"], 16),
        ([_LONG_ANSWER], 1024),
        ([_LONG_ANSWER, b"{oops"], 1024),
    ],
    ids=[
        "good", "bad", "empty", "preferences", "preferences, others",
        "preferences, bad", "left out", "untrained", "untrained, bad",
        "beyond the context", "beyond the context, bad",
    ],
)  # fmt: skip
def test_all_tell_the_same(cli: Cli, tiny: Path, tmp_path: Path, rows: list[bytes], length: int | None) -> None:
    """Each problem is in all of them, and a failing check has at least one."""
    path = write(tmp_path / "f.jsonl", *rows)
    flags = f" --model {tiny} --max-length {length}" if length else ""
    done = cli(f"data check {path} --json --html {tmp_path}/page.html{flags}")
    found = rankzero.data.check(path, model=str(tiny) if length else None, max_length=length or 2048)
    report = json.loads(done.out)
    assert report["ok"] == report["passed"] == found.ok == (done.code == 0), done.err
    assert report["problem_count"] == len(report["problems"]) == len(found.problems)
    assert report["problem_count"] == sum(report["problems_by_reason"].values())
    assert bool(report["problems"]) != found.ok
    page = html.unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert all(problem["what"] in page for problem in report["problems"]), report["problems"]
    printed = cli(f"data check {path}{flags}")
    assert all(problem["what"] in printed.err for problem in report["problems"]), printed.err
    assert ("\nok: " in printed.out) == found.ok
