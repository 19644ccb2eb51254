"""What one worker does with a chunk of rows in a check. Knows rows and templates; nothing of files or reports.

Templates and tokenizers are loaded only where tokens are counted.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rankzero.data.check.duplicates import digest
from rankzero.data.check.statistics import Counts
from rankzero.data.rows.chunks import Chunk, lines
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.parse import parse
from rankzero.data.rows.problems import RowProblem

if TYPE_CHECKING:
    from rankzero.data.check.token_counts import Tokens

_SAMPLED_PER_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker is to bring back."""

    tokens: Tokens | None
    images: bool
    bad_lines: bool
    samples: bool


@dataclass(frozen=True, slots=True)
class Task:
    chunk: Chunk
    format: str
    columns: Mapping[str, str] | None
    image_root: str


@dataclass(slots=True)
class Checked:
    source: int
    length: int
    counts: Counts
    problems: list[RowProblem]
    digests: bytes
    lines: Any
    bad_lines: list[tuple[int, bytes]] = field(default_factory=list)
    images: list[tuple[str, int]] = field(default_factory=list)
    samples: list[Conversation] = field(default_factory=list)


def checker(wanted: Wanted) -> Callable[[Task], Checked]:
    """What a worker runs on every chunk."""
    count_tokens = None
    if wanted.tokens is not None:
        from rankzero.data.check.token_counts import TokenCounter

        count_tokens = TokenCounter(wanted.tokens).count

    def check_chunk(task: Task) -> Checked:
        parsed = parse(task.chunk, task.format, task.columns)
        good, problems, tokens = parsed.conversations, parsed.problems, None
        if count_tokens is not None:
            tokens, refused = count_tokens(good, task.image_root)
            if refused:
                problems = sorted([*problems, *refused], key=lambda problem: problem.line)
                lost = {problem.line for problem in refused}
                good = [example for example in good if example.line not in lost]
        bad = {problem.line for problem in problems}
        counts = Counts(
            rows=parsed.rows,
            readable=len({example.line for example in good}),
            bad=len(bad),
            blank=parsed.blank,
            formats=parsed.formats,
            dropped=parsed.dropped,
            rules=parsed.rules,
            ignored_keys=parsed.ignored_keys,
            detected=parsed.reasons,
            tokens=tokens,
        )
        counts.count_examples(good)
        counts.count_languages(task.chunk, bad)
        done = Checked(
            task.chunk.source,
            len(task.chunk.data),
            counts,
            problems,
            b"".join(map(digest, good)),
            array("Q", [example.line for example in good]),
        )
        if wanted.bad_lines and bad:
            done.bad_lines = [(number, line) for number, line in lines(task.chunk) if number in bad]
        if wanted.images:
            done.images = [(image, example.line) for example in good for image in example.images]
        if wanted.samples:
            chats = [example for example in good if example.templated]
            done.samples = chats[:: -(-len(chats) // _SAMPLED_PER_CHUNK) or 1]
        return done

    return check_chunk
