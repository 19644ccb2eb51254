"""Logs of all pods as one stream: nothing lost and nothing twice, whatever restarts or breaks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.errors import AccessError, ServiceError
from rankzero.launch.backend import LogLine, LogQuery
from rankzero.launch.backends.kubernetes.errors import ApiError, unanswered
from rankzero.launch.backends.kubernetes.log_reader import LogPosition, PodLog
from rankzero.launch.backends.kubernetes.streams import Clock, Streams
from rankzero.launch.labels import Manifest
from rankzero.launch.log_lines import Wanted, read_stamp
from tests.support.fake_cluster import Act, life
from tests.unit.launch.backends.kubernetes.runs import Bench, objects

NEVER = datetime.max.replace(tzinfo=UTC)
DONE: Act = ("exit", 0, "")


def follow(bench: Bench, **query: Any) -> list[LogLine]:
    """All lines until the run has ended."""
    return list(bench.backend().logs("r", LogQuery(follow=True, **query)))


def texts(lines: Iterable[LogLine], node: int = 0) -> list[str]:
    return [line.text for line in lines if line.node == node and line.role == "node"]


def numbered(count: int, word: str = "line") -> list[Act]:
    return [("log", f"{word} {number}") for number in range(count)]


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob", "pytorchjob"])
def test_all_pods_from_pending_to_the_end(bench: Bench, kind: str) -> None:
    for node in (0, 1):
        bench.cluster.script("node", node, [("wait", "ContainerCreating", ""), ("run",), *numbered(30), DONE])
    bench.submit(objects(kind=kind))
    lines = follow(bench)
    expected = [f"line {number}" for number in range(30)]
    assert texts(lines, 0) == expected
    assert texts(lines, 1) == expected
    assert all(line.time is not None for line in lines)


def test_waiting_is_spoken(bench: Bench) -> None:
    bench.cluster.script("node", 0, [("wait", "ImagePullBackOff", "no such image"), ("hold",), *life("at last")])
    bench.said.reactions["waits: ImagePullBackOff: no such image"] = bench.cluster.world.release
    bench.submit(objects(num_nodes=1))
    assert texts(follow(bench)) == ["at last"]
    assert sum("`rankzero status r` says what to do" in line for line in bench.said) == 1


def test_what_takes_its_usual_course_asks_nobody_to_look(bench: Bench) -> None:
    bench.cluster.script("node", 0, [("wait", "ContainerCreating", ""), *life("at last")])
    bench.submit(objects(num_nodes=1))
    assert texts(follow(bench)) == ["at last"]
    assert not bench.heard("rankzero status")


@pytest.mark.parametrize("kind", ["job", "jobset", "statefulset"])
def test_that_there_is_no_pod_is_spoken(bench: Bench, kind: str) -> None:
    """As where the namespace takes none such: nothing that is followed would ever say a word."""
    bench.cluster.script("node", 0, [("run",), ("log", "at last"), ("hold",)])
    bench.cluster.world.refused, bench.cluster.ends_idle_watches = (
        'violates PodSecurity "restricted:latest": privileged',
        True,
    )
    bench.said.reactions["no pod"] = lambda: setattr(bench.cluster.world, "refused", "")
    bench.submit(objects(num_nodes=1, kind=kind))
    line = next(bench.backend().logs("r", LogQuery(follow=True)))
    assert line.text == "at last"
    assert [said for said in bench.said if "no pod" in said] == [
        "r has no pod yet; `rankzero status r` says what is known of it"
    ]


def test_a_statefulset_ends_when_it_is_parked(bench: Bench) -> None:
    for node in (0, 1):
        bench.cluster.script("node", node, [("run",), *numbered(3), ("hold",)])
    bench.submit(objects(kind="statefulset"))
    lines = bench.backend().logs("r", LogQuery(follow=True))
    seen = [next(lines) for _ in range(6)]
    parked = bench.cluster.get("statefulsets", "r")
    parked["metadata"]["annotations"]["rankzero.dev/outcome"] = "{}"
    parked["spec"]["replicas"] = 0
    bench.cluster.store.put(parked)
    rest = list(lines)
    assert [line.text for line in rest] == ["stopped and saved"] * 2
    assert len(texts(seen, 0)) == len(texts(seen, 1)) == 3


def test_a_container_that_restarts(bench: Bench) -> None:
    life_: list[Act] = [("run",), *numbered(3, "first"), ("restart", 1), *numbered(3, "second"), DONE]
    bench.cluster.script("node", 0, life_)
    bench.submit(objects(num_nodes=1))
    words = [f"{word} {number}" for word in ("first", "second") for number in range(3)]
    lines = follow(bench)
    assert sorted(texts(lines)) == words
    assert texts(sorted(lines, key=lambda line: line.time or NEVER)) == words


@pytest.mark.parametrize(
    ("tail", "first"),
    [
        (2, ["second 2", "second 3"]),
        (4, [f"second {number}" for number in range(4)]),
        (6, ["first 3", "first 4", *(f"second {number}" for number in range(4))]),
        (99, [*(f"first {number}" for number in range(5)), *(f"second {number}" for number in range(4))]),
    ],
)
def test_the_last_lines_of_a_pod_that_has_restarted_in_place(bench: Bench, tail: int, first: list[str]) -> None:
    """They are the newest container's, and before them what it lacks of the one before; then what is new."""
    first_life: list[Act] = [("run",), *numbered(5, "first"), ("restart", 1), *numbered(4, "second")]
    bench.cluster.script("node", 0, [*first_life, ("hold",), ("log", "new"), DONE])
    bench.submit(objects(num_nodes=1), wait=False)
    bench.cluster.world.run_down()
    assert texts(bench.backend().logs("r", LogQuery(tail=tail))) == first
    lines = bench.backend().logs("r", LogQuery(follow=True, tail=tail))
    seen = [next(lines) for _ in first]
    bench.cluster.world.release()
    assert texts(seen) == first and texts(lines) == ["new"]
    asked = [request.path for request in bench.cluster.requests if "/log?" in request.path]
    assert all("tailLines" in path or "sinceTime" in path for path in asked), "no more than what is shown"


