"""What is installed, and what to install where it is not: the launcher alone has neither data nor training stack."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError

if TYPE_CHECKING:
    from rankzero.spec.run_spec import RunSpec

_DATA = ("orjson", "numpy", "pyarrow", "filelock", "jinja2", "fsspec", "huggingface_hub")
_TOKENIZER = ("tokenizers", "transformers")
_ENGINE = (*_DATA, *_TOKENIZER, "torch", "peft", "safetensors")


def require_data() -> None:
    """Raise ConfigError where rows cannot be read."""
    _require("data", _DATA)


def require_pages() -> None:
    """Raise ConfigError where no page can be made."""
    _require("data", ("jinja2",))


def require_tokenizer() -> None:
    """Raise ConfigError where tokens cannot be counted."""
    _require("train", (*_DATA, *_TOKENIZER))


def require_engine() -> None:
    """Raise ConfigError where only the launcher is installed."""
    _require("train", _ENGINE)


def require_packages(spec: RunSpec) -> None:
    """Raise ConfigError where the run cannot do without what is not installed. Of what only GPUs have a use for, the
    engine tells, which knows whether there is one."""
    from rankzero.spec.packages import packages_for

    missing = [one for one in packages_for(spec) if not one.gpus_only and not _is_there(one.module)]
    if missing:
        raise ConfigError([package.problem_here for package in missing])


def engine_is_there() -> bool:
    """Whether the training stack is installed."""
    return all(_is_there(name) for name in _ENGINE)


def require_sweep() -> None:
    """Raise ConfigError where nothing can be searched."""
    _require("sweep", ("optuna", "cmaes"))


def _require(extra: str, modules: tuple[str, ...]) -> None:
    missing = [name for name in modules if not _is_there(name)]
    if missing:
        hint = f"pip install 'rankzero[{extra}]'"
        raise ConfigError(f"this command needs what is not installed: {', '.join(missing)}", hint=hint)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # something stands in for it that is no module
        return False
