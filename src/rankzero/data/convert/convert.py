"""Data files of any format as one file of another. Knows counts and files; what rows mean is the formats'.

Every row is accounted for: what came in is what went out, was set aside, was left out by a named rule, or became part
of another row. A sum that does not come out is an internal error, and nothing is written.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankzero.data.cache.selection import chosen
from rankzero.data.convert.image_paths import ImagePaths, OtherPathsError
from rankzero.data.convert.writers import SUFFIXES, Container, RowWriter, refused, unplaced, writing
from rankzero.data.progress import Progress, no_progress
from rankzero.data.read.download import origin
from rankzero.data.read.file_names import data_kind
from rankzero.data.read.locate import LocatedSource
from rankzero.data.read.sources import NO_ROWS, count_rows, read_chunks, require_readable
from rankzero.data.rows.chunks import DAMAGE, Chunk, apart, lines, rows_of, select
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import FORMATS, WRITERS, check_columns
from rankzero.data.rows.formats.fields import NAMES
from rankzero.data.rows.formats.format import CannotSayError, NothingToLearnError, Writer, Written
from rankzero.data.rows.formats.writing import NAMES_AS_TEXT, NAMES_LEFT_OUT
from rankzero.data.rows.parse import parse, seen_keys
from rankzero.data.rows.pieces import join_pieces, pieces_in
from rankzero.data.rows.problems import ProblemLog, RowProblem
from rankzero.errors import DataError, Problem, RankzeroError, UsageError
from rankzero.run_dir.atomic import storage_errors, takes_as_it_comes, whole_file

if TYPE_CHECKING:
    from rankzero.spec.run_spec import SourceSpec
    from rankzero.spec.tasks import Trains

ReadSource = Callable[["SourceSpec", int], Iterator[Chunk]]


@dataclass(slots=True)
class Conversion:
    """What became of the rows. `rows_in` = `converted` + `quarantined` + `merged` + all `dropped`, and `rows_out` =
    `converted` + `added`."""

    rows_in: int = 0
    rows_out: int = 0
    converted: int = 0
    added: int = 0
    """Rows beyond the first that one row became, as a tree with several conversations."""
    merged: int = 0
    """Rows that became part of another: messages of one tree."""
    quarantined: int = 0
    blank: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    image_root: str | None = None
    """To be named beside the result, where that is not the folder that the result is in."""
    ignored_keys: Counter[str] = field(default_factory=Counter)
    log: ProblemLog = field(default_factory=ProblemLog)

    def require_balance(self) -> None:
        """Raise an internal error where a row is not accounted for."""
        accounted = self.converted + self.quarantined + self.merged + self.dropped.total()
        if self.rows_in != accounted or self.rows_out != self.converted + self.added:
            raise RankzeroError(f"rows do not add up: {self.as_json()}", hint="nothing was written; please report this")

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        numbers = ("rows_in", "rows_out", "converted", "added", "merged", "quarantined", "blank")
        counters = ("dropped", "rules", "formats", "ignored_keys")
        return {
            **{name: getattr(self, name) for name in numbers},
            **{name: dict(getattr(self, name)) for name in counters},
            "problems_by_reason": dict(self.log.reasons.most_common()),
            "image_root": self.image_root,
        }


def read_file(source: SourceSpec, index: int) -> Iterator[Chunk]:
    """A file, whatever its container."""
    require_readable([source.path])
    return read_chunks(source.path, index, header=source.header)


def convert(
    sources: Sequence[SourceSpec],
    out: Path,
    to: str,
    *,
    container: Container | None = None,
    quarantine: Path | None = None,
    overwrite: bool = False,
    read: ReadSource = read_file,
    progress: Progress = no_progress,
) -> Conversion:
    """Write all rows of the sources to one file of format `to`; what kind of file follows from its name.

    With `quarantine`, rows that cannot be read, or that the format cannot say, go to that file as they stand. Without,
    they are an error, and nothing is written, as of a damaged file always: behind the damage nobody knows of any row.
    Raises DataError, UsageError or StorageError.
    """
    chosen = container or _container(out)
    writes = _writer(to, chosen)
    _require_free(sources, [out, *([quarantine] if quarantine else [])], overwrite)
    # of rows that go to a pipe nobody knows where they will stand
    paths = None if takes_as_it_comes(out) else ImagePaths(map(_image_root, sources), out)
    target, done = _Target(writes, chosen, paths), [0]

    def advance(count: int) -> None:
        done[0] += count
        progress(count)

    while True:
        try:
            return _convert(sources, target, out, quarantine, read, advance)
        except OtherPathsError:  # nothing was written: all rows again
            advance(-done[0])


def _convert(
    sources: Sequence[SourceSpec],
    target: _Target,
    out: Path,
    quarantine: Path | None,
    read: ReadSource,
    progress: Progress,
) -> Conversion:
    """All rows once. Raises OtherPathsError where images need other paths than those of the rows before them got."""
    result, damage = Conversion(), list[Problem]()
    with ExitStack() as files:
        aside: IO[bytes] | None = None
        if quarantine and takes_as_it_comes(quarantine):
            aside = files.enter_context(_handed_on(quarantine))
        elif quarantine and quarantine.exists():  # rows of an earlier run do not stay there
            aside = files.enter_context(whole_file(quarantine))
        file = files.enter_context(whole_file(out))
        writer = files.enter_context(writing(file, target.container, target.writes))
        for index, source in enumerate(sources):
            rows_before = result.rows_in
            for chunk, done in _chunks(source, index, read, result):
                bad = _convert_chunk(chunk, done, source, target, writer, result)
                damage += _damage(chunk, source, result.rows_in - rows_before)
                if bad and quarantine:
                    aside = aside or files.enter_context(whole_file(quarantine))
                    _set_aside(chunk, bad, aside, is_table=data_kind(source.path) in ("CSV", "TSV"))
                progress(chunk.done)
            if result.rows_in == rows_before and _is_empty(source):  # and not one that a sample drew nothing of
                result.log.add(origin(source.path), [NO_ROWS])
                raise result.log.error()
        if result.log.total and not quarantine:
            raise result.log.error()
        if damage:
            raise DataError(damage)
        if not result.rows_out:
            counts = ", ".join(
                f"{count} × {name}" for name, count in (result.dropped + result.log.reasons).most_common()
            )
            raise DataError(f"no row is left: {counts}", where=", ".join(source.path for source in sources))
        result.require_balance()
    result.image_root = None if target.paths is None else target.paths.image_root()
    return result


def _chunks(
    source: SourceSpec, index: int, read: ReadSource, result: Conversion
) -> Iterator[tuple[Chunk, dict[int, list[RowProblem]]]]:
    """The source's chunks with the problems that are known already; rows in pieces as whole ones."""
    chunks = read(source, index)
    first = next(chunks, None)
    if first is None:
        return
    if source.columns:
        seen = seen_keys(first)
        if problems := check_columns(source.format, source.columns, seen or None):
            raise DataError(Problem(p.what, f"{source.path} {p.where}", p.hint) for p in problems)
    whole: Iterable[Chunk] = chain([first], chunks)
    pieces = None if source.columns else pieces_in(first, source.format)
    if pieces is not None:
        kept = list(whole)
        joined = join_pieces(kept, pieces)
        result.merged += joined.merged
        result.rows_in += joined.merged
        result.blank += joined.blank
        bad = {problem.line: [problem] for problem in joined.problems}
        for chunk in kept if bad else []:
            yield from _bad_lines(chunk, bad)
        whole = joined.chunks
    for chunk in chain.from_iterable(map(apart, whole)):
        yield chunk, {}


