"""Which silence of ranks is a hang."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from rankzero.launch.hang import LEAVE_SECONDS, LOOK_SECONDS, HangWatch, Progress, Stall, waited_for
from rankzero.launch.processes import SUSPENDED_SECONDS, Ranks, Workers
from rankzero.run_dir.handover import Beat
from rankzero.run_dir.paths import RunDir
from tests.support.unreadable import stale


class Story:
    """One rank's beats on a clock of its own."""

    def __init__(self, **how: float) -> None:
        self.progress, self.now, self.begun = Progress(1, **how), 0.0, 0
        self.beat: Beat | None = None

    def passes(self, seconds: float) -> Stall | None:
        found = None
        for _ in range(100):
            self.now += seconds / 100
            found = self.progress.look([self.beat], self.now) or found
        return found

    def does(self, activity: str, step: int = 0, *, seconds: float) -> Stall | None:
        self.begun += activity == "step"
        self.beat = Beat(activity, step, self.begun)
        self.progress.look([self.beat], self.now)
        return self.passes(seconds)


def test_no_step_is_late_before_thirty_seconds() -> None:
    story = Story()
    assert not any(story.does("step", step, seconds=0.1) for step in range(20))
    assert story.does("step", 20, seconds=29) is None
    late = story.passes(2)
    assert late is not None and late.step == 21 and late.median == pytest.approx(0.1, rel=0.1)
    assert str(late) == "step 21 has not ended after 31 s (a step takes 0.1 s)"


def test_slow_steps_may_take_five_times_as_long() -> None:
    story = Story()
    assert not any(story.does("step", step, seconds=20) for step in range(5))
    assert story.does("step", 5, seconds=99) is None
    assert story.passes(3) is not None


def test_neither_start_nor_first_step_nor_evaluation_nor_saving_is_a_hang() -> None:
    story = Story()
    assert story.passes(3000) is None, "nothing has begun"
    assert story.does("evaluation", 0, seconds=3000) is None
    assert story.does("step", 0, seconds=3000) is None, "compiles"
    assert not any(story.does("step", step, seconds=1) for step in range(1, 9))
    for activity in ("evaluation", "save", "result"):
        assert story.does(activity, 9, seconds=3000) is None
        assert story.does("step", 9, seconds=1) is None
    assert story.does("step", 9, seconds=31) is not None


def test_nobody_is_late_who_waits_for_one_that_an_error_has_ended_and_that_saves() -> None:
    progress, waiting = Progress(2), Beat("step", 4, 5)
    assert progress.look([waiting, Beat("step", 4, 5)], 0.0) is None
    assert progress.look([waiting, Beat("ending", 4, 5)], 3000.0) is None


def test_a_process_that_does_not_leave_is_a_hang_of_its_own() -> None:
    """Those that wait for it in a step are not named for it; on other nodes they are told that they wait."""
    progress, waiting = Progress(2), Beat("step", 4, 5)
    progress.look([waiting, Beat("leaving", 4, 5)], 0.0)
    assert progress.look([waiting, Beat("leaving", 4, 5)], LEAVE_SECONDS - 1) is None
    late = progress.look([waiting, Beat("leaving", 4, 5)], LEAVE_SECONDS + 1)
    assert str(late) == "a process has not left 121 s after its last work"
    elsewhere = Progress(1)
    elsewhere.look([waiting], 0.0)
    elsewhere.waits_for_others = True
    assert elsewhere.look([waiting], 3000.0) is None


def test_one_that_saves_hides_none_that_hangs_in_a_step() -> None:
    progress, beats = Progress(2), [Beat("save", 5, 5), Beat("step", 4, 5)]
    progress.look(beats, 0.0)
    assert progress.gets_on(29.0) and not progress.gets_on(31.0)


