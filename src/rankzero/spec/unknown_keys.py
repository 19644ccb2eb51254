"""What the writer of an unknown key may have meant. Knows the models and a rename table, not the file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from rankzero.spec.fields import all_fields, keys_of, sections_at
from rankzero.spec.renames import Rename, normalised
from rankzero.spec.yaml_tree import KeyPath, dotted

_MOST_FIELDS_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Guess:
    """A hint, and the field that was probably meant ("" where there is none)."""

    hint: str
    field: str = ""


def guess(model: type[BaseModel], path: KeyPath, renames: Mapping[str, Rename]) -> Guess:
    """The likeliest meaning of the unknown key at the end of `path`.

    In this order: the same name in another section, another tool's name, a slip in this section's names, a slip in
    any name; failing all, the names that this section has.
    """
    key = normalised(str(path[-1]))
    everywhere = list(all_fields(model))
    namesakes = [field for field in everywhere if _leaf(field) == key]
    if namesakes:
        return Guess(f"did you mean {_listed(namesakes)}?", namesakes[0] if len(namesakes) == 1 else "")
    if key in renames:
        return Guess(renames[key].hint, renames[key].field)
    section = dotted(path[:-1])
    prefix = f"{section}." if section else ""
    siblings = {name: f"{prefix}{name}" for model_here in sections_at(model, path[:-1]) for name in keys_of(model_here)}
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.6)
    if close:
        return Guess(f"did you mean {siblings[close[0]]}?", siblings[close[0]])
    leaves = {_leaf(field): field for field in reversed(everywhere)}
    close = difflib.get_close_matches(key, leaves, n=1, cutoff=0.8)
    if close:
        return Guess(f"did you mean {leaves[close[0]]}?", leaves[close[0]])
    shown = list(siblings)[:_MOST_FIELDS_SHOWN]
    more = ", …" if len(siblings) > len(shown) else ""
    return Guess(f"{section or 'the top level'} has {', '.join(shown)}{more}")


def _leaf(field: str) -> str:
    return field.rpartition(".")[2]


def _listed(names: list[str]) -> str:
    at_top = [f"{name} (at the top level)" if "." not in name else name for name in names]
    return " or ".join(at_top)
