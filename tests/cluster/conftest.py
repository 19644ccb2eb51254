"""A real cluster: KUBECONFIG says which, RANKZERO_TEST_IMAGE which image its nodes can run, built with the extra
`jupyter` beside the usual ones. No GPU is needed.

Everything happens in a namespace of its own, deleted at the end. Results need a volume that two pods can mount:
RANKZERO_TEST_STORAGE_CLASS names a class (with RANKZERO_TEST_ACCESS, default ReadWriteMany); without it a directory of
the node is used, which is right for a cluster of one node only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from rankzero import __version__
from rankzero.launch.kinds import node_index
from rankzero.launch.labels import RUN, submission_name
from rankzero.launch.secrets import secret_manifest
from rankzero.launch.status import RunStatus, run_status
from tests.support.tiny import chat_rows, tiny_model, write_jsonl

IMAGE = os.environ.get("RANKZERO_TEST_IMAGE", "")
STORAGE_CLASS = os.environ.get("RANKZERO_TEST_STORAGE_CLASS", "")
ACCESS = os.environ.get("RANKZERO_TEST_ACCESS", "ReadWriteMany")
CLAIM = "outputs"
DIRECTORIES = "/var/tmp"
"""Of the node, below which one is the volume where no class makes one."""
SERVICE = "look"
"""A headless Service of its own, as runs have one."""
SHORT, LONG = 12, 800
"""Steps of a run, and of one that is to be interrupted."""
PATIENCE_SECONDS = 600.0
"""The longest that anything here may take on a small cluster; what was seen last is in the failure."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs the cluster."""
    missing = [name for name in ("KUBECONFIG", "RANKZERO_TEST_IMAGE") if not os.environ.get(name)]
    for item in items:
        if "tests/cluster" in str(item.path):
            item.add_marker(pytest.mark.cluster)
            item.add_marker(pytest.mark.timeout(1800))
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"needs a cluster: set {' and '.join(missing)}"))


@pytest.fixture(autouse=True)
def no_network() -> None:
    """The cluster's API server is not on this machine's loopback device."""


NEVER_STARTS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerError")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


