"""Every row of every file looked at, as training would read them, with or without a tokenizer.

Knows files, workers and what adds up to the report; what a row must be is known by formats and templates. Templates and
tokenizers are loaded only where tokens are counted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.data.inspect.duplicates import DigestLog, digest
from rankzero.data.inspect.quarantine import Quarantine, require_new
from rankzero.data.inspect.report import CheckReport, Sample, untrainable
from rankzero.data.inspect.statistics import Counts
from rankzero.data.pool import ordered_map, worker_count
from rankzero.data.progress import Progress, no_progress
from rankzero.data.read.download import origin
from rankzero.data.read.sources import NO_ROWS, count_rows, probe, read_chunks
from rankzero.data.rows.chunks import Chunk, apart, lines
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.parse import parse
from rankzero.data.rows.problems import KEPT, ProblemLog, RowProblem
from rankzero.errors import DataError, Problem

if TYPE_CHECKING:  # `rankzero data check` starts without what it may not need
    from rankzero.data.cache.job import Job, OnProblems
    from rankzero.data.images.check import ImageReport
    from rankzero.data.inspect.together import SeenRows, Together
    from rankzero.data.inspect.token_counts import Tokens
    from rankzero.data.read.locate import LocatedSource
    from rankzero.spec.run_spec import SourceSpec

__all__ = ["CheckOptions", "CheckReport", "check"]

_SAMPLED_PER_CHUNK = 64

ShowBytes = Callable[[int], AbstractContextManager[Progress]]


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is looked at besides the rows themselves."""

    tokens: Tokens | None = None
    """Count tokens, and find the rows that the chat template refuses."""
    images: bool = False
    """Decode every image."""
    quarantine: Path | None = None
    """Where bad rows are written."""
    offline: bool = False
    """Fetch nothing."""
    seed: int = 0
    """Of samples: the run's."""
    samples: int = 0
    """Chat rows to keep in the report."""
    keep: int = KEPT
    """Problems to keep whole."""
    together: Together | None = None
    """What a run asks of all rows; only where tokens are counted, which says what rows it keeps."""


def check(
    sources: Sequence[SourceSpec],
    options: CheckOptions | None = None,
    *,
    evaluation: Sequence[SourceSpec] = (),
    workers: int | None = None,
    progress: Progress = no_progress,
    show: ShowBytes | None = None,
) -> CheckReport:
    """Look at every row of the sources, and of those to evaluate on. Bad rows and bad files are in the report; nothing
    is raised for them. Raises ConfigError (a column map or a chat template), ServiceError (data that is downloaded).

    `show` opens a progress bar once it is known how many bytes there are; without it, `progress` is told.
    """
    return _Check(options or CheckOptions(), workers).run(
        sources, evaluation, show or (lambda _bytes: nullcontext(progress))
    )