def _damage(chunk: Chunk, source: SourceSpec, rows: int) -> Iterator[Problem]:
    """Where the file of the chunk is damaged from there on; `rows`: of it until the chunk's end."""
    for problem in chunk.problems.values():
        if problem.reason in DAMAGE:  # which ends a file, and is no row
            what = f"{problem.what}; {rows - 1} rows before it were read"
            yield Problem(what, f"{origin(source.path)}:{problem.line}", problem.hint)


def _is_empty(source: SourceSpec) -> bool:
    chunks = read_chunks(source.path, header=source.header)
    return next(chain.from_iterable(map(rows_of, chunks)), None) is None


def _bad_lines(chunk: Chunk, bad: dict[int, list[RowProblem]]) -> Iterator[tuple[Chunk, dict[int, list[RowProblem]]]]:
    for number, line in lines(chunk):
        if number in bad:
            yield Chunk(chunk.source, number, line + b"\n"), {number: bad[number]}


def _wanted(writes: Writer) -> Trains | None:
    """What is to come of rows that could be two things: that of which the written format is."""
    return next((of.first_for for of in FORMATS.values() if writes in of.writers), None)


@dataclass(frozen=True, slots=True)
class _Target:
    """What rows become."""

    writes: Writer
    container: Container
    paths: ImagePaths | None
    """None: of images they stay as they are."""

    def row(self, conversation: Conversation, image_root: str) -> Written:
        """The row as the format has it, in a shape that the container can hold."""
        moved: tuple[str, ...] = ()
        if self.paths is not None and conversation.images:
            conversation, moved = self.paths.moved(conversation, image_root)
        row, rules = _row(conversation, self.writes, self.container)
        return row, (*moved, *rules)


