"""A run brought here from an object store, or from a cluster's volume. Knows no terminal."""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.api.places import place
from rankzero.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from rankzero.persist.pulling import Checkpoints, Only, Pulled
    from rankzero.persist.sources import Sought, Source
    from rankzero.spec.run_spec import RunSpec

Say = Callable[[str], None]


def _silent(_line: str) -> None:
    """Says nothing."""


def pull(
    run: str,
    url: str | None = None,
    *,
    cluster: str | None = None,
    output: str | os.PathLike[str] | None = None,
    checkpoints: Checkpoints = "none",
    only: Only | None = None,
    say: Say = _silent,
) -> Pulled:
    """Bring a run here, by its name or its run.yaml: to `output`, or runs/<name>.

    From `url` (s3://…, any that fsspec knows; of the run's directory or of the one that it is in), else from the
    `output_url` of its run.yaml, else from the outputs volume of the cluster that `cluster`, $RANKZERO_CLUSTER or
    ./cluster.yaml names, through a pod that reads it. A run.yaml brings what is where it says, or a run of its settings
    elsewhere; a name brings the run of this name. Raises as `persist.pulling.pull`, and UsageError, also for a URL and
    a cluster.
    """
    from rankzero.persist import pulling

    run = os.path.expanduser(run)
    wanted = _wanted(run, url, asks_cluster=cluster is not None)
    with _source(wanted, cluster, say) as (source, name):
        say(f"found in {source.where}")
        root = place(output) if output is not None else _root(run, name)
        return pulling.pull(source, root, say, checkpoints=checkpoints, only=only)


@dataclass(frozen=True, slots=True)
class _Wanted:
    names: tuple[str, ...]
    """That it may have, the likeliest first."""
    url: str | None
    given: _Given | None = None


@dataclass(frozen=True, slots=True)
class _Given:
    """The run.yaml that was given."""

    file: Path
    spec: RunSpec
    """As this machine trains it."""
    output_dir: str
    """As it is written."""


def _names(spec: RunSpec) -> tuple[str, ...]:
    """With `resume: new` it is beside another setting's run, where that was there first."""
    from rankzero.spec.diff import name_beside

    return (name_beside(spec), str(spec.name)) if spec.resume == "new" else (str(spec.name),)


def _root(run: str, name: str) -> Path:
    """Where it goes: where it is already, else runs/<name>."""
    from rankzero.run_dir.named import DEFAULT_OUTPUT

    here = _here(run)
    return here if here.name == name else Path(DEFAULT_OUTPUT) / name


def _here(run: str) -> Path:
    from rankzero.run_dir.named import DEFAULT_OUTPUT

    path = Path(run)
    return path if (path / "run.yaml").is_file() else Path(DEFAULT_OUTPUT) / path.name


def _wanted(run: str, url: str | None, *, asks_cluster: bool) -> _Wanted:
    """Which run, and from which store, where it is one."""
    from rankzero.spec.load import load_run_spec
    from rankzero.spec.local_paths import absolute
    from rankzero.spec.resolve import resolve

    if url is not None and asks_cluster:
        raise UsageError("a run comes from one place", where="--cluster", hint="leave out the URL, or the cluster")
    if url is not None and "://" not in url:
        raise UsageError(
            f"{url} is no URL", where="URL", hint="s3://bucket/prefix, gs://bucket/prefix, file:///directory"
        )
    path = Path(run)
    given = path.name.endswith((".yaml", ".yml"))
    if given and not path.is_file():
        raise ConfigError("there is no such file", where=run, hint="a run.yaml, or the name of a run")
    spec_file = path if given else _here(run) / "run.yaml"
    names: tuple[str, ...] = (path.name,)
    there, its = None, None
    if spec_file.is_file():
        loaded = load_run_spec(spec_file, env=os.environ if given else {})
        spec = resolve(loaded.spec)
        names, there = (str(spec.name),), spec.output_url
        if given:
            its = _Given(path, absolute(spec, loaded.base), os.path.expanduser(spec.output_dir))
        if its is not None and not asks_cluster:
            names = _names(its.spec)
    if url is None and not asks_cluster:
        url = there
    return _Wanted(names, url, its)


