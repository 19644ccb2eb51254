"""Weights & Biases: settings, numbers, answers as a table, how the run ended. Knows no engine.

Keys and places are W&B's own variables (WANDB_API_KEY, WANDB_BASE_URL, WANDB_ENTITY, WANDB_PROJECT); WANDB_MODE=offline
writes folders that `wandb sync` sends. W&B's library sends by itself and tells nobody when a row has arrived: what it
was given it keeps in memory. So whoever begins asks the server for the last step that it has, and gives it the rows of
metrics.jsonl after that one, with answers and what is saved: an earlier process may have handed them over and lost
them. Offline nobody can be asked, and each start writes all there is into a folder of its own.
"""

from __future__ import annotations

import configparser
import importlib.util
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from rankzero.errors import ConfigError, Problem
from rankzero.redaction import Redactor
from rankzero.run_dir.goodput import Ending
from rankzero.run_dir.paths import RunDir
from rankzero.spec.tasks import MEASURES
from rankzero.track.protocol import plotted_as
from rankzero.track.server import Kind, Row, RunFacts, numbers, place_of, shown, without_login
from rankzero.track.spool import Spool

PROJECT = "rankzero"
API_KEY, MODE, PROJECT_VARIABLE = "WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"
BASE_URL, ENTITY = "WANDB_BASE_URL", "WANDB_ENTITY"
TOKEN_FILE = "WANDB_IDENTITY_TOKEN_FILE"
TIME = "_timestamp"
"""W&B's own name of when a step was: else it is when its library was given the step."""
OFFLINE = ("offline", "dryrun")
_HOSTS = ("wandb", "forge.coreweave.com")
"""Parts of the names of W&B's own servers."""
CONNECT_SECONDS = 30
_DISABLED = Problem(
    f"wandb is disabled, by {MODE} or by `wandb disabled`, so that nothing would be kept",
    hint=f"set {MODE}=online, or tracking.wandb: false",
)
_EXIT_CODES: dict[Ending | None, int] = {"finished": 0, "stopped": 75, "interrupted": 130, "failed": 1, None: 137}
"""None: it was killed."""
_SUMMARY = ("steps", "final_step", "train_loss_last", *MEASURES, "total_tokens", "elapsed_seconds")
"""Of report.json."""


def problems(env: Mapping[str, str]) -> list[Problem]:
    """What is missing here before anything could be sent."""
    found = []
    if importlib.util.find_spec("wandb") is None:
        found.append(Problem("wandb is not installed", hint="pip install 'rankzero[wandb]'"))
    settings = {**_kept_settings(env), **env}
    if logged_in(settings):
        settings[API_KEY] = settings.get(API_KEY) or "in a file"
    return [*found, *unset(settings)]


def unset(env: Mapping[str, str]) -> list[Problem]:
    """The variables that are missing where nobody has logged in, or that keep it from working."""
    if env.get(MODE) == "disabled":
        return [_DISABLED]
    if env.get(MODE) == "shared":
        return [Problem(f"{MODE} is shared, in which W&B counts no steps", hint=f"set {MODE}=online")]
    if env.get(API_KEY) or env.get(TOKEN_FILE) or env.get(MODE) in OFFLINE:
        return []
    hint = f"https://wandb.ai/authorize shows it; `wandb login` keeps it, and {MODE}=offline needs none"
    return [Problem(f"{API_KEY} is not set", hint=hint)]


def logged_in(env: Mapping[str, str]) -> bool:
    """Whether `wandb login` has left a key."""
    names = [env["NETRC"]] if env.get("NETRC") else ["~/.netrc", "~/_netrc"]
    files = [Path(os.path.expanduser(name)) for name in names]
    try:
        text = next((file for file in files if file.exists()), files[0]).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(host in text for host in _HOSTS) or bool(env.get(BASE_URL))


def connect(run_dir: RunDir) -> WandbRun:
    """The server of the environment, or a folder. Raises ConfigError."""
    if missing := problems(os.environ):
        raise ConfigError(missing)
    return WandbRun(run_dir)


