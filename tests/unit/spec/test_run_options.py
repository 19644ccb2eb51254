"""What a start is told besides its spec, from Python, where no command line has looked at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import UsageError
from rankzero.spec.run_options import RunOptions


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({"log_level": "debug"}, "one of DEBUG, INFO, WARNING, ERROR"),
        ({"log_level": 10}, "one of DEBUG, INFO, WARNING, ERROR"),
        ({"log_batches": "first"}, "one of all, first-last, none"),
    ],
)
def test_what_is_none_of_the_choices_is_refused_before_a_run_begins(given: dict[str, Any], known: str) -> None:
    (name, value), *_ = given.items()
    with pytest.raises(UsageError) as caught:
        RunOptions(**given)
    problem = caught.value.problems[0]
    assert (problem.what, problem.where, problem.hint) == (f"there is no {value!r}", name, known)
    with pytest.raises(ValueError, match=name):  # a file's, which is then not one of ours
        RunOptions.from_json({**RunOptions().to_json(), **given})


@pytest.mark.parametrize("given", ["~/x.json", Path("~/x.json"), Path("/home/me/x.json")])
def test_a_place_is_text_for_the_processes_that_it_is_handed_to(
    given: str | Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    options = RunOptions(report_json=given)
    assert json.loads(json.dumps(options.to_json()))["report_json"] == "/home/me/x.json"


def test_one_text_is_no_tuple_of_changes() -> None:
    with pytest.raises(UsageError, match=r"allow_changes: it is one text\n  hint: give a tuple: \('train.seed',\)"):
        RunOptions(allow_changes="train.seed")  # type: ignore[arg-type]
