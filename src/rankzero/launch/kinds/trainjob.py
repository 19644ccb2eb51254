"""TrainJob (Kubeflow Trainer 2) with a TrainingRuntime of its own. Pure.

The fields by which a TrainJob overrides a runtime changed with every release (podSpecOverrides, podTemplateOverrides,
runtimePatches), and none of them reaches everything that a run needs. A runtime per run holds it all, so nothing is
overridden, and the same two objects are valid from 2.0 to 2.3.
"""

from __future__ import annotations

from typing import Any

from rankzero.launch.kinds.jobset import jobset_spec
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import Plan
from rankzero.launch.render.shared import metadata, top_metadata

API = "trainer.kubeflow.org/v1alpha1"
ANCESTOR = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def objects(plan: Plan) -> list[Manifest]:
    """The TrainingRuntime and the TrainJob."""
    runtime_metadata = metadata(plan)
    runtime_metadata["labels"]["trainer.kubeflow.org/framework"] = "torch"
    template: dict[str, Any] = {"spec": jobset_spec(plan, ANCESTOR)}
    return [
        {
            "apiVersion": API,
            "kind": "TrainingRuntime",
            "metadata": runtime_metadata,
            "spec": {"mlPolicy": {"numNodes": plan.cluster.num_nodes, "torch": {}}, "template": template},
        },
        {
            "apiVersion": API,
            "kind": "TrainJob",
            "metadata": top_metadata(plan),
            "spec": {
                "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": plan.name},
                # ranks and addresses are injected only where this section is present
                "trainer": {"numNodes": plan.cluster.num_nodes, "numProcPerNode": plan.cluster.nproc_per_node},
            },
        },
    ]
