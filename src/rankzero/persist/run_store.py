"""A run directory's copy in an object store: whether it is this run's, and what is brought back. One process at a time
sends to it: the one that began last.
"""

from __future__ import annotations

import json
import posixpath
import shutil
import socket
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankzero.directories import there
from rankzero.errors import ConfigError, StorageError
from rankzero.persist.objects import store_errors
from rankzero.persist.sending import Sender, is_plain, state
from rankzero.persist.stored_copy import StoredCopy, TakenError, checkpoint_name, committed_in, sizes_fit
from rankzero.run_dir.atomic import (
    MANIFEST,
    NotReadError,
    faults,
    not_read_errors,
    put_back_displaced,
    read_manifest,
    remove_stale,
    replace_directory,
    stage_name,
    storage_errors,
    verify_directory,
)
from rankzero.run_dir.intact import verify_result
from rankzero.run_dir.kept_aside import keep_aside
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.result import FINAL
from rankzero.run_dir.same_run import others_run, spec_changes, with_way_out
from rankzero.run_dir.setting import ALONE, is_finished, what_is_held
from rankzero.run_dir.steps import furthest
from rankzero.spec.run_spec import RunSpec

_AGAIN = "the next copy goes on"
OWNER = ".lease.json"
"""In the copy: which process sends to it. Others, also of versions that do not know it, neither fetch nor send it."""


def copy_url(spec: RunSpec) -> str | None:
    """Where the spec has its run directory copied to; None: nowhere."""
    return None if spec.output_url is None else posixpath.join(spec.output_url, str(spec.name))


class OtherRunError(ConfigError):
    """The store has another run under the name of this one."""


