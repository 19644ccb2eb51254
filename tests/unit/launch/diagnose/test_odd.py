"""Whatever the evidence looks like: no exception, the same answer each time, nothing that looks like a secret."""

from __future__ import annotations

import copy
import json
import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankzero.launch.diagnose import diagnose, redact
from rankzero.launch.evidence import Evidence, Refusal
from rankzero.launch.status import as_table, as_text, run_status, summarise
from tests.support.evidence import Prepared, named, prepared

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)
NAMES = [one.name for one in prepared()]
ODD: list[Any] = [None, "", "x", 0, -1, 3.5, True, [], {}, [None], {"a": None}, "²", "2026-13-99", "9" * 30, [[]], "{"]


def _judge(evidence: Evidence) -> str:
    """Everything that may be asked of evidence, as one text."""
    status = run_status(evidence)
    texts = [as_text(status, width, colour) for width in (20, 60, 120) for colour in (False, True)]
    rows = summarise([evidence])
    assert status.findings == diagnose(evidence)
    return "\n".join([json.dumps(status.to_json(), allow_nan=False), *texts, as_table(rows)])


def _damage(value: Any, source: random.Random, share: float) -> Any:
    """Drop or replace some of the values inside."""
    if source.random() < share:
        return copy.deepcopy(source.choice(ODD))
    if isinstance(value, dict):
        return {key: _damage(inner, source, share) for key, inner in value.items() if source.random() > share}
    if isinstance(value, list):
        return [_damage(inner, source, share) for inner in value]
    return value


def _damaged(evidence: Evidence, source: random.Random, share: float) -> Evidence:
    def some(manifests: Any) -> Any:
        if manifests is None:
            return None
        found = [_damage(copy.deepcopy(one), source, share) for one in manifests]
        return tuple(one for one in found if isinstance(one, dict))

    return replace(
        evidence,
        objects=some(evidence.objects),
        pods=some(evidence.pods),
        events=some(evidence.events),
        nodes=some(evidence.nodes),
        workloads=some(evidence.workloads),
    )


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(NAMES), seed=st.integers(0, 2**32), share=st.sampled_from([0.01, 0.05, 0.2]))
@example(name="shm_evicted", seed=189, share=0.05)  # a brace in a cluster's own words
def test_damaged_evidence_is_judged(name: str, seed: int, share: float) -> None:
    evidence = _damaged(named(name).evidence, random.Random(seed), share)
    assert _judge(evidence) == _judge(copy.deepcopy(evidence))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "metadata",
        "spec",
        "status",
        "conditions",
        "containerStatuses",
        "state",
        "terminated",
        "waiting",
        "reason",
        "message",
        "exitCode",
        "labels",
        "name",
        "annotations",
        "phase",
        "type",
        "nodeName",
        "involvedObject",
        "kind",
        "creationTimestamp",
        "containers",
        "resources",
    ]
)
MANIFEST = st.dictionaries(KEYS, st.dictionaries(KEYS, JSON | st.lists(st.dictionaries(KEYS, JSON)), max_size=4) | JSON)


@settings(max_examples=50, deadline=None)
@given(
    pods=st.lists(MANIFEST, max_size=3),
    objects=st.lists(MANIFEST, max_size=2),
    events=st.lists(MANIFEST, max_size=2),
    log=st.text(max_size=60),
    message=st.text(max_size=60),
)
def test_any_evidence_is_judged(pods: list[Any], objects: list[Any], events: list[Any], log: str, message: str) -> None:
    evidence = Evidence(
        "run",
        NOW,
        objects=tuple(objects),
        pods=tuple(pods),
        events=tuple(events),
        workloads=tuple(objects),
        nodes=tuple(pods),
        logs={"": log},
        refused=(Refusal("create jobs.batch", 403, "Forbidden", message),),
    )
    assert _judge(evidence) == _judge(evidence)


def test_nothing_at_all() -> None:
    status = run_status(Evidence("gone", NOW))
    assert (status.phase, status.findings, status.nodes) == ("Unknown", (), ())
    assert "gone" in status.verdict


