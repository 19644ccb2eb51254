"""What SECURITY.md promises and no other test shows: secrets by shape, the terminal, dependencies, no secrets here."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankzero.cli.output import print_error
from rankzero.engine.console import RunConsole, logger
from rankzero.errors import ConfigError, DataError, Problem
from rankzero.redaction import Redactor, holds_secret
from rankzero.spec.load import load_run_spec

ROOT = Path(__file__).parents[2]
ESCAPES = "\x1b]52;c;cm0gLXJm\x07\x1b[2Jevil\u202e\x1b[31m"
"""Writes the clipboard, clears the screen, turns the direction of writing."""
_KNOWN = re.compile(r"^(tests|docs|examples|src/rankzero/(recipes|redaction\.py))")
"""Where examples of secrets' shapes may stand; none of them is one."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pa55-w0rd@host/x", "https://user:[hidden]@host/x"),
        ("https://:token123@host/x", "https://:[hidden]@host/x"),
        ("s3://b/x?X-Amz-Signature=abc123&y=1", "s3://b/x?[hidden]&y=1"),
        ("https://a.blob/x?sv=1&sig=Zm9v%3D", "https://a.blob/x?sv=1&[hidden]"),
        ("https://h/x?token=abcdef", "https://h/x?[hidden]"),
        ("key hf_" + "a" * 30 + " end", "key [hidden] end"),
        ("AKIA" + "A" * 16, "[hidden]"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "[hidden]"),
        ("no secret: step 3 of 4, https://host:8080/x?page=2, token 5, a@b.c", None),
    ],
)
def test_secrets_are_hidden_by_their_shape(text: str, shown: str | None) -> None:
    assert Redactor({})(text) == (text if shown is None else shown)
    assert Redactor({})(Redactor({})(text)) == Redactor({})(text)


@pytest.mark.parametrize(
    "url", ["https://user:canary-pw@host/train.jsonl", "https://host/t.jsonl?X-Amz-Signature=canary-pw"]
)
def test_a_spec_with_a_secret_in_a_url_is_refused_without_it(url: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{name: m}}\ndata: {{train: '{url}'}}\n")
    with pytest.raises(ConfigError, match=r"data.train: this holds a secret") as refused:
        load_run_spec(path, env={})
    assert "canary-pw" not in str(refused.value)


def test_nothing_that_is_shown_drives_the_terminal(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    print_error(DataError(Problem(f"the class {ESCAPES}", f"file{ESCAPES}", f"hint {ESCAPES}")))
    console = RunConsole(speaks=True, level="INFO")
    console.log_to(tmp_path / "rank-0.log")
    try:
        logger.info("labels: %s", ESCAPES)
    finally:
        console.close()
        logging.getLogger("rankzero").propagate = True
    shown = capfd.readouterr().err + (tmp_path / "rank-0.log").read_text()
    assert shown.count("evil") == 5
    assert not re.search("[\x1b\x07\u202e]", shown) and "cm0g" not in shown


def test_every_named_dependency_is_pinned_and_comes_from_an_index() -> None:
    """So that an audit of constraints.txt is one of what is installed."""
    lines = [line.split("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("-")]
    assert len(pins) > 30
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+( *;.*)?", line)] == []
    declared = (ROOT / "pyproject.toml").read_text()
    assert not re.search(r'"[^"]*(?: @ |git\+|https?://[^"]*\.(?:whl|zip|tar\.gz))[^"]*"', declared)


def test_no_file_of_the_repository_holds_a_secret() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if not name or _KNOWN.match(name) or not path.is_file() or path.is_symlink():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if holds_secret(line):
                found.append(f"{name}:{number}")
    assert found == []


def test_the_scan_finds_one(tmp_path: Path) -> None:
    shapes: list[Any] = ["hf_" + "x" * 34, "ghp_" + "x" * 36, "https://me:secret@host"]
    assert all(holds_secret(f"a = '{shape}'") for shape in shapes)
