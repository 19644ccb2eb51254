"""What is sent to a program in a container: all of it, and no more once whoever sends it has gone."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankzero.launch.backends.docker.command import stream

SIZE = 3_000_000
DOCKER = """#!/bin/sh
echo up > {place}/began
read -r go < {place}/go
exec cat > {place}/took
"""
"""Takes nothing until it is told to."""
SENDER = """
import sys
from rankzero.launch.backends.docker.command import stream
with open(sys.argv[1], "rb") as file:
    stream(["exec"], lambda data: None, file)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a program named `docker` says what it does."""
    script = tmp_path / "docker"
    script.write_text(DOCKER.format(place=tmp_path), encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("began", "go", "took"):
        subprocess.run(["mkfifo", tmp_path / name], check=True)
    (tmp_path / "sent").write_bytes(bytes(SIZE))
    return tmp_path


def test_what_a_sender_that_was_killed_had_not_sent_is_not_sent(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SENDER, place / "sent"]) as sender:
        assert (place / "began").read_text() == "up\n"
        sender.send_signal(signal.SIGKILL)
    (place / "go").write_text("go\n")
    assert len((place / "took").read_bytes()) < SIZE


def test_a_program_that_ends_before_it_was_sent_all_says_why(place: Path) -> None:
    (place / "docker").write_text("#!/bin/sh\necho full >&2\nexit 3\n", encoding="utf-8")
    answer = stream(["exec"], lambda _data: None, io.BytesIO(bytes(SIZE)))
    assert (answer.code, answer.err) == (3, "full\n")