class RunStore:
    """The copy of one run directory. Nothing is brought from another run's, or written over it."""

    def __init__(self, run_dir: RunDir, url: str, spec: RunSpec, allowed: Collection[str] = ()) -> None:
        """`allowed`: fields that may have changed since what is there was made."""
        self._run_dir, self.url = run_dir, url
        self._spec, self._allowed = spec, allowed
        self._copy = StoredCopy(url)
        self._sender: Sender | None = None
        self._token = uuid.uuid4().hex
        self._damaged: set[int] = set()
        self._report_before = state(run_dir.report)

    def require_ours(self) -> bool:
        """Raise OtherRunError where the store has another run under this name, by its newest checkpoint or, without
        one, its result: a start that came to neither has left nothing to lose. A checkpoint that is here and there is
        this run's, whatever changes were accepted since, here or on another machine. Returns whether it is known to be
        this run's: without a checkpoint or a result here, what is there may be. Raises StorageError."""
        with store_errors(self.url):
            names = self._copy.names()
            there = None if self._shares_a_step(names) else self._newest_manifest(names)
        here = self._held()
        problems = [] if there is None else others_run(there, here, self._spec, self._allowed)
        if there is not None and problems:
            raise OtherRunError(with_way_out(problems, self.url, self._spec, there))
        return there is None or here is not None

    def _held(self) -> dict[str, Any] | None:
        """The manifest of the newest checkpoint here or, without one, of the result, unless that is another run's."""
        held = what_is_held(self._run_dir)
        is_others = held is not None and ALONE in held and spec_changes(held, self._spec, self._allowed)[0]
        return None if is_others else held

    def is_finished_here(self) -> bool:
        """Whether nothing is left to do by what is here."""
        return is_finished(self._run_dir, self._spec)

    def _shares_a_step(self, names: Mapping[str, int]) -> bool:
        """Whether the newest checkpoint that is in both places is the same, by its manifest with all its hashes."""
        for step in sorted(committed_in(names) & set(self._run_dir.committed_steps()), reverse=True)[:1]:
            there = self._copy.manifest(checkpoint_name(step))
            try:
                return there is not None and there == read_manifest(self._run_dir.checkpoint(step))
            except NotReadError:
                raise
            except StorageError:
                return False
        return False

    def newest_manifest(self) -> dict[str, Any] | None:
        """Of the newest whole checkpoint there that has a readable one, else of the result; None: there is none. Raises
        StorageError."""
        with store_errors(self.url):
            return self._newest_manifest(self._copy.names())

    def _newest_manifest(self, names: Mapping[str, int]) -> dict[str, Any] | None:
        directories = [checkpoint_name(step) for step in sorted(committed_in(names), reverse=True)]
        found = (self._copy.manifest(name) for name in (*directories, FINAL) if f"{name}/{MANIFEST}" in names)
        return next((manifest for manifest in found if manifest is not None), None)

    def newest_step(self) -> int | None:
        """Step of the newest whole checkpoint there that is of use here; None: there is none. Raises StorageError."""
        with store_errors(self.url):
            return next(iter(self._steps(self._copy.names())), None)

    def _steps(self, names: Mapping[str, int]) -> list[int]:
        """Of whole checkpoints there, newest first, without those that only end the run, where it has gone on here."""
        aside = self._run_dir.steps_left_aside()
        beyond = {step for step in committed_in(names) & aside if self._copy.only_ends(step)}
        return sorted(committed_in(names) - beyond, reverse=True)

    def restore(self, say: Callable[[str], None]) -> int | None:
        """Bring back the newest intact checkpoint, where it is newer than what is here, the best one, the result, and
        the run's other files; of those that are here none that tell of more steps. Where the newest only ends the run,
        also the one before, which a longer run goes on from. Only the lease holder may call it.

        Returns the newest one's step; None: there is none. Checkpoints come last and whole, so that a restore that was
        cut off is made again, and what it has left is removed. Raises StorageError.
        """
        self._clear()
        try:
            return self._restored(say)
        finally:
            self._report_before = state(self._run_dir.report)

    def _restored(self, say: Callable[[str], None]) -> int | None:
        intact = newest_intact(self._run_dir)
        here = [step for step in whole_steps(self._run_dir) if intact is not None and step <= intact]
        with store_errors(self.url):
            names = self._copy.names()
            steps = self._steps(names)
            there = furthest(steps, self._copy.text("report.json") or "")
            is_as_far = furthest(here, _bytes(self._run_dir.report)) >= there
            for name in names:
                local = self._run_dir.root / name
                if is_plain(name) and not name.startswith(f"{FINAL}/") and not (is_as_far and local.exists()):
                    self._copy.fetch(name, local)
            if f"{FINAL}/{MANIFEST}" in names and not (is_as_far and self._run_dir.final.exists()):
                self._bring_result(names, say)
            best = self._copy.linked("best")
            newest, have = max(here, default=-1), set(here)
            if best is not None and best in steps and self._comes(best, have, names, say):
                self._run_dir.set_link("best", best)
            brought = self._newest_brought([step for step in steps if step > newest], have, names, say)
            if brought is not None:
                self._run_dir.set_link("last", brought)
        return brought

    def _newest_brought(
        self, steps: Sequence[int], have: set[int], names: Mapping[str, int], say: Callable[[str], None]
    ) -> int | None:
        """The first of these checkpoints that comes; None: none does. One that only ends the run comes behind the next
        one: a restore that is cut off between them is made again."""
        for number, step in enumerate(steps, 1):
            if self._copy.only_ends(step):
                self._newest_brought(steps[number:], have, names, say)
            if self._comes(step, have, names, say):
                return step
        return None

    def _comes(self, step: int, have: set[int], names: Mapping[str, int], say: Callable[[str], None]) -> bool:
        """Whether a checkpoint is here, or was brought, which `have` gets. A damaged one is spoken of, once."""
        if step not in have and step not in self._damaged and self._bring_checkpoint(step, names, say):
            have.add(step)
        return step in have

    def _clear(self) -> None:
        """Put right what a start that was killed has left under temporary names."""
        for parent in (self._run_dir.root, self._run_dir.checkpoints):
            put_back_displaced(parent)
            remove_stale(parent)

    def _bring_result(self, names: Mapping[str, int], say: Callable[[str], None]) -> None:
        """Where it is not here already. One that is damaged there is spoken of: it can be made again."""
        final = self._run_dir.final
        try:
            if read_manifest(final) == self._copy.manifest(FINAL) and not faults(final, read_manifest(final)):
                return
        except NotReadError:
            raise
        except StorageError:
            pass  # there is none here, or it is damaged
        with self._fetched(FINAL, names) as staged:
            try:
                verify_result(staged)
            except NotReadError:
                raise
            except StorageError as error:
                say(f"the result in {self.url} is damaged and is not used: {error}")
                return
            keep, said = keep_aside(final, staged)
            if said:
                say(said)
            with storage_errors(final):
                replace_directory(staged, final, keep=keep)

    def _bring_checkpoint(self, step: int, names: Mapping[str, int], say: Callable[[str], None]) -> bool:
        """False where its bytes are not those that were saved, which is spoken of. Raises what keeps it from coming:
        a disk here that is full, or cannot be read for a moment, is no damage there."""
        name, place = checkpoint_name(step), self._run_dir.checkpoint(step)
        manifest = self._copy.manifest(name)
        if manifest is None or not sizes_fit(manifest, name, names):
            return self._is_damaged(step, "its files are not as its manifest has them", say)
        with self._fetched(name, names) as staged:
            try:
                verify_directory(staged)
            except NotReadError:
                raise
            except StorageError as error:
                return self._is_damaged(step, str(error), say)
            with storage_errors(place):
                if place.exists():
                    say(f"{place} is damaged; it is now {self._run_dir.set_aside(step)}")
                staged.rename(place)
        return True

    def _is_damaged(self, step: int, why: str, say: Callable[[str], None]) -> bool:
        """False; it is told of, and neither asked for again nor taken for one that is there."""
        self._damaged.add(step)
        say(f"checkpoint step-{step} of {self.url} is damaged and is not used: {why}")
        return False

    @contextmanager
    def _fetched(self, directory: str, names: Mapping[str, int]) -> Iterator[Path]:
        """For the duration, a directory of the copy as it is there, under a temporary name beside its place."""
        place = self._run_dir.root / directory
        staged, prefix = place.with_name(stage_name(place.name)), f"{directory}/"
        try:
            for name in names:
                if name.startswith(prefix) and is_plain(name.removeprefix(prefix)):
                    self._copy.fetch(name, staged / name.removeprefix(prefix))
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def upload(self) -> None:
        """Copy what is new. Raises StorageError, also where another run is there, or another process has begun to send
        since; what was copied stays, and the next call goes on."""
        with store_errors(self.url):
            if self._sender is not None and not self._is_owned():
                self._sender = None  # another one has come, and gone
        if self._sender is None:
            self._sender = self._begun()
        with store_errors(self.url):
            self._sender.send()

    def release(self) -> None:
        """Nothing more is sent from here: who had the place before may have it again. Raises StorageError."""
        with store_errors(self.url):
            if self._sender is not None and self._copy.text(OWNER) == self._owner():
                self._copy.remove(OWNER)
        self._sender = None

    def _is_owned(self) -> bool:
        """Whether this process is the one that sends; False where none is. Raises TakenError where another is."""
        held = self._copy.text(OWNER)
        if held in (None, self._owner()):
            return held is not None
        what = "another start of a run with this name has begun to copy to this place since"
        hint = "nothing is sent from here until it ends; where it was killed, this command given again has the place"
        raise TakenError(what, where=self.url, hint=hint)

    def _require_owned(self) -> None:
        if not self._is_owned():
            raise TakenError("another start has copied to this place since", where=self.url, hint=_AGAIN)

    def _begun(self) -> Sender:
        """What sends from now on, alone. What others have sent since this run began is looked at first."""
        try:
            known = self.require_ours()
        except OtherRunError as error:  # this run has trained: only its copy has no place
            raise StorageError(error.problems) from error
        if not known:
            what = "a result is there that may be another run's, and is compared with the first checkpoint here"
            raise StorageError(what, where=self.url, hint="nothing is sent until then")
        with store_errors(self.url):
            keep = self._spec.checkpoint.keep
            sender = Sender(
                self._run_dir,
                self._copy,
                keep,
                damaged=self._damaged,
                owned=self._require_owned,
                report_before=self._report_before,
            )
            self._copy.write(OWNER, self._owner())
        return sender

    def _owner(self) -> str:
        return json.dumps({"token": self._token, "host": socket.gethostname()}) + "\n"


def whole_steps(run_dir: RunDir) -> list[int]:
    """Steps whose checkpoints are here with all their files, by these files' sizes, or cannot be read now; newest
    first."""
    return [step for step in run_dir.committed_steps() if not _is_damaged(run_dir, step, hashes=False)]


def newest_intact(run_dir: RunDir) -> int | None:
    """Of the checkpoints here; all of its bytes are read, as a start reads them anyway. Raises NotReadError where one
    that may be it cannot be read now: it would be taken for damaged, and an older one be gone on from."""
    return next((step for step in run_dir.committed_steps() if not _is_damaged(run_dir, step, hashes=True)), None)


def _is_damaged(run_dir: RunDir, step: int, *, hashes: bool) -> bool:
    try:
        verify_directory(run_dir.checkpoint(step), hashes=hashes)
    except NotReadError:
        if hashes:
            raise
        return False
    except StorageError:
        return True
    return False


def _bytes(path: Path) -> bytes:
    with not_read_errors(path):
        return path.read_bytes() if there(path) else b""
