"""A run directory's copy in an object store: what is uploaded when, and what is brought back. One process does it.

A checkpoint is whole when its manifest is there, which is written last here as it is on disk. Links are pointer files.
"""

from __future__ import annotations

import posixpath
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from rankzero.directories import files_below
from rankzero.errors import ConfigError, StorageError
from rankzero.persist.objects import fetch, files_in, inside, open_store, store_errors
from rankzero.run_dir.atomic import MANIFEST, TEMPORARY_PREFIX, read_manifest, stage_name, verify_directory
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.result import FINAL
from rankzero.run_dir.same_run import others_run, with_way_out
from rankzero.run_dir.setting import newest_manifest
from rankzero.spec.run_spec import RunSpec

LINKS = ("best", "last")
_NOT_COPIED = ("lease.json", "stop")


def copy_url(spec: RunSpec) -> str | None:
    """Where the spec has its run directory copied to; None: nowhere."""
    return None if spec.output_url is None else posixpath.join(spec.output_url, str(spec.name))


def is_plain(name: str) -> bool:
    """Whether a file of a run directory is copied as it is: no part of a checkpoint, no link, and none for this machine
    alone."""
    parts = name.split("/")
    hidden = any(part.startswith((TEMPORARY_PREFIX, ".lease")) for part in parts)
    return not hidden and parts[0] not in ("checkpoints", *LINKS) and parts[-1] not in _NOT_COPIED


