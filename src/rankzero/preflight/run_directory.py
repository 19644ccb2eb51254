"""Whether the run directory can be made and written, and is free. Looks; makes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from rankzero.errors import StorageError
from rankzero.preflight.finding import Finding
from rankzero.run_dir.lease import holder
from rankzero.run_dir.paths import RunDir
from rankzero.spec.load import Loaded
from rankzero.spec.local_paths import in_base
from rankzero.spec.nearby import shown
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec


def run_directory_findings(found: Loaded[RunSpec]) -> list[Finding]:
    """Why no run can be written there, or should not be."""
    name, output_dir = str(resolve(found.spec).name), found.spec.output_dir
    if "://" in output_dir:
        hint = "run directories are on a file system; a cluster.yaml can copy results to an object store"
        return [Finding("output_dir", f"{output_dir} is no directory", hint)]
    root = Path(in_base(output_dir, found.base)) / name
    here = Path(in_base(output_dir, Path.cwd())) / name
    if not root.exists() and here != root and RunDir(here).spec.is_file():
        what = f"this run is in {shown(here)} already, and relative paths of a spec are relative to its file"
        hint = f"move it to {shown(root)}, or give output_dir={output_dir} on the command line to continue it there"
        return [Finding("output_dir", what, hint)]
    return _not_writable(root) or _held(root)


def _not_writable(root: Path) -> list[Finding]:
    there = next(path for path in (root, *root.parents) if os.path.lexists(path))
    if not there.is_dir():
        return [Finding("output_dir", f"{shown(there)} is a file, where a directory is needed", error=StorageError)]
    if not os.access(there, os.W_OK | os.X_OK):
        hint = "set output_dir to a directory that can be written"
        return [Finding("output_dir", f"nothing can be written to {shown(there)}", hint, StorageError)]
    return []


def _held(root: Path) -> list[Finding]:
    who = holder(root)
    if who is None:
        return []
    hint = "wait for it, stop it, or give this run another name"
    return [Finding("output_dir", f"{shown(root)} is in use by {who}", hint, StorageError)]
