"""A run directory sent to its copy: what goes first, what waits, what is removed there. Knows not whose the copy is.

A resume needs checkpoints and the records that end with them, so the records go first, then checkpoints, and all else
behind them. What cannot be read here keeps nothing else from being sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankzero.directories import files_below
from rankzero.errors import Problem, StorageError
from rankzero.persist.stored_copy import StoredCopy, checkpoint_name, committed_in, sizes_fit, steps_in
from rankzero.run_dir.atomic import MANIFEST, TEMPORARY_PREFIX, read_manifest, storage_errors, verify_directory
from rankzero.run_dir.paths import LINKS, LinkName, RunDir
from rankzero.run_dir.result import FINAL, is_weights
from rankzero.run_dir.steps import furthest

_NOT_COPIED = ("lease.json", "stop")
_RECORDS = (
    "run.yaml",
    "environment.json",
    "data.json",
    "metrics.jsonl",
    "samples.jsonl",
    "saves.jsonl",
    "starts.jsonl",
    "restarts.jsonl",
    "pass-limit.json",
    "tracking/",
    "events/",
)
"""What a start reads that goes on from a checkpoint."""
_REMOVED = ("report.json", "error.json")
"""What a start takes away that goes beyond an earlier end. Whatever else a run forgets it empties."""


def is_plain(name: str) -> bool:
    """Whether a file of a run directory is copied as it is: no part of a checkpoint, no link, and none for this machine
    alone."""
    parts = name.split("/")
    hidden = any(part.startswith((TEMPORARY_PREFIX, ".lease")) for part in parts)
    return not hidden and parts[0] not in ("checkpoints", *LINKS) and parts[-1] not in _NOT_COPIED


def _is_record(name: str) -> bool:
    return name.startswith(_RECORDS)


def _state(path: Path) -> tuple[int, int, int] | None:
    """Another one for each thing that a file was replaced by; None where there is no file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Sender:
    """Keeps a copy like the run directory, as one process may that knows both to be of one run."""

    def __init__(self, run_dir: RunDir, copy: StoredCopy, keep: int, damaged: set[int]) -> None:
        """`keep`: as checkpoint.keep. `damaged`: steps whose checkpoints there are not what was saved. Reads what is
        there. Raises StorageError where that is further than what is here: then nothing of it may be replaced."""
        self._run_dir, self._copy, self._keep = run_dir, copy, keep
        self._sent: dict[str, object] = {}
        self._failed: list[Problem] = []
        names = copy.names()
        self._unfinished = [name for name in names if name.rpartition("/")[2].startswith(TEMPORARY_PREFIX)]
        self._whole = {step for step in committed_in(names) - damaged if self._is_as_here(step, names)}
        self._others = committed_in(names) - self._whole
        self._there = steps_in(names)
        here, there = max(run_dir.committed_steps(), default=-1), max(self._whole, default=-1)
        if there > here:
            what = f"the run is at step {there} there, and at step {max(here, 0)} here"
            raise StorageError(what, where=copy.url, hint="nothing is sent until it is as far here")
        self._reported = furthest((), copy.text("report.json") or "")

    def send(self) -> None:
        """Copy what is new. Raises whatever the store does; and StorageError, when all else is there, of what could
        not be read here."""
        self._failed = []
        while self._unfinished:
            self._copy.remove(self._unfinished.pop())
        here = self._run_dir.committed_steps()  # before the records, which then tell of all of them
        newer_there = self._reported > furthest(here, self._report())
        if not newer_there:
            self._send_files(records=True)
        for step in sorted(set(here) - self._whole):
            with self._unless_damaged():
                self._send_checkpoint(step)
        self._prune([step for step in here if step in self._whole])
        for link in LINKS:
            self._send_link(link)
        if not newer_there:
            with self._unless_damaged():
                self._send_result()
            self._send_files(records=False)
            for name in _REMOVED:
                self._remove_where_gone(name)
        if self._failed:
            raise StorageError(self._failed)

    def _report(self) -> bytes:
        with suppress(FileNotFoundError):
            return self._run_dir.report.read_bytes()
        return b""

    @contextmanager
    def _unless_damaged(self) -> Iterator[None]:
        """What is wrong with one thing here is told of when all others are there."""
        try:
            yield
        except StorageError as error:
            self._failed += error.problems

    def _is_as_here(self, step: int, names: Mapping[str, int]) -> bool:
        """Whether a checkpoint there is whole by its files' sizes, and the one that is here, where that is."""
        there = self._copy.manifest(checkpoint_name(step))
        if there is None or not sizes_fit(there, checkpoint_name(step), names):
            return False
        try:
            return verify_directory(self._run_dir.checkpoint(step), hashes=False) == there
        except StorageError:
            return True  # it is not here, or it is damaged here

    def _prune(self, here: list[int]) -> None:
        """Remove what the run itself, had it never moved, would not have any more: `keep` newer ones are here, and it
        is not the best one. That something is not here is no reason: after a restore only some are. The copy of what
        is damaged here is the only one. `here`: those that are also there, newest first."""
        oldest_kept = here[self._keep - 1] if len(here) >= self._keep else -1
        doomed = {step for step in self._there - set(here) if step < oldest_kept}
        if doomed:
            doomed -= {self._copy.linked("best")} | self._run_dir.steps_set_aside()
        for step in sorted(doomed):
            self._remove_checkpoint(step)

    def _remove_checkpoint(self, step: int) -> None:
        self._copy.remove(f"{checkpoint_name(step)}/{MANIFEST}")  # what is left by a kill from here on is none
        self._copy.remove(checkpoint_name(step))
        for steps in (self._whole, self._others, self._there):
            steps.discard(step)

    def _send_checkpoint(self, step: int) -> None:
        """Files first, manifest last. None is left there of one that was pruned meanwhile."""
        directory, name = self._run_dir.checkpoint(step), checkpoint_name(step)
        try:
            with storage_errors(directory):
                verify_directory(directory, hashes=False)
                files = sorted(files_below(directory), key=lambda path: path.name == MANIFEST)
            if step in self._others:
                self._remove_checkpoint(step)
            self._there.add(step)
            for path in files:
                self._copy.put(path, f"{name}/{path.relative_to(directory).as_posix()}")
        except (FileNotFoundError, StorageError):
            if directory.exists():
                raise
            self._remove_checkpoint(step)
        else:
            self._whole.add(step)

    def _send_files(self, *, records: bool) -> None:
        root = self._run_dir.root
        with self._unless_damaged():
            with storage_errors(root):
                found = sorted(files_below(root, into=is_plain, living=True))
            for path in found:
                name = path.relative_to(root).as_posix()
                inside_result = name.startswith(f"{FINAL}/")
                if is_plain(name) and not inside_result and not path.is_symlink() and _is_record(name) == records:
                    with self._unless_damaged():
                        self._send_file(path, name)

    def _send_file(self, path: Path, name: str) -> None:
        state = _state(path)
        if state is None or self._sent.get(name) == state:
            return
        try:
            with storage_errors(path):
                path.open("rb").close()
            self._copy.put(path, name)
        except (FileNotFoundError, StorageError):
            if _state(path) == state:
                raise
            return  # replaced or removed meanwhile: the next copy has it, or needs it no more
        self._sent[name] = state

    def _remove_where_gone(self, name: str) -> None:
        if not (self._run_dir.root / name).exists() and self._sent.get(name, "unknown") is not None:
            self._copy.remove(name)
            self._sent[name] = None

    def _send_link(self, link: LinkName) -> None:
        step = self._run_dir.read_link(link)
        if self._sent.get(link, "unknown") == step:
            return
        if step is not None:
            self._copy.write(link, f"checkpoints/step-{step}\n")
        elif os.path.lexists(self._run_dir.root / link):
            return  # its checkpoint is lost here: the copy may be the only one
        elif self._copy.linked(link) not in self._run_dir.steps_set_aside():
            self._copy.remove(link)
        self._sent[link] = step

    def _send_result(self) -> None:
        """Whole, or without a manifest: it goes first where another result is there, and comes last. Of the same result
        only what people edit is sent again."""
        final, before = self._run_dir.final, self._result_files()
        if MANIFEST not in before or self._sent.get(FINAL) == before:
            return
        try:
            manifest = read_manifest(final)
            ours = {f"{FINAL}/{name}": state[1] for name, state in before.items()}
            self._require_whole(manifest, ours)
            there = {name: size for name, size in self._copy.names().items() if name.startswith(f"{FINAL}/")}
            weights = {name for name in ours if is_weights(name)}
            same = self._copy.manifest(FINAL) == manifest and all(there.get(name) == ours[name] for name in weights)
            if not same:
                self._copy.remove(f"{FINAL}/{MANIFEST}")
            for name in sorted(ours.keys() - {f"{FINAL}/{MANIFEST}"} - (weights if same else set())):
                self._copy.put(self._run_dir.root / name, name)
            for name in sorted(there.keys() - ours.keys()):
                self._copy.remove(name)
            if not same and self._result_files() == before:
                self._copy.put(final / MANIFEST, f"{FINAL}/{MANIFEST}")
        except (FileNotFoundError, StorageError):
            if self._result_files() == before:
                raise
        else:
            self._sent[FINAL] = before

    def _result_files(self) -> dict[str, tuple[int, int, int]]:
        """The state of each file of the result, by its name in it; {}: there is none."""
        final = self._run_dir.final
        with storage_errors(final):
            found = files_below(final, living=True) if final.is_dir() else ()
            states = {path.relative_to(final).as_posix(): _state(path) for path in found if not path.is_symlink()}
        return {name: state for name, state in states.items() if state is not None and is_plain(name)}

    def _require_whole(self, manifest: Mapping[str, Any], ours: Mapping[str, int]) -> None:
        """Raise StorageError where weights here are not as long as they were saved: they may be whole there."""
        for name, entry in manifest["files"].items():
            size = ours.get(f"{FINAL}/{name}", 0)
            if is_weights(name) and size != entry["size"]:
                what = f"{size} bytes where {entry['size']} were saved: the result is damaged here and is not sent"
                hint = "give the run's `rankzero train` command again: it writes a damaged result anew"
                raise StorageError(what, where=str(self._run_dir.final / name), hint=hint)