def test_the_last_lines_of_a_pod_that_waits_to_be_started_again(bench: Bench) -> None:
    """Its log is then that of the container that has ended, and so is the one before."""
    bench.cluster.script("node", 0, [("run",), *numbered(3), ("restart", 1), *numbered(2, "more"), ("hold",)])
    bench.submit(objects(num_nodes=1), wait=False)
    bench.cluster.world.run_down()
    [pod] = bench.cluster.store.of("pods")
    [instances] = bench.cluster.world.logs.values()
    instances.append(instances[-1])
    assert instances[-2].lines is instances[-1].lines
    log = PodLog(bench.api(), Streams(), pod, LogQuery(tail=9))
    assert texts(log.past()) == ["more 0", "more 1"]


def test_last_lines_that_are_refused_at_first_are_asked_for_again(bench: Bench) -> None:
    bench.cluster.script("node", 0, [("run",), *numbered(3), ("restart", 1), *numbered(4, "more"), DONE])
    bench.submit(objects(num_nodes=1), wait=False)
    bench.cluster.world.run_down()
    fault = bench.cluster.fail("GET", "/log", status=500, message="no route to kubelet", times=1)
    assert texts(follow(bench, tail=2)) == ["more 2", "more 3"] and fault.times == 0


@pytest.mark.parametrize(("read", "missing"), [(0, "none of it is here"), (1, "its end may be missing")])
def test_the_log_of_an_ended_pod_that_is_given_up_is_told(bench: Bench, read: int, missing: str) -> None:
    """Or its Traceback would be missing without a word."""
    first: list[Act] = [*numbered(read), ("hold",), ("cut",), ("hold",)] if read else []
    bench.cluster.script("node", 0, [("run",), *first, ("log", "the reason"), ("exit", 70, "")], life("again"))
    bench.submit(objects(num_nodes=1), wait=False)
    lines = bench.backend().logs("r", LogQuery(follow=True))
    seen = [next(lines) for _ in range(read)]
    bench.cluster.fail("GET", "r-0-00001/log", status=500, message="no route to kubelet", times=1000)
    bench.said.reactions["still trying"] = bench.cluster.world.release
    bench.cluster.world.release()
    assert texts([*seen, *lines]) == [*["line 0"] * read, "again"]
    told = [line for line in bench.said if "could not be read" in line]
    assert told == [f"the log of r-0-00001 could not be read, {missing}: no route to kubelet"]


