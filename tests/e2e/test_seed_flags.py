"""Every command line that the first seed prints for train_framework.py, with small local models for the Hub's names.

`python …/train_framework.py` is `rankzero train`; under torchrun it is `-m rankzero train`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.engine.device import Device, computes_bfloat16
from tests.support.ports import free_port
from tests.support.tiny import tiny_gpt2, tiny_model, write_jsonl

pytestmark = pytest.mark.e2e

ROWS = [
    {"prompt": "Hello", "completion": " World"},
    {"messages": [{"role": "user", "content": "Ping"}, {"role": "assistant", "content": "Pong"}]},
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The seed's paths and names, and what stands for them here."""
    root = tmp_path_factory.mktemp("seed")
    qwen = str(tiny_model(root / "models/Qwen2.5-3B-Instruct", context=32768))
    return {
        "/tmp/ds.jsonl": str(write_jsonl(root / "ds.jsonl", ROWS * 9)),
        "/data/ds.jsonl": str(write_jsonl(root / "twenty.jsonl", ROWS * 10)),
        "/data/dataset.jsonl": str(write_jsonl(root / "dataset.jsonl", ROWS * 20)),
        "Qwen/Qwen2.5-3B-Instruct": qwen,
        "/models/Qwen2.5-3B-Instruct": qwen,
        "/models/llama3.2-3b": qwen,
        "distilgpt2": str(tiny_gpt2(root / "distilgpt2")),
    }


def located(line: str, places: dict[str, str], tmp_path: Path) -> list[str]:
    words = {**places, "/tmp/out": str(tmp_path / "out"), "/out/run": str(tmp_path / "run")}
    return [words.get(word, word) for word in shlex.split(line)]


