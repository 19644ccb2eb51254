"""infra.yaml → an InfraSpec, or every problem at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from rankzero.errors import Problem
from rankzero.spec.infra_spec import InfraSpec
from rankzero.spec.load import Loaded, Setting, load_spec
from rankzero.spec.providers import PROVIDERS
from rankzero.spec.renames import Rename, normalised

_TABLE = {
    "kubernetes_version": "version k8s_version control_plane_version",
    "nodes": "node_group nodegroup node_pool",
    "filesystem": "shared_filesystem fs",
    "nodes.count": "fixed_node_count node_count num_nodes",
}
RENAMES = {normalised(name): Rename(field, "") for field, names in _TABLE.items() for name in names.split()}


def load_infra_spec(
    path: Path, overrides: Sequence[str | Setting] = (), *, env: Mapping[str, str]
) -> Loaded[InfraSpec]:
    """As load_run_spec, for infra.yaml."""
    return load_spec(InfraSpec, path, overrides, env=env, renames=RENAMES, check=check_infra)


def unread_of_infra(loaded: Loaded[InfraSpec]) -> list[Problem]:
    """Fields without effect that the file has: no error, since what is made is the same without them."""
    provider = loaded.spec.provider
    return [
        Problem(f"{provider} makes nothing of it", loaded.where(field), "leave it out")
        for field in PROVIDERS[provider].unread
        if loaded.source(field) is not None
    ]


def check_infra(spec: InfraSpec, doubtful: Collection[str] = ()) -> list[Problem]:
    """What contradicts each other, each at the field to change. Sections in `doubtful` are left out."""
    sections = {field.split(".")[0] for field in doubtful}

    def is_set(field: str) -> bool:
        value: object = spec
        for name in field.split("."):
            value = getattr(value, name)
        return value is not None

    def known(fields: tuple[str, ...], wanted: Callable[[str], bool]) -> list[str]:
        return [field for field in fields if field.split(".")[0] not in sections and wanted(field)]

    section = PROVIDERS[spec.provider]
    unable = known(section.cannot, is_set)
    missing = known(section.needs, lambda field: not is_set(field))
    problems = [Problem(f"{spec.provider} has no use for it", field, "leave it out") for field in unable]
    problems += [Problem(f"{spec.provider} needs it", field, "see docs/provision.md") for field in missing]
    version = spec.kubernetes_version
    parts = section.version_parts
    if version is not None and parts is not None and version.count(".") + 1 != parts:
        hint = f"such as {'.'.join(['1', '36', '1'][:parts])}; or leave it out, for the newest"
        what = f"{spec.provider} takes a version of {parts} parts, not {version}"
        problems.append(Problem(what, "kubernetes_version", hint))
    if spec.chart is not None and spec.filesystem is None and not {"chart", "filesystem"} & sections and not unable:
        hint = "add filesystem: {name, size_gib}, or leave the chart out"
        problems.append(Problem("there is no file system for its volumes", "chart", hint))
    return problems
