"""Data files to a TokenizedDataset in the cache, made once for each content, tokenizer and set of rules.

Knows files, the cache and its lock. What happens to a row is encode's and chat's; how rows are read back, dataset's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout

from rankzero.data.chat import TokenRules
from rankzero.data.dataset import SCHEMA, DatasetStats, TokenizedDataset
from rankzero.data.encode import Block, Task, chunk_encoder
from rankzero.data.hashing import content_hash, file_state
from rankzero.data.pool import ordered_map, worker_count
from rankzero.data.problems import ProblemLog
from rankzero.data.progress import Progress, no_progress
from rankzero.data.sources import NO_ROWS, read_all, require_readable
from rankzero.data.tokenizer import Tokenizer, TokenizerParts, take_apart
from rankzero.errors import DataError, Problem, StorageError
from rankzero.run_dir.atomic import TEMPORARY_PREFIX, commit_directory, stage_name
from rankzero.spec.run_spec import SourceSpec

__all__ = ["TokenRules", "prepare", "tokenizer_fingerprint"]

CODE_VERSION = 1
"""Part of the content hash: raise it when the same rows and rules come to give other tokens or another layout."""

PART = "part-00000.arrow"

_logger = logging.getLogger("rankzero.data")


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Changes when the same text could become other tokens: vocabulary, merges, special tokens, chat template."""
    return take_apart(tokenizer).fingerprint