class WandbRun:
    """One run, which this process has open from its beginning to the end of the start."""

    def __init__(self, run_dir: RunDir) -> None:
        self._directory = run_dir
        self._facts: RunFacts | None = None
        self._key, self.link = "", ""
        self._is_offline, self.place = _where({**_kept_settings(os.environ), **os.environ})
        self._run: Any = None
        self._next = 0
        """The first step that W&B lacks."""
        self._last: int | None = None
        """The last step that was logged here, which takes more values."""
        self._time = 0.0
        """Of that step."""
        self._has_table = False
        self._spool = Spool(run_dir.metrics)
        """What W&B lacks is read from it as long as a run is open: each row once, however often it is looked for."""

    def begin(self, run: RunFacts, key: str, there: str | None) -> str:
        """As in `Server`; the key is the run's id there."""
        self._facts, self._key = run, there or key
        self._open()
        return self._key

    def _open(self) -> Any:
        if self._run is None and self._facts is not None:
            import wandb

            own = wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                init_timeout=CONNECT_SECONDS,
                silent=True,
                x_disable_meta=True,
                x_disable_stats=True,
            )
            self._directory.tracking.mkdir(exist_ok=True)
            self._run = wandb.init(
                project=_project(),
                id=self._key,
                name=self._facts.name,
                config=dict(self._facts.settings),
                dir=str(self._directory.tracking),
                resume=None if self._is_offline else "allow",
                settings=own,
            )
            if self._run.disabled:
                raise ConfigError([_DISABLED])
            self._next, self._last = 0 if self._run.offline else int(self._run.step), None
            self._spool = Spool(self._directory.metrics)
            folder = Path(self._run.dir).parent
            self.link = without_login(f"`wandb sync {folder}` sends it" if self._run.offline else str(self._run.url))
        return self._run

    def send_settings(self, run: RunFacts) -> None:
        """As in `Server`: they went along when it was opened."""

    def known(self, kind: Kind, rows: Sequence[Row]) -> set[tuple[int, str]]:
        """As in `Server`: metrics before the last step that W&B has, which may lack its evaluation."""
        if kind != "metrics":
            return set()
        return {(row["step"], name) for row in rows for name in numbers(row) if row["step"] < self._next - 1}

    def send(self, kind: Kind, rows: Sequence[Row]) -> None:
        """As in `Server`, but that W&B's library has accepted them, not its server."""
        run = self._open()
        if kind == "metrics":
            self._steps(run, rows)
        elif kind == "samples":
            self._table(run, rows)
        elif kind == "saves":
            run.summary["saved_step"] = rows[-1]["step"]

    def _steps(self, run: Any, rows: Sequence[Row]) -> None:
        """Log the rows, and before them those that W&B should have and has not. A step is logged once there: what
        comes later of one that it has goes into the summary."""
        self._log_lost(run, before=rows[0]["step"])
        self._log(run, rows)

    def _log_lost(self, run: Any, before: float = math.inf) -> None:
        while lost := [row for row in self._spool.after(self._next - 1) if row["step"] < before]:
            self._log(run, lost)

    def _log(self, run: Any, rows: Sequence[Row]) -> None:
        for row in rows:
            values = {plotted_as(name): value for name, value in numbers(row).items()}
            if row["step"] < self._next and row["step"] != self._last:
                run.summary.update(values)
            else:
                run.log(values | {"epoch": row.get("epoch"), TIME: row["time"]}, step=row["step"])
                self._next, self._last, self._time = row["step"] + 1, row["step"], row["time"]

    def _table(self, run: Any, rows: Sequence[Row]) -> None:
        """Answers as a table, with the last step that was logged here. Where none was, it waits: an earlier step takes
        nothing more, and a later one would take no numbers then. The first table of a process has all answers of the
        run so far."""
        if self._last is None and self._next > 0:
            return
        step, time = (0, rows[0]["time"]) if self._last is None else (self._last, self._time)
        if not self._has_table:
            rows = [*(row for row in self._all_answers() if row["step"] < rows[0]["step"]), *rows]
        run.log({"samples": _as_table(rows), TIME: time}, step=step)
        self._has_table = True

    def _all_answers(self) -> list[Row]:
        return list(shown(_all_of(Spool(self._directory.samples, joined="samples")), Redactor(os.environ)))

    def _give_again(self, run: Any, *, closes: bool) -> None:
        """All of the run that W&B lacks, or may lack, and this process was not given: who is called for the end has
        nothing new to send where an earlier process had handed over everything before it died. The table that has found
        no step until the run is closed is in the summary, which needs none."""
        self._log_lost(run)
        if not self._has_table and (answers := self._all_answers()):
            self._table(run, answers)
            if closes and not self._has_table:
                run.summary.update({"samples": _as_table(answers)})
        if saves := _all_of(Spool(self._directory.saves)):
            run.summary["saved_step"] = saves[-1]["step"]

    def end(self, ended: Ending | None) -> None:
        """As in `Server`. Returns when W&B has everything; for a run that goes on later it is closed there too. What
        cannot be given again is raised when the run is closed."""
        run = self._open()
        if ended is None:
            self._give_again(run, closes=False)
            return
        self._give_and_close(run, ended)

    def close(self, ended: Ending | None) -> None:
        """As in `Server`. Left open, it would be closed as one that has finished when the process leaves."""
        if self._run is not None:
            self._give_and_close(self._run, ended)

    def _give_and_close(self, run: Any, ended: Ending | None) -> None:
        try:
            self._give_again(run, closes=True)
        finally:
            self._close(run, ended)

    def _close(self, run: Any, ended: Ending | None) -> None:
        if ended == "finished" and self._directory.report.is_file():
            report = json.loads(self._directory.report.read_text(encoding="utf-8"))
            run.summary.update({name: report[name] for name in _SUMMARY if report.get(name) is not None})
        if ended in {"stopped", None}:
            run.mark_preempting()
        run.finish(exit_code=_EXIT_CODES[ended])
        self._run = None


