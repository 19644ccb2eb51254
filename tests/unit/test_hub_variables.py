"""Variables of the Hub under other names reach its client, and are told in one line each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankzero.hub_variables import adopt_hub_variables
from tests.support.servers import RefusingHub, serving


@pytest.mark.parametrize(
    ("env", "more"),
    [
        ({"HUGGINGFACE_HUB_TOKEN": "t"}, {"HF_TOKEN": "t"}),
        ({"HUGGINGFACE_HUB_TOKEN": "t", "HF_TOKEN": "mine"}, {}),
        ({"HUGGINGFACE_HUB_TOKEN": "t", "HUGGING_FACE_HUB_TOKEN": "mine"}, {}),
        ({"HUGGINGFACE_HUB_TOKEN": ""}, {}),
        ({"TRANSFORMERS_CACHE": "/c", "HF_HOME": "/h"}, {"HF_HUB_CACHE": "/c"}),
        ({"TRANSFORMERS_CACHE": "/c", "HF_HUB_CACHE": "/mine"}, {}),
        ({}, {}),
    ],
)
def test_what_is_taken_as_what(env: dict[str, str], more: dict[str, str]) -> None:
    after = dict(env)
    said = adopt_hub_variables(after)
    assert after == env | more
    assert [line.split(" is taken as ")[1] for line in said] == list(more), "a line for each, and no value in it"
    assert adopt_hub_variables(after) == []


class Hub(RefusingHub):
    """Has nothing."""


def test_the_seed_s_token_is_sent(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if name not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
    words = [sys.executable, "-m", "rankzero", "data", "check", "rows.jsonl", "--model", "org/model"]
    with serving(Hub) as endpoint:
        env |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HUGGINGFACE_HUB_TOKEN": "hf_canary"}
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 77, done.stderr
    assert "Bearer hf_canary" in Hub.tokens
    assert done.stderr.startswith("HUGGINGFACE_HUB_TOKEN is taken as HF_TOKEN\nerror: ")
    assert "hf_canary" not in done.stderr