def test_a_pod_that_is_replaced(bench: Bench) -> None:
    bench.cluster.script("node", 1, [("run",), *numbered(2, "first"), ("evict",)], life("second"))
    bench.submit(objects())
    lines = follow(bench)
    assert texts(sorted(lines, key=lambda line: line.time or NEVER), 1) == ["first 0", "first 1", "second"]
    assert len({line.pod for line in lines if line.node == 1}) == 2


@pytest.mark.parametrize("query", [{"tail": 2}, {"since_seconds": 30}])
def test_of_a_pod_that_starts_later_every_line_comes(bench: Bench, query: dict[str, int]) -> None:
    """However many it has said before it is connected to."""
    lives = [[("run",), *numbered(3, "first"), ("exit", 70, "")], [("run",), *numbered(8, "second"), DONE]]
    bench.cluster.script("node", 0, *lives)
    bench.submit(objects(num_nodes=1), wait=False)
    for _ in range(6):
        bench.cluster.world.step()
    # Of pods that are read side by side, whichever is answered first speaks first.
    lines = sorted(follow(bench, **query), key=lambda line: line.time or NEVER)
    first = ["first 1", "first 2"] if "tail" in query else [f"first {number}" for number in range(3)]
    assert texts(lines) == [*first, *(f"second {number}" for number in range(8))]
    asked = [request.path for request in bench.cluster.requests if "/log?" in request.path]
    limited = {path.split("/")[6] for path in asked if "tailLines" in path or "sinceSeconds" in path}
    assert limited == {lines[0].pod}


@pytest.mark.parametrize(
    ("query", "first"),
    [
        (LogQuery(follow=True, tail=0), {"tailLines": "0"}),
        (LogQuery(follow=True, tail=2), {"tailLines": "2"}),
        (LogQuery(follow=True, since_seconds=30), {"sinceSeconds": "30"}),
        (LogQuery(follow=True), {}),
    ],
)
def test_what_a_silent_pod_says_while_its_stream_is_away_comes(query: LogQuery, first: dict[str, str]) -> None:
    """How much of what there is is shown is settled by the first reading that is answered; what comes later is new."""
    container: dict[str, Any] = {"name": "node", "restartCount": 0, "state": {"running": {}}}
    metadata = {"name": "r-0", "uid": "u", "labels": {"rankzero.dev/role": "node"}}
    running: Manifest = {"metadata": metadata, "status": {"phase": "Running", "containerStatuses": [container]}}
    asked: list[dict[str, str]] = []
    now = itertools.count(100.0, 10.0)

    def answer(_path: str, params: dict[str, str], *, opened: Callable[[], None], **_: object) -> Iterator[str]:
        asked.append({name: params[name] for name in ("tailLines", "sinceSeconds") if name in params})
        if len(asked) == 1:
            raise ApiError(unanswered("get pods", httpx2.ConnectError("refused"), spoken=True))
        opened()
        if len(asked) == 4:
            log.update({**running, "status": {**running["status"], "phase": "Succeeded"}})
        yield from ["2026-11-21T07:00:00Z last"] if len(asked) == 4 else []

    clock = Clock(sleep=lambda _: None, monotonic=lambda: next(now))
    place = SimpleNamespace(namespace="n")
    api: Any = SimpleNamespace(place=place, clock=clock, lines=answer, read=lambda *_, **__: log.pod, tell=print)
    log = PodLog(api, Streams(), running, query)
    assert [line.text for line in log.lines()] == ["last"]
    later = [{"sinceSeconds": "11"}, {"sinceSeconds": "31"}] if first else [{}, {}]
    assert asked[:4] == [first, first, *later]


def test_streams_that_break_lose_and_repeat_nothing(bench: Bench) -> None:
    script: list[Act] = [("run",), *numbered(4), ("same", "twin"), ("same", "twin"), ("cut",), ("same", "twin")]
    bench.cluster.script("node", 0, [*script, *numbered(4, "more"), ("cut",), *numbered(2, "end"), DONE])
    bench.submit(objects(num_nodes=1))
    expected = [*(f"line {n}" for n in range(4)), *["twin"] * 3, *(f"more {n}" for n in range(4)), "end 0", "end 1"]
    assert texts(follow(bench)) == expected


