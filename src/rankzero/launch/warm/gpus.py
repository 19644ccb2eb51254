"""What the GPUs of a pod do at this moment, by nvidia-smi in it. Judges nothing."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from rankzero.errors import RankzeroError
from rankzero.launch.backend import Backend

_FIELDS = ("index", "name", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw")
COMMAND = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
_ABSENT = (126, 127)
"""What a place leaves with where the command is not there."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; None is what it does not say."""

    index: int
    name: str
    utilization: int | None
    """Per cent of the last moments in which anything ran on it."""
    memory_used: int | None
    """MiB."""
    memory_total: int | None
    temperature: int | None
    """Degrees Celsius."""
    power: float | None
    """Watts."""


@dataclass(frozen=True, slots=True)
class PodGpus:
    """Of one pod."""

    pod: str
    gpus: tuple[Gpu, ...] = ()
    trouble: str = ""
    """Why there is nothing."""


def look(backend: Backend, pod: str) -> PodGpus:
    """Ask a pod. One that does not answer has its trouble said, so that the others are seen."""
    out: list[bytes] = []
    try:
        ended = backend.execute(pod, COMMAND, out.append)
    except RankzeroError as error:
        return PodGpus(pod, trouble=error.problems[0].what)
    text = b"".join(out).decode(errors="replace")
    if ended.code in _ABSENT or "executable file not found" in ended.words:
        return PodGpus(pod, trouble="it has no nvidia-smi")
    if ended.code:
        said = (f"{text}\n{ended.words}".strip().splitlines() or [f"it ended with {ended.code}"])[-1]
        return PodGpus(pod, trouble=f"nvidia-smi: {said}")
    return PodGpus(pod, tuple(parse(text)))


def parse(text: str) -> list[Gpu]:
    """Lines of numbers without units; `[N/A]` and the like are what a GPU does not say."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [_gpu(row) for row in rows if len(row) == len(_FIELDS)]


def _gpu(row: Sequence[str]) -> Gpu:
    index, name, *rest = row
    busy, used, total, temperature, power = (_number(text) for text in rest)
    return Gpu(int(index), name, _whole(busy), _whole(used), _whole(total), _whole(temperature), power)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)
