"""100,000 damaged lines: each is counted once, none ends the program, none takes long, memory stays where it was."""

from __future__ import annotations

import json
import random
import statistics
import time
import tracemalloc
from typing import get_args

import pytest

from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import FORMATS, Noted, convert
from rankzero.data.rows.parse import parse
from rankzero.spec.tasks import Trains
from tests.unit.data.rows.formats.support import ROWS

LINES = 100_000
PER_CHUNK = 5_000

SEEDS = [json.dumps(row, ensure_ascii=bool(i % 2)).encode() for rows in ROWS.values() for i, row in enumerate(rows)]
PIECES = [
    *(
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xe9",
        b'"',
        b"\\",
        b"\\ud83d",
        b"\\u0000",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
    ),
    *(b"null", b"true", b"-1", b"1e999", b"9" * 5000, b"NaN", b'""', b"{}", b"[]", b" ", b"\r", b"\t", b"<image>"),
    *(
        b"[" * 900 + b"]" * 900,
        b'{"a":' * 1010 + b"1" + b"}" * 1010,
        b'"role":',
        b'"images":["x"],',
        b'"tools":"[{}]",',
    ),
    *(f'"{key}":'.encode() for format_ in FORMATS.values() for key in sorted(format_.reads)),
]


def damaged(source: random.Random) -> bytes:
    """A good row with some things changed: bytes, pieces of JSON, the order or number of its parts."""
    line = bytearray(source.choice(SEEDS))
    for _ in range(source.choice((0, 1, 1, 2, 4))):
        at, to = sorted(source.randrange(len(line) + 1) for _ in range(2))
        match source.randrange(7):
            case 0:
                line[at:at] = source.choice(PIECES)
            case 1:
                del line[at : min(to, at + 9)]
            case 2:
                line[at : at + 1] = bytes([source.randrange(256)])
            case 3:
                line[at:at] = line[at:to]
            case 4:
                del line[at:]
            case 5:  # a whole value becomes another
                quote, end = line.find(b'": ', at), line.find(b",", at)
                if 0 <= quote < end:
                    line[quote + 3 : end] = source.choice(
                        (b"null", b"3", b"[]", b"{}", b'""', b"true", b'["x"]', b"-1")
                    )
            case _:
                other = source.choice(SEEDS)
                line = bytearray(line[:-1] + b", " + other[1:])
    return bytes(line).replace(b"\n", b" ")


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_stands_under_a_key_is_read_or_told(name: str) -> None:
    """Also what nobody writes: empty, of another kind, or as JSON in a string."""
    odd = (None, "", "[]", "x", [], {}, [[]], [None], [{}], ["x"], 0, True, {"role": "assistant"})
    for row in ROWS[name]:
        for key in sorted(FORMATS[name].reads | row.keys()):
            for value in odd:
                for trains in get_args(Trains):
                    found = convert({**row, key: value}, 7, name, trains)[1]
                    problems = found if isinstance(found, list) else []
                    assert isinstance(found, Conversation | tuple | Noted) or problems, (key, value)
                    assert all(problem.reason and problem.what for problem in problems), (key, value)


def test_every_line_is_counted_once() -> None:
    source = random.Random(20)
    formats = ("auto", "auto", *FORMATS)
    columns = (None, None, {"query": "text", "response": "answer"}, {"messages": "conversations", "text": "sentence"})
    took: list[float] = []
    good, seen, before = 0, 0, 0
    for number in range(LINES // PER_CHUNK):
        lines = [damaged(source) for _ in range(PER_CHUNK)]
        began = time.process_time()
        parsed = parse(Chunk(0, 1, b"\n".join(lines)), source.choice(formats), source.choice(columns))
        took.append(time.process_time() - began)
        bad = {problem.line for problem in parsed.problems}
        kept = {conversation.line for conversation in parsed.conversations}
        assert not bad & kept and (bad | kept) <= set(range(1, PER_CHUNK + 1))
        assert len(kept) == parsed.formats.total()
        assert parsed.rows == len(bad) + len(kept) + parsed.dropped.total()
        assert parsed.rows + parsed.blank == PER_CHUNK
        assert all(problem.reason and problem.what and len(problem.what) < 2000 for problem in parsed.problems)
        assert all(len(c.images) == sum(len(m.image_offsets) for m in c.messages) for c in parsed.conversations)
        good, seen = good + len(kept), seen + parsed.rows + parsed.blank
        if number == 1:
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
        elif number == 3:
            del parsed, lines
            after = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert after - before < 4 << 20
    assert seen == LINES
    assert good > LINES // 30, "the damage leaves too little to say anything"
    assert max(took) < 200 * statistics.median(took)