def _kept_settings(env: Mapping[str, str]) -> dict[str, str]:
    """What W&B's own commands have kept (`wandb offline`, `wandb login --host`), by the variables that overrule it: a
    file of the user's, and before it one of the working directory's."""
    user = Path(os.path.expanduser(env.get("WANDB_CONFIG_DIR") or "~/.config/wandb"))
    directory = Path(".wandb" if Path(".wandb").exists() else "wandb")
    kept = configparser.ConfigParser(interpolation=None)
    try:
        kept.read([user / "settings", directory / "settings"], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):  # W&B takes it for empty, and says so
        return {}
    found = kept.items("default") if kept.has_section("default") else []
    return {f"WANDB_{name.upper()}": value for name, value in found}


def _where(settings: Mapping[str, str]) -> tuple[bool, str]:
    """Whether rows go into a folder, and the place: a folder has nothing of what an earlier process has written."""
    if settings.get(MODE) in OFFLINE:
        return True, place_of(PROJECT, f"folder {uuid4().hex}")
    project = f"{settings[ENTITY]}/{_project()}" if settings.get(ENTITY) else _project()
    return False, place_of(project, settings.get(BASE_URL, "").rstrip("/") or "W&B")


def _project() -> str:
    return os.environ.get(PROJECT_VARIABLE) or PROJECT


def _as_table(rows: Sequence[Row]) -> Any:
    import wandb

    samples = [sample for row in rows for sample in row["samples"]]
    columns = list(dict.fromkeys(column for sample in samples for column in sample))
    return wandb.Table(columns=columns, data=[[sample.get(column) for column in columns] for sample in samples])


def _all_of(spool: Spool) -> list[Row]:
    found: list[Row] = []
    while more := spool.after(found[-1]["step"] if found else -1):
        found += more
    return found
