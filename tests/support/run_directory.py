"""A run directory without a run: every file that a page is made of. Nothing is synced to disk: tests make many."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from typing import Any

from rankzero.run_dir.atomic import FIRST_FORMAT
from rankzero.run_dir.goodput import Ending, Start, StartLine
from rankzero.run_dir.paths import RunDir

BEGUN = 1_790_000_000.0


def run_directory(
    root: Path,
    *,
    steps: int = 60,
    name: str = "made",
    ended: Ending | None = "finished",
    processes: tuple[int, int] = (8, 8),
) -> Path:
    """A LoRA run that was killed after step 20, went on from there, and ended after `steps`. `processes` are those of
    its two starts; 0: the start has not noted them."""
    run_dir = RunDir(root)
    root.mkdir(parents=True)
    spec = {
        "name": name,
        "model": {"name": "Qwen/Qwen3-8B"},
        "lora": {"r": 16},
        "train": {"learning_rate": 1e-4, "seed": 3},
    }
    run_dir.spec.write_text(json.dumps(spec))  # JSON is YAML
    environment = {"device": "NVIDIA H100", "world_size": processes[1] or 8, "versions": {"torch": "2.13.0"}}
    run_dir.environment.write_text(json.dumps(environment))
    metrics(run_dir, steps)
    seconds = {"startup": 4.0, "model": 6.0, "step": 80.0, "evaluation": 5.0}
    first = Start(begun=BEGUN, updated=BEGUN + 95, step=min(steps, 20), seconds=seconds, world_size=processes[0])
    _start(run_dir, first)
    going_on = Start(begun=BEGUN + 105, updated=BEGUN + 205, from_step=20, step=steps, ended=ended, alive_before=BEGUN)
    going_on.world_size = processes[1]
    going_on.seconds = {"startup": 5.0, "step": 90.0, "repeated": 5.0}
    _start(run_dir, going_on)
    entry = {"time": "2026-09-21T10:00:00+00:00", "restart": 1, "from_step": 20, "where": "rank 3", "what": "Xid 79"}
    run_dir.restarts.write_text(json.dumps(entry) + "\n")
    run_dir.data.write_text(json.dumps({"train": data_part(), "eval": {**data_part(), "rows": 7}}))
    asked = [(0, "What is 2 + 2?", "Blue."), (30, "What is 2 + 2?", "Three."), (steps, "What is 2 + 2?", "Four.")]
    lines = [json.dumps({"step": step, "prompt": prompt, "text": text}) for step, prompt, text in asked]
    run_dir.samples.write_text("\n".join(lines) + "\n")
    proof = {"logits_largest": 0.0123, "logits_tolerance": 0.25, "adapter_changes": 7.5, "prompts": 8, "tokens": 200}
    run_dir.merge.write_text(json.dumps({**proof, "directory": "/models/merged", "base_weights": "trained"}))
    for step in (40, steps):
        _checkpoint(run_dir.checkpoint(step), step)
    run_dir.set_link("best", 40)
    run_dir.set_link("last", steps)
    run_dir.log(0).parent.mkdir()
    run_dir.log(0).write_text("10:00:00 [STEP] train\n10:00:01 WARNING [DATA] 3 rows are odd\n", encoding="utf-8")
    run_dir.log(1).write_text("10:00:02 WARNING [DATA] 3 rows are odd\n", encoding="utf-8")
    if ended is None:
        leave_lease(root)
    if ended == "finished":
        _checkpoint(run_dir.final, 40)
        done = {"steps": steps, "final_step": 40, "eval_loss": 1.5, "tokens_per_second": 5000.0, "total_tokens": 60_000}
        run_dir.report.write_text(json.dumps({**done, "nonfinite_steps": 2, "peak_memory_bytes": 60 * 2**30}))
    return root


def leave_lease(root: Path) -> None:
    """That of a process of this host that is gone without having given the directory back."""
    gone = {"token": 1, "beat": 3, "pid": 2**22 + 1, "process": "gone", "host": socket.gethostname()}
    (root / "lease.json").write_text(json.dumps(gone))


def metrics(run_dir: RunDir, steps: int) -> None:
    """metrics.jsonl: a loss that falls, a step whose loss was not finite, an evaluation every tenth of the way."""
    rows: list[dict[str, Any]] = [{"step": 0, "epoch": 0.0, "eval_loss": 4.0, "time": BEGUN}]
    for step in range(1, steps + 1):
        row = {"step": step, "loss": 1 + 3 * math.exp(-4 * step / steps), "learning_rate": 1e-4 * (1 - step / steps)}
        row |= {"grad_norm": 0.5 + 0.1 * math.sin(step), "tokens": 1000, "tokens_per_second": 5000.0 + step % 7}
        row["time"] = BEGUN + step
        if step == steps // 2:
            row["loss"] = None
        if step % max(steps // 10, 1) == 0:
            row |= {"eval_loss": 1.2 + 3 * math.exp(-4 * step / steps)}
        rows.append(row)
    run_dir.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


def data_part() -> dict[str, Any]:
    """What data.json has of one part."""
    return {
        "rows": 100,
        "rows_in": 104,
        "tokens": 5000,
        "supervised_tokens": 2000,
        "truncated": 1,
        "dropped": {"no_trained_token": 4},
        "notes": {"reasoning was left out": 9},
        "longest": 90,
        "lengths": [[10, 30, 20], [30, 50, 0], [50, 70, 79], [70, 90, 0], [90, 110, 1]],
    }


def _start(run_dir: RunDir, start: Start) -> None:
    updated, line = start.updated, StartLine(run_dir.starts, start)
    line.write(start.seconds)
    line.close()
    text = run_dir.starts.read_text()
    run_dir.starts.write_text(text.replace(f'"updated": {start.updated:.3f}', f'"updated": {updated:.3f}'))


def _checkpoint(place: Path, step: int) -> None:
    (place / "model").mkdir(parents=True)
    (place / "model/adapter_model.safetensors").write_bytes(b"x" * 2048)
    files = {"model/adapter_model.safetensors": {"size": 2048, "sha256": "0" * 64}}
    (place / "manifest.json").write_text(json.dumps({"format": FIRST_FORMAT, "files": files, "step": step}))
