"""What a run counts on is looked for before anything is applied: all that is missing at once, and what was not seen."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.survey import Doubt
from tests.support.fake_cluster import FakeCluster
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench, objects

SECRETS = {"HF_TOKEN": {"name": "hf-token", "key": "token"}, "KEY": {"name": "keys", "key": "wandb"}}


def put(cluster: FakeCluster, kind: str, name: str, *, namespace: str = "train", **rest: Any) -> None:
    metadata = {"name": name, **rest.pop("metadata", {})}
    cluster.store.put({"apiVersion": "v1", "kind": kind, "metadata": metadata, **rest}, namespace)


def refused(bench: Bench, **cluster: Any) -> dict[str, str]:
    """What stands in the way, by its place."""
    with pytest.raises(ConfigError) as caught:
        bench.submit(objects(**cluster))
    assert bench.cluster.changes() == []
    assert all(problem.hint for problem in caught.value.problems)
    return {problem.where: problem.what for problem in caught.value.problems}


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob", "statefulset"])
def test_everything_that_is_missing_is_told_at_once(bench: Bench, kind: str) -> None:
    bench.cluster.plurals |= {"localqueues", "workloadpriorityclasses", "workloads"}
    bench.cluster.publish()
    put(bench.cluster, "Secret", "keys", data={"other": "eA=="})
    put(bench.cluster, "StorageClass", "fast", namespace="")
    put(bench.cluster, "LocalQueue", "gpus")
    outputs = {"mount": "/outputs", "claim": "outputs", "size": "1Gi", "class": "slow"}
    missing = refused(
        bench,
        kind=kind,
        secrets=SECRETS,
        image_pull_secrets=["registry"],
        service_account={"name": "trainer"},
        priority_class="high",
        queue={"name": "gpu", "priority": "urgent"},
        storage={"outputs": outputs, "more": {"mount": "/more", "claim": "given"}},
    )
    assert missing == {
        "Secret/hf-token": "there is no such secret in namespace train",
        "Secret/keys": "it has no key wandb",
        "Secret/registry": "there is no such secret in namespace train",
        "ServiceAccount/trainer": "there is none of this name in the cluster",
        "PriorityClass/high": "there is none of this name in the cluster",
        "LocalQueue/gpu": "there is no such queue in namespace train",
        "WorkloadPriorityClass/urgent": "there is none of this name in the cluster",
        "PersistentVolumeClaim/outputs": "there is no storage class slow",
        "PersistentVolumeClaim/given": "there is no such claim in namespace train",
    }


def test_what_is_there_is_not_complained_of(bench: Bench) -> None:
    put(bench.cluster, "Secret", "hf-token", data={"token": "c2VjcmV0LXZhbHVl"})
    optional = {"KEY": {"name": "keys", "optional": True}}
    bench.submit(objects(secrets={"HF_TOKEN": SECRETS["HF_TOKEN"], **optional}))
    assert bench.cluster.names("jobs") == ["jobs/r"]
    assert not any("secret-value" in line or "c2VjcmV0" in line for line in bench.said)


def test_a_queue_without_kueue(bench: Bench) -> None:
    assert refused(bench, queue={"name": "gpus"}) == {"queue gpus": "this cluster has no Kueue"}


def test_what_may_not_be_read_is_said_and_is_no_problem(bench: Bench) -> None:
    bench.cluster.forbidden |= {("get", "secrets"), ("list", "storageclasses"), ("list", "resourcequotas")}
    storage = {"outputs": {"mount": "/outputs", "claim": "outputs", "size": "1Gi", "class": "slow"}}
    bench.submit(objects(secrets=SECRETS, storage=storage))
    assert bench.heard("not checked, for want of rights: secrets, storageclasses.storage.k8s.io, resourcequotas")
    assert bench.cluster.names("jobs") == ["jobs/r"]


def test_rights_for_some_secrets_hide_no_others(bench: Bench) -> None:
    bench.cluster.forbidden.add(("get", "secrets/hf-token"))
    pulls = ["keys", "hf-token"]
    missing = refused(bench, secrets={"A": SECRETS["HF_TOKEN"], "KEY": SECRETS["KEY"]}, image_pull_secrets=pulls)
    assert missing == {"Secret/keys": "there is no such secret in namespace train"}
    assert bench.heard("not checked, for want of rights: secrets")
    found = bench.backend().survey(objects(secrets=SECRETS))
    assert dict(found.has)["secrets"] == "keys not found; hf-token may not be read"


def test_in_a_namespace_that_is_not_there_nothing_else_is_missed(bench: Bench) -> None:
    bench.cluster.writes.namespaces.clear()
    more = {"mount": "/more", "claim": "given"}
    missing = refused(bench, secrets=SECRETS, service_account={"name": "s"}, storage={**STORAGE, "more": more})
    assert list(missing.values()) == ["there is no namespace train"]


def test_a_run_that_goes_on_is_not_asked_again(bench: Bench) -> None:
    put(bench.cluster, "Secret", "hf-token", data={"token": "eA=="})
    manifests = objects(secrets={"HF_TOKEN": SECRETS["HF_TOKEN"]})
    bench.submit(manifests)
    bench.cluster.store.drop("secrets", "hf-token")
    bench.submit(manifests)
    assert bench.heard("runs already")


class TestQuota:
    """A quota is of the whole namespace; the run is two pods of two GPUs, 8 cores and 32 GiB."""

    RUN = {"nproc_per_node": 2, "resources": {"cpu": 8, "memory": "32Gi"}, "storage": STORAGE}

    def quota(self, bench: Bench, hard: dict[str, str], **used: str) -> None:
        put(bench.cluster, "ResourceQuota", "q", spec={"hard": hard}, status={"hard": hard, "used": used})

    def doubts(self, bench: Bench, run: dict[str, Any]) -> list[Doubt]:
        return [one for one in bench.backend().survey(objects(**run)).doubts if one.name == "quota"]

    @pytest.mark.parametrize(
        ("name", "most"),
        [("requests.nvidia.com/gpu", "3"), ("cpu", "15"), ("limits.memory", "63Gi"), ("pods", "1")],
    )
    @pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob", "statefulset"])
    def test_more_than_there_is(self, bench: Bench, kind: str, name: str, most: str) -> None:
        self.quota(bench, {name: most})
        missing = refused(bench, kind=kind, **self.RUN)
        assert f"of {name}, and {most} is all there is" in missing["ResourceQuota/q"]

    def test_more_than_there_is_for_the_preparation(self, bench: Bench) -> None:
        """It asks for two cores where nothing says what nodes ask for; a pod that trains gets what the site gives."""
        self.quota(bench, {"requests.cpu": "1"})
        limits = [{"type": "Container", "defaultRequest": {"cpu": "100m"}}]
        put(bench.cluster, "LimitRange", "defaults", spec={"limits": limits})
        missing = refused(bench, prepare="always", nproc_per_node=2)
        assert missing == {"ResourceQuota/q": "the run asks for 2 of requests.cpu, and 1 is all there is"}

    def test_enough(self, bench: Bench) -> None:
        self.quota(bench, {"requests.nvidia.com/gpu": "4", "requests.cpu": "16", "limits.memory": "64Gi", "pods": "2"})
        bench.submit(objects(**self.RUN))
        assert not bench.heard("ResourceQuota")

    @pytest.mark.parametrize(
        ("name", "most"), [("cpu", "300m"), ("memory", "1e12"), ("cpu", "300000u"), ("memory", "one"), ("cpu", "0.3")]
    )
    def test_enough_however_it_is_written(self, bench: Bench, name: str, most: str) -> None:
        """Three times 0.1 is 0.3; what cannot be read refuses nothing."""
        self.quota(bench, {name: most})
        bench.submit(objects(num_nodes=3, gpu=False, resources={"cpu": 0.1, "memory": "1Gi"}))
        assert bench.cluster.names("jobs") == ["jobs/r"]

    def test_an_elastic_run_needs_its_fewest_pods_alone(self, bench: Bench) -> None:
        run = {**self.RUN, "kind": "pytorchjob", "num_nodes": 4, "min_nodes": 1}
        self.quota(bench, {"requests.nvidia.com/gpu": "1"})
        missing = refused(bench, **run)
        assert missing["ResourceQuota/q"].startswith("the run asks for 2 of requests.nvidia.com/gpu, and 1 is all")
        self.quota(bench, {"requests.nvidia.com/gpu": "6"}, **{"requests.nvidia.com/gpu": "4"})
        (some,) = self.doubts(bench, run)
        assert "4 of 6 requests.nvidia.com/gpu are taken; not all pods have room, which ask for 8" in some.what
        assert not some.waits
        self.quota(bench, {"requests.nvidia.com/gpu": "6"}, **{"requests.nvidia.com/gpu": "5"})
        assert [one.waits for one in self.doubts(bench, run)] == [True]

    def test_what_others_have_taken_is_waited_for(self, bench: Bench) -> None:
        self.quota(bench, {"requests.nvidia.com/gpu": "6"}, **{"requests.nvidia.com/gpu": "4"})
        bench.submit(objects(**self.RUN))
        assert bench.heard("ResourceQuota/q: 4 of 6 requests.nvidia.com/gpu are taken; pods wait until 4 are free")

    def test_only_what_its_own_pods_take_comes_free_for_another_spec(self, bench: Bench) -> None:
        """Others have 12 GPUs; of the run's own pods one has ended. A run that was cancelled has none."""
        manifests = objects(**self.RUN)
        bench.submit(manifests)
        self.quota(bench, {"requests.nvidia.com/gpu": "16"}, **{"requests.nvidia.com/gpu": "16"})
        (nothing,) = self.doubts(bench, {**self.RUN, "steps": 20})
        assert nothing.waits and "16 of 16" in nothing.what
        template = next(one for one in manifests if one["kind"] == "Job")["spec"]["template"]
        for name, phase in (("r-0", "Running"), ("r-1", "Running"), ("r-2", "Failed")):
            metadata = {"labels": template["metadata"]["labels"]}
            put(bench.cluster, "Pod", name, metadata=metadata, spec=template["spec"], status={"phase": phase})
        assert self.doubts(bench, {**self.RUN, "steps": 20}) == []
        (some,) = self.doubts(bench, {**self.RUN, "steps": 20, "nproc_per_node": 3})
        assert some.waits
        bench.cluster.forbidden |= {("list", "pods")}
        assert self.doubts(bench, {**self.RUN, "steps": 20, "nproc_per_node": 3}) == [], "nobody knows"

    def test_what_pods_have_to_say(self, bench: Bench) -> None:
        self.quota(bench, {"limits.cpu": "64"})
        missing = refused(bench, **self.RUN)
        assert missing == {"ResourceQuota/q": "it counts limits.cpu, so every pod has to say its limits.cpu"}
        limits = [{"type": "Container", "default": {"cpu": "2"}}]
        put(bench.cluster, "LimitRange", "defaults", spec={"limits": limits})
        bench.submit(objects(**self.RUN))
