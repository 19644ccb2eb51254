"""Files of rows, converted and read back."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rankzero.data.convert.convert import Conversion, convert
from rankzero.data.read.sources import read_chunks
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.parse import parse
from rankzero.spec.run_spec import SourceSpec


def write_rows(path: Path, rows: Sequence[Any]) -> SourceSpec:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return SourceSpec(path=str(path))


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().removesuffix(b"\n").split(b"\n")]


def conversations(path: Path) -> list[Conversation]:
    """What a JSONL file says, without where it says it."""
    found = []
    for chunk in read_chunks(str(path)):
        parsed = parse(chunk, "auto")
        assert not parsed.problems, parsed.problems
        found += parsed.conversations
    return [meaning(conversation) for conversation in found]


def meaning(conversation: Conversation) -> Conversation:
    """A conversation without its line. That a question is not trained goes without saying, said or not."""
    messages = tuple(m if m.role == "assistant" else replace(m, train=None) for m in conversation.messages)
    return replace(conversation, line=0, messages=messages, completion_only=False)


def run(rows: Sequence[Any], to: str, folder: Path, name: str = "out.jsonl", **options: Any) -> tuple[Conversion, Path]:
    result = convert([write_rows(folder / "in.jsonl", rows)], folder / name, to, **options)
    return result, folder / name


def table_rows(path: Path) -> list[Any]:
    if path.suffix == ".jsonl":
        return read_rows(path)
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="," if path.suffix == ".csv" else "\t"))
