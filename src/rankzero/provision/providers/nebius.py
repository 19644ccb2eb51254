"""Nebius: a control plane, an account for hosts, a shared file system, a group of hosts, and the CSI driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankzero.errors import ConfigError, ServiceError
from rankzero.provision.kubernetes import Labels, access, compared, helm_release, nodes_ready, sized
from rankzero.provision.programs import Command, Programs
from rankzero.provision.steps import Facts, Find, Found, Step
from rankzero.spec.infra_spec import FilesystemSpec, InfraSpec, NodesSpec

JSON = ("--format", "json")
_GROUP = "nebius.com/node-group-id"
"""Label of hosts: the id of their group."""
_UNDER_WAY = ("PROVISIONING", "CREATING", "STARTING")
_LOST = ("ERROR", "FAILED", "DELETING")


class Nebius:
    """The `nebius` program, logged in."""

    programs = ("nebius", "kubectl")

    def steps(self, spec: InfraSpec) -> list[Step]:
        """Project, control plane, access, account, file system, hosts, driver, then whether the hosts are ready.

        Access may fail for what this machine's kubeconfig has already: so it comes before what costs most.
        """
        made = [_project(), _subnet(spec), _cluster(spec), _kubeconfig(spec)]
        if spec.nodes.service_account is not None:
            made.append(_account(spec.nodes.service_account))
        if spec.filesystem is not None:
            made.append(_filesystem(spec.filesystem))
        made.append(_node_group(spec))
        if spec.chart is not None and spec.filesystem is not None:
            data_dir = f"{spec.filesystem.mount_point}/{spec.chart.name}-data/"
            made.append(helm_release(spec.chart, {"dataDir": data_dir}))
        return [*made, nodes_ready(spec.nodes.count, _of_the_group, needs=("kubeconfig", "node-group"))]


PROVIDER = Nebius()


def _project() -> Step:
    def find(programs: Programs, _facts: Facts) -> Found:
        return Found(programs.ask("nebius", "config", "get", "parent-id").strip())

    return Step("project", "of the profile", find, place=True)


def _subnet(spec: InfraSpec) -> Step:
    def find(programs: Programs, _facts: Facts) -> Found | None:
        if spec.subnet is not None:
            return Found(spec.subnet)
        answer = programs.ask_for_object("nebius", "vpc", "subnet", "list", *JSON) or {}
        items = answer.get("items") or ()
        return Found(str(items[0]["metadata"]["id"])) if items else None

    return Step("subnet", spec.subnet or "of the project", find)


def _cluster(spec: InfraSpec) -> Step:
    def make(facts: Facts) -> list[Command]:
        version = ("--control-plane-version", spec.kubernetes_version) if spec.kubernetes_version else ()
        public = f"--control-plane-endpoints-public-endpoint={str(spec.public_endpoint).lower()}"
        words = ("--name", spec.name, *version, "--control-plane-subnet-id", facts["subnet"], public)
        return [_nebius("mk8s", "cluster", "create", *words, *JSON)]

    def remove(facts: Facts) -> list[Command]:
        return [_nebius("mk8s", "cluster", "delete", "--id", facts["cluster"])]

    def judge(found: Found, value: Mapping[str, Any], _facts: Facts) -> Found:
        has = (value.get("spec") or {}).get("control_plane") or {}
        endpoints = _told(value)
        is_told = found.ready and bool(endpoints)  # they come one by one while it is being made
        fields = {
            "kubernetes_version": (has.get("version") or None, spec.kubernetes_version),
            "subnet": (has.get("subnet_id"), spec.subnet),
            "public_endpoint": (bool(endpoints.get("public_endpoint")) if is_told else None, spec.public_endpoint),
        }
        return compared(found, f"cluster {spec.name}", fields)

    find = _by_name("mk8s", "cluster", name=spec.name, judge=judge)
    return Step("cluster", spec.name, find, make, remove, needs=("subnet",))


def _account(name: str) -> Step:
    def make(_facts: Facts) -> list[Command]:
        return [_nebius("iam", "service-account", "create", "--name", name, *JSON)]

    def remove(facts: Facts) -> list[Command]:
        return [_nebius("iam", "service-account", "delete", "--id", facts["service-account"])]

    return Step("service-account", name, _by_name("iam", "service-account", name=name), make, remove)


def _filesystem(spec: FilesystemSpec) -> Step:
    def make(_facts: Facts) -> list[Command]:
        size = ("--size-gibibytes", str(spec.size_gib), "--type", spec.type)
        block = ("--block-size-bytes", str(spec.block_size_bytes))
        return [_nebius("compute", "filesystem", "create", "--name", spec.name, *size, *block, *JSON)]

    def remove(facts: Facts) -> list[Command]:
        return [_nebius("compute", "filesystem", "delete", "--id", facts["filesystem"])]

    def judge(found: Found, value: Mapping[str, Any], _facts: Facts) -> Found:
        has = value.get("spec") or {}
        fields = {
            "size_gib": (_gib(has), spec.size_gib),
            "type": (has.get("type"), spec.type),
            "block_size_bytes": (has.get("block_size_bytes"), spec.block_size_bytes),
        }
        return compared(found, f"filesystem {spec.name}", fields)

    find = _by_name("compute", "filesystem", name=spec.name, judge=judge)
    return Step("filesystem", spec.name, find, make, remove, data=True)


def _node_group(spec: InfraSpec) -> Step:
    nodes, shared = spec.nodes, spec.filesystem
    needs = ["cluster"]
    needs += ["service-account"] if nodes.service_account is not None else []
    needs += ["filesystem"] if shared is not None else []

    def make(facts: Facts) -> list[Command]:
        words = ["--parent-id", facts["cluster"], "--name", nodes.name, "--fixed-node-count", str(nodes.count)]
        if nodes.service_account is not None:
            words += ["--template-service-account-id", facts["service-account"]]
        words += [*_template(nodes), *JSON]
        if shared is not None:
            words += ["--", json.dumps(_mounting(shared, facts["filesystem"]))]
        return [_nebius("mk8s", "node-group", "create", *words)]

    def remove(facts: Facts) -> list[Command]:
        return [_nebius("mk8s", "node-group", "delete", "--id", facts["node-group"])]

    def judge(found: Found, value: Mapping[str, Any], facts: Facts) -> Found:
        trouble = None if shared is None else _not_attached(shared, nodes, found.id, value, facts.get("filesystem"))
        if trouble is not None:
            return replace(found, trouble=trouble)
        found = compared(found, f"node-group {nodes.name}", _of_hosts(nodes, value, facts))
        has = str((value.get("spec") or {}).get("fixed_node_count") or "")
        if not has.isdigit():  # it grows and shrinks by itself
            return found
        update = f"nebius mk8s node-group update --id {found.id} --fixed-node-count {nodes.count}"
        more = f"change it there, such as by `{update}`, and give the same command again"
        return sized(found, f"node-group {nodes.name}", int(has), nodes.count, more)

    find = _by_name("mk8s", "node-group", name=nodes.name, parent="cluster", judge=judge)
    return Step("node-group", nodes.name, find, make, remove, needs=tuple(needs), asks_with=("cluster",))


def _not_attached(
    shared: FilesystemSpec, nodes: NodesSpec, group: str, value: Mapping[str, Any], id: str | None
) -> ConfigError | None:
    """What there is to say where hosts were made without the file system: what is written to its mount point lands on
    their own disks. `id` is that of the file system; None: there is none yet."""
    template = (value.get("spec") or {}).get("template")
    if not template:  # it does not say what its hosts are
        return None
    attached = {
        str((one.get("existing_filesystem") or {}).get("id")): str(one.get("mount_tag"))
        for one in template.get("filesystems") or ()
    }
    if id is not None and attached.get(id) == shared.mount_tag:
        return None
    if id is not None and id in attached:
        what = f"hosts of node-group {nodes.name} have the file system {shared.name} as {attached[id]}"
        hint = f"set filesystem.mount_tag to {attached[id]}"
        return ConfigError(f"{what}, and are to mount {shared.mount_tag}", where="filesystem.mount_tag", hint=hint)
    others = [other for other, tag in attached.items() if tag == shared.mount_tag]
    how = f"with another file system of that name, {others[0]}" if others else f"without the file system {shared.name}"
    what = f"hosts of node-group {nodes.name} were made {how}"
    hint = (
        f"hosts get it when they are made: `nebius mk8s node-group delete --id {group}` ends what runs on them, and "
        "the same command then makes them with it; or leave filesystem and chart out"
    )
    return ConfigError(what, where="filesystem", hint=hint)


def _of_hosts(nodes: NodesSpec, value: Mapping[str, Any], facts: Facts) -> dict[str, tuple[object, object]]:
    """What its hosts are by the service and by the file."""
    has = (value.get("spec") or {}).get("template") or {}
    resources, disk = has.get("resources") or {}, has.get("boot_disk") or {}
    account = facts.get("service-account")
    return {
        "platform": (resources.get("platform"), nodes.platform),
        "preset": (resources.get("preset"), nodes.preset),
        "drivers": ((has.get("gpu_settings") or {}).get("drivers_preset", "none") if has else None, nodes.drivers),
        "boot_disk_type": (disk.get("type"), nodes.boot_disk_type),
        "boot_disk_gib": (_gib(disk), nodes.boot_disk_gib),
        "service account": ((has.get("service_account_id") or "none") if has else None, account),
    }


def _gib(disk: Mapping[str, Any]) -> str | None:
    """Its size, in whichever unit the service says it; None: it does not."""
    for power, unit in enumerate(("gibibytes", "mebibytes", "kibibytes", "bytes")):
        if f"size_{unit}" in disk:
            return f"{float(disk[f'size_{unit}']) / 1024**power:g}"
    return None


def _of_the_group(labels: Sequence[Labels], facts: Facts) -> list[bool]:
    """Where none says what it is of, all of them."""
    if not any(_GROUP in one for one in labels):
        return [True for _ in labels]
    return [one.get(_GROUP) == facts["node-group"] for one in labels]


def _template(nodes: NodesSpec) -> list[str]:
    words = ["--template-resources-platform", str(nodes.platform), "--template-resources-preset", str(nodes.preset)]
    if nodes.drivers is not None:
        words += ["--template-gpu-settings-drivers-preset", nodes.drivers]
    disk = ["--template-boot-disk-type", nodes.boot_disk_type]
    return [*words, *disk, "--template-boot-disk-size-gibibytes", str(nodes.boot_disk_gib)]


def _mounting(spec: FilesystemSpec, id: str) -> dict[str, Any]:
    """What hosts are told besides: to attach the file system, and to mount it when they start."""
    tag, point = spec.mount_tag, spec.mount_point
    lines = (
        "runcmd:",
        f"  - sudo mkdir -p {point}",
        f"  - sudo mount -t virtiofs {tag} {point}",
        f'  - echo {tag} {point} "virtiofs" "defaults,nofail" "0" "2" | sudo tee -a /etc/fstab',
    )
    attached = {"attach_mode": "READ_WRITE", "mount_tag": tag, "existing_filesystem": {"id": id}}
    user_data = "\n".join(lines) + "\n"
    return {"spec": {"template": {"filesystems": [attached], "cloud_init_user_data": user_data}}}


def _kubeconfig(spec: InfraSpec) -> Step:
    where = "--external" if spec.public_endpoint else "--internal"

    def make(facts: Facts) -> list[Command]:
        return [_nebius("mk8s", "cluster", "get-credentials", "--id", facts["cluster"], where)]

    def endpoints(programs: Programs, _facts: Facts) -> list[str]:
        value = programs.ask_for_object("nebius", "mk8s", "cluster", "get-by-name", "--name", spec.name, *JSON) or {}
        told = _told(value)
        is_whole = bool(told.get("public_endpoint" if spec.public_endpoint else "private_endpoint"))
        return [str(one) for one in told.values() if one] if is_whole else []

    return access(spec.name, make, endpoints=endpoints)


def _told(cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its endpoints, as far as the service says them."""
    return ((cluster.get("status") or {}).get("control_plane") or {}).get("endpoints") or {}


def _nebius(*words: str) -> Command:
    return Command(("nebius", *words))


Judge = Callable[[Found, Mapping[str, Any], Facts], Found]
"""What else there is to say of something that is there, from the whole answer."""


def _as_it_is(found: Found, _value: Mapping[str, Any], _facts: Facts) -> Found:
    return found


def _by_name(*service: str, name: str, parent: str | None = None, judge: Judge = _as_it_is) -> Find:
    """Ask for what is called so, within what it belongs to."""

    def find(programs: Programs, facts: Facts) -> Found | None:
        within = () if parent is None else ("--parent-id", facts[parent])
        words = ("nebius", *service, "get-by-name", *within, "--name", name, *JSON)
        value = programs.ask_for_object(*words)
        if value is None:
            return None
        state = str((value.get("status") or {}).get("state") or "")
        found = Found(str(value["metadata"]["id"]), ready=state not in (*_UNDER_WAY, *_LOST))
        if state in _LOST:
            hint = "wait until it is gone, or remove it, and give the same command again"
            what = f"{name} is there and cannot be used: {state}"
            return replace(found, trouble=ServiceError(what, where=" ".join(service), hint=hint))
        return judge(found, value, facts)

    return find
