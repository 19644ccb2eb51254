"""What Slurm's programs print, and what its refusals become. The texts are those of 22.05 and later."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rankzero.launch.backends.slurm.command import Answer, Slurm, read_accounting, read_queue, refusal
from tests.unit.launch.backends.slurm.fake_slurm import FakeJob, line

WAITS = FakeJob(
    "PENDING", "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
)


def test_columns_of_squeue() -> None:
    text = line("11", WAITS) + line("12", FakeJob("RUNNING", "None", 2, code=78)) + "\n"
    waiting, running = read_queue(text)
    assert (waiting.id, waiting.is_waiting, waiting.reason) == ("11", True, WAITS.reason)
    assert (waiting.started, waiting.ended) == (None, None)
    assert (waiting.code, running.code) == (0, 78)
    assert (running.restarts, running.reason, running.nodes) == (2, "", "host[0-1]")
    assert running.started == datetime(2026, 11, 22, 11, 1, tzinfo=UTC)


def test_bars_of_sacct() -> None:
    text = (
        "7|CANCELLED by 1000|2026-11-22T11:00:00|2026-11-22T11:01:00|2026-11-22T11:02:00|gpu|0:0|rankzero-r\n"
        "8|OUT_OF_MEMORY|2026-11-22T11:00:00|Unknown|Unknown|gpu|78:0|a|b\n"
    )
    first, second = read_accounting(text)
    assert (first.state, first.reason, first.restarts) == ("CANCELLED", "CANCELLED by 1000", None)
    assert (second.state, second.started, second.is_over) == ("OUT_OF_MEMORY", None, True)
    assert (first.code, second.code) == (0, 78)
    assert (first.name, second.name) == ("rankzero-r", "a|b"), "others may have any name"


def test_a_job_of_long_ago_is_asked_for_in_the_accounting() -> None:
    def execute(arguments, _text, _env):  # type: ignore[no-untyped-def]
        if arguments[0] == "squeue":
            return Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
        assert "--jobs=7" in arguments
        return Answer(
            0, "7|TIMEOUT|2026-11-22T11:00:00|2026-11-22T11:01:00|2026-11-22T11:02:00|gpu|0:0|rankzero-r\n", ""
        )

    assert Slurm({}, execute).jobs(["7"])["7"].state == "TIMEOUT"


def test_a_machine_without_sacct_has_no_accounting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Slurm({"PATH": str(tmp_path)}).jobs(["17"]) == {}


def test_a_cluster_without_accounting_has_forgotten_it() -> None:
    answers = {
        "squeue": Answer(1, "", "slurm_load_jobs error: Invalid job id specified"),
        "sacct": Answer(1, "", "Slurm accounting storage is disabled"),
    }
    assert Slurm({}, lambda arguments, _text, _env: answers[arguments[0]]).jobs(["7"]) == {}


@pytest.mark.parametrize(
    ("said", "kind", "where"),
    [
        ("sbatch: error: invalid partition specified: nope", "ConfigError", "slurm.partition"),
        (
            "sbatch: error: Batch job submission failed: Invalid feature specification",
            "ConfigError",
            "slurm.constraint",
        ),
        ("sbatch: error: Invalid generic resource (gres) specification", "ConfigError", "nproc_per_node"),
        ("sbatch: error: Memory specification can not be satisfied", "ConfigError", "resources.memory"),
        ("sbatch: error: Batch job submission failed: Requested reservation is invalid", "ConfigError", "reservation"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "ConfigError", "slurm.qos"),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "ConfigError",
            "slurm.account",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds limit)",
            "ConfigError",
            "slurm.time_limit_seconds",
        ),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "ConfigError",
            "num_nodes",
        ),
        ("sbatch: unrecognized option '--exclud=n1'", "ConfigError", "slurm.options"),
        ("sbatch: error: Batch job submission failed: Access/permission denied", "AccessError", "sbatch"),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "SilentError",
            "sbatch",
        ),
        (
            "sbatch: error: Batch job submission failed: Slurm temporarily unable to accept job, sleeping and retrying",
            "SilentError",
            "sbatch",
        ),
        ("sbatch: error: Batch job submission failed: Message receive failure", "SilentError", "sbatch"),
        ("sbatch: error: Batch job submission failed: Unexpected message received", "SilentError", "sbatch"),
        (
            "sbatch: error: Batch job submission failed: Slurm backup controller in standby mode",
            "SilentError",
            "sbatch",
        ),
        ("sbatch: fatal: Unable to process configuration file", "UnaskedError", "sbatch"),  # which no waiting cures
    ],
)
def test_a_refusal_names_the_field(said: str, kind: str, where: str) -> None:
    error = refusal("sbatch", Answer(1, "", said + "\n"))
    (problem,) = error.problems
    assert type(error).__name__ == kind and problem.where.endswith(where) and problem.hint
    assert said.rpartition(": ")[2].strip() in problem.what


def test_no_slurm_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Exception, match="there is no sinfo command on this machine"):
        Slurm({"PATH": "/nowhere"}).call("sinfo")
