"""A run brought here from an object store, or from a cluster's volume. Knows no terminal."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from rankzero.persist.pulling import Checkpoints, Only, Pulled
    from rankzero.persist.sources import Source

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
    ./cluster.yaml names, through a pod that reads it. Raises as `persist.pulling.pull`, and UsageError.
    """
    from rankzero.persist import pulling

    wanted = _wanted(run, url, output, asks_cluster=cluster is not None)
    with _source(wanted, cluster, say) as source:
        return pulling.pull(source, wanted.root, say, checkpoints=checkpoints, only=only)


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    root: Path
    url: str | None


def _wanted(run: str, url: str | None, output: str | os.PathLike[str] | None, *, asks_cluster: bool) -> _Wanted:
    """Which run, to where, and from which store, where it is one."""
    from rankzero.run_dir.result import DEFAULT_OUTPUT
    from rankzero.spec.load import load_run_spec
    from rankzero.spec.resolve import resolve

    if url is not None and "://" not in url:
        raise UsageError(
            f"{url} is no URL", where="URL", hint="s3://bucket/prefix, gs://bucket/prefix, file:///directory"
        )
    path = Path(run)
    given = path.name.endswith((".yaml", ".yml"))
    here = path if (path / "run.yaml").is_file() else Path(DEFAULT_OUTPUT) / path.name
    spec_file = path if given else here / "run.yaml"
    if given and not path.is_file():
        raise ConfigError("there is no such file", where=run, hint="a run.yaml, or the name of a run")
    name, there = path.name, None
    if spec_file.is_file():
        spec = resolve(load_run_spec(spec_file, env=os.environ if given else {}).spec)
        name, there = str(spec.name), spec.output_url
    root = Path(output) if output is not None else here if here.name == name else Path(DEFAULT_OUTPUT) / name
    if url is None and there is not None and not asks_cluster:
        url = f"{there.rstrip('/')}/{name}"
    return _Wanted(name, root, url)


@contextmanager
def _source(wanted: _Wanted, cluster: str | None, say: Say) -> Iterator[Source]:
    from rankzero.persist.pulling import tried
    from rankzero.persist.sources import CommandSource, ObjectSource

    def found_in(url: str) -> Source:
        return tried(lambda: ObjectSource.find(url, wanted.name), say)

    if wanted.url is not None:
        yield found_in(wanted.url)
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
    if not kept:
        yield found_in(str(outputs.url))
        return
    pod = reader_pod(spec, f"rankzero-pull-{uuid.uuid4().hex[:8]}")
    how = "" if on_hosts else f" by the pod {pod['metadata']['name']}"
    say(f"{wanted.name} is read from {kept}{how}")
    root = str(outputs.host_path) if on_hosts else outputs.mount  # hosts' directories are this machine's
    with open_backend(spec, say=say).reading(pod, say) as execute:
        yield tried(lambda: CommandSource.find(execute, root, wanted.name, f"{kept}:"), say)
