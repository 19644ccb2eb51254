"""Object stores around a run: directories filled before it, and its results copied while it trains."""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rankzero.errors import ConfigError, StorageError
from rankzero.launch.node.client import Say
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.node.store import RunStore, download_tree
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec

INTERVAL_SECONDS = 15.0
LAST_ATTEMPTS = 3


def downloaded(settings: NodeSettings, say: Say, stopped: Callable[[], bool]) -> None:
    """Fill the directories that come from an object store. Raises StorageError, ConfigError or StoppedError."""
    for mirror in settings.mirrors:
        if mirror.direction == "download":
            fetched = download_tree(mirror.url, Path(mirror.path), stopped)
            say(f"{mirror.path}: {fetched} files fetched from {mirror.url}")


@contextmanager
def mirrored(spec: RunSpec, settings: NodeSettings, node: int, say: Say, stopped: Callable[[], bool]) -> Iterator[None]:
    """Downloads first; for the duration, results go to their store. Only node 0 copies results.

    Raises StorageError at the end where the last copy failed: results that are not where they should be are no success.
    """
    downloaded(settings, say, stopped)
    root = Path(spec.output_dir) / str(spec.name)
    uploads = [mirror for mirror in settings.mirrors if mirror.direction == "upload"] if node == 0 else []
    if not uploads:
        yield
        return
    for mirror in uploads:
        if not root.is_relative_to(mirror.path):
            hint = f"set output_dir to a directory below {mirror.path}"
            raise ConfigError(f"{root} is not in {mirror.path}, which is copied to {mirror.url}", hint=hint)
    stores = [
        RunStore(RunDir(root), posixpath.join(mirror.url, root.relative_to(mirror.path).as_posix()))
        for mirror in uploads
    ]
    for store in stores:
        if not RunDir(root).committed_steps():
            step = store.restore(say)
            if step is not None:
                say(f"step {step} brought back from {store.url}")
    ended = threading.Event()
    thread = threading.Thread(target=_copy_until, args=(ended, stores, say), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for store in stores:
            _last_copy(store, say)


def _copy_until(ended: threading.Event, stores: list[RunStore], say: Say) -> None:
    while not ended.wait(INTERVAL_SECONDS):
        for store in stores:
            try:
                store.upload()
            except StorageError as error:
                say(f"{error}; tried again in {INTERVAL_SECONDS:.0f} s")


def _last_copy(store: RunStore, say: Say) -> None:
    for attempt in range(1, LAST_ATTEMPTS + 1):
        try:
            store.upload()
        except StorageError as error:
            say(f"{error} (attempt {attempt} of {LAST_ATTEMPTS})")
            if attempt == LAST_ATTEMPTS:
                raise
        else:
            say(f"results copied to {store.url}")
            return
