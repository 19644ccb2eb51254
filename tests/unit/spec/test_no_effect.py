"""What is said and has no effect is no error, and named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rankzero
from rankzero.spec.cluster_load import load_cluster, load_cluster_spec, profiles
from rankzero.spec.fields import field_at
from rankzero.spec.load import load_run_spec
from rankzero.spec.no_effect import unread_of_cluster, unread_of_run
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.tasks import TASKS

RECIPES = sorted((Path(rankzero.__file__).parent / "recipes").rglob("run.yaml"))


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"task": "classify", "data": {"train_on": "last_turn"}}, "data.train_on"),
        ({"task": "dpo", "data": {"train_on": "last_turn"}}, "data.train_on"),
        ({"task": "classify", "data": {"reasoning": "drop"}}, "data.reasoning"),
        ({"task": "classify", "data": {"assistant_only_loss": False}}, "data.assistant_only_loss"),
        ({"task": "classify", "data": {"chat_template_kwargs": {"a": 1}}}, "data.chat_template_kwargs"),
        ({"task": "classify", "data": {"image_max_tokens": 64}}, "data.image_max_tokens"),
        ({"checkpoint": {"best_metric": "perplexity"}}, "checkpoint.best_metric"),
        ({"task": "classify", "checkpoint": {"best_metric": "accuracy"}}, "checkpoint.best_metric"),
        ({"eval": {"max_new_tokens": 16}}, "eval.max_new_tokens"),
        ({"eval": {"every": 100}}, "eval.every"),
        ({"data": {"shuffle_buffer_size": 100}}, "data.shuffle_buffer_size"),
        ({"data": {"streaming_cache_gb": 1}}, "data.streaming_cache_gb"),
        ({"data": {"chat_template_kwargs": {"a": "off"}}}, "data.chat_template_kwargs.a"),
        ({"data": {"chat_template_kwargs": {"a": "False", "b": False}}}, "data.chat_template_kwargs.a"),
    ],
)
def test_of_a_run(sections: dict[str, Any], where: str, tmp_path: Path) -> None:
    whole = {"model": {"name": "o/m"}, **sections, "data": {"train": "o/d", **sections.get("data", {})}}
    file = tmp_path / "run.yaml"
    file.write_text(RunSpec(**whole).model_dump_json())
    found = load_run_spec(file, env={}).spec  # it is no error
    assert [problem.where for problem in unread_of_run(found)] == [where]


def test_what_is_read_is_not_warned_of() -> None:
    kwargs = {"enable_thinking": False, "reasoning_effort": "low", "documents": ["no"]}
    data = {"train": "o/d", "eval": "o/e", "train_on": "last_turn", "reasoning": "drop", "chat_template_kwargs": kwargs}
    spec = RunSpec(
        model={"name": "o/m"},
        data=data,
        checkpoint={"best_metric": "perplexity"},
        eval={"prompts": ["a"], "max_new_tokens": 16},
    )
    assert unread_of_run(spec) == []
    assert unread_of_run(spec.model_copy(update={"task": "classify"}))


@pytest.mark.parametrize("written", ["off", "no", '"${THINK}"', "'FALSE'", "on"])
def test_a_text_that_looks_like_no_is_said_to_be_one(written: str, tmp_path: Path) -> None:
    """Jinja takes any text for true: a run with `enable_thinking: off` would be trained with thinking."""
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{name: o/m}}\ndata:\n  train: o/d\n  chat_template_kwargs: {{thinks: {written}}}\n")
    (found,) = unread_of_run(load_run_spec(file, env={"THINK": "false"}).spec)
    assert (found.where, found.hint) == (
        "data.chat_template_kwargs.thinks",
        "where a boolean is meant, write true or false without quotes",
    )
    file.write_text("model: {name: o/m}\ndata: {train: o/d}\n")
    (typed,) = unread_of_run(load_run_spec(file, ["data.chat_template_kwargs.thinks=no"], env={}).spec)
    assert '"no" is text, which a template takes for true' in str(typed)


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {"eval": "o/e"}, "eval": {"every": 100}},
        {"eval": {"every": 100, "prompts": ["a"]}},  # which are asked as often
        {"data": {"streaming": True, "shuffle_buffer_size": 100, "streaming_cache_gb": 1}, "train": {"max_steps": 1}},
    ],
)
def test_what_gives_a_field_an_effect(sections: dict[str, Any]) -> None:
    data = {"train": "o/d", **sections.get("data", {})}
    assert unread_of_run(RunSpec(**{"model": {"name": "o/m"}, **sections, "data": data})) == []


def test_fields_of_tasks_are_known() -> None:
    for task in TASKS.values():
        for field in (*task.fields, *task.unread):
            assert field_at(RunSpec, tuple(field.split("."))) is not None, field


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        (["kind=slurm", "image=team/rankzero:1.0"], ["image"]),
        (["kind=slurm", "image=team/rankzero:1.0", "slurm.runtime=pyxis"], []),
        (["kind=slurm", "storage.outputs.access=ReadWriteOnce"], ["storage.outputs.access"]),
        (["image=i", "storage.outputs.access=ReadWriteOnce"], ["storage.outputs.access"]),
        (["image=i", "storage.outputs.size=1Gi"], ["storage.outputs.size"]),
        (["image=i", "resources.rdma_devices=2"], ["resources.rdma_devices"]),
        (["image=i", "resources.rdma_devices=2", "resources.rdma=rdma/ib"], []),
        (["image=i", "storage.outputs={mount: /o, claim: c, size: 1Gi, access: ReadWriteOnce}"], []),
        (["image=i", "kind=docker", "resources.rdma_devices=2"], ["resources.rdma_devices"]),
        (["image=i", "gpu=false", "gpu_resource=amd.com/gpu"], ["gpu_resource"]),
        (["kind=slurm", "gpu=false", "slurm.gpu_type=h100"], ["slurm.gpu_type"]),
        (["kind=slurm", "slurm.gpu_type=h100"], []),
    ],
)
def test_of_a_cluster(settings: list[str], where: list[str]) -> None:
    cluster = load_cluster_spec(None, ["storage.outputs={mount: /o, host_path: /o}", *settings], env={}).spec
    assert [problem.where for problem in unread_of_cluster(cluster)] == where


def test_what_rankzero_writes_says_nothing_in_vain() -> None:
    assert RECIPES
    for file in RECIPES:
        assert unread_of_run(load_run_spec(file, env={}).spec) == [], file
    for name in profiles():
        assert unread_of_cluster(load_cluster(name, [], env={}).spec) == [], name
