"""What is sent to a server: everything, once, whatever is cut off when."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankzero.engine.metrics import MetricsLog
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from rankzero.track.send import Delivery, OvertakenError, RefusedError, keep_sending, only_sender, settings_of
from rankzero.track.server import Kind, Row, place_of
from rankzero.track.spool import BATCH_ROWS, KINDS, Sent, Spool, path_of, unsent
from tests.support.trackers import MemoryServer, note_start

SPEC = RunSpec.model_validate({"name": "r", "model": {"name": "m"}, "data": {"train": "t.jsonl"}})


def write(run_dir: RunDir, first: int, last: int, *, resume: int | None = None, **more: Any) -> None:
    """Steps as the loop logs them; `resume` first takes the steps after it away."""
    run_dir.root.mkdir(exist_ok=True)
    log = MetricsLog(
        run_dir, resume_step=first - 1 if resume is None else resume, unevaluated=False, trackers=lambda _step: []
    )
    for step in range(first, last + 1):
        log.log(step, {"epoch": step / 4, "loss": 1.0 / step, "time": float(step), **(more if step == last else {})})
    log.close()


def delivery(server: MemoryServer, run_dir: RunDir) -> Delivery:
    """As each sender process makes it."""
    return Delivery("memory", lambda _run_dir: server, run_dir, SPEC)


def tried(server: MemoryServer, run_dir: RunDir) -> None:
    """One round of a process of its own."""
    with suppress(OSError):
        delivery(server, run_dir).round()


def test_all_answers_of_a_step_are_one_row(tmp_path: Path) -> None:
    """More of them than one request has rows, and of a step that is replaced after a resume."""
    path = tmp_path / "samples.jsonl"

    def answers(step: int, count: int) -> str:
        return "".join(json.dumps({"step": step, "prompt": str(n), "time": step + n}) + "\n" for n in range(count))

    path.write_text(answers(0, BATCH_ROWS + 5) + answers(4, 2))
    spool = Spool(path, joined="samples")
    assert [(row["step"], row["time"], len(row["samples"])) for row in spool.after(-1)] == [
        (0, BATCH_ROWS + 4, BATCH_ROWS + 5),
        (4, 5, 2),
    ]
    assert [row["step"] for row in spool.after(0)] == [4]
    assert spool.after(4) == []
    path.with_name("new").write_text(answers(0, 3) + answers(8, 1))
    path.with_name("new").replace(path)
    assert [row["step"] for row in spool.after(4)] == [8]


@settings(max_examples=25)
@example(failing={2: "after"}, resumes=[(2, 1)])  # a resume has made fewer steps than had been sent before it
@given(
    failing=st.dictionaries(st.integers(1, 14), st.sampled_from(["before", "after"]), max_size=6),
    resumes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=4),
)
def test_everything_arrives_once(
    tmp_path_factory: pytest.TempPathFactory, failing: dict[int, str], resumes: list[tuple[int, int]]
) -> None:
    """Kills between two rounds rewind steps; requests fail before and after they had an effect."""
    run_dir, server = RunDir(tmp_path_factory.mktemp("r")), MemoryServer()
    server.failing = dict(failing)
    write(run_dir, 1, 10)
    tried(server, run_dir)
    done = 10
    for back, steps in resumes:
        saved = max(0, done - back)
        write(run_dir, saved + 1, saved + steps, resume=saved)
        done = saved + steps
        tried(server, run_dir)
    write(run_dir, done + 1, 60, resume=done)
    server.failing = {}
    tried(server, run_dir)
    expected = {("metrics", step, "loss") for step in range(1, 61)}
    assert set(server.points) == expected
    assert max(server.points.values()) == 1
    assert len(server.runs) == 1
    assert unsent(run_dir, Sent.read(run_dir.tracking / "memory.json")) == 0


def test_an_evaluation_that_a_stop_cut_short_follows(tmp_path: Path) -> None:
    """A step's object gets its evaluation when the run continues; nothing else of it is sent again."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    write(run_dir, 1, 5)
    tried(server, run_dir)
    write(run_dir, 5, 5, resume=4, eval_loss=0.5)
    write(run_dir, 6, 7)
    tried(server, run_dir)
    tried(server, run_dir)
    assert server.points[("metrics", 5, "eval_loss")] == 1
    assert set(server.points.values()) == {1}


