"""Serve what a run has made: one model in one directory under one name, made of adapter and base where it has both.

Knows no terminal.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.api.places import place
from rankzero.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from rankzero.launch.serving import Answer, Server
    from rankzero.run_dir.result import Result

READY_SECONDS = 1800.0
"""For loading a model."""
_OF_A_MODEL = ("config.json", "params.json", "adapter_config.json")
"""Any one of them is a model, or an adapter, to a server; the second is Mistral's own."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A server, and what has to be made before it can start."""

    server: Server
    adapter: Path | None
    """What is merged with its base into `server.model`; None: `weights` is a whole model."""
    weights: Path
    base: str | None = None
    """Where the adapter's base is, where somebody named it."""

    @property
    def is_prepared(self) -> bool:
        """Whether the model lies under its name already."""
        return self.server.model.exists()


def plan_serving(
    target: str,
    *,
    name: str | None = None,
    engine: str = "auto",
    host: str = "127.0.0.1",
    port: int = 8000,
    more: Sequence[str] = (),
    model: str | None = None,
) -> Serving:
    """How `target` (a run directory, an adapter's, or a model's) is served under `name`, by default the run's. `model`
    is an adapter's base, where that is not where the run or the adapter says.

    Reads the result, to see that it is what the run wrote. Raises ConfigError where there is no result, no server is
    installed, or others would reach one without the key that is meant for it, UsageError for a name or an engine that
    cannot be one, StorageError where weights are damaged.
    """
    from rankzero.api.results import require_a_base
    from rankzero.launch.serving import Server, choose_engine, require_key_asked, require_servable
    from rankzero.machine import cache_root
    from rankzero.run_dir.result import find_result

    called = name or _name_of(target)
    require_servable(called, engine)
    result = find_result(target, "writes", model=model)
    require_a_base(model, result, base=False)
    chosen = choose_engine(engine)
    require_key_asked(chosen, host)
    weights = result.adapter or place(str(result.model.local_dir or result.model.name))
    if not weights.is_dir():
        hint = "name a run, or a directory with a model; the servers fetch others by themselves"
        raise ConfigError("there is no such model on this machine", where=target, hint=hint)
    if not any((weights / name).is_file() for name in _OF_A_MODEL):  # else its server would say so, as one that fails
        hint = "name a run, its final/, or a directory with a model; of a checkpoint that is the model/ in it"
        raise ConfigError(f"there is no model here: {_OF_A_MODEL[0]} is missing", where=str(weights), hint=hint)
    server = Server(
        chosen,
        cache_root() / "served" / _state_of(weights, result) / called,
        called,
        host=host,
        port=port,
        template_kwargs=result.chat_template_kwargs,
        more=tuple(more),
        trust_remote_code=result.model.trust_remote_code,
    )
    return Serving(server, _adapter_of(target, result), Path(os.path.realpath(weights)), model)


def prepare(serving: Serving) -> None:
    """Put the model under the name that it is served by, if it is not there: merged, or as a link.

    Raises as `merge`; StorageError where the cache cannot be written.
    """
    from rankzero.api.results import merge
    from rankzero.cache.uses import use
    from rankzero.run_dir.atomic import storage_errors

    use(serving.server.model.parent)
    if serving.is_prepared:
        return
    try:
        if serving.adapter is not None:
            merge(str(serving.adapter), serving.server.model, model=serving.base)
            return
        with storage_errors(serving.server.model):
            serving.server.model.parent.mkdir(parents=True, exist_ok=True)
            serving.server.model.symlink_to(serving.weights)
    except (ConfigError, StorageError):
        if not serving.is_prepared:  # else another server has put the same there meanwhile
            raise


@contextmanager
def served(
    serving: Serving, *, seconds: float = READY_SECONDS, begun: Callable[[], None] = lambda: None
) -> Iterator[tuple[subprocess.Popen[bytes], Answer]]:
    """The running server's process, and what it said to a first request: it has really answered. `begun` is called when
    the model is there and the server is being started. Ended with the block.

    Raises ServiceError where the port is taken, the server ends, or it does not answer within `seconds`.
    """
    from rankzero.launch.serving import require_free, smoke, wait_until_ready
    from rankzero.launch.serving import serving as running

    require_free(serving.server.host, serving.server.port)
    prepare(serving)
    begun()
    with running(serving.server) as process:
        wait_until_ready(serving.server, process, seconds)
        yield process, smoke(serving.server)


def _name_of(target: str) -> str:
    from rankzero.run_dir.result import FINAL

    path = Path(os.path.realpath(place(target)))
    return path.parent.name if path.name == FINAL else path.name


def _adapter_of(target: str, result: Result) -> Path | None:
    """What `merge` is given: the run says all about its base, an adapter alone its name."""
    return None if result.adapter is None else Path(target)


def _state_of(weights: Path, result: Result) -> str:
    """Tells one state of a directory from the next, of an adapter with its base: a run that went on has another result
    under the same name. A base that its manifest knows by content is in it so, unless somebody has named one that
    is not known to be that."""
    facts = _files(weights)
    if result.adapter is not None:
        base = place(result.model.local_dir or result.model.name)
        if result.trained_on is not None and (not result.base_is_given or _is_trained(base, result)):
            facts.append(result.trained_on.fingerprint)
        elif base.exists():
            facts += _files(base)
        elif result.base_is_given:
            facts.append(result.model.name)
        facts += _used_with(result)
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _used_with(result: Result) -> list[str]:
    """What else decides what becomes of an adapter and its base: in how many bits that is; of a checkpoint, which has
    no tokenizer of its own, also the template and the images' tokens."""
    facts: list[str] = [result.model.quantization] if result.model.quantization != "none" else []
    if not result.own_tokenizer:
        template, limit = result.chat_template, result.image_max_tokens
        if template is not None:
            facts += _files(Path(template)) if os.path.isfile(template) else [template]
        facts += [] if limit is None else [str(limit)]
    return facts


def _is_trained(base: Path, result: Result) -> bool:
    """Whether a base that was named is known to be the one that was trained on: none of the Hub is fetched to know."""
    from rankzero.model.source import is_trained_base, locate

    return base.is_dir() and is_trained_base(locate(result.model), result.trained_on) is True


def _files(place: Path) -> list[str]:
    """Where a directory is, and name, size and time of each file in it, or of the one file that it is."""
    facts = [os.path.realpath(place)]
    for path in sorted(place.iterdir()) if place.is_dir() else [place]:
        about = path.stat()
        facts.append(f"{path.name} {about.st_size} {about.st_mtime_ns}")
    return facts
