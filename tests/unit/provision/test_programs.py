"""Programs of others as processes: what they say while they run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ServiceError, StopNow
from rankzero.provision import programs as programs_module
from rankzero.provision.programs import Command, Programs
from rankzero.stop_signals import signals_to
from tests.support.provider_programs import program

TOKEN = "very-secret-token-of-nebius"
LOGIN = """
import os, sys
print("open https://login/?state=1 to log in, TOKEN", file=sys.stderr, flush=True)
open(os.environ["LOGGED_IN"]).read()
sys.stdin.read()
print("logged in", file=sys.stderr)
print("project-1")
"""
ASKS = """
import os, sys
sys.stderr.write("Enter the code:")
sys.stderr.flush()
open(os.environ["ANSWERED"]).read()
print(" thanks", file=sys.stderr)
"""
DEAF = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("BEGUN", "w") as begun:
    begun.write(str(os.getpid()))
while True:
    signal.pause()
"""


def test_a_login_that_waits_for_somebody_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nebius, with an expired session, prints a link and waits until it was opened."""
    monkeypatch.setattr(programs_module, "QUIET_SECONDS", 0.0)
    program(tmp_path / "bin", "nebius", LOGIN.replace("TOKEN", TOKEN))
    door = tmp_path / "door"
    os.mkfifo(door)
    heard: list[str] = []

    def opens_the_link(line: str) -> None:
        heard.append(line)
        if "https://" in line:
            door.write_text("")  # until then the program waits

    env = {"PATH": f"{tmp_path}/bin", "LOGGED_IN": str(door), "NEBIUS_IAM_TOKEN": TOKEN}
    answer = Programs(env, [].append, opens_the_link).run(Command(("nebius", "config", "get")))
    assert heard[0] == "open https://login/?state=1 to log in, [hidden]\n"
    assert (answer.code, answer.out, len(answer.err.splitlines())) == (0, "project-1\n", 2)


def test_a_question_that_no_line_ends_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module, "QUIET_SECONDS", 0.0)
    program(tmp_path / "bin", "nebius", ASKS)
    door = tmp_path / "door"
    os.mkfifo(door)
    heard: list[str] = []

    def answers(line: str) -> None:
        heard.append(line)
        if "the code" in line:
            door.write_text("")  # until then the program waits

    env = {"PATH": f"{tmp_path}/bin", "ANSWERED": str(door)}
    answer = Programs(env, [].append, answers).run(Command(("nebius", "config", "get")))
    assert "".join(heard) == "Enter the code:\n thanks\n" and answer.err == "Enter the code: thanks\n"


KEY = ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQ", "EFAASCBKcwggSjAg==", "-----END PRIVATE KEY-----"]


def test_a_private_key_of_several_lines_is_in_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module, "QUIET_SECONDS", 0.0)
    lines = ["wait", *KEY, "done", *KEY[:2], "https://login/?state=1", *KEY[2:]]
    text = f"import sys; [print(line, file=sys.stderr, flush=True) for line in {lines}]; sys.exit(1)"
    program(tmp_path / "bin", "nebius", text)
    heard: list[str] = []
    programs = Programs({"PATH": f"{tmp_path}/bin"}, [].append, heard.append)
    command = Command(("nebius", "config", "get"))
    answer = programs.run(command)
    said = "".join(heard) + str(programs.failure(command.words, answer))
    assert not any(line in said for line in KEY[1:3]), said
    assert not heard or [heard[0], heard[-1]] == ["wait\n", "https://login/?state=1\n"]


def test_one_that_does_not_hear_a_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch system kills this process soon after: what it has started would go on by itself."""
    monkeypatch.setattr(programs_module, "END_SECONDS", 0.0)
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    program(tmp_path / "bin", "kind", DEAF.replace("BEGUN", str(begun)))
    pids: list[int] = []

    def is_stopped(*_: object) -> bytes:
        pids.append(int(begun.read_text()))
        raise StopNow

    monkeypatch.setattr(programs_module, "_printed", is_stopped)
    with pytest.raises(StopNow):
        Programs({"PATH": f"{tmp_path}/bin"}, [].append, [].append).run(Command(("kind", "create")))
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_one_that_is_quick_is_quiet(tmp_path: Path) -> None:
    program(tmp_path / "bin", "kind", "import sys; print(sys.stdin.read()); sys.exit('ERROR: no')")
    heard: list[str] = []
    programs = Programs({"PATH": f"{tmp_path}/bin"}, [].append, heard.append)
    answer = programs.run(Command(("kind", "get", "clusters"), "é" * 100_000))
    assert (answer.code, answer.err, len(answer.out), heard) == (1, "ERROR: no\n", 100_001, [])


@pytest.mark.parametrize("printed", ["null", "[]", "Usage: …", ""])
def test_an_answer_of_another_kind_is_no_word_that_there_is_nothing(tmp_path: Path, printed: str) -> None:
    program(tmp_path / "bin", "nebius", f"print({printed!r})")
    with pytest.raises(ServiceError, match="its answer is no JSON object"):
        Programs({"PATH": f"{tmp_path}/bin"}, [].append).ask_for_object("nebius", "mk8s")


def test_relative_paths_are_those_of_who_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBECONFIG=./config, and a PATH with ./bin, are so for what was typed."""
    program(tmp_path / "bin", "kubectl", "import os; print(os.path.realpath(os.environ['KUBECONFIG']))")
    monkeypatch.chdir(tmp_path)
    programs = Programs({"PATH": "bin", "KUBECONFIG": "config"}, [].append)
    assert programs.ask("kubectl", "config", "get-contexts") == f"{os.path.realpath('config')}\n"


def test_a_stop_that_comes_as_a_program_starts_is_told_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on by itself, beside whatever the next command did."""
    program(tmp_path / "bin", "kind", "import signal\nsignal.pause()")
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def begins(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    def stop(_number: int) -> None:
        raise StopNow

    monkeypatch.setattr("rankzero.provision.programs.subprocess.Popen", begins)
    programs = Programs({"PATH": f"{tmp_path}/bin"}, [].append, [].append)
    with signals_to(stop, [signal.SIGTERM]):
        answer, stopped = programs.finish(Command(("kind", "create")))
    assert isinstance(stopped, StopNow) and answer.code == started[0].poll() == -signal.SIGTERM
