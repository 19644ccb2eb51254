"""`--json` with everything else that decides what a command prints: one JSON value on stdout, whatever is asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from rankzero.cli.main import app
from tests.support.provider_programs import VARIABLE, installed
from tests.support.sweeps import RUN, written
from tests.unit.cli.conftest import Place
from tests.unit.provision.test_provision import KIND

PLACED = "--cluster one.yaml"
COMBINED = {
    "init": ["init --list", "init --schema -o another.yaml", "init --recipe quickstart -o quick --schema"],
    "sweep": [
        "sweep sweep.yaml --dry-run",
        f"sweep sweep.yaml --dry-run {PLACED}",
        f"sweep sweep.yaml --render {PLACED}",
        f"sweep sweep.yaml --render {PLACED} -o objects",
        f"sweep sweep.yaml --render --dry-run {PLACED} --kind job",
    ],
    "smoke": [f"smoke --dry-run {PLACED}", "smoke --dry-run --cluster slurm.yaml"],
    "submit": ["submit run.yaml --dry-run", "submit run.yaml --dry-run --detach", "submit run.yaml --detach"],
    "cache prune": ["cache prune --keep 1GB --dry-run"],
    "cluster plan": ["cluster plan -f infra.yaml"],
}
"""Lines by command, to each of which --json is added."""
ELSEWHERE = {
    "train": {"--dry-run"},  # tests/unit/forecast/test_forecast.py
    "logs": {"--follow"},  # an object a line; tests/unit/cli/test_logs.py
    "chat": {"--compare"},  # an object a line; tests/unit/engine/test_chat.py
}
QUIET = {
    *("--force", "--replace", "--claims", "--yes", "--public", "--online", "--base", "--header", "--images"),
    *("--all-tokens", "--bf16", "--lora", "--local-files-only", "--from-env"),
}
"""Flags that decide what is done, and not in which form it is told."""


def commands(command: Any, *path: str) -> Iterator[tuple[str, set[str]]]:
    """Every command with its flags that take no value."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *path, name)
    if not hasattr(command, "commands"):
        flags = (one for one in command.params if getattr(one, "is_flag", False))
        yield " ".join(path), {max(one.opts, key=len) for one in flags} - {"--help"}


def test_every_flag_beside_json_is_combined_with_it() -> None:
    with_json = {name: flags for name, flags in commands(get_command(app)) if "--json" in flags}
    assert len(with_json) > 20 and set(COMBINED) | set(ELSEWHERE) <= set(with_json)
    for name, flags in with_json.items():
        words = set(" ".join(COMBINED.get(name, ())).split()) | ELSEWHERE.get(name, set())
        assert flags - {"--json"} - QUIET <= words, name


@pytest.mark.parametrize("line", [line for lines in COMBINED.values() for line in lines])
def test_it_is_one_json_value(line: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = place.directory
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKZERO_CACHE", str(directory / "cache"))
    monkeypatch.setenv("PATH", f"{directory}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(VARIABLE, str(directory / "state.json"))
    if line.startswith("cluster"):
        installed(directory / "bin", "kind", "kubectl")
        Path("infra.yaml").write_text(KIND, encoding="utf-8")
    elif line.startswith("sweep"):
        written(directory, RUN)
    outputs = "storage: {outputs: {mount: /outputs, host_path: /outputs}}"
    Path("slurm.yaml").write_text(f"kind: slurm\ngpu: false\n{outputs}\n", encoding="utf-8")
    one = Path("cluster.yaml").read_text(encoding="utf-8").replace("num_nodes: 2", "num_nodes: 1")
    Path("one.yaml").write_text(one, encoding="utf-8")
    done = place(f"{line} --json")
    assert done.code == 0, done.err
    assert json.loads(done.out) is not None
