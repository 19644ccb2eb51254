"""A run's result as a server on a cluster: a Deployment and a Service. Pure.

Its pods are none of the run's: they have no label by which the run is found, so that looking at a run, or deleting it,
leaves its server alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankzero.errors import ConfigError, Problem
from rankzero.launch import labels
from rankzero.launch.labels import Manifest, object_name
from rankzero.launch.node.settings import TOKEN_VARIABLE
from rankzero.launch.plan import Plan, is_kept, volume_of
from rankzero.launch.render.container import environment, mounts, resources, security
from rankzero.launch.render.pod import pod_spec
from rankzero.launch.render.shared import CONFIG_VOLUME, claims, require_no_secret
from rankzero.launch.server_arguments import is_tls

SERVES = "rankzero.dev/serves"
"""Label: object name of the run whose result is served."""
READY_FILE = "/tmp/rankzero-answered"
PORT_NAME = "http"
LOADING_SECONDS = 3600
_PROBE_SECONDS = 10
_BEGIN_SECONDS = 30
"""Until rankzero has begun, and has removed the answer of a container before it that was killed: /tmp is the pod's."""


@dataclass(frozen=True, slots=True)
class ServingWishes:
    """What is said of the server besides the run and the cluster."""

    name: str
    """What clients ask for: it stays the same whichever run is served."""
    port: int = 8000
    engine: str = "auto"
    image: str | None = None
    """None: the workers'."""
    more: Sequence[str] = ()


def serving_objects(plan: Plan, wishes: ServingWishes) -> list[Manifest]:
    """Claims that are missing, the Service, and the Deployment. Raises ConfigError where what is served lies on a
    volume that each pod has for itself: pods that train fill it from a URL, or copy it to one, and no others do; or
    among the files that travel with the run, which goes when the run is deleted."""
    require_no_secret(plan)
    if plan.known_run_dir is None:
        hint = f"`rankzero status {plan.name}` names it after the run: say name and resume: refuse for that one"
        raise ConfigError("the run may be in a directory beside the one of its name", where="resume", hint=hint)
    read = {"output_dir": plan.run_dir}
    if plan.run.lora is not None:  # a whole model and a tokenizer are with the result
        read["model"] = plan.run.model.local_dir or plan.run.model.name
        if read["model"].startswith(f"{plan.config_dir}/"):
            hint = "put it on a volume, and name its place there; or `rankzero pull`, and `rankzero serve RUN` here"
            raise ConfigError("the base travels with the run, and not with its server", where="model", hint=hint)
    empty = {
        field: volume
        for field, path in read.items()
        if (volume := volume_of(path, plan.cluster.storage)) is not None and not is_kept(volume)
    }
    if empty:
        raise ConfigError(
            Problem(
                f"a server's pod has nothing at {volume.mount}: the volume there is each pod's own",
                f"{field} {read[field]}",
                "`rankzero pull` brings the result here, for `rankzero serve RUN`; or give that volume a claim",
            )
            for field, volume in empty.items()
        )
    return [*claims(plan), _service(plan, wishes), _deployment(plan, wishes)]


def serving_name(wishes: ServingWishes) -> str:
    """Name of both objects: clients find the Service by what they ask it for."""
    return object_name(f"serve-{wishes.name}".lower())


def _labels(plan: Plan, wishes: ServingWishes) -> dict[str, str]:
    own = {
        "app.kubernetes.io/name": "rankzero-serve",
        "app.kubernetes.io/instance": serving_name(wishes),
        labels.MANAGED_BY: "rankzero",
        SERVES: plan.name,
    }
    return {**plan.cluster.labels, **own}


def _selector(wishes: ServingWishes) -> dict[str, str]:
    """Without the run: a Deployment's selector cannot change, and the run that is served can."""
    return {"app.kubernetes.io/name": "rankzero-serve", "app.kubernetes.io/instance": serving_name(wishes)}


def _metadata(plan: Plan, wishes: ServingWishes) -> dict[str, Any]:
    about = {**plan.cluster.annotations, labels.RUN_NAME: str(plan.run.name), labels.RUN_DIR: plan.run_dir}
    where = {"name": serving_name(wishes), "namespace": plan.cluster.namespace}
    return {**where, "labels": _labels(plan, wishes), "annotations": about}


def _service(plan: Plan, wishes: ServingWishes) -> Manifest:
    port = {"name": PORT_NAME, "port": wishes.port, "targetPort": PORT_NAME}
    spec = {"type": "ClusterIP", "selector": _selector(wishes), "ports": [port]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(plan, wishes), "spec": spec}


def _deployment(plan: Plan, wishes: ServingWishes) -> Manifest:
    """One pod, ended before the next one starts: there may be no second GPU, and a volume may be one host's."""
    metadata = _metadata(plan, wishes)
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "progressDeadlineSeconds": LOADING_SECONDS + 600,
        "selector": {"matchLabels": _selector(wishes)},
        "template": {
            "metadata": {"labels": metadata["labels"], "annotations": metadata["annotations"]},
            "spec": _pod(plan, wishes),
        },
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _pod(plan: Plan, wishes: ServingWishes) -> dict[str, Any]:
    """As a pod that trains, where a site needs that: its place, its user, its volumes. Without the run's files."""
    spec = pod_spec(plan, _container(plan, wishes), role=labels.SERVE_ROLE)
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != CONFIG_VOLUME]
    spec["terminationGracePeriodSeconds"] = 30
    return spec


def _container(plan: Plan, wishes: ServingWishes) -> dict[str, Any]:
    asked = {"path": "/health", "port": PORT_NAME} | ({"scheme": "HTTPS"} if is_tls(wishes.more) else {})
    health = {"httpGet": asked, "periodSeconds": _PROBE_SECONDS, "timeoutSeconds": 5}
    return {
        "name": "serve",
        "image": wishes.image or plan.cluster.image,
        "imagePullPolicy": plan.cluster.image_pull_policy,
        "command": _command(plan, wishes),
        "env": [one for one in environment(plan, labels.SERVE_ROLE, None) if one["name"] != TOKEN_VARIABLE],
        "ports": [{"name": PORT_NAME, "containerPort": wishes.port}],
        # Nothing is sent to it before it has answered a request of its own.
        "startupProbe": {
            "exec": {"command": ["test", "-f", READY_FILE]},
            "initialDelaySeconds": _BEGIN_SECONDS,
            "periodSeconds": _PROBE_SECONDS,
            "failureThreshold": LOADING_SECONDS // _PROBE_SECONDS,
        },
        "readinessProbe": health,
        "livenessProbe": {**health, "failureThreshold": 6},
        "resources": resources(plan, labels.SERVE_ROLE),
        "securityContext": security(plan, labels.SERVE_ROLE),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {**mount, "readOnly": True} if mount["mountPath"] == _outputs(plan) else mount
            for mount in mounts(plan)
            if mount["name"] != CONFIG_VOLUME
        ],
    }


def _outputs(plan: Plan) -> str | None:
    """Where results lie, which a server only reads."""
    outputs = plan.cluster.storage.get("outputs")
    return None if outputs is None else outputs.mount


def _command(plan: Plan, wishes: ServingWishes) -> list[str]:
    place = ["--host", "0.0.0.0", "--port", str(wishes.port), "--ready-file", READY_FILE]
    more = ["--", *wishes.more] if wishes.more else []
    asked = ["python", "-P", "-m", "rankzero", "serve", plan.run_dir, "--name", wishes.name, "--engine", wishes.engine]
    return [*asked, "--wait", str(LOADING_SECONDS), *place, *more]
