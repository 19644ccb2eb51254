"""The analysis notebook, run from top to bottom against data that the test makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="the extra `notebook` is not installed")
nbclient = pytest.importorskip("nbclient", reason="the extra `notebook` is not installed")
pytest.importorskip("ipykernel", reason="the extra `notebook` is not installed")
pytestmark = pytest.mark.e2e

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "dataset_analysis.ipynb"


def run(monkeypatch: pytest.MonkeyPatch, **env: str) -> tuple[str, int]:
    """Everything that it prints, and how many plots it draws."""
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in outputs)
    return text, sum("image/png" in output.get("data", {}) for output in outputs)


def test_without_anything_it_shows_made_up_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    text, plots = run(monkeypatch)
    assert "3 rows, 0 problems" in text
    assert plots == 1


def test_on_fire_rows_with_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "a.png")
    turns = [{"role": "user", "content": "<image>\nWhich colour?"}, {"role": "assistant", "content": "Black."}]
    rows = [{"messages": turns, "images": [f"{name}.png"], "id": f"{name}-{step}"} for name in "ab" for step in (0, 1)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"messages": []}]))
    text, plots = run(monkeypatch, RANKZERO_NOTEBOOK_DATA=str(path), RANKZERO_NOTEBOOK_IMAGES=str(tmp_path / "images"))
    assert "5 rows, 1 problems" in text
    assert "rows.jsonl:5" in text
    assert "4 images in 4 rows, 2 different ones" in text
    assert "b.png" in text
    assert plots == 1


def test_it_is_committed_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
