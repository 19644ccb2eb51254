"""Which module of transformers defines what: read once, and kept for the processes to come.

Importing transformers looks through the text of each of its models' modules, some 2,500 files, for the names in their
`__all__`, and importing `transformers.models` does it again: its cache of 128 folders is smaller than the 550 that it
passes through in turn. Only processes of ours are told anything, and only what those files said when they were read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

_MODULE, _NAME = "transformers.utils.import_utils", "define_import_structure"
_PARAMETERS = ["module_path", "prefix"]
Structure = dict[frozenset[str], dict[str, set[str]]]
"""By what has to be installed, the names that each module defines."""


def keep_import_structure() -> None:
    """From now on in this process, where transformers is not imported yet."""
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds one module, once."""

    def find_spec(self, name: str, path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return None
        sys.meta_path.remove(self)  # nobody goes on through the list, which would leave the next one out
        return importlib.util.spec_from_file_location(name, spec.origin, loader=_Loader(name, spec.origin))


class _Loader(SourceFileLoader):
    """The module as it is, but for one function; with another one than is known here, as it is."""

    def exec_module(self, module: ModuleType) -> None:
        import inspect  # which transformers has imported

        super().exec_module(module)
        define = getattr(module, _NAME, None)
        if callable(define) and list(inspect.signature(define).parameters) == _PARAMETERS:
            setattr(module, _NAME, _of_models_kept(define, self.path))


def _of_models_kept(define: Callable[..., Structure], its_file: str) -> Callable[..., Structure]:
    """The function that says of a folder what its modules define, by itself or by a module in it; each caller may
    change what it gets."""
    known: dict[Path, Structure] = {}

    def define_import_structure(module_path: str | Path, prefix: str | None = None) -> Structure:
        path = Path(module_path)
        folder = path.parent if path.is_file() else path
        if folder.name != "models":
            return define(module_path, prefix)
        if folder not in known:
            known[folder] = _kept(folder, define, its_file)
        before = "" if prefix is None else f"{prefix}."
        return {
            needed: {f"{before}{module}": set(names) for module, names in modules.items()}
            for needed, modules in known[folder].items()
        }

    return define_import_structure


def _kept(folder: Path, define: Callable[..., Structure], its_file: str) -> Structure:
    """What the modules in a folder define. A convenience: that it cannot be written is said where the cache matters."""
    from rankzero.errors import ConfigError, StorageError
    from rankzero.machine import cache_root
    from rankzero.run_dir.atomic import write_text

    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]
    try:
        record = cache_root() / "imports" / f"{name}.json"
    except ConfigError:  # no home
        return define(str(folder), None)
    state = _state(folder, its_file)
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        saved = json.loads(record.read_text(encoding="utf-8"))
        if saved["state"] == state:
            return {
                frozenset(needed): {module: set(names) for module, names in modules.items()}
                for needed, modules in saved["structure"]
            }
    found = define(str(folder), None)
    structure = [
        (sorted(needed), {module: sorted(names) for module, names in modules.items()})
        for needed, modules in found.items()
    ]
    with suppress(OSError, StorageError):
        write_text(record, json.dumps({"state": state, "structure": structure}))
    return found


def _state(folder: Path, its_file: str) -> str:
    """Another one once a module comes, goes or is changed, or the one that looks through them."""
    lines = "\n".join((_line(its_file, os.stat(its_file)), *_lines(str(folder))))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def _lines(folder: str) -> Iterator[str]:
    """Of each module below a folder."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _lines(entry.path)
            elif entry.name.endswith(".py"):
                yield _line(entry.path, entry.stat())


def _line(path: str, about: os.stat_result) -> str:
    return f"{path} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}"
