"""A terminal sends Ctrl-C to all that run in it. What a backend has asked is answered all the same, where its own
process goes on, and is not left behind where that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """#!/bin/sh
echo $$ > {place}/began
read -r go < {place}/go
echo GPU 7
"""
"""Answers when it is told to."""
ASKS = {
    "docker": 'from rankzero.launch.backends.docker.command import Docker; print(Docker().call("ps"))',
    "docker logs": """from rankzero.launch.backends.docker.command import follow; process, output = follow(["logs"])
try:
    print(output.read().decode())
finally:
    process.kill()
    process.wait()""",
    "squeue": "import os; from rankzero.launch.backends.slurm.command import Slurm; "
    'print(Slurm(os.environ).call("squeue"))',
    "nvidia-smi": 'from rankzero.machine import local_gpus; print("GPU", 6 + len(local_gpus({})))',
}
LISTENS = "import signal; signal.signal(signal.SIGINT, lambda number, frame: print('heard', flush=True))\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where programs of all these names wait."""
    for name in ASKS:
        (script := tmp_path / name.split()[0]).write_text(PROGRAM.format(place=tmp_path), encoding="utf-8")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("began", "go"):
        subprocess.run(["mkfifo", tmp_path / name], check=True)
    return tmp_path


def asking(code: str) -> subprocess.Popen[str]:
    """In a group of its own, as in a terminal."""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, process_group=0)


@pytest.mark.parametrize("asked", ASKS)
def test_what_was_asked_when_ctrl_c_came_is_answered(place: Path, asked: str) -> None:
    with asking(LISTENS + ASKS[asked]) as process, open(place / "go", "r+b", buffering=0) as go:
        assert process.stdout is not None
        (place / "began").read_text()
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "heard\n"
        go.write(b"go\n")
        assert process.stdout.read().strip() == "GPU 7" and process.wait() == 0


def wait_until_it_waits(process: subprocess.Popen[str]) -> None:
    """For the answer: until its Popen has returned, nobody could end what that started."""
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("asked", ASKS)
def test_what_was_asked_ends_with_whoever_does_not_listen(place: Path, asked: str) -> None:
    with asking(ASKS[asked]) as process:
        number = int((place / "began").read_text())
        wait_until_it_waits(process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait() != 0
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
