"""What was made for an infra.yaml, in a file beside it, so that nothing else is ever deleted. Names and ids, no secret.

That something is about to be made is written down before it is asked for: what a program made, and did not live to
say, is then known to be ours.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rankzero.errors import StorageError
from rankzero.run_dir.atomic import storage_errors, write_text


@dataclass(frozen=True, slots=True)
class Made:
    """One thing."""

    name: str
    id: str = ""
    """Empty: it was asked for, and whether it was made nobody has said."""
    others: tuple[str, ...] = ()
    """What there was of its kind before, where its own name is only known from what is new."""


class Record:
    """The file."""

    def __init__(self, infra: Path) -> None:
        self.path = infra.with_name(f"{infra.stem}.made.json")
        self._made: dict[str, Made] = {}
        try:
            text = self.path.read_text(encoding="utf-8")
            self._made = {
                kind: Made(one["name"], one["id"], tuple(one["others"])) for kind, one in json.loads(text).items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            hint = "it says what may be deleted; put it back, or move it away: then nothing that is there is ours"
            raise StorageError(f"it cannot be read: {error}", where=str(self.path), hint=hint) from error

    def of(self, kind: str, name: str) -> Made | None:
        """What was made of this kind, under this name."""
        made = self._made.get(kind)
        return made if made is not None and made.name == name else None

    def put(self, kind: str, name: str, id: str = "", others: tuple[str, ...] = ()) -> None:
        """Before it is made, and after. Raises StorageError."""
        self._made[kind] = Made(name, id, others)
        self._write()

    def drop(self, kind: str) -> None:
        """It is gone."""
        if self._made.pop(kind, None) is not None:
            self._write()

    def _write(self) -> None:
        with storage_errors(self.path):
            if self._made:
                text = json.dumps({kind: asdict(one) for kind, one in self._made.items()}, indent=1)
                write_text(self.path, text + "\n")
            else:
                self.path.unlink(missing_ok=True)
