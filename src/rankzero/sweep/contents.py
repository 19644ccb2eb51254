"""What the files hold that trials are made of and evaluated on, so far as they are this machine's. Knows no run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankzero.data.read.local import local_files
from rankzero.directories import is_file
from rankzero.errors import DataError, Problem
from rankzero.machine import cache_root
from rankzero.run_dir.atomic import file_sha256
from rankzero.run_dir.unread import unread
from rankzero.spec.local_paths import PathField, in_base, local_part, path_fields, with_paths
from rankzero.spec.run_spec import EvalFraction, ModelSpec, RunSpec, SourceSpec
from rankzero.spec.sweep_load import Sweep, common_spec

Fingerprint = Callable[[RunSpec], str]
"""Tells two base models apart whose files are here."""


_SAID_BYTES = 1 << 30
"""Reading fewer takes a moment that needs no words."""


class Digests:
    """What files hold, each of which is read once in a start of a sweep, however often it is asked for."""

    def __init__(self, sweep: Sweep, say: Callable[[str], None]) -> None:
        self._for_pods, self._say = sweep.for_pods, say
        self._known: dict[str, str] = {}
        self._bytes = 0

    def of(self, name: str) -> str:
        """Raises OSError."""
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def of_rows(self, name: str) -> str:
        """With the kind, where the name decides how the bytes are read."""
        digest = self.of(name)
        if self._for_pods:
            return digest
        from rankzero.data.read.containers.layout import named_kind

        kind = named_kind(name)
        return f"{digest}:{kind}" if kind else digest

    def _read(self, name: str) -> str:
        if self._for_pods:  # a small one, by a launcher that may not have what reads rows
            return file_sha256(Path(name))
        from rankzero.data.read.hashing import file_digest, remembered_digest

        if remembered_digest(name, cache_root()) is None:
            before, self._bytes = self._bytes, self._bytes + os.path.getsize(name)
            if before <= _SAID_BYTES < self._bytes:
                self._say(f"[STEP] read the sweep's files to know them: more than {_SAID_BYTES / 1e9:.1f} GB")
        return file_digest(name, cache_root())


def contents(sweep: Sweep, weights: Fingerprint, digests: Digests) -> dict[str, str]:
    """What stands at the places of the run that is varied, by the identities that runs are compared by: where that is
    here by its content, whatever its place is called, else by the name of the place, which is a Hub id, a URL or a path
    on a volume of pods. Raises DataError, ConfigError."""
    spec = common_spec(sweep)
    try:
        data = with_paths(spec, lambda field: _of_field(field, spec, sweep, digests)).data
        found = {
            "model": _base(spec, sweep, weights, digests),
            "tokenizer": [*_tokenizer(spec.model, sweep, digests), data.chat_template],
            "data": _sources(data.train),
            "eval_data": data.eval.model_dump() if isinstance(data.eval, EvalFraction) else _sources(data.eval),
        }
    except OSError as error:
        raise DataError(unread(error, sweep.run_base)) from error
    return {
        name: f"files:{hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()}"
        for name, what in found.items()
    }


def eval_files(sweep: Sweep, digests: Digests) -> str | None:
    """A digest of all that trials are evaluated on; None where there are none: a Hub data set, a URL, a volume of pods.

    A held-out share is of the training rows. Raises DataError, and StorageError where they cannot be read now.
    """
    spec = common_spec(sweep)
    part = "data.train" if isinstance(spec.data.eval, EvalFraction) else "data.eval"
    found: list[str] = []
    for field in path_fields(spec):
        path = _here(field, sweep) if field.kind == "data" and field.field.startswith(part) else None
        files = () if path is None else local_files(path)
        if isinstance(files, Problem):
            raise DataError(files)
        found += map(digests.of, files)
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else None


def _here(field: PathField, sweep: Sweep) -> str | None:
    """The path of this machine in a field; None where there is none."""
    part = local_part(field, sweep.run_base)
    return None if part is None or (sweep.for_pods and os.path.isabs(part.path)) else in_base(part.path, sweep.run_base)


def _of_field(field: PathField, spec: RunSpec, sweep: Sweep, digests: Digests) -> str:
    """What is at a path of rows or of a chat template, of images their directory's name; else the field as it is."""
    path = _here(field, sweep) if field.field.startswith("data.") else None
    if path is None:
        return field.text
    if field.kind == "directory":  # of images, of which each trial reads those that its rows name: by its name alone
        return os.path.basename(os.path.normpath(field.text))
    if field.kind == "file":
        return digests.of(path)
    files = local_files(path)
    if isinstance(files, Problem):
        raise DataError(files)
    part = local_part(field, sweep.run_base)
    rest = "" if part is None else part.rest
    if spec.data.streaming and field.field.startswith("data.train"):  # a run reads no file to know it either
        return _listed(files) + rest
    return " ".join(map(digests.of_rows, files)) + rest


def _listed(files: tuple[str, ...]) -> str:
    """Names and sizes, which a copy keeps as well; times it may not, and a trial that goes on compares them itself."""
    root = os.path.dirname(files[0])
    return json.dumps([[os.path.relpath(name, root), os.path.getsize(name)] for name in files])


def _sources(given: str | tuple[SourceSpec, ...] | None) -> list[dict[str, Any]]:
    """One source or several, in one form."""
    several = [SourceSpec(path=given)] if isinstance(given, str) else given or ()
    return [source.model_dump(mode="json", exclude_defaults=True) for source in several]


def _base(spec: RunSpec, sweep: Sweep, weights: Fingerprint, digests: Digests) -> list[Any]:
    """The base by its content, else its name."""
    place = _model(spec.model, sweep)
    if place is None:
        return [spec.model.name, spec.model.local_dir]
    return [digests.of(place) if is_file(place) else weights(spec)]  # a GGUF file is made a directory later


def _model(model: ModelSpec, sweep: Sweep) -> str | None:
    """Where the base is, if it is here; to pods no model is shipped."""
    if sweep.for_pods or model.local_dir is not None:
        return None if sweep.for_pods else model.local_dir
    return _here(PathField("model.name", "model", model.name), sweep)


def _tokenizer(model: ModelSpec, sweep: Sweep, digests: Digests) -> list[Any]:
    """The tokenizer's files by their content, else its name."""
    place = _model(model, sweep) if sweep.for_pods or model.tokenizer_dir is None else model.tokenizer_dir
    if place is None:
        return [model.tokenizer_dir or model.local_dir or model.name]
    if is_file(place):
        return [digests.of(place)]  # a GGUF file, which has its tokenizer in it
    from rankzero.data.cache.known_tokenizers import tokenizer_files

    return tokenizer_files(Path(place), cache_root())
