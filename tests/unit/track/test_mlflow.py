"""What is sent to MLflow, against a client in memory: tests/e2e/test_mlflow.py has a real server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rankzero.run_dir.goodput import Ending
from rankzero.run_dir.paths import RunDir
from rankzero.track.mlflow import TABLES_TAG, MlflowRun
from rankzero.track.server import LostRunError, Row, RunFacts, Setting

Pair = tuple[str, str]
LONGEST_TAG = 5000
"""What MLflow keeps of a tag; it cuts the rest off without a word."""


class Client:
    """One run's tags and files."""

    ends_within = False
    """Its process is killed while it makes a database."""

    def __init__(self, tracking_uri: str) -> None:
        database = Path(tracking_uri.removeprefix("sqlite:///"))
        if tracking_uri.startswith("sqlite:") and not database.exists():
            database.write_text("some of the tables")
            if self.ends_within:
                raise KeyboardInterrupt
            database.write_text("all tables")
        self.tags: dict[str, str] = {}
        self.params: dict[str, str] = {}
        self.files: list[str] = []
        self.status = "RUNNING"
        self.points: dict[str, list[int]] = {}
        """The steps of each metric."""
        self.asked: list[str] = []
        """The metrics whose history was asked for."""
        self.failure: Exception | None = None
        """Of looking for a run."""
        self.longest = 6000
        """Characters of a param that it takes."""
        self.code = "INVALID_PARAMETER_VALUE"
        """Of its answer to a longer one."""

    def search_experiments(self, max_results: int) -> list[Any]:
        return []

    def get_run(self, run: str) -> Any:
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(
            info=SimpleNamespace(run_id=run, experiment_id="1"),
            data=SimpleNamespace(tags=self.tags, params=self.params),
        )

    def log_batch(self, _run: str, params: Iterable[Pair] = (), tags: Iterable[Pair] = ()) -> None:
        if any(len(value) > self.longest for _, value in params):
            raise MlflowError(self.code)
        self.params |= params
        self.tags |= tags

    def get_metric_history(self, _run: str, name: str) -> list[Any]:
        self.asked.append(name)
        return [SimpleNamespace(step=step) for step in self.points.get(name, [])]

    def set_tag(self, _run: str, name: str, value: str) -> None:
        self.tags[name] = value[:LONGEST_TAG]

    def log_text(self, _run: str, _text: str, name: str) -> None:
        self.files.append(name)

    def set_terminated(self, _run: str, status: str) -> None:
        self.status = status

    def update_run(self, _run: str, status: str) -> None:
        self.status = status

    def log_artifact(self, _run: str, path: str) -> None:
        raise PermissionError(13, "Permission denied", path)


