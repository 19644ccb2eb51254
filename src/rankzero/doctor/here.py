"""All that the doctor looks at on this machine, what is quick first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rankzero.doctor.devices import devices
from rankzero.doctor.finding import Finding, ok
from rankzero.doctor.hub import reach_hub, tokens
from rankzero.doctor.packages import packages
from rankzero.doctor.places import caches, disks, shared_memory
from rankzero.machine import local_gpu_count


def this_machine(env: Mapping[str, str], output: Path, *, online: bool) -> Iterator[Finding]:
    """One after the other, as they are found."""
    yield from packages()
    yield from shared_memory(several_gpus=local_gpu_count(env) > 1)
    yield from disks(output)
    yield from caches(env)
    yield from tokens(env)
    yield reach_hub(env) if online else ok("Hub", "not asked; --online asks it")
    yield from devices(env)