def test_the_end_of_each_start_is_sent(tmp_path: Path) -> None:
    """A run that was continued for longer finishes again, while the server is away."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    write(run_dir, 1, 5)
    note_start(run_dir, 1000.125, "finished")
    tried(server, run_dir)
    tried(server, run_dir)
    assert server.ended == ["finished"]
    write(run_dir, 6, 7)
    note_start(run_dir, 2000.0, "finished")
    server.failing = {server.requests + 2: "before"}
    tried(server, run_dir)
    tried(server, run_dir)
    assert server.ended == ["finished"] * 2


def test_a_failure_is_noted_and_no_row_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One live sender, a server that is away for some rounds, and more rows than go into one request."""
    monkeypatch.setenv("SOME_API_KEY", "away-with-this-secret")
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    write(run_dir, 1, BATCH_ROWS * 2 + 5)
    server.failing = {1: "before", 3: "after"}
    sender = delivery(server, run_dir)
    with pytest.raises(ConnectionError):
        sender.round()
    assert Sent.read(run_dir.tracking / "memory.json").error == "ConnectionError: the server is away"
    with pytest.raises(TimeoutError):
        sender.round()
    sender.round()
    write(run_dir, BATCH_ROWS * 2 + 6, BATCH_ROWS * 2 + 8)
    sender.round()
    assert len(server.points) == BATCH_ROWS * 2 + 8 and set(server.points.values()) == {1}
    assert Sent.read(run_dir.tracking / "memory.json").error is None


def a_row_of_each_kind(run_dir: RunDir) -> None:
    """Of a run that is over."""
    write(run_dir, 1, 3)
    run_dir.tracking.mkdir()
    for kind in ("samples", "saves", "system"):
        path_of(kind, run_dir).write_text('{"step": 1, "time": 1.0, "cpu": 5.0}\n')
    note_start(run_dir, 1000.0, "finished")


@pytest.mark.parametrize("refused", ["metrics", "samples", "saves", "system"])
def test_a_kind_that_is_refused_keeps_neither_the_others_here_nor_the_end(refused: Kind, tmp_path: Path) -> None:
    """A server that is out of room for tables, or knows no such metric. What it lacks is said, and goes there later."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    a_row_of_each_kind(run_dir)
    server.refused = {refused}
    taken = set(KINDS) - {refused, "samples"}  # whose numbers are within its rows
    name = path_of(refused, run_dir).name
    for ends in (1, 2):  # as of a run that a client has opened again
        with pytest.raises(RefusedError, match=name):
            delivery(server, run_dir).round()
        assert {kind for kind, _, _ in server.points} == taken and set(server.points.values()) == {1}
        assert server.ended == ["finished"] * ends
        sent = Sent.read(run_dir.tracking / "memory.json")
        assert sent.error == f"{name} refused: ValueError: {refused} is too much" and refused not in sent.last
    server.refused = set()
    delivery(server, run_dir).round()
    sent = Sent.read(run_dir.tracking / "memory.json")
    assert sent.error is None and set(sent.last) == set(KINDS) and set(server.points.values()) == {1}


def test_settings_that_are_refused_keep_no_number_away(tmp_path: Path) -> None:
    """They are tried again with each beginning, and the run is not said to be there before they are."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    a_row_of_each_kind(run_dir)
    server.refused = {"settings", "samples"}
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"^settings, samples\.jsonl refused: ValueError: settings is too much$"):
            delivery(server, run_dir).round()
        kinds = {kind for kind, _, _ in server.points}
        assert kinds == {"metrics", "saves", "system"} and server.ended[-1] == "finished" and not server.settings
    server.refused = set()
    delivery(server, run_dir).round()
    assert server.settings == settings_of(SPEC) and set(server.points.values()) == {1}
    assert Sent.read(run_dir.tracking / "memory.json").error is None


