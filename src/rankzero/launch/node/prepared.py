"""The marker that the preparation Job leaves on the cache volume, and the wait of training pods for it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rankzero import errors
from rankzero.errors import NEVER_RETRIED, Problem, RankzeroError, ServiceError, StoppedError, StorageError
from rankzero.launch.node.client import Say, Wait
from rankzero.launch.node.settings import PREPARE_RESTARTS
from rankzero.run_dir.atomic import write_json
from rankzero.spec.resolve import spec_hash
from rankzero.spec.run_spec import RunSpec

LIMIT_SECONDS = 24 * 3600.0
"""Weights of hundreds of gigabytes take hours; a Job that fails says so in the marker at once."""
POLL_SECONDS = 1.0
BEAT_SECONDS = 30.0
SILENT_SECONDS = 600.0
"""Longer than a pod takes to be replaced where there is room for it."""


def own_marker(path: str, submission: str) -> Path:
    """The marker of a submission, where submissions have names: clusters whose namespaces are called the same may share
    a cache, and a run of one must not take the marker of a run of another."""
    return Path(path).with_suffix(f".{submission}.json" if submission else ".json")


def begin(path: Path, spec: RunSpec, submission: str) -> int:
    """Say that the preparation is under way; in this submission and spec it is the n-th start. Raises StorageError."""
    before = _read(path) or {}
    goes_on = _is_ours(before, spec, submission) and before.get("ok") is None
    starts = int(before.get("starts", 0)) + 1 if goes_on else 1
    _write(path, spec, submission, ok=None, starts=starts)
    return starts


@contextmanager
def beating(path: Path) -> Iterator[None]:
    """Touch the marker for the duration, so that those who wait see that somebody is at work."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            with suppress(OSError):  # what cannot be touched cannot be written either, which is spoken of
                os.utime(path)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def end(path: Path, spec: RunSpec, submission: str, error: RankzeroError | None, *, starts: int) -> None:
    """Say that everything of this spec is in the cache, or why it never will be. Raises StorageError.

    What the Job tries again is not an end, and neither is a stop: those who wait go on waiting.
    """
    if error is None:
        _write(path, spec, submission, ok=True, starts=starts)
    elif error.exit_code in NEVER_RETRIED or (starts > PREPARE_RESTARTS and not isinstance(error, StoppedError)):
        _write(path, spec, submission, ok=False, starts=starts, error=error)


def _write(
    path: Path, spec: RunSpec, submission: str, *, ok: bool | None, starts: int, error: RankzeroError | None = None
) -> None:
    problems = [] if error is None else [{"what": p.what, "where": p.where, "hint": p.hint} for p in error.problems]
    kind = None if error is None else type(error).__name__
    said = {"ok": ok, "error": kind, "problems": problems}
    write_json(path, {"spec": spec_hash(spec), "submission": submission, "starts": starts, **said})


def _is_ours(marker: dict[str, Any], spec: RunSpec, submission: str) -> bool:
    return marker.get("spec") == spec_hash(spec) and marker.get("submission", "") == submission


def _ours(place: str, spec: RunSpec, submission: str) -> tuple[Path, dict[str, Any] | None]:
    """Where the marker of this spec and submission is, or is to come, and what it says. A version of rankzero that knew
    no other names has left it at `place` itself, and pods that are made anew may have a newer one."""
    own = own_marker(place, submission)
    for path in dict.fromkeys((own, Path(place))):
        marker = _read(path)
        if marker is not None and _is_ours(marker, spec, submission):
            return path, marker
    return own, None


def wait_for_marker(place: str, spec: RunSpec, submission: str, stopped: Callable[[], bool], say: Say) -> None:
    """Return when the preparation of this spec and submission is done, or `stopped` becomes true.

    Raises the preparation's own error; ServiceError where it dies without a word as often as it may, or after
    LIMIT_SECONDS. A marker of another spec or submission is an older one's. Where submissions have no name, a failure
    that was there already is believed only when nothing has replaced it for SILENT_SECONDS.
    """
    wait = Wait(LIMIT_SECONDS, say)
    seen: int | None = None
    changed, quiet_since = False, time.monotonic()
    while not stopped():
        path, marker = _ours(place, spec, submission)
        touched = _touched(path)
        if touched != seen:
            changed, seen, quiet_since = changed or seen is not None, touched, time.monotonic()
        silent = time.monotonic() - quiet_since > SILENT_SECONDS
        if marker is not None:
            if marker["ok"]:
                return
            if marker["ok"] is False and (submission or changed or silent):
                kind = getattr(errors, str(marker["error"]), RankzeroError)
                raise kind([Problem(**problem) for problem in marker["problems"]])
            if marker["ok"] is None and int(marker["starts"]) > PREPARE_RESTARTS and silent:
                what = f"the preparation was started {marker['starts']} times and ended each time without a word"
                raise ServiceError(what, where=str(path), hint="see `rankzero status`: it may lack memory")
        if wait.over:
            hint = "see `rankzero status`: the preparation Job has not ended"
            raise ServiceError(
                f"model and data were not prepared in {wait.seconds / 3600:.0f} h", where=str(path), hint=hint
            )
        wait.speak("the preparation Job")
        time.sleep(POLL_SECONDS)


def _touched(path: Path) -> int | None:
    """By the volume's own clock: only whether it changes is looked at."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        hint = "the cache volume must be readable by this pod's user"
        raise StorageError(f"cannot be read: {error.strerror or error}", where=str(path), hint=hint) from error
    return value if isinstance(value, dict) and "ok" in value else None
