"""The score on situations that no rule was written from: how many get the right cause, and that none gets a wrong one.

`seen` were looked at while rules were written; `unseen` were scored once before any rule could follow them.
A finding that only says what happened and where to look (SYMPTOMS) is no wrong answer, and no right one either, except
where nobody could say more.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import pytest

from rankzero.launch.diagnose import SYMPTOMS, Finding, diagnose
from rankzero.launch.status import as_text, run_status
from tests.support.situations import Situation, situations

SHARE = 0.9
_UNFILLED = re.compile(r"\{(?:who|hosts?|pod|image|line|said|variables)\}")
Answer = Literal["right", "open", "wrong"]


def _answer(situation: Situation) -> tuple[Answer, str]:
    """What the first finding is worth, and what it says."""
    findings = diagnose(situation.evidence)
    troubles = [finding for finding in findings if finding.severity != "info"]
    if situation.code is None:
        return ("wrong", troubles[0].cause) if troubles else ("right", "")
    first = next(iter(troubles or findings), None)
    if first is None:
        return "open", "nothing"
    if first.code == situation.code:
        return ("right" if _names(first, situation.names) else "open"), first.cause
    return ("open" if first.code in SYMPTOMS else "wrong"), f"{first.code}: {first.cause}"


def _names(finding: Finding, names: tuple[str, ...]) -> bool:
    return all(name in f"{finding.cause} {finding.fix}" for name in names)


@pytest.mark.parametrize(("part", "least"), [("seen", 25), ("unseen", 200)])
def test_score(part: str, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [(one, *_answer(one)) for one in situations(part)]
    counts = Counter(answer for _, answer, _ in answers)
    with capsys.disabled():
        print(f"\n{part}: {counts['right']} of {len(answers)} get the right cause, {counts['wrong']} a wrong one")
    missed = [f"{one.name} wants {one.code}: {said}" for one, answer, said in answers if answer != "right"]
    assert len(answers) >= least
    assert counts["wrong"] == 0, missed
    assert counts["right"] >= SHARE * len(answers), missed


@pytest.mark.parametrize("part", ["seen", "unseen"])
def test_every_situation_can_be_shown(part: str) -> None:
    for one in situations(part):
        status = run_status(one.evidence)
        assert as_text(status, 80), one.name
        for finding in status.findings:
            assert len(finding.cause) <= 400, one.name
            assert len(finding.fix) <= 400, one.name
            assert "SOCKET_IFNAME: eth0" not in finding.fix, f"{one.name}: pods of many sites have no eth0"
            assert _UNFILLED.search(finding.cause + finding.fix) is None, one.name


def test_what_a_queue_put_aside_says_why() -> None:
    """Put aside by its queue, a run counts as stopped; the verdict is the queue's reason, not that all is well."""
    one = next(one for one in situations("unseen") if one.name == "kueue_maximum_execution_time")
    status = run_status(one.evidence)
    assert status.phase == "Stopped"
    assert "maximum execution time of 2 h" in status.verdict


def test_a_volume_that_cannot_be_written_is_not_taken_for_the_outputs() -> None:
    (one,) = [one for one in situations("seen") if one.name == "read_only_mirror"]
    assert "outputs" not in diagnose(one.evidence)[0].fix
