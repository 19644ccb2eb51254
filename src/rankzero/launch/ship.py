"""The small local files that a run spec names by relative paths, read so that they can travel with the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankzero.errors import DataError
from rankzero.launch.plan import MOST_SHIPPED_BYTES
from rankzero.spec.run_spec import RunSpec


def local_files(run: RunSpec) -> dict[str, bytes]:
    """Contents by relative path. What does not exist is left out, and a Hub id that is no directory here too.

    Reads little more than can be shipped: a file that is too large is represented by as many bytes as show that.
    Raises DataError where a file cannot be read.
    """
    contents: dict[str, bytes] = {}
    for name in _paths(run):
        root = Path(name)
        if root.is_absolute() or "://" in name or not root.exists():
            continue
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if file.is_file():
                contents[file.as_posix() if root.is_dir() else name] = _read(file)
    return contents


def _paths(run: RunSpec) -> Iterator[str]:
    yield from (path for path in (run.model.local_dir or run.model.name, run.model.tokenizer_dir) if path)
    for sources in (run.data.train, run.data.eval):
        if isinstance(sources, str):
            yield sources
        elif isinstance(sources, tuple):
            yield from (source.path for source in sources)
    if run.data.chat_template is not None:
        yield run.data.chat_template


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_SHIPPED_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read it: {error.strerror or error}", where=str(file)) from error