class _Check:
    """One check on its way."""

    def __init__(self, options: CheckOptions, workers: int | None) -> None:
        self._options, self._workers = options, workers
        self._log = ProblemLog(options.keep)
        self._counts = Counts()
        self._digests = DigestLog()
        self._samples: list[Sample] = []
        self._images: dict[Path, dict[str, list[tuple[int, int, int]]]] = {}
        """By root and path: the rows that have an image, each by its file, its chunk there, and its line."""
        self._late: dict[int, dict[int, list[RowProblem]]] = {}
        """By file and chunk: problems of rows that are found when the rows themselves are gone."""
        self._spread: set[str] = set()
        self._seen: dict[bool, SeenRows] = {}
        """Rows that are kept, by whether they are to be evaluated on."""
        self._first_held_out = 0

    def run(self, sources: Sequence[SourceSpec], evaluation: Sequence[SourceSpec], show: ShowBytes) -> CheckReport:
        located = [source for given in sources if (source := self._locate(given))]
        self._first_held_out = sum(len(source.files) for source in located)
        weights = [source.source.weight for source in located]
        located += [source for given in evaluation if (source := self._locate(given))]
        job = self._job(located)
        if self._options.quarantine is not None:
            require_new(self._options.quarantine, job.paths)
        with Quarantine(self._options.quarantine) if self._options.quarantine else nullcontext() as quarantine:
            with show(job.size) as progress:
                rows = self._read(job, quarantine, progress)
            images = self._decode(job) if self._options.images else None
            if quarantine is not None:
                self._set_aside(job, quarantine)
        for index, path in enumerate(job.paths):
            if not rows[index] and job.located[job.source_of[index]].is_whole:
                self._log.add(origin(path), [NO_ROWS])
        self._counts.require_whole()
        duplicates = self._digests.find(self._first_held_out if evaluation else None)
        quarantined = None if quarantine is None else quarantine.rows
        return CheckReport(
            tuple(job.paths),
            self._counts,
            self._log,
            duplicates,
            images,
            quarantined,
            tuple(self._samples),
            untrainable(self._counts, job.paths) or self._refused(job, weights),
        )

    def _refused(self, job: Job, weights: Sequence[float]) -> tuple[Problem, ...]:
        """Why rows that are all good are nothing together."""
        if self._options.together is None or self._log.total or not self._seen:
            return ()
        from rankzero.data.inspect.together import SeenRows, refused

        train, held_out = (self._seen.get(part) or SeenRows() for part in (False, True))
        paths = [origin(path) for path in job.paths]
        return refused(train, held_out, self._options.together, job.source_of, weights, paths)

    def _locate(self, source: SourceSpec) -> LocatedSource | None:
        """The files of a source that can be read; what is wrong with the others is noted."""
        from rankzero.data.read.locate import LocatedSource, expand

        try:
            (located,) = expand([source], offline=self._options.offline)
        except DataError as error:
            for found in error.problems:
                self._log.add(found.where or source.path, [RowProblem(0, found.what, found.what, found.hint)])
            return None
        files = []
        for path in located.files:
            if problem := probe(path):
                self._log.add(origin(path), [problem])
            else:
                files.append(path)
        return LocatedSource(source, tuple(files), located.sample, located.rows)

    def _job(self, located: Sequence[LocatedSource]) -> Job:
        from rankzero.data.cache.job import Job
        from rankzero.data.tokens.chat import TokenRules
        from rankzero.data.tokens.tokenizer import TokenizerParts

        tokens = self._options.tokens
        if tokens is None:  # decides nothing about which rows there are
            return Job(located, TokenizerParts("", None, {}, "", 0, ()), TokenRules(), self._options.seed)
        return Job(located, tokens.parts, tokens.rules, self._options.seed)

    def _read(self, job: Job, quarantine: Quarantine | None, progress: Progress) -> Counter[int]:
        """Every row once. Returns the number of each file's rows."""
        rows: Counter[int] = Counter()
        index_of = {path: index for index, path in enumerate(job.paths)}

        def on_problems(path: str, problems: list[RowProblem]) -> None:
            """Of a file whose trees are spread over its lines: rows that belong to no tree."""
            bad = {problem.line for problem in problems}
            self._spread.add(path)
            self._log.add(origin(path), problems)
            self._late.setdefault(index_of[path], {}).setdefault(0, []).extend(problems)
            self._counts.add(Counts(rows=len(bad), bad=len(bad)))
            rows[index_of[path]] += len(bad)

        def tasks() -> Iterator[_Task]:
            for chunk in _chunks(job, on_problems):
                spec = job.spec_of(chunk.source)
                yield _Task(chunk, spec.format, spec.columns or None, job.image_root(chunk.source))

        wanted = _Wanted(
            self._options.tokens,
            self._options.images,
            quarantine is not None,
            self._options.samples > 0,
            self._options.together is not None,
        )
        chunks_of: Counter[int] = Counter()
        for chunk in ordered_map(partial(_checker, wanted), tasks(), worker_count(job.work, self._workers)):
            path = job.paths[chunk.source]
            self._counts.add(chunk.counts)
            rows[chunk.source] += chunk.counts.rows
            self._log.add(origin(path), chunk.problems)
            if chunk.seen is not None:
                part = chunk.source >= self._first_held_out
                self._seen.setdefault(part, type(chunk.seen)()).add(chunk.seen)
            self._digests.add(chunk.source, chunk.digests, chunk.lines)
            if quarantine is not None:
                quarantine.add(path, chunk.bad_lines, chunk.problems)
            for root, image, line in chunk.images:
                known = self._images.setdefault(Path(root), {})
                known.setdefault(image, []).append((chunk.source, chunks_of[chunk.source], line))
            chunks_of[chunk.source] += 1
            for row in chunk.samples[: self._options.samples - len(self._samples)]:
                self._samples.append(Sample(path, row, job.image_root(chunk.source)))
            progress(chunk.length)
        for index, path in enumerate(job.paths):
            if path in self._spread and job.located[job.source_of[index]].is_whole:
                merged = count_rows(path, header=job.spec_of(index).header) - rows[index]
                self._counts.add(Counts(rows=merged, merged=merged))
        return rows

    def _decode(self, job: Job) -> ImageReport:
        """Every image; what is wrong with one is wrong with every row that has it."""
        from rankzero.data.images.check import ImageReport, check_images

        report = ImageReport()
        for root, images in self._images.items():
            found = check_images(images, root, workers=self._workers)
            report.checked += found.checked
            for source, counts in found.sources.items():
                report.sources.setdefault(source, Counter()).update(counts)
            for image, problem in found.problems.items():
                report.problems.setdefault(image, problem)
                reason = problem.reason if "image" in problem.reason else f"image: {problem.reason}"
                for index, number, line in images[image]:
                    row = RowProblem(line, reason, f"image {image[:200]!r}: {problem.what}", problem.hint)
                    self._late.setdefault(index, {}).setdefault(number, []).append(row)
        self._note_late(job)
        return report

    def _note_late(self, job: Job) -> None:
        """Problems of images are those of rows that were taken for good so far."""
        for index in sorted(self._late):
            if job.paths[index] in self._spread:
                continue
            for _, found in sorted(self._late[index].items()):
                found.sort(key=lambda problem: problem.line)
                bad = len({problem.line for problem in found})
                self._log.add(origin(job.paths[index]), found)
                self._counts.add(Counts(readable=-bad, bad=bad))

    def _set_aside(self, job: Job, quarantine: Quarantine) -> None:
        """Read the rows again whose problems came late."""
        for index in sorted(self._late):
            if job.paths[index] in self._spread:
                problems = self._late.pop(index)[0]
                wanted = {problem.line for problem in problems}
                header = job.spec_of(index).header
                for chunk in read_chunks(job.paths[index], index, header=header):
                    rows = [(number, line) for number, line in lines(chunk) if number in wanted]
                    quarantine.add(job.paths[index], rows, problems)
        chunks_of: Counter[int] = Counter()
        for chunk in _chunks(job, lambda _path, _problems: None) if self._late else ():
            problems = self._late.get(chunk.source, {}).get(chunks_of[chunk.source], [])
            chunks_of[chunk.source] += 1
            if problems:
                quarantine.add(job.paths[chunk.source], lines(chunk), problems)


