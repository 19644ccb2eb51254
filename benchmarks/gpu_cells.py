"""What is measured: models and methods, rows, what each contestant is told. Starts nothing and imports no torch."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

OURS, OURS_COMPILED, OURS_LIGER = "rankzero", "rankzero, torch_compile", "rankzero, kernels: liger"
TRL, TRANSFORMERS, UNSLOTH = "TRL", "transformers Trainer", "Unsloth"
WITH_LIGER = " with Liger"
"""Behind a peer's name: layers and loss of liger-kernel."""
PEERS = (TRL, TRANSFORMERS, TRL + WITH_LIGER, TRANSFORMERS + WITH_LIGER, UNSLOTH)

ADAPTERS = {"r": 16, "alpha": 32, "dropout": 0.0, "target_modules": "all-linear"}
METHODS: dict[str, dict[str, Any]] = {
    "LoRA": {"lora": ADAPTERS},
    "QLoRA (nf4)": {"lora": ADAPTERS, "model": {"quantization": "nf4"}},
    "full, float32 masters": {},
    "full, bfloat16 with stochastic rounding": {"train": {"master_weights": "stochastic_rounding"}},
}
"""What a method adds to the run spec. Everything that concerns speed alone stays at its default."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A model and a method."""

    shape: str
    method: str
    ours: tuple[str, ...] = (OURS,)
    peer: bool = True
    unsloth: bool = False
    """Beside Unsloth too, where it is there."""

    @property
    def name(self) -> str:
        return f"{self.shape} {self.method}"

    @property
    def images(self) -> bool:
        """Whether rows have images."""
        return "vl" in self.shape

    @property
    def flops_per_parameter(self) -> int:
        """Of a token, forward and backward: 2 + 4, and 2 + 2 where the weights have no gradients."""
        return 4 if "lora" in METHODS[self.method] else 6


CELLS = (
    Cell("qwen3-8b", "LoRA", unsloth=True),
    Cell("qwen3-8b", "LoRA", ours=(OURS_LIGER,), peer=False),
    Cell("qwen3-8b", "QLoRA (nf4)", peer=False, unsloth=True),
    Cell("llama-3.2-1b", "LoRA", unsloth=True),
    Cell("llama-3.2-1b", "full, float32 masters"),
    Cell("qwen3-vl-2b", "LoRA"),
    Cell("llama-3.2-1b", "full, bfloat16 with stochastic rounding", peer=False),
    Cell("qwen3-8b", "LoRA", ours=(OURS_COMPILED,), peer=False),
)
"""In the order of what matters most, for when time runs out; those of one model together where that is no matter."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything. Lengths are in tokens."""

    steps: int
    warm_up: int
    """Steps at the start whose time is not counted."""
    batch: int
    max_length: int
    median_length: int
    text_beside_image: int
    image_sizes: tuple[tuple[int, int], ...]


FULL = Sizes(16, 3, 16, 4096, 900, 160, ((512, 384), (640, 480), (768, 768), (1024, 768)))
QUICK = Sizes(4, 1, 4, 96, 32, 16, ((64, 64), (96, 64)))

LENGTH_SIGMA, LEAST_LENGTH = 0.8, 16
TRAINED_SHARE = (0.2, 0.6)
"""The answer's part of a row is drawn evenly from between these."""
TEMPLATE_TOKENS = 6


def make_rows(sizes: Sizes, words: int, *, images: Sequence[str] = (), seed: int = 1) -> list[dict[str, Any]]:
    """Chats of random words, for every step: log-normal lengths, and with images one in each row."""
    draw = random.Random(seed)
    median = sizes.text_beside_image if images else sizes.median_length

    def text(count: int) -> str:
        return " ".join(f"w{draw.randrange(words)}" for _ in range(count))

    def row() -> dict[str, Any]:
        length = round(draw.lognormvariate(math.log(median), LENGTH_SIGMA))
        most = sizes.max_length // 3 if images else sizes.max_length
        content = min(most, max(LEAST_LENGTH, length)) - TEMPLATE_TOKENS
        answer = max(1, round(content * draw.uniform(*TRAINED_SHARE)))
        question = ("<image>" if images else "") + text(max(1, content - answer))
        turns = [("user", question), ("assistant", text(answer))]
        shown = {"images": [draw.choice(images)]} if images else {}
        return {**shown, "messages": [{"role": role, "content": content} for role, content in turns]}

    return [row() for _ in range(sizes.steps * sizes.batch)]


