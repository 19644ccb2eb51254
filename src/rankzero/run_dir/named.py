"""Which run, or model here, a word or a path means; and what to say where it means none. Knows nothing of what a run
has made."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path

from rankzero.errors import ConfigError
from rankzero.run_dir.intact import WEIGHTS
from rankzero.run_dir.known import DEFAULT_OUTPUT as DEFAULT_OUTPUT
from rankzero.run_dir.known import is_run, run_meant
from rankzero.spec.nearby import near

_SHOWN = 5


def require_target(target: str) -> None:
    """Raise ConfigError where a target was meant to be something here, and is not, before the Hub is asked for it.

    `runs/nope` has the shape of a Hub id; where `runs` holds runs it is a run that does not exist.
    """
    path = Path(os.path.expanduser(target))
    if path.is_file() and path.suffix != ".gguf":
        raise ConfigError("this is a file, not a run or a model", where=target, hint=_choices(path.parent))
    if path.exists():
        if runs := runs_in(path):
            raise ConfigError("this holds runs, and is none itself", where=target, hint=f"name one: {_listed(runs)}")
        if (path / "trainer.json").is_file() and (path / WEIGHTS).is_dir():
            inside = os.path.join(target, WEIGHTS)
            export = f"`rankzero export {shlex.quote(inside)}` makes a model"
            hint = f"its weights are in {inside}; of a full fine-tune {export}"
            raise ConfigError("this is the whole of a checkpoint", where=target, hint=hint)
        return
    is_path = target.startswith((".", "/", "~")) or target.count("/") > 1
    if is_path or ("/" in target and runs_in(path.parent)):
        close = near(path)
        hint = f"did you mean {close}?" if close else _choices(path.parent)
        raise ConfigError("there is no such run", where=target, hint=hint)
    if "/" not in target and (Path(DEFAULT_OUTPUT) / target / "run.yaml").is_file():
        hint = f"did you mean {DEFAULT_OUTPUT}/{target}?"
        raise ConfigError("there is no such directory", where=target, hint=hint)


def require_here(path: Path) -> None:
    """As `require_target`, of what can be no model of the Hub."""
    require_target(str(path))
    if not path.exists():
        close = run_meant(str(path))
        hint = f"did you mean {close}?" if close else _choices(path.parent)
        raise ConfigError("there is no such directory", where=str(path), hint=hint)


def untrained(directory: Path) -> ConfigError:
    """Of a directory with the run.yaml that somebody trains with."""
    runs = runs_in(directory / DEFAULT_OUTPUT)
    hint = f"name one of its runs: {_listed(runs)}" if runs else "its runs are in the output_dir that run.yaml says"
    return ConfigError("this is no run directory: of a run it has run.yaml alone", where=str(directory), hint=hint)


def named_run(target: str) -> str:
    """`runs/my-run` for the name of a run in ./runs, where nothing here is called so; else `target` as it is."""
    in_runs = Path(DEFAULT_OUTPUT) / target
    is_name = "/" not in target and not Path(target).exists()
    return str(in_runs) if is_name and (in_runs / "run.yaml").is_file() else target


def runs_in(directory: Path) -> list[str]:
    """The run directories in a directory, the latest first. None where it cannot be read; one that may not be looked
    into (lost+found), or goes meanwhile, is left out."""
    try:
        entries = list(directory.iterdir())
    except OSError:
        return []
    found: dict[str, float] = {}
    for entry in entries:
        with suppress(OSError):
            if is_run(entry):
                found[str(entry)] = entry.stat().st_mtime
    return sorted(found, key=found.__getitem__, reverse=True)


def _choices(directory: Path) -> str:
    runs = runs_in(directory) or runs_in(Path(DEFAULT_OUTPUT))
    return f"there are {_listed(runs)}" if runs else "give a run directory, a model's directory, or a Hub id"


def _listed(runs: list[str]) -> str:
    return ", ".join(runs[:_SHOWN]) + (" …" if len(runs) > _SHOWN else "")