def _image_root(source: SourceSpec) -> str:
    return source.image_root or os.path.dirname(source.path) or os.curdir


def _row(conversation: Conversation, writes: Writer, container: Container) -> Written:
    """The row as the format has it, in a shape that the container can hold."""
    if container == "jsonl":
        return writes.to_row(conversation)
    row, rules = (writes.to_columns or writes.to_row)(conversation)
    if writes.flat:
        texts = writes.texts
        if any(name in row for name in NAMES):
            rules = (*rules, NAMES_LEFT_OUT)
        row = {key: str(value) if key in texts else value for key, value in row.items() if key not in NAMES}
        if container != "parquet" and (key := next((key for key in row if key not in texts), "")):
            what = f"a {container} file has no column for `{key}`"
            raise CannotSayError("more than texts in a table", what, "write .jsonl or .parquet")
    if found := refused(row, container):
        key, what = found
        said = f"`{key}` has {what}, with which a {container} file is refused"
        raise CannotSayError(f"{what} in a table", said, "write .jsonl or .parquet")
    if key := unplaced(row, writes.columns):  # of one that is written, nothing is left out in silence
        raise CannotSayError("more than a table's columns", f"a table has no column for `{key}`")
    return row, rules


def _convert_chunk(
    chunk: Chunk,
    known: dict[int, list[RowProblem]],
    source: SourceSpec,
    target: _Target,
    file: RowWriter,
    result: Conversion,
) -> set[int]:
    """Write the chunk's rows and count them. Returns the lines of those that are bad."""
    if known:
        result.rows_in += len(known)
        result.quarantined += len(known)
        result.log.add(origin(source.path), chain.from_iterable(known.values()))
        return set(known)
    parsed = parse(chunk, source.format, source.columns or None, trains=_wanted(target.writes))
    result.rows_in += parsed.rows
    result.blank += parsed.blank
    for name in ("dropped", "rules", "formats", "ignored_keys"):
        getattr(result, name).update(getattr(parsed, name))
    result.reasons = {**parsed.reasons, **result.reasons}
    problems, root = list(parsed.problems), _image_root(source)
    for line, group in groupby(parsed.conversations, key=lambda conversation: conversation.line):
        rows: list[dict[str, Any]] = []
        rules: Counter[str] = Counter()
        try:
            for conversation in group:
                row, applied = target.row(conversation, root)
                rows.append(row)
                rules.update(applied)
        except CannotSayError as error:
            problems.append(RowProblem(line, error.reason, str(error), error.hint))
            continue
        except NothingToLearnError as error:
            result.dropped[error.rule] += 1
            continue
        for row in rows:
            file.write(row)
        if line in parsed.names_as_text and any(name in row for row in rows for name in NAMES):
            rules[NAMES_AS_TEXT] += 1
        result.rules.update(rules)
        result.converted += 1
        result.added += len(rows) - 1
        result.rows_out += len(rows)
    problems.sort(key=lambda problem: problem.line)
    bad = {problem.line for problem in problems}
    result.quarantined += len(bad)
    result.log.add(origin(source.path), problems)
    return bad


def _set_aside(chunk: Chunk, bad: set[int], file: IO[bytes], *, is_table: bool) -> None:
    """The rows as they stand; those of a table as JSON, a text where it cannot be told apart into columns."""
    for index, (number, line) in enumerate(lines(chunk)):
        if number in bad:
            file.write((_text_as_json(line) if is_table and index in chunk.problems else line) + b"\n")