class Cluster:
    """The command line and the API, against one namespace."""

    def __init__(self, namespace: str, folder: Path) -> None:
        from lightkube import Client

        from rankzero.launch.backends.kubernetes.backend import open_kubernetes

        self.namespace, self.folder = namespace, folder
        self.env = dict(os.environ)
        """Of commands: a kubeconfig with the rights that the documentation asks for."""
        self.api = Client(namespace=namespace)
        self._backend = open_kubernetes(None, namespace, say=print)

    def rankzero(self, *arguments: str, timeout: float = PATIENCE_SECONDS, may_all: bool = False) -> Done:
        """Type a command in the folder of the specs. `may_all`: as who made the namespace, not with few rights."""
        done = subprocess.run(
            [sys.executable, "-m", "rankzero", *arguments],
            cwd=self.folder,
            env=dict(os.environ) if may_all else self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def cluster_yaml(self, kind: str, **changes: Any) -> str:
        """Write a cluster.yaml; returns its name."""
        value = {
            "namespace": self.namespace,
            "image": IMAGE,
            "kind": kind,
            "num_nodes": 2,
            "nproc_per_node": 1,
            "gpu": False,
            "resources": {"cpu": 0.25, "memory": "1500Mi", "shm": "64Mi"},
            "storage": {"outputs": {"mount": "/outputs", "claim": CLAIM}},
            "spread": {"mode": "none"},
            "grace_period_seconds": 45,
            "rendezvous_timeout_seconds": 300,
            "env": {"OMP_NUM_THREADS": "1"},
            **changes,
        }
        name = f"cluster-{uuid.uuid4().hex[:6]}.yaml"
        (self.folder / name).write_text(yaml.safe_dump(value))
        return name

    def run_yaml(self, run: str, *, output_dir: str = "runs", **train: Any) -> str:
        """Write a run spec of a tiny model; returns its name."""
        value = {
            "name": run,
            "model": {"name": "model", "dtype": "float32"},
            "data": {"train": "train.jsonl", "eval": "eval.jsonl"},
            "lora": {"r": 4, "dropout": 0.1, "target_modules": "all-linear"},
            "train": {"max_steps": SHORT, "global_batch_size": 8, "learning_rate": 0.01, **train},
            "checkpoint": {"every": 50},
            "tracking": {"tensorboard": False},
            "output_dir": output_dir,
        }
        (self.folder / f"{run}.yaml").write_text(yaml.safe_dump(value))
        return f"{run}.yaml"

    def until(self, run: str, cluster: str, true: Callable[[RunStatus], bool], what: str) -> dict[str, Any]:
        """Look until it is so; then what `rankzero status --json` says. Fails with all that `describe` knows.

        Looks are made here: a command each second would take the core that the pods compute on.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true(seen := run_status(self._backend.collect(run))):
            if time.monotonic() > deadline:
                known = self.rankzero("describe", run, "--cluster", cluster)
                pytest.fail(f"{run}: not {what} after {PATIENCE_SECONDS:.0f} s\n{seen}\n{known.out}")
            time.sleep(0.5)
        done = self.rankzero("status", run, "--cluster", cluster, "--json")
        try:
            value: dict[str, Any] = json.loads(done.out)
        except ValueError:
            pytest.fail(f"status printed no JSON (exit {done.code}): {done.out[-2000:]} {done.err[-2000:]}")
        return value

    def put_submission_secret(self, run: str, token: str) -> str:
        """As submit does; says what became of it. The server is asked to look whose it is, as by who may read none."""
        manifest = secret_manifest(submission_name(run), self.namespace, {"token": SecretStr(token)})
        manifest["metadata"]["labels"] |= {RUN: run}
        return self._backend.put_secret(manifest)

    def read(self, path: str) -> str:
        """A file on the results' volume, through a pod that prints it."""
        return self.in_pod(["python", "-c", f"print(open({path!r}).read(), end='')"])

    def in_pod(self, command: list[str], *, user: int = 1000, volume: dict[str, Any] | None = None) -> str:
        """Run a command in a pod that has the volume at /outputs, or another one; returns its log."""
        from lightkube.resources.core_v1 import Pod

        volume = volume or {"persistentVolumeClaim": {"claimName": CLAIM}}
        name = f"look-{uuid.uuid4().hex[:8]}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"look": "yes"}},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": {"runAsUser": user, "fsGroup": 1000},
                "containers": [
                    {
                        "name": "look",
                        "image": IMAGE,
                        "imagePullPolicy": "IfNotPresent",
                        "command": command,
                        "volumeMounts": [{"name": "outputs", "mountPath": "/outputs"}],
                    }
                ],
                "volumes": [{"name": "outputs", **volume}],
            },
        }
        self.api.create(Pod.from_dict(pod))
        deadline = time.monotonic() + 300
        while True:
            found = self.api.get(Pod, name)
            phase = found.status.phase if found.status else None
            if phase in ("Succeeded", "Failed"):
                break
            stuck = [one.state.waiting for one in (found.status.containerStatuses or ()) if one.state.waiting]
            if any(str(one.reason) in NEVER_STARTS for one in stuck):
                pytest.fail(f"nodes cannot run the image {IMAGE}: {stuck[0].reason}: {stuck[0].message}")
            if time.monotonic() > deadline:
                pytest.fail(f"pod {name} is {phase} after 180 s: {found.status}")
            time.sleep(0.5)
        # lines may end as they were printed, or without their end: versions of the client differ
        text = "".join(line.rstrip("\n") + "\n" for line in self.api.log(name))
        self.api.delete(Pod, name, grace_period=0)
        assert phase == "Succeeded", f"pod {name} failed: {text}"
        return text

    def in_run(self, run: str, node: int, program: str) -> subprocess.Popen[str]:
        """Start a Python program in a pod of a run that is there."""
        name = self.pod_of(run, node)
        words = ["kubectl", "exec", "--namespace", self.namespace, name, "--", "python", "-c", program]
        return subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def pod_of(self, run: str, node: int) -> str:
        """The name of a node's running pod."""
        from lightkube.resources.core_v1 import Pod

        pods = [pod for pod in self.api.list(Pod, labels={"rankzero.dev/run": run}) if pod.status.phase == "Running"]
        (name,) = [pod.metadata.name for pod in pods if node_index(pod.to_dict()) == node]
        return str(name)

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """metrics.jsonl of a run."""
        return [json.loads(line) for line in self.read(f"/outputs/runs/{run}/metrics.jsonl").splitlines() if line]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A namespace with a volume, and a folder with a tiny model and data."""
    from lightkube import Client
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Namespace, PersistentVolume

    folder = tmp_path_factory.mktemp("cluster")
    namespace = f"rankzero-test-{uuid.uuid4().hex[:8]}"
    try:
        Client().create(Namespace(metadata=ObjectMeta(name=namespace)))
    except Exception as error:
        pytest.fail(f"no namespace can be made with this KUBECONFIG: {error}")
    made = Cluster(namespace, folder)
    try:
        _make_volume(made)
        _look_what_is_missing(made)
        made.env["KUBECONFIG"] = str(_as_user(made))
        tiny_model(folder / "model")
        write_jsonl(folder / "train.jsonl", chat_rows(30))
        write_jsonl(folder / "eval.jsonl", chat_rows(7))
        yield made
    finally:
        try:
            if not STORAGE_CLASS:
                _remove_directory(made)
        finally:
            Client().delete(Namespace, namespace)
            if not STORAGE_CLASS:
                Client().delete(PersistentVolume, namespace)


RULES_OF_KINDS = [
    {"apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch", "create", "patch", "delete"]}
    for group, resources in (
        ("jobset.x-k8s.io", ["jobsets"]),
        ("trainer.kubeflow.org", ["trainjobs", "trainingruntimes"]),
        ("kubeflow.org", ["pytorchjobs"]),
        ("apps", ["statefulsets", "statefulsets/scale", "statefulsets/status"]),
        ("", ["serviceaccounts"]),
        ("rbac.authorization.k8s.io", ["roles", "rolebindings"]),
    )
]
"""What docs/kubernetes.md says of kinds other than `job`."""


def _as_user(cluster: Cluster) -> Path:
    """A kubeconfig of an account that has the Role of docs/kubernetes.md and no other right."""
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.models.authentication_v1 import TokenRequestSpec
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ServiceAccount, ServiceAccountToken
    from lightkube.resources.rbac_authorization_v1 import Role, RoleBinding

    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    role = yaml.safe_load(page.partition("### Rights")[2].partition("```yaml")[2].partition("```")[0])
    name = role["metadata"]["name"]
    role["rules"] += RULES_OF_KINDS
    subject = {"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}
    refers = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    cluster.api.create(ServiceAccount.from_dict({"metadata": {"name": name}}))
    cluster.api.create(Role.from_dict(role))
    cluster.api.create(RoleBinding.from_dict({"metadata": {"name": name}, "roleRef": refers, "subjects": [subject]}))
    wish = ServiceAccountToken(TokenRequestSpec(audiences=[], expirationSeconds=7200), metadata=ObjectMeta(name=name))
    token = cluster.api.create(wish, name)
    there = KubeConfig.from_file(os.environ["KUBECONFIG"]).get()
    assert there is not None and token.status is not None
    place: dict[str, Any] = {"server": there.cluster.server}
    if there.cluster.insecure:
        place["insecure-skip-tls-verify"] = True
    elif there.cluster.certificate_auth_data:
        place["certificate-authority-data"] = there.cluster.certificate_auth_data
    elif there.cluster.certificate_auth:
        place["certificate-authority"] = str(there.abs_file(there.cluster.certificate_auth))
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "user",
        "clusters": [{"name": "c", "cluster": place}],
        "users": [{"name": "u", "user": {"token": token.status.token}}],
        "contexts": [{"name": "user", "context": {"cluster": "c", "user": "u", "namespace": cluster.namespace}}],
    }
    path = cluster.folder / "kubeconfig"
    path.write_text(json.dumps(value))
    path.chmod(0o600)
    return path


def _make_volume(cluster: Cluster) -> None:
    from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim

    size = {"storage": "1Gi"}
    claim: dict[str, Any] = {"accessModes": [ACCESS], "resources": {"requests": size}}
    if STORAGE_CLASS:
        claim["storageClassName"] = STORAGE_CLASS
    else:
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": cluster.namespace},
            "spec": {
                "capacity": size,
                "accessModes": [ACCESS],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "hostPath": {"path": f"{DIRECTORIES}/{cluster.namespace}", "type": "DirectoryOrCreate"},
                "claimRef": {"namespace": cluster.namespace, "name": CLAIM},
            },
        }
        cluster.api.create(PersistentVolume.from_dict(volume))
        claim |= {"storageClassName": "", "volumeName": cluster.namespace}
    cluster.api.create(
        PersistentVolumeClaim.from_dict(
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": claim}
        )
    )
    if not STORAGE_CLASS:  # the directory belongs to root; runs do not
        cluster.in_pod(["python", "-c", "import os; os.chmod('/outputs', 0o777)"], user=0)


def _remove_directory(cluster: Cluster) -> None:
    """Of the node, once nothing here writes to it any more: the volume keeps what it has."""
    from lightkube.resources.core_v1 import Pod

    for pod in cluster.api.list(Pod):
        cluster.api.delete(Pod, str(pod.metadata and pod.metadata.name), grace_period=0)
    cluster.in_pod(["rm", "-rf", f"/outputs/{cluster.namespace}"], user=0, volume={"hostPath": {"path": DIRECTORIES}})


LOOK = f"""
import json, os, socket, time
import rankzero
found = {{"rankzero": rankzero.__version__, "volume": "", "dns": "never answered"}}
try:
    os.makedirs("/outputs/looked", exist_ok=True)