class MlflowError(Exception):
    """MLflow's own, with the name of what is wrong."""

    def __init__(self, code: str) -> None:
        super().__init__(f"{code}: no")
        self.error_code = code


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowRun:
    """One that is there already."""
    mlflow, entities, errors = (ModuleType(f"mlflow{name}") for name in ("", ".entities", ".exceptions"))
    mlflow.__dict__["MlflowClient"] = Client
    entities.__dict__.update(Metric=tuple, Param=lambda *pair: pair, RunTag=lambda *pair: pair)
    errors.__dict__["MlflowException"] = MlflowError
    for module in (mlflow, entities, errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = MlflowRun("http://127.0.0.1:9")
    found.begin(RunFacts("r", RunDir(tmp_path), {}), "key", "run")
    return found


def begin(run: MlflowRun, directory: Path, settings: dict[str, Setting]) -> None:
    """With these settings, as who sends does."""
    facts = RunFacts("r", RunDir(directory), settings)
    run.begin(facts, "key", "run")
    run.send_settings(facts)


def test_neither_its_link_nor_its_place_has_the_login(run: MlflowRun, tmp_path: Path) -> None:
    """A token goes before the host as it is, a password with its slashes into a database's address."""
    for uri in ("https://token-canary@host", "mysql+pymysql://me:qzx/canary@host/runs"):
        one = MlflowRun(uri)
        one.begin(RunFacts("r", RunDir(tmp_path), {}), "key", "run")
        assert "host" in one.link and "host" in one.place
        assert not [part for part in ("canary", "qzx", "me:") if part in one.link + one.place]


def answers(*steps: int) -> list[Row]:
    """What the model said after each."""
    return [{"step": step, "time": 0.0, "samples": [{"prompt": "Who?", "text": "Me."}]} for step in steps]


def listed(client: Client) -> list[str]:
    """The tables that MLflow shows."""
    return [entry["path"] for entry in json.loads(client.tags[TABLES_TAG])]


def test_more_tables_than_a_tag_has_room_for(run: MlflowRun) -> None:
    """All are files there, and the newest are listed."""
    client: Client = run._client
    steps = range(10, 3010, 10)
    for first in range(0, len(steps), 40):
        run.send("samples", answers(*steps[first : first + 40]))
    assert client.files == [f"samples/step-{step}.json" for step in steps]
    newest = listed(client)
    assert 50 < len(newest) < len(steps) and newest == client.files[-len(newest) :]
    run.send("samples", answers(3000))
    assert listed(client) == newest, "sent again, it is listed once"


def test_a_tag_that_was_cut_off_does_not_keep_the_rest_here(run: MlflowRun) -> None:
    client: Client = run._client
    client.tags[TABLES_TAG] = '[{"path": "samples/step-1.json", "type": "ta'
    run.send("samples", answers(2, 3))
    assert listed(client) == ["samples/step-2.json", "samples/step-3.json"]


def test_a_setting_that_is_as_it_was_again_is_said_to_be(run: MlflowRun, tmp_path: Path) -> None:
    """Params stay as they were first, tags say what is now."""
    client: Client = run._client
    for rate, now in (("1e-4", None), ("5e-5", "5e-5"), ("1e-4", "1e-4"), ("2e-4", "2e-4")):
        begin(run, tmp_path, {"train.learning_rate": rate, "train.seed": "1"})
        assert client.params == {"train.learning_rate": "1e-4", "train.seed": "1"}
        assert client.tags == ({} if now is None else {"now.train.learning_rate": now})


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        ("finished", "FINISHED"),
        ("failed", "FAILED"),
        ("interrupted", "KILLED"),
        ("stopped", "KILLED"),
        (None, "RUNNING"),
    ],
)
def test_how_a_run_ended_is_its_status(ended: Ending | None, status: str, run: MlflowRun) -> None:
    """One that was killed runs, for all that is known of it; so does one that goes on."""
    run._client.status = "as it was"
    run.end(ended)
    run.close(ended)
    assert run._client.status == status
    run.end(None)
    assert run._client.status == "RUNNING"


def test_a_run_whose_files_are_refused_has_ended_all_the_same(run: MlflowRun, tmp_path: Path) -> None:
    """As where the server names a directory of its own for them, which is not here."""
    RunDir(tmp_path).spec.write_text("name: r")
    with pytest.raises(PermissionError):
        run.end("finished")
    assert run._client.status == "FINISHED"


@pytest.mark.parametrize(
    ("failure", "is_lost"),
    [
        (MlflowError("RESOURCE_DOES_NOT_EXIST"), True),
        (MlflowError("ENDPOINT_NOT_FOUND"), False),  # what answers is no MLflow
        (MlflowError("PERMISSION_DENIED"), False),
        (MlflowError("INTERNAL_ERROR"), False),  # as where there is no answer
        (ConnectionError("away"), False),
    ],
)
def test_only_a_server_that_says_so_has_lost_the_run(
    failure: Exception, is_lost: bool, run: MlflowRun, tmp_path: Path
) -> None:
    run._client.failure = failure
    with pytest.raises(LostRunError if is_lost else type(failure)):
        run.begin(RunFacts("r", RunDir(tmp_path), {}), "key", "run")


