"""Submits that were interrupted while sbatch was asked: what Slurm may have of them is found and withdrawn."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from rankzero.api.clusters import find_run
from rankzero.errors import AccessError, ConfigError, RankzeroError, ServiceError
from rankzero.launch.backend import LogQuery
from rankzero.launch.backends.slurm.command import Answer, Slurm
from rankzero.launch.backends.slurm.state import RunState
from tests.unit.launch.backends.slurm.conftest import Site, note_preparation, prepared


def interrupted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has taken the job when Ctrl-C comes, and before sbatch has said its number."""
    taken = site.slurm._sbatch

    def sbatch(*given: Any) -> Answer:
        taken(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(site.slurm, "_sbatch", sbatch)
        with pytest.raises(KeyboardInterrupt):
            site.submit()


@pytest.mark.parametrize("command", ["cancel", "delete", "submit"])
def test_a_job_whose_submit_was_interrupted_is_found_and_withdrawn(
    site: Site, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(site, monkeypatch)
    assert "`rankzero cancel r`" in site.said[-1] and not (site.root / "slurm/r").exists()
    assert find_run(site.backend, "r") == "r" and site.status().findings[0].code == "slurm-submitting"
    site.said.clear()
    if command == "submit":
        site.submit()
        assert [job.state for job in site.slurm.jobs.values()] == ["CANCELLED", "PENDING"]
        assert site.said == ["job 18 is in the queue"]
    elif command == "cancel":
        site.backend.cancel("r", site.said.append)
        assert site.slurm.jobs["17"].state == "CANCELLED" and "out of the queue" in site.said[-1]
    else:
        assert site.backend.delete("r", claims=True, say=site.said.append) == []
        assert site.slurm.jobs["17"].state == "CANCELLED"
    assert not RunState(site.root / "slurm/r").is_in_doubt
    assert [one.run for one in site.backend.runs()] == (["r"] if command == "submit" else [])


def test_an_interrupted_submit_leaves_what_was_there_and_cancel_withdraws_all_the_same(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.submit()
    site.becomes("COMPLETED")
    interrupted(site, monkeypatch)
    assert RunState(site.root / "slurm/r").job == "17"
    site.backend.cancel("r", site.said.append)
    assert site.slurm.jobs["18"].state == "CANCELLED"


@pytest.mark.parametrize("killed", ["before an earlier version knew a doubt", "in sbatch"])
def test_a_run_whose_submit_was_killed_is_taken_out_of_the_queue_by_its_name(site: Site, killed: str) -> None:
    site.submit()
    (site.root / "slurm/r/job").unlink()
    if killed == "in sbatch":
        state = RunState(site.root / "slurm/r")
        state.doubt(state.about)
    site.backend.cancel("r", site.said.append)
    assert site.slurm.jobs["17"].state == "CANCELLED"
    assert site.backend.runs() == [] and not list(site.backend.logs("r", LogQuery(follow=True)))
    site.backend.cancel("r", site.said.append)
    assert site.said[-1] == "nothing of r runs or waits here"


def test_what_a_killed_submit_had_put_aside_is_there_again_when_it_is_withdrawn(site: Site) -> None:
    site.submit()
    site.note(0, "begin", "end 0")
    site.becomes("COMPLETED")
    root, aside = site.root / "slurm/r", site.root / "slurm/.r.before"
    site.submit()
    shutil.copytree(root, aside / "r")
    (aside / "r/job").write_text("17\n")
    (root / "job").unlink()
    site.backend.cancel("r", site.said.append)
    assert site.slurm.jobs["18"].state == "CANCELLED"
    assert RunState(root).job == "17" and not aside.exists()


def test_the_notes_of_a_preparation_outlive_that_its_run_is_withdrawn(site: Site) -> None:
    """Handed to sbatch by hand, the run's own job has no number before it starts."""
    prepared(site)()
    note_preparation(site, "begin", "end 75")
    (site.root / "slurm/r/job").unlink()
    site.backend.cancel("r", site.said.append)
    assert [job.state for job in site.slurm.jobs.values()] == ["CANCELLED", "CANCELLED"]
    assert (site.root / "slurm/r/nodes/prepare").exists()


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        ("sbatch: error: invalid partition specified: x\n", ConfigError),
        ("access/permission denied\n", AccessError),
        ("sbatch: fatal: Unable to process configuration file\n", ServiceError),
    ],
)
def test_what_sbatch_refuses_leaves_no_doubt(site: Site, refused: str, error: type[RankzeroError]) -> None:
    site.slurm.refuses = refused
    with pytest.raises(error):
        site.submit()
    assert not RunState(site.root / "slurm/r").is_in_doubt and site.backend.runs() == []
    assert not [line for line in site.said if "is not known" in line]


def test_an_sbatch_that_never_ran_leaves_no_doubt(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def sbatch(*_given: Any) -> Answer:
        Slurm({}).call("true", env={"PATH": os.environ["PATH"], "LONG": "a" * 2**20})
        raise AssertionError("a variable may be that long here")

    monkeypatch.setattr(site.slurm, "_sbatch", sbatch)
    with pytest.raises(ServiceError):
        site.submit()
    assert not RunState(site.root / "slurm/r").is_in_doubt and site.backend.runs() == []
    assert not [line for line in site.said if "is not known" in line]


@pytest.mark.parametrize("ends", ["kill -9 $$", "echo 'sbatch: lua: partition gpu' >&2; kill -9 $$", "exit 137"])
def test_an_sbatch_that_a_signal_ended_has_refused_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """By itself, or within a script that stands in for it: it may have handed the job over by then."""
    (program := site.root / "sbatch").write_text(f"#!/bin/sh\n{ends}\n")
    program.chmod(0o755)
    taken = site.slurm._sbatch

    def sbatch(*given: Any) -> Answer:
        taken(*given)
        Slurm({}).call(str(program), env={})
        raise AssertionError("it failed")

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(site.slurm, "_sbatch", sbatch)
        with pytest.raises(ServiceError, match="was ended by SIGKILL"):
            site.submit()
    assert RunState(site.root / "slurm/r").is_in_doubt and "`rankzero cancel r`" in site.said[-1]
    site.submit()
    assert [job.state for job in site.slurm.jobs.values()] == ["CANCELLED", "PENDING"]