def test_a_run_that_was_asked_to_stop_gets_on_in_a_step_in_time_and_in_what_it_writes() -> None:
    story = Story()
    assert not story.progress.gets_on(story.now), "nothing has begun"
    story.does("step", 0, seconds=300)
    assert not story.progress.gets_on(story.now), "how long the first step takes is not known"
    for step in range(1, 9):
        story.does("step", step, seconds=100)
    story.does("step", 9, seconds=400)
    assert story.progress.gets_on(story.now)
    assert story.passes(200) is not None and not story.progress.gets_on(story.now)
    for activity in ("save", "result", "ending"):
        story.does(activity, 10, seconds=3000)
        assert story.progress.gets_on(story.now)
    story.does("leaving", 10, seconds=LEAVE_SECONDS - 1)
    assert story.progress.gets_on(story.now)
    story.passes(2)
    assert not story.progress.gets_on(story.now)
    for activity in ("evaluation", "samples", "rows"):
        story.does(activity, 10, seconds=1)
        assert not story.progress.gets_on(story.now)


def test_a_first_step_that_compiled_does_not_hide_the_next_for_long() -> None:
    story = Story()
    story.does("step", 0, seconds=100)
    story.does("step", 1, seconds=1)
    story.does("step", 2, seconds=1)
    assert story.does("step", 3, seconds=31) is not None


def test_who_compiles_in_the_middle_has_longer() -> None:
    story = Story(floor_seconds=300)
    assert not any(story.does("step", step, seconds=1) for step in range(9))
    assert story.does("step", 9, seconds=299) is None


def test_a_rank_that_lags_is_seen_beside_those_that_wait() -> None:
    progress = Progress(2)
    steps = [Beat("step", 4, 5), Beat("step", 4, 5)]
    assert progress.look(steps, 0.0) is None
    assert progress.look([Beat("save", 5, 5), steps[1]], 1.0) is None
    assert progress.look([Beat("save", 5, 5), steps[1]], 40.0) is not None


def test_several_steps_between_two_looks_are_several() -> None:
    progress = Progress(1)
    for step in range(0, 1000, 100):  # 100 steps of 1 s at each look
        progress.look([Beat("step", step, step + 2)], float(step))
    late = progress.look([Beat("step", 900, 902)], 931.0)
    assert late is not None and late.median == pytest.approx(1.0)


def test_a_pause_is_forgiven() -> None:
    progress = Progress(1)
    beat = Beat("step", 4, 5)
    progress.look([beat], 0.0)
    assert progress.look([beat], 40.0) is not None
    progress.forgive(40.0)
    assert progress.look([beat], 69.0) is None
    assert progress.look([beat], 71.0) is not None


@pytest.mark.parametrize("step_seconds", [0.1, 1.0, 5.0, 6.0, 20.0, 60.0])
def test_a_suspended_rank_is_found_before_another_node_ends_the_start(step_seconds: float) -> None:
    """It may have been suspended at the end of a step that the others count from its beginning."""
    slack = 2 * LOOK_SECONDS
    story = Story()
    assert not any(story.does("step", step, seconds=step_seconds) for step in range(5))
    assert story.does("step", 5, seconds=step_seconds + SUSPENDED_SECONDS + slack) is None


@pytest.mark.parametrize(
    ("places", "whom", "unheard"),
    [
        ({0: "collate.py:9 in collate", 1: "distributed_c10d.py:1 in all_reduce"}, [0], []),
        ({0: "collate.py:9 in collate", 1: ""}, [0], [1]),
        ({0: "distributed_c10d.py:1 in all_reduce", 1: ""}, [1], []),
        ({0: "step.py:3 in sums_of_step", 1: "step.py:3 in sums_of_step"}, [], []),
        ({0: "", 1: ""}, [0, 1], []),
    ],
)
def test_a_rank_that_does_not_answer_in_time_is_told_beside_one_that_is_stuck(
    places: dict[int, str], whom: list[int], unheard: list[int]
) -> None:
    """On a busy machine it may answer late; or it is the kernel that it is stuck in."""
    assert waited_for(places) == (whom, unheard)


def test_a_hang_is_told_where_its_evidence_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume that is away is what a run may hang by; that alone ended it as an internal error."""
    workers = Workers(tmp_path, Ranks(first=0, count=1, world_size=1))
    watch = HangWatch(workers, RunDir(tmp_path), print, compiled=False, alone=True, attended=False)
    assert watch._keep(3, "step 3 is late") == RunDir(tmp_path).hang(3)

    def away(_path: object, _mode: int = 0) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "mkdir", away)
    stale(monkeypatch, tmp_path)
    assert watch._keep(4, "step 4 is late") is None
