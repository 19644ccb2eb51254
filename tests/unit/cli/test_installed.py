"""Installations without the engine, by making its packages unimportable: what works there, and what others say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.paper_model import paper_model
from tests.unit.data.support import GOOD, write

TRAINING = ("torch", "transformers", "tokenizers", "peft", "safetensors", "tensorboard", "accelerate", "datasets")
DATA = ("orjson", "numpy", "pyarrow", "filelock", "jinja2", "fsspec", "huggingface_hub")

TYPE_ALL = """
import contextlib, io, json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from rankzero.cli.main import main
done = []
for line in json.loads(sys.argv[2]):
    sys.argv = ["rankzero", *line.split()]
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""


def type_all(lines: list[str], without: tuple[str, ...], cwd: Path) -> list[tuple[int, str, str]]:
    """Type commands one after the other in one process that lacks packages."""
    words = [sys.executable, "-c", TYPE_ALL, json.dumps(without), json.dumps(lines)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=300, check=True)
    return [(code, out, err) for code, out, err in json.loads(done.stdout)]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write(tmp_path / "rows.jsonl", GOOD, GOOD)
    paper_model(tmp_path / "m")
    (tmp_path / "run.yaml").write_text("model: {name: m}\ndata: {train: rows.jsonl}\nlora: {}\n", encoding="utf-8")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text('{"base_model_name_or_path": "m"}', encoding="utf-8")
    return tmp_path


def test_the_launcher_alone_says_what_to_install(here: Path) -> None:
    lines = {
        "quickstart": "train",
        "train run.yaml": "train",
        "generate m hi": "train",
        "predict m --text hi": "train",
        "merge adapter -o out": "train",
        "data prepare run.yaml": "train",
        "data show rows.jsonl --model m": "train",
        "data check rows.jsonl --model m": "data",
        "data check rows.jsonl": "data",
        "data stats rows.jsonl": "data",
        "data convert rows.jsonl -o out.csv --as text": "data",
        "data fire --output_dir o --image_dir i --input rows.jsonl": "data",
        "data volcano --output_dir o --image_dir i --input rows.jsonl": "data",
    }
    for line, (code, out, err) in zip(lines, type_all(list(lines), TRAINING + DATA, here), strict=True):
        assert (code, out) == (78, ""), (line, err)
        assert f"hint: pip install 'rankzero[{lines[line]}]'" in err, (line, err)


def test_the_launcher_alone_launches(here: Path) -> None:
    lines = ["init -o new.yaml", "render run.yaml --cluster docker", "submit run.yaml --cluster docker --dry-run"]
    for code, _out, err in type_all(lines, TRAINING + DATA, here):
        assert (code, err) == (0, "")
    ((code, _out, err),) = type_all(["train run.yaml data.train=nope.jsonl"], TRAINING + DATA, here)
    assert code == 65 and "nope.jsonl: no such file" in err, "what is wrong with the spec comes first"


def test_data_is_looked_at_and_converted_without_torch(here: Path) -> None:
    lines = [
        "data check rows.jsonl --html page.html",
        "data stats rows.jsonl --json",
        "data convert rows.jsonl -o out.parquet",
        "data check out.parquet",
        "data convert rows.jsonl -o out.csv --as prompt_completion",
        "data check out.csv",
    ]
    done = type_all([*lines, "data check rows.jsonl --model m"], TRAINING, here)
    for line, (code, _out, err) in zip(lines, done[:-1], strict=True):
        assert code == 0, (line, err)
    assert done[-1][0] == 78 and "pip install 'rankzero[train]'" in done[-1][2]


def test_the_engine_s_extra_has_all_of_the_data_extra() -> None:
    """Written out twice, because what builds images reads the lists as they stand."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(extras["data"]) < set(extras["train"])
    assert {re.match(r"[\w]+", need)[0] for need in extras["data"]} == set(DATA)  # type: ignore[index]