@contextmanager
def _source(wanted: _Wanted, cluster: str | None, say: Say) -> Iterator[tuple[Source, str]]:
    """The run there, and its name."""
    from rankzero.persist.pulling import tried
    from rankzero.persist.sources import CommandSource, ObjectSource

    def found_in(url: str, names: Sequence[str], sought: Sought | None) -> tuple[Source, str]:
        own = posixpath.basename(url.rstrip("/"))
        names = [own] if own in names else names  # it is most likely the run itself

        def find(name: str) -> Source:
            return ObjectSource.find(url, name, itself=name == names[-1], sought=sought)

        return _first(lambda name: tried(lambda: find(name), say), names)

    if wanted.url is not None:
        yield found_in(wanted.url, wanted.names, None if wanted.given is None else _at_url(wanted.given))
        return
    from rankzero.api.clusters import open_backend
    from rankzero.api.planning import cluster_from
    from rankzero.launch.render.reader import reader_pod
    from rankzero.spec.kinds import kind_section

    spec = cluster_from(cluster)
    outputs = spec.storage.get("outputs")
    on_hosts = kind_section(spec.kind).on_hosts
    kept = None if outputs is None else outputs.claim or outputs.host_path
    if outputs is None or not (kept or outputs.url):
        hint = "give the URL of an object store, or a cluster.yaml whose storage.outputs has a claim"
        raise ConfigError("no volume of this cluster keeps results", where="storage.outputs", hint=hint)
    names, sought = _in_pods(wanted, cluster, outputs.mount)
    if not kept:
        yield found_in(str(outputs.url), names, sought)
        return
    pod = reader_pod(spec, f"rankzero-pull-{uuid.uuid4().hex[:8]}")
    how = "" if on_hosts else f" by the pod {pod['metadata']['name']}"
    say(f"{names[-1]} is read from {kept}{how}")
    root = str(outputs.host_path) if on_hosts else outputs.mount  # hosts' directories are this machine's
    with open_backend(spec, say=say).reading(pod, say) as execute:

        def find(name: str) -> Source:
            return CommandSource.find(execute, root, name, kept, sought, cluster)

        yield _first(lambda name: tried(lambda: find(name), say), names)


def _first(find: Callable[[str], Source], names: Sequence[str]) -> tuple[Source, str]:
    """What is found by the first of these names. Raises as `find` does for the last one."""
    for name in names[:-1]:
        with suppress(ConfigError):
            return find(name), name
    return find(names[-1]), names[-1]


def _in_pods(wanted: _Wanted, cluster: str | None, mount: str) -> tuple[Sequence[str], Sought | None]:
    """Its names, and what tells it from others of them, by the spec that pods are given, whose paths are theirs."""
    from rankzero.api.planning import plan_of

    if wanted.given is None:
        return wanted.names, None
    names, spec, output_dir = wanted.names, wanted.given.spec, wanted.given.output_dir
    with suppress(ConfigError):  # it cannot be submitted now
        spec = plan_of(wanted.given.file, cluster).run
        names, output_dir = _names(spec), spec.output_dir
    return names, _sought(spec, posixpath.join(mount, output_dir), mount, is_sure=spec.resume != "new")


def _at_url(given: _Given) -> Sought:
    """What tells it from others of its name below a URL, which may be of the volume that it is on, or of what is there
    already: what lies where `output_dir` would be is not surely this run."""
    return _sought(given.spec, posixpath.join("/", given.output_dir), "/", is_sure=False)


def _sought(spec: RunSpec, output_dir: str, root: str, *, is_sure: bool) -> Sought:
    from rankzero.persist.pulling import is_run_of
    from rankzero.persist.sources import Sought

    inside = posixpath.relpath(output_dir, root)
    return Sought(None if inside.split("/")[0] == ".." else inside, is_sure, lambda text: is_run_of(spec, text))
