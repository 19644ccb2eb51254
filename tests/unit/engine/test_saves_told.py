"""saves.jsonl has every checkpoint that was committed, whatever ends a start."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rankzero.engine import saving, worker
from rankzero.engine.hooks import Hooks
from rankzero.engine.saving import Saver
from rankzero.run_dir.paths import RunDir
from tests.support.runs import run_here, run_root, small_spec


class EndedError(RuntimeError):
    """Whatever ends a start by an error."""


def noted(run_dir: RunDir) -> list[int]:
    return [json.loads(line)["step"] for line in run_dir.saves.read_text().splitlines()]


def ends_in(step: int, told: list[int]) -> Hooks:
    def begins(number: int) -> None:
        if number == step:
            raise EndedError

    return Hooks(step_begins=begins, saved=told.append)


def test_who_watches_hears_that_an_error_has_ended_the_run_while_it_is_saved(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is waited for would be a step that has begun long ago: a hang, whose start is ended."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, checkpoint__every=2, train__max_steps=5)
    commit, told, ending = saving.commit_directory, [], saving.threading.Event()

    def slow(*given: Any, **named: Any) -> None:
        assert ending.wait(300)
        commit(*given, **named)

    def hears(activity: str, step: int) -> None:
        told.append((activity, step))
        if activity == "ending":
            ending.set()

    monkeypatch.setattr(saving, "commit_directory", slow)
    monkeypatch.setattr(worker, "beats", lambda: nullcontext(hears))
    with pytest.raises(EndedError):
        run_here(spec, hooks=ends_in(3, []))
    assert RunDir(run_root(spec)).committed_steps() == [2]
    assert told[-3:] == [("step", 2), ("ending", 2), ("leaving", 2)]


@pytest.mark.parametrize("killed", [False, True], ids=["by an error", "by a kill"])
def test_what_is_committed_while_a_start_ends_is_told(
    killed: bool, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow volume: the commit of step 2 comes when step 3 has failed. A kill leaves it to the next start."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, checkpoint__every=2, checkpoint__keep=9, train__max_steps=5)
    run_dir, told = RunDir(run_root(spec)), []
    commit, leaves = saving.commit_directory, Saver.__exit__
    exiting = saving.threading.Event()

    def slow(*given: Any, **named: Any) -> None:
        assert exiting.wait(300)
        commit(*given, **named)

    def leaving(saver: Saver, *given: Any) -> None:
        exiting.set()
        leaves(saver, *given)
        if killed:
            saver.newly_committed()

    with monkeypatch.context() as patch:
        patch.setattr(saving, "commit_directory", slow)
        patch.setattr(Saver, "__exit__", leaving)
        with pytest.raises(EndedError):
            run_here(spec, hooks=ends_in(3, told))
    assert run_dir.committed_steps() == [2]
    if not killed:
        assert told == noted(run_dir) == [2]
    run_here(spec)
    assert noted(run_dir) == [2, 4, 5] == sorted(run_dir.committed_steps())
