"""Plan: a run spec and a cluster spec as one decision, with every path as the pods see it. Pure.

A run spec says nothing of places, so a relative path is a file here, which is shipped with the run where it is small,
and a relative output directory lies on the `outputs` volume. An absolute path must be on a volume that pods have.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from rankzero.errors import ConfigError, Problem
from rankzero.launch.kinds import Kind, kind_named
from rankzero.launch.labels import object_name
from rankzero.launch.node.settings import CONFIG_DIR, Mirror, NodeSettings
from rankzero.spec.cluster_spec import ClusterSpec, VolumeSpec
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.kinds import kind_meant, kind_section
from rankzero.spec.names import PLAIN_TEMPLATE
from rankzero.spec.process_groups import process_problems
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import DataSpec, EvalSpec, ModelSpec, RunSpec, SourceSpec, TrainSpec
from rankzero.spec.written import BY_NAME, Where

MOST_SHIPPED_BYTES = 720 * 1024
"""A ConfigMap holds 1 MiB, and files in it are base64: a third larger."""
GRACE_MARGIN_SECONDS = 10
"""Of the pod's grace period, kept for leaving after the processes are gone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that rendering needs."""

    run: RunSpec
    """Resolved; paths are those of the pods."""
    cluster: ClusterSpec
    kind: str
    """Name of its kind, never `auto`."""
    name: str
    """Name of the run's objects."""
    settings: NodeSettings
    config_dir: str = CONFIG_DIR
    """Where run.yaml, node.json and files/ are for the processes."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Shipped files by their path below files/."""
    prepare: bool = False
    """Whether a preparation goes first."""
    submitter: str = ""
    """Who submits it, as user@machine; empty where it is only rendered."""
    idle: bool = False
    """Its pods train nothing, and wait for commands."""
    where: Where = field(default=BY_NAME, compare=False, repr=False)
    """Where a field of the two specs was written."""

    @property
    def run_dir(self) -> str:
        """The directory of the run's name as pods see it."""
        return posixpath.join(self.run.output_dir, str(self.run.name))

    @property
    def known_run_dir(self) -> str | None:
        """The run directory. None with `resume: new`: only the pods know whether another setting has that one; and of a
        smoke test, which leaves no results."""
        return None if self.run.resume == "new" or self.settings.options.smoke is not None else self.run_dir


def make_plan(
    run: RunSpec,
    cluster: ClusterSpec,
    *,
    files: Mapping[str, bytes] | None = None,
    options: RunOptions | None = None,
    submitter: str = "",
    where: Where = BY_NAME,
    idle: bool = False,
    config_dir: str | None = None,
) -> Plan:
    """Decide everything, or raise ConfigError with every problem.

    With `idle` the pods wait for commands, and what `run` trains is not looked at; `config_dir` is where a pod that is
    there already gets the run's files. `run` is resolved. `files` are the contents of what it names by relative paths,
    by their shortest names (`ship.local_files`); `where` turns a field of the two specs into its place in their files.
    """
    options = options or RunOptions()
    name = object_name(str(run.name))
    kind = kind_named(kind_meant(cluster.kind))
    trains = options.smoke is None and not idle
    paths = _Paths(cluster, dict(files or {}), config_dir or kind.config_dir(cluster, name), where)
    inputs = _inputs_in_pods(run, paths) if trains else {}
    seen = run.model_copy(update={**inputs, "output_dir": paths.output_dir(run.output_dir)})
    problems = [*paths.problems, *_access_problems(cluster, where), *_size_problems(paths.files, where)]
    problems += _group_problems(run, cluster, where) if trains else []
    problems += [*_read_only_problems(cluster, where), *_preparation_problems(cluster, where)]
    if problems:
        raise ConfigError(problems)
    cache, prepare = cluster.storage.get("cache"), _prepares(cluster)
    return Plan(
        run=seen,
        cluster=cluster,
        kind=kind_meant(cluster.kind),
        name=name,
        settings=NodeSettings(
            run=name,
            num_nodes=cluster.num_nodes,
            min_nodes=cluster.min_nodes,
            nproc_per_node=cluster.nproc_per_node,
            grace_seconds=cluster.grace_period_seconds - GRACE_MARGIN_SECONDS,
            rendezvous_seconds=cluster.rendezvous_timeout_seconds,
            max_restarts=cluster.max_restarts if kind_section(cluster.kind).starts_again else 0,
            retry_exit_offset=kind.retry_exit_offset,
            rdma=cluster.resources.rdma is not None,
            park=kind.parks,
            prepared_marker=_prepared_marker(kind, cache, cluster.namespace, name) if prepare else None,
            mirrors=_mirrors(cluster) if trains else (),
            in_image=not _is_the_hosts(cluster),
            options=options,
        ),
        config_dir=config_dir or kind.config_dir(cluster, name),
        files=paths.files,
        prepare=prepare,
        submitter=submitter,
        idle=idle,
        where=where,
    )


