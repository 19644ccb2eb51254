"""InfraSpec: the cluster that is to be made, before a run is sent to it. Knows no command of any cloud.

One infra.yaml is one cluster. Every provider takes the same fields, and names those that it has no use for.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from rankzero.spec.cluster_spec import DnsLabel, DnsName, Text
from rankzero.spec.providers import Provider
from rankzero.spec.run_spec import PositiveInt, Section

Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)?$")]


class NodesSpec(Section):
    """The hosts: one group, all of one kind."""

    name: DnsLabel
    """Name of the group."""
    count: PositiveInt = 1
    """How many hosts."""
    platform: Text | None = None
    """What they are, in the provider's words: gpu-h100-sxm."""
    preset: Text | None = None
    """How much of it each one is: 1gpu-16vcpu-200gb."""
    drivers: Text | None = None
    """Preset of the GPU drivers, such as cuda12; absent: the image's."""
    boot_disk_type: Text = "network_ssd"
    """Kind of each host's own disk; the provider kind has none."""
    boot_disk_gib: PositiveInt = 100
    """Size of each host's own disk; the provider kind has none."""
    service_account: DnsLabel | None = None
    """Name of the account that hosts have; made where there is none. Absent: they have none."""


class FilesystemSpec(Section):
    """A file system that all hosts mount, for what `storage` of cluster.yaml keeps."""

    name: DnsLabel
    """Name of the file system."""
    size_gib: PositiveInt
    """Size."""
    type: Text = "network_ssd"
    """Kind of disk that it is on."""
    block_size_bytes: PositiveInt = 4096
    """Block size."""
    mount_point: Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9][A-Za-z0-9._-]*)+$")] = "/mnt/data"
    """Where hosts mount it."""
    mount_tag: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "csi-storage"
    """Name by which hosts know the device."""


class ChartSpec(Section):
    """The Helm chart of the CSI driver that makes volumes of the file system."""

    name: DnsLabel
    """Name of the release."""
    ref: Annotated[str, StringConstraints(pattern=r"^oci://[^\s]+$")]
    """Where the chart is: oci://…"""
    version: Text
    """Version of the chart."""
    storage_class: DnsName | None = None
    """Name of the storage class that it makes, for what is said at the end."""


class InfraSpec(Section):
    """One cluster at a provider."""

    provider: Provider
    """Who has it. kind: containers of this machine."""
    name: DnsLabel
    """Name of the cluster."""
    kubernetes_version: Version | None = None
    """Version of the control plane, of two parts for nebius (1.35), of three for kind (1.36.1); absent: the provider's
    newest."""
    subnet: Text | None = None
    """Id of the control plane's subnet; absent: the first one of the project."""
    public_endpoint: bool = True
    """Whether the cluster's API can be reached from outside; the provider kind makes nothing of it."""
    nodes: NodesSpec
    """Its hosts."""
    filesystem: FilesystemSpec | None = None
    """A file system that all hosts share."""
    chart: ChartSpec | None = None
    """Needs `filesystem`."""
    ready_timeout_seconds: Annotated[int, Field(ge=1)] = 1800
    """Longest wait for the control plane, and for the hosts."""
