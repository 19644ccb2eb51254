"""Every prepared evidence set: the right cause first, with names and numbers, and a fix that says what to change."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from rankzero.launch.diagnose import Finding, diagnose
from rankzero.launch.refusals import Asked, reason_in
from rankzero.launch.status import run_status
from tests.support.evidence import Prepared, named, prepared

SICK = [one for one in prepared() if one.expect["code"] is not None]
WELL = [one for one in prepared() if one.expect["code"] is None]


def _ids(one: Prepared) -> str:
    return one.name


def _names(words: str, wanted: list[str]) -> bool:
    return all(part in words for part in wanted)


@pytest.mark.parametrize("one", SICK, ids=_ids)
def test_first_finding(one: Prepared) -> None:
    findings = diagnose(one.evidence)
    assert findings, f"nothing was found: {one.about}"
    first, expect = findings[0], one.expect
    assert first.code == expect["code"], [f"{finding.code}: {finding.cause}" for finding in findings]
    assert _names(first.cause, expect["cause"]), first.cause
    assert _names(first.fix, expect["fix"]), first.fix
    assert first.severity == expect["severity"]


@pytest.mark.parametrize("one", prepared(), ids=_ids)
def test_status(one: Prepared) -> None:
    status, expect = run_status(one.evidence), one.expect
    assert status.phase == expect["phase"]
    for name in ("step", "total_steps", "restarts", "exit_code"):
        if name in expect:
            assert getattr(status, name) == expect[name]
    if "eta" in expect:
        assert status.eta_seconds is not None
        assert expect["eta"][0] <= status.eta_seconds <= expect["eta"][1]
    if expect["code"] is not None:
        assert status.verdict == status.findings[0].cause.rstrip(".")


@pytest.mark.parametrize("one", WELL, ids=_ids)
def test_healthy_runs_have_no_finding(one: Prepared) -> None:
    findings = diagnose(one.evidence)
    assert [finding.code for finding in findings if finding.severity != "info"] == []
    assert [finding.code for finding in findings] == ([one.expect["info"]] if "info" in one.expect else [])


def test_cause_and_fix_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The number is printed: it is what this part is judged by."""
    complete = [one for one in SICK if _complete(diagnose(one.evidence)[0], one)]
    codes = {one.expect["code"] for one in SICK}
    with capsys.disabled():
        print(f"\n{len(complete)} of {len(SICK)} prepared evidence sets get cause and fix ({len(codes)} kinds)")
    assert len(complete) == len(SICK) >= 24


def test_a_host_that_is_known_to_be_well_is_not_lost() -> None:
    """Whatever an event says: it was away for a moment."""
    evidence = copy.deepcopy(named("node_lost").evidence)
    evidence.pods[1]["status"].update(phase="Pending", containerStatuses=[])
    hosts = {node["metadata"]["name"]: node for node in evidence.nodes or ()}
    for known in (evidence, replace(evidence, nodes=None)):
        assert diagnose(known)[0].code == "node-lost"
    hosts["gpu-b"]["status"]["conditions"] = hosts["gpu-a"]["status"]["conditions"]
    assert "node-lost" not in [finding.code for finding in diagnose(evidence)]


def _complete(finding: Finding, one: Prepared) -> bool:
    return _names(finding.cause, one.expect["cause"]) and _names(finding.fix, one.expect["fix"])


@pytest.mark.parametrize("one", prepared(), ids=_ids)
def test_findings_rest_on_evidence(one: Prepared) -> None:
    for finding in diagnose(one.evidence):
        assert len(finding.cause) <= 400
        assert "\n" not in finding.cause + finding.fix
        assert all(len(line) <= 300 for line in finding.evidence)


@pytest.mark.parametrize(
    ("resource", "has", "fix"),
    [
        ("ephemeral-storage", None, "take ephemeral-storage out of pod_patch"),
        ("ephemeral-storage", "50Gi", "set pod_patch (ephemeral-storage) in cluster.yaml to at most 50Gi"),
        ("hugepages-2Mi", None, "take hugepages-2Mi out of pod_patch"),
        ("nvidia.com/gpu", None, "install the device plugin that offers nvidia.com/gpu"),
    ],
)
def test_what_only_pod_patch_asks_for_comes_from_no_device_plugin(resource: str, has: str | None, fix: str) -> None:
    evidence = copy.deepcopy(named("gpu_too_many").evidence)
    for pod in evidence.pods:
        pod["spec"]["containers"][0]["resources"] = {"requests": {resource: "100Gi"}}
        pod["status"]["conditions"][0]["message"] = f"0/3 nodes are available: 3 Insufficient {resource}."
    for node in evidence.nodes or ():
        node["status"]["allocatable"] = {"cpu": "64"} if has is None else {"cpu": "64", resource: has}
    (found, *_) = diagnose(replace(evidence, events=()))
    assert resource in found.cause and fix in found.fix
    assert ("device plugin" in found.fix) == ("/" in resource)


def test_a_quota_of_what_only_pod_patch_says_is_told_with_it() -> None:
    unsaid = "limits.ephemeral-storage for: node; limits.cpu for: node"
    found = reason_in(
        f'pods "r-0" is forbidden: failed quota: q: must specify {unsaid}',
        Asked("Job/r cannot make its pod", kind="Job"),
    )
    assert found is not None and "set pod_patch (limits.ephemeral-storage), resources.limits.cpu" in found.fix


@pytest.mark.parametrize(
    ("forbids", "fixes"),
    [
        ("runAsUser=0 (pod must not set runAsUser=0), runAsNonRoot != true (pod must not …)", ["user in cluster.yaml"]),
        (
            'allowPrivilegeEscalation != false (container "init-pytorch" must set …), runAsNonRoot != true (…)',
            ["set another kind, such as job"],
        ),
        ("privileged (…), allowPrivilegeEscalation != false (…)", ["remove privileged", "remove allowPrivilegeEsc"]),
    ],
)
def test_all_that_pod_security_forbids_is_told_with_its_field(forbids: str, fixes: list[str]) -> None:
    message = f'pods "r-0" is forbidden: violates PodSecurity "restricted:latest": {forbids}'
    found = reason_in(message, Asked("Job/r cannot make its pod", kind="Job"))
    assert found is not None and all(fix in found.fix for fix in fixes)
    assert ("pod_patch" in found.fix) == ("init-pytorch" not in forbids)
