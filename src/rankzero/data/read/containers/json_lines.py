"""JSON lines: blocks cut at newlines. Knows nothing of JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rankzero.data.read.containers.stream import KEPT_OF_DAMAGE, MAX_ROW_BYTES, DamagedError
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.problems import RowProblem


def read_lines(blocks: Iterator[bytes], source: int) -> Iterator[Chunk]:
    """A chunk a block, cut after its last newline; a longer line makes a longer chunk, up to a limit."""
    line = 1
    pending: list[bytes] = []
    held = 0
    problem = None
    try:
        for block in blocks:
            cut = block.rfind(b"\n") + 1
            if not cut:
                pending.append(block)  # the middle of a long line: joined once, when its end is seen
                held += len(block)
                if held > MAX_ROW_BYTES:
                    what = f"the line has no end within {MAX_ROW_BYTES >> 20} MiB; nothing after it was read"
                    problem = RowProblem(line, "row without an end", what, "is this a file of text, a row a line?")
                    pending = [b"".join(pending)[:KEPT_OF_DAMAGE]]
                    break
                continue
            data = b"".join([*pending, block[:cut]])
            yield Chunk(source, line, data)
            line += data.count(b"\n")
            pending, held = [block[cut:]], len(block) - cut
    except DamagedError as damage:
        problem = RowProblem(line, damage.reason, damage.what, damage.hint)
    rest = b"".join(pending)
    if problem is not None:
        yield Chunk(source, line, rest, problems={0: problem})
    elif rest:
        yield Chunk(source, line, rest)
