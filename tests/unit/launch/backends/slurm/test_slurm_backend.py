"""Runs of a Slurm that only remembers: what is submitted, kept, shown, followed, stopped and removed."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankzero.api.clusters import find_run
from rankzero.errors import AccessError, ConfigError, ServiceError, StorageError
from rankzero.launch.backend import AlreadyRunsError, LogQuery
from rankzero.launch.backends.slurm.backend import SlurmBackend
from rankzero.launch.backends.slurm.command import Answer, Slurm
from rankzero.launch.backends.slurm.state import RunState
from rankzero.launch.node import ownership
from rankzero.launch.render.reader import reader_pod
from rankzero.launch.silence import SilentError
from rankzero.launch.status.model import RunStatus
from rankzero.persist.sources import CommandSource
from rankzero.spec.cluster_load import load_cluster_spec
from tests.unit.launch.backends.slurm.conftest import Site, note_preparation, prepared
from tests.unit.launch.backends.slurm.fake_slurm import FakeJob

SILENT = Answer(1, "", "scancel: error: Unable to contact slurm controller (connect failure)\n")


@pytest.mark.parametrize("prepare", ["never", "always"])
def test_who_looks_while_sbatch_is_asked_sees_a_run_that_waits(site: Site, prepare: str) -> None:
    seen: list[RunStatus] = []

    def look(arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        if arguments[0] == "sbatch":
            seen.append(site.status())
            assert len(site.backend.runs()) == 1
        return site.slurm.execute(arguments, text, env)

    slurm = Slurm(site.env, look)
    outside = SlurmBackend(site.root / "slurm", slurm, env=site.env, sleep=site.sleep)
    cache = f"storage.cache={{mount: {site.root}/cache, host_path: {site.root}/cache}}"
    outside.submit(site.objects(f"prepare={prepare}", cache), site.said.append)
    assert [one.phase for one in seen] == ["Pending", "Preparing"][: 2 if prepare == "always" else 1]
    assert seen[0].findings[0].code == "slurm-submitting" and "sbatch" in seen[0].verdict


def test_logs_are_followed_from_before_the_job_has_a_number(site: Site) -> None:
    site.submit()
    number = site.root / "slurm/r/job"
    number.rename(number.with_name("later"))

    def wake(seconds: float) -> None:
        site.sleep(seconds)
        if site.pauses == 1:
            number.with_name("later").rename(number)
            site.log(0, "at last\n")
        else:
            site.becomes("COMPLETED")

    backend = SlurmBackend(site.root / "slurm", Slurm(site.env, site.slurm.execute), env=site.env, sleep=wake)
    assert [line.text for line in backend.logs("r", LogQuery(follow=True))] == ["at last"]
    assert list(backend.logs("nothing", LogQuery(follow=True))) == []


@pytest.mark.parametrize(
    ("out", "job"),
    [
        ("17\n", "17"),
        ("17;big\n", "17"),
        ("--> Verifying valid submit host ...OK\n17\n\n", "17"),
        ("Submitted batch job 17\n", ""),
        ("token hf_abcdefghijklmnopqrstuv\n", ""),
        ("", ""),
    ],
)
def test_what_sbatch_answers_is_a_number_or_an_error(
    site: Site, out: str, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sites have sbatch say more than that."""
    taken = site.slurm._sbatch
    monkeypatch.setattr(site.slurm, "_sbatch", lambda *given: replace(taken(*given), out=out))
    if job:
        site.submit()
        assert RunState(site.root / "slurm/r").job == job
    else:
        with pytest.raises(ServiceError, match="no job's number") as caught:
            site.submit()
        assert "hf_abc" not in str(caught.value) and "squeue --me" in str(caught.value)
        assert not (site.root / "slurm/r").exists()


