"""Which variables travel with a job, and which come to what asks Slurm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.backends.slurm.backend import SlurmBackend
from rankzero.launch.backends.slurm.command import Answer, Slurm
from rankzero.launch.backends.slurm.state import RunState
from rankzero.launch.backends.slurm.submit import Request, environments
from tests.unit.launch.backends.slurm.conftest import Site, prepared


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
    **{"SBATCH_CLUSTERS": "big"},  # which squeue does not heed
    **{"SLURM_LABELIO": "1", "SLURM_STDERRMODE": "none", "SLURM_TIMELIMIT": "1", "SRUN_EXPORT_ENV": "NONE"},
}


def test_variables_of_the_shell_settle_nothing_that_the_script_or_cluster_yaml_does(site: Site) -> None:
    """sbatch and srun heed them before the lines of a script."""
    others = {"SBATCH_ACCOUNT": "lab", "SBATCH_QOS": "high", "SLURM_CLUSTERS": "big", "SBATCH_HINT": "compute_bound"}
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


def test_what_is_a_secret_by_its_shape_does_not_travel_whatever_its_name(site: Site) -> None:
    site.env |= {"DATABASE_URL": "postgres://me:hunter2@db/x", "HUB_AUTH": "hf_abcdefghijklmnopqrstuv"}
    site.env |= {"SLURM_JWT": "eyJhbGciOiJIUzI1NiJ9.eyJleHAiOjE3.x", "PIP_INDEX_URL": "https://pypi.example/simple"}
    site.env |= {"HTTPS_PROXY": "http://me:hunter2@proxy:3128"}
    site.submit("secrets={database_url: {name: db}}")
    (env,) = site.slurm.envs
    assert {"DATABASE_URL", "PIP_INDEX_URL", "SLURM_JWT", "HTTPS_PROXY"} <= set(env) and "HUB_AUTH" not in env
    assert site.slurm.scripts["17"].index("unset SLURM_JWT") < site.slurm.scripts["17"].index("srun ")


def test_what_is_withheld_is_named_with_what_gives_it_to_the_run(site: Site) -> None:
    site.env |= {"MLFLOW_TRACKING_URI": "https://me:hunter2@mlflow", "HUB_AUTH": "hf_abcdefghijklmnopqrstuv"}
    site.submit()
    (line,) = [line for line in site.said if "MLFLOW_TRACKING_URI" in line]
    assert "HUB_AUTH" in line and "HF_TOKEN" not in line, "by its name it was never taken for more than a secret"
    assert "secrets: {HUB_AUTH: {name: hub-auth}, MLFLOW_TRACKING_URI: {name: mlflow-tracking-uri}}" in line
    assert not [line for line in site.said if "hunter2" in line or "hf_abc" in line]
    site.said.clear()
    site.backend.delete("r", claims=False, say=lambda _line: None)
    site.submit("secrets={HUB_AUTH: {name: h}, MLFLOW_TRACKING_URI: {name: m}}")
    assert site.said == ["job 18 is in the queue"]


def test_the_name_of_a_key_travels_where_its_secret_does(site: Site) -> None:
    """It has a secret's shape, and one is of no use without the other."""
    site.env["AWS_ACCESS_KEY_ID"] = "AKIAABCDEFGHIJKLMNOP"
    site.submit()
    site.backend.delete("r", claims=False, say=site.said.append)
    site.submit("secrets={AWS_SECRET_ACCESS_KEY: {name: aws}}")
    assert ["AWS_ACCESS_KEY_ID" in env for env in site.slurm.envs] == [False, True]


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


def test_what_is_said_for_what_goes_first_leaves_the_runs_own_job_open(site: Site) -> None:
    site.env |= {"SBATCH_PARTITION": "gpu"}
    prepared(site)()
    assert [env.get("SBATCH_PARTITION") for env in site.slurm.envs] == [None, "gpu"]
    site.slurm.envs.clear()
    cache = f"storage.cache={{mount: {site.root}/c, host_path: {site.root}/c}}"
    site.backend.survey(site.objects(cache, "slurm.prepare_partition=cpu"))
    assert [env.get("SBATCH_PARTITION") for env in site.slurm.envs] == [None, "gpu"]


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        *[("SBATCH_PARTITION", "partition"), ("SBATCH_ACCOUNT", "account"), ("SBATCH_QOS", "qos")],
        *[("SBATCH_TIMELIMIT", "time"), ("SBATCH_CONSTRAINT", "constraint"), ("SBATCH_RESERVATION", "reservation")],
        *[("SBATCH_MEM_PER_NODE", "mem"), ("SBATCH_MEM_PER_CPU", "mem"), ("SBATCH_MEM_PER_GPU", "mem")],
        *[("SBATCH_CPUS_PER_GPU", "cpus-per-task"), ("SBATCH_EXCLUSIVE", "exclusive"), ("SBATCH_COMMENT", "comment")],
        *[("SBATCH_REQ_SWITCH", "switches"), ("SBATCH_WAIT4SWITCH", "switches"), ("SBATCH_HINT", "hint")],
    ],
)
@pytest.mark.parametrize(
    ("first", "run", "left"), [("", "", (True, True)), ("x", "", (False, True)), ("", "x", (False, False))]
)
def test_a_script_that_says_an_option_hides_its_variable(
    tmp_path: Path, variable: str, option: str, first: str, run: str, left: tuple[bool, bool]
) -> None:
    """From itself, and what the run says from what goes before it."""

    def script(says: str) -> str:
        return f"#!/bin/bash\n#SBATCH --nodes=1\n{f'#SBATCH --{option}=x' if says else ''}\n"

    request = Request("r", script(run), RunState(tmp_path / "r"), {}, {}, preparation=script(first))
    given = environments(request, {variable: "1"})
    assert (variable in given.preparation, variable in given.run) == left


def test_a_secret_that_is_not_set_is_asked_for_before_anything_is_sent(site: Site) -> None:
    with pytest.raises(ConfigError, match="WANDB_API_KEY is not set"):
        site.submit("secrets={WANDB_API_KEY: {name: w}}")
    assert site.slurm.scripts == {} and not (site.root / "slurm").exists()
