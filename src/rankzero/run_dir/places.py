"""Where the files are that a run was made of, where they are not at the places of its spec: its directory was moved or
copied to another machine, or somebody says where the base is now. Loads nothing."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError
from rankzero.run_dir.paths import has_tokenizer
from rankzero.spec.local_paths import PathField, is_gone, is_there, local_part, with_paths
from rankzero.spec.names import PLAIN_TEMPLATE
from rankzero.spec.nearby import dangling, near

if TYPE_CHECKING:
    from rankzero.spec.run_spec import ModelSpec, RunSpec


def as_from_here(spec: RunSpec, root: Path) -> RunSpec:
    """The spec of the run in this directory, whose paths are absolute: where one of them is gone, and the directory has
    moved, what lies now as that lay from the directory has moved along. As the directory is named here, else as it
    lies: `runs` may be a link to another volume."""
    before, now = os.path.join(spec.output_dir, str(spec.name)), [os.path.abspath(root), os.path.realpath(root)]
    if os.path.realpath(before) == now[-1]:
        return spec

    def change(field: PathField) -> str:
        part = local_part(field, root)
        if part is None or field.kind == "output" or not os.path.isabs(part.path) or not is_gone(part.path):
            return field.text
        forms: list[Callable[[str], str]] = [str]
        if field.kind == "data" and glob.has_magic(part.path):  # a pattern, or a name that looks like one
            forms.insert(0, glob.escape)
        for here, form in product(now, forms):
            moved = os.path.normpath(os.path.join(form(here), os.path.relpath(part.path, form(before))))
            if is_there(moved):
                return moved + part.rest
        return field.text

    return with_paths(spec, change)


def with_own_tokenizer(spec: RunSpec, final: Path) -> RunSpec:
    """The spec with the tokenizer and the chat template of the run's result, where it names others that are gone."""
    tokenizer, template = spec.model.tokenizer_dir, spec.data.chat_template
    own = final / "chat_template.jinja"
    if tokenizer is not None and not os.path.isdir(tokenizer) and has_tokenizer(final):
        model = spec.model.model_copy(update={"tokenizer_dir": str(final)})
        spec = spec.model_copy(update={"model": model})
    if template not in (None, PLAIN_TEMPLATE) and not os.path.isfile(str(template)) and own.is_file():
        spec = spec.model_copy(update={"data": spec.data.model_copy(update={"chat_template": str(own)})})
    return spec


def at_place(model: ModelSpec, base: str, target: str) -> ModelSpec:
    """A base as a run has it, from another place, with the tokenizer of the run's own choice. Raises ConfigError where
    that is gone: the base's may make other tokens."""
    own = model.tokenizer_dir
    if own is not None and not os.path.isdir(own):
        what = f"the tokenizer that the run was trained with is not here any more: there is no {own}"
        hint = "bring it back, or say in run.yaml where it is now: model.tokenizer_dir"
        raise ConfigError(what, where=target, hint=hint)
    return model.model_copy(update={"name": os.path.expanduser(base), "revision": None, "local_dir": None})


def require_base(model: ModelSpec, target: str, gguf: str | None = None) -> None:
    """Raise ConfigError where a base was at a path of this machine, and nothing is there any more. `gguf`: the file
    that it was made of, in the cache, which may be pruned."""
    place = os.path.expanduser(model.local_dir or model.name)
    is_path = model.local_dir is not None or place.startswith((".", "/")) or place.count("/") > 1
    if not is_path or not is_gone(place):
        return
    if gguf is not None and gguf != place:
        file = shlex.quote(gguf if is_there(gguf) else Path(gguf).name)
        hint = f"it was made of a GGUF file, and is made again by --model {file}"
        raise ConfigError(f"the base is not here any more: there is no {place}", where=target, hint=hint)
    hint = "say where it is now: --model DIR"
    found = dangling(place) or (f"did you mean {close}?" if (close := near(place)) else "")
    hint = f"{hint}; {found}" if found else hint
    raise ConfigError(f"the base is not here any more: there is no {place}", where=target, hint=hint)