def draw_images(directory: Path, sizes: Sizes, count: int) -> list[str]:
    """Noise as JPEG files; returns their names. Needs Pillow."""
    from PIL import Image

    directory.mkdir(parents=True, exist_ok=True)
    draw, names = random.Random(2), []
    for number in range(count):
        width, height = sizes.image_sizes[number % len(sizes.image_sizes)]
        small = Image.frombytes("RGB", (width // 8, height // 8), draw.randbytes(3 * (width // 8) * (height // 8)))
        names.append(f"{number}.jpg")
        small.resize((width, height)).save(directory / names[-1])
    return names


def run_spec(cell: Cell, entrant: str, sizes: Sizes, *, model: Path, rows: Path, output: Path, cpu: bool) -> Any:
    """Our run spec."""
    spec: dict[str, Any] = {
        "name": "bench",
        "model": {"name": str(model), "dtype": "float32" if cpu else "bfloat16"},
        "data": {"train": str(rows), "max_length": sizes.max_length},
        "train": {
            "max_steps": sizes.steps,
            "global_batch_size": sizes.batch,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
        },
        "tracking": {"tensorboard": False},
        "output_dir": str(output),
    }
    for section, values in METHODS[cell.method].items():
        spec[section] = {**spec.get(section, {}), **values}
    if entrant == OURS_COMPILED:
        spec["train"]["torch_compile"] = True
    if entrant == OURS_LIGER:
        spec["model"]["kernels"] = "liger"
    return spec


@dataclass(frozen=True, slots=True)
class PeerTask:
    """What gpu_peer.py is told, as JSON."""

    model: str
    rows: str
    output: str
    adapters: dict[str, Any] | None
    quantized: bool
    images: bool
    steps: int
    batch: int
    rows_per_pass: int
    max_length: int
    recompute: bool
    liger: bool
    unsloth: bool
    cpu: bool


def peer_task(
    cell: Cell, peer: str, sizes: Sizes, plan: dict[str, Any], *, model: Path, rows: Path, output: Path, cpu: bool
) -> PeerTask:
    """The peer gets as many rows in a pass as rankzero's plan has tokens for: padded rows of the greatest length, or
    rows end to end, Unsloth's, of the usual one. It recomputes where the plan does."""
    usual = round(sizes.median_length * math.exp(LENGTH_SIGMA**2 / 2))
    fitting = max(1, plan["micro_batch_tokens"] // (usual if peer == UNSLOTH else sizes.max_length))
    rows_per_pass = max(count for count in (1, 2, 4, 8, 16, 32) if count <= min(fitting, sizes.batch))
    return PeerTask(
        model=str(model),
        rows=str(rows),
        output=str(output),
        adapters=METHODS[cell.method].get("lora"),
        quantized="model" in METHODS[cell.method],
        images=cell.images,
        steps=sizes.steps,
        batch=sizes.batch,
        rows_per_pass=rows_per_pass,
        max_length=sizes.max_length,
        recompute=plan["gradient_checkpointing"],
        liger=peer.endswith(WITH_LIGER),
        unsloth=peer == UNSLOTH,
        cpu=cpu,
    )


def our_command(spec: Any, directory: Path) -> list[str]:
    """Write run.yaml (JSON is YAML) and name it."""
    path = directory / "run.yaml"
    path.write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    return [sys.executable, "-m", "rankzero", "train", str(path), "--nproc-per-node", "1"]


def peer_command(python: str, task: PeerTask, directory: Path) -> list[str]:
    """Write task.json and name it."""
    path = directory / "task.json"
    path.write_text(json.dumps(asdict(task), indent=1) + "\n", encoding="utf-8")
    return [python, str(Path(__file__).with_name("gpu_peer.py")), str(path)]
