"""What a spec says and nothing reads, or reads otherwise than it looks: no error, since it runs, but told. Pure."""

from __future__ import annotations

from operator import attrgetter

from rankzero.errors import Problem
from rankzero.spec.cluster_spec import ClusterSpec, ResourcesSpec
from rankzero.spec.fields import field_at
from rankzero.spec.kinds import kind_section
from rankzero.spec.run_spec import RunSpec


def unread_of_run(spec: RunSpec) -> list[Problem]:
    """Fields of a run spec without effect, or with another one than they seem to have, each with what would help."""
    found = [
        Problem(f"task {spec.task} does without it", field, "leave it out")
        for field in spec.task_section.unread
        if _is_said(spec, field)
    ]
    if spec.data.eval is None:
        hint = "set data.eval to a file or to {fraction: 0.02}, or leave it out"
        if _is_said(spec, "checkpoint.best_metric"):
            what = "nothing is evaluated, so no checkpoint is the best"
            found.append(Problem(what, "checkpoint.best_metric", hint))
        if spec.eval.prompts is None and _is_said(spec, "eval.every"):
            found.append(Problem("nothing is evaluated without data.eval", "eval.every", hint))
    if spec.eval.prompts is None and _is_said(spec, "eval.max_new_tokens"):
        found.append(Problem("nothing is asked without eval.prompts", "eval.max_new_tokens", "leave it out"))
    if not spec.data.streaming:
        for field in ("data.shuffle_buffer_size", "data.streaming_cache_gb"):
            if _is_said(spec, field):
                hint = "set data.streaming: true, or leave it out"
                found.append(Problem("all rows are read before training without data.streaming", field, hint))
    return found + _texts_for_booleans(spec)


_LIKE_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off"})


def _texts_for_booleans(spec: RunSpec) -> list[Problem]:
    """Arguments of a chat template that are text where a boolean is likely meant. YAML 1.2 has no other words for those
    than true and false, and what stands in quotes is text."""
    if "data.chat_template_kwargs" in spec.task_section.unread:
        return []
    return [
        Problem(
            f'"{value}" is text, which a template takes for true',
            f"data.chat_template_kwargs.{name}",
            "where a boolean is meant, write true or false without quotes",
        )
        for name, value in spec.data.chat_template_kwargs.items()
        if isinstance(value, str) and value.lower() in _LIKE_BOOLEANS
    ]


def unread_of_local_model(spec: RunSpec) -> list[Problem]:
    """Of a model that is a directory or a file here. Where model.local_dir has one of the Hub's, the result names it
    with its revision."""
    if spec.model.revision is None:
        return []
    what = f"{spec.model.name} is here, and only models of the Hub have revisions"
    return [Problem(what, "model.revision", "leave it out")]


def unread_of_text_model(spec: RunSpec) -> list[Problem]:
    """Of a model that sees no images."""
    field = "data.image_max_tokens"
    told = not _is_said(spec, field) or field in spec.task_section.unread  # of the task
    return [] if told else [Problem("the model sees no images", field, "leave it out")]


_OF_GPUS = ("flash_attention_2", "flash_attention_3", "flex_attention")
"""Kinds of attention that model/attention.py refuses on CPUs."""


def in_vain_on_cpus(spec: RunSpec) -> list[Problem]:
    """Fields of a run spec without effect where its processes compute on CPUs, or that end the run there once its rows
    are read: who sees no GPU may be wrong, so that this is no error yet."""
    what = "processes on CPUs keep everything in the machine's memory already"
    found = [
        Problem(what, field, "leave it out")
        for field in ("train.activation_offloading", "train.offload")
        if _is_said(spec, field)
    ]
    if spec.model.kernels != "none":
        what = f"{spec.model.kernels} kernels need an NVIDIA GPU: without one the run will be refused"
        found.append(Problem(what, "model.kernels", "leave it out"))
    if spec.model.attention in _OF_GPUS:
        what = f"{spec.model.attention} needs an NVIDIA GPU: without one the run will be refused"
        found.append(Problem(what, "model.attention", "leave it out: auto takes the fastest that there is"))
    return found


def _is_said(spec: RunSpec, field: str) -> bool:
    """Whether a field is not at its default."""
    about = field_at(RunSpec, tuple(field.split(".")))
    return about is not None and attrgetter(field)(spec) != about.default


def unread_of_cluster(spec: ClusterSpec) -> list[Problem]:
    """Fields of a cluster spec that have no effect anywhere, or not on hosts without containers."""
    found = []
    if kind_section(spec.kind).on_hosts and spec.image is not None and spec.slurm.runtime == "none":
        hint = "slurm.runtime: apptainer or pyxis runs it"
        found.append(Problem("the nodes' own software runs, not the image", "image", hint))
    if spec.resources.rdma is None and spec.resources.rdma_devices != ResourcesSpec().rdma_devices:
        found.append(Problem("no devices are asked for without resources.rdma", "resources.rdma_devices"))
    if not spec.gpu:
        for field in ("gpu_resource", "slurm.gpu_type"):
            if attrgetter(field)(spec) != attrgetter(field)(ClusterSpec()):
                found.append(Problem("no GPUs are asked for with gpu: false", field, "leave it out"))
    for name, volume in spec.storage.items():
        if volume.host_path is not None and volume.size is not None:
            found.append(Problem("a directory of the host has no size", f"storage.{name}.size", "leave it out"))
        if volume.claim is None and volume.access == "ReadWriteOnce":
            what = "only a claim is mounted by one host at a time"
            found.append(Problem(what, f"storage.{name}.access", "leave it out"))
    return found
