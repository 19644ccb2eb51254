"""`rankzero serve` with a real server on loopback: an adapter of a tiny model, asked as OpenAI's clients ask."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

import rankzero
from rankzero.api.serving import plan_serving, served
from tests.support.adapters import tiny_adapter
from tests.support.ports import free_port

pytestmark = pytest.mark.e2e

for needed in ("fastapi", "uvicorn", "openai"):
    pytest.importorskip(needed, reason="the extra `serve` is not installed")


def test_it_answers_under_its_name_and_ends_when_told(tiny: Path, tmp_path: Path) -> None:
    adapter, port = tiny_adapter(tiny, tmp_path / "adapter"), free_port()
    command = [sys.executable, "-m", "rankzero", "serve", str(adapter), "--name", "assistant"]
    command += ["--engine", "transformers", "--port", str(port), "--ready-file", str(tmp_path / "ready")]
    printed = subprocess.run([*command, "--print"], capture_output=True, text=True, check=True, timeout=300).stdout
    merging, serving = printed.splitlines()
    assert merging.startswith(f"rankzero merge {adapter} -o ") and " && transformers serve assistant " in serving
    with (tmp_path / "said").open("wb") as said:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, (tmp_path / "said").read_text()
        facts = json.loads(line)
        assert facts["model"] == "assistant" and facts["url"] == f"http://127.0.0.1:{port}/v1"
        assert facts["route"] == "/v1/chat/completions"
        assert "at any temperature" in (tmp_path / "said").read_text()
        assert json.loads((tmp_path / "ready").read_text()) == facts
        ask = {"messages": [{"role": "user", "content": "Hello World"}], "max_tokens": 6, "temperature": 0}
        response = httpx2.post(f"{facts['url']}/chat/completions", json={**ask, "model": "assistant"}, timeout=300)
        assert response.status_code == 200, response.text
        body = response.json()
        [expected] = rankzero.generate(str(adapter), ["Hello World"], max_new_tokens=6)
        assert expected and body["choices"][0]["message"]["content"].strip() == expected, "base and adapter, merged"
        other = httpx2.post(f"{facts['url']}/chat/completions", json={**ask, "model": "other"}, timeout=300)
        assert other.status_code == 400
        server.send_signal(signal.SIGTERM)
        assert server.wait(300) == 0, (tmp_path / "said").read_text()
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "nothing of it is left"
    again = subprocess.run([*command, "--print"], capture_output=True, text=True, check=True, timeout=300).stdout
    assert "merge" not in again, "what was merged is there"


def test_a_model_without_a_chat_template_is_given_a_prompt(tiny: Path, tmp_path: Path, own_cache: Path) -> None:
    model = tmp_path / "base-model"
    shutil.copytree(tiny, model)
    (model / "chat_template.jinja").unlink()
    with served(plan_serving(str(model), engine="transformers", port=free_port())) as (_process, said):
        assert said.route == "/v1/completions" and said.text
