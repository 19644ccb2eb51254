"""How runs of Slurm are judged: while they wait, run and stop, how they ended, and what kept them from beginning."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from rankzero.errors import ExitCode
from rankzero.launch.backend import LogQuery
from rankzero.launch.backends.slurm.backend import SlurmBackend
from rankzero.launch.backends.slurm.command import Slurm
from rankzero.launch.backends.slurm.state import PREPARATION, Part
from tests.unit.launch.backends.slurm.conftest import Site, prepared
from tests.unit.launch.backends.slurm.fake_slurm import FakeJob


def test_from_the_queue_to_the_end(site: Site) -> None:
    site.submit()
    site.becomes("PENDING", "Resources")
    waits = site.status()
    assert (waits.phase, waits.verdict) == ("Pending", "job 17 waits for free nodes (Resources)")
    site.becomes("RUNNING")
    site.note(0, "begin")
    assert site.status().phase == "Starting", "the other node has not begun"
    site.note(1, "begin")
    line = "2026-11-22T11:31:00.000000Z 11:31:00 [TRAIN] step 3/10 loss 5.9514 2,175 tok/s ep 0.20 ETA 0:02\n"
    site.log(0, line)
    runs = site.status()
    assert (runs.phase, runs.step, runs.total_steps) == ("Running", 3, 10)
    assert [(node.state, node.host) for node in runs.nodes] == [("Running", "host0"), ("Running", "host1")]
    for node in (0, 1):
        site.note(node, "end 0", words={"outcome": "done", "exit_code": 0, "step": 10, "total_steps": 10})
    assert site.status().phase == "Stopping", "its job has not ended"
    site.becomes("COMPLETED")
    done = site.status()
    assert (done.phase, done.exit_code, done.step) == ("Succeeded", 0, 10)
    assert [evidence.run for evidence in site.backend.runs()] == ["r"]
    del site.slurm.jobs["17"]
    assert site.status().phase == "Succeeded", "Slurm forgets a job after some minutes"


def test_a_run_that_is_queued_again_is_not_over(site: Site) -> None:
    site.submit()
    for node in (0, 1):
        site.note(node, "begin", "end 75", words={"outcome": "stopped", "exit_code": 75, "checkpoint": 4})
    site.becomes("COMPLETING")
    assert site.status().phase == "Stopping"
    site.becomes("PENDING", "BeginTime", restarts=1)
    again = site.status()
    assert again.phase == "Pending" and again.exit_code is None and again.restarts == 2
    assert [finding.code for finding in again.findings] == ["slurm-requeued"]
    site.becomes("RUNNING", restarts=1)
    assert site.status().phase == "Starting"
    for node in (0, 1):
        site.note(node, "begin", restart=1)
    assert site.status().phase == "Running"


def test_a_node_that_is_started_again_in_its_place(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")
    site.note(0, "begin", "end 197", "begin")
    site.note(1, "begin")
    seen = site.status()
    assert (seen.phase, seen.restarts) == ("Running", 1)
    (pod,) = [one for one in site.backend.collect("r").pods if one["metadata"]["name"] == "r-0"]
    (container,) = pod["status"]["containerStatuses"]
    assert container["lastState"]["terminated"]["exitCode"] == 197


def test_a_stopped_run(site: Site) -> None:
    site.submit()
    for node in (0, 1):
        site.note(node, "begin", "end 75", words={"outcome": "stopped", "exit_code": 75, "checkpoint": 4})
    site.becomes("FAILED", "NonZeroExitCode")
    stopped = site.status()
    assert (stopped.phase, stopped.exit_code) == ("Stopped", 75)
    assert [finding.code for finding in stopped.findings] == ["stopped"]


def test_a_run_that_was_cancelled_before_it_could_note_that_it_began_has_stopped(site: Site) -> None:
    site.submit()
    for node in (0, 1):
        site.note(node, "end 75")
    site.becomes("FAILED", "NonZeroExitCode")
    assert (site.status().phase, site.status().exit_code) == ("Stopped", 75)


def test_a_node_that_lost_its_peers_while_all_were_stopping_has_stopped(site: Site) -> None:
    site.submit()
    lost = {"outcome": "peer_lost", "exit_code": 69, "what": "another process is gone", "checkpoint": 4}
    site.note(0, "begin", "end 75", words=lost)
    site.note(1, "begin", "end 75", words={"outcome": "stopped", "exit_code": 75, "checkpoint": 4})
    site.becomes("FAILED", "NonZeroExitCode")
    assert (site.status().phase, site.status().exit_code) == ("Stopped", 75)


def test_what_the_run_itself_says_comes_first(site: Site) -> None:
    site.submit()
    said = {"outcome": "failed", "exit_code": 65, "what": "row 7 has no answer", "where": "train.jsonl:7"}
    site.note(0, "begin", "end 65", words=said)
    site.note(1, "begin", "end 65", words={**said, "what": "node 0 failed"})
    site.becomes("FAILED", "NonZeroExitCode")
    failed = site.status()
    assert (failed.phase, failed.exit_code) == ("Failed", 65)
    assert failed.verdict == "node 0 failed: train.jsonl:7: row 7 has no answer"


def test_a_line_of_setup_that_failed_is_the_verdict(site: Site) -> None:
    site.submit()
    for node in (0, 1):
        said = {"outcome": "failed", "where": "slurm.setup", "what": "this line failed: module load nope"}
        site.note(node, "begin", "end 1", words=said)
    site.becomes("FAILED", "NonZeroExitCode")
    failed = site.status()
    assert (failed.phase, failed.exit_code) == ("Failed", 1)
    assert "slurm.setup: this line failed: module load nope" in failed.verdict


def test_what_could_not_be_started_says_the_end_of_the_log(site: Site) -> None:
    site.submit()
    for node in (0, 1):
        site.note(node, "begin", "end 1")
        site.log(node, "/usr/bin/python3: No module named rankzero\n")
    site.becomes("FAILED", "NonZeroExitCode")
    assert "No module named rankzero" in " ".join((site.status().verdict, *site.status().findings[0].evidence))


FULL = "2026-11-22T11:02:00Z error: /out/runs/r: the checkpoint was not saved: No space left on device\n"


@pytest.mark.parametrize(
    ("left_with", "code", "finding"),
    [(74, 74, "storage-full"), (202, 74, "storage-full"), (139, 139, "crash"), (137, 137, ""), (143, 143, "")],
)
def test_a_node_that_could_not_note_its_end_left_with_the_code_of_its_job(
    site: Site, left_with: int, code: int, finding: str
) -> None:
    """A volume that is full takes no note of that either."""
    site.submit()
    for node in (0, 1):
        site.note(node, "begin")
        site.log(node, FULL)
    site.slurm.jobs["17"] = FakeJob("FAILED", "NonZeroExitCode", code=left_with)
    failed = site.status()
    assert (failed.phase, failed.exit_code) == ("Failed", code)
    assert finding in [*[one.code for one in failed.findings], ""]
    if code == 74:
        assert "No space left on device" in failed.verdict


def test_the_code_of_a_job_that_one_node_noted_says_nothing_of_another(site: Site) -> None:
    site.submit()
    site.note(0, "begin", "end 78", words={"outcome": "failed", "exit_code": 78, "what": "no such model", "where": "m"})
    site.note(1, "begin")
    site.slurm.jobs["17"] = FakeJob("FAILED", "NonZeroExitCode", code=78)
    pods = {pod["metadata"]["name"]: pod for pod in site.backend.collect("r").pods}
    (container,) = pods["r-1"]["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 143 and site.status().exit_code == 78


def test_nodes_that_saved_and_could_not_note_it_have_stopped(site: Site) -> None:
    site.submit()
    site.note(0, "begin", "end 75")
    site.note(1, "begin")
    site.slurm.jobs["17"] = FakeJob("FAILED", "NonZeroExitCode", code=75)
    assert (site.status().phase, site.status().exit_code) == ("Stopped", 75)


@pytest.mark.parametrize(
    ("reason", "code", "severity", "says"),
    [
        ("Resources", "slurm-waiting", "waiting", "waits for free nodes"),
        ("Priority", "slurm-waiting", "waiting", "squeue --start --jobs=17"),
        ("BeginTime", "slurm-requeued", "waiting", "continues from its newest checkpoint"),
        ("DependencyNeverSatisfied", "slurm-dependency", "broken", "`rankzero cancel`"),
        ("Dependency", "slurm-singleton", "waiting", "job before it"),
        ("ReqNodeNotAvail, UnavailableNodes:n1", "slurm-nodes-down", "waiting", "UnavailableNodes:n1"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "slurm-nodes-down",
            "waiting",
            "sinfo --list-reasons",
        ),
        ("Reservation", "slurm-reservation", "waiting", "scontrol show reservation"),
        ("PartitionDown", "slurm-partition-down", "waiting", "slurm.partition"),
        ("PartitionTimeLimit", "slurm-time-limit-too-long", "broken", "slurm.time_limit_seconds"),
        ("PartitionConfig", "slurm-impossible", "broken", "num_nodes"),
        ("PartitionNodeLimit", "slurm-impossible", "broken", "num_nodes"),
        ("BadConstraints", "slurm-impossible", "broken", "slurm.constraint"),
        ("JobHeldUser", "slurm-held", "broken", "scontrol release 17"),
        ("JobHeldAdmin", "slurm-held", "broken", "administrator"),
        ("launch failed requeued held", "slurm-launch-failed", "broken", "scontrol release 17"),
        ("JobHoldMaxRequeue", "slurm-launch-failed", "broken", "slurmd"),
        ("AccountNotAllowed", "slurm-account", "broken", "slurm.account"),
        ("InvalidQOS", "slurm-qos", "broken", "slurm.qos"),
        ("Licenses", "slurm-licenses", "waiting", "licenses"),
        ("QOSMaxGRESPerUser", "slurm-limit-shared", "waiting", "nproc_per_node"),
        ("QOSMaxGRESPerJob", "slurm-limit", "broken", "lower num_nodes or nproc_per_node"),
        ("QOSMaxNodePerUserLimit", "slurm-limit-shared", "waiting", "num_nodes"),
        ("QOSMaxWallDurationPerJobLimit", "slurm-limit", "broken", "lower slurm.time_limit_seconds"),
        ("QOSMinGRES", "slurm-below-limit", "broken", "raise num_nodes or nproc_per_node"),
        ("QOSMinCpuNotSatisfied", "slurm-below-limit", "broken", "raise resources.cpu in cluster.yaml, or set another"),
        ("QOSMinBilling", "slurm-below-limit", "broken", "mintresperjob"),
        ("QOSMaxMemoryPerJob", "slurm-limit", "broken", "lower resources.memory"),
        ("QOSMaxJobsPerUserLimit", "slurm-limit-shared", "waiting", "until others of them end; "),
        ("QOSGrpGRES", "slurm-limit-shared", "waiting", "of its quality of service"),
        ("AssocGrpCPUMinutesLimit", "slurm-limit-shared", "waiting", "of its account or user"),
        ("AssocMaxCpuPerJobLimit", "slurm-limit", "broken", "lower resources.cpu"),
        ("MaxJobsPerAccount", "slurm-limit-shared", "waiting", "counts other jobs too"),
        ("SomethingNew", "slurm-held-back", "waiting", "waits (SomethingNew)"),
    ],
)
def test_each_reason_has_a_verdict_and_a_fix(site: Site, reason: str, code: str, severity: str, says: str) -> None:
    site.submit()
    site.becomes("PENDING", reason)
    seen = site.status()
    (finding,) = seen.findings
    assert (finding.code, finding.severity) == (code, severity)
    assert says in f"{finding.cause} {finding.fix}" and "17" in finding.cause
    assert "{" not in finding.cause + finding.fix
    assert seen.verdict == finding.cause


@pytest.mark.parametrize(
    ("state", "begun", "code", "phase"),
    [
        ("TIMEOUT", True, "slurm-timeout", "Failed"),
        ("PREEMPTED", True, "slurm-preempted", "Failed"),
        ("NODE_FAIL", True, "slurm-node-fail", "Failed"),
        ("BOOT_FAIL", False, "slurm-boot-fail", "Failed"),
        ("DEADLINE", False, "slurm-deadline", "Failed"),
        ("OUT_OF_MEMORY", True, "oom-limit", "Failed"),
        ("CANCELLED", True, "slurm-cancelled", "Failed"),
        ("CANCELLED", False, "stopped", "Stopped"),
        ("REQUEUE_HOLD", False, "slurm-held", "Pending"),
        ("SUSPENDED", True, "slurm-suspended", "Running"),
    ],
)
def test_each_end_that_slurm_makes_has_one_too(site: Site, state: str, begun: bool, code: str, phase: str) -> None:
    site.submit()
    for node in (0, 1) if begun else ():
        site.note(node, "begin")
    site.becomes(state)
    seen = site.status()
    assert (seen.phase, [finding.code for finding in seen.findings]) == (phase, [code])


def test_a_node_that_has_failed_is_the_verdict_while_the_others_are_still_there(site: Site) -> None:
    site.submit()
    site.becomes("RUNNING")
    site.note(0, "begin")
    said = {"outcome": "failed", "where": "slurm.setup", "what": "this line failed: module load nope"}
    site.note(1, "begin", "end 1", words=said)
    site.log(0, "2026-11-22T11:31:00.000000Z [NODE] waiting for node 1 of 2: 300 s; gives up after 30 min\n")
    seen = site.status()
    assert (seen.phase, seen.exit_code) == ("Starting", None)
    assert "slurm.setup: this line failed: module load nope" in seen.verdict
    assert [node.state for node in seen.nodes] == ["Running", "Exit 1"]
    site.note(0, "end 75", words={"outcome": "stopped", "exit_code": 75})
    assert (site.status().phase, site.status().verdict) == ("Stopping", seen.verdict)
    site.becomes("COMPLETING")
    assert (site.status().phase, site.status().verdict) == ("Stopping", seen.verdict)
    site.becomes("FAILED", "NonZeroExitCode")
    assert (site.status().phase, site.status().exit_code, site.status().verdict) == ("Failed", 1, seen.verdict)


def test_a_node_that_is_done_before_the_others_is_nothing_to_say(site: Site) -> None:
    """Node 0 may copy results for long."""
    site.submit()
    site.becomes("RUNNING")
    site.note(0, "begin")
    site.note(1, "begin", "end 0", words={"outcome": "done", "exit_code": 0})
    assert (site.status().phase, site.status().findings) == ("Running", ())
    assert [node.state for node in site.status().nodes] == ["Running", "Completed"]


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
@pytest.mark.parametrize("code", [0, 75])
def test_a_job_that_does_not_come_to_its_end_is_slurms_affair(site: Site, code: int, state: str) -> None:
    """Its notes are of long ago here."""
    site.submit()
    for node in (0, 1):
        site.note(node, "begin", f"end {code}")
    site.becomes(state)
    (finding,) = site.status().findings
    assert (site.status().phase, finding.code, finding.severity) == ("Stopping", "slurm-completing", "waiting")
    assert "job 17" in finding.cause and "scontrol show job 17" in finding.fix


def test_a_job_that_cannot_be_placed_may_be_ended_at_once(site: Site) -> None:
    site.submit()
    site.becomes("FAILED", "BadConstraints")
    assert [finding.code for finding in site.status().findings][0] == "slurm-impossible"


def test_a_job_that_slurm_has_forgotten(site: Site) -> None:
    site.submit()
    site.note(0, "begin")
    site.note(1, "begin")
    site.slurm.jobs.clear()
    seen = site.status()
    assert seen.phase == "Failed" and seen.findings[0].code == "slurm-forgotten"


def test_a_job_that_slurm_has_forgotten_before_it_began_was_not_killed(site: Site) -> None:
    """It never left the queue, as far as is known: ended there, or of a cluster that was made anew."""
    site.submit()
    site.slurm.jobs.clear()
    seen = site.status()
    assert (seen.phase, seen.exit_code) == ("Failed", 70)
    assert [finding.code for finding in seen.findings] == ["slurm-forgotten"]
    assert "its nodes noted nothing" in seen.verdict and "SIGKILL" not in seen.verdict and "memory" not in seen.verdict
    (site.root / "slurm/r/cancelled").write_text("17\n")
    assert (site.status().phase, site.status().exit_code) == ("Stopped", 75), "it was taken out of the queue"


def test_a_job_whose_nodes_noted_nothing_here_has_not_succeeded(site: Site) -> None:
    """They have other outputs than this machine, and what they trained is there, if anywhere."""
    site.submit()
    site.becomes("COMPLETED")
    seen = site.status()
    assert (seen.phase, seen.exit_code) == ("Failed", 78)
    assert seen.verdict == "job 17 is completed, and its nodes noted nothing here"
    assert "storage.outputs" in seen.findings[0].fix
    site.slurm.jobs["17"].ended = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    seen = site.status()
    assert not seen.is_over and seen.exit_code is None, "a file system may show late what they noted"
    site.submit()
    assert len(site.slurm.scripts) == 1, "nor is it submitted again meanwhile"


def test_who_follows_a_job_looks_until_its_nodes_notes_are_here(site: Site) -> None:
    site.submit("num_nodes=1")
    site.becomes("COMPLETED")
    site.slurm.jobs["17"].ended = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"

    def shown(_seconds: float) -> None:
        site.note(0, "begin", "end 0")
        site.log(0, "late\n")

    backend = SlurmBackend(site.root / "slurm", Slurm(site.env, site.slurm.execute), env=site.env, sleep=shown)
    assert [line.text for line in backend.logs("r", LogQuery(follow=True))] == ["late"]
    assert site.status().phase == "Succeeded"


@pytest.mark.parametrize(("said", "code"), [(78, 78), (1, 70), (0, 70), (75, 70)])
def test_a_job_of_which_nothing_began_failed_with_what_its_script_said(site: Site, said: int, code: int) -> None:
    """A node that has not these outputs can note nothing here."""
    site.submit()
    site.becomes("FAILED", "NonZeroExitCode")
    site.slurm.jobs["17"].code = said
    assert (site.status().phase, site.status().exit_code) == ("Failed", code)
    site.note(0, "begin")
    assert site.status().exit_code != 78, "it began here"


def test_a_save_that_is_killed_is_explained_with_the_grace_period_that_is_set(site: Site) -> None:
    site.submit("grace_period_seconds=240", "num_nodes=1")
    site.becomes("RUNNING")
    site.note(0, "begin", "end 137")
    seen = site.status()
    assert "240 s" in "".join(one.cause for one in seen.findings), seen.findings


PYXIS = """\
slurmstepd: error: pyxis: child 4411 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [ERROR] URL https://registry.example/v2/team/rankzero returned error code: 404 Not Found
slurmstepd: error: pyxis: couldn't start container
srun: error: host0: task 0: Exited with exit code 1
"""


SINCE = int(datetime(2026, 11, 22, 11, 1, tzinfo=UTC).timestamp())
BEFORE = SINCE - 600
"""The fake Slurm says that each job started then."""
NOT_THERE = "sh: 0: cannot open /outputs/slurm/r/config/node.sh: No such file\n"
"""Of what srun starts, before it notes that it has begun."""
OF_SRUN = "srun: error: host0: task 0: Exited with exit code 2\n"


@pytest.mark.parametrize(
    ("own", "batch", "told"),
    [
        ("", PYXIS, "returned error code: 404 Not Found"),
        (PYXIS, "", "returned error code: 404 Not Found"),
        (PYXIS, OF_SRUN, "returned error code: 404 Not Found"),
        (NOT_THERE, OF_SRUN, "Exited with exit code 2; sh: 0: cannot open /outputs/slurm/r/config/node.sh"),
        (
            "",
            "srun: unrecognized option '--container-image=x.sqsh'\n",
            "unrecognized option '--container-image=x.sqsh'",
        ),
        ("", "", "NonZeroExitCode"),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_what_kept_srun_from_starting_the_nodes_is_the_verdict(
    site: Site, own: str, batch: str, told: str, first: bool
) -> None:
    """A step's own log takes what srun starts says, and the batch script's takes what srun says."""
    prepared(site)() if first else site.submit()
    parts: list[Part] = [PREPARATION] if first else [0, 1]
    for part in parts if own else ():
        site.log(part, own)
    site.batch_log(batch)
    if first:
        site.slurm.jobs = {"17": FakeJob("FAILED", "NonZeroExitCode"), "18": FakeJob("CANCELLED", "Dependency")}
    else:
        site.becomes("FAILED", "NonZeroExitCode")
    seen = site.status()
    assert (seen.phase, seen.exit_code) == ("Failed", 70)
    assert [finding.code for finding in seen.findings] == ["slurm-not-started"]
    whose = "its preparation" if first else "its nodes"
    assert told in seen.verdict and f"before {whose} began" in seen.verdict and "SIGTERM" not in seen.verdict
    if not own:
        assert [line.text for line in site.backend.logs("r", LogQuery())] == batch.splitlines(), "once"
    if not first:
        last = (own or batch).splitlines()[-1:]
        assert [line.text for line in site.backend.logs("r", LogQuery(node=1, tail=1))] == last
    assert list(site.backend.logs("r", LogQuery(follow=True)))[-1:] == list(site.backend.logs("r", LogQuery()))[-1:]


@pytest.mark.parametrize(
    ("last", "told"), [(BEFORE, "NonZeroExitCode"), (SINCE, "No such file"), (SINCE - 30, "No such file")]
)
def test_of_a_later_start_a_nodes_own_log_counts_from_there_on(site: Site, last: int, told: str) -> None:
    """By when it was written last: whose clock that is may be late."""
    site.submit()
    site.note(0, "begin", "end 75", words={"outcome": "stopped", "exit_code": 75, "checkpoint": 4})
    site.log(0, "2026-11-22T10:31:00.000000Z saved at step 4\n" + NOT_THERE, at=last)
    site.becomes("FAILED", "NonZeroExitCode", restarts=1)
    verdict = site.status().verdict
    assert told in verdict and "step 4" not in verdict


def test_a_start_before_that_has_no_part_in_it(site: Site) -> None:
    """Its log and its last words are there still."""
    site.submit()
    for node in (0, 1):
        site.note(node, "begin", "end 75", words={"outcome": "stopped", "exit_code": 75, "checkpoint": 4})
        site.log(node, "saved at step 4\n", at=BEFORE)
    site.batch_log("an older line\n" + PYXIS)
    site.becomes("FAILED", "NonZeroExitCode", restarts=1)
    assert (site.status().phase, site.status().exit_code) == ("Failed", 70)
    assert "404 Not Found" in site.status().verdict and "saved at step 4" not in site.status().verdict
    site.note(0, "begin", restart=1)
    assert "before node 1 began" in site.status().verdict


@pytest.mark.parametrize("accounting", [False, True])
@pytest.mark.parametrize(
    ("state", "code", "phase", "exit_code", "says"),
    [
        ("FAILED", 74, "Failed", 74, "could not write to storage.outputs"),
        ("FAILED", 78, "Failed", 78, "another storage.outputs"),
        ("NODE_FAIL", 0, "Failed", 143, "a node of job 17 failed"),
        ("CANCELLED", 0, "Stopped", 75, "stopped"),
    ],
)
def test_a_later_start_of_which_nothing_began_is_not_judged_by_the_one_before(
    site: Site, accounting: bool, state: str, code: int, phase: str, exit_code: int, says: str
) -> None:
    """Slurm's accounting, which has it once squeue has forgotten, does not say how often it was queued again."""
    site.submit()
    stopped = {"outcome": "stopped", "exit_code": 75, "step": 4, "total_steps": 9, "checkpoint": 4}
    for node in (0, 1):
        site.note(node, "begin", "end 75", words=stopped, at=BEFORE)
    site.batch_log("srun: error: host0: task 0: Exited with exit code 75\n", at=BEFORE)
    site.becomes(state, "NonZeroExitCode", restarts=1)
    site.slurm.jobs["17"].code = code
    if accounting:
        site.slurm.accounted, site.slurm.jobs = site.slurm.jobs, {}
    seen = site.status()
    assert (seen.phase, seen.exit_code) == (phase, exit_code)
    assert says in seen.verdict and "exit code 75" not in seen.verdict and "step 4" not in seen.verdict


