"""Allocations that bring nothing new are counted from what is saved when the first of them begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve
from tests.unit.launch.backends.slurm.test_script import FILES, RUN, Stage, words


def test_a_run_that_continues_has_no_more_allocations_than_one_that_begins(tmp_path: Path) -> None:
    """What an earlier job had saved is there when its first allocation begins."""
    stage = Stage(tmp_path)
    for step in (3, 12, 5):
        (stage.outputs / f"runs/alpaca-qwen3-8b/checkpoints/step-{step}").mkdir(parents=True)
    stage.says = words(12)
    assert [stage.run([203], seconds_left=100, restart=str(start)) for start in range(3)] == [75, 75, 70]


def test_what_an_allocation_saved_that_was_preempted_counts(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.says = words(None)
    assert [stage.run([203], seconds_left=100, restart=str(start)) for start in range(2)] == [75, 75]
    (stage.outputs / "runs/alpaca-qwen3-8b/checkpoints/step-4").mkdir(parents=True)
    stage.says = words(4)
    assert stage.run([203], seconds_left=5000, restart="2") == 75, "preempted"
    assert [stage.run([203], seconds_left=100, restart=str(start)) for start in (3, 4, 5)] == [75, 75, 70]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_script_that_is_handed_to_sbatch_once_more_begins_to_count_anew(tmp_path: Path, earlier: bool) -> None:
    stage = Stage(tmp_path)
    stage.says = words(None)
    assert [stage.run([203], seconds_left=100, restart=str(start)) for start in range(3)] == [75, 75, 70]
    if earlier:
        (stage.state / "progress").write_text("none 3\n")  # as an earlier version wrote it
    assert [stage.run([203], seconds_left=100, job="8", restart=str(start)) for start in range(3)] == [75, 75, 70]


def test_checkpoints_of_another_run_of_the_name_are_not_looked_at() -> None:
    """With `resume: new` only the processes know which directory the run has."""
    run = resolve(load_run_spec(None, [*RUN, "resume=new"], env={}).spec)
    outputs = "storage={outputs: {mount: /outputs, host_path: /shared/me}}"
    settings = ["kind=slurm", "num_nodes=1", "image=an-image", "slurm.runtime=apptainer", outputs]
    cluster = load_cluster_spec(None, settings, env={}).spec
    text = str(render(make_plan(run, cluster, files=FILES))[-1]["spec"]["script"])
    assert "checkpoints" not in text
    known = resolve(load_run_spec(None, RUN, env={}).spec)
    text = str(render(make_plan(known, cluster, files=FILES))[-1]["spec"]["script"])
    assert "ls /shared/me/runs/alpaca-qwen3-8b/checkpoints " in text
