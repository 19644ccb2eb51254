"""What one tokenising is about: the files of all sources, in order, and all that decides its result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankzero.data.cache.selection import chosen
from rankzero.data.read.hashing import content_hash, file_state
from rankzero.data.read.locate import LocatedSource
from rankzero.data.read.sources import count_rows, read_chunks, rows_bytes
from rankzero.data.rows.chunks import Chunk, count_in, select
from rankzero.data.rows.formats import check_columns
from rankzero.data.rows.parse import seen_keys
from rankzero.data.rows.pieces import join_pieces, pieces_in
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat import TokenRules
from rankzero.data.tokens.tokenizer import TokenizerParts
from rankzero.errors import ConfigError, DataError, Problem
from rankzero.spec.run_spec import SourceSpec

CODE_VERSION = 20
"""Part of what the cache calls a result: raise it when the same rows and rules come to give other tokens, groups or
another layout. A run does not depend on it: rows are known by what they are (`TokenizedDataset.fingerprint`). It does
depend on groups where it holds a fraction out: other ones part its rows anew, and it is refused as of other data."""

OnProblems = Callable[[str, list[RowProblem]], None]


class Job:
    """Files, rules and seed; remembers the files' state, to see whether they change meanwhile."""

    def __init__(self, located: Sequence[LocatedSource], parts: TokenizerParts, rules: TokenRules, seed: int) -> None:
        self.located, self.parts, self.rules, self._seed = located, parts, rules, seed
        self.paths = [path for source in located for path in source.files]
        self.source_of = [index for index, source in enumerate(located) for _ in source.files]
        self._check_columns()
        self._states = [file_state(path) for path in self.paths]
        self.size = sum(os.path.getsize(path) for path in self.paths)
        """Of the files, which is what progress counts."""
        self.work = sum(rows_bytes(path) for path in self.paths)
        """About as many bytes of rows."""

    def _check_columns(self) -> None:
        """Raise ConfigError where a column map names what the format or the data does not have."""
        problems = []
        for source in self.located:
            spec = source.source
            if spec.columns:
                first = next((chunk for path in source.files for chunk in read_chunks(path, header=spec.header)), None)
                seen = None if first is None else seen_keys(first)
                found = check_columns(spec.format, spec.columns, seen or None)
                problems += [Problem(p.what, f"{spec.path} {p.where}", p.hint) for p in found]
        if problems:
            raise ConfigError(problems)

    def spec_of(self, file: int) -> SourceSpec:
        """The source that a file belongs to, by the file's index in `paths`."""
        return self.located[self.source_of[file]].source

    def image_root(self, file: int) -> str:
        """The directory that image paths in a file are relative to, by the file's index in `paths`."""
        return os.path.abspath(self.spec_of(file).image_root or os.path.dirname(self.paths[file]))

    def directory(self, cache_dir: Path, tokenizer: str | None = None) -> Path:
        """Where the result lies: by a hash of all that decides it, but for what images hold, and since rows say where
        their images are, of their roots. `tokenizer`: the fingerprint of one not loaded."""
        files = [self._identity(index, content_hash(path, cache_dir)) for index, path in enumerate(self.paths)]
        roots = [] if self.rules.vision is None else [self.image_root(index) for index in range(len(self.paths))]
        decides = [CODE_VERSION, files, tokenizer or self.parts.fingerprint, self.rules.as_json(), roots]
        return cache_dir / "tokenized" / hashlib.sha256(json.dumps(decides).encode()).hexdigest()

    def _identity(self, file: int, content: str) -> list[object]:
        """Of a sample also the seed and which source it is: two samples of one file are not the same rows."""
        spec, located = self.spec_of(file), self.located[self.source_of[file]]
        drawn = [] if located.sample is None else [located.sample, self._seed, self.source_of[file]]
        part = [] if located.rows is None else [str(located.rows)]
        return [content, spec.format, sorted(spec.columns.items()), spec.header, *drawn, *part]

    def require_unchanged(self) -> None:
        """Raise DataError where a file is no longer what was hashed."""
        for path, state in zip(self.paths, self._states, strict=True):
            if file_state(path) != state:
                hint = "give the same command again once nothing writes to it"
                raise DataError("the file changed while it was read", where=path, hint=hint)

    def chunks(self, on_problems: OnProblems) -> Iterator[Chunk]:
        """The rows that take part, file by file; `source` is the index in `paths`.

        Raises DataError where a sample is larger than its source.
        """
        keep = self._samples()
        for index, path in enumerate(self.paths):
            chunks = self._rows(index, path, on_problems)
            wanted = keep[index]
            yield from chunks if wanted is None else select(chunks, wanted)

    def _rows(self, index: int, path: str, on_problems: OnProblems) -> Iterable[Chunk]:
        """A file's chunks; rows that are spread over its lines are joined first."""
        spec = self.spec_of(index)
        chunks = read_chunks(path, index, header=spec.header)
        if spec.columns:
            return chunks
        first = next(chunks, None)
        if first is None:
            return ()
        whole = chain([first], chunks)
        pieces = pieces_in(first, spec.format)
        if pieces is None:
            return whole
        joined = join_pieces(whole, pieces)
        on_problems(path, joined.problems)
        return joined.chunks

    def _samples(self) -> list[npt.NDArray[np.int64] | None]:
        """Of each file the ordinals that are wanted; None: all. Samples are of all files of a source together."""
        keep: list[npt.NDArray[np.int64] | None] = []
        problems: list[Problem] = []
        for index, source in enumerate(self.located):
            if source.is_whole:
                keep += [None] * len(source.files)
                continue
            first = len(keep)
            counts = [self._count(first + offset, path) for offset, path in enumerate(source.files)]
            try:
                rows = chosen(sum(counts), source.rows, source.sample, seed=self._seed, source=index)
            except ValueError:
                problems.append(source.too_few(sum(counts)))
                rows = np.empty(0, dtype=np.int64)
            ends = np.cumsum([0, *counts])
            keep += [
                rows[(rows >= start) & (rows < end)] - start for start, end in zip(ends[:-1], ends[1:], strict=True)
            ]
        if problems:
            raise DataError(problems)
        return keep

    def _count(self, index: int, path: str) -> int:
        chunks = self._rows(index, path, lambda _path, _problems: None)
        if isinstance(chunks, (list, tuple)):
            return sum(count_in(chunk) for chunk in chunks)
        return count_rows(path, header=self.spec_of(index).header)
