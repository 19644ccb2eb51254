"""The end of a run in a StatefulSet, which starts whatever leaves again: note the outcome, scale to zero, and stay."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankzero.launch.labels import OUTCOME
from rankzero.launch.node.pid1 import reap_orphans

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POLL_SECONDS = 0.5
RETRY_SECONDS = 60.0
"""Pods that stay hold their GPUs: where the API did not answer, it is asked again."""


def park(said: Mapping[str, Any], node: int, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Stay until asked to leave. Node 0 tells the StatefulSet, where it may."""
    say("this run has ended; the pod stays until it is deleted")
    tells = node == 0
    if tells and not (ACCOUNT / "token").exists():
        say("the pod has no service-account token to scale its StatefulSet to zero; `rankzero delete` does")
        tells = False
    next_try = 0.0
    while not stopped():
        if tells and time.monotonic() >= next_try:
            trouble = _tell(said)
            tells, next_try = bool(trouble), time.monotonic() + RETRY_SECONDS
            if trouble:
                say(f"the StatefulSet was not scaled to zero: {trouble}; tried again in {RETRY_SECONDS:.0f} s")
        reap_orphans(())
        time.sleep(POLL_SECONDS)


def _tell(said: Mapping[str, Any]) -> str:
    """Annotate and scale down our own StatefulSet. Returns what went wrong, if anything.

    Both through its subresources: who may patch the object itself may make pods of any image and account.
    """
    from lightkube import Client
    from lightkube.resources.apps_v1 import StatefulSetScale, StatefulSetStatus
    from lightkube.types import PatchType

    name = os.environ.get("POD_NAME", "").rpartition("-")[0]
    note = {"metadata": {"annotations": {OUTCOME: json.dumps(dict(said))}}}
    try:
        client = Client(namespace=(ACCOUNT / "namespace").read_text(encoding="utf-8").strip())
        client.patch(StatefulSetStatus, name, note, patch_type=PatchType.MERGE)
        client.patch(StatefulSetScale, name, {"spec": {"replicas": 0}}, patch_type=PatchType.MERGE)
    except Exception as error:  # a parked pod that leaves is started again, so whatever it is, it is said and retried
        return f"{type(error).__name__}: {error}"
    return ""
