"""`rankzero serve` from start to end, with a program that stands in for vLLM: what it leaves behind, and when."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.support import vllm_stand_in
from tests.support.ports import free_port

pytestmark = [
    pytest.mark.usefixtures("hung_up_on"),
    pytest.mark.e2e,
    pytest.mark.skipif((Path(sys.executable).parent / "vllm").exists(), reason="vLLM itself is installed"),
]


@dataclass
class Served:
    """A `rankzero serve` that is under way."""

    process: subprocess.Popen[str]
    out: IO[str]
    directory: Path

    def facts(self) -> dict[str, str]:
        """What it prints when it is ready."""
        line = self.out.readline()
        assert line, self.said()
        found: dict[str, str] = json.loads(line)
        return found

    def said(self) -> str:
        """On its standard error."""
        return (self.directory / "said").read_text()

    def ended(self) -> int:
        """Its exit code; nothing that it started is there any more."""
        code = self.process.wait(vllm_stand_in.SECONDS)
        for pid in vllm_stand_in.pids(self.directory):
            vllm_stand_in.wait_until_gone(pid)
        return code


@contextmanager
def serve(directory: Path, model: Path, *more: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "rankzero", "serve", str(model), "--engine", "vllm", "--port", str(free_port())]
    with (directory / "said").open("wb") as said:
        env = vllm_stand_in.installed(directory)
        process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=said, text=True, env=env)
    try:
        assert process.stdout is not None
        yield Served(process, process.stdout, directory)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if (directory / "pids").exists():
            for pid in filter(vllm_stand_in.is_alive, vllm_stand_in.pids(directory)):
                os.kill(pid, signal.SIGKILL)


def test_it_is_said_to_be_ready_only_while_it_is(tiny: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ready.write_text('{"url": "http://127.0.0.1:1/v1", "model": "of a start before this one", "engine": "vllm"}')
    with serve(tmp_path, tiny, "--ready-file", str(ready)) as served:
        assert served.facts() == json.loads(ready.read_text())
        served.process.send_signal(signal.SIGTERM)
        assert served.ended() == 0, served.said()
    assert not ready.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_whatever_tells_it_to_stop_ends_the_server(number: signal.Signals, tiny: Path, tmp_path: Path) -> None:
    """A terminal that is closed, too: its port and its GPU were left taken."""
    with serve(tmp_path, tiny) as served:
        assert served.facts()
        served.process.send_signal(number)
        assert served.ended() == 0, served.said()
        assert served.said().endswith("the server has ended\n")


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_that_does_not_end_is_killed_whatever_comes_meanwhile(
    again: signal.Signals, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / vllm_stand_in.STUBBORN).touch()
    with serve(tmp_path, tiny) as served:
        assert served.facts()
        served.process.send_signal(signal.SIGINT)
        vllm_stand_in.wait_for(tmp_path / vllm_stand_in.HEARD)
        served.process.send_signal(again)
        assert served.ended() == 0, served.said()
        assert "internal error" not in served.said()


def test_a_model_that_only_goes_on_with_a_text_is_served(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "base-model"
    shutil.copytree(tiny, model)
    (model / "chat_template.jinja").unlink()
    with serve(tmp_path, model) as served:
        facts = served.facts()
        assert facts["route"] == "/v1/completions" and facts["answer"] == "Say hello. it says"
        assert "no chat template" in served.said()
        served.process.send_signal(signal.SIGTERM)
        assert served.ended() == 0