SINGLE = {
    "quick start": (
        "--model Qwen/Qwen2.5-3B-Instruct --data /tmp/ds.jsonl --output /tmp/out "
        "--epochs 1 --seq-len 512 --batch 1 --grad-accum 1 --log-level DEBUG --log-batches all"
    ),
    "minimal smoke": (
        "--model Qwen/Qwen2.5-3B-Instruct --data /tmp/ds.jsonl --output /tmp/out "
        "--epochs 1 --seq-len 512 --batch 1 --grad-accum 1"
    ),
    "fully offline": (
        "--model Qwen/Qwen2.5-3B-Instruct --model-local-dir /models/Qwen2.5-3B-Instruct "
        "--tokenizer-local-dir /models/Qwen2.5-3B-Instruct --local-files-only --data /tmp/ds.jsonl --output /tmp/out "
        "--lora --bf16 --epochs 1 --seq-len 512 --batch 1 --grad-accum 1 --log-level DEBUG --log-batches all"
    ),
    "use-case A": (
        "--model distilgpt2 --data /data/ds.jsonl --output /out/run --epochs 1 --seq-len 1024 --batch 2 --grad-accum 8"
    ),
    "use-case B": (
        "--model distilgpt2 --data /data/ds.jsonl --output /out/run "
        "--epochs 1 --seq-len 1024 --batch 1 --grad-accum 1 --log-level DEBUG --log-batches all"
    ),
    "use-case C": (
        "--model meta-llama/Llama-3.2-3B-Instruct --model-local-dir /models/llama3.2-3b "
        "--tokenizer-local-dir /models/llama3.2-3b --local-files-only --data /data/ds.jsonl --output /out/run "
        "--lora --bf16 --epochs 1 --seq-len 4096 --batch 2 --grad-accum 8"
    ),
    "custom LoRA": (
        "--model Qwen/Qwen2.5-3B-Instruct --data /tmp/ds.jsonl --output /tmp/out --epochs 1 --seq-len 512 --batch 1 "
        "--lora --lora-r 16 --lora-alpha 16 --lora-dropout 0.05 --target-modules q_proj k_proj v_proj o_proj"
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_one_process(
    name: str, places: dict[str, str], tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    words = located(SINGLE[name], places, tmp_path)
    report = tmp_path / "report.json"
    done = cli(shlex.join(["train", *words, "--report-json", str(report)]))
    if "--bf16" in words and not torch.cuda.is_available() and not computes_bfloat16(Device("cpu")):
        assert done.code == 78 and "does not compute it natively" in done.err and "leave out --bf16" in done.err
        words.remove("--bf16")
        done = cli(shlex.join(["train", *words, "--report-json", str(report)]))
    assert done.code == 0, done.err
    value = json.loads(report.read_text())
    batch, accumulation = (int(words[words.index(f) + 1]) if f in words else 1 for f in ("--batch", "--grad-accum"))
    assert value["spec"]["train"]["global_batch_size"] == batch * accumulation
    assert {"world_size", "total_tokens", "elapsed_seconds", "tokens_per_second"} <= value.keys()
    final = Path(words[words.index("--output") + 1]) / "final"
    weights = "adapter_model.safetensors" if "--lora" in words else "model.safetensors"
    assert (final / weights).is_file() and (final / "tokenizer.json").is_file()
    for tag in ("[STEP]", "[DDP]", "[DATA]", "[MODEL]", "[TRAIN]", "[EPOCH]", "[RESULT]", "[DONE]"):
        assert tag in done.err
    assert ("[BATCH]" in done.err) == ("DEBUG" in words) == ("[COLLATE]" in done.err)
    plain = "distilgpt2" in SINGLE[name]
    assert ("the tokenizer has no chat template" in done.err) == plain
    if plain:
        assert "### Assistant:" in (final / "chat_template.jinja").read_text()


def start(line: str, places: dict[str, str], tmp_path: Path, port: int) -> subprocess.Popen[str]:
    words = located(line.replace("29500", str(port)), places, tmp_path)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


TORCHRUN = {
    "DDP over four": (
        "--nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=localhost:29500 -m rankzero train "
        "--model Qwen/Qwen2.5-3B-Instruct --data /tmp/ds.jsonl --output /tmp/out "
        "--epochs 1 --seq-len 512 --batch 1 --grad-accum 1 --log-level INFO --log-batches first-last",
        4,
        4,
    ),
    "single node, NUM_GPUS=2": (
        "--nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:29500 -m rankzero train "
        "--model Qwen/Qwen2.5-3B-Instruct --data /data/dataset.jsonl --output /out/run "
        "--epochs 1 --seq-len 2048 --batch 2 --grad-accum 8 --log-level INFO --log-batches first-last",
        2,
        32,
    ),
    "use-case D": (
        "--nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=localhost:29500 -m rankzero train "
        "--model distilgpt2 --data /data/ds.jsonl --output /out/run "
        "--epochs 1 --seq-len 2048 --batch 2 --grad-accum 8",
        4,
        64,
    ),
}


@pytest.mark.distributed
@pytest.mark.parametrize(
    "name",
    [name if world == 2 else pytest.param(name, marks=pytest.mark.slow) for name, (_, world, _) in TORCHRUN.items()],
)
def test_under_torchrun(name: str, places: dict[str, str], tmp_path: Path) -> None:
    line, world_size, global_batch = TORCHRUN[name]
    process = start(line, places, tmp_path, free_port())
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    directory = tmp_path / ("run" if "/out/run" in line else "out")
    report = json.loads((directory / "report.json").read_text())
    assert report["world_size"] == world_size
    assert report["spec"]["train"]["global_batch_size"] == global_batch


@pytest.mark.distributed
@pytest.mark.slow
def test_two_nodes_under_torchrun(places: dict[str, str], tmp_path: Path) -> None:
    """NNODES=2, NGPU=1: one torchrun on each node, here both on this machine."""
    line = (
        "--nnodes=2 --node_rank={rank} --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=localhost:29500 "
        "-m rankzero train --model Qwen/Qwen2.5-3B-Instruct --data /tmp/ds.jsonl --output /tmp/out "
        "--epochs 1 --seq-len 512 --batch 1 --grad-accum 1"
    )
    port = free_port()
    nodes = [start(line.format(rank=rank), places, tmp_path, port) for rank in (0, 1)]
    errors = [node.communicate(timeout=300)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], errors
    assert json.loads((tmp_path / "out/report.json").read_text())["world_size"] == 2