def _prepares(cluster: ClusterSpec) -> bool:
    """Whether a preparation goes first."""
    cache = cluster.storage.get("cache")
    kept = cache is not None and is_kept(cache)
    return cluster.prepare == "always" or (cluster.prepare == "auto" and kept and _has_place_to_prepare(cluster))


def _preparation_problems(cluster: ClusterSpec, where: Where) -> list[Problem]:
    """Of the volume that it fills."""
    cache = cluster.storage.get("cache")
    if not _prepares(cluster):
        return []
    if cache is None or not is_kept(cache):
        hint = "add storage.cache with a claim or host_path, or leave prepare: auto"
        return [Problem("there is no volume to prepare into", where("cluster.prepare"), hint)]
    if not cache.is_read_only:
        return []
    hint = (
        "mount that volume under another name, such as storage.models, and name models by their path there;"
        " or prepare: never, where all that the run needs is in it"
    )
    return [Problem("what is fetched and prepared is written here", where(_read_only_field("cache", cache)), hint)]


def _read_only_problems(cluster: ClusterSpec, where: Where) -> list[Problem]:
    """Processes of hosts write what their user may write, whatever is said of a volume."""
    if not _is_the_hosts(cluster):
        return []
    hint = "leave it out where the directory's own rights keep it, or set slurm.runtime: apptainer or pyxis"
    return [
        Problem("without a container nothing keeps it from being written", where(_read_only_field(name, volume)), hint)
        for name, volume in cluster.storage.items()
        if volume.is_read_only
    ]


def _is_the_hosts(cluster: ClusterSpec) -> bool:
    """Whether processes are the hosts' own, with their software and rights, without a container."""
    return kind_section(cluster.kind).on_hosts and cluster.slurm.runtime == "none"


def _read_only_field(name: str, volume: VolumeSpec) -> str:
    return f"cluster.storage.{name}.{'read_only' if volume.read_only else 'access'}"


def _has_place_to_prepare(cluster: ClusterSpec) -> bool:
    """Without asking for GPUs. Which nodes of Slurm have none is known only where it is said."""
    return not kind_section(cluster.kind).on_hosts or cluster.slurm.prepare_partition is not None


def _prepared_marker(kind: Kind, cache: VolumeSpec | None, namespace: str, name: str) -> str | None:
    """What training pods wait for; None where something else has them wait. Namespaces may share a cache."""
    return None if kind.whole or cache is None else f"{cache.mount}/rankzero/prepared/{namespace}.{name}.json"


