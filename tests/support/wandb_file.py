"""What W&B keeps of a run offline: records in a file that it lays out in blocks, as LevelDB's log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER, _RECORD_HEADER, _BLOCK = 7, 7, 32768


def records(path: Path) -> Iterator[Any]:
    """All records of a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), _HEADER, b""
    while at + _RECORD_HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _RECORD_HEADER:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + _RECORD_HEADER : at + _RECORD_HEADER + length]
        at += _RECORD_HEADER + length
        if kind in (1, 4):  # all of it, or the last of several pieces
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, step by step."""
    return [_items(record.history.item) for record in records(path) if record.WhichOneof("record_type") == "history"]


def summary(path: Path) -> dict[str, Any]:
    """What was last said of each name in the run's summary."""
    found: dict[str, Any] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            found |= _items(record.summary.update)
    return found


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
