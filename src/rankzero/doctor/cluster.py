"""What a cluster has for the pods of a cluster.yaml, as findings. Pure: the survey is made elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from rankzero.doctor.finding import Finding, look, ok, wrong
from rankzero.errors import ExitCode, RankzeroError
from rankzero.launch.survey import Survey


def of_survey(survey: Survey) -> Iterator[Finding]:
    """A line for each thing that there is, then one for each that is missing or doubtful."""
    doubtful = {doubt.name for doubt in survey.doubts}
    for name, what in survey.has:
        if name in survey.lacking:
            code = ExitCode.CONFIG if survey.refused is None else survey.refused.exit_code
            yield wrong(name, what, "as `rights` says", code)
        elif name not in doubtful and not (name == "rights" and survey.refused is not None):
            yield ok(name, what)
    for doubt in survey.doubts:
        if doubt.waits:
            yield wrong(doubt.name, doubt.what, doubt.fix, ExitCode.SERVICE)
        else:
            yield look(doubt.name, doubt.what, doubt.fix)
    if survey.refused is not None:
        yield from of_error("rights", survey.refused)


def of_error(name: str, error: RankzeroError) -> Iterator[Finding]:
    """Each of its problems."""
    for problem in error.problems:
        what = f"{problem.where}: {problem.what}" if problem.where else problem.what
        yield wrong(name, what, problem.hint or "see the message", error.exit_code)
