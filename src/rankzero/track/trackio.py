"""Trackio: numbers, how busy the machine is, and answers as tables. Knows no engine.

Where it is says TRACKIO_SERVER_URL, a server that `trackio show` or a program of yours runs, with TRACKIO_WRITE_TOKEN;
without it, Trackio's own SQLite files on this machine (TRACKIO_DIR). TRACKIO_PROJECT names the project. Each row has an
id that is made from the run's key, and Trackio keeps one row of an id.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from rankzero.errors import ConfigError, Problem, ServiceError
from rankzero.run_dir.goodput import Ending
from rankzero.run_dir.paths import RunDir
from rankzero.track.protocol import plotted_as
from rankzero.track.server import Kind, NoAnswerError, Row, RunFacts, no_address, numbers, place_of, without_login

WANTS_SYSTEM = True
PROJECT = "rankzero"
URL, TOKEN, PROJECT_VARIABLE, SPACE = "TRACKIO_SERVER_URL", "TRACKIO_WRITE_TOKEN", "TRACKIO_PROJECT", "TRACKIO_SPACE_ID"
DIRECTORY = "TRACKIO_DIR"
TIMEOUT_SECONDS = 30.0

Entry = dict[str, Any]
Store = Callable[[str, list[Entry]], None]
"""Keeps entries by `bulk_log` or `bulk_log_system`; returns when they are kept."""


def problems(env: Mapping[str, str]) -> list[Problem]:
    """What is missing here before anything could be sent."""
    needed = not env.get(SPACE) and not env.get(URL)
    if needed and importlib.util.find_spec("trackio") is None:
        return [Problem("trackio is not installed", hint="pip install 'rankzero[trackio]'")]
    return unset(env)


def unset(env: Mapping[str, str]) -> list[Problem]:
    """The variables that are missing, or keep it from working."""
    if env.get(SPACE):
        hint = f"unset {SPACE}; `trackio sync` sends a project that lies here to a Space"
        return [Problem(f"{SPACE} is set, and runs are not sent to Spaces", hint=hint)]
    if env.get(URL) and not _token(env):
        hint = "it is in the address that `trackio show` prints; it belongs into the environment, never into a spec"
        return [Problem(f"{TOKEN} is not set", hint=hint)]
    return no_address(URL, env)


def has_place(env: Mapping[str, str]) -> bool:
    """Whether rows go elsewhere than into files in the cache of the Hub (HF_HOME), wherever that is by default."""
    return any(env.get(name) for name in (URL, DIRECTORY, SPACE, "HF_HOME"))


def connect(_run_dir: RunDir) -> TrackioRun:
    """The server of the environment, or this machine's files. Raises ConfigError."""
    if missing := problems(os.environ):
        raise ConfigError(missing)
    project = os.environ.get(PROJECT_VARIABLE) or PROJECT
    if not os.environ.get(URL):
        files = os.environ.get(DIRECTORY) or "files"
        return TrackioRun(project, _in_files, f"`trackio show --project {project}`", files)
    url = urlunsplit(urlsplit(os.environ[URL])._replace(query="", fragment="")).rstrip("/")
    return TrackioRun(project, _on_server(url, _token(os.environ)), without_login(url), url)


class TrackioRun:
    """One run of a project."""

    def __init__(self, project: str, store: Store, link: str, where: str) -> None:
        self._project, self._store, self.link, self.place = project, store, link, place_of(project, where)
        self._run, self._key, self._config = "", "", dict[str, str]()

    def begin(self, run: RunFacts, key: str, there: str | None) -> str:
        """As in `Server`; the key is the run's id there. Nothing is asked: the first row makes the run. Settings are
        texts: of a project whose runs have one of them in several types (`auto`, 4) Trackio exports nothing."""
        self._run, self._key = run.name, there or key
        self._config = {name: str(value) for name, value in run.settings.items()}
        return self._key

    def send_settings(self, run: RunFacts) -> None:
        """As in `Server`: they go along with its numbers."""

    def known(self, _kind: Kind, _rows: Sequence[Row]) -> set[tuple[int, str]]:
        """As in `Server`: a row that comes twice is kept once."""
        return set()

    def send(self, kind: Kind, rows: Sequence[Row]) -> None:
        """As in `Server`."""
        if kind == "system":
            self._store("bulk_log_system", [self._entry(kind, row, numbers(row)) for row in rows])
        elif kind == "metrics":
            named = ({plotted_as(name): value for name, value in numbers(row).items()} for row in rows)
            entries = [self._entry(kind, row, values) for row, values in zip(rows, named, strict=True)]
            self._store("bulk_log", [entry | {"config": self._config} for entry in entries])
        elif kind == "samples":
            tables = ({"samples": {"_type": "trackio.table", "_value": row["samples"]}} for row in rows)
            self._store("bulk_log", [self._entry(kind, row, table) for row, table in zip(rows, tables, strict=True)])

    def end(self, ended: Ending | None) -> None:
        """As in `Server`: Trackio keeps no state of a run."""

    def close(self, ended: Ending | None) -> None:
        """As in `Server`: what was sent is there."""

    def _entry(self, kind: Kind, row: Row, values: Mapping[str, Any]) -> Entry:
        """A row with its id: an evaluation that follows a step's row later is a row of its own."""
        about = f"{self._key}/{kind}/{row['step']}/{'/'.join(sorted(values))}"
        return {
            "project": self._project,
            "run": self._run,
            "run_id": self._key,
            "metrics": {name: _plain(value) for name, value in values.items()},
            "step": row["step"],
            "timestamp": datetime.fromtimestamp(row["time"], UTC).isoformat(),
            "log_id": hashlib.sha256(about.encode()).hexdigest()[:32],
        }


def _plain(value: Any) -> Any:
    """JSON has no NaN; Trackio reads it as a text."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def _token(env: Mapping[str, str]) -> str:
    """On its own, or in the address as `trackio show` prints it."""
    found = parse_qs(urlsplit(env.get(URL, "")).query).get("write_token", [""])
    return env.get(TOKEN) or found[0]


def _on_server(url: str, token: str) -> Store:
    import httpx2

    http = httpx2.Client(timeout=TIMEOUT_SECONDS, headers={"x-trackio-write-token": token})

    def store(how: str, entries: list[Entry]) -> None:
        where = without_login(f"{url}/api/{how}")
        try:
            response = http.post(f"{url}/api/{how}", json={"args": [], "kwargs": {"logs": entries, "hf_token": None}})
        except httpx2.HTTPError as error:
            raise NoAnswerError(f"no answer: {error or type(error).__name__}", where=where) from error
        if not response.is_success:
            raise ServiceError(f"answered {response.status_code}: {response.text[:100]}", where=where)
        try:
            answer = json.loads(response.text)
        except ValueError:
            raise ServiceError("answered with what is no JSON", where=where) from None
        if not isinstance(answer, dict) or answer.get("error") is not None:
            raise ServiceError(f"answered {str(answer)[:100]}", where=where)

    return store


def _in_files(how: str, entries: list[Entry]) -> None:
    from trackio.sqlite_storage import SQLiteStorage

    lists = {name: [entry[key] for entry in entries] for name, key in _LISTS.items()}
    first = entries[0]
    where = {name: first[name] for name in ("project", "run", "run_id")}
    if how == "bulk_log_system":
        SQLiteStorage.bulk_log_system(**where, **lists)
    else:
        steps = [entry["step"] for entry in entries]
        SQLiteStorage.bulk_log(**where, **lists, steps=steps, config=first.get("config"))


_LISTS = {"metrics_list": "metrics", "timestamps": "timestamp", "log_ids": "log_id"}
