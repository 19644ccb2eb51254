"""Programs of others as processes: what they say while they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankzero.errors import ServiceError
from rankzero.provision import programs as programs_module
from rankzero.provision.programs import Command, Programs
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
