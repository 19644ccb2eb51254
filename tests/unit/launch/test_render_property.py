"""Random valid cluster specs: every manifest is valid, every derived name fits, the default is restricted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.errors import ConfigError
from rankzero.launch.labels import LONGEST_NAME, object_name
from rankzero.launch.plan import Plan, make_plan
from rankzero.launch.render import render
from rankzero.launch.render.content import to_yaml
from rankzero.spec.cluster_checks import check_cluster
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.names import RUN_NAME_PATTERN
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from tests.support.manifests import CORE_VERSIONS, check_core, check_custom, have_crds, is_custom
from tests.support.work import calls

WORDS_OF_GO = {
    *("y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "n", "N", "no", "No", "NO", "off", "Off", "OFF"),
    *("true", "True", "TRUE", "false", "False", "FALSE", "~", "null", "Null", "NULL", "<<"),
    *(".nan", ".NaN", ".NAN", ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF"),
}
"""What goyaml.v2 (resolve.go), by which kubectl reads, takes for true, false, nothing or a number."""
_INT_OF_GO = re.compile(r"[-+]?(0|[1-9][0-9]*|0[oO]?[0-7]+|0[xX][0-9a-fA-F]+|0[bB][01]+)")
_FLOAT_OF_GO = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def is_text_to_go(plain: str) -> bool:
    """Of a scalar without quotes: words by its table, numbers of base 0 once `_` is taken out."""
    digits = plain.replace("_", "")
    is_number = plain[0] in "+-.0123456789" and (_INT_OF_GO.fullmatch(digits) or _FLOAT_OF_GO.fullmatch(digits))
    return plain not in WORDS_OF_GO and not is_number


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,6})?", fullmatch=True)
QUANTITIES = st.sampled_from(["1Gi", "512Mi", "64Gi", "1.5Ti", "2G", "1000000000"])
MAYBE = st.none()
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=20)


@st.composite
def volumes(draw: st.DrawFn) -> dict[str, Any]:
    storage: dict[str, Any] = {"outputs": {"mount": "/outputs", "claim": draw(NAMES), "size": draw(QUANTITIES)}}
    for name in draw(st.lists(st.sampled_from(["cache", "datasets", "models", "scratch"]), unique=True)):
        volume: dict[str, Any] = {"mount": f"/mnt/{name}", "read_only": draw(st.booleans())}
        how = draw(st.sampled_from(["claim", "new claim", "host_path", "scratch", "url"]))
        if "claim" in how:
            volume["claim"] = draw(NAMES)
        if how == "new claim":
            volume |= {"size": draw(QUANTITIES), "class": draw(NAMES)}
        if how == "host_path":
            volume["host_path"] = f"/data/{name}"
        if how == "url":
            volume |= {"url": f"s3://bucket/{name}", "read_only": False}  # it is filled from there
        storage[name] = volume
    return storage


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    kind = draw(st.sampled_from(["auto", "job", "jobset", "trainjob", "pytorchjob", "statefulset", "docker"]))
    storage = draw(volumes())
    is_full = storage.get("cache", {}).get("read_only")  # nothing is prepared into it
    nodes = draw(st.integers(1, 64))
    value: dict[str, Any] = {
        "namespace": draw(NAMES),
        "image": draw(st.sampled_from(["rankzero:latest", "registry.example:5000/a/b@sha256:" + "0" * 64])),
        "kind": kind,
        "num_nodes": nodes,
        "min_nodes": draw(st.integers(1, nodes)) if kind == "pytorchjob" and draw(st.booleans()) else None,
        "nproc_per_node": draw(st.integers(1, 16)),
        "gpu": draw(st.booleans()),
        "gpu_resource": draw(st.sampled_from(["nvidia.com/gpu", "amd.com/gpu"])),
        "resources": {
            "cpu": draw(st.none() | st.floats(0.1, 128)),
            "memory": draw(st.sampled_from([None, "64Gi", "1Ti"])),
            "shm": draw(st.sampled_from([None, "1Gi"])),
            "rdma": draw(st.sampled_from([None, "rdma/ib", "vpc.amazonaws.com/efa"])),
        },
        "storage": storage,
        "prepare": "never" if is_full else "auto",
        "secrets": draw(
            st.dictionaries(
                st.sampled_from(["hf_token", "HF_TOKEN", "WANDB_API_KEY"]),
                st.just({"name": "s", "key": "k"}),
                max_size=1,
            )
        ),
        "env": draw(st.dictionaries(st.from_regex(r"NCCL_[A-Z]{1,6}", fullmatch=True), TEXT, max_size=3)),
        "node_selector": draw(st.dictionaries(st.just("gpu-type"), NAMES)),
        "tolerations": draw(st.lists(st.fixed_dictionaries({"key": NAMES}), max_size=2)),
        "spread": {
            "mode": draw(st.sampled_from(["auto", "required", "preferred", "none"])),
            "together": draw(st.none() | st.just("rack")),
        },
        "queue": draw(st.none() | st.fixed_dictionaries({"name": NAMES, "priority": st.none() | NAMES})),
        "image_pull_secrets": draw(st.lists(NAMES, max_size=2)),
        "timeout_seconds": draw(st.none() | st.integers(1, 10**6)) if kind in ("job", "pytorchjob") else None,
        "labels": draw(st.dictionaries(NAMES, NAMES, max_size=2)),
        "service_account": {"name": draw(st.none() | NAMES), "token": draw(st.booleans())},
    }
    spec = ClusterSpec.model_validate(value)
    return spec


def plan_of(cluster: ClusterSpec, name: str = "run") -> Plan:
    run = RunSpec.model_validate({"name": name, "model": {"name": "org/m"}, "data": {"train": "a b.jsonl"}})
    return make_plan(resolve(run), cluster, files={"a b.jsonl": b"\xff\x00"})


@given(cluster=clusters(), name=st.from_regex(RUN_NAME_PATTERN, fullmatch=True), version=st.sampled_from(CORE_VERSIONS))
@settings(max_examples=60, deadline=None)
def test_every_manifest_is_valid(cluster: ClusterSpec, name: str, version: str) -> None:
    assert not check_cluster(cluster)
    objects = render(plan_of(cluster, name.strip()))
    assert objects == render(plan_of(cluster, name.strip()))  # stable
    for manifest in objects:
        assert (
            re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
            or "claim" in str(manifest["kind"]).lower()
        )
        if not is_custom(manifest):
            check_core(manifest, version)
        elif have_crds():
            check_custom(manifest)
    assert objects[-1]["metadata"]["annotations"]["rankzero.dev/spec-hash"]


@given(st.from_regex(RUN_NAME_PATTERN, fullmatch=True), st.from_regex(RUN_NAME_PATTERN, fullmatch=True))
def test_names_are_labels_and_do_not_meet(one: str, other: str) -> None:
    for name in (one, other):
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", object_name(name))
        assert len(object_name(name)) <= LONGEST_NAME
        assert object_name(object_name(name)) == object_name(name)
    assert (object_name(one) == object_name(other)) == (
        one == other or object_name(one) == other or object_name(other) == one
    )


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob", "statefulset", "docker"])
def test_restricted_pod_security_admits_the_default(kind: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, the rules of `restricted`."""
    cluster = ClusterSpec.model_validate(
        {"image": "i", "kind": kind, "num_nodes": 2, "storage": {"outputs": {"mount": "/o", "claim": "c"}}}
    )
    specs = list(pod_specs(render(plan_of(cluster))))
    assert specs
    for spec in specs:
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret", "ephemeral", "downwardAPI"}
        assert all(set(volume) - {"name"} <= allowed for volume in spec["volumes"])
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["command"][0] == "python"  # exec'd: no shell in between swallows SIGTERM
        assert spec["automountServiceAccountToken"] is (kind == "statefulset")


