"""A run directory sent to its copy: what goes first, what waits, what is removed there. Knows not whose the copy is.

A resume needs checkpoints and the records that end with them, so the records go first, then checkpoints, and all else
behind them. What cannot be read here keeps nothing else from being sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rankzero.directories import files_below
from rankzero.errors import Problem, StorageError
from rankzero.persist.stored_copy import StoredCopy, TakenError, checkpoint_name, committed_in, sizes_fit, steps_in
from rankzero.run_dir.atomic import MANIFEST, TEMPORARY_PREFIX, read_manifest, storage_errors, verify_directory
from rankzero.run_dir.intact import is_weights, require_whole
from rankzero.run_dir.kept_aside import KEPT
from rankzero.run_dir.paths import LINKS, LinkName, RunDir
from rankzero.run_dir.result import FINAL
from rankzero.run_dir.steps import ONLY_ENDS, furthest

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
    hidden = any(part.startswith((TEMPORARY_PREFIX, ".lease", ".eval")) for part in parts)
    for_here = parts[0].startswith(KEPT) or parts[-1] in _NOT_COPIED
    return not hidden and not for_here and parts[0] not in ("checkpoints", *LINKS)


def _is_record(name: str) -> bool:
    return name.startswith(_RECORDS)


def state(path: Path) -> tuple[int, int, int] | None:
    """Another one for each thing that a file was replaced by; None where there is no file."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Sender:
    """Keeps a copy like the run directory, as one process may that knows both to be of one run."""

    def __init__(
        self,
        run_dir: RunDir,
        copy: StoredCopy,
        keep: int,
        *,
        damaged: set[int],
        owned: Callable[[], None],
        report_before: object,
    ) -> None:
        """`keep`: as checkpoint.keep. `damaged`: steps whose checkpoints there are not what was saved. `owned` raises
        TakenError where another process has the copy since. `report_before`: the `state` of report.json when this
        process began. Reads what is there. Raises StorageError where that is further than what is here: then nothing
        of it may be replaced."""
        self._run_dir, self._copy, self._keep, self._owned = run_dir, copy, keep, owned
        self._sent: dict[str, object] = {}
        self._failed: list[Problem] = []
        names = copy.names()
        self._unfinished = [name for name in names if name.rpartition("/")[2].startswith(TEMPORARY_PREFIX)]
        whole = {step for step in committed_in(names) - damaged if self._is_whole(step, names)}
        self._whole = {step for step in whole if self._is_as_here(step)}
        """Steps whose checkpoints are there as they are here, where they are here."""
        self._only_end = {step for step in whole if copy.only_ends(step)}
        self._others = committed_in(names) - self._whole
        self._there = steps_in(names)
        self._compared = {step: self._made(step) for step in run_dir.committed_steps()}
        self._reported = furthest((), copy.text("report.json") or "")
        self._report_before = report_before
        self._require_as_far(run_dir.committed_steps())

    def send(self) -> None:
        """Copy what is new. Raises whatever the store does; and StorageError, when all else is there, of what could
        not be read here, or has to wait."""
        self._failed = []
        here = self._run_dir.committed_steps()  # before the records, which then tell of all of them
        self._require_as_far(here)
        while self._unfinished:
            self._copy.remove(self._unfinished.pop())
        newer_there = self._has_newer_report(here)
        if not newer_there:
            self._send_files(records=True)
        for step in sorted(here):
            self._compare(step)
            if step not in self._whole:
                with self._unless_damaged():
                    self._send_checkpoint(step)
        for link in LINKS:
            self._send_link(link)
        if not newer_there:
            with self._unless_damaged():
                self._send_result()
            self._send_files(records=False)
            for name in _REMOVED:
                self._remove_where_gone(name)
        self._prune([step for step in here if step in self._whole])  # last: some may put and not delete
        if self._failed:
            raise StorageError(self._failed)

    def _require_as_far(self, here: list[int]) -> None:
        """As a run is not that went on while the store was down, or from an older checkpoint than is there."""
        newest, there = max(here, default=-1), max(self._whole - self._gone_beyond(), default=-1)
        if there > newest:
            what = f"the run is at step {there} there, and at step {max(newest, 0)} here"
            raise StorageError(what, where=self._copy.url, hint="nothing is sent until it is as far here")

    def _gone_beyond(self) -> set[int]:
        """Steps whose checkpoints there only end the run, which has gone on here from an older one."""
        return self._only_end & self._run_dir.steps_left_aside() if self._only_end else set()

    def _has_newer_report(self, here: list[int]) -> bool:
        """Whether what is there tells of an end of more steps, and this run has come to none since. It is told of."""
        if state(self._run_dir.report) not in (None, self._report_before):
            return False
        if self._reported in self._gone_beyond():
            self._reported = 0
        step = furthest(here, self._report())
        if self._reported <= step:
            return False
        what = f"the run has ended at step {self._reported} there, and is at step {step} here"
        hint = "until it ends, or is as far, only its checkpoints are sent; to send all now, remove report.json there"
        self._failed.append(Problem(what, self._copy.url, hint))
        return True

    def _report(self) -> bytes:
        with suppress(FileNotFoundError):
            return self._run_dir.report.read_bytes()
        return b""

    @contextmanager
    def _unless_damaged(self) -> Iterator[None]:
        """What is wrong with one thing here is told of when all others are there."""
        try:
            yield
        except TakenError:
            raise
        except StorageError as error:
            self._failed += error.problems

    def _is_whole(self, step: int, names: Mapping[str, int]) -> bool:
        """Whether a checkpoint there has all its files, by their sizes."""
        there = self._copy.manifest(checkpoint_name(step))
        return there is not None and sizes_fit(there, checkpoint_name(step), names)

    def _is_as_here(self, step: int) -> bool:
        """Whether a checkpoint there is the one that is here, or here there is none, or a damaged one."""
        try:
            here = verify_directory(self._run_dir.checkpoint(step), hashes=False)
        except StorageError:
            return True
        return here == self._copy.manifest(checkpoint_name(step))

    def _made(self, step: int) -> object:
        """Another value for each checkpoint that has been made of a step."""
        return state(self._run_dir.checkpoint(step) / MANIFEST)

    def _compare(self, step: int) -> None:
        """Once each time that a step's checkpoint was made: after a damaged one, again."""
        made = self._made(step)
        if self._compared.get(step) != made:
            self._compared[step] = made
            if step in self._whole and not self._is_as_here(step):
                self._whole.discard(step)
                self._others.add(step)

    def _prune(self, here: list[int]) -> None:
        """Remove what the run itself, had it never moved, would not have any more: `keep` newer ones are here, and it
        is not the best one; where the newest only ends the run, one more, as it takes no other one's place. That
        something is not here is no reason: after a restore only some are. The copy of what is damaged here is the only
        one; what has only ended the run, which goes on, is of no use to anyone. `here`: those that are also there,
        newest first."""
        keep = self._keep + (not self._only_end.isdisjoint(here[:1]))
        oldest_kept = here[keep - 1] if len(here) >= keep else -1
        doomed = {step for step in self._there - set(here) if step < oldest_kept}
        if doomed:
            doomed -= {self._copy.linked("best")} | self._run_dir.steps_set_aside()
        doomed |= self._gone_beyond()
        try:
            for step in sorted(doomed):
                self._remove_checkpoint(step)
        except PermissionError as error:
            hint = "give it the right to delete, or let checkpoint.keep be as many as there are"
            self._failed.append(Problem(f"old checkpoints stay there: {error}", self._copy.url, hint))

    def _remove_checkpoint(self, step: int) -> None:
        self._copy.remove(f"{checkpoint_name(step)}/{MANIFEST}")  # what is left by a kill from here on is none
        self._copy.remove(checkpoint_name(step))
        for steps in (self._whole, self._others, self._there, self._only_end):
            steps.discard(step)

    def _send_checkpoint(self, step: int) -> None:
        """Files first, manifest last. None is left there of one that was pruned meanwhile."""
        directory, name = self._run_dir.checkpoint(step), checkpoint_name(step)
        try:
            with storage_errors(directory):
                manifest = verify_directory(directory, hashes=False)
                files = sorted(files_below(directory), key=lambda path: path.name == MANIFEST)
            if step in self._others:
                self._remove_checkpoint(step)
            self._there.add(step)
            for path in files:
                self._owned()
                self._copy.put(path, f"{name}/{path.relative_to(directory).as_posix()}")
        except (FileNotFoundError, StorageError) as error:
            if directory.exists() or isinstance(error, TakenError):
                raise
            self._remove_checkpoint(step)
        else:
            self._whole.add(step)
            if manifest.get(ONLY_ENDS):
                self._only_end.add(step)

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
        now = state(path)
        if now is None or self._sent.get(name) == now:
            return
        try:
            with storage_errors(path):
                path.open("rb").close()
            self._copy.put(path, name)
        except (FileNotFoundError, StorageError):
            if state(path) == now:
                raise
            return  # replaced or removed meanwhile: the next copy has it, or needs it no more
        self._sent[name] = now

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
            require_whole(final, manifest)
            there = {name: size for name, size in self._copy.names().items() if name.startswith(f"{FINAL}/")}
            weights = {name for name in ours if is_weights(name)}
            same = self._copy.manifest(FINAL) == manifest and all(there.get(name) == ours[name] for name in weights)
            self._owned()
            if not same:
                self._copy.remove(f"{FINAL}/{MANIFEST}")
            for name in sorted(ours.keys() - {f"{FINAL}/{MANIFEST}"} - (weights if same else set())):
                self._owned()
                self._copy.put(self._run_dir.root / name, name)
            for name in sorted(there.keys() - ours.keys()):
                self._copy.remove(name)
            if not same and self._result_files() == before:
                self._owned()
                self._copy.put(final / MANIFEST, f"{FINAL}/{MANIFEST}")
        except (FileNotFoundError, StorageError) as error:
            if self._result_files() == before or isinstance(error, TakenError):
                raise
        else:
            self._sent[FINAL] = before

    def _result_files(self) -> dict[str, tuple[int, int, int]]:
        """The state of each file of the result, by its name in it; {}: there is none."""
        final = self._run_dir.final
        with storage_errors(final):
            found = files_below(final, living=True) if final.is_dir() else ()
            states = {path.relative_to(final).as_posix(): state(path) for path in found if not path.is_symlink()}
        return {name: one for name, one in states.items() if one is not None and is_plain(name)}