class _Paths:
    """What each path of a run spec is in the pods. Collects problems and the files to ship."""

    def __init__(self, cluster: ClusterSpec, files: dict[str, bytes], config_dir: str, where: Where) -> None:
        self._volumes = cluster.storage
        self._config_dir = config_dir
        self._available = files
        self._where = where
        self.files: dict[str, bytes] = {}
        self.problems: list[Problem] = []

    def data(self, text: str, field_name: str) -> str:
        """A data path: files, a pattern of them, a URL or a Hub data set, maybe a sample of it."""
        meant = parse_data_path(text, lambda path: bool(self._matching(path)))
        if meant.place != "local":
            return text
        sampled = "" if meant.sample is None else f"#{meant.sample}"
        return self.file(meant.path, field_name) + sampled

    def file(self, path: str, field_name: str) -> str:
        """A file, or a directory of files, that pods read."""
        if posixpath.isabs(path):
            self._must_be_mounted(path, field_name)
            return path
        return self.shipped(path, field_name) or self._missing(path, field_name)

    def shipped(self, path: str, field_name: str) -> str | None:
        """Where the pods find a local file or directory; None where there is none."""
        found = self._matching(path)
        if found and posixpath.normpath(path).startswith(".."):
            hint = "copy it below this directory, or put it on a volume: whoever reads the ConfigMap reads it"
            what = f"{path} is outside of this directory, and is not shipped"
            self.problems.append(Problem(what, self._where(field_name), hint))
            return path
        for name in found:
            self.files[inside_name(name)] = self._available[name]
        return posixpath.join(self._config_dir, "files", inside_name(path)) if found else None

    def _matching(self, path: str) -> list[str]:
        """Local files that are this path, lie in it, or match it as a pattern."""
        plain = posixpath.normpath(path)  # as the names are
        found = [name for name in self._available if name == plain or name.startswith(f"{plain}/")]
        return found or [name for name in self._available if fnmatchcase(name, plain)]

    def output_dir(self, path: str) -> str:
        """Where run directories are; on a volume that outlives the pods."""
        outputs = self._volumes.get("outputs")
        if not posixpath.isabs(path) and "://" not in path:
            if outputs is not None:
                inside = posixpath.normpath(posixpath.join(outputs.mount, path))
                if volume_of(inside, {"outputs": outputs}) is None:
                    hint = "it is relative to the outputs volume, and must stay on it"
                    self.problems.append(Problem(f"{path} leaves the volume", self._where("output_dir"), hint))
                return inside
            hint = "add storage.outputs: {mount: /outputs, claim: NAME}"
            self.problems.append(Problem("no volume keeps the results", self._where("cluster.storage.outputs"), hint))
            return path
        volume = volume_of(path, self._volumes)
        if "://" in path:
            hint = "set storage.outputs.url in cluster.yaml to copy checkpoints to an object store"
            self.problems.append(Problem("run directories are on a file system", self._where("output_dir"), hint))
        elif volume is None or volume.is_read_only or not (is_kept(volume) or _is_copied(volume, outputs)):
            hint = f"volumes are mounted at {self._mounts()}; a relative path is on the outputs volume"
            what = f"{path} is not on a volume that keeps what is written"
            self.problems.append(Problem(what, self._where("output_dir"), hint))
        return path

    def _must_be_mounted(self, path: str, field_name: str) -> None:
        if volume_of(path, self._volumes) is None:
            hint = f"volumes are mounted at {self._mounts()}; a small local file is shipped when its path is relative"
            self.problems.append(Problem(f"pods have nothing at {path}", self._where(field_name), hint))

    def _missing(self, path: str, field_name: str) -> str:
        hint = f"a relative path is a file here that is shipped; pods have volumes at {self._mounts()}"
        self.problems.append(Problem(f"no such file: {path}", self._where(field_name), hint))
        return path

    def _mounts(self) -> str:
        return ", ".join(sorted(volume.mount for volume in self._volumes.values())) or "no place yet (storage is empty)"


def inside_name(path: str) -> str:
    """A local relative path as one below files/: it cannot climb out."""
    parts = [("up" if part == ".." else part) for part in posixpath.normpath(path).split("/")]
    return "/".join(part for part in parts if part not in ("", "."))


def _inputs_in_pods(run: RunSpec, paths: _Paths) -> dict[str, object]:
    """The sections that name files (spec/local_paths.py), as pods see them."""
    return {
        "model": _model_in_pods(run.model, paths),
        "data": _data_in_pods(run.data, paths),
        "train": _train_in_pods(run.train, paths),
        "eval": _eval_in_pods(run.eval, paths),
    }


def _model_in_pods(model: ModelSpec, paths: _Paths) -> ModelSpec:
    changes: dict[str, str | None] = {}
    if model.local_dir is not None:
        changes["local_dir"] = paths.file(model.local_dir, "model.local_dir")
    elif posixpath.isabs(model.name):
        paths.file(model.name, "model.name")
    else:
        changes["name"] = paths.shipped(model.name, "model.name") or model.name  # else a Hub id
    if model.tokenizer_dir is not None:
        changes["tokenizer_dir"] = paths.file(model.tokenizer_dir, "model.tokenizer_dir")
    return model.model_copy(update=changes)


