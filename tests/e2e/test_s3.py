"""Rows in an object store, over its real protocol: read whole or as a stream, through outages, with the same result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.read.network import RealNetwork
from rankzero.errors import StoppedError
from tests.support.runs import metrics, run_here, run_root, small_spec, stop_in
from tests.support.s3 import Store, s3_store
from tests.support.tiny import chat_rows, write_jsonl

STREAM: dict[str, Any] = {"data__streaming": True, "data__shuffle_buffer_size": 20, "data__max_length": 256}
SAME = ("step", "loss", "tokens", "supervised_tokens", "grad_norm", "epoch")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(RealNetwork, "pause", lambda _network, _seconds: None)  # the server is back by then
    with s3_store(monkeypatch) as served:
        yield served


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    rows = chat_rows(60)
    for number in range(5):
        write_jsonl(tmp_path / f"shards/{number}.jsonl", rows[number * 12 : number * 12 + 12])
    return tmp_path / "shards"


def curve(spec: Any) -> list[tuple[Any, ...]]:
    return [tuple(step[name] for name in SAME) for step in metrics(spec)]


def test_a_run_on_rows_in_s3_is_that_on_the_same_files_here(
    store: Store, shards: Path, tmp_path: Path, tiny: Path
) -> None:
    options = {"eval_rows": 0, "train__max_steps": 3}
    here = small_spec(tmp_path, tiny, name="here", data__train=str(shards), **options)
    there = small_spec(tmp_path, tiny, name="there", data__train=store.put_folder("shards", shards), **options)
    run_here(here)
    store.refuse, store.cut = 2, 1  # fewer than one file is asked for again
    run_here(there)
    assert store.failed == 3, "it was asked again until it answered"
    assert curve(there) == curve(here)
    store.requests.clear()
    run_here(there.model_copy(update={"name": "again"}))
    assert not [asked for asked in store.requests if asked.startswith("GET") and asked.endswith(".jsonl")]


def test_a_stream_from_s3_is_that_of_the_same_files_through_outages_and_a_stop(
    store: Store, shards: Path, tmp_path: Path, tiny: Path
) -> None:
    options = {"eval_rows": 0, "train__max_steps": 9, **STREAM}
    here = small_spec(tmp_path, tiny, name="here", data__train=str(shards), **options)
    there = small_spec(tmp_path, tiny, name="there", data__train=store.put_folder("shards", shards), **options)
    run_here(here)
    store.refuse, store.cut = 2, 1  # fewer than one file is asked for again
    with pytest.raises(StoppedError):
        run_here(there, hooks=stop_in(5))
    assert store.failed == 3
    store.refuse = 2
    run_here(there)
    assert curve(there) == curve(here)
    assert (run_root(there) / "final").is_dir()
    assert not list((Path(os.environ["RANKZERO_CACHE"]) / "streams").iterdir()), "windows are gone with the run"
