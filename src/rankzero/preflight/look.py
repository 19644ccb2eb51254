"""Everything about a run that costs no seconds to find out, in one go with what is wrong in the spec itself.

Reads directories, configs and headers; imports no torch and asks no network.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from rankzero.errors import AccessError, ConfigError, DataError, Problem, RankzeroError, ServiceError, StorageError
from rankzero.preflight.finding import Finding
from rankzero.preflight.model import model_findings
from rankzero.preflight.paths import misplaced, path_findings
from rankzero.preflight.run_directory import run_directory_findings
from rankzero.spec.load import Loaded, Reading, in_reading_order
from rankzero.spec.run_spec import RunSpec

Part = Literal["paths", "model", "run directory"]
"""paths: files that the spec names. model: what is in the model's directory. run directory: whether it can be one."""

EVERYTHING: tuple[Part, ...] = ("paths", "model", "run directory")
_WORST_FIRST = (ConfigError, DataError, AccessError, ServiceError, StorageError)
"""Of several kinds of problems the exit code is that of the first here: what never mends itself before what may."""


def look(reading: Reading[RunSpec], parts: Collection[Part] = EVERYTHING) -> Loaded[RunSpec]:
    """The spec, where nothing is wrong with it and with what it names here.

    Raises the RankzeroError of the worst kind that was found, with every problem of every kind, each at its line.
    """
    found = reading.found
    findings = [] if found is None else _findings(found, parts)
    findings = [finding for finding in findings if not _is_doubtful(finding.field, reading.doubtful)]
    if found is None or reading.problems or findings:
        places = [Problem(f.what, found.where(f.field), f.hint) for f in findings] if found is not None else []
        kinds = {finding.error for finding in findings} | (
            {ConfigError} if reading.problems or found is None else set()
        )
        error: type[RankzeroError] = next((kind for kind in _WORST_FIRST if kind in kinds), RankzeroError)
        raise error(in_reading_order([*reading.problems, *places]))
    return found


def look_for_files(reading: Reading[RunSpec]) -> Loaded[RunSpec]:
    """As `look`, for a spec whose absolute paths are another machine's: only what lies in the wrong place here."""
    loaded = reading.loaded()
    problems = [Problem(f.what, loaded.where(f.field), f.hint) for f in misplaced(loaded)]
    if problems:
        raise ConfigError(in_reading_order(problems))
    return loaded


def _findings(found: Loaded[RunSpec], parts: Collection[Part]) -> list[Finding]:
    elsewhere = misplaced(found) if parts else []
    findings: list[Finding] = []
    if "paths" in parts:
        findings += path_findings(found)
    if "model" in parts:
        findings += model_findings(found)
    if "run directory" in parts:
        findings += run_directory_findings(found)
    told = {finding.field for finding in elsewhere}
    return [*elsewhere, *(finding for finding in findings if finding.field not in told)]


def _is_doubtful(field: str, doubtful: Collection[str]) -> bool:
    """Whether a field's value is a stand-in for one that the schema refused."""
    return any(a == b or a.startswith((f"{b}.", f"{b}[")) for d in doubtful for a, b in ((field, d), (d, field)))