def _data_in_pods(data: DataSpec, paths: _Paths) -> DataSpec:
    def sources(value: object, field_name: str) -> object:
        if isinstance(value, str):
            return paths.data(value, field_name)
        if isinstance(value, tuple):
            return tuple(
                _source_in_pods(source, f"{field_name}[{index}]", paths)
                for index, source in enumerate(value)
                if isinstance(source, SourceSpec)
            )
        return value

    changes = {"train": sources(data.train, "data.train"), "eval": sources(data.eval, "data.eval")}
    if data.chat_template is not None and data.chat_template != PLAIN_TEMPLATE:
        changes["chat_template"] = paths.file(data.chat_template, "data.chat_template")
    return data.model_copy(update=changes)


def _source_in_pods(source: SourceSpec, field_name: str, paths: _Paths) -> SourceSpec:
    changes = {"path": paths.data(source.path, f"{field_name}.path")}
    if source.image_root is not None:
        changes["image_root"] = paths.file(source.image_root, f"{field_name}.image_root")
    return source.model_copy(update=changes)


def _train_in_pods(train: TrainSpec, paths: _Paths) -> TrainSpec:
    if train.deepspeed is None:
        return train
    return train.model_copy(update={"deepspeed": paths.file(train.deepspeed, "train.deepspeed")})


def _eval_in_pods(asked: EvalSpec, paths: _Paths) -> EvalSpec:
    if not isinstance(asked.prompts, str):
        return asked
    return asked.model_copy(update={"prompts": paths.data(asked.prompts, "eval.prompts")})


def volume_of(path: str, volumes: Mapping[str, VolumeSpec]) -> VolumeSpec | None:
    """The volume that a path of the pods is on: the one with the longest mount."""
    holding = [
        volume
        for volume in volumes.values()
        if f"{posixpath.normpath(path)}/".startswith(f"{posixpath.normpath(volume.mount)}/")
    ]
    return max(holding, key=lambda volume: len(volume.mount), default=None)


def is_kept(volume: VolumeSpec) -> bool:
    """Whether what is written outlives the pod, for others to read. A url alone fills a directory of each pod's own."""
    return volume.claim is not None or volume.host_path is not None


def _is_copied(volume: VolumeSpec, outputs: VolumeSpec | None) -> bool:
    """Whether what is written is copied to an object store: only what `outputs` has."""
    return volume is outputs and volume.url is not None


def _access_problems(cluster: ClusterSpec, where: Where) -> list[Problem]:
    if cluster.num_nodes == 1 or kind_section(cluster.kind).on_this_machine:
        return []
    outputs = cluster.storage.get("outputs")
    problems = []
    if outputs is not None and not is_kept(outputs):
        hint = "give storage.outputs a claim or host_path that all nodes mount; its url then keeps a copy"
        problems.append(Problem("several nodes need one volume for results", where("cluster.storage.outputs"), hint))
    what = f"ReadWriteOnce can be mounted on one host at a time, and num_nodes is {cluster.num_nodes}"
    hint = "use a storage class with ReadWriteMany, or leave the claim out: each pod then has a scratch directory"
    return problems + [
        Problem(what, where(f"cluster.storage.{name}.access"), hint)
        for name, volume in cluster.storage.items()
        if volume.claim is not None and volume.access == "ReadWriteOnce"
    ]


def _group_problems(run: RunSpec, cluster: ClusterSpec, where: Where) -> list[Problem]:
    """Of the first number of nodes, from the least that may train, whose processes cannot be grouped."""
    for nodes in range(cluster.min_nodes or cluster.num_nodes, cluster.num_nodes + 1):
        if problems := process_problems(run, nodes * cluster.nproc_per_node):
            return [Problem(problem.what, where(problem.where), problem.hint) for problem in problems]
    return []


def _size_problems(files: Mapping[str, bytes], where: Where) -> list[Problem]:
    total = sum(len(content) for content in files.values())
    if total <= MOST_SHIPPED_BYTES:
        return []
    largest = max(files, key=lambda name: len(files[name]))
    what = f"{total:,} bytes of local files cannot be shipped with the run: {MOST_SHIPPED_BYTES:,} can"
    hint = f"put the largest, {largest}, on a volume of the pods, and give its absolute path there"
    return [Problem(what, where("data.train"), hint)]


def _mirrors(cluster: ClusterSpec) -> tuple[Mirror, ...]:
    return tuple(
        Mirror(url=volume.url, path=volume.mount, direction="upload" if name == "outputs" else "download")
        for name, volume in sorted(cluster.storage.items())
        if volume.url is not None
    )
