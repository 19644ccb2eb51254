"""Object stores around a run's nodes: directories filled before it, and its results copied while it trains."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rankzero.errors import ConfigError
from rankzero.launch.node.client import Say
from rankzero.launch.node.settings import NodeSettings
from rankzero.persist.copying import bring_back, copied, settled_by_copies
from rankzero.persist.following import download_tree
from rankzero.persist.run_store import RunStore, copy_url
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec


def downloaded(settings: NodeSettings, say: Say, stopped: Callable[[], bool]) -> None:
    """Fill the directories that come from an object store. Raises StorageError, ConfigError or StoppedError."""
    for mirror in settings.mirrors:
        if mirror.direction == "download":
            fetched = download_tree(mirror.url, Path(mirror.path), stopped)
            say(f"{mirror.path}: {fetched} files fetched from {mirror.url}")


def settled_there(spec: RunSpec, settings: NodeSettings, say: Say) -> RunSpec:
    """The spec with the name that it runs under, which may be decided by what only the stores have. Every node asks,
    and hears the same. Raises StorageError where they do not answer."""
    if spec.resume != "new":
        return spec
    return settled_by_copies(spec, _copy_urls(spec, settings), say, in_pods=True)


def _copy_urls(spec: RunSpec, settings: NodeSettings) -> list[str]:
    """Where copies of the run directory go. Raises ConfigError."""
    root = Path(spec.output_dir) / str(spec.name)
    uploads = [mirror for mirror in settings.mirrors if mirror.direction == "upload"]
    for mirror in uploads:
        if not root.is_relative_to(mirror.path):
            hint = f"set output_dir to a directory below {mirror.path}"
            raise ConfigError(f"{root} is not in {mirror.path}, which is copied to {mirror.url}", hint=hint)
    urls = [posixpath.join(mirror.url, root.relative_to(mirror.path).as_posix()) for mirror in uploads]
    return urls + [url for url in [copy_url(spec)] if url is not None and url not in urls]


@contextmanager
def mirrored(spec: RunSpec, settings: NodeSettings, node: int, say: Say) -> Iterator[None]:
    """For the duration, results go to their store. Only node 0 copies them.

    Raises ConfigError before the run where a store has another one under its name, StorageError at the end where the
    last copy failed: results that are not where they should be are no success.
    """
    urls = _copy_urls(spec, settings) if node == 0 else []
    if not urls:
        yield
        return
    run_dir = RunDir(Path(spec.output_dir) / str(spec.name))
    stores = [RunStore(run_dir, url, spec, settings.options.allow_changes) for url in urls]
    for store in stores:
        bring_back(run_dir, store, say)
    with copied(stores, say) as failures:
        yield
    if failures:
        raise failures[0]