SECRETS = [
    "hf_abcdefghijklmnopqrstuvwxyz012345",
    "sk-proj-abcdefghijklmnop1234",
    "ghp_abcdefghijklmnop1234567890abcdefgh",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0In0.abc-def_ghi",
    "s3cr3t-canary-value",
]


SHAPES = ["Authorization: Bearer {}", "HF_TOKEN={}", "'password': '{}'", "{}", "error: x {} y"]
TOLD_BY_SHAPE = 3
"""The last secret looks like a word: only what stands around it tells."""


@pytest.mark.parametrize(
    ("shape", "secret"),
    [(shape, secret) for secret in SECRETS for shape in SHAPES[: TOLD_BY_SHAPE if secret is SECRETS[-1] else None]],
)
def test_redact(shape: str, secret: str) -> None:
    assert secret not in redact(shape.format(secret))


@pytest.mark.parametrize(
    "words",
    [
        "couldn't find key token in Secret train/hf-token",
        "set secrets.HF_TOKEN.key in cluster.yaml, or secrets: {HF_TOKEN: {name: hf-token, key: token}}",
        "failed to fetch anonymous token: unexpected status from GET request to https://r.example/token?scope=x",
        "https://kueue-webhook-service.kueue-system.svc:443/mutate?timeout=10s",
        "asks for nvidia.com/gpu: 16",
    ],
)
def test_redact_leaves_the_rest(words: str) -> None:
    assert redact(words) == words


@pytest.mark.parametrize("one", prepared(), ids=lambda one: one.name)
def test_a_canary_everywhere_is_repeated_nowhere(one: Prepared) -> None:
    """Put into every message and log of the evidence, it appears in no answer."""
    canary = "hf_CanaryCanaryCanaryCanary0123456789"

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            keys = ("message", "note")
            return {k: f"{v} {canary}" if k in keys and isinstance(v, str) else spoil(v) for k, v in value.items()}
        return [spoil(inner) for inner in value] if isinstance(value, list) else value

    evidence = replace(
        one.evidence,
        pods=tuple(map(spoil, one.evidence.pods)),
        events=tuple(map(spoil, one.evidence.events)),
        objects=tuple(map(spoil, one.evidence.objects)),
        workloads=tuple(map(spoil, one.evidence.workloads)),
        logs={name: f"{log}\nerror: x: {canary}\n  hint: {canary}\n" for name, log in one.evidence.logs.items()},
        refused=tuple(replace(refusal, message=f"{refusal.message} {canary}") for refusal in one.evidence.refused),
    )
    assert canary not in _judge(evidence)


@pytest.mark.parametrize("name", ["healthy_running", "gpu_too_many", "oom_limit"])
def test_a_thousand_pods(name: str) -> None:
    """One pass: ten times as many pods do not take much more than ten times the work."""
    base = named(name).evidence

    def many(count: int) -> Evidence:
        pods = []
        for index in range(count):
            pod = copy.deepcopy(base.pods[index % len(base.pods)])
            pod["metadata"]["name"] = f"pod-{index}"
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
            pod["metadata"]["annotations"]["rankzero.dev/num-nodes"] = str(count)
            pods.append(pod)
        events = (
            tuple({**base.events[0], "involvedObject": {"kind": "Pod", "name": f"pod-{i}"}} for i in range(count))
            if (base.events)
            else ()
        )
        return replace(base, pods=tuple(pods), events=events, nodes=(base.nodes or ()) * (count // 10) or None)

    def work(evidence: Evidence) -> float:
        """CPU seconds of this process alone: what else runs on the machine is no matter."""
        started = time.process_time()
        run_status(evidence)
        return time.process_time() - started

    few, thousand = many(100), many(1000)
    assert min(work(thousand) for _ in range(2)) < 30 * min(work(few) for _ in range(5))
    status = run_status(thousand)
    assert len(status.nodes) == 1000
    assert len(as_text(status, 80).splitlines()) < 40
