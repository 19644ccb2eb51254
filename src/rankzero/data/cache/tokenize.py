"""Data files to a TokenizedDataset in the cache, made once for each content, tokenizer and set of rules.

Knows files, the cache and its lock. What happens to a row is encode's and chat's; how rows are read back, dataset's.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import pyarrow as pa
from filelock import FileLock, Timeout

from rankzero.cache.uses import use
from rankzero.data.cache.dataset import DatasetStats, TokenizedDataset, verify_bytes
from rankzero.data.cache.encode import Task, chunk_encoder
from rankzero.data.cache.job import CODE_VERSION, Job
from rankzero.data.cache.pictures import changed_images, images_gone
from rankzero.data.cache.segments import SEGMENT_CHUNKS, Segments, Tally
from rankzero.data.images.embedded import kept_images
from rankzero.data.pool import ordered_map, worker_count
from rankzero.data.progress import Progress, no_progress
from rankzero.data.read.download import origin
from rankzero.data.read.locate import LocatedSource, expand
from rankzero.data.read.sources import NO_ROWS, require_readable
from rankzero.data.rows.formats.classification import UNLABELLED
from rankzero.data.rows.problems import ProblemLog
from rankzero.data.tokens.chat import TokenRules
from rankzero.data.tokens.tokenizer import Tokenizer, TokenizerParts, take_apart
from rankzero.directories import status
from rankzero.errors import DataError, Problem, StorageError
from rankzero.machine import usable_cores
from rankzero.run_dir.atomic import NotReadError
from rankzero.spec.run_spec import SourceSpec
from rankzero.wording import counted, first_line

__all__ = ["Shard", "TokenRules", "cached", "prepare", "prepare_shard", "tokenizer_fingerprint"]

PARTIAL_SUFFIX = ".partial"
"""Of the directory beside a data set in which its segments come together."""

_logger = logging.getLogger("rankzero.data")


@dataclass(frozen=True, slots=True)
class Shard:
    """Which of `of` equal parts of the work; 0 is the first."""

    index: int = 0
    of: int = 1


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Changes when the same text could become other tokens: vocabulary, merges, special tokens, chat template."""
    return take_apart(tokenizer, "label").fingerprint  # what asks least of a tokenizer


