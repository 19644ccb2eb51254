"""TensorBoard's objects as whole texts, for every shipped profile that has a volume for results."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.render.content import to_yaml
from rankzero.launch.render.tensorboard import tensorboard
from rankzero.spec.cluster_load import load_cluster, profiles
from rankzero.spec.cluster_spec import ClusterSpec
from tests.support.manifests import CORE_VERSIONS, check_core

GOLDEN = Path(__file__).parents[2] / "golden" / "tensorboard"


def profile(name: str) -> ClusterSpec:
    return load_cluster(name, [], env={}).spec


WITH_OUTPUTS = [name for name in profiles() if name != "slurm" and "outputs" in profile(name).storage]


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_the_text_is_the_golden_one(name: str) -> None:
    objects = tensorboard(profile(name))
    text, golden = to_yaml(objects), GOLDEN / f"{name}.yaml"
    if os.environ.get("RANKZERO_UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "make golden rewrites it"
    for manifest in objects:
        for version in CORE_VERSIONS:
            check_core(manifest, version)


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(WITH_OUTPUTS)


def test_what_a_site_says_holds_for_it() -> None:
    cluster = ClusterSpec.model_validate(
        {
            "image": "i",
            "namespace": "train",
            "user": 4711,
            "labels": {"team": "a"},
            "node_selector": {"disk": "near"},
            "tolerations": [{"key": "shared"}],
            "image_pull_secrets": ["pull"],
            "network_policy": True,
            "storage": {
                "outputs": {"mount": "/o", "claim": "c", "sub_path": "s"},
                "data": {"mount": "/d", "claim": "d"},
            },
        }
    )
    policy, service, deployment = tensorboard(cluster)
    assert [one["kind"] for one in (policy, service, deployment)] == ["NetworkPolicy", "Service", "Deployment"]
    (name,) = {one["metadata"]["name"] for one in (policy, service, deployment)}
    assert name.startswith("tensorboard-c-s-")
    assert all("rankzero.dev/run" not in one["metadata"]["labels"] for one in (policy, service, deployment))
    assert policy["spec"]["ingress"] == []
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["command"][:3] == ["tensorboard", "--logdir", "/o"]
    assert container["volumeMounts"][1] == {"name": "outputs", "mountPath": "/o", "readOnly": True, "subPath": "s"}
    assert [volume["name"] for volume in pod["volumes"]] == ["rankzero-tmp", "outputs"]
    assert pod["securityContext"]["runAsUser"] == 4711 and pod["nodeSelector"] == {"disk": "near"}
    assert {one.get("key") for one in pod["tolerations"]} == {"nvidia.com/gpu", "shared"}
    assert "env" not in pod and "secretKeyRef" not in to_yaml([deployment])


@pytest.mark.parametrize("storage", [{}, {"outputs": {"mount": "/o", "size": "1Gi"}}])
def test_a_volume_that_ends_with_its_pod_is_none_to_look_at(storage: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no volume that outlives their pods"):
        tensorboard(ClusterSpec.model_validate({"image": "i", "storage": storage}))


def test_each_directory_has_a_name_of_its_own() -> None:
    """Else the second one is shown what the first one's pod mounts, or takes it away."""
    claim, host = {"mount": "/o", "claim": "shared"}, {"mount": "/o"}
    more = [{**claim, "sub_path": "team/a"}, {**claim, "sub_path": "team/b"}, {**claim, "sub_path": "team-a"}]
    more += [{**host, "host_path": "/mnt/a"}, {**host, "host_path": "/mnt/b"}]
    more += [{**host, "host_path": "/mnt/a", "sub_path": "c"}]

    def name(outputs: dict[str, str]) -> str:
        cluster = ClusterSpec.model_validate({"image": "i", "storage": {"outputs": outputs}})
        names = {str(one["metadata"]["name"]) for one in tensorboard(cluster)}
        return names.pop() if len(names) == 1 else ""

    assert name(claim) == "tensorboard-shared"
    found = {name(one) for one in more}
    assert len(found) == len(more) and "tensorboard-shared" not in found
    assert all(re.fullmatch(r"tensorboard-[a-z0-9-]{1,27}[a-z0-9]", one) for one in found), found
