"""Bare Pods, one a node, for the docker backend of this machine. Pure."""

from __future__ import annotations

from rankzero.launch.kinds.kind import Kind, by_mark
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.pod import pod_template
from rankzero.launch.render.shared import metadata
from rankzero.launch.resource import POD
from rankzero.launch.untyped_json import at

NODE_LABEL = "rankzero.dev/node"


def objects(plan: Plan) -> list[Manifest]:
    """`<run>-0`, `<run>-1` …; containers find each other by these names."""
    return [_pod(plan, node) for node in range(plan.cluster.num_nodes)]


def _pod(plan: Plan, node: int) -> Manifest:
    name = f"{plan.name}-{node}"
    template = pod_template(plan, master=f"{plan.name}-0")
    template["metadata"]["labels"][NODE_LABEL] = str(node)
    template["spec"]["hostname"] = name
    template["spec"]["containers"][0]["env"].append({"name": "RANKZERO_NODE", "value": str(node)})
    pod_metadata = {**metadata(plan, name), **template["metadata"]}
    return {"apiVersion": POD.api_version, "kind": POD.kind, "metadata": pod_metadata, "spec": template["spec"]}


KIND = Kind(
    resource=POD,
    objects=objects,
    pod_specs=lambda manifest: iter([(at(manifest, "spec"), 1)]),
    node_index=by_mark(NODE_LABEL),
    end=lambda manifest: None,
    controlled=False,
)