def prepare(
    sources: Sequence[SourceSpec],
    tokenizer: Tokenizer,
    rules: TokenRules,
    cache_dir: Path,
    *,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> TokenizedDataset:
    """The tokenised rows of these files, from the cache where they were made before.

    Several processes may call this at once: one does the work, the others wait and map the same files. `workers`
    bounds the processes that work; small inputs take none besides this one.

    Raises DataError with every bad row of every file, ConfigError where the tokenizer does not serve, StorageError
    where the cache cannot be written. Nothing of a failed attempt is ever taken for a whole one.
    """
    require_readable([source.path for source in sources])
    job = _Job(tuple(sources), take_apart(tokenizer), rules)
    directory = cache_dir / "tokenized" / job.fingerprint(cache_dir)
    dataset = _existing(directory, job.paths)
    if dataset is None:
        with _cache_errors(directory), _exclusive(directory):
            dataset = _existing(directory, job.paths)  # made by another process while this one waited
            if dataset is None:
                _make(directory, job, worker_count(job.size, workers), progress)
                return TokenizedDataset.open(directory, job.paths)
    progress(job.size)
    return dataset


class _Job:
    """What is to be tokenised and how; remembers the files' state, to see whether they change meanwhile."""

    def __init__(self, sources: tuple[SourceSpec, ...], parts: TokenizerParts, rules: TokenRules) -> None:
        self.sources, self.parts, self.rules = sources, parts, rules
        self.paths = [source.path for source in sources]
        self._states = [file_state(path) for path in self.paths]
        self.size = sum(os.path.getsize(path) for path in self.paths)

    def fingerprint(self, cache_dir: Path) -> str:
        """The name of the result: a hash of all that decides it."""
        files = [[content_hash(source.path, cache_dir), source.format] for source in self.sources]
        whole = json.dumps([CODE_VERSION, files, self.parts.fingerprint, asdict(self.rules)])
        return hashlib.sha256(whole.encode()).hexdigest()

    def require_unchanged(self) -> None:
        """Raise DataError where a file is no longer what was hashed."""
        for path, state in zip(self.paths, self._states, strict=True):
            if file_state(path) != state:
                hint = "give the same command again once nothing writes to it"
                raise DataError("the file changed while it was read", where=path, hint=hint)


def _existing(directory: Path, paths: Sequence[str]) -> TokenizedDataset | None:
    """What an earlier run made, if it is there and whole."""
    if not directory.exists():
        return None
    try:
        return TokenizedDataset.open(directory, paths)
    except (StorageError, OSError, KeyError, TypeError, pa.ArrowInvalid) as error:
        _logger.warning("%s is damaged and is made again: %s", directory, str(error).splitlines()[0])
        return None


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Hold the lock of this content. The kernel frees it when its holder dies, however it dies."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory.with_suffix(".lock"))
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


@contextmanager
def _cache_errors(directory: Path) -> Iterator[None]:
    """Failures to write as StorageErrors that name the cache."""
    try:
        yield
    except OSError as error:
        what = f"the tokenised data cannot be written: {error.strerror or error}"
        raise StorageError(what, where=str(directory), hint=_CACHE_HINT) from error


def _make(directory: Path, job: _Job, workers: int, progress: Progress) -> None:
    """Tokenise into a temporary sibling and give it its name when it is whole. The lock is held."""
    for stale in directory.parent.glob(f"{TEMPORARY_PREFIX}{directory.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)  # of a process that was killed
    staged = directory.with_name(stage_name(directory.name))
    staged.mkdir()
    try:
        with pa.OSFile(str(staged / PART), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            stats = _tokenise(job, writer, workers, progress)
        job.require_unchanged()
        meta = {
            "fingerprint": directory.name,
            "parts": [PART],
            "stats": stats.as_json(),
            "rules": asdict(job.rules),
            "sources": job.paths,
            "tokenizer": job.parts.fingerprint,
            "code_version": CODE_VERSION,
        }
        try:
            commit_directory(staged, directory, meta)
        except StorageError as error:
            raise StorageError(Problem(p.what, p.where, _CACHE_HINT) for p in error.problems) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _tokenise(job: _Job, writer: Any, workers: int, progress: Progress) -> DatasetStats:
    """Write every row that stays; count the others. Raises DataError once all files have been looked at."""
    log = ProblemLog()
    totals: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    unopened: Counter[str] = Counter()
    rows_of: Counter[int] = Counter()
    # A task is drawn shortly before it runs: from the first bad row on, the rest is only checked.
    tasks = (Task(chunk, job.sources[chunk.source].format, log.total == 0) for chunk in read_all(job.paths))
    for chunk in ordered_map(partial(chunk_encoder, job.parts, job.rules), tasks, workers):
        log.add(job.paths[chunk.source], chunk.problems)
        dropped.update(chunk.dropped)
        unopened.update(chunk.unopened)
        rows_of[chunk.source] += chunk.rows_in
        totals.update(blank_lines=chunk.blank, truncated=chunk.truncated, boundary_rows=chunk.straddling)
        if chunk.block is not None and log.total == 0:
            writer.write_batch(_record_batch(chunk.block, chunk.source))
            totals.update(
                rows=len(chunk.block.lines),
                tokens=len(chunk.block.input_ids),
                supervised_tokens=int(chunk.block.supervised.sum()),
            )
        progress(chunk.length)
    for index, path in enumerate(job.paths):
        if not rows_of[index]:
            log.add(path, [NO_ROWS])
    if log.total:
        raise log.error()
    stats = DatasetStats(rows_in=rows_of.total(), dropped=dict(dropped), unopened=dict(unopened), **totals)
    if not stats.rows:
        raise _nothing_left(stats, job.paths, job.rules)
    for opening, rows in unopened.items():
        _logger.warning(
            "in use the chat template opens an answer with %r, which the same template leaves out of %d rows",
            opening,
            rows,
        )
    return stats


def _record_batch(block: Block, source: int) -> Any:
    return pa.record_batch(
        [
            pa.ListArray.from_arrays(block.offsets, block.input_ids),
            pa.ListArray.from_arrays(block.range_offsets, block.ranges),
            block.supervised,
            block.lines,
            pa.repeat(pa.scalar(source, pa.int16()), len(block.lines)),
        ],
        schema=SCHEMA,
    )


def _nothing_left(stats: DatasetStats, paths: Sequence[str], rules: TokenRules) -> DataError:
    hints = {
        "over_length": f"raise data.max_length ({rules.max_length}) or set data.over_length: truncate",
        "truncated_before_trained": f"the first {rules.max_length} tokens hold no answer: raise data.max_length",
        "nothing_to_train": 'every assistant turn says "loss": false (or "weight": 0)',
    }
    reasons = ", ".join(f"{count} × {reason}" for reason, count in stats.dropped.items())
    most = max(stats.dropped, key=lambda reason: stats.dropped[reason])
    what = f"no row has a trained token: all {stats.rows_in} are dropped ({reasons})"
    return DataError(what, where=", ".join(paths), hint=hints[most])
