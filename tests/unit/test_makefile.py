"""What `make image` hands on to docker."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_image_gets_what_make_was_given() -> None:
    given = ["EXTRAS=train,deepspeed", "TORCH_INDEX=https://index.example/cpu", "BASE_IMAGE=base:1", "IMAGE=mine:2"]
    done = subprocess.run(["make", "-n", "image", *given], cwd=ROOT, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    built = {words[at + 1] for at, word in enumerate(words) if word == "--build-arg"}
    assert set(given[:3]) <= built
    assert words[words.index("-t") + 1] == "mine:2"
