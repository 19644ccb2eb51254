"""`rankzero data prepare`: ahead of time, in parts, and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import chat_rows, write_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


def spec(folder: Path, model: Path, rows: int) -> Path:
    path = folder / "run.yaml"
    data = write_jsonl(folder / "train.jsonl", chat_rows(rows))
    path.write_text(
        f"model: {{name: '{model}', dtype: float32}}\ndata: {{train: '{data}'}}\nlora: {{}}\n"
        f"train: {{max_steps: 2}}\noutput_dir: '{folder}/runs'\n"
    )
    return path


def test_training_finds_what_was_prepared_in_parts(tmp_path: Path, tiny: Path, cli: Any, own_cache: Path) -> None:
    run = spec(tmp_path, tiny, 50)
    first = cli(f"data prepare {run} --shard 1/2 --json")
    assert first.code == 0, first.err
    second = cli(f"data prepare {run} --shard 0/2")
    assert second.code == 0, second.err
    assert "50 of 50 rows" in second.out
    made = sorted(path.name for path in (own_cache / "tokenized").iterdir() if path.is_dir())
    assert len(made) == 1
    assert cli(f"train {run} --nproc-per-node 1").code == 0
    assert sorted(path.name for path in (own_cache / "tokenized").iterdir() if path.is_dir()) == made


def test_keys_that_nothing_reads_are_named(tmp_path: Path, tiny: Path, cli: Any, own_cache: Path) -> None:
    run = spec(tmp_path, tiny, 5)
    write_jsonl(tmp_path / "train.jsonl", [{**row, "score": 1} for row in chat_rows(5)])
    done = cli(f"data prepare {run}")
    assert done.code == 0 and "keys of rows that nothing reads: score 5" in done.out, done.err
    done = cli(f"data prepare {run} data.streaming=true")
    assert done.code == 0 and "keys of them that nothing reads: score 5" in done.out, done.err


def test_a_stream_is_listed_and_its_evaluation_prepared(tmp_path: Path, tiny: Path, cli: Any, own_cache: Path) -> None:
    run = spec(tmp_path, tiny, 70)
    evaluated = write_jsonl(tmp_path / "eval.jsonl", chat_rows(5))
    more = f"data.streaming=true data.eval={evaluated} eval.every=1"
    done = cli(f"data prepare {run} {more}")
    assert done.code == 0, done.err
    assert "train: 1 file of" in done.out and "streamed; the first rows" in done.out and "eval: 5 of 5 rows" in done.out
    facts = json.loads(cli(f"data prepare {run} {more} --json").out)
    assert facts["train"]["files"] == 1 and facts["train"]["bytes"] == (tmp_path / "train.jsonl").stat().st_size
    refused = cli(f"data check {run} {more}")
    assert refused.code == 2 and "data.streaming: rows of a stream are looked at as they are trained" in refused.err
    refused = cli(f"data prepare {run} {more} train.max_steps=null data.deduplicate=true")
    assert refused.code == 78 and "train.max_steps" in refused.err and "data.deduplicate" in refused.err


@pytest.mark.parametrize("shard", ["2/2", "x", "1", "-1/2", "1/0"])
def test_parts_that_are_none(shard: str, tmp_path: Path, tiny: Path, cli: Any) -> None:
    done = cli(f"data prepare {spec(tmp_path, tiny, 3)} --shard={shard}")
    assert done.code == 2
    assert "no part of a whole" in done.err


def test_killed_in_the_middle_nothing_is_taken_for_whole(tmp_path: Path, tiny: Path, cli: Any, own_cache: Path) -> None:
    run = spec(tmp_path, tiny, 40_000)
    command = [sys.executable, "-m", "rankzero", "data", "prepare", str(run), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
    tokenized = own_cache / "tokenized"
    deadline = time.monotonic() + 300
    while not any(path.stat().st_size for path in tokenized.rglob(".tmp-*.arrow-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert [path.name for path in tokenized.iterdir() if path.is_dir() and path.suffix != ".partial"] == []
    again = cli(f"data prepare {run} --json")
    assert again.code == 0, again.err
    facts = json.loads(again.out)["train"]
    assert facts["rows"] == facts["rows_in"] == 40_000
    assert [path.name for path in tokenized.iterdir() if path.is_dir()] == [Path(facts["directory"]).name]