def _chunks(job: Job, on_problems: OnProblems) -> Iterator[Chunk]:
    """All rows, in chunks in which a line stands for one row; each time the same."""
    return chain.from_iterable(map(apart, job.chunks(on_problems)))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a worker is to bring back."""

    tokens: Tokens | None
    images: bool
    bad_lines: bool
    samples: bool
    seen: bool


@dataclass(frozen=True, slots=True)
class _Task:
    """A chunk, and how its rows are read."""

    chunk: Chunk
    format: str
    columns: Mapping[str, str] | None
    image_root: str


@dataclass(slots=True)
class _Checked:
    """What was found in it."""

    source: int
    length: int
    counts: Counts
    problems: list[RowProblem]
    digests: bytes
    lines: Any
    bad_lines: list[tuple[int, bytes]] = field(default_factory=list)
    images: list[tuple[str, str, int]] = field(default_factory=list)
    """The directory that each is below, its path and its row."""
    samples: list[Conversation] = field(default_factory=list)
    seen: SeenRows | None = None


def _checker(wanted: _Wanted) -> Callable[[_Task], _Checked]:
    """What a worker runs on every chunk."""
    count_tokens, minus_one, trains = None, False, None
    if wanted.tokens is not None:
        minus_one, trains = wanted.tokens.rules.minus_one_is_a_class, wanted.tokens.rules.trains
        from rankzero.data.inspect.token_counts import TokenCounter

        count_tokens = TokenCounter(wanted.tokens).count

    def check_chunk(task: _Task) -> _Checked:
        parsed = parse(task.chunk, task.format, task.columns, trains=trains, minus_one_is_a_class=minus_one)
        good, problems, tokens, kept = parsed.conversations, parsed.problems, None, parsed.conversations
        if count_tokens is not None:
            tokens, refused, kept = count_tokens(good, task.image_root)
            if refused:
                problems = sorted([*problems, *refused], key=lambda problem: problem.line)
                lost = {problem.line for problem in refused}
                good = [example for example in good if example.line not in lost]
        images, unusable = _images(good, task.image_root) if wanted.images else ([], [])
        if unusable:
            problems = sorted([*problems, *unusable], key=lambda problem: problem.line)
            lost = {problem.line for problem in unusable}
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
        done = _Checked(
            task.chunk.source,
            task.chunk.done,
            counts,
            problems,
            b"".join(map(digest, good)),
            array("Q", [example.line for example in good]),
        )
        if wanted.bad_lines and bad:
            done.bad_lines = [(number, line) for number, line in lines(task.chunk) if number in bad]
        if wanted.seen:
            from rankzero.data.inspect.together import SeenRows

            done.seen = SeenRows()
            done.seen.add_rows(task.chunk.source, kept)
        if wanted.images:
            done.images = images
        if wanted.samples:
            chats = [example for example in good if example.templated]
            done.samples = chats[:: -(-len(chats) // _SAMPLED_PER_CHUNK) or 1]
        return done

    return check_chunk


def _images(rows: Sequence[Conversation], root: str) -> tuple[list[tuple[str, str, int]], list[RowProblem]]:
    """Where the images of these rows are; those that rows bring themselves are put into the cache. And what is wrong
    with such."""
    from rankzero.data.images.decode import ImageError
    from rankzero.data.images.embedded import is_embedded, keep, kept_images, shown

    found: list[tuple[str, str, int]] = []
    problems: list[RowProblem] = []
    for row in rows:
        for image in row.images:
            if not is_embedded(image):
                found.append((root, image, row.line))
                continue
            try:
                found.append((str(kept_images()), keep(image), row.line))
            except ImageError as error:
                reason = error.reason if "image" in error.reason else f"image: {error.reason}"
                problems.append(RowProblem(row.line, reason, f"image {shown(image)}: {error.what}", error.hint))
    return found, problems
