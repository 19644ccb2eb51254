"""20 GB of web text, made as it is asked for, through a cache of 1 GB: every row once, within the room, over two stops.

STREAM_GB and STREAM_CACHE_GB set other sizes. Prints what was measured.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from rankzero.data.cache.stream.plan import make_stream
from rankzero.data.cache.stream.rows import Feeder, RowStream, StreamPosition, new_directory
from rankzero.data.cache.tokenize import TokenRules
from rankzero.data.pool import worker_count
from rankzero.data.read.network import RealNetwork
from rankzero.machine import usable_cores
from rankzero.spec.run_spec import SourceSpec
from tests.support.servers import serving
from tests.support.tiny import tiny_tokenizer
from tests.support.web_text import ROW_BYTES, Shards

pytestmark = [pytest.mark.streaming_large, pytest.mark.timeout(24 * 3600)]

GB = float(os.environ.get("STREAM_GB", "20"))
CACHE_GB = float(os.environ.get("STREAM_CACHE_GB", "1"))
SHARDS = 20
STEP_ROWS = 512
WINDOW_ROWS = 10_000
ROWS = int(GB * 1e9 / SHARDS / ROW_BYTES)
"""Of each shard."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Shards, "rows", ROWS)
    with serving(Shards) as url:
        yield url


def on_disk(folder: Path) -> int:
    """Bytes that files below a folder take; they come and go meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def memory_of_children() -> int:
    """Resident bytes of the feeder and its workers, shared pages counted once."""
    total = 0
    for process in psutil.Process().children(recursive=True):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def test_every_row_comes_once_within_the_room_that_there_is(site: str, own_cache: Path) -> None:
    sources = [SourceSpec(path=f"{site}/shard-{number:02}.jsonl") for number in range(SHARDS)]
    stream = make_stream(
        sources,
        tiny_tokenizer(),
        TokenRules(max_length=1024),
        seed=7,
        window_rows=WINDOW_ROWS,
        cache_bytes=int(CACHE_GB * 1e9),
        network=RealNetwork(),
    )
    seen = np.zeros((SHARDS, ROWS), dtype=np.uint8)
    steps = SHARDS * ROWS // STEP_ROWS
    stops = {steps // 3, 2 * steps // 3, steps}
    position, done, tokens = StreamPosition(), 0, 0
    most_disk = most_memory = 0
    begun = time.monotonic()
    while done < steps:
        position = StreamPosition.from_json(json.loads(json.dumps(position.as_json()))).under(stream)
        directory = new_directory(own_cache)
        workers = worker_count(int(GB * 1e9), max(1, usable_cores() - 1))
        rows = RowStream(stream, position, directory, Feeder(stream, position.cursor, directory, workers=workers))
        try:
            while True:
                while not rows.ready(STEP_ROWS):
                    threading.Event().wait(0.01)
                taken = rows.take(STEP_ROWS)
                position, done = taken.position, done + 1
                for i in range(STEP_ROWS):
                    url, _, line = taken.rows.where(i).rpartition(":")
                    seen[int(url[-8:-6]), int(line) - 1] += 1
                tokens += int(taken.rows.lengths.sum())
                if done % 10 == 0:
                    most_disk, most_memory = max(most_disk, on_disk(own_cache)), max(most_memory, memory_of_children())
                if done in stops:
                    break
        finally:
            rows.close()
        assert not on_disk(own_cache), "a stop leaves nothing"
    seconds = time.monotonic() - begun
    assert seen.max() == 1 and seen.sum() == steps * STEP_ROWS
    assert 0 < most_disk <= CACHE_GB * 1e9
    assert most_memory < 1.5e9
    again = Shards.served - GB * 1e9
    print(
        f"\n{GB:g} GB in {SHARDS} files, {steps * STEP_ROWS:,} rows, {tokens:,} tokens in {seconds:.0f} s "
        f"({GB * 1e3 / seconds:.1f} MB/s, {workers} workers); at most {most_disk / 1e6:.0f} MB on disk of "
        f"{CACHE_GB * 1e3:.0f}, {most_memory / 1e6:.0f} MB in memory; {again / 1e9:.2f} GB served again after two stops"
    )