@contextmanager
def _handed_on(pipe: Path) -> Iterator[IO[bytes]]:
    """What goes into a pipe in the end, if there is any: once, and who reads it after the result waits for nothing."""
    with storage_errors(pipe), TemporaryFile() as kept:
        yield kept
        if kept.tell():
            kept.seek(0)
            with whole_file(pipe) as there:
                shutil.copyfileobj(kept, there)


def _text_as_json(line: bytes) -> bytes:
    """Bytes that are not UTF-8 as the escapes that Python makes of them, and bytes of again: "\\udce9"."""
    return json.dumps(line.decode(errors="surrogateescape"), ensure_ascii=False).encode(errors="backslashreplace")


def _container(out: Path) -> Container:
    if out.suffix in SUFFIXES:
        return SUFFIXES[out.suffix]
    what = f"what kind of file `{out.name}` is to be cannot be told from its name"
    raise UsageError(what, hint=f"end it with one of {', '.join(SUFFIXES)}, or say --to")


def _writer(to: str, container: Container) -> Writer:
    if to not in WRITERS:
        raise UsageError(f"rows cannot be written as {to!r}", hint=f"one of: {', '.join(WRITERS)}")
    writes = WRITERS[to]
    if container == "jsonl" or writes.flat or (container == "parquet" and writes.columns):
        return writes
    held = [name for name, other in WRITERS.items() if other.flat or (container == "parquet" and other.columns)]
    hint = f"it can hold {', '.join(held)}; or write .jsonl"
    raise UsageError(f"a {container} file cannot hold {to} rows", hint=hint)


def _require_free(sources: Sequence[SourceSpec], outs: Sequence[Path], overwrite: bool) -> None:
    """Raise where writing would destroy what is read, or what was there."""
    read = {os.path.realpath(source.path) for source in sources}
    for out in outs:
        if os.path.realpath(out) in read:
            raise UsageError(f"{out} is read and would be written", hint="give the result another name")
        if out.exists() and not overwrite and not takes_as_it_comes(out):
            raise UsageError(f"{out} is there already", hint="give another name, or --force")
    if len(set(map(os.path.realpath, outs))) < len(outs):
        raise UsageError("the result and the quarantine are the same file", hint="give two names")


class SampledFiles:
    """Every file of some sources as a source of its own, of a sampled one only the rows drawn: what `convert` reads.

    Training reads by way of `cache/job`, which also joins rows in pieces; here they are joined by whoever reads. Raises
    DataError for a sample that cannot be drawn.
    """

    def __init__(self, located: Sequence[LocatedSource], seed: int) -> None:
        self.files: list[SourceSpec] = []
        self._keep: list[npt.NDArray[np.int64] | None] = []
        for index, source in enumerate(located):
            self.files += [source.source.model_copy(update={"path": path, "sample": None}) for path in source.files]
            self._keep += [None] * len(source.files) if source.is_whole else _drawn(source, index, seed)

    def read(self, source: SourceSpec, index: int) -> Iterator[Chunk]:
        """The chunks of one file, which is `files[index]`."""
        chunks, keep = read_chunks(source.path, index, header=source.header), self._keep[index]
        if keep is None:
            return chunks
        return (replace(chunk, source=index, file_bytes=None) for chunk in select(chunks, keep))


def _drawn(source: LocatedSource, index: int, seed: int) -> list[npt.NDArray[np.int64] | None]:
    """Of each file the ordinals of its rows in the sample, which is one of all files together."""
    header = source.source.header
    first = next((chunk for file in source.files for chunk in read_chunks(file, header=header)), None)
    if first is not None and pieces_in(first, source.source.format):
        hint = "convert all of them, then sample the result"
        what = "a part of the messages would tear their trees apart"
        raise DataError(what, where=source.source.path, hint=hint)
    counts = [count_rows(file, header=header) for file in source.files]
    try:
        rows = chosen(sum(counts), source.rows, source.sample, seed=seed, source=index)
    except ValueError as error:
        raise DataError(source.too_few(sum(counts))) from error
    ends = np.cumsum([0, *counts])
    return [rows[(rows >= low) & (rows < high)] - low for low, high in zip(ends[:-1], ends[1:], strict=True)]
