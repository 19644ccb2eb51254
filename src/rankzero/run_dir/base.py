"""Where the base of an adapter is: at the place that its run or itself says, or at another one that somebody names.
Loads nothing."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError
from rankzero.spec.nearby import dangling, near

if TYPE_CHECKING:
    from rankzero.spec.run_spec import ModelSpec
    from rankzero.spec.tasks import ModelUse


def at_place(model: ModelSpec, base: str) -> ModelSpec:
    """A base as a run has it, from another place. A tokenizer of the run's own choice stays where it still is."""
    own = model.tokenizer_dir
    kept = own if own is not None and os.path.isdir(own) else None
    return model.model_copy(update={"name": base, "revision": None, "local_dir": None, "tokenizer_dir": kept})


def require_base(model: ModelSpec, target: str, use: ModelUse) -> None:
    """Raise ConfigError where a base was at a path of this machine, and nothing is there any more."""
    place = os.path.expanduser(model.local_dir or model.name)
    is_path = model.local_dir is not None or place.startswith((".", "/")) or place.count("/") > 1
    if not is_path or os.path.exists(place):
        return
    hint = "say where it is now: --model DIR"
    if use == "classifies":
        merge = f"rankzero merge {shlex.quote(target)} -o DIR --model BASE"
        hint = f"make one model of both, which predict takes: {merge}"
    found = dangling(place) or (f"did you mean {close}?" if (close := near(place)) else "")
    hint = f"{hint}; {found}" if found else hint
    raise ConfigError(f"the base is not here any more: there is no {place}", where=target, hint=hint)
