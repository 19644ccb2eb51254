"""What becomes of a Job whose pods fail: exit codes as rules of its podFailurePolicy. Pure."""

from __future__ import annotations

from typing import Any

from rankzero.errors import NEVER_RETRIED, ExitCode

NEVER_RETRIED_CODES = sorted(int(code) for code in NEVER_RETRIED)
DISRUPTED = [{"type": "DisruptionTarget", "status": "True"}]


def failure_rules(container: str, *, stopped: str) -> list[dict[str, Any]]:
    """The exit codes as rules, in this order: never right by trying again; saved, so no restart is charged; disrupted.

    `stopped` is the action of the last two. Every rule has `onPodConditions`, which API servers before 1.29 insist on.
    """

    def codes(action: str, values: list[int]) -> dict[str, Any]:
        rule = {"containerName": container, "operator": "In", "values": values}
        return {"action": action, "onExitCodes": rule}

    return [
        codes("FailJob", NEVER_RETRIED_CODES),
        codes(stopped, [int(ExitCode.STOPPED)]),
        {"action": stopped, "onPodConditions": DISRUPTED},
    ]
