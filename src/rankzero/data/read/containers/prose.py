"""Files of plain text: a line is a row. Knows lines; nothing of what is written in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from rankzero.data.rows.chunks import Chunk, NumberedLine, lines
from rankzero.data.rows.problems import RowProblem


def read_prose(chunks: Iterable[Chunk]) -> Iterator[NumberedLine]:
    """Every line that is not blank as {"text": line}."""
    for chunk in chunks:
        for index, (number, line) in enumerate(lines(chunk)):
            problem = chunk.problems.get(index)
            if problem is not None or not line or line.isspace():
                yield number, line, problem
                continue
            try:
                yield number, orjson.dumps({"text": line.decode()}), None
            except UnicodeDecodeError as error:
                what = f"byte {error.start + 1} (0x{line[error.start]:02x}) is not UTF-8"
                hint = "if the file is Latin-1 or Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > utf8.txt"
                yield number, line, RowProblem(number, "not UTF-8", what, hint)
