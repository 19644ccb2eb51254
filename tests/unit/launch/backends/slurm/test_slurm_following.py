"""What whoever follows a run asks of Slurm, and is told of a job that waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rankzero.api.clusters import why_it_waits
from rankzero.launch.backend import LogQuery
from rankzero.launch.backends.slurm.backend import SlurmBackend
from rankzero.launch.backends.slurm.command import Answer, Slurm
from tests.unit.launch.backends.slurm.conftest import Site, note_preparation, prepared
from tests.unit.launch.backends.slurm.fake_slurm import FakeJob

LIMIT = "job 17 asks for more time than its partition ever gives"


class Follower:
    """Follows the run; at pause N the Nth of these happens."""

    def __init__(self, site: Site, **happens: FakeJob | None) -> None:
        self.site, self.pause = site, 0
        self.happens = {int(name.removeprefix("at_")): job for name, job in happens.items()}
        self.asked_at: list[int] = []
        self.backend = SlurmBackend(
            site.root / "slurm",
            Slurm(site.env, self.execute),
            env=site.env,
            sleep=self.sleep,
            say=site.said.append,
            explain=why_it_waits,
        )

    def execute(self, arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        if arguments[0] == "squeue":
            self.asked_at.append(self.pause)
        return self.site.slurm.execute(arguments, text, env)

    def sleep(self, seconds: float) -> None:
        self.pause += 1
        assert self.pause < 1000, "follows for ever"
        job = self.happens.get(self.pause)
        if job is not None:
            self.site.slurm.jobs[max(self.site.slurm.jobs)] = job

    def follow(self) -> None:
        self.site.said.clear()
        list(self.backend.logs("r", LogQuery(follow=True)))


def test_slurm_is_asked_less_often_the_longer_nothing_changes(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")
    follower = Follower(site, at_900=FakeJob("COMPLETED"))
    follower.follow()
    gaps = [later - one for one, later in zip(follower.asked_at, follower.asked_at[1:], strict=False)]
    assert gaps[:4] == [1, 2, 4, 8] and set(gaps[4:]) == {15}, "of two seconds each"


def test_what_a_node_notes_has_slurm_asked_at_once(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")
    follower = Follower(site, at_21=FakeJob("COMPLETED"))
    slept = follower.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        if follower.pause == 21:
            site.note(0, "begin", "end 0")

    follower.backend._sleep = sleep
    follower.follow()
    assert follower.asked_at[-1] == follower.pause == 21


def test_a_change_has_it_asked_often_again(site: Site) -> None:
    site.submit()
    follower = Follower(site, at_40=FakeJob("RUNNING"), at_60=FakeJob("COMPLETED"))
    follower.follow()
    first = next(one for one in follower.asked_at if one >= 40)
    assert first + 1 in follower.asked_at


def test_a_preparation_that_is_done_is_not_asked_for_again(site: Site) -> None:
    """With two numbers squeue loads all jobs there are, and one that it has forgotten is looked for in the accounts."""
    prepared(site)()
    note_preparation(site, "begin")
    site.slurm.jobs["17"].state = "RUNNING"
    follower = Follower(site, at_400=FakeJob("RUNNING"), at_900=FakeJob("COMPLETED"))
    slept = follower.sleep

    def sleep(seconds: float) -> None:
        slept(seconds)
        if follower.pause == 20:
            note_preparation(site, "end 0")
            del site.slurm.jobs["17"]

    follower.backend._sleep = sleep
    site.slurm.calls.clear()
    follower.follow()
    asked = [call for call in site.slurm.calls if call.startswith("squeue")]
    both = [call for call in asked if "--jobs=18,17" in call]
    assert both and asked[: len(both)] == both and len(asked) > len(both)
    assert not [call for call in site.slurm.calls if call.startswith("sacct")]
    assert [row.run for row in site.backend.runs()] == ["r"] and "--jobs=18 " in site.slurm.calls[-1]


def test_a_run_waits_as_its_own_job_does_when_its_preparation_is_done_and_forgotten(site: Site) -> None:
    prepared(site)()
    note_preparation(site, "begin", "end 0")
    del site.slurm.jobs["17"]
    site.becomes("PENDING", "Resources")
    assert site.status().verdict == "job 18 waits for free nodes (Resources)"


def test_accounting_is_not_asked_again_for_what_is_over() -> None:
    calls: list[str] = []

    def execute(arguments: Sequence[str], _text: str, _env: Mapping[str, str]) -> Answer:
        calls.append(arguments[0])
        if arguments[0] == "squeue":
            return Answer(1, "", "slurm_load_jobs error: Invalid job id specified\n")
        return Answer(0, "17|COMPLETED|2026-11-22T11:00:00|Unknown|Unknown|host0|0:0|rankzero-r\n", "")

    slurm = Slurm({}, execute)
    assert [slurm.jobs(["17"])["17"].state for _ in range(3)] == ["COMPLETED"] * 3
    assert calls.count("sacct") == 1


def test_what_keeps_a_job_from_starting_is_said_once_with_what_to_do(site: Site) -> None:
    site.submit()
    site.becomes("PENDING", "Priority")
    stuck = FakeJob("PENDING", "PartitionTimeLimit")
    happens = {"at_50": stuck, "at_150": FakeJob("PENDING", "Priority"), "at_250": stuck}
    Follower(site, **happens, at_400=FakeJob("COMPLETED")).follow()
    assert [line.partition("\n")[0] for line in site.said] == ["job 17 waits for free nodes (Priority)", LIMIT]
    assert "hint: set slurm.time_limit_seconds" in site.said[1]


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_of_a_job_that_runs_or_waits_for_no_reason_nothing_is_said(site: Site, state: str) -> None:
    site.submit()
    site.becomes(state)
    Follower(site, at_50=FakeJob("COMPLETED")).follow()
    assert site.said == []


def test_why_a_preparation_waits_is_said_too(site: Site) -> None:
    prepared(site)()
    site.slurm.jobs["17"].reason = "PartitionTimeLimit"
    site.becomes("PENDING", "Dependency")
    Follower(site, at_50=FakeJob("CANCELLED")).follow()
    assert [line.partition("\n")[0] for line in site.said] == [LIMIT]