def test_log_requests_that_fail_are_made_again(bench: Bench) -> None:
    bench.cluster.script("node", 0, [("run",), *numbered(5), DONE])
    bench.cluster.fail("GET", "/log?", status=500, message="kubelet is away", times=4)
    bench.cluster.fail("GET", "/log?", drop="before", times=2)
    bench.submit(objects(num_nodes=1))
    assert texts(follow(bench)) == [f"line {number}" for number in range(5)]
    assert bench.heard("kubelet is away")


def silenced(bench: Bench, times: int) -> Any:
    """A stream of two lines whose server, from then on, does not answer for so many calls about pods."""
    bench.cluster.script("node", 0, [("run",), *numbered(2), ("hold",), ("cut",), *numbered(2, "more"), DONE])
    bench.submit(objects(num_nodes=1))
    lines = bench.backend().logs("r", LogQuery(follow=True))
    assert [next(lines).text for _ in range(2)] == ["line 0", "line 1"]
    bench.cluster.fail("GET", "/pods/", drop="before", times=times)
    bench.cluster.world.release()
    return lines


def test_a_server_that_is_silent_for_a_while_ends_nothing(bench: Bench) -> None:
    lines = silenced(bench, 20)
    assert [line.text for line in lines] == ["more 0", "more 1"]
    assert sum("what runs goes on" in line for line in bench.said) == 1 and bench.ticks.seconds > 60


def test_a_server_that_stays_silent_ends_it(bench: Bench) -> None:
    lines = silenced(bench, 100_000)
    with pytest.raises(ServiceError, match="does not answer"):
        list(lines)
    assert bench.ticks.seconds > 600


def test_watches_that_drop_and_age(bench: Bench) -> None:
    for node in (0, 1):
        bench.cluster.script("node", node, [("wait", "ContainerCreating", ""), ("run",), *numbered(10), DONE])
    bench.cluster.fail("GET", "watch=true", drop="cut", times=2)
    bench.cluster.fail("GET", "watch=true", drop="before", times=2)
    bench.cluster.fail("GET", "watch=true", status=410, reason="Expired", message="too old", times=2)
    bench.submit(objects())
    lines = follow(bench)
    assert len(texts(lines, 0)) == len(texts(lines, 1)) == 10


def test_history_that_ends_in_mid_watch(bench: Bench) -> None:
    bench.cluster.script("node", 0, [("run",), *numbered(3), ("hold",), *numbered(3, "more"), DONE])
    bench.submit(objects(num_nodes=1))
    lines = bench.backend().logs("r", LogQuery(follow=True))
    seen = [next(lines).text for _ in range(3)]
    bench.cluster.store.compact()
    bench.cluster.world.release()
    assert [*seen, *(line.text for line in lines)] == [
        *(f"line {n}" for n in range(3)),
        *(f"more {n}" for n in range(3)),
    ]


def test_403_on_logs_is_an_error(bench: Bench) -> None:
    bench.submit(objects())
    bench.cluster.fail(
        "GET",
        "/log?",
        status=403,
        reason="Forbidden",
        message='User "me" cannot get resource "pods/log" in API group "" in the namespace "train"',
        times=9,
    )
    with pytest.raises(AccessError, match="not permitted to get pods/log in namespace train"):
        follow(bench)


def test_one_node_and_one_rank(bench: Bench) -> None:
    said = ["from rank 0 without a word", "[rank 1] r1", "[rank 2] r2", "[rank 3] r3"]
    for node, lines in ((0, said[:2]), (1, said[2:])):
        bench.cluster.script("node", node, [("run",), *(("log", line) for line in lines), DONE])
    bench.submit(objects(nproc_per_node=2))
    assert {line.text for line in follow(bench, node=1)} == {"[rank 2] r2", "[rank 3] r3"}
    for rank, text in enumerate(said):
        assert [line.text for line in follow(bench, rank=rank)] == [text]
        assert [line.text for line in bench.backend().logs("r", LogQuery(rank=rank))] == [text]