def test_a_number_that_an_earlier_version_noted_with_other_words_is_found_among_them(site: Site) -> None:
    """Asked for as they are, squeue refuses the whole list, and all runs there are forgotten."""
    site.submit()
    site.becomes("RUNNING")
    (site.root / "slurm/r/job").write_text("--> Verifying valid submit host ...OK\n17\n")
    assert [one.run for one in site.backend.runs()] == ["r"] and site.status().phase == "Starting"
    (site.root / "slurm/r/job").write_text("--> Verifying valid submit host ...OK\n")
    assert RunState(site.root / "slurm/r").job == ""


def test_a_submission_is_known_by_a_file_that_no_other_has(site: Site) -> None:
    """Nodes look for it: what else is there may be of another time."""
    prepared(site)()
    names = {env["RANKZERO_SUBMITTED_AS"] for env in site.slurm.envs}
    assert [f"submitted-{name}" for name in names] == [one.name for one in (site.root / "slurm/r").glob("submitted-*")]
    site.backend.delete("r", claims=False, say=site.said.append)
    prepared(site)()
    assert site.slurm.envs[-1]["RANKZERO_SUBMITTED_AS"] not in names


@pytest.mark.parametrize("prepares", [False, True])
def test_a_job_that_sbatch_may_have_handed_over_without_an_answer_does_not_stay_beside_the_next(
    site: Site, prepares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, submit = site.slurm._sbatch, prepared(site) if prepares else site.submit
    silent = Answer(1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")

    def unanswered(*given: Any) -> Answer:
        taken(*given)
        return silent

    monkeypatch.setattr(site.slurm, "_sbatch", unanswered)
    with pytest.raises(SilentError):
        submit()
    monkeypatch.setattr(site.slurm, "_sbatch", taken)
    submit()
    assert site.slurm.jobs["17"].state == "CANCELLED" and site.slurm.jobs["18"].state == "PENDING"
    calls = len(site.slurm.calls)
    site.slurm.jobs[max(site.slurm.jobs)].state = "FAILED"
    submit()
    assert not [call for call in site.slurm.calls[calls:] if call.startswith("scancel")], "once"


def test_a_refused_job_leaves_nothing(site: Site) -> None:
    site.slurm.refuses = "sbatch: error: invalid partition specified: nope"
    with pytest.raises(ConfigError, match="slurm.partition"):
        site.submit()
    assert site.backend.runs() == [] and list((site.root / "slurm").iterdir()) == []


def test_a_refused_job_leaves_the_one_before_it_as_it_was(site: Site) -> None:
    site.submit()
    site.note(0, "begin", "end 75")
    site.log(0, "before\n")
    (site.root / "slurm-r.log").write_text("srun: something\n")
    site.becomes("FAILED", "NonZeroExitCode")
    there = {path: path.read_bytes() for path in site.root.rglob("*") if path.is_file()}
    site.slurm.refuses = "sbatch: error: invalid partition specified: nope"
    with pytest.raises(ConfigError, match="slurm.partition"):
        site.submit()
    assert {path: path.read_bytes() for path in site.root.rglob("*") if path.is_file()} == there


def test_a_run_waits_for_its_preparation_and_then_starts(site: Site) -> None:
    prepared(site)()
    assert site.slurm.calls[1].endswith("--kill-on-invalid-dep=yes --dependency=afterok:17,singleton")
    assert site.said[0] == "job 17 prepares the model and the data; job 18 waits for it"
    assert site.slurm.envs[0]["RANKZERO_SUBMISSION_TOKEN"] == site.slurm.envs[1]["RANKZERO_SUBMISSION_TOKEN"]
    site.slurm.jobs["17"].reason, site.slurm.jobs["18"].reason = "Resources", "Dependency"
    waits = site.status()
    assert (waits.phase, waits.verdict) == ("Preparing", "job 17 waits for free nodes (Resources)")
    site.slurm.jobs["17"] = FakeJob("RUNNING", "")
    note_preparation(site, "begin")
    (site.root / "slurm/r/logs/prepare.log").write_text("tokenising\n")
    assert (site.status().phase, site.status().findings) == ("Preparing", ())
    assert [(line.role, line.pod, line.text) for line in site.backend.logs("r", LogQuery())] == [
        ("prepare", "r-prepare", "tokenising")
    ]
    assert list(site.backend.logs("r", LogQuery(node=0))) == []
    note_preparation(site, "end 0")
    assert site.status().phase == "Pending" and [node.pod for node in site.status().nodes] == ["r-0", "r-1"]
    site.slurm.jobs = {"17": FakeJob("COMPLETED", ""), "18": FakeJob("RUNNING", "")}
    for node in (0, 1):
        site.note(node, "begin")
    assert site.status().phase == "Running"
    del site.slurm.jobs["17"]
    assert site.status().phase == "Running", "Slurm forgets a job after some minutes"
    prepared(site)()
    assert len(site.slurm.scripts) == 2 and "already" in site.said[-1]


def test_a_preparation_that_fails_is_the_verdict_of_the_run(site: Site) -> None:
    prepared(site)()
    said = {"outcome": "failed", "exit_code": 65, "what": "row 7 has no answer", "where": "train.jsonl:7"}
    note_preparation(site, "begin", "end 65", words=said)
    never = FakeJob("CANCELLED", "DependencyNeverSatisfied")
    site.slurm.jobs = {"17": FakeJob("FAILED", "NonZeroExitCode"), "18": never}
    failed = site.status()
    assert (failed.phase, failed.exit_code) == ("Failed", 65)
    assert "row 7 has no answer" in failed.verdict and failed.nodes == ()
    prepared(site)()
    assert set(site.slurm.scripts) == {"17", "18", "19", "20"} and site.status().phase == "Preparing"


def test_a_preparation_that_slurm_ended_has_its_own_verdict(site: Site) -> None:
    prepared(site)()
    note_preparation(site, "begin")
    site.slurm.jobs = {"17": FakeJob("TIMEOUT", "TimeLimit"), "18": FakeJob("CANCELLED", "Dependency")}
    assert (site.status().phase, site.status().findings[0].code) == ("Failed", "slurm-timeout")


def test_a_run_that_is_cancelled_while_it_is_prepared_does_not_start(site: Site) -> None:
    prepared(site)()
    site.slurm.jobs["17"] = FakeJob("RUNNING", "")
    note_preparation(site, "begin")
    site.backend.cancel("r", site.said.append)
    told = [call for call in site.slurm.calls if call.startswith("scancel")]
    assert told == ["scancel 18", "scancel --signal=TERM 17"]
    assert site.is_cancelled("17") and site.is_cancelled("18")
    # Scripts that an earlier version submitted look into this one.
    assert set((site.root / "slurm/r/cancelled").read_text().split()) == {"17", "18"}
    note_preparation(site, "end 75", words={"outcome": "stopped", "exit_code": 75})
    assert (site.status().phase, site.status().exit_code) == ("Stopped", 75)


def test_where_the_run_is_refused_nothing_is_prepared(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = site.slurm._sbatch

    def only_the_first(rest: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        site.slurm.refuses = "sbatch: error: invalid partition specified: gpu" if site.slurm.scripts else ""
        return taken(rest, text, env)

    monkeypatch.setattr(site.slurm, "_sbatch", only_the_first)
    with pytest.raises(ConfigError, match="slurm.partition"):
        prepared(site)()
    assert "scancel 17" in site.slurm.calls and site.backend.runs() == []


def test_only_the_rendering_for_slurm_is_taken(site: Site) -> None:
    with pytest.raises(ConfigError, match="one batch script, and this is Pod/x"):
        site.backend.submit([{"kind": "Pod", "metadata": {"name": "x"}}], site.said.append)


def test_the_same_run_is_left_alone_and_another_is_not_ended_unasked(site: Site) -> None:
    site.submit()
    site.submit()
    assert len(site.slurm.scripts) == 1 and "already" in site.said[-1]
    with pytest.raises(AlreadyRunsError, match="as job 17"):
        site.submit("max_restarts=9")
    site.submit("max_restarts=9", replace=True)
    assert site.slurm.jobs["17"].state == "CANCELLED" and set(site.slurm.scripts) == {"17", "18"}


@pytest.mark.parametrize(("code", "again"), [(70, True), (137, True), (75, False), (0, False)])
def test_a_run_that_has_failed_for_good_is_submitted_again_while_its_job_ends(
    site: Site, code: int, again: bool
) -> None:
    """An epilog may take minutes; what has saved may be queued again by its own script."""
    site.submit()
    site.note(0, "begin", f"end {code}")
    site.note(1, "begin", "end 75")
    site.becomes("RUNNING")
    site.submit()
    site.becomes("COMPLETING")
    site.submit()
    assert list(site.slurm.scripts) == ["17", "18"][: 1 + again]
    assert RunState(site.root / "slurm/r").job == ("18" if again else "17")


@pytest.mark.parametrize("earlier", [False, True])
def test_a_failure_that_is_left_to_the_next_allocation_is_not_for_good(site: Site, earlier: bool) -> None:
    site.submit()
    site.note(0, "begin", "end 202")
    again = site.root / "slurm/r/nodes" / ("0.again" if earlier else "0.again-17-0")
    again.write_text("17 0\n" if earlier else "")
    site.becomes("COMPLETING")
    site.submit()
    assert set(site.slurm.scripts) == {"17"}
    site.becomes("COMPLETING", restarts=1)
    again.unlink()
    site.submit()
    assert set(site.slurm.scripts) == {"17"}, "the failure is of a start before"


def test_a_run_that_has_ended_is_submitted_again_with_logs_of_its_own(site: Site) -> None:
    site.submit()
    site.note(0, "begin", "end 75")
    site.log(0, "before\n")
    site.becomes("FAILED", "NonZeroExitCode")
    site.submit()
    assert set(site.slurm.scripts) == {"17", "18"}
    assert list(site.backend.logs("r", LogQuery())) == []
    assert site.status().phase == "Pending"


def test_lines_of_all_nodes_by_time(site: Site) -> None:
    site.submit()
    stamp = "2026-11-22T11:00:0{}.000000Z {}\n"
    site.log(0, stamp.format(1, "first") + "srun: no time of its own\n" + stamp.format(4, "[rank 1] fourth"))
    site.log(1, stamp.format(2, "second") + stamp.format(3, "third"))
    lines = list(site.backend.logs("r", LogQuery()))
    assert [line.text for line in lines] == ["first", "srun: no time of its own", "second", "third", "[rank 1] fourth"]
    assert [line.node for line in lines] == [0, 0, 1, 1, 0]
    assert [line.text for line in site.backend.logs("r", LogQuery(node=1, tail=1))] == ["third"]
    assert [line.text for line in site.backend.logs("r", LogQuery(since_seconds=60))] == []


def test_lines_are_followed_until_the_job_has_ended(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")
    site.log(0, "first\nhal")
    lines = site.backend.logs("r", LogQuery(follow=True))
    assert next(lines).text == "first"
    site.log(0, "f of it\n")
    assert next(lines).text == "half of it"
    site.log(0, "the last has no end")
    site.becomes("COMPLETED")
    assert [line.text for line in lines] == ["the last has no end"]


def test_lines_of_a_run_that_is_submitted_anew_are_followed_from_their_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logs are new files of the same names."""
    site.submit()
    site.becomes("RUNNING")
    site.log(0, "".join(f"old {line}\n" for line in range(9)))
    site.log(1, "old\n")
    lines = site.backend.logs("r", LogQuery(follow=True))
    assert next(lines).text == "old 0"

    def replaced(seconds: float) -> None:
        Site.sleep(site, seconds)
        if site.pauses == 1:
            site.becomes("CANCELLED")
            site.submit("max_restarts=9")
            site.becomes("RUNNING")
            site.log(0, "".join(f"new {line}\n" for line in range(20)))
        elif site.pauses == 2:
            site.log(0, "".join(f"new {line}\n" for line in range(20, 30)))
        else:
            site.becomes("COMPLETED")

    monkeypatch.setattr(site.backend, "_sleep", replaced)
    told = [line.text for line in lines if "new" in line.text]
    assert told == [f"new {line}" for line in range(30)]


def test_lines_are_followed_through_a_silence_of_squeue(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")
    site.log(0, "first\n")
    lines = site.backend.logs("r", LogQuery(follow=True))
    assert next(lines).text == "first"
    site.slurm.silent = 5
    site.log(0, "said meanwhile\n")
    assert next(lines).text == "said meanwhile" and site.slurm.silent == 4, "what nodes write is there all the same"
    site.log(0, "the last\n")
    assert next(lines).text == "the last"
    site.becomes("COMPLETED")
    assert list(lines) == [] and site.slurm.silent == 0
    told = [line for line in site.said if "the job goes on" in line]
    assert len(told) == 1 and "Socket timed out" in told[0]


def test_a_silence_that_lasts_ends_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.submit()
    site.becomes("RUNNING")
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr("rankzero.launch.silence.time.monotonic", lambda: next(clock))
    site.slurm.silent = 99
    with pytest.raises(ServiceError, match="Slurm does not answer: .*Socket timed out"):
        list(site.backend.logs("r", LogQuery(follow=True)))
    assert site.pauses == 12, "ten minutes of 50 seconds each"


def test_who_may_not_ask_does_not_wait(site: Site) -> None:
    site.submit()
    refused = Slurm(site.env, lambda *_: Answer(1, "", "slurm_load_jobs error: Access/permission denied\n"))
    backend = SlurmBackend(site.root / "slurm", refused, env=site.env, sleep=site.sleep, say=site.said.append)
    with pytest.raises(AccessError, match="permission denied"):
        list(backend.logs("r", LogQuery(follow=True)))
    assert site.pauses == 0


def test_who_cancels_waits_through_a_silence_too(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")

    def hears(job: FakeJob, _gently: bool) -> None:
        job.state, site.slurm.silent = "FAILED", 3

    site.slurm.on_scancel = hears
    site.backend.cancel("r", site.said.append)
    assert site.slurm.silent == 0 and sum("the job goes on" in line for line in site.said) == 1


@pytest.mark.parametrize("state", ["RUNNING", "PENDING"])
def test_who_cancels_waits_for_the_first_answer_too(site: Site, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site.submit()
    site.becomes(state)
    ends, unheard = site.slurm._scancel, [SILENT, SILENT]
    monkeypatch.setattr(site.slurm, "_scancel", lambda *given: unheard.pop() if unheard else ends(*given))
    site.slurm.silent = 2
    site.backend.cancel("r", site.said.append)
    assert site.slurm.silent == 0 and not unheard and site.status().phase != "Running"


def test_a_job_that_waits_is_taken_out_of_the_queue(site: Site) -> None:
    site.submit()
    site.backend.cancel("r", site.said.append)
    assert site.slurm.calls[-1] == "scancel 17" and site.status().phase == "Stopped"
    site.backend.cancel("r", site.said.append)
    assert "nothing of r" in site.said[-1]


def test_a_job_that_runs_is_asked_to_save_and_not_to_come_back(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")
    told: list[bool] = []

    def hears(job: FakeJob, gently: bool) -> None:
        told.append(gently)
        assert site.is_cancelled("17"), "before the signal"
        job.state = "FAILED"

    site.slurm.on_scancel = hears
    site.backend.cancel("r", site.said.append)
    assert told == [True]


@pytest.mark.parametrize("verb", ["cancel", "delete", "replace"])
@pytest.mark.parametrize(("state", "told"), [("PENDING", "scancel 17"), ("RUNNING", "scancel --signal=TERM 17")])
def test_a_full_volume_does_not_keep_a_run_from_being_ended(site: Site, verb: str, state: str, told: str) -> None:
    site.submit()
    site.becomes(state)
    with full_volume():
        if verb == "cancel":
            site.backend.cancel("r", site.said.append)
        elif verb == "delete":
            site.backend.delete("r", claims=False, say=site.said.append)
        else:
            with pytest.raises(StorageError):  # nor is there room for the next one
                site.submit("max_restarts=9", replace=True)
    assert told in site.slurm.calls
    assert site.is_cancelled("17") or verb == "delete"
    assert (site.root / "slurm/r").exists() == (verb != "delete")


def test_a_volume_that_takes_not_even_a_name_does_not_either(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its script then queues itself again; what waits is taken out of the queue."""
    site.submit()
    site.becomes("RUNNING")
    signals: list[bool] = []

    def hears(job: FakeJob, gently: bool) -> None:
        signals.append(gently)
        job.state = "PENDING" if gently else "CANCELLED"

    def read_only(path: Path, *_mode: Any, **_more: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    site.slurm.on_scancel = hears
    monkeypatch.setattr(Path, "touch", read_only)
    site.backend.cancel("r", site.said.append)
    assert signals == [True, False] and "Read-only file system" in "".join(site.said)
    assert "as long as this command waits" in "".join(site.said)


@contextmanager
def full_volume() -> Iterator[None]:
    """Inside, files are made, and nothing can be written into them."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("verb", ["cancel", "delete", "replace"])
def test_a_job_that_is_ending_already_is_waited_for(site: Site, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """scancel has nothing to tell it."""
    site.submit()
    site.becomes("COMPLETING")

    def ends(seconds: float) -> None:
        Site.sleep(site, seconds)
        if site.pauses == 3:
            site.slurm.jobs["17"].state = "FAILED"

    monkeypatch.setattr(site.backend, "_sleep", ends)
    if verb == "cancel":
        site.backend.cancel("r", site.said.append)
    elif verb == "delete":
        assert site.backend.delete("r", claims=False, say=site.said.append)[0] == "job 17"
    else:
        site.submit("max_restarts=9", replace=True)
        assert set(site.slurm.scripts) == {"17", "18"}
    assert site.pauses == 3 and "job 17 is ending already" in site.said


@pytest.mark.parametrize("verb", ["cancel", "delete", "replace"])
def test_a_job_that_slurm_does_not_end_is_not_waited_for_for_ever(
    site: Site, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epilog may hang, or a process that nothing kills; of the run nothing is left to wait for."""
    site.submit()
    site.becomes("COMPLETING")
    clock = itertools.count(0, 20)
    monkeypatch.setattr("rankzero.launch.backends.slurm.stop.time.monotonic", lambda: next(clock))
    if verb == "cancel":
        site.backend.cancel("r", site.said.append)
    elif verb == "delete":
        site.backend.delete("r", claims=False, say=site.said.append)
        assert not (site.root / "slurm/r").exists()
    else:
        site.submit("max_restarts=9", replace=True)
        assert set(site.slurm.scripts) == {"17", "18"}
    assert 5 < site.pauses < 20 and any("scontrol show job 17" in line for line in site.said)


def test_a_job_that_begins_to_end_when_it_is_told_is_waited_for(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")

    def execute(arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        if arguments[0] == "scancel":
            site.becomes("COMPLETING")
        answer = site.slurm.execute(arguments, text, env)
        if arguments[0] == "squeue" and site.slurm.jobs["17"].state == "COMPLETING":
            site.becomes("COMPLETED")
        return answer

    SlurmBackend(site.root / "slurm", Slurm(site.env, execute), env=site.env, sleep=site.sleep).cancel(
        "r", site.said.append
    )
    assert site.slurm.jobs["17"].state == "COMPLETED" and site.pauses == 1


def test_a_job_that_slurm_knows_no_more_when_it_is_told_has_ended(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")

    def execute(arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        if arguments[0] == "scancel":
            site.slurm.jobs.clear()
            return Answer(1, "", "scancel: error: Kill job error on job id 17: Invalid job id specified\n")
        return site.slurm.execute(arguments, text, env)

    backend = SlurmBackend(site.root / "slurm", Slurm(site.env, execute), env=site.env, sleep=site.sleep)
    backend.cancel("r", site.said.append)
    assert site.pauses == 0


def test_what_else_scancel_says_is_an_error(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")

    def execute(arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        if arguments[0] == "scancel":
            return Answer(1, "", "scancel: error: Kill job error on job id 17: Access/permission denied\n")
        return site.slurm.execute(arguments, text, env)

    backend = SlurmBackend(site.root / "slurm", Slurm(site.env, execute), env=site.env, sleep=site.sleep)
    with pytest.raises(AccessError, match="permission denied"):
        backend.cancel("r", site.said.append)


def test_a_job_that_was_about_to_be_queued_again_is_taken_out(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")

    def hears(job: FakeJob, gently: bool) -> None:
        job.state = "PENDING" if gently else "CANCELLED"

    site.slurm.on_scancel = hears
    site.backend.cancel("r", site.said.append)
    assert site.slurm.jobs["17"].state == "CANCELLED"


def test_what_does_not_save_in_its_time_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.submit()
    site.becomes("RUNNING")
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr("rankzero.launch.backends.slurm.stop.time.monotonic", lambda: next(clock))
    site.slurm.on_scancel = lambda job, gently: None if gently else setattr(job, "state", "CANCELLED")
    site.backend.cancel("r", site.said.append)
    assert site.slurm.jobs["17"].state == "CANCELLED" and "has not saved" in site.said[-1]


@pytest.mark.parametrize(
    "other", [{"name": "train-gpt"}, {"name": "rankzero-r2"}, {"submitted": "2001-02-03T04:05:06"}]
)
@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_another_job_of_the_same_number_is_left_alone(site: Site, other: dict[str, str], state: str) -> None:
    """Of a cluster made anew on the same file system, or whose numbers have begun again."""
    site.submit()
    site.note(0, "begin")
    site.slurm.jobs["17"] = FakeJob(state, **other)
    assert (site.status().phase, site.status().findings[0].code) == ("Failed", "slurm-forgotten")
    assert [one.run for one in site.backend.runs()] == ["r"]
    site.backend.cancel("r", site.said.append)
    assert "nothing of r" in site.said[-1]
    site.submit()
    assert set(site.slurm.scripts) == {"17", "18"}
    assert site.backend.delete("r", claims=False, say=site.said.append)[0] == "job 18"
    told = [call for call in site.slurm.calls if call.startswith("scancel")]
    assert told == ["scancel 18"] and site.slurm.jobs["17"].state == state


def test_a_preparation_of_the_same_number_is_another_job_too(site: Site) -> None:
    prepared(site)()
    site.slurm.jobs["17"] = FakeJob("RUNNING", name="rankzero-r")
    site.backend.cancel("r", site.said.append)
    assert [call for call in site.slurm.calls if call.startswith("scancel")] == ["scancel 18"]


def test_delete_removes_the_job_and_its_directory_and_no_result(site: Site) -> None:
    site.submit()
    (site.root / "runs/r").mkdir(parents=True)
    (site.root / "slurm-r.log").write_text("srun: something\n")
    removed = site.backend.delete("r", claims=True, say=site.said.append)
    assert removed == ["job 17", f"directory {site.root}/slurm/r", f"file {site.root}/slurm-r.log"]
    assert (site.root / "runs/r").is_dir() and "results stay" in site.said[-1]
    assert site.backend.runs() == [] and site.backend.collect("r").objects == ()


def test_a_directory_of_runs_is_open_to_whom_the_outputs_are(site: Site) -> None:
    site.root.chmod(0o3770)
    site.submit()
    assert (site.root / "slurm").stat().st_mode & 0o7777 == 0o3770
    assert (site.root / "slurm/r").stat().st_mode & 0o777 == 0o700


def test_a_directory_of_runs_that_is_closed_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership.os, "access", lambda path, _mode: path != site.root / "slurm")
    with pytest.raises(AccessError, match="may not write") as told:
        site.submit()
    problem = told.value.problems[0]
    assert problem.where == str(site.root / "slurm") and "chmod g+rwx" in problem.hint


@contextmanager
def as_another_user(directory: Path) -> Iterator[None]:
    """To whom it is closed. Root is stopped by no mode, and is nobody for a while."""
    root = os.geteuid() == 0
    directory.chmod(0o700 if root else 0)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(0o700)


def test_runs_of_others_are_left_out_and_one_that_is_named_says_whose_it_is() -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's are for one user alone
        Path(directory).chmod(0o755)
        site = Site(Path(directory))
        site.submit()
        site.backend.submit(site.objects(name="ours"), site.said.append)
        theirs = site.root / "slurm/r"
        (site.root / "slurm/ours").chmod(0o755)
        owner = theirs.owner()
        with as_another_user(theirs):
            assert [one.run for one in site.backend.runs()] == ["ours"]
            assert find_run(site.backend, "ours") == "ours"
            for look in (
                lambda: find_run(site.backend, "r"),
                lambda: list(site.backend.logs("r", LogQuery())),
                lambda: site.backend.cancel("r", site.said.append),
                lambda: site.backend.delete("r", claims=False, say=site.said.append),
                lambda: site.submit(),
            ):
                with pytest.raises(AccessError, match=f"a run of {owner}") as caught:
                    look()
                assert caught.value.problems[0].where == str(theirs)
        assert len(site.slurm.scripts) == 2 and site.backend.collect("r").objects


def test_a_survey_says_what_there_is_and_what_would_be_refused(site: Site) -> None:
    assert ("nodes", "gpu*: 4 nodes of 64 CPUs, 515000 MiB, gpu:h100:8 (idle)") in site.backend.survey(
        site.objects()
    ).has
    site.slurm.refuses = "allocation failure: Requested node configuration is not available"
    survey = site.backend.survey(site.objects())
    assert survey.refused is not None and "num_nodes" in str(survey.refused)
    assert not (site.root / "slurm").exists()


def test_a_survey_says_that_outputs_cannot_be_made(site: Site) -> None:
    """With all else that is wrong, and without making anything."""
    (site.root / "file").write_text("x")
    outputs = site.root / "file/outputs"
    elsewhere = site.objects(f"storage.outputs={{mount: {outputs}, host_path: {outputs}}}")
    refused = site.backend.survey(elsewhere).refused
    assert isinstance(refused, StorageError) and "Not a directory" in str(refused)
    site.slurm.refuses = "allocation failure: Requested node configuration is not available"
    refused = site.backend.survey(elsewhere).refused
    assert isinstance(refused, StorageError) and "num_nodes" in str(refused)
    assert site.backend.survey(site.objects()).refused is not None and not (site.root / "slurm").exists()


def test_a_survey_says_that_another_spec_s_run_is_under_way(site: Site) -> None:
    site.submit()
    refused = site.backend.survey(site.objects("max_restarts=9")).refused
    assert isinstance(refused, AlreadyRunsError) and site.backend.survey(site.objects()).refused is None


def test_results_are_read_where_they_lie_also_where_containers_see_them_elsewhere(site: Site) -> None:
    (site.root / "runs/r").mkdir(parents=True)
    (site.root / "runs/r/run.yaml").write_text("name: r\n")
    outputs = f"storage.outputs={{mount: /outputs, host_path: {site.root}}}"
    settings = ["kind=slurm", outputs, "slurm={runtime: apptainer, image: x.sif}"]
    pod = reader_pod(load_cluster_spec(None, settings, env={}).spec, "pull")
    with site.backend.reading(pod, site.said.append) as execute:
        source = CommandSource.find(execute, "/outputs", "r", "outputs")
        assert source.read("run.yaml", 0, 100) == b"name: r\n"
