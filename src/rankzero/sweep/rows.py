"""What the files hold that trials are evaluated on, so far as they are this machine's. Knows no run."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rankzero.data.read.local import local_files
from rankzero.machine import cache_root
from rankzero.run_dir.atomic import file_sha256
from rankzero.spec.local_paths import in_base, local_part, path_fields
from rankzero.spec.run_spec import EvalFraction
from rankzero.spec.sweep_load import Sweep, common_spec


def eval_files(sweep: Sweep) -> str | None:
    """A digest of all of them; None where there are none: a Hub data set, a URL, a volume of pods.

    A held-out share is of the training rows.
    """
    spec = common_spec(sweep)
    part = "data.train" if isinstance(spec.data.eval, EvalFraction) else "data.eval"
    digests = []
    for field in path_fields(spec):
        path = local_part(field, sweep.run_base) if field.kind == "data" and field.field.startswith(part) else None
        if path is None or (sweep.for_pods and os.path.isabs(path.path)):
            continue
        found = local_files(in_base(path.path, sweep.run_base))
        digests += [_digest(name, shipped=sweep.for_pods) for name in found] if isinstance(found, tuple) else []
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else None


def _digest(name: str, *, shipped: bool) -> str:
    if shipped:  # a small one, by a launcher that may not have what reads rows
        return file_sha256(Path(name))
    from rankzero.data.read.hashing import file_digest

    return file_digest(name, cache_root())
