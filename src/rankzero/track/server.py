"""What a tracker on a server is asked to do. Knows no tracker, and neither who calls it nor when.

All of it is called in a process of its own (`send.py`), so that a server may be slow, dead or wrong. What fails raises
whatever it likes: it is tried again later. Where that is no NoAnswerError, ConnectionError or TimeoutError, and the
server lets the run begin again, it has refused this kind alone, and is given the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rankzero.errors import Problem, ServiceError
from rankzero.redaction import without_secrets
from rankzero.run_dir.goodput import Ending
from rankzero.run_dir.paths import RunDir

Kind = Literal["metrics", "samples", "saves", "system"]
Setting = str | float | bool | None
"""A whole number among them."""
Row = dict[str, Any]
"""An object of a JSON-lines file of the run directory: `step` counts up from row to row, `time` is in Unix seconds. Of
samples, all of a step are one row: `samples` has them."""
_LOGIN = re.compile(r"(?<=://)(?!/)[^\s'\"`]*@")
"""Of a URL: who asks, and by which password or token, which may be written there as it is, with slashes."""
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:@\[\]]+)(?::\d*)?")
NOT_PLOTTED = frozenset({"step", "time", "epoch"})


class NoAnswerError(ServiceError):
    """There is no server: nothing else would be answered either."""


class LostRunError(Exception):
    """The server is there, and says that it has no such run."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a tracker is told of the run before its numbers. `settings` are the spec's by their dotted names."""

    name: str
    directory: RunDir
    settings: Mapping[str, Setting]


def without_login(text: str) -> str:
    """A text as it may be shown and kept: its addresses without logins, and without what else looks like a secret."""
    return without_secrets(_LOGIN.sub("", text))


def no_address(variable: str, env: Mapping[str, str]) -> list[Problem]:
    """Where no client can read what a variable has: each would say so with a piece of the password."""
    scheme, _, rest = env.get(variable, "").partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    if not scheme.startswith("http") or "@" not in rest or "@" in host or _HOST.fullmatch(host):
        return []
    hint = "write a / in it as %2F, a ? as %3F and a # as %23"
    return [Problem(f"{variable} is no address: its password has a character that ends the host", hint=hint)]


def place_of(project: str, where: str) -> str:
    """A server's `place`: what of which server, whoever asks it."""
    return without_login(f"{project} in {where}")


class Server(Protocol):
    """A run on a tracker's server."""

    link: str
    """Where a person looks at it."""
    place: str
    """Which server it is and what of it, without secrets: at another place nothing of the run is known."""

    def begin(self, run: RunFacts, key: str, there: str | None) -> str:
        """Make the run there, or find it again: by the name `there` that an earlier call has returned, or, where that
        call was cut off, by `key`, which is this run's own and in every call the same. Raises LostRunError where
        nothing is there by that name; a server that cannot say so gets the rest of the run."""
        ...

    def send_settings(self, run: RunFacts) -> None:
        """Those that `begin` did not send. Repeatable; refused, they keep nothing else away."""
        ...

    def known(self, kind: Kind, rows: Sequence[Row]) -> set[tuple[int, str]]:
        """Which (step, name) of rows the server has already. Asked after a request that was not answered."""
        ...

    def send(self, kind: Kind, rows: Sequence[Row]) -> None:
        """Return when the server has accepted them all."""
        ...

    def end(self, ended: Ending | None) -> None:
        """How the last start ended (None: it runs, or was killed), with the result where there is one. Repeatable."""
        ...

    def close(self, ended: Ending | None) -> None:
        """Nothing more is sent of how the last start ended (as told to `end`, by this process or an earlier one; None:
        it was killed), until the run goes on. Return when the server has what was accepted for it."""
        ...


def numbers(row: Row) -> dict[str, float]:
    """What of a row is plotted; what was not finite is null there, and NaN here."""
    kept = {name: value for name, value in row.items() if name not in NOT_PLOTTED}
    return {
        name: float("nan") if value is None else float(value)
        for name, value in kept.items()
        if value is None or isinstance(value, (int, float))
    }


def shown(rows: Iterable[Row], redact: Callable[[str], str]) -> Iterator[Row]:
    """Answers without secrets: whatever a model was asked, and wrote."""

    def clean(sample: Row) -> Row:
        return {name: redact(value) if isinstance(value, str) else value for name, value in sample.items()}

    return ({**row, "samples": [clean(sample) for sample in row["samples"]]} for row in rows)
