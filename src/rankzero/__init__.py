"""rankzero: fine-tune language models from one run spec. Holds the version and names what is public.

Importing this costs next to nothing: each name is looked for where it lies when it is first used, and torch is
imported by what computes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankzero import data as data
    from rankzero.api.clusters import ClusterRun as ClusterRun
    from rankzero.api.clusters import status as status
    from rankzero.api.clusters import submit as submit
    from rankzero.api.evaluation import evaluate as evaluate
    from rankzero.api.exports import export as export
    from rankzero.api.exports import export_gguf as export_gguf
    from rankzero.api.exports import push as push
    from rankzero.api.forecasts import dry_run as dry_run
    from rankzero.api.forecasts import plan as plan
    from rankzero.api.results import chat as chat
    from rankzero.api.results import generate as generate
    from rankzero.api.runs import Run as Run
    from rankzero.api.specs import load_spec as load_spec
    from rankzero.api.training import train as train
    from rankzero.errors import AccessError as AccessError
    from rankzero.errors import ConfigError as ConfigError
    from rankzero.errors import DataError as DataError
    from rankzero.errors import NonFiniteError as NonFiniteError
    from rankzero.errors import PeerLostError as PeerLostError
    from rankzero.errors import RankzeroError as RankzeroError
    from rankzero.errors import ServiceError as ServiceError
    from rankzero.errors import StoppedError as StoppedError
    from rankzero.errors import StorageError as StorageError
    from rankzero.errors import UsageError as UsageError
    from rankzero.spec.run_options import RunOptions as RunOptions
    from rankzero.spec.run_spec import RunSpec as RunSpec
    from rankzero.spec.sampling import Sampling as Sampling

__version__ = "0.1.0"

_ERRORS = (
    *("AccessError", "ConfigError", "DataError", "NonFiniteError", "PeerLostError", "RankzeroError"),
    *("ServiceError", "StoppedError", "StorageError", "UsageError"),
)
_PUBLIC = {
    "ClusterRun": "rankzero.api.clusters",
    "Run": "rankzero.api.runs",
    "RunOptions": "rankzero.spec.run_options",
    "RunSpec": "rankzero.spec.run_spec",
    "Sampling": "rankzero.spec.sampling",
    "chat": "rankzero.api.results",
    "evaluate": "rankzero.api.evaluation",
    "dry_run": "rankzero.api.forecasts",
    "export": "rankzero.api.exports",
    "export_gguf": "rankzero.api.exports",
    "generate": "rankzero.api.results",
    "load_spec": "rankzero.api.specs",
    "plan": "rankzero.api.forecasts",
    "push": "rankzero.api.exports",
    "status": "rankzero.api.clusters",
    "submit": "rankzero.api.clusters",
    "train": "rankzero.api.training",
    **dict.fromkeys(_ERRORS, "rankzero.errors"),
}
"""Names and their modules, as text: what every module imports must not itself be seen to import everything."""

__all__ = ["__version__", "data", *_PUBLIC]


if not TYPE_CHECKING:  # where any name would be there, a slip too

    def __getattr__(name: str) -> Any:
        if name == "data":
            return importlib.import_module("rankzero.data")
        if name in _PUBLIC:
            return getattr(importlib.import_module(_PUBLIC[name]), name)
        raise AttributeError(f"module 'rankzero' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is public, not what this module imports for itself."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
