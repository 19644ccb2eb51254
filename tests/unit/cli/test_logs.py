"""`rankzero logs`, and how its lines look."""

from __future__ import annotations

import json

import pytest

from rankzero.cli.log_view import as_line
from rankzero.cli.logs import seconds
from rankzero.errors import UsageError
from rankzero.launch.backend import LogLine
from tests.support.fake_cluster import life
from tests.unit.cli.conftest import Place


@pytest.fixture
def finished(place: Place) -> Place:
    for node in (0, 1):
        place.cluster.script("node", node, life(*(f"line {number} of {node}" for number in range(3))))
    assert place("submit run.yaml --detach").code == 0
    place.cluster.world.run_down()
    return place


def test_all_nodes(finished: Place) -> None:
    done = finished("logs r")
    assert done.code == 0, done.err
    assert sorted(done.out.splitlines()) == sorted(f"[node {n}] line {i} of {n}" for n in (0, 1) for i in range(3))
    assert "\x1b" not in done.out


def test_one_node_and_the_last_lines(finished: Place) -> None:
    assert finished("logs run.yaml --node 1 --tail 1").out == "[node 1] line 2 of 1\n"
    assert finished("logs r --rank 0 --tail 1").out == "[node 0] line 2 of 0\n"


def test_json(finished: Place) -> None:
    lines = [json.loads(line) for line in finished("logs r --json --node 0").out.splitlines()]
    assert [line["text"] for line in lines] == [f"line {number} of 0" for number in range(3)]
    assert set(lines[0]) == {"node", "pod", "role", "time", "text"}


def test_following_an_ended_run_ends(finished: Place) -> None:
    assert len(finished("logs r --follow").out.splitlines()) == 6


def test_pods_that_have_not_begun_say_nothing_which_is_said(place: Place) -> None:
    for node in (0, 1):
        place.cluster.script("node", node, [("wait", "ImagePullBackOff", "no such image"), ("hold",)])
    place("submit run.yaml --detach")
    place.cluster.world.run_down()
    done = place("logs r")
    assert (done.code, done.out) == (0, "")
    assert "no pod of r has a log; `rankzero status r` says how it is" in done.err
    assert "has a log" not in place("logs r --node 1").err, "whoever asks for a part may get none"


def test_since_is_handed_on(finished: Place) -> None:
    finished("logs r --since 10m")
    assert any("sinceSeconds=600" in request.path for request in finished.cluster.requests)


@pytest.mark.parametrize(
    ("text", "value"), [("30", 30), ("30s", 30), ("10m", 600), ("2h", 7200), ("1d", 86400), ("0", 1)]
)
def test_times(text: str, value: int) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "m", "1w", "-1", "1.5h", "ten"])
def test_no_times(text: str) -> None:
    with pytest.raises(UsageError, match="not a time"):
        seconds(text)


def test_colours_tell_nodes_apart() -> None:
    lines = [as_line(LogLine(node, "p", "node", "x"), colour=True) for node in (0, 1)]
    assert lines[0] != lines[1] and all("\x1b[0m" in line for line in lines)
    assert as_line(LogLine(0, "p", "prepare", "x"), colour=False) == "[prepare] x"
