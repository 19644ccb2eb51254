"""What GPUs and networks can do at most, by their makers' data sheets, and what share of it is assumed to be reached.

Nothing here is measured. Knows no model and no run; pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EFFICIENCY = 0.53
"""Share of the dense rate that matrix products are assumed to reach: what lies in the middle of what five runs on one
H200 come to, 47 to 57 % (docs/scale.md)."""
EXPERTS_EFFICIENCY = 0.10
"""The same where tokens are spread over experts, of products and all that lies between them: what ms-swift's 9.6 s a
step with Megatron come to (Qwen3-30B-A3B in full, 16 A800, 16 rows of 8,192 tokens, all recomputed). Its communication
is in that, so products alone are faster."""
BANDWIDTH_SHARE = 0.8
"""Of memory's and of links' bandwidth, assumed."""
HOP_SECONDS = 5e-6
"""From one GPU of a ring to the next, however little is sent; assumed."""
RDMA_PER_GPU = 50e9
"""Bytes a second each way of a network card of 400 Gbit/s, one for each GPU; assumed where pods have RDMA devices."""
ETHERNET = 12.5e9
"""Bytes a second each way of a node with 100 Gbit/s; assumed where they have none."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU by its data sheet."""

    name: str
    """Words of the name that its driver gives."""
    matrix: float
    """Dense bfloat16 with float32 sums, floating point operations a second."""
    memory: float
    """Bytes a second."""
    link: float
    """To other GPUs of its node, bytes a second each way: NVLink and its like, else PCIe."""


DEVICES = (
    Device("GH200", 989e12, 4.0e12, 450e9),
    Device("H200 NVL", 835e12, 4.8e12, 64e9),
    Device("H200", 989e12, 4.8e12, 450e9),
    Device("H100 NVL", 835e12, 3.9e12, 64e9),
    Device("H100 PCIe", 756e12, 2.0e12, 64e9),
    Device("H100", 989e12, 3.35e12, 450e9),
    Device("H20", 148e12, 4.0e12, 450e9),
    Device("B200", 2250e12, 8.0e12, 900e9),
    Device("A100 PCIe", 312e12, 1.9e12, 32e9),
    Device("A100 SXM4 40GB", 312e12, 1.55e12, 300e9),
    Device("A100", 312e12, 2.0e12, 300e9),
    Device("A800", 312e12, 2.0e12, 200e9),
    Device("A30", 165e12, 0.93e12, 32e9),
    Device("L40S", 362e12, 0.86e12, 32e9),
    Device("L40", 181e12, 0.86e12, 32e9),
    Device("L4", 121e12, 0.3e12, 32e9),
    Device("RTX 4090", 165e12, 1.01e12, 32e9),
    Device("RTX 3090", 71e12, 0.94e12, 32e9),
    Device("MI300X", 1307e12, 5.3e12, 448e9),
)
"""The first whose words are in a device's name counts."""


@dataclass(frozen=True, slots=True)
class Network:
    """What lies between the processes of a run."""

    processes_a_node: int
    between: float
    """What a node sends to others with all its network cards, bytes a second each way; of no meaning on one node."""


def find_device(name: str) -> Device | None:
    """The device whose words are in a driver's or a node label's name; None where there is none, and for a slice of one
    (MIG) or a laptop's, which are others than the name says."""
    plain = re.sub(r"[-_]", " ", name)
    if re.search(r"\b(MIG|Laptop)\b", plain, flags=re.IGNORECASE):
        return None
    return next((one for one in DEVICES if re.search(rf"\b{one.name}\b", plain, flags=re.IGNORECASE)), None)


def assumed_network(processes_a_node: int, *, rdma: bool) -> Network:
    """Of a cluster of which nobody says what its network does."""
    return Network(processes_a_node, RDMA_PER_GPU * processes_a_node if rdma else ETHERNET)
