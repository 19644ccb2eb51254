"""What a run asks for and this pod lacks: packages of its image, and what trackers need. Said before GPUs compute.

Looks for packages and imports none.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from rankzero.errors import ConfigError, Problem
from rankzero.launch.node.client import Say
from rankzero.launch.node.settings import NodeSettings
from rankzero.persist.run_store import copy_url
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import is_finished, newest_manifest
from rankzero.spec.packages import packages_for
from rankzero.spec.run_spec import RunSpec
from rankzero.track.send import server_modules

DEFAULT_EXTRAS = ("train", "quantization", "vision", "serve")
"""Of docker/Dockerfile."""
TRACKER_EXTRAS = ("wandb", "mlflow", "trackio")
_S3 = ("s3", "s3a")
_OF_PIP = re.compile(r"pip install (?:'rankzero\[(\w+)\]'|([\w-]+))$")


def require_packages(spec: RunSpec, settings: NodeSettings) -> None:
    """Raise ConfigError where packages are missing that the run cannot do without. All pods have one image, so each
    finds by itself what the others find."""
    if _trains_nothing(spec, settings):
        return
    found = [*_missing_packages(spec), *_missing_stores(_store_urls(spec, settings))]
    if found:
        raise ConfigError(_mendable(found, spec, settings))


def require_trackers(spec: RunSpec, settings: NodeSettings, say: Say, *, knows_copies: bool) -> None:
    """Raise ConfigError where a tracker cannot work that the run is to have from its first step on. A run that goes on
    is only warned: nothing of it is lost.

    `knows_copies`: what an object store has of the run is here; else it may go on although nothing is.
    """
    if _trains_nothing(spec, settings):
        return
    found = [
        Problem(problem.what, f"tracking.{name}", problem.hint)
        for name, module in server_modules(spec.tracking).items()
        for problem in module.problems(os.environ)
    ]
    found = _mendable(found, spec, settings)
    goes_on = newest_manifest(_run_dir(spec)) is not None
    may_go_on = not knows_copies and _may_come(spec, settings)
    if found and not goes_on and not may_go_on:
        raise ConfigError(found)
    then = "the run goes on without it"
    if not goes_on:
        then += " if its store has it, and is refused else"
    for problem in found:
        say(f"warning: {problem.where}: {problem.what}; {then} ({problem.hint})")


def _may_come(spec: RunSpec, settings: NodeSettings) -> bool:
    """Whether an object store may have the run itself, not only its data or model."""
    root = _run_dir(spec).root
    return copy_url(spec) is not None or any(root.is_relative_to(mirror.path) for mirror in settings.mirrors)


def _trains_nothing(spec: RunSpec, settings: NodeSettings) -> bool:
    return settings.options.smoke is not None or is_finished(_run_dir(spec), spec)


def _run_dir(spec: RunSpec) -> RunDir:
    return RunDir(Path(spec.output_dir) / str(spec.name))


def _store_urls(spec: RunSpec, settings: NodeSettings) -> dict[str, str]:
    """Of all object stores that are read or written, each with the field that says it."""
    urls = {url: "output_url" for url in [copy_url(spec)] if url is not None}
    return {mirror.url: "storage" for mirror in settings.mirrors} | urls


def _missing_packages(spec: RunSpec) -> list[Problem]:
    return [package.problem for package in packages_for(spec) if find_spec(package.module) is None]


def _missing_stores(urls: dict[str, str]) -> list[Problem]:
    """Of the kinds of object stores that the run is copied to or comes from."""
    from fsspec.core import get_filesystem_class
    from fsspec.registry import known_implementations

    found = {}
    for url, field in urls.items():
        protocol = url.partition("://")[0]
        try:
            get_filesystem_class(protocol)
        except (ImportError, ValueError) as error:
            module = known_implementations.get(protocol, {"class": protocol})["class"].partition(".")[0]
            package = "'rankzero[s3]'" if protocol in _S3 else module
            found[protocol] = Problem(f"{protocol}:// cannot be opened: {error}", field, f"pip install {package}")
    return list(found.values())


def _mendable(problems: list[Problem], spec: RunSpec, settings: NodeSettings) -> list[Problem]:
    """Nothing is installed in pods: hints name the image that has all of it, and what the run has from this one."""
    if not settings.in_image:
        return problems
    image = f"make image EXTRAS={','.join(dict.fromkeys((*DEFAULT_EXTRAS, *_extras(spec, settings))))}"

    def hint(problem: Problem) -> str:
        found = _OF_PIP.fullmatch(problem.hint)
        if found is None:
            return problem.hint
        return f"`{image}`, and push it" if found[1] else f"an image made from this one, with `{problem.hint}`"

    return [Problem(problem.what, problem.where, hint(problem)) for problem in problems]


def _extras(spec: RunSpec, settings: NodeSettings) -> list[str]:
    """All that the spec asks for, whether they are here or not: an image is made with all of them at once."""
    packages = [_OF_PIP.fullmatch(package.problem.hint) for package in packages_for(spec)]
    trackers = [name for name in server_modules(spec.tracking) if name in TRACKER_EXTRAS]
    stores = ["s3" for url in _store_urls(spec, settings) if url.partition("://")[0] in _S3]
    return [*(found[1] for found in packages if found is not None and found[1]), *trackers, *stores]
