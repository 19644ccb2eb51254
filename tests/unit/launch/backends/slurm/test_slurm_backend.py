"""Runs of a Slurm that only remembers: what is submitted, kept, shown, judged, stopped and removed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rankzero.api.clusters import find_run
from rankzero.errors import AccessError, ConfigError, ServiceError
from rankzero.launch.backend import AlreadyRunsError, LogQuery
from rankzero.launch.backends.slurm.backend import SlurmBackend
from rankzero.launch.backends.slurm.command import Answer, Slurm
from rankzero.launch.labels import Manifest
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.launch.render.reader import reader_pod
from rankzero.launch.status import run_status
from rankzero.launch.status.model import RunStatus
from rankzero.persist.sources import CommandSource
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve
from tests.unit.launch.backends.slurm.fake_slurm import FakeJob, FakeSlurm

AT = 1_795_347_000


class Site:
    """A backend over a fake Slurm, and the file system that its nodes share."""

    def __init__(self, root: Path) -> None:
        self.root, self.slurm = root, FakeSlurm()
        self.env = {"PATH": "/bin", "HF_TOKEN": "hf_secret0000", "AWS_SECRET_ACCESS_KEY": "not asked for"}
        self.pauses = 0
        self.said: list[str] = []
        slurm = Slurm(self.env, self.slurm.execute)
        self.backend = SlurmBackend(root / "slurm", slurm, env=self.env, sleep=self.sleep, say=self.said.append)

    def sleep(self, _seconds: float) -> None:
        self.pauses += 1
        assert self.pauses < 100, "waits for ever"

    def objects(self, *more: str, name: str = "r") -> list[Manifest]:
        run = resolve(load_run_spec(None, [f"name={name}", "model.name=o/m", "data.train=o/d"], env={}).spec)
        outputs = f"storage.outputs={{mount: {self.root}, host_path: {self.root}}}"
        settings = ["kind=slurm", "num_nodes=2", "gpu=false", outputs, *more]
        return render(make_plan(run, load_cluster_spec(None, settings, env={}).spec))

    def submit(self, *more: str, **options: Any) -> None:
        self.backend.submit(self.objects(*more), self.said.append, **options)

    def becomes(self, state: str, reason: str = "", *, restarts: int = 0) -> None:
        """The newest job does."""
        self.slurm.jobs[max(self.slurm.jobs)] = FakeJob(state, reason, restarts)

    def note(self, node: int, *lines: str, restart: int = 0, words: dict[str, Any] | None = None) -> None:
        """`begin` or `end CODE`, as the node's script does."""
        job = max(self.slurm.jobs)
        with (self.root / f"slurm/r/nodes/{node}").open("a") as file:
            for index, line in enumerate(lines):
                word, _, code = line.partition(" ")
                file.write(f"{word} {job} {restart} {AT + index} {code or f'host{node}'}\n")
        if words is not None:
            (self.root / f"slurm/r/nodes/{node}.words").write_text(json.dumps({"rankzero": 1, **words}))

    def log(self, node: int, text: str) -> None:
        with (self.root / f"slurm/r/logs/node-{node}.log").open("a") as file:
            file.write(text)

    def status(self) -> RunStatus:
        return run_status(self.backend.collect("r"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_job_gets_the_secrets_that_it_is_given_and_no_file_does(site: Site) -> None:
    site.submit("secrets={HF_TOKEN: {name: hf}}")
    assert site.slurm.calls == ["sbatch --parsable --export=ALL"] and site.said == ["job 17 is in the queue"]
    (env,) = site.slurm.envs
    assert env["HF_TOKEN"] == "hf_secret0000" and "AWS_SECRET_ACCESS_KEY" not in env
    assert len(env["RANKZERO_SUBMISSION_TOKEN"]) == 64
    written = "".join(path.read_text() for path in site.root.rglob("*") if path.is_file())
    assert "hf_secret0000" not in written + site.slurm.scripts["17"]


def test_nothing_of_a_job_that_submits_travels_along(site: Site) -> None:
    """srun refuses what says memory for a CPU and for a node, and would start as many tasks as that job has."""
    outer = {"SLURM_MEM_PER_CPU": "2048", "SLURM_NTASKS": "3", "SLURM_CPU_BIND": "quiet", "SLURMD_NODENAME": "n1"}
    clients = {"SLURM_CONF": "/etc/s.conf", "SLURM_CLUSTERS": "big", "SBATCH_ACCOUNT": "lab", "SLURM_MPI_TYPE": "pmix"}
    site.env |= {**outer, **clients, "SLURM_JOB_ID": "4"}
    site.submit()
    site.backend.delete("r", claims=False, say=site.said.append)
    for name in outer | {"SLURM_JOB_ID": ""}:
        site.env.pop(name)
    site.submit()
    inside, outside = site.slurm.envs
    assert {name for name in inside if name.startswith("S")} == {"SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_ACCOUNT"}
    assert clients.items() <= outside.items(), "what somebody sets for all of their jobs"


SET_BY_CLUSTER_YAML = {
    **{"SBATCH_PARTITION": "debug", "SBATCH_TIMELIMIT": "5", "SBATCH_MEM_PER_CPU": "1G", "SBATCH_MEM_PER_NODE": "2G"},
    **{"SBATCH_CPUS_PER_GPU": "3", "SBATCH_EXCLUSIVE": "user", "SBATCH_REQ_SWITCH": "1"},
}
THE_SCRIPTS_OWN = {
    **{"SBATCH_JOB_NAME": "mine", "SBATCH_OUTPUT": "/dev/null", "SBATCH_ERROR": "/dev/null", "SBATCH_ARRAY_INX": "0-3"},
    **{"SBATCH_OPEN_MODE": "t", "SBATCH_REQUEUE": "", "SBATCH_NO_REQUEUE": "1", "SBATCH_SIGNAL": "USR1@9"},
    **{"SBATCH_EXPORT": "NONE", "SBATCH_WAIT": "1", "SBATCH_NO_KILL": "1", "SBATCH_GPUS": "8", "SBATCH_GRES": "gpu:8"},
    **{"SLURM_LABELIO": "1", "SLURM_STDERRMODE": "none", "SLURM_TIMELIMIT": "1", "SRUN_EXPORT_ENV": "NONE"},
}


def test_variables_of_the_shell_settle_nothing_that_the_script_or_cluster_yaml_does(site: Site) -> None:
    """sbatch and srun heed them before the lines of a script."""
    others = {"SBATCH_ACCOUNT": "lab", "SBATCH_QOS": "high", "SBATCH_CLUSTERS": "big", "SBATCH_HINT": "compute_bound"}
    site.env |= {**SET_BY_CLUSTER_YAML, **THE_SCRIPTS_OWN, **others}
    asked = ("slurm.partition=gpu", "slurm.time_limit_seconds=7200", "resources={memory: 9Gi, cpu: 4}")
    site.submit(*asked, "slurm.options={exclusive: '', switches: '2'}")
    (env,) = site.slurm.envs
    mine = {name for name in env if name.startswith(("SBATCH_", "SLURM_", "SRUN_"))}
    assert mine == set(others), "what cluster.yaml leaves open"
    site.backend.delete("r", claims=False, say=site.said.append)
    site.submit()
    assert SET_BY_CLUSTER_YAML.items() <= site.slurm.envs[1].items()
    assert not THE_SCRIPTS_OWN.keys() & site.slurm.envs[1].keys()


def test_a_survey_asks_as_a_submit_would(site: Site) -> None:
    site.env |= {"SBATCH_JOB_NAME": "mine", "SBATCH_ACCOUNT": "lab"}
    site.backend.survey(site.objects())
    (env,) = site.slurm.envs
    assert "SBATCH_JOB_NAME" not in env and env["SBATCH_ACCOUNT"] == "lab"


def test_what_somebody_has_set_for_lists_hides_no_job(site: Site) -> None:
    """squeue leaves jobs of other partitions out, also those that are named; so it does in the batch script."""
    seen: list[Mapping[str, str]] = []
    habits = {"SQUEUE_PARTITION": "debug", "SACCT_LOCAL": "1", "SCANCEL_STATE": "PENDING", "SINFO_PARTITION": "debug"}
    env = {**site.env, **habits}

    def execute(arguments: Sequence[str], text: str, env: Mapping[str, str]) -> Answer:
        seen.append(env)
        return site.slurm.execute(arguments, text, env)

    backend = SlurmBackend(site.root / "slurm", Slurm(env, execute), env=env, sleep=site.sleep)
    backend.submit(site.objects(), site.said.append)
    backend.collect("r")
    backend.cancel("r", site.said.append)
    backend.survey(site.objects())
    assert len(seen) > 4 and not any(habits.keys() & one.keys() for one in seen)


def test_what_goes_first_does_not_get_what_cluster_yaml_says_for_the_run_alone(site: Site) -> None:
    site.env |= {"SBATCH_QOS": "gpu"}
    prepared(site)("slurm.qos=high")
    assert [env.get("SBATCH_QOS") for env in site.slurm.envs] == [None, None]


def test_a_secret_that_is_not_set_is_asked_for_before_anything_is_sent(site: Site) -> None:
    with pytest.raises(ConfigError, match="WANDB_API_KEY is not set"):
        site.submit("secrets={WANDB_API_KEY: {name: w}}")
    assert site.slurm.scripts == {} and not (site.root / "slurm").exists()


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


def prepared(site: Site) -> Callable[..., None]:
    """Submits a run that is prepared; job 17 does that, and 18 is the run."""
    cache = f"storage.cache={{mount: {site.root}/c, host_path: {site.root}/c}}"
    return lambda *more, **options: site.submit(cache, "slurm.prepare_partition=cpu", *more, **options)


def note_preparation(site: Site, *lines: str, words: dict[str, Any] | None = None) -> None:
    path = site.root / "slurm/r/nodes/prepare"
    with path.open("a") as file:
        for index, line in enumerate(lines):
            word, _, code = line.partition(" ")
            file.write(f"{word} 17 0 {AT + index} {code or 'cpu0'}\n")
    if words is not None:
        path.with_suffix(".words").write_text(json.dumps({"rankzero": 1, **words}))


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
    assert (site.root / "slurm/r/cancelled").read_text() == "18\n17\n"
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


def test_a_run_that_has_ended_is_submitted_again_with_logs_of_its_own(site: Site) -> None:
    site.submit()
    site.note(0, "begin", "end 75")
    site.log(0, "before\n")
    site.becomes("FAILED", "NonZeroExitCode")
    site.submit()
    assert set(site.slurm.scripts) == {"17", "18"}
    assert list(site.backend.logs("r", LogQuery())) == []
    assert site.status().phase == "Pending"


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


@pytest.mark.parametrize(
    ("reason", "code", "severity", "says"),
    [
        ("Resources", "slurm-waiting", "waiting", "waits for free nodes"),
        ("Priority", "slurm-waiting", "waiting", "squeue --start --jobs=17"),
        ("BeginTime", "slurm-requeued", "waiting", "continues from its newest checkpoint"),
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


PYXIS = """\
slurmstepd: error: pyxis: child 4411 failed with error code: 1
slurmstepd: error: pyxis: failed to import docker image
slurmstepd: error: pyxis: printing enroot log file:
slurmstepd: error: pyxis:     [ERROR] URL https://registry.example/v2/team/rankzero returned error code: 404 Not Found
slurmstepd: error: pyxis: couldn't start container
srun: error: host0: task 0: Exited with exit code 1
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (PYXIS, "returned error code: 404 Not Found"),
        ("srun: unrecognized option '--container-image=x.sqsh'\n", "unrecognized option '--container-image=x.sqsh'"),
        ("", "NonZeroExitCode"),
    ],
)
def test_what_kept_srun_from_starting_the_nodes_is_the_verdict(site: Site, said: str, told: str) -> None:
    site.submit()
    (site.root / "slurm-r.log").write_text(said)
    site.becomes("FAILED", "NonZeroExitCode")
    seen = site.status()
    assert (seen.phase, seen.exit_code) == ("Failed", 70)
    assert [finding.code for finding in seen.findings] == ["slurm-not-started"]
    assert told in seen.verdict and "before its nodes began" in seen.verdict and "SIGTERM" not in seen.verdict
    assert [line.text for line in site.backend.logs("r", LogQuery())] == said.splitlines(), "once"
    assert [line.text for line in site.backend.logs("r", LogQuery(node=1, tail=1))] == said.splitlines()[-1:]
    assert list(site.backend.logs("r", LogQuery(follow=True)))[-1:] == list(site.backend.logs("r", LogQuery()))[-1:]


def test_a_start_before_that_has_no_part_in_it(site: Site) -> None:
    """Its log and its last words are there still."""
    site.submit()
    for node in (0, 1):
        site.note(node, "begin", "end 75", words={"outcome": "stopped", "exit_code": 75, "checkpoint": 4})
        site.log(node, "saved at step 4\n")
    (site.root / "slurm-r.log").write_text("an older line\n" + PYXIS)
    site.becomes("FAILED", "NonZeroExitCode", restarts=1)
    assert (site.status().phase, site.status().exit_code) == ("Failed", 70)
    assert "404 Not Found" in site.status().verdict
    site.note(0, "begin", restart=1)
    assert "before node 1 began" in site.status().verdict


def test_a_known_sign_in_what_srun_says_comes_first(site: Site) -> None:
    site.submit()
    said = "slurmstepd: error: pyxis: nvidia-container-cli: initialization error: nvml error: driver not loaded\n"
    (site.root / "slurm-r.log").write_text(said)
    site.becomes("FAILED", "NonZeroExitCode")
    assert [finding.code for finding in site.status().findings] == ["gpu-runtime", "slurm-not-started"]


def test_a_preparation_that_srun_could_not_start(site: Site) -> None:
    prepared(site)()
    (site.root / "slurm-r.log").write_text(PYXIS)
    site.slurm.jobs = {"17": FakeJob("FAILED", "NonZeroExitCode"), "18": FakeJob("CANCELLED", "Dependency")}
    assert (site.status().phase, site.status().exit_code) == ("Failed", 70)
    assert "job 17 ended before its preparation began" in site.status().verdict
    assert "404 Not Found" in site.status().verdict


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
    monkeypatch.setattr("rankzero.launch.backends.slurm.silence.time.monotonic", lambda: next(clock))
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
        assert (site.root / "slurm/r/cancelled").read_text() == "17\n", "before the signal"
        job.state = "FAILED"

    site.slurm.on_scancel = hears
    site.backend.cancel("r", site.said.append)
    assert told == [True]


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


def test_delete_removes_the_job_and_its_directory_and_no_result(site: Site) -> None:
    site.submit()
    (site.root / "runs/r").mkdir(parents=True)
    (site.root / "slurm-r.log").write_text("srun: something\n")
    removed = site.backend.delete("r", claims=True, say=site.said.append)
    assert removed == ["job 17", f"directory {site.root}/slurm/r", f"file {site.root}/slurm-r.log"]
    assert (site.root / "runs/r").is_dir() and "results stay" in site.said[-1]
    assert site.backend.runs() == [] and site.backend.collect("r").objects == ()


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


def test_results_are_read_where_they_lie_also_where_containers_see_them_elsewhere(site: Site) -> None:
    (site.root / "runs/r").mkdir(parents=True)
    (site.root / "runs/r/run.yaml").write_text("name: r\n")
    outputs = f"storage.outputs={{mount: /outputs, host_path: {site.root}}}"
    settings = ["kind=slurm", outputs, "slurm={runtime: apptainer, image: x.sif}"]
    pod = reader_pod(load_cluster_spec(None, settings, env={}).spec, "pull")
    with site.backend.reading(pod, site.said.append) as execute:
        source = CommandSource.find(execute, "/outputs", "r", "outputs")
        assert source.read("run.yaml", 0, 100) == b"name: r\n"