def prepare(
    sources: Sequence[SourceSpec] | Sequence[LocatedSource],
    tokenizer: Tokenizer,
    rules: TokenRules,
    cache_dir: Path,
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> TokenizedDataset:
    """The tokenised rows of these files, from the cache where they were made before.

    Several processes may call this at once: one does the work, the others wait and map the same files. `workers`
    bounds the processes that work; small inputs take none besides this one. `seed` decides samples.

    Raises DataError with every bad row of every file, ConfigError where the tokenizer does not serve, StorageError
    where the cache cannot be written. Nothing of a failed attempt is ever taken for a whole one.
    """
    job = _job(sources, tokenizer, rules, seed)
    directory = job.directory(cache_dir)
    use(directory)
    dataset = _existing(directory, job.paths, workers)
    if dataset is None:
        with _cache_errors(directory), _exclusive(directory.with_name(f"{directory.name}.lock")):
            dataset = _existing(directory, job.paths, workers)  # made by another process while this one waited
            if dataset is None:
                try:
                    _make(directory, job, Shard(), worker_count(job.work, workers), progress)
                except DataError:
                    _segments(directory, job).forget()  # mended data is other data
                    raise
                return _made(directory, job.paths)
    progress(job.size)
    return dataset


def prepare_shard(
    sources: Sequence[SourceSpec] | Sequence[LocatedSource],
    tokenizer: Tokenizer,
    rules: TokenRules,
    cache_dir: Path,
    shard: Shard,
    *,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> TokenizedDataset | None:
    """This shard's part of the work of `prepare`, while others do theirs on the same volume. Raises as `prepare` does.

    Whoever finishes last makes the data set of it; the others return None. What an earlier, killed call finished is
    not done again.
    """
    job = _job(sources, tokenizer, rules, seed)
    directory = job.directory(cache_dir)
    use(directory)
    dataset = _existing(directory, job.paths, workers)
    if dataset is None:
        with _cache_errors(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
            if not _make(directory, job, shard, worker_count(job.work, workers), progress):
                return None
            dataset = _made(directory, job.paths)
    return dataset


def cached(
    sources: Sequence[LocatedSource], tokenizer: str, rules: TokenRules, cache_dir: Path, *, seed: int = 0
) -> TokenizedDataset | None:
    """The rows that `prepare` made before with the tokenizer of this fingerprint; None where it has to be asked. Their
    bytes are not verified. Raises as `prepare` does where files cannot be read."""
    job = Job(sources, TokenizerParts("", None, {}, "", 0, ()), rules, seed)
    directory = job.directory(cache_dir, tokenizer)
    use(directory)
    try:
        return TokenizedDataset.open(directory, job.paths) if directory.exists() else None
    except (StorageError, OSError, KeyError, TypeError, pa.ArrowInvalid):
        return None  # `prepare` says what is damaged, and makes it again


def _job(
    sources: Sequence[SourceSpec] | Sequence[LocatedSource], tokenizer: Tokenizer, rules: TokenRules, seed: int
) -> Job:
    located = expand([source for source in sources if isinstance(source, SourceSpec)])
    located = (*located, *(source for source in sources if isinstance(source, LocatedSource)))
    require_readable([path for source in located for path in source.files])
    return Job(located, take_apart(tokenizer, rules.trains), rules, seed)


def _existing(directory: Path, paths: Sequence[str], workers: int | None) -> TokenizedDataset | None:
    """What an earlier run made, if it is there and whole to the last byte, and its images hold what they held. Raises
    StorageError where it cannot be read now: that is not to say that it is damaged."""
    try:
        if status(directory) is None:
            return None
        verify_bytes(directory, usable_cores() if workers is None else workers)
        dataset = TokenizedDataset.open(directory, paths)
        images = dataset.image_files()
        if gone := images_gone(images):
            raise StorageError(
                f"{counted(gone, 'image')} that its rows brought cannot be found", where=str(kept_images())
            )
    except (StorageError, OSError, KeyError, TypeError, pa.ArrowInvalid) as error:
        if _may_be_whole(error):
            what = f"the tokenised data cannot be read: {first_line(error)}"
            raise StorageError(what, where=str(directory), hint=_UNREAD_HINT) from error
        _logger.warning("%s is damaged and is made again: %s", directory, first_line(error))
        return None
    if changed := changed_images(images, _record(directory)):
        what = f"{counted(len(changed), 'image')} changed since the rows were tokenised, or cannot be read"
        _logger.warning("%s (such as %s): rows are tokenised again", what, changed[0])
        return None
    return dataset


def _may_be_whole(error: Exception) -> bool:
    """Whether another try, or another version, may read it. What Arrow says of damage is an OSError without a
    number."""
    gone = (None, errno.ENOENT, errno.ENOTDIR)
    return isinstance(error, NotReadError) or (isinstance(error, OSError) and error.errno not in gone)


def _made(directory: Path, paths: Sequence[str]) -> TokenizedDataset:
    """What has just been made. Raises DataError where images changed meanwhile, be it since a call that was killed."""
    dataset = TokenizedDataset.open(directory, paths)
    if changed := changed_images(dataset.image_files(), _record(directory)):
        what = f"{counted(len(changed), 'image')} changed while the rows were tokenised"
        hint = "give the same command again once nothing writes to them"
        raise DataError(what, where=changed[0], hint=hint)
    return dataset


def _record(directory: Path) -> Path:
    """What is noted of a data set's images."""
    return directory.parent.parent / "digests" / f"{directory.name}.images.json"


@contextmanager
def _exclusive(file: Path) -> Iterator[None]:
    """Hold a lock. The kernel frees it when its holder dies, however it dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _logger.info("another process is tokenising the same data; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


_CACHE_HINT = "set RANKZERO_CACHE to a directory on a volume that has room and can be written"
_UNREAD_HINT = "the same command goes on once it can be; or delete it, or set RANKZERO_CACHE, to have it made again"


@contextmanager
def _cache_errors(directory: Path) -> Iterator[None]:
    """Failures to write as StorageErrors that name the cache."""
    try:
        yield
    except OSError as error:
        what = f"the tokenised data cannot be written: {error.strerror or error}"
        raise StorageError(what, where=str(directory), hint=_CACHE_HINT) from error


def _make(directory: Path, job: Job, shard: Shard, workers: int, progress: Progress) -> bool:
    """Tokenise this shard's segments and, where they are the last, commit the data set. Returns whether it is whole.

    Whoever else makes the same may be faster, and then has forgotten the segments: nothing that fails for want of them
    is an error. Raises DataError with every bad row of the shard once all of it has been looked at.
    """
    segments = _segments(directory, job)
    before = _identity(directory)

    def is_made() -> bool:
        return _identity(directory) not in (None, before)

    try:
        count = _tokenise(job, segments, shard, workers, progress, is_made)
    except (OSError, StorageError):
        if not is_made():
            raise
    if is_made():
        segments.forget()
        return True
    if segments.missing(count):
        return False
    with _exclusive(directory.with_name(f"{directory.name}.commit.lock")):
        if is_made() or segments.missing(count):  # another was as late, and faster
            return is_made()
        tally = segments.tally(count)
        _require_rows(job, tally)
        stats = tally.stats()
        meta = {
            "stats": stats.as_json(),
            "rules": job.rules.as_json(),
            "sources": job.paths,
            "tokenizer": job.parts.fingerprint,
            "code_version": CODE_VERSION,
        }
        try:
            segments.commit(count, directory, meta)
        except StorageError as error:
            raise StorageError(Problem(p.what, p.where, _CACHE_HINT) for p in error.problems) from error
    for opening, rows in stats.unopened.items():
        _logger.warning(
            "in use the chat template opens an answer with %r, which the same template leaves out of %d rows",
            opening,
            rows,
        )
    return True


def _identity(directory: Path) -> int | None:
    """Another one for each data set that is committed there; None where there is none. (Its time is that of its last
    use.)"""
    try:
        return directory.stat().st_ino
    except FileNotFoundError:
        return None


def _segments(directory: Path, job: Job) -> Segments:
    return Segments(directory.with_name(directory.name + PARTIAL_SUFFIX), job.rules.trains)


def _tokenise(
    job: Job, segments: Segments, shard: Shard, workers: int, progress: Progress, is_made: Callable[[], bool]
) -> int:
    """Make the shard's segments that are missing, as long as nobody else has made all. Returns how many segments the
    whole input has."""
    log = ProblemLog()
    count = 0
    at_work: deque[int] = deque()

    def tasks() -> Iterator[Task]:
        """A task is drawn shortly before it runs: from the first bad row on, the rest is only checked."""
        nonlocal count
        for index, chunk in enumerate(job.chunks(lambda path, found: log.add(origin(path), found))):
            number = index // SEGMENT_CHUNKS
            if number == count and is_made():
                return
            count = number + 1
            if number % shard.of != shard.index or segments.has(number):
                progress(chunk.done)
                continue
            at_work.append(number)
            spec = job.spec_of(chunk.source)
            yield Task(chunk, spec.format, log.total == 0, spec.columns or None, job.image_root(chunk.source))

    results = ordered_map(partial(chunk_encoder, job.parts, job.rules), tasks(), workers)
    for number, chunks in groupby(results, key=lambda _chunk: at_work.popleft()):
        with segments.write(number) as writer:
            for chunk in chunks:
                log.add(origin(job.paths[chunk.source]), chunk.problems)
                writer.add(chunk)
                progress(chunk.length)
            if not log.total:
                job.require_unchanged()
                writer.finish()
    if log.total:
        raise log.error()
    return count


def _require_rows(job: Job, tally: Tally) -> None:
    """Raise DataError where a file has no rows, or none of all rows is left."""
    log = ProblemLog()
    for index, path in enumerate(job.paths):
        if not tally.rows_of[index] and job.located[job.source_of[index]].is_whole:
            log.add(origin(path), [NO_ROWS])
    if log.total:
        raise log.error()
    if not tally.totals["rows"]:
        raise _nothing_left(tally.stats(), job.paths, job.rules)


def _nothing_left(stats: DatasetStats, paths: Sequence[str], rules: TokenRules) -> DataError:
    hints = {
        "over_length": f"raise data.max_length ({rules.max_length}) or set data.over_length: truncate",
        "truncated_before_trained": f"the first {rules.max_length} tokens hold no answer: raise data.max_length",
        "nothing_to_train": 'every assistant turn says "loss": false (or "weight": 0)',
        "answers_alike": f"both answers, or their first {rules.max_length} tokens, are the same: raise data.max_length",
        "image_cut_off": f"with their images the rows are longer than data.max_length ({rules.max_length}): raise it, "
        "or lower data.image_max_tokens",
        UNLABELLED: 'every "label" is null or -1; where -1 is a class, data.labels names it',
    }
    reasons = ", ".join(f"{count} × {reason}" for reason, count in stats.dropped.items())
    most = max(stats.dropped, key=lambda reason: stats.dropped[reason])
    what = "no row is left" if rules.trains == "label" else "no row has a trained token"
    what += f": all {stats.rows_in} are dropped ({reasons})"
    hint = hints.get(most, "`rankzero data check` lists what is left out and why")
    return DataError(what, where=", ".join(paths), hint=hint)