def test_a_database_is_there_whole_or_not_at_all(
    run: MlflowRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends soon ends its sender while MLflow makes the tables, and MLflow never reads a file with some."""
    place = tmp_path / "runs.db"
    monkeypatch.setattr(Client, "ends_within", True)
    with pytest.raises(KeyboardInterrupt):
        MlflowRun(f"sqlite:///{place}")
    assert not place.exists()
    monkeypatch.setattr(Client, "ends_within", False)
    MlflowRun(f"sqlite:///{place}")
    assert place.read_text() == "all tables" and [path.name for path in tmp_path.glob("*runs.db*")] == ["runs.db"]
    place.write_text("another's")
    MlflowRun(f"sqlite:///{place}")
    assert place.read_text() == "another's"


def test_a_database_that_another_has_made_meanwhile_stays(
    run: MlflowRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "runs.db"
    monkeypatch.setattr(Client, "search_experiments", lambda *_, **__: place.write_text("another's"))
    MlflowRun(f"sqlite:///{place}")
    assert place.read_text() == "another's" and [path.name for path in tmp_path.glob("*runs.db*")] == ["runs.db"]


def test_what_is_there_of_a_name_is_asked_for_once(run: MlflowRun, tmp_path: Path) -> None:
    """A run that was brought back asks so of all its steps, batch by batch; begun again, it asks anew."""
    client: Client = run._client
    client.points = {"train/loss": [1, 2, 3, 7], "train/lr": [2], "system/loss": [9]}
    rows: list[Row] = [{"step": step, "time": 0.0, "loss": 1.0, "lr": 0.5} for step in range(1, 11)]
    for batch in rows[:5], rows[5:]:
        there = {(step, name) for name in ("loss", "lr") for step in client.points[f"train/{name}"]}
        assert run.known("metrics", batch) == {one for one in there if batch[0]["step"] <= one[0] <= batch[-1]["step"]}
    assert sorted(client.asked) == ["train/loss", "train/lr"]
    assert run.known("system", rows) == {(9, "loss")}
    run.begin(RunFacts("r", RunDir(tmp_path), {}), "key", "run")
    client.points["train/loss"].append(8)
    assert (8, "loss") in run.known("metrics", rows)


@pytest.mark.parametrize("length", [500, 250])
def test_a_setting_that_was_cut_off_there_has_not_changed(length: int, run: MlflowRun, tmp_path: Path) -> None:
    """By an earlier version, or an older server: as a param, or later as a tag of what it is now."""
    client: Client = run._client
    long = ", ".join(f"/data/{n}.jsonl" for n in range(100))
    client.params = {"data.train": long[:length], "data.eval": "before", "eval.prompts": long[: length - 1]}
    client.tags = {"now.data.eval": long[:length]}
    facts = dict.fromkeys(("data.train", "data.eval", "eval.prompts"), long)
    begin(run, tmp_path, facts)
    assert client.tags == {"now.data.eval": long[:length], "now.eval.prompts": long}
    begin(run, tmp_path, {"data.train": f"x{long}"})
    assert client.tags["now.data.train"] == f"x{long}"


def test_a_long_setting_is_there_whole_or_says_that_it_is_cut(run: MlflowRun, tmp_path: Path) -> None:
    """A change of its end is one."""
    client: Client = run._client
    long, longer = ", ".join(f"/data/{n}.jsonl" for n in range(100)), "x" * 20_000
    facts = {"data.train": long, "eval.prompts": longer}
    begin(run, tmp_path, facts)
    assert client.params["data.train"] == long
    shown = client.params["eval.prompts"]
    assert len(shown) <= LONGEST_TAG and shown.startswith("x" * 4000) and "… sha256:" in shown
    begin(run, tmp_path, facts)
    assert not client.tags
    begin(run, tmp_path, {"data.train": f"{long}.gz", "eval.prompts": f"{longer}y"})
    assert client.tags["now.data.train"] == f"{long}.gz"
    assert len(client.tags["now.eval.prompts"]) <= LONGEST_TAG and client.tags["now.eval.prompts"] != shown


@pytest.mark.parametrize("longest", [500, 250])
@pytest.mark.parametrize("code", ["INVALID_PARAMETER_VALUE", "INTERNAL_ERROR"])
def test_an_older_server_gets_as_much_of_a_setting_as_it_takes(
    longest: int, code: str, run: MlflowRun, tmp_path: Path
) -> None:
    """It refuses a request with a longer param whole, some with an answer of another error."""
    client: Client = run._client
    client.longest, client.code = longest, code
    long: dict[str, Setting] = {f"s.{length}": "x" * length for length in (249, 251, 501, 5001)}
    facts = {f"a.{n}": str(n) for n in range(250)} | long
    begin(run, tmp_path, facts)
    assert client.params.keys() == facts.keys()
    for name, value in facts.items():
        shown, whole = client.params[name], str(value)
        assert shown == whole if len(whole) <= longest else len(shown) <= longest and "x… sha256:" in shown
    begin(run, tmp_path, facts)
    assert not client.tags, "nothing has changed"
    begin(run, tmp_path, facts | {"s.501": "x" * 500 + "y"})
    assert client.tags == {"now.s.501": "x" * 500 + "y"}


def test_a_setting_that_no_length_helps_is_an_error_and_one_that_arrived_is_none(
    run: MlflowRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Client = run._client
    client.longest = 10
    with pytest.raises(MlflowError, match="INVALID_PARAMETER_VALUE"):
        begin(run, tmp_path, {"s": "x" * 600})
    log_batch = client.log_batch

    def unanswered(*arguments: Any, **named: Any) -> None:
        log_batch(*arguments, **named)
        raise MlflowError("INTERNAL_ERROR")

    client.longest = 6000
    monkeypatch.setattr(client, "log_batch", unanswered)
    begin(run, tmp_path, {"s": "x" * 600})
    assert client.params == {"s": "x" * 600}
