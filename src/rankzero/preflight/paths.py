"""Whether the files that a spec names are there. Knows what paths mean; looks at names, kinds and first bytes."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

from rankzero.data.read.local import local_files
from rankzero.errors import ConfigError, DataError, Problem
from rankzero.preflight.finding import Finding
from rankzero.spec.load import Loaded
from rankzero.spec.local_paths import LocalPart, PathField, in_base, local_part, path_fields
from rankzero.spec.nearby import near, shown
from rankzero.spec.run_spec import RunSpec

_MOST_PROBED = 50
"""Data files of which the beginning is looked at."""


def path_findings(found: Loaded[RunSpec]) -> list[Finding]:
    """What is missing, unreadable, or of another kind than it has to be."""
    findings = []
    for field in path_fields(found.spec):
        part = local_part(field, found.base)
        if part is not None and field.kind != "output":
            findings += _of_field(field, in_base(part.path, found.base))
    return findings


def misplaced(found: Loaded[RunSpec]) -> list[Finding]:
    """Relative paths of a spec in another directory that only mean something in the working directory."""
    if found.base == Path.cwd():
        return []
    findings = []
    for field in path_fields(found.spec):
        part = local_part(field, found.base) or _here(field)
        if part is None or field.kind == "output" or os.path.isabs(os.path.expanduser(part.path)):
            continue
        if not _exists(part.path, found.base) and _exists(part.path, Path.cwd()):
            way = os.path.relpath(part.path, found.base)
            hint = f"write {way}, or give {field.field}={part.path} on the command line"
            meant = shown(in_base(part.path, found.base))
            what = (
                f"there is no {meant}: relative paths of a spec are relative to its file, "
                f"and only the working directory has {part.path}"
            )
            findings.append(Finding(field.field, what, hint, DataError if field.kind == "data" else ConfigError))
    return findings


def _here(field: PathField) -> LocalPart | None:
    """The path in a field as the working directory sees it: what looks like a Hub id may be a directory there."""
    return local_part(field, Path.cwd()) if field.kind in ("model", "data") else None


def _exists(path: str, base: Path) -> bool:
    return os.path.exists(in_base(path, base)) or not isinstance(local_files(in_base(path, base)), Problem)


def _of_field(field: PathField, path: str) -> list[Finding]:
    if field.kind == "data":
        return [Finding(field.field, f"{shown(p.where or path)}: {p.what}", p.hint, DataError) for p in _data(path)]
    if field.kind == "file":
        return [Finding(field.field, what, hint) for what, hint in _file(field, path)]
    if field.kind == "model" and path.endswith(".gguf"):
        missing = [] if os.path.isfile(path) else [_no_such("file", path)]
        return [Finding(field.field, what, hint) for what, hint in missing]
    if os.path.isdir(path):
        return []
    if os.path.exists(path):
        return [Finding(field.field, f"{shown(path)} is a file, not a directory", _wanted(field))]
    what, hint = _no_such("directory", path)
    return [Finding(field.field, what, hint or _wanted(field))]


def _data(path: str) -> list[Problem]:
    found = local_files(path)
    if isinstance(found, Problem):
        return [found]
    problems = [Problem("may not be read by this user", name) for name in found if not os.access(name, os.R_OK)]
    if problems or importlib.util.find_spec("orjson") is None:
        return problems
    from rankzero.data.read.sources import probe

    probed = [(name, probe(name)) for name in found[:_MOST_PROBED]]
    return [Problem(problem.what, name, problem.hint) for name, problem in probed if problem is not None]


def _file(field: PathField, path: str) -> list[tuple[str, str]]:
    """Problems of a file that is read as a whole, as (what, hint)."""
    if os.path.isdir(path):
        return [(f"{shown(path)} is a directory, not a file", "")]
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return [_no_such("file", path)]
    except (OSError, UnicodeDecodeError) as error:
        return [(f"{shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}", "")]
    if field.field == "train.deepspeed":
        try:
            json.loads(text)
        except ValueError as error:
            return [(f"{shown(path)} is no JSON: {error}", "")]
    return []


def _no_such(kind: str, path: str) -> tuple[str, str]:
    close = near(path)
    return f"there is no {kind} {shown(path)}", f"did you mean {shown(close)}?" if close else ""


def _wanted(field: PathField) -> str:
    if field.field.endswith("image_root"):
        return "it is the directory that image paths are relative to"
    if field.field == "model.tokenizer_dir":
        return "give a directory with tokenizer.json"
    hub = " a Hub id (Qwen/Qwen3-8B)," if field.kind == "model" else ""
    return f"give{hub} a directory in Hugging Face format" + (" or a .gguf file" if field.kind == "model" else "")