def test_an_end_that_is_refused_is_told_again(tmp_path: Path) -> None:
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    a_row_of_each_kind(run_dir)
    server.refused = {"end", "saves"}
    with pytest.raises(RefusedError, match=r"saves\.jsonl, the end refused: ValueError: saves is too much"):
        delivery(server, run_dir).round()
    assert Sent.read(run_dir.tracking / "memory.json").ended is None
    server.refused = set()
    delivery(server, run_dir).round()
    assert server.ended == ["finished"]


def test_a_server_that_goes_away_is_asked_for_nothing_more(tmp_path: Path) -> None:
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    a_row_of_each_kind(run_dir)
    server.failing = {2: "before"}
    with pytest.raises(ConnectionError):
        delivery(server, run_dir).round()
    assert server.requests == 2
    server.refused, server.failing = {"metrics"}, {6: "before"}  # refused, and gone then
    with pytest.raises(ConnectionError):
        delivery(server, run_dir).round()
    assert server.requests == 6 and not server.ended


def test_what_is_refused_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """And anew where it is more, as an outage is."""
    run_dir, server, over = RunDir(tmp_path / "r"), MemoryServer(), threading.Event()
    a_row_of_each_kind(run_dir)
    moods: list[tuple[set[str], dict[int, str]]] = [({"samples"}, {})] * 2
    moods += [({"samples", "end"}, {}), (set(), {1: "before"}), ({"samples"}, {}), (set(), {}), ({"samples"}, {})]

    def wait(_seconds: float) -> None:
        if moods:
            server.refused, failing = moods.pop(0)
            server.failing = {server.requests + number: moment for number, moment in failing.items()}
        else:
            over.set()

    over.wait = wait  # type: ignore[method-assign, assignment]
    wait(0)
    keep_sending(delivery(server, run_dir), over)
    said = [line.partition("[TRACK] ")[2] for line in capfd.readouterr().err.splitlines()]
    some = "memory does not take all of it; what it lacks is kept, and sent later: "
    assert said == [
        f"{some}samples.jsonl refused: ValueError: samples is too much",
        f"{some}samples.jsonl, the end refused: ValueError: samples is too much",
        "memory takes no numbers; they are kept, and sent later: ConnectionError: the server is away",
    ]


def test_a_note_that_could_not_be_read_once_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a volume over the network that is away for a moment: a note of its own would send everything again."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    write(run_dir, 1, 5)
    tried(server, run_dir)
    own, failures = Sent.read, [OSError(errno.EIO, "Input/output error")]

    def read(path: Path) -> Sent:
        if failures:
            raise failures.pop()
        return own(path)

    monkeypatch.setattr(Sent, "read", read)
    write(run_dir, 6, 8)
    sender = delivery(server, run_dir)
    with pytest.raises(OSError, match="Input/output"):
        sender.round()
    sender.round()
    assert len(server.runs) == 1 and len(server.points) == 8 and set(server.points.values()) == {1}


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_sender_that_outlives_its_run_leaves_the_note_of_the_next(begins_anew: bool, tmp_path: Path) -> None:
    """It was killed, and its sender is still waiting for an answer when the directory is another run's."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    write(run_dir, 1, 5)
    left = delivery(server, run_dir)
    left.round()
    write(run_dir, 1, 3, resume=-1)
    note = run_dir.tracking / "memory.json"
    Sent(spec="of the next").write(note)
    key = Sent.read(note).key
    if begins_anew:  # as after a failure
        left._server = None
    write(run_dir, 4, 9)
    with pytest.raises(OvertakenError):
        left.round()
    assert Sent.read(note).key == key and Sent.read(note).last == {}
    delivery(server, run_dir).round()
    assert len(server.runs) == 2 and Sent.read(note).last == {"metrics": 9}


def test_a_note_that_was_removed_is_written_anew(tmp_path: Path) -> None:
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    write(run_dir, 1, 5)
    sender = delivery(server, run_dir)
    sender.round()
    (run_dir.tracking / "memory.json").unlink()
    write(run_dir, 6, 7)
    sender.round()
    assert Sent.read(run_dir.tracking / "memory.json").last == {"metrics": 7} and len(server.points) == 7


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    spool = Spool(path)
    assert [row["step"] for row in spool.after(0)] == [1]
    with path.open("a") as file:
        file.write('ss": 2.0}\nno json\n{"step": 3}\n')
    assert [row["step"] for row in spool.after(1)] == [2, 3]


def test_one_sender_at_a_time(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "r")
    with only_sender(run_dir) as first, only_sender(run_dir) as second:
        assert (first, second) == (True, False)
    with only_sender(run_dir) as third:
        assert third


def test_settings_hold_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in a path's URL stays here, and so does the value of a secret variable."""
    monkeypatch.setenv("DATA_TOKEN", "hush-hush-hush")
    spec = SPEC.model_copy(update={"name": "of-hush-hush-hush"})
    text = json.dumps(settings_of(spec))
    assert "hush-hush-hush" not in text and "train.num_train_epochs" in text