@pytest.mark.parametrize("code", sorted({*ExitCode, 1, 134, 137, 139} - {ExitCode.DONE, ExitCode.STOPPED}))
def test_a_node_that_failed_is_the_verdict_and_not_one_that_was_ended_before_it_began(site: Site, code: int) -> None:
    """Its image was still being fetched when the other node had failed, and all were asked to leave."""
    site.submit()
    words = {"outcome": "failed", "exit_code": code, "what": "what it said"} if code in {*ExitCode} else None
    site.note(1, "begin", f"end {code}", words=words)
    site.batch_log("srun: error: host0: task 0: Terminated\n")
    site.becomes("FAILED", "NonZeroExitCode")
    failed = site.status()
    assert (failed.phase, failed.exit_code) == ("Failed", code)
    assert "node 1" in failed.verdict and "slurm-not-started" not in [finding.code for finding in failed.findings]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (69, {"outcome": "failed", "exit_code": 69, "what": "node 0 was not reached in 600 s"}),
        (69, {"outcome": "peer_lost", "exit_code": 69, "what": "another process is gone"}),
        (75, {"outcome": "stopped", "exit_code": 75}),
        (0, {"outcome": "done", "exit_code": 0}),
    ],
)
def test_a_node_that_has_only_waited_for_one_that_never_began_is_not_blamed(
    site: Site, code: int, words: dict[str, Any]
) -> None:
    site.submit()
    site.note(1, "begin", f"end {code}", words=words)
    site.batch_log(PYXIS)
    site.becomes("FAILED", "NonZeroExitCode")
    assert "before node 0 began" in site.status().verdict and "404 Not Found" in site.status().verdict


def test_a_known_sign_in_what_srun_says_comes_first(site: Site) -> None:
    site.submit()
    said = "slurmstepd: error: pyxis: nvidia-container-cli: initialization error: nvml error: driver not loaded\n"
    site.batch_log(said)
    site.becomes("FAILED", "NonZeroExitCode")
    assert [finding.code for finding in site.status().findings] == ["gpu-runtime", "slurm-not-started"]
