"""TrainJob (Kubeflow Trainer 2) with a TrainingRuntime of its own. Pure.

The fields by which a TrainJob overrides a runtime changed with every release (podSpecOverrides, podTemplateOverrides,
runtimePatches), and none of them reaches everything that a run needs. A runtime per run holds it all, so nothing is
overridden, and the same two objects are valid from 2.1 to 2.3; 2.0 gets them without JobSet's newer rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.launch.kinds.job import INDEX
from rankzero.launch.kinds.jobset import CHARGED, PATTERNS, jobset_spec, pods_of_jobset, without_patterns
from rankzero.launch.kinds.kind import Kind, Newer, Template, by_conditions, by_mark
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.shared import metadata, top_metadata
from rankzero.launch.resource import Resource
from rankzero.launch.untyped_json import at

TRAIN_JOB = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
RUNTIME = Resource(TRAIN_JOB.group, TRAIN_JOB.version, "trainingruntimes", "TrainingRuntime")
ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def objects(plan: Plan) -> list[Manifest]:
    """The TrainingRuntime and the TrainJob."""
    runtime_metadata = metadata(plan)
    runtime_metadata["labels"]["trainer.kubeflow.org/framework"] = "torch"
    template: dict[str, Any] = {"spec": jobset_spec(plan, ANCESTOR)}
    return [
        {
            "apiVersion": RUNTIME.api_version,
            "kind": RUNTIME.kind,
            "metadata": runtime_metadata,
            "spec": {"mlPolicy": {"numNodes": plan.cluster.num_nodes, "torch": {}}, "template": template},
        },
        {
            "apiVersion": TRAIN_JOB.api_version,
            "kind": TRAIN_JOB.kind,
            "metadata": top_metadata(plan),
            "spec": {
                "runtimeRef": {"apiGroup": RUNTIME.group, "kind": RUNTIME.kind, "name": plan.name},
                # ranks and addresses are injected only where this section is present
                "trainer": {"numNodes": plan.cluster.num_nodes, "numProcPerNode": plan.cluster.nproc_per_node},
            },
        },
    ]


def _without_patterns(runtime: Mapping[str, Any]) -> Manifest:
    spec = at(runtime, "spec")
    template = {**at(spec, "template"), "spec": without_patterns(at(spec, "template", "spec"))}
    return {**runtime, "spec": {**spec, "template": template}}


KIND = Kind(
    resource=TRAIN_JOB,
    objects=objects,
    pod_specs=lambda manifest: pods_of_jobset(at(manifest, "spec", "template", "spec")),
    node_index=by_mark(INDEX),
    end=by_conditions("Complete"),
    needs="Kubeflow Trainer 2 (https://www.kubeflow.org/docs/components/trainer)",
    template=Template(RUNTIME, missing="untime"),
    newer=Newer(RUNTIME, PATTERNS, _without_patterns, CHARGED),
)