def test_settings_are_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever compares runs sorts by them and draws them; a number that a secret variable has is none to show."""
    monkeypatch.setenv("SOME_PASSWORD", "123456")
    value = {"learning_rate": 2e-4, "seed": 123456, "torch_compile": True}
    found = settings_of(SPEC.model_copy(update={"train": SPEC.train.model_copy(update=value)}))
    named = {name: found[f"train.{name}"] for name in (*value, "max_steps", "gradient_checkpointing")}
    assert named == {**value, "seed": "[hidden]", "max_steps": None, "gradient_checkpointing": "auto"}
    assert found["train.torch_compile"] is True
    assert all(value is None or isinstance(value, (str, int, float)) for value in found.values())


def test_another_place_gets_the_whole_run_and_the_same_one_no_step_twice(tmp_path: Path) -> None:
    run_dir, laptop, server = RunDir(tmp_path / "r"), MemoryServer(), MemoryServer()
    laptop.place, server.place = "files", "rankzero in http://host"
    write(run_dir, 1, 3)
    delivery(laptop, run_dir).round()
    write(run_dir, 4, 5)
    delivery(server, run_dir).round()
    write(run_dir, 6, 6)
    delivery(server, run_dir).round()
    for there, last in (laptop, 3), (server, 6):
        counts = {
            step: count for (kind, step, name), count in there.points.items() if (kind, name) == ("metrics", "loss")
        }
        assert counts == dict.fromkeys(range(1, last + 1), 1)
    assert Sent.read(run_dir.tracking / "memory.json").place == server.place


def test_one_server_by_two_addresses_has_one_run_and_no_step_twice(tmp_path: Path) -> None:
    """A port-forward, a slash at the end: what it has under the run's key is found there."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    keys = set()
    for last, address in enumerate(("http://host", "http://localhost:1", "http://host"), 1):
        server.place = address
        write(run_dir, 2 * last - 1, 2 * last)
        delivery(server, run_dir).round()
        keys.add(Sent.read(run_dir.tracking / "memory.json").key)
    counts = {step: count for (kind, step, name), count in server.points.items() if (kind, name) == ("metrics", "loss")}
    assert len(keys) == 1 and counts == dict.fromkeys(range(1, 7), 1)


