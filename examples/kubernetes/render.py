"""Render every example into its manifests/: `python examples/kubernetes/render.py`. A test keeps them current."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.launch.render.content import file_name, to_document
from rankzero.spec.cluster_load import load_cluster
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve

HERE = Path(__file__).parent
PROFILES = {
    "lora-jsonl": "shared-fs-4x1",
    "llama-pytorchjob": "pytorchjob-2x1",
    "qwen3-8b-alpaca-2gpu": "rook-ceph-1x2",
    "sst2-2x1": "nebius-2x1",
    "qwen3-30b-lora-2x8": "infiniband-2x8",
}


def manifests(example: str) -> dict[str, str]:
    """File names and texts of one example; the same as `rankzero render RUN.yaml --cluster PROFILE -o manifests`."""
    run = resolve(load_run_spec(HERE / example / "run.yaml", env={}).spec)
    objects = render(make_plan(run, load_cluster(PROFILES[example], env={}).spec))
    return {file_name(index, manifest): to_document(manifest) for index, manifest in enumerate(objects, start=1)}


def main() -> None:
    """Rewrite all of them."""
    for example in PROFILES:
        folder = HERE / example / "manifests"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, text in manifests(example).items():
            (folder / name).write_text(text, encoding="utf-8")
            sys.stdout.write(os.path.relpath(folder / name) + "\n")


if __name__ == "__main__":
    main()
