"""A program that stands in for NVIDIA's: four GPUs, three of which are alike and only the first of which is free."""

from __future__ import annotations

from pathlib import Path

_PROGRAM = """#!/bin/sh
case "$*" in
-L) for i in 0 1 2 3; do echo "GPU $i: NVIDIA H100 (UUID: GPU-$i-of-4)"; done;;
*uuid*)
    echo "NVIDIA H100, 81559, 80000, 9.0, GPU-0-of-4"
    for i in 1 2; do echo "NVIDIA H100, 81559, 1000, 9.0, GPU-$i-of-4"; done
    echo "NVIDIA T4, 15360, 1000, 7.5, GPU-3-of-4";;
*) for i in 0 1 2 3; do echo 580.95; done;;
esac
"""


def four_gpus(directory: Path) -> Path:
    """The directory of the program, for PATH."""
    program = directory / "nvidia-smi"
    program.write_text(_PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    return directory
