"""The small local files that a run spec names by relative paths, read so that they can travel with the run."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from rankzero.errors import DataError
from rankzero.launch.plan import MOST_SHIPPED_BYTES
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.names import PLAIN_TEMPLATE
from rankzero.spec.run_spec import RunSpec


def local_files(run: RunSpec) -> dict[str, bytes]:
    """Contents by relative path in its shortest form. What does not exist here is left out, and so is a Hub id.

    Reads little more than can be shipped: a file that is too large is represented by as many bytes as show that.
    Raises DataError where a file cannot be read.
    """
    contents: dict[str, bytes] = {}
    for path in [*_model_paths(run), *_data_paths(run)]:
        if Path(path).is_absolute():
            continue
        for name in [path] if Path(path).exists() else sorted(glob.glob(path, recursive=True)):
            root = Path(name)
            for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
                if file.is_file():
                    contents[os.path.normpath(file)] = _read(file)
    return contents


def _model_paths(run: RunSpec) -> list[str]:
    template = None if run.data.chat_template == PLAIN_TEMPLATE else run.data.chat_template
    given = [run.model.local_dir or run.model.name, run.model.tokenizer_dir, template, run.train.deepspeed]
    return [path for path in given if path]


def _data_paths(run: RunSpec) -> list[str]:
    given: list[str] = []
    for sources in (run.data.train, run.data.eval):
        if isinstance(sources, str):
            given.append(sources)
        elif isinstance(sources, tuple):
            given += [path for source in sources for path in (source.path, source.image_root) if path]
    meant = [parse_data_path(path, lambda name: Path(name).exists()) for path in given]
    return [path.path for path in meant if path.place == "local"]


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(MOST_SHIPPED_BYTES + 1)
    except OSError as error:
        raise DataError(f"cannot read it: {error.strerror or error}", where=str(file)) from error
