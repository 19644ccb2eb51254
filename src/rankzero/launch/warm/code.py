"""Whether warm pods have the rankzero of this machine: each is asked, as hosts may keep other images of one name."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rankzero.errors import Problem
from rankzero.launch.backend import Backend
from rankzero.launch.node.code import Code, this_code
from rankzero.launch.warm.each import each
from rankzero.launch.warm.pods import WarmPod

_PROGRAM = ["python", "-P", "-m", "rankzero.launch.node.code"]


def other_code(backend: Backend, pods: Sequence[WarmPod]) -> list[Problem]:
    """One finding for each other rankzero that pods have. It need not matter: what it does not know is refused there.

    Raises ServiceError where a pod cannot be asked.
    """
    found = each(pods, lambda pod: _code_of(backend, pod.name))
    here, findings = this_code(), []
    for code in dict.fromkeys(found):
        if code == here:
            continue
        having = ", ".join(pod.name for pod, one in zip(pods, found, strict=True) if one == code)
        there = f"has {code}" if code is not None else "has a rankzero that is too old to say which, or none"
        hint = "fields that it does not know are unknown keys there; build the image from this version (make image),"
        hint += " then `rankzero dev down` and `dev up`"
        findings.append(Problem(f"its image {there}, and this is {here}", f"pod {having}", hint))
    return findings


def _code_of(backend: Backend, pod: str) -> Code | None:
    """None where it has none that says so."""
    out: list[bytes] = []
    ended = backend.execute(pod, _PROGRAM, out.append)
    if ended.code:
        return None
    said = json.loads(b"".join(out))
    return Code(str(said["version"]), str(said["digest"]))
