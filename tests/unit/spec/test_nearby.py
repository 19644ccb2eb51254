"""Names that are like what is here, as beginnings of hints."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.model import hub
from rankzero.spec.nearby import meant_here


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tiny", "models/small", "plain"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tiny/config.json").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "meant"), [("tinyy", "tiny"), ("models/smal", "models/small"), ("plane", ""), ("gpt2", ""), ("org/x", "")]
)
def test_a_slip_is_seen_beside_a_model_alone(name: str, meant: str) -> None:
    assert meant_here(name) == (f"did you mean {meant}, which is here? Else: " if meant else "")


def test_it_is_said_once_where_the_hub_does_not_answer() -> None:
    (problem,) = hub._unreachable("tinyy").problems
    assert problem.hint.count("did you mean tiny, which is here?") == 1
