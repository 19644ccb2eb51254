"""What a stream is: its shards, how its rows become tokens and in which order. Reads the first rows of each source.

Goes to the process that reads ahead, so it pickles.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from rankzero.data.cache.dataset import RowLabels
from rankzero.data.cache.encode import Task, chunk_encoder
from rankzero.data.cache.labels import RowsWithLabels, label_codes
from rankzero.data.cache.stream.order import OPEN_SHARDS
from rankzero.data.read.network import Network
from rankzero.data.read.remote import always
from rankzero.data.read.shards import Shard, list_shards
from rankzero.data.rows.chunks import Chunk, NumberedLine, pack
from rankzero.data.rows.formats import check_columns
from rankzero.data.rows.parse import seen_keys
from rankzero.data.rows.pieces import pieces_in
from rankzero.data.rows.problems import ProblemLog
from rankzero.data.tokens.chat import TokenRules
from rankzero.data.tokens.tokenizer import Tokenizer, TokenizerParts, take_apart
from rankzero.errors import ConfigError, DataError, Problem
from rankzero.spec.run_spec import SourceSpec
from rankzero.wording import counted, named_keys

FIRST_ROWS = 64
"""Of each source, looked at before anything else is done."""


@dataclass(frozen=True)
class Stream:
    """Rows to train on that are never all here."""

    sources: tuple[SourceSpec, ...]
    shards: tuple[Shard, ...]
    parts: TokenizerParts
    rules: TokenRules
    seed: int
    window_rows: int
    """How many rows are shuffled among each other."""
    cache_bytes: int
    """How much disk tokenised rows take at most, on each node."""
    noted: frozenset[str] = frozenset()
    """What was done to the first rows, by its name."""
    unread: tuple[str, ...] = ()
    """Keys of the first rows that nothing reads, each with how many have it."""
    unembedded: Mapping[int, str] = field(default_factory=dict)
    """Tokens, by number, that the model cannot look up. Each window is asked for them as it is opened."""
    first: RowsWithLabels = RowsWithLabels(RowLabels.of(()), ())
    """Those that were looked at."""
    classes: tuple[str, ...] | None = None
    """What labels of rows may be. Each window is asked for others as it is opened."""

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the listing does, or what makes tokens and their order of it; what is in the files is not read,
        nor is it of importance where they lie."""
        sources = [
            [source.format, sorted(source.columns.items()), source.header, source.weight] for source in self.sources
        ]
        shards = [shard.identity for shard in self.shards]
        decides = [OPEN_SHARDS, sources, shards, self.parts.fingerprint, self.rules.as_json(), self.seed]
        return f"listing:{hashlib.sha256(json.dumps(decides).encode()).hexdigest()}"

    @property
    def weights(self) -> list[float]:
        """How often an epoch has the rows of each shard."""
        return [self.sources[shard.source].weight for shard in self.shards]

    @property
    def nbytes(self) -> int | None:
        """Of all files as they lie; None where a place does not say."""
        sizes = [shard.size for shard in self.shards]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def in_words(self) -> str:
        """`24 files of 20 GB, streamed: their first rows are fine`."""
        size = "" if self.nbytes is None else f" of {_in_words(self.nbytes)}"
        fine = f"{counted(len(self.shards), 'file')}{size}, streamed; the first rows of each source are fine"
        return f"{fine}; keys of them that nothing reads: {', '.join(self.unread)}" if self.unread else fine

    def of_classes(self, classes: tuple[str, ...]) -> Stream:
        """The same where a label has to be one of these. Raises DataError with those of the first rows that are not."""
        label_codes(self.first, classes)
        return replace(self, classes=classes)

    def rows(
        self, shard: int, skip: int, network: Network, is_due: Callable[[], bool] = always
    ) -> Iterator[NumberedLine]:
        """A shard's rows behind the first `skip`. Raises as `Shard.rows` does."""
        found = self.shards[shard]
        return found.rows(self.sources[found.source], network, skip, is_due)

    def task(self, chunk: Chunk, shard: int, *, encode: bool) -> Task:
        """A chunk of a shard as a worker gets it."""
        source = self.sources[self.shards[shard].source]
        return Task(chunk, source.format, encode, source.columns or None, source.image_root or ".")


def _in_words(nbytes: int) -> str:
    unit, size = next(((u, s) for u, s in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)) if nbytes >= s), ("kB", 1e3))
    return f"{nbytes / size:.3g} {unit}"


def make_stream(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    rules: TokenRules,
    *,
    seed: int,
    window_rows: int,
    cache_bytes: int,
    network: Network,
    offline: bool = False,
) -> Stream:
    """List the shards and look at the first rows of each source.

    Raises DataError with every one of these rows that is bad, ConfigError where a column map or the tokenizer does not
    serve, ServiceError or AccessError where a place is not reached.
    """
    shards = list_shards(sources, network=network, offline=offline)
    parts = take_apart(tokenizer, rules.trains)
    stream = Stream(tuple(sources), shards, parts, rules, seed, window_rows, cache_bytes)
    first, notes, ignored_keys = _first_rows(stream, network)
    return replace(stream, noted=frozenset(notes), unread=tuple(named_keys(ignored_keys)), first=first)


def _first_rows(stream: Stream, network: Network) -> tuple[RowsWithLabels, Counter[str], Counter[str]]:
    encode = chunk_encoder(stream.parts, stream.rules)
    log, notes, ignored_keys = ProblemLog(), Counter[str](), Counter[str]()
    columns: list[Problem] = []
    labels: list[str | None] = []
    places: list[str] = []
    for number, source in enumerate(stream.sources):
        first = next(index for index, shard in enumerate(stream.shards) if shard.source == number)
        chunks = list(pack(islice(stream.rows(first, 0, network), FIRST_ROWS), 0))
        if not chunks:
            continue
        url = stream.shards[first].url
        if source.columns:
            found = check_columns(source.format, source.columns, seen_keys(chunks[0]) or None)
            columns += [Problem(p.what, f"{source.path} {p.where}", p.hint) for p in found]
            if found:
                continue
        elif pieces_in(chunks[0], source.format) is not None:
            what = "its rows lie in pieces over many lines, and are known only once all of it is read"
            hint = "write whole rows: rankzero data convert … --as messages; or leave data.streaming out"
            raise DataError(what, where=url, hint=hint)
        for chunk in chunks:
            result = encode(stream.task(chunk, first, encode=True))
            log.add(url, result.problems)
            notes.update(result.notes)
            ignored_keys.update(result.ignored_keys)
            if result.block is not None:
                labels += result.block.labels
                places += [f"{url}:{line}" for line in result.block.lines]
    if columns:
        raise ConfigError(columns)
    if log.total:
        raise log.error()
    return RowsWithLabels(RowLabels.of(labels), places), notes, ignored_keys