except OSError as error:
    found["volume"] = str(error)
for _ in range(60):
    try:
        found["dns"] = "" if socket.gethostbyname({SERVICE!r}) else "empty"
        break
    except OSError as error:
        found["dns"] = str(error)
        time.sleep(0.5)
print(json.dumps(found))
"""


def _look_what_is_missing(cluster: Cluster) -> None:
    """One pod as runs have them. Fails with everything that they would lack, and so every test at once."""
    from lightkube.resources.core_v1 import Service

    meet = {"metadata": {"name": SERVICE}, "spec": {"clusterIP": "None", "selector": {"look": "yes"}}}
    meet["spec"] |= {"publishNotReadyAddresses": True, "ports": [{"name": "any", "port": 80}]}
    cluster.api.create(Service.from_dict({"apiVersion": "v1", "kind": "Service", **meet}))
    found = json.loads(cluster.in_pod(["python", "-c", LOOK]).splitlines()[-1])
    missing = []
    if found["rankzero"] != __version__:
        missing.append(f"{IMAGE} has rankzero {found['rankzero']}, and this is {__version__}")
    if found["volume"]:
        missing.append(f"user 1000 cannot write to the volume: {found['volume']}")
    if found["dns"]:
        missing.append(f"the name of a headless Service does not resolve in pods: {found['dns']}")
    if missing:
        pytest.fail("this cluster cannot run these tests:\n" + "\n".join(missing))


@pytest.fixture(scope="session")
def local_losses(cluster: Cluster) -> dict[int, list[float]]:
    """Losses of the same runs on this machine, step by step, by their number of steps.

    The short one in one process. Over hundreds of steps at this learning rate the last bits of sums grow into the
    second digit, so the long one has as many processes as the cluster's.
    """
    return {SHORT: _trained_here(cluster, SHORT, 1), LONG: _trained_here(cluster, LONG, 2)}


def _trained_here(cluster: Cluster, steps: int, nproc: int) -> list[float]:
    name = f"local-{steps}"
    done = cluster.rankzero("train", cluster.run_yaml(name, max_steps=steps), "--nproc-per-node", str(nproc))
    assert done.code == 0, done.err
    lines = (cluster.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]


@pytest.fixture(scope="session")
def served_kinds(cluster: Cluster) -> set[str]:
    """What the API serves."""
    from rankzero.launch.backends.kubernetes.api import Api
    from rankzero.launch.backends.kubernetes.auth import connect
    from rankzero.launch.backends.kubernetes.discover import Discovery

    return set(Discovery(Api(connect(None, os.environ), cluster.namespace, say=print)).training())
