"""Weights & Biases, whose library says of nothing that it has arrived: what a process that dies had handed over comes
again. A stand-in for the library keeps what it is given in memory until it is finished."""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Event
from types import ModuleType
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.run_dir.goodput import Ending
from rankzero.run_dir.paths import RunDir
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_spec import RunSpec
from rankzero.track import spool, wandb
from rankzero.track.send import Delivery, RefusedError, keep_sending
from rankzero.track.spool import BATCH_ROWS, Sent
from tests.support.cli import Cli
from tests.support.trackers import note_start

SPEC = RunSpec.model_validate({"name": "r", "model": {"name": "m"}, "data": {"train": "t.jsonl"}})
STEPS = BATCH_ROWS + 5


class Library(ModuleType):
    """`wandb`, and what its server has: `rows` by step, `summary`. Offline: what the newest folder has."""

    def __init__(self, directory: Path, *, offline: bool) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.Settings, self.Table = dict, as_rows
        self.directory, self.offline = directory, offline
        self.rows: dict[int, dict[str, Any]] = {}
        self.summary: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.logged: list[int] = []
        """The steps of all that its runs were given, also of what they drop."""

    def init(self, config: dict[str, Any], **_named: Any) -> Run:
        self.config = config
        if self.offline:
            self.rows, self.summary = {}, {}
        for state in ("exit_code", "is_preempting"):  # whatever it was: it runs
            self.summary.pop(state, None)
        return Run(self)


def as_rows(columns: list[str], data: list[list[Any]]) -> list[dict[str, Any]]:
    """A table."""
    return [dict(zip(columns, values, strict=True)) for values in data]


class Run:
    """One that a process has open; `finish` sends."""

    url = "https://wandb.test/r"
    disabled = False

    def __init__(self, library: Library) -> None:
        self._library = library
        self.offline, self.dir = library.offline, str(library.directory / "run/files")
        self.step = max(library.rows, default=-1) + 1
        self._given: dict[int, dict[str, Any]] = {}
        self.summary: dict[str, Any] = {}

    def log(self, values: dict[str, Any], step: int) -> None:
        self._library.logged.append(step)
        if step >= max(self._given, default=self.step):  # an earlier step takes nothing
            self._given.setdefault(step, {}).update(values)

    def mark_preempting(self) -> None:
        self.summary["is_preempting"] = True

    def finish(self, exit_code: int) -> None:
        self._library.rows |= self._given
        self._library.summary |= self.summary | {"exit_code": exit_code}


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.chdir(tmp_path)


def there(directory: Path, monkeypatch: pytest.MonkeyPatch, *, offline: bool = False) -> Library:
    """Installed, with a server that has nothing yet, or folders."""
    made = Library(directory, offline=offline)
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.setenv("WANDB_MODE", "offline" if offline else "online")
    return made


@pytest.fixture(params=[False, True], ids=["online", "offline"])
def library(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    return there(tmp_path, monkeypatch, offline=request.param)


def answers_in(library: Library) -> list[str]:
    """Of its tables; a run that had no step left for one has it in its summary."""
    tables = [*library.rows.values(), library.summary]
    return [row["text"] for values in tables for row in values.get("samples", [])]


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps({"time": float(row["step"]), **row}) + "\n" for row in rows))


class DeadError(RuntimeError):
    """The process is gone, with all that the library had in its memory."""


