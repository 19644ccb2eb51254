"""What a pod is given: run.yaml and node.json in its ConfigMap, and fields of the former in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rankzero.errors import ConfigError
from rankzero.launch.node.code import this_code
from rankzero.launch.node.settings import SETTING_PREFIX, NodeSettings
from rankzero.run_dir.setting import settled
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec


def read_inputs(directory: Path, env: Mapping[str, str]) -> tuple[RunSpec, NodeSettings]:
    """Raises ConfigError where either cannot be read, or a field that the environment sets is wrong. Both were good
    where they were made, so where nothing else is set the first problem names what reads them here."""
    given = settings_in(env)
    try:
        spec = settled(resolve(load_run_spec(directory / "run.yaml", given, env={}).spec), in_pods=True)
    except ConfigError as error:
        if given:
            raise
        first, *others = error.problems
        raise ConfigError([replace(first, hint="; ".join(filter(None, (first.hint, _another())))), *others]) from error
    path = directory / "node.json"
    try:
        settings = NodeSettings.from_json(path.read_text(encoding="utf-8"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        what = f"the node settings cannot be read: {error}"
        raise ConfigError(what, where=str(path), hint=_another()) from error
    return spec, settings


def settings_in(env: Mapping[str, str]) -> list[str]:
    """What the environment sets, `key=value`, by the number of its variable."""
    numbers = [name.removeprefix(SETTING_PREFIX) for name in env if name.startswith(SETTING_PREFIX)]
    return [env[f"{SETTING_PREFIX}{number}"] for number in sorted(filter(str.isdigit, numbers), key=int)]


def _another() -> str:
    return (
        f"this image has {this_code()}: does `rankzero --version` say the same where the run was made? Else build the"
        " image from that version (make image)"
    )