def _state(path: Path) -> tuple[int, int, int] | None:
    """Another one for each thing that a file was replaced by; None where there is no file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class OtherRunError(ConfigError):
    """The store has another run under the name of this one."""


class RunStore:
    """The copy of one run directory. Nothing is brought from another run's, or written over it."""

    def __init__(self, run_dir: RunDir, url: str, spec: RunSpec, allowed: Collection[str] = ()) -> None:
        """`allowed`: fields that may have changed since what is there was made."""
        self._run_dir, self.url = run_dir, url
        self._spec, self._allowed = spec, allowed
        self._is_ours = False
        with store_errors(url):
            self._store, self._root = open_store(url)
        self._sent: dict[str, tuple[int, ...]] = {}
        self._steps: set[int] | None = None
        self._damaged: set[int] = set()

    def require_ours(self) -> None:
        """Raise OtherRunError where the store has another run under this name, by its newest checkpoint or, without
        one, its result: a start that came to neither has left nothing to lose. A checkpoint that is here and there is
        this run's, whatever changes were accepted since, here or on another machine. Until one is here, what may be
        this run's is not known to be. Raises StorageError."""
        if self._is_ours:
            return
        there = None if self._shares_a_step() else self.newest_manifest()
        here = newest_manifest(self._run_dir)
        problems = [] if there is None else others_run(there, here, self._spec, self._allowed)
        if there is not None and problems:
            raise OtherRunError(with_way_out(problems, self.url, self._spec, there))
        self._is_ours = there is None or here is not None

    def _shares_a_step(self) -> bool:
        """Whether the newest checkpoint that is in both places is the same, by its manifest with all its hashes."""
        with store_errors(self.url):
            common = self._remote_steps() & set(self._run_dir.committed_steps())
            for step in sorted(common, reverse=True)[:1]:
                with tempfile.TemporaryDirectory() as place:
                    fetch(
                        self._store,
                        posixpath.join(self._root, f"checkpoints/step-{step}", MANIFEST),
                        Path(place) / MANIFEST,
                    )
                    try:
                        return read_manifest(Path(place)) == read_manifest(self._run_dir.checkpoint(step))
                    except StorageError:
                        return False
        return False

    def newest_manifest(self) -> dict[str, Any] | None:
        """Of the newest whole checkpoint there that has a readable one, else of the result; None: there is none. Raises
        StorageError."""
        with store_errors(self.url):
            names = [f"checkpoints/step-{step}" for step in sorted(self._remote_steps(), reverse=True)]
            names += [FINAL] if self._store.exists(posixpath.join(self._root, FINAL, MANIFEST)) else []
            for name in names:
                with tempfile.TemporaryDirectory() as place:
                    fetch(self._store, posixpath.join(self._root, name, MANIFEST), Path(place) / MANIFEST)
                    try:
                        return read_manifest(Path(place))
                    except StorageError:
                        continue  # spoken of when it is verified
        return None

    def newest_step(self) -> int | None:
        """Step of the newest whole checkpoint there; None: there is none. Raises StorageError."""
        with store_errors(self.url):
            return max(self._remote_steps(), default=None)

    def restore(self, say: Callable[[str], None]) -> int | None:
        """Bring back the newest intact checkpoint, where it is newer than what is here, the best one, and the run's
        other files.

        Returns the newest one's step; None: there is none. Checkpoints come last and whole, so that a restore that was
        cut off is made again.
        """
        here = max(self._run_dir.committed_steps(), default=-1)
        with store_errors(self.url):
            if not self._store.exists(self._root):
                return None
            names = list(files_in(self._store, self._root))
            for name in names:
                if is_plain(name):
                    fetch(self._store, posixpath.join(self._root, name), self._run_dir.root / inside(name, self.url))
            steps = sorted(self._remote_steps(), reverse=True)
            best = self._linked("best")
            if best in steps and self._is_here(best, names, say):
                self._run_dir.set_link("best", best)
            for step in steps:
                if step > here and self._is_here(step, names, say):
                    self._run_dir.set_link("last", step)
                    return step
        return None

    def _is_here(self, step: int, names: list[str], say: Callable[[str], None]) -> bool:
        return self._run_dir.checkpoint(step).is_dir() or self._fetch_checkpoint(step, names, say)

    def _fetch_checkpoint(self, step: int, names: list[str], say: Callable[[str], None]) -> bool:
        """Bring one back. False where its bytes are not those that were saved, which is spoken of."""
        prefix = f"checkpoints/step-{step}/"
        staged = self._run_dir.checkpoints / stage_name(f"step-{step}")
        try:
            for name in names:
                if name.startswith(prefix):
                    fetch(self._store, posixpath.join(self._root, name), staged / inside(name[len(prefix) :], self.url))
            verify_directory(staged)
            staged.rename(self._run_dir.checkpoint(step))
        except StorageError as error:
            self._damaged.add(step)
            say(f"checkpoint step-{step} of {self.url} is damaged and is not used: {error}")
            return False
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return True

    def _linked(self, link: str) -> int:
        """The step that a pointer file names; -1 where it names none."""
        path = posixpath.join(self._root, link)
        text = self._store.cat_file(path).decode() if self._store.exists(path) else ""
        step = text.strip().rpartition("checkpoints/step-")[2]
        return int(step) if step.isdigit() else -1

    def upload(self) -> None:
        """Copy what is new. Raises StorageError, also where another run is there; what was copied stays, and the next
        call goes on."""
        try:
            self.require_ours()
        except OtherRunError as error:  # this run has trained: only its copy has no place
            raise StorageError(error.problems) from error
        if not self._is_ours:
            what = "a result is there that may be another run's, and is compared with the first checkpoint here"
            raise StorageError(what, where=self.url, hint="nothing is sent until then")
        with store_errors(self.url):
            here = self._run_dir.committed_steps()
            if self._steps is None:
                self._steps = self._remote_steps() - self._damaged
            for step in sorted(set(here) - self._steps):
                if self._upload_checkpoint(step):
                    self._steps.add(step)
            root = self._run_dir.root
            found = files_below(root, into=is_plain, living=True)
            for path in sorted(found, key=lambda path: (path.name == MANIFEST, path)):
                name = path.relative_to(root).as_posix()
                if is_plain(name) and not path.is_symlink():
                    self._upload_file(path, name)
            for link in LINKS:
                self._upload_link(link)
            self._prune(here, self._steps)

    def _prune(self, here: list[int], there: set[int]) -> None:
        """Remove what the run itself, had it never moved, would not have any more: `keep` newer ones are here, and it
        is not the best one. That something is not here is no reason: after a restore only some are. The copy of what
        is damaged here is the only one."""
        keep = self._spec.checkpoint.keep
        oldest_kept = here[keep - 1] if len(here) >= keep else -1
        doomed = {step for step in there - set(here) if step < oldest_kept}
        if doomed:
            doomed -= {self._linked("best")} | self._run_dir.steps_set_aside()
        for step in sorted(doomed):
            self._store.rm(posixpath.join(self._root, f"checkpoints/step-{step}"), recursive=True)
            there.discard(step)

    def _remote_steps(self) -> set[int]:
        paths = self._store.find(posixpath.join(self._root, "checkpoints")) if self._store.exists(self._root) else []
        whole = [posixpath.dirname(path) for path in paths if posixpath.basename(path) == MANIFEST]
        return {int(path.rpartition("step-")[2]) for path in whole if path.rpartition("step-")[2].isdigit()}

    def _upload_checkpoint(self, step: int) -> bool:
        """Files first, manifest last. False where it was pruned meanwhile."""
        directory = self._run_dir.checkpoint(step)
        remote = posixpath.join(self._root, "checkpoints", directory.name)
        try:
            files = list(files_below(directory))
            for path in sorted(files, key=lambda path: path.name == MANIFEST):
                self._put(path, posixpath.join(remote, path.relative_to(directory).as_posix()))
        except FileNotFoundError:
            if directory.exists():
                raise
            if self._store.exists(remote):
                self._store.rm(remote, recursive=True)
            return False
        return True

    def _upload_file(self, path: Path, name: str) -> None:
        state = _state(path)
        if state is None or self._sent.get(name) == state:
            return
        try:
            self._put(path, posixpath.join(self._root, name))
        except FileNotFoundError:
            if _state(path) == state:
                raise
            return  # replaced or removed meanwhile: the next copy has it, or needs it no more
        self._sent[name] = state

    def _upload_link(self, link: str) -> None:
        step = self._run_dir.read_link("best" if link == "best" else "last")
        if step is not None and self._sent.get(link) != (step,):
            self._store.makedirs(self._root, exist_ok=True)
            self._store.pipe_file(posixpath.join(self._root, link), f"checkpoints/step-{step}\n".encode())
            self._sent[link] = (step,)

    def _put(self, path: Path, remote: str) -> None:
        self._store.makedirs(posixpath.dirname(remote), exist_ok=True)
        self._store.put_file(str(path), remote)
