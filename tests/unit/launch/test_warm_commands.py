"""One command in several pods: what is told to end when something goes wrong, and what is said where that fails."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from rankzero.errors import AccessError, ServiceError
from rankzero.launch.backend import Backend, Ended, Hear
from rankzero.launch.node.group import NOT_BEGUN
from rankzero.launch.warm.commands import _Lines, run_together
from rankzero.launch.warm.pods import WarmPod

PODS = [WarmPod("a", 0, 1, "m"), WarmPod("b", 1, 1, "m")]


@dataclass
class Place:
    """Pods whose commands run until they are told to end."""

    runs: dict[str, Callable[[Hear], Ended]] = field(default_factory=dict)
    """What is done instead, by pod."""
    refuses: dict[str, list[Exception]] = field(default_factory=dict)
    """What the next orders to end come upon, by pod."""
    ends: dict[str, Callable[[Hear], Ended]] = field(default_factory=dict)
    """What orders to end do instead, by pod."""
    said: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    over: dict[str, threading.Event] = field(default_factory=lambda: {pod.name: threading.Event() for pod in PODS})
    heard: list[tuple[str, str]] = field(default_factory=list)

    def execute(self, pod: str, command: Sequence[str], hear: Hear, _stdin: object = None) -> Ended:
        if command[5] == "run":
            return self.runs.get(pod, lambda hear: self._until_told(pod, hear))(hear)
        self.told.append(pod)
        if self.refuses.get(pod):
            raise self.refuses[pod].pop(0)
        self.over[pod].set()
        return self.ends.get(pod, lambda _hear: Ended(0))(hear)

    def _until_told(self, pod: str, hear: Hear) -> Ended:
        hear(b"up\n")
        assert self.over[pod].wait(60)
        return Ended(143)

    def __call__(self, line: Callable[[WarmPod, str], None] | None = None) -> int:
        """Run something there."""

        def note(pod: WarmPod, text: str) -> None:
            self.heard.append((pod.name, text))

        env: dict[str, dict[str, str]] = {pod.name: {} for pod in PODS}
        return run_together(cast(Backend, self), PODS, ["x"], env, 1.0, line or note, self.said.append)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("rankzero.launch.warm.commands.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("rankzero.launch.warm.commands.PEER_SECONDS", 0.0)
    return Place()


def broken(_hear: Hear) -> Ended:
    raise ServiceError("the connection broke before the command ended")


def gets(number: int) -> Callable[[WarmPod, str], None]:
    """Somebody who sends this process a signal at the first line."""
    sent: list[Any] = []

    def line(_pod: WarmPod, _text: str) -> None:
        if not sent:
            sent.append(os.kill(os.getpid(), number))

    return line


def test_a_pod_whose_connection_broke_is_told_to_end_as_the_others_are(place: Place) -> None:
    place.runs["a"] = broken
    with pytest.raises(ServiceError, match="the connection broke") as caught:
        place()
    assert set(place.told) == {"a", "b"} and "may still run" not in str(caught.value)


def test_an_order_to_end_that_fails_is_given_again(place: Place) -> None:
    place.refuses["a"] = [ServiceError("no answer"), ServiceError("no answer")]
    assert place(gets(signal.SIGINT)) == 130
    assert place.told.count("a") == 3


def test_a_pod_that_cannot_be_told_to_end_is_named_with_what_ends_it(place: Place) -> None:
    place.refuses["b"] = [ServiceError("no answer") for _ in range(9)]
    assert place(gets(signal.SIGINT)) == 130
    (said,) = place.said
    assert said.startswith("warning: pod b: the command may still run there: it could not be told to end (no answer)")
    assert "rankzero dev down" in said


def test_where_a_connection_and_the_order_to_end_break_both_are_said(place: Place) -> None:
    place.runs["a"] = broken
    place.refuses["a"] = [ServiceError("no answer") for _ in range(9)]
    with pytest.raises(ServiceError) as caught:
        place()
    first, second = caught.value.problems
    assert "the connection broke" in first.what and "may still run there" in second.what and second.where == "pod a"


def test_a_place_that_does_not_let_commands_run_has_none_to_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.launch.warm.commands.PEER_SECONDS", 60.0)

    def refused(_hear: Hear) -> Ended:
        raise AccessError("you may not create pods/exec")

    place.runs = {"a": refused, "b": refused}
    with pytest.raises(AccessError):
        place()
    assert place.told == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_end_the_command_in_all_pods(place: Place, name: str) -> None:
    number = signal.Signals[name]
    before = signal.signal(number, signal.SIG_DFL if name != "SIGINT" else signal.default_int_handler)
    try:
        assert place(gets(number)) == 128 + number
        assert set(place.told) == {"a", "b"}
        assert signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("times", [1, 2])
def test_signals_reach_the_pods_while_nobody_reads_the_lines(place: Place, times: int) -> None:
    def line(_pod: WarmPod, _text: str) -> None:  # as on a full pipe
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        assert all(over.wait(10) for over in place.over.values())

    assert place(line) == 130
    assert set(place.told) == {"a", "b"} and place.said == []


def test_the_second_ctrl_c_waits_for_a_moment_and_names_what_may_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(_pod: WarmPod, _text: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("rankzero.launch.warm.commands.LAST_SECONDS", 0.1)
    place.runs["b"] = lambda _hear: Ended(0)
    place.runs["a"] = lambda hear: [hear(b"1\n2\n"), threading.Event().wait(60), Ended(0)][-1]  # type: ignore[return-value]
    place.ends["a"] = lambda _hear: [threading.Event().wait(60), Ended(0)][-1]  # type: ignore[return-value]
    assert place(twice) == 143
    (said,) = place.said
    assert said.startswith("warning: pod a: the command may still run there\n") and "rankzero dev down" in said


def test_where_the_command_before_still_saves_ctrl_c_waits_for_nothing(place: Place) -> None:
    """The one that it ends had not begun, and does not any more: so the pods say."""
    saved = threading.Event()
    place.runs["b"] = lambda hear: [hear(b"waits\n"), saved.wait(10), saved.set(), Ended(143)][-1]  # type: ignore[return-value,func-returns-value]
    place.ends["b"] = lambda hear: [hear(NOT_BEGUN.encode() + b"\n"), Ended(0)][-1]  # type: ignore[return-value]
    assert place(gets(signal.SIGINT)) == 130 and not saved.is_set()
    saved.set()
    assert set(place.told) == {"a", "b"} and place.said == []


def test_where_nobody_reads_the_lines_any_more_the_command_is_ended(place: Place) -> None:
    def line(_pod: WarmPod, _text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        place(line)
    assert set(place.told) == {"a", "b"}


def heard(*pieces: bytes, seconds: float = 1.0) -> list[str]:
    """What is shown of bytes that come one piece each so many seconds."""
    shown: list[str] = []
    clock = itertools.count(0.0, seconds)
    lines = _Lines(shown.append, lambda: next(clock))
    for piece in pieces:
        lines.hear(piece)
    lines.flush()
    return shown


def test_a_progress_bar_is_shown_before_its_line_ends_and_not_at_every_step() -> None:
    steps = [f"\r{step:3} of 100".encode() for step in range(101)]
    shown = heard(b"begin\n", *steps, b"\nend\n")
    assert shown[:3] == ["begin", "  0 of 100", "  5 of 100"] and shown[-2:] == ["100 of 100", "end"]
    assert len(shown) == 3 + 20


def test_a_bar_that_stalls_is_shown_as_it_is_now(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.launch.warm.commands.BAR_SECONDS", 0.3)
    shown: list[str] = []

    def line(_pod: WarmPod, text: str) -> None:
        shown.append(text)
        if text == "39 of 40":
            place.over["a"].set()

    def bar(hear: Hear) -> Ended:
        hear(b"\r38 of 40")
        hear(b"\r39 of 40")
        assert place.over["a"].wait(10)
        return Ended(0)

    place.runs = {"a": bar, "b": lambda _hear: Ended(0)}
    assert place(line) == 0 and shown == ["38 of 40", "39 of 40"]


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"a\nb", b"c\n\nd"], ["a", "bc", "", "d"]),
        ([b"a\r\nb\r\n\r\nc"], ["a", "b", "", "c"]),
        ([b"a\r", b"\n", b"b\r", b"\n"], ["a", "b"]),
        ([b"1\r2\r3\n"], ["3"]),
        ([b"1\r2\r"], ["2"]),
        ([b"\r1", b"\r2"], ["1", "2"]),
        ([b"\r", b"a\n"], ["a"]),
        ([b"\xe2\x82", b"\xac\n"], ["€"]),
    ],
)
def test_lines_are_shown_as_they_are(pieces: list[bytes], shown: list[str]) -> None:
    assert heard(*pieces, seconds=0.0) == shown