def test_a_line_without_a_rank_is_the_first_process(bench: Bench) -> None:
    keep = Wanted.of(LogQuery(rank=2), 2).line
    assert keep(LogLine(1, "p", "node", "plain"))
    assert keep(LogLine(1, "p", "node", "[local rank 0] x"))
    assert not keep(LogLine(1, "p", "node", "[rank 3] x"))


def test_what_there_is_now_by_time(bench: Bench) -> None:
    for node in (0, 1):
        bench.cluster.script("node", node, [("run",), *numbered(5), ("restart", 1), *numbered(2, "more"), ("hold",)])
    bench.submit(objects())
    bench.cluster.world.run_down()
    lines = list(bench.backend().logs("r", LogQuery()))
    assert [line.time for line in lines] == sorted(line.time for line in lines if line.time)
    assert len(texts(lines, 0)) == len(texts(lines, 1)) == 7
    tail = list(bench.backend().logs("r", LogQuery(tail=1)))
    assert texts(tail) == ["more 1"]


def test_the_preparation_speaks_too(bench: Bench) -> None:
    bench.cluster.script("prepare", 0, life("fetching", "fetched"))
    bench.submit(objects(prepare="always"), wait=False)
    lines = follow(bench)
    assert [line.text for line in lines if line.role == "prepare"] == ["fetching", "fetched"]


def test_a_stopped_run_ends_the_stream(bench: Bench) -> None:
    bench.cluster.script("node", 0, [("run",), *numbered(2), ("hold",)])
    bench.submit(objects(num_nodes=1))
    lines = bench.backend().logs("r", LogQuery(follow=True))
    assert [next(lines).text, next(lines).text] == ["line 0", "line 1"]
    bench.backend().cancel("r", bench.said.append)
    assert [line.text for line in lines] == ["stopped and saved"]


def test_leaving_early_leaves_no_thread(bench: Bench) -> None:
    bench.cluster.script("node", 0, [("run",), *numbered(2), ("hold",)])
    bench.submit(objects(num_nodes=1))
    lines = bench.backend().logs("r", LogQuery(follow=True))
    next(lines)
    mine = [thread for thread in threading.enumerate() if thread.name == "rankzero-logs-r"]
    lines.close()  # type: ignore[attr-defined]
    for thread in mine:
        thread.join(timeout=300)
    assert mine and not any(thread.is_alive() for thread in mine)


def test_more_pods_than_can_be_followed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.launch.backends.kubernetes.logs.MOST_FOLLOWED", 2)
    holding: list[Act] = [("run",), ("log", "hello"), ("hold",), DONE]
    for node in range(4):
        bench.cluster.script("node", node, holding)
    bench.submit(objects(num_nodes=4))
    bench.cluster.world.run_down()
    bench.said.reactions["following 2 pods"] = bench.cluster.world.release
    lines = follow(bench)
    assert "hello" in texts(lines, 0)
    assert bench.heard("--node N")


@pytest.mark.parametrize(
    ("line", "text", "nanos"),
    [
        ("2026-11-21T07:00:00.123456789Z hello", "hello", 123456789),
        ("2026-11-21T07:00:00Z ", "", 0),
        ("2026-11-21T08:00:00.5+01:00 a  b", "a  b", 500000000),
    ],
)
def test_stamps(line: str, text: str, nanos: int) -> None:
    stamped = read_stamp(line)
    assert stamped.text == text
    assert stamped.moment is not None and stamped.moment[1] == nanos
    assert stamped.moment[0].isoformat() == "2026-11-21T07:00:00+00:00"


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_reading_again_from_any_second_gives_each_line_once(gaps: list[int], breaks: list[int]) -> None:
    """Lines of few instants, read in pieces; each reading starts at the second where the one before stopped."""
    log, now = [], 0
    for number, gap in enumerate(gaps):
        now += gap
        log.append(f"2026-11-21T07:00:{now // 3 % 60:02}.{now % 3}Z line {number}")
    position, read = LogPosition(), []
    for end in [*sorted(breaks), len(log)]:
        since = position.reconnect().get("sinceTime", "")[:19]
        read += [line for line in log[:end] if line[:19] >= since and position.is_new(read_stamp(line))]
    assert read == log
