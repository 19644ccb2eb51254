"""Files of a run directory as somebody may have left them: missing, cut off, of another version. Knows not what they
mean.

What is missing is nothing. What is there and cannot be read is noted, and said on the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml


class Reader:
    """Reads files of one run directory, without secrets, and keeps what could not be read.

    They are taken out here, before anything is cut or put in other words, in which they would not be known again.
    """

    def __init__(self, root: Path, redact: Callable[[str], str] = str) -> None:
        self.root = root
        self.unread: list[str] = []
        self._redact = redact
        self._known = lru_cache(maxsize=4096)(redact)
        """For names: of a long run each comes once a step."""

    def text(self, path: Path) -> str:
        """The whole file; empty where there is none."""
        return self._redact(self._text(path))

    def _text(self, path: Path) -> str:
        try:
            if path.exists() and not path.is_file():  # a device or a pipe may never end
                raise OSError("it is no file")
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            self._note(path, error.strerror or str(error))
            return ""

    def object(self, path: Path) -> dict[str, Any]:
        """A JSON file with one object."""
        return self._object(path, json.loads)

    def yaml(self, path: Path) -> dict[str, Any]:
        """A YAML file with one mapping."""
        return self._object(path, yaml.safe_load)

    def lines(self, path: Path) -> Iterator[dict[str, Any]]:
        """The objects of a file with one in each line. A last line that was cut off is passed over in silence: it is
        being written, or its writer was killed."""
        damaged = 0
        text = self._text(path)
        *whole, rest = text.split("\n")
        for line in (*whole, rest):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                damaged += line is not rest
                continue
            if isinstance(value, dict):
                yield self._clean(value)
            else:
                damaged += 1
        if damaged:
            self._note(path, f"{damaged} of its lines cannot be read")

    def _object(self, path: Path, parse: Any) -> dict[str, Any]:
        text = self._text(path)
        try:
            value = parse(text) if text.strip() else {}
        except (ValueError, RecursionError, yaml.YAMLError):
            value = None
        if isinstance(value, dict):
            cleaned: dict[str, Any] = self._clean(value)
            return cleaned
        self._note(path, "it is not what rankzero wrote")
        return {}

    def _clean(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._known(str(name)): self._clean(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._clean(one) for one in value]
        return self._redact(value) if isinstance(value, str) else value

    def _note(self, path: Path, why: str) -> None:
        self.unread.append(f"{path.relative_to(self.root)}: {why}")


_TOO_LARGE = 1e300


def number(values: Mapping[str, Any], name: str) -> float | None:
    """A finite number under this name; None where there is none."""
    return as_number(values.get(name))


def as_number(value: object) -> float | None:
    """A finite number that can be reckoned with; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < _TOO_LARGE else None


def inner(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object under this name; an empty one where there is none."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`train.max_steps`, 10: every value of nested objects that is none itself."""
    for key, one in value.items():
        if isinstance(one, dict) and one:
            yield from leaves(one, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", one
