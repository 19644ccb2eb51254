"""Strict validation of manifests: core objects by kubernetes-validate, custom ones by their CRDs' schemas."""

from __future__ import annotations

import copy
import functools
import os
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate.utils
import yaml

CORE_VERSIONS = ("1.29", "1.33", "1.37")
CRD_FOLDER = Path(os.environ.get("RANKZERO_CRDS", Path(__file__).parents[3] / "shared" / "crds"))
"""Schemas as their projects publish them; not part of this repository."""
_CUSTOM = {
    "JobSet": "jobset.x-k8s.io_jobsets.yaml",
    "PyTorchJob": "kubeflow.org_pytorchjobs.v1.yaml",
    "TrainJob": "trainer.kubeflow.org_trainjobs.yaml",
    "TrainingRuntime": "trainer.kubeflow.org_trainingruntimes.yaml",
}

# All definitions of a version are read for each object, twice half a megabyte; nobody changes them.
kubernetes_validate.utils.schema_contents = functools.cache(kubernetes_validate.utils.schema_contents)


def is_custom(manifest: dict[str, Any]) -> bool:
    return manifest["kind"] in _CUSTOM


def have_crds() -> bool:
    return CRD_FOLDER.is_dir()


def check_core(manifest: dict[str, Any], version: str) -> None:
    """Raises where a field is unknown, missing or of another type."""
    kubernetes_validate.validate(manifest, version, strict=True)


def check_custom(manifest: dict[str, Any]) -> None:
    """As check_core, by the CRD. `metadata` is the API server's own."""
    body = {key: value for key, value in manifest.items() if key != "metadata"}
    errors = sorted(_validator(manifest["kind"]).iter_errors(body), key=lambda error: list(error.absolute_path))
    assert not errors, [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in errors[:5]]


@functools.cache
def _validator(kind: str) -> jsonschema.Draft202012Validator:
    crd = yaml.load((CRD_FOLDER / _CUSTOM[kind]).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    version = next(version for version in crd["spec"]["versions"] if version["storage"])
    schema = copy.deepcopy(version["schema"]["openAPIV3Schema"])
    schema["properties"].pop("metadata", None)
    _close(schema)
    return jsonschema.Draft202012Validator(schema)


def _close(schema: Any) -> None:
    """Refuse unknown fields wherever the schema names the known ones."""
    if isinstance(schema, list):
        for item in schema:
            _close(item)
    if not isinstance(schema, dict):
        return
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and schema.get("type") == "object" and not is_open:
        schema["additionalProperties"] = False
    if schema.get("nullable") and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    for value in list(schema.values()):
        _close(value)