@pytest.mark.parametrize("accepted", [1, 2, 3, 4, 5])
def test_what_a_killed_sender_had_handed_over_comes_again(
    accepted: int, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies after so many `send`s, or in its last `finish`; the next one has no row that is new."""
    run_dir = RunDir(tmp_path / "r")
    run_dir.root.mkdir()
    lines(run_dir.metrics, [{"step": step, "loss": 1.0 / step} for step in range(1, STEPS + 1)])
    lines(run_dir.samples, [{"step": step, "prompt": "Who?", "text": str(step)} for step in (0, 50)])
    lines(run_dir.saves, [{"step": step, "checkpoint": f"step-{step}"} for step in range(1, STEPS + 1)])
    note_start(run_dir, 1000.0, "finished")
    send, sends = wandb.WandbRun.send, 0

    def dies_after(run: wandb.WandbRun, kind: Any, rows: Any) -> None:
        nonlocal sends
        send(run, kind, rows)
        sends += 1

    def dies(_run: Run, exit_code: int) -> None:
        raise DeadError(exit_code)

    batch = Delivery._batch

    def until_dead(one: Delivery, kind: Any, server: Any) -> bool:
        if sends == accepted:
            raise DeadError
        return batch(one, kind, server)

    with monkeypatch.context() as patch:
        patch.setattr(wandb.WandbRun, "send", dies_after)
        patch.setattr(Delivery, "_batch", until_dead)
        patch.setattr(Run, "finish", dies)
        with pytest.raises(DeadError):
            Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert sends == accepted and not library.rows
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    losses = {step: row["train/loss"] for step, row in library.rows.items() if "train/loss" in row}
    assert losses == {step: 1.0 / step for step in range(1, STEPS + 1)}
    answers = [row["text"] for rows in library.rows.values() for row in rows.get("samples", [])]
    assert answers == ["0", "50"]
    assert library.summary == {"saved_step": STEPS, "exit_code": 0}


def test_a_run_that_was_killed_with_its_sender_is_sent_by_the_next(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody says that it has ended; the library sends what it has when the process leaves."""
    run_dir = RunDir(tmp_path / "r")
    run_dir.root.mkdir()
    lines(run_dir.metrics, [{"step": step, "loss": 1.0 / step} for step in range(1, 6)])
    note_start(run_dir, 1000.0, None)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert library.config["train.learning_rate"] == SPEC.train.learning_rate
    begun = []
    init = library.init
    monkeypatch.setattr(library, "init", lambda **named: begun.append(init(**named)) or begun[-1])
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    begun[0].finish(exit_code=1)
    assert sorted(library.rows) == [1, 2, 3, 4, 5]


def test_a_run_whose_answers_are_refused_is_closed_all_the_same(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library makes no table of them, neither when they come nor when it is given everything again."""
    run_dir = RunDir(tmp_path / "r")
    run_dir.root.mkdir()
    lines(run_dir.metrics, [{"step": step, "loss": 1.0 / step} for step in range(1, 6)])
    lines(run_dir.samples, [{"step": 4, "prompt": "Who?", "text": "4"}])
    lines(run_dir.saves, [{"step": 5, "checkpoint": "step-5"}])
    note_start(run_dir, 1000.0, "failed")

    def none(columns: list[str], data: list[list[Any]]) -> None:
        raise TypeError(f"no table of {columns} and {data}")

    with monkeypatch.context() as patch:
        patch.setattr(library, "Table", none)
        with pytest.raises(RefusedError, match=r"samples\.jsonl, the end refused: TypeError: no table of"):
            Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert sorted(library.rows) == [1, 2, 3, 4, 5]
    assert library.summary == {"saved_step": 5, "exit_code": 1}
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert answers_in(library) == ["4"]


def a_finished_run(directory: Path) -> RunDir:
    """Of more steps than one request has rows, with answers."""
    run_dir = RunDir(directory)
    run_dir.root.mkdir()
    lines(run_dir.metrics, [{"step": step, "loss": 1.0 / step} for step in range(1, STEPS + 1)])
    lines(run_dir.samples, [{"step": 50, "prompt": "Who?", "text": "50"}])
    note_start(run_dir, 1000.0, "finished")
    return run_dir


def is_whole(library: Library) -> bool:
    """Whether it has all of that run."""
    losses = {step: row["train/loss"] for step, row in library.rows.items() if "train/loss" in row}
    answers = [row["text"] for rows in library.rows.values() for row in rows.get("samples", [])]
    return losses == {step: 1.0 / step for step in range(1, STEPS + 1)} and answers == ["50"]


@pytest.mark.parametrize("variable", ["WANDB_PROJECT", "WANDB_ENTITY", "WANDB_BASE_URL"])
def test_another_project_or_server_gets_the_whole_run(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = a_finished_run(tmp_path / "r")
    here, elsewhere = there(tmp_path, monkeypatch), Library(tmp_path, offline=False)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    monkeypatch.setenv(variable, "https://other.test")
    monkeypatch.setitem(sys.modules, "wandb", elsewhere)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert is_whole(here) and is_whole(elsewhere) and elsewhere.summary["exit_code"] == 0


@pytest.mark.parametrize("by", ["a variable", "wandb offline"])
def test_what_lies_in_a_folder_is_sent_whole_to_a_server_and_to_the_next_folder(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = a_finished_run(tmp_path / "r")
    folders, server = there(tmp_path, monkeypatch, offline=True), Library(tmp_path, offline=False)
    if by == "wandb offline":
        monkeypatch.delenv("WANDB_MODE")
        kept_by_wandb(tmp_path / "home", "mode = offline")
    for _ in range(2):
        Delivery("wandb", wandb.connect, run_dir, SPEC).round()
        assert is_whole(folders) and folders.summary["exit_code"] == 0
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setitem(sys.modules, "wandb", server)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert is_whole(server) and server.summary["exit_code"] == 0
    before = list(server.logged)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert server.logged == before, "it has all of it"


def test_a_note_of_a_version_that_knew_no_places_of_wandb_sends_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been sent into a folder: W&B is asked, and the rest goes there."""
    run_dir, server = a_finished_run(tmp_path / "r"), there(tmp_path, monkeypatch)
    note = run_dir.tracking / "wandb.json"
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    note.write_text(json.dumps(json.loads(note.read_text()) | {"place": ""}))
    server.logged.clear()
    for step in [step for step in server.rows if step > STEPS - 2]:
        del server.rows[step]
    lines(run_dir.samples, [{"step": 50, "prompt": "Who?", "text": "50"}])
    server.rows[STEPS - 2].pop("samples", None)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert is_whole(server) and set(server.logged) == {STEPS - 1, STEPS}


def kept_by_wandb(home: Path, setting: str) -> None:
    """As by its own commands: `wandb disabled`, `wandb offline`."""
    path = home / ".config/wandb/settings"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[default]\n{setting}\n")


def test_wandb_that_is_switched_off_is_said_to_be_and_has_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there(tmp_path, monkeypatch)
    run_dir, home = a_finished_run(tmp_path / "r"), tmp_path / "home"
    kept_by_wandb(home, "mode = disabled")
    for mode in ("online", "offline"):
        assert wandb.problems({**os.environ, "WANDB_MODE": mode}) == [], "a variable goes before"
    monkeypatch.delenv("WANDB_MODE")
    [problem] = wandb.problems(os.environ)
    assert "wandb is disabled" in problem.what
    (home / ".config/wandb/settings").unlink()
    monkeypatch.setattr(Run, "disabled", True)  # whatever has switched it off
    one = Delivery("wandb", wandb.connect, run_dir, SPEC)
    with pytest.raises(ConfigError, match="wandb is disabled"):
        one.round()
    assert one.sent.last == {} and "wandb is disabled" in str(one.sent.error)


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({}, "WANDB_API_KEY is not set"),
        ({"WANDB_MODE": "dryrun"}, None),
        ({"WANDB_MODE": "shared", "WANDB_API_KEY": "k"}, "WANDB_MODE is shared"),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, "wandb is disabled"),
        ({"WANDB_IDENTITY_TOKEN_FILE": "/token"}, None),
        ({"_netrc": "machine api.wandb.ai login user password k"}, None),
        ({".netrc": "machine api.forge.coreweave.com login user password k"}, None),
        ({".netrc": "machine example.com login user password k"}, "WANDB_API_KEY is not set"),
        ({"mode": "offline"}, None),
        ({"mode": "disabled", "WANDB_API_KEY": "k"}, "wandb is disabled"),
    ],
)
def test_what_is_missing_is_what_wandb_would_miss(
    variables: dict[str, str], missing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables, files of its logins, and what its own commands have kept."""
    there(tmp_path, monkeypatch)
    home = tmp_path / "home"
    home.mkdir()
    for name in ("_netrc", ".netrc"):
        if name in variables:
            (home / name).write_text(variables[name])
    if "mode" in variables:
        kept_by_wandb(home, f"mode = {variables['mode']}")
    found = wandb.problems({name: value for name, value in variables.items() if name.isupper()})
    assert [missing in problem.what for problem in found if missing] == ([True] if missing else [])
    assert bool(found) is bool(missing)


def test_how_much_is_read_for_a_step_does_not_grow_with_the_run(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, read = RunDir(tmp_path / "r"), []
    run_dir.root.mkdir()
    parse = spool._row
    monkeypatch.setattr(spool, "_row", lambda line: read.append(line) or parse(line))
    sender = Delivery("wandb", wandb.connect, run_dir, SPEC)
    for last in range(10, 401, 10):
        lines(run_dir.metrics, [{"step": step, "loss": 1.0} for step in range(1, last + 1)])
        sender.round()
    assert sorted(set(library.logged)) == list(range(1, 401))
    assert len(read) < 10 * 400


@pytest.mark.parametrize("ended", [None, "stopped"])
def test_a_start_that_ends_before_its_first_step_takes_no_step_from_the_next(
    ended: Ending | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the answers so far again, for which there is no step, and the library sends what it has."""
    run_dir, server = RunDir(tmp_path / "r"), there(tmp_path, monkeypatch)
    run_dir.root.mkdir()
    lines(run_dir.metrics, [{"step": step, "loss": 1.0 / step} for step in range(1, 6)])
    lines(run_dir.samples, [{"step": step, "prompt": "Who?", "text": str(step)} for step in (0, 4)])
    note_start(run_dir, 1000.0, "stopped")
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    begun: list[Run] = []
    init = server.init
    monkeypatch.setattr(server, "init", lambda **named: begun.append(init(**named)) or begun[-1])
    note_start(run_dir, 2000.0, None)
    first = Delivery("wandb", wandb.connect, run_dir, SPEC)
    first.round()
    if ended is None:
        begun[0].finish(exit_code=1)
    else:
        note_start(run_dir, 2000.0, ended)
        first.round()
    note_start(run_dir, 3000.0, None)
    second = Delivery("wandb", wandb.connect, run_dir, SPEC)
    second.round()
    lines(run_dir.metrics, [{"step": step, "loss": 1.0 / step} for step in range(1, 9)])
    note_start(run_dir, 3000.0, "finished")
    second.round()
    assert {step: row["train/loss"] for step, row in server.rows.items()} == {step: 1 / step for step in range(1, 9)}
    assert server.rows[8]["samples"] == server.rows[5]["samples"] and len(server.rows[8]["samples"]) == 2


def test_a_run_that_was_killed_is_closed_as_one_before_it_is_said_to_be_there(
    library: Library, tmp_path: Path, cli: Cli
) -> None:
    """Left to itself the library sends when the process leaves, and says that the run has finished."""
    run_dir = a_finished_run(tmp_path / "r")
    note_start(run_dir, 2000.0, None)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert not library.rows, "it may run"
    run_dir.spec.write_text(to_yaml(RunSpec.model_validate({**SPEC.model_dump(), "tracking": {"wandb": True}})))
    done = cli(f"track sync {run_dir.root}")
    assert done.code == 0 and "wandb has everything of this run" in done.out, done.err
    assert is_whole(library) and library.summary == {"is_preempting": True, "exit_code": 137}


def test_a_sender_whose_run_was_killed_closes_it(library: Library, tmp_path: Path) -> None:
    run_dir, over = a_finished_run(tmp_path / "r"), Event()
    note_start(run_dir, 2000.0, None)
    over.set()
    keep_sending(Delivery("wandb", wandb.connect, run_dir, SPEC), over)
    assert is_whole(library) and library.summary == {"is_preempting": True, "exit_code": 137}


@pytest.mark.parametrize(
    ("ended", "state"),
    [
        ("finished", {"exit_code": 0}),
        ("failed", {"exit_code": 1}),
        ("interrupted", {"exit_code": 130}),
        ("stopped", {"exit_code": 75, "is_preempting": True}),
        (None, {"exit_code": 137, "is_preempting": True}),
    ],
)
def test_a_run_that_is_sent_again_is_closed_as_it_ended(
    ended: Ending | None, state: dict[str, Any], library: Library, tmp_path: Path
) -> None:
    """To ask W&B what it has opens the run there, also where it has all of it."""
    run_dir = a_finished_run(tmp_path / "r")
    note_start(run_dir, 2000.0, ended)
    for _ in range(3):
        Delivery("wandb", wandb.connect, run_dir, SPEC).round(is_last=True)
        assert {name: library.summary.get(name) for name in ("exit_code", "is_preempting")} == {
            "is_preempting": None,
            **state,
        }
    assert {step for step in library.rows if "train/loss" in library.rows[step]} == set(range(1, STEPS + 1))


@pytest.mark.parametrize("ended", ["finished", "failed", "interrupted", "stopped"])
def test_a_sender_of_a_run_that_wandb_has_leaves_it_closed_whenever_it_dies(
    ended: Ending, library: Library, tmp_path: Path
) -> None:
    """Its first round is not its last, and finds nothing new; then the run goes on."""
    run_dir = a_finished_run(tmp_path / "r")
    note_start(run_dir, 2000.0, ended)
    Delivery("wandb", wandb.connect, run_dir, SPEC).round(is_last=True)
    state = library.summary["exit_code"]
    sender = Delivery("wandb", wandb.connect, run_dir, SPEC)
    sender.round()
    assert library.summary["exit_code"] == state
    note_start(run_dir, 3000.0, None)
    sender.round()
    assert "exit_code" not in library.summary, "it runs"
    lines(run_dir.metrics, [{"step": step, "loss": 1.0 / step} for step in range(1, STEPS + 4)])
    note_start(run_dir, 3000.0, "finished")
    sender.round(is_last=True)
    assert library.summary["exit_code"] == 0 and sorted(library.rows)[-1] == STEPS + 3


def test_an_evaluation_that_a_stop_had_cut_short_is_in_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B has its step, and takes nothing more for it."""
    run_dir, server = RunDir(tmp_path / "r"), there(tmp_path, monkeypatch)
    run_dir.root.mkdir()
    rows: list[dict[str, Any]] = [{"step": step, "loss": 1.0 / step} for step in range(1, 6)]
    lines(run_dir.metrics, rows)
    note_start(run_dir, 1000.0, "stopped")
    Delivery("wandb", wandb.connect, run_dir, SPEC).round(is_last=True)
    lines(run_dir.metrics, [*rows[:-1], {**rows[-1], "eval_loss": 0.5}, {"step": 6, "loss": 1.0 / 6}])
    note_start(run_dir, 2000.0, "finished")
    Delivery("wandb", wandb.connect, run_dir, SPEC).round(is_last=True)
    assert server.summary["eval/eval_loss"] == 0.5 and "eval/eval_loss" not in server.rows[5]
    assert {step: row["train/loss"] for step, row in server.rows.items()} == {step: 1 / step for step in range(1, 7)}


def test_a_step_has_the_time_when_it_was(library: Library, tmp_path: Path) -> None:
    """Also one that takes a table or an evaluation later."""
    run_dir = a_finished_run(tmp_path / "r")
    lines(run_dir.samples, [{"step": step, "prompt": "Who?", "text": str(step)} for step in (0, 50)])
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert {step: row["_timestamp"] for step, row in library.rows.items()} == {n: float(n) for n in library.rows}
    assert len(library.rows) == STEPS


def test_what_wandb_has_kept_of_a_project_is_none_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes into that of the variable, or of this package, whatever `wandb init` was told here."""
    run_dir, server, named = a_finished_run(tmp_path / "r"), there(tmp_path, monkeypatch), []
    init = server.init
    monkeypatch.setattr(server, "init", lambda **told: named.append(told["project"]) or init(**told))
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    note = run_dir.tracking / "wandb.json"
    before = Sent.read(note).place
    kept_by_wandb(tmp_path / "home", "project = another")
    Delivery("wandb", wandb.connect, run_dir, SPEC).round()
    assert named == ["rankzero"] * 2 and Sent.read(note).place == before
