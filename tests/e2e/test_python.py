"""rankzero from Python, as docs/python.md and the notebook of the quickstart show it."""

from __future__ import annotations

import doctest
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import rankzero
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "python.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory as the guide has it, with a cache of its own."""
    here, before = tmp_path_factory.mktemp("python"), Path.cwd()
    tiny_model(here / "tiny")
    write_jsonl(here / "train.jsonl", chat_rows(24))
    spec = {
        "name": "small",
        "model": {"name": "tiny", "dtype": "float32"},
        "data": {"train": "train.jsonl"},
        "lora": {"r": 4, "target_modules": "all-linear"},
        "train": {"num_train_epochs": 2, "global_batch_size": 8, "learning_rate": 0.01},
        "checkpoint": {"every": 3},
        "tracking": {"tensorboard": False},
    }
    (here / "run.yaml").write_text(yaml.safe_dump(spec))
    os.chdir(here)
    yield here
    os.chdir(before)


@pytest.fixture(autouse=True)
def shared_cache(own_cache: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKZERO_CACHE", str(place / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_an_interrupt_saves_and_the_same_call_continues(place: Path) -> None:
    """As the stop button of a notebook does it: SIGINT to this process, which has not a signal handler left after."""
    metrics, handler = place / "runs/small/metrics.jsonl", signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        while not (metrics.is_file() and '"loss"' in metrics.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    slow = {"train.max_steps": 100_000, "checkpoint.every": 100_000}
    with pytest.raises(rankzero.StoppedError, match="step"):
        rankzero.train("run.yaml", slow)
    stopped = rankzero.Run.open("small")
    assert signal.getsignal(signal.SIGINT) is handler
    assert stopped.status.phase == "Stopped" and len(stopped.checkpoints) == 1
    with pytest.raises(rankzero.ConfigError, match="no result yet"):
        _ = stopped.result
    (place / "runs/small").rename(place / "stopped")
    again = rankzero.train("run.yaml")
    assert again.status.phase == "Succeeded" and again.name == "small"


def blocks() -> list[Any]:
    text = GUIDE.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [(text[: match.start()].count("\n") + 1, match[1]) for match in found if ">>>" in match[1]]


def test_the_guide(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of its examples, in their order: names that one makes are there in the next."""
    found, runner, names = blocks(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE), {}
    assert len(found) >= 5
    for line, text in found:
        test = doctest.DocTestParser().get_doctest(text, names, "python.md", str(GUIDE), line)
        test.globs = names
        runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out


def test_the_quickstart_notebook_with_two_processes(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the extra `notebook` is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the extra `notebook` is not installed")
    pytest.importorskip("ipykernel", reason="the extra `notebook` is not installed")
    monkeypatch.setenv("RANKZERO_NOTEBOOK_MODEL", str(place / "tiny"))
    monkeypatch.setenv("RANKZERO_NOTEBOOK_STEPS", "2")
    monkeypatch.setenv("RANKZERO_NOTEBOOK_PROCESSES", "2")
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pages = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert any("<iframe srcdoc=" in page and "quickstart" in page for page in pages), "the report is shown in place"
    text = "".join(output.get("text", "") for output in outputs)
    assert "Succeeded" in text and "before" in text and "after" in text
    environment = (tmp_path / "runs/quickstart/environment.json").read_text()
    assert '"world_size": 2' in environment