@pytest.mark.parametrize("while_it_sends", [True, False])
def test_a_server_that_has_lost_the_run_gets_all_of_it_anew(
    while_it_sends: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It was set up anew at its address; a copy of its data that has the key is asked what it has."""
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    a_row_of_each_kind(run_dir)
    sender = delivery(server, run_dir)
    sender.round()
    whole, key = dict(server.points), server.runs.pop()
    server.points.clear()
    if while_it_sends:
        write(run_dir, 4, 4)
        server.refused = {"metrics"}
        with pytest.raises(RefusedError):
            sender.round()
        server.refused = set()
    else:
        sender = delivery(server, run_dir)
    sender.round()
    assert "memory does not have memory any more" in capfd.readouterr().err
    assert whole.items() <= server.points.items() and set(server.points.values()) == {1}
    assert server.runs == [key] and server.ended == ["finished"] * 2
    sent = run_dir.tracking / "memory.json"
    noted = Sent.read(sent)
    noted.there = "as before it was copied"
    noted.write(sent)
    write(run_dir, 5, 6)
    delivery(server, run_dir).round()
    assert set(server.points.values()) == {1} and ("metrics", 6, "loss") in server.points


def test_a_run_that_was_brought_back_sends_no_step_twice(tmp_path: Path) -> None:
    """Its copy in an object store has the notes of then, and its first machine sent on before it was gone. The server
    is asked until it is known to have no more."""
    first, second, server = RunDir(tmp_path / "a/r"), RunDir(tmp_path / "b/r"), Asked()
    first.root.parent.mkdir()
    write(first, 1, 10)
    delivery(server, first).round()
    shutil.copytree(first.root, second.root)
    write(first, 11, 25)
    delivery(server, first).round()
    assert not server.asked
    again = delivery(server, second)
    for last in range(11, 31):
        write(second, last, last)
        again.round()
    again = delivery(server, second)
    write(second, 31, 40)
    again.round()
    assert server.asked == list(range(11, 27))
    assert server.points == Counter({("metrics", step, "loss"): 1 for step in range(1, 41)})


def test_a_directory_that_was_made_again_at_its_place_sends_no_step_twice(tmp_path: Path) -> None:
    """The file system may give the new one the number of the old one, which stays the same here."""
    run, copy, server = RunDir(tmp_path / "r"), tmp_path / "copy", Asked()
    write(run, 1, 10)
    with only_sender(run):
        delivery(server, run).round()
        shutil.copytree(run.root, copy)
        write(run, 11, 25)
        delivery(server, run).round()
        assert not server.asked, "it is where it was"
    for path in run.root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(copy, run.root, dirs_exist_ok=True, copy_function=shutil.copyfile)
    write(run, 11, 30)
    with only_sender(run):
        delivery(server, run).round()
    assert server.points == Counter({("metrics", step, "loss"): 1 for step in range(1, 31)})


class Asked(MemoryServer):
    """Remembers which steps it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def known(self, kind: Kind, rows: Sequence[Row]) -> set[tuple[int, str]]:
        self.asked += [row["step"] for row in rows]
        return super().known(kind, rows)


def test_notes_of_a_version_that_knew_no_places_are_gone_on_with(tmp_path: Path) -> None:
    run_dir, server = RunDir(tmp_path / "r"), MemoryServer()
    write(run_dir, 1, 3)
    delivery(server, run_dir).round()
    path = run_dir.tracking / "memory.json"
    noted = json.loads(path.read_text())
    path.write_text(json.dumps({name: value for name, value in noted.items() if name != "place"}))
    write(run_dir, 4, 4)
    delivery(server, run_dir).round()
    after = Sent.read(path)
    assert (after.key, after.place, after.last["metrics"]) == (noted["key"], "memory", 4)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("http://ann:s3cretpw@host/a", "http://ben:0therpw@host/a", True),
        ("http://host/a", "http://host/b", False),
        ("sqlite:///a.db", "sqlite:///b.db", False),
    ],
)
def test_a_place_is_the_same_whoever_asks(one: str, other: str, same: bool) -> None:
    places = place_of("p", one), place_of("p", other)
    assert (places[0] == places[1]) is same and place_of("q", one) != places[0]
    assert not [word for word in ("ann", "s3cretpw") if word in places[0]]
