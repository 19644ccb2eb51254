"""The end of a run in a StatefulSet, which starts whatever leaves again: note the outcome, scale to zero, and stay."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankzero.launch.labels import OUTCOME

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
POLL_SECONDS = 0.5


def park(said: Mapping[str, Any], node: int, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Stay until asked to leave. Node 0 first tells the StatefulSet, where it may."""
    if node == 0:
        trouble = _tell(said)
        if trouble:
            say(f"the StatefulSet was not scaled to zero: {trouble}; `rankzero delete` ends it")
    say("this run has ended; the pod stays until it is deleted")
    while not stopped():
        time.sleep(POLL_SECONDS)


def _tell(said: Mapping[str, Any]) -> str:
    """Annotate and scale down our own StatefulSet. Returns what went wrong, if anything."""
    if not (ACCOUNT / "token").exists():
        return "the pod has no service-account token"
    from lightkube import ApiError, Client
    from lightkube.core.exceptions import ConfigError as NoConfig
    from lightkube.resources.apps_v1 import StatefulSet
    from lightkube.types import PatchType

    name = os.environ.get("POD_NAME", "").rpartition("-")[0]
    patch = {"metadata": {"annotations": {OUTCOME: json.dumps(dict(said))}}, "spec": {"replicas": 0}}
    try:
        client = Client(namespace=(ACCOUNT / "namespace").read_text(encoding="utf-8").strip())
        client.patch(StatefulSet, name, patch, patch_type=PatchType.MERGE)
    except (ApiError, NoConfig, OSError) as error:
        return str(error)
    return ""