def pod_specs(value: Any) -> Any:
    """Every pod spec in a tree."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)


def test_ipc_lock_comes_with_rdma_only() -> None:
    cluster = ClusterSpec.model_validate(
        {"image": "i", "resources": {"rdma": "rdma/ib"}, "storage": {"outputs": {"mount": "/o", "claim": "c"}}}
    )
    (spec,) = pod_specs(render(plan_of(cluster)))
    assert spec["containers"][0]["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]


def test_a_patch_reaches_what_has_no_field() -> None:
    patch = {
        "hostNetwork": True,
        "containers": [{"name": "node", "workingDir": "/w", "env": [{"name": "HOME", "value": "/h"}]}],
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "enableServiceLinks": None,
    }
    cluster = ClusterSpec.model_validate(
        {"image": "i", "storage": {"outputs": {"mount": "/o", "claim": "c"}}, "pod_patch": patch}
    )
    (spec,) = pod_specs(render(plan_of(cluster)))
    assert spec["hostNetwork"] is True
    assert "enableServiceLinks" not in spec
    assert spec["containers"][0]["workingDir"] == "/w"
    values = [entry["value"] for entry in spec["containers"][0]["env"] if entry["name"] == "HOME"]
    assert values == ["/h"]
    assert [volume["name"] for volume in spec["volumes"]][-1] == "extra"
    assert len(spec["volumes"]) > 3


def test_text_is_text_to_every_reader_of_yaml() -> None:
    """kubectl takes `1e5` for a number, which no variable may be; to YAML 1.1 it is text."""
    values = ["1e5", "12e4567890123456", "1E-3", "0o17", "010", "yes", ".inf", "~", "", "1:30", "v1"]
    outputs = {"mount": "/o", "claim": "c"}
    env = {f"A{number}": value for number, value in enumerate(values)}
    text = to_yaml(
        render(plan_of(ClusterSpec.model_validate({"image": "i", "storage": {"outputs": outputs}, "env": env})))
    )
    written = dict(re.findall(r"- name: A(\d+)\n +value: (.*)\n", text))
    assert [written[str(number)] for number in range(len(values))] == [
        *("'1e5'", "'12e4567890123456'", "'1E-3'", "'0o17'", "'010'", "'yes'", "'.inf'", "'~'", "''", "'1:30'", "v1")
    ]


def test_each_node_of_a_thousand_costs_the_same() -> None:
    """Where each has a pod of its own; what all have in common is made once."""

    def work(nodes: int) -> int:
        outputs = {"mount": "/o", "claim": "c"}
        cluster = {"image": "i", "kind": "docker", "num_nodes": nodes, "storage": {"outputs": outputs}}
        plan = plan_of(ClusterSpec.model_validate(cluster))
        pods: list[str] = []
        made = calls(lambda: pods.extend(manifest["kind"] for manifest in render(plan)))
        assert pods.count("Pod") == nodes
        return made

    one, few, thousand = work(1), work(100), work(1000)
    assert thousand - few < 1.1 * (few - one) * 900 / 99
    assert thousand < 10 * one


def test_without_outputs_nothing_is_rendered() -> None:
    with pytest.raises(ConfigError, match="no volume keeps the results"):
        plan_of(ClusterSpec(image="i"))


@pytest.mark.parametrize(
    "value", [*sorted(WORDS_OF_GO), "1_2e3", "1e_3", "0X1F", "0B1", "-0O17", "0_8", "1.e3", "12e4567"]
)
def test_what_go_takes_for_something_else_is_in_quotes(value: str) -> None:
    assert not is_text_to_go(value)
    written = to_yaml([{"kind": "K", value: {"a": value}}]).splitlines()
    assert written[1:] == [f"'{value}':", f"  a: '{value}'"]


@given(st.from_regex(r"[-+]?[0._]?[0-9xXbBoOeE_.yYnN+-]{1,5}", fullmatch=True))
@settings(max_examples=300)
def test_what_is_not_in_quotes_is_text_to_go(value: str) -> None:
    written = to_yaml([{"a": value}]).removeprefix("a: ").removesuffix("\n")
    assert written in (f"'{value}'", f'"{value}"') or (written == value and is_text_to_go(value))
