"""What a run answers to Ctrl-C and SIGTERM, what a second one costs, and that nothing can swallow a stop."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankzero.cli.local_runs import verdict
from rankzero.engine import signals
from rankzero.engine.hooks import Hooks
from rankzero.engine.signals import Activity, StopRequest, stop_on_signals
from rankzero.errors import ConfigError, StopNow, StoppedError
from rankzero.run_dir.view import view_run
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import metrics, run_here, run_root, small_spec


class LeftError(Exception):
    """Stands for the end of the process."""


class Asked:
    """A StopRequest that is asked by hand, and what came of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seconds = 100.0
        self.said: list[str] = []
        self.left: list[tuple[int, str]] = []
        self.request = StopRequest(self.said.append, clock=lambda: self.seconds)

        def leave(_request: StopRequest, code: int, words: str) -> None:
            self.left.append((code, words))
            raise LeftError

        patch.setattr(StopRequest, "_leave", leave)

    def doing(self, activity: Activity, *, step: int = 43, saved: int = 40) -> Asked:
        self.request.defer(Path("/nowhere/stop"))
        self.request.now(activity, step=step, saved=saved)
        return self

    def __call__(self, number: int, *, later: float = 0.0) -> None:
        self.seconds += later
        self.request.heard(number)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.mark.parametrize(
    ("activity", "step", "saved", "words"),
    [
        (
            "step",
            43,
            40,
            "stopping after this step, then saving; Ctrl-C again within 5 s: leave now, losing 3 steps since",
        ),
        ("step", 41, 40, "leave now, losing 1 step since step 40"),
        ("step", 40, 40, "leave now, losing the step under way"),
        ("step", 7, 0, "leave now, losing 7 steps, all there are"),
        ("evaluation", 43, 40, "stopping after this pass of the evaluation, then saving"),
        ("save", 43, 40, "saving, then stopping; Ctrl-C again within 5 s: leave now, losing 3 steps since step 40"),
        ("result", 43, 43, "ends when the result is written; Ctrl-C again within 5 s: leave now, losing nothing"),
    ],
)
def test_ctrl_c_is_answered_with_what_happens_and_what_a_second_one_costs(
    activity: Activity, step: int, saved: int, words: str, asked: Asked
) -> None:
    asked.doing(activity, step=step, saved=saved)
    asked(signal.SIGINT)
    assert words in asked.said[0]
    assert asked.request.wanted and not asked.left


def test_a_second_one_within_the_window_leaves_and_says_what_is_lost(asked: Asked) -> None:
    asked.doing("step")
    asked(signal.SIGINT)
    with pytest.raises(LeftError):
        asked(signal.SIGINT, later=4.9)
    assert asked.left == [(130, "left at once, losing 3 steps since step 40; the same command continues from step 40")]


def test_a_later_one_counts_as_a_first(asked: Asked) -> None:
    """Someone who presses it again after a minute wants to know what is going on, not to lose the work."""
    asked.doing("step")
    asked(signal.SIGINT)
    asked(signal.SIGINT, later=5.1)
    assert len(asked.said) == 2 and not asked.left
    with pytest.raises(LeftError):
        asked(signal.SIGINT, later=1.0)


def test_sigterm_never_loses_work_however_often_it_comes(asked: Asked) -> None:
    """torchrun sends one after a Ctrl-C that the processes have heard themselves."""
    asked.doing("step")
    asked(signal.SIGINT)
    asked(signal.SIGTERM, later=0.1)
    asked(signal.SIGTERM, later=0.1)
    assert not asked.left
    assert asked.said[1:] == ["[STOP] SIGTERM: stopping after this step, then saving"] * 2
    assert asked.request.reason == "SIGINT"


def test_a_start_up_that_does_not_end_is_ended(asked: Asked) -> None:
    asked(signal.SIGTERM)
    asked.seconds += 1.0
    asked.request.look()
    assert asked.said == ["[STOP] stopping; no step is done yet, so nothing is lost"] and not asked.left
    asked.seconds += signals.LEAVE_SECONDS
    with pytest.raises(LeftError):
        asked.request.look()
    assert asked.left[0][0] == 75 and "stopped by SIGTERM before the first step" in asked.left[0][1]


def test_a_start_up_that_ends_by_itself_is_left_alone(asked: Asked) -> None:
    asked(signal.SIGTERM)
    asked.request.over()
    asked.seconds += 2 * signals.LEAVE_SECONDS
    asked.request.look()
    assert not asked.left and not asked.said


def swallow(stop: Callable[[], None]) -> None:
    try:
        stop()
    except BaseException as error:
        raise ConfigError("a file may be cut off") from error


def replace(stop: Callable[[], None]) -> None:
    try:
        stop()
    finally:
        raise SystemExit(1)


def stop_here() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)  # the handler comes first


@pytest.mark.parametrize("foreign_code", [lambda stop: stop(), swallow, replace])
def test_whatever_a_library_makes_of_a_stop_it_stays_one(foreign_code: Callable[[Callable[[], None]], None]) -> None:
    with pytest.raises(StoppedError, match="stopped by SIGTERM before the first step"), stop_on_signals(print):
        foreign_code(stop_here)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_error_without_a_stop_stays_itself() -> None:
    with pytest.raises(ConfigError), stop_on_signals(print):
        raise ConfigError("a file is cut off")


def test_a_stop_is_raised_once(asked: Asked) -> None:
    """A second signal must not cut short what the first one lets go of."""
    with pytest.raises(StopNow):
        asked.request.on_signal(signal.SIGTERM, None)
    asked.request.on_signal(signal.SIGTERM, None)


@pytest.mark.faults
def test_a_second_ctrl_c_leaves_a_step_that_hangs(tmp_path: Path, tiny: Path) -> None:
    """The main thread is in the middle of a step: the answer and the end come from the other one."""
    spec = small_spec(tmp_path, tiny, eval_rows=0, checkpoint__every=2)
    said = tmp_path / "said"
    said.mkdir()
    codes = in_ranks(interrupted_twice, 1, said, os.environ["RANKZERO_CACHE"], spec.model_dump_json())
    text = (said / "said-0").read_text()
    assert codes == [130], text
    assert (
        "[STOP] stopping after this step, then saving; Ctrl-C again within 5 s: leave now, losing 1 step since step 2"
        in text
    )
    assert text.endswith("left at once, losing 1 step since step 2; the same command continues from step 2\n")
    view = view_run(run_root(spec))
    assert (view.phase, view.step, view.resumable) == ("Interrupted", 3, 2)
    again = "rankzero train with the same spec continues from step 2"
    assert verdict(view) == f"a second Ctrl-C ended it after step 3; {again}"
    assert run_here(spec)["steps"] == 12
    assert [row["step"] for row in metrics(spec)] == list(range(1, 13))
    goodput = json.loads((run_root(spec) / "goodput.json").read_text())
    assert goodput["killed"] == 0
    assert sum(goodput["seconds"].values()) == pytest.approx(goodput["wall_seconds"], abs=0.01)


def interrupted_twice(directory: Path, cache: str, text: str) -> None:
    """A rank whose fourth step hangs, and that is asked to stop twice in it."""
    from rankzero.engine import worker

    os.environ["RANKZERO_CACHE"] = cache

    def wait_for(answer: str) -> None:
        while answer not in (directory / "said-0").read_text():
            time.sleep(0.01)

    def hang(step: int) -> None:
        if step == 3:
            wait_for("saved step 2")  # beside the steps; what would be lost is told to the handler before each of them
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)
            wait_for("again within")
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

    worker.run(RunSpec.model_validate_json(text), RunOptions(), Hooks(step_begins=hang))


def until_heard(said: list[str], words: str) -> None:
    deadline = time.monotonic() + 300
    while not any(words in line for line in said):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def press_twice(said: list[str]) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    until_heard(said, "again within")
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("while_in", ["Python", "C"])
def test_in_a_process_of_its_caller_a_second_ctrl_c_is_a_keyboard_interrupt(while_in: str) -> None:
    """Also where the main thread was told of two as of one."""
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_on_signals(said.append, own_process=False) as stop:
        stop.defer(Path("/nowhere/stop"))
        stop.now("step", step=3, saved=2)
        user = threading.Thread(target=press_twice, args=(said,))
        user.start()
        if while_in == "C":
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)
        until_heard(said, "never")
    user.join()
    assert "left at once, losing 1 step since step 2" in said[-1] and stop.reason == "SIGINT"
    assert signal.getsignal(signal.SIGINT) is before
    assert not [thread for thread in threading.enumerate() if thread.name == "signals"]


def test_in_a_process_of_its_caller_a_start_up_is_interrupted_and_never_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(signals, "_LOOK_SECONDS", 0.01)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals(said.append, own_process=False):
        with pytest.raises(StopNow):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        until_heard(said, "stopping; no step is done yet")
        os.kill(os.getpid(), signal.SIGINT)
        until_heard(said, "never")


def test_in_a_process_of_its_caller_a_second_sigterm_is_only_noted() -> None:
    """As a cluster or a service manager sends it; its caller minds Ctrl-C alone."""
    said: list[str] = []
    with pytest.raises(StoppedError, match="SIGTERM"), stop_on_signals(said.append, own_process=False):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            until_heard(said, "stopping; no step is done yet")
    assert not any("Ctrl-C" in line or "stopped:" in line for line in said)


def test_a_closed_terminal_is_a_stop_and_nohup_stays_deaf() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with stop_on_signals(lambda _: None) as stop:
            stop.defer(Path("/nowhere/stop"))
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.wanted and stop.reason == "SIGHUP"
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_on_signals(lambda _: None) as stop:
            stop.defer(Path("/nowhere/stop"))
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wanted
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_in_another_thread_ends_by_its_own_end_and_hears_of_its_flag_alone(tmp_path: Path, tiny: Path) -> None:
    """`rankzero.train(…, in_process=True)` from a thread, where a program hears no signals."""
    spec = small_spec(tmp_path, tiny, eval_rows=0)
    before = signal.getsignal(signal.SIGTERM)
    stop_in_two = Hooks(step_begins=lambda step: (run_root(spec) / "stop").touch() if step == 2 else None)
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(StoppedError):
            pool.submit(run_here, spec, hooks=stop_in_two).result()
        assert pool.submit(run_here, spec).result()["steps"] == 12
    assert signal.getsignal(signal.SIGTERM) is before
    assert not [thread for thread in threading.enumerate() if thread.name == "signals"]


def test_a_stop_file_that_cannot_be_looked_for_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume that is away for a moment is asked again at the next step."""

    def away(*_: object, **__: object) -> os.stat_result:
        raise OSError(errno.ESTALE, "Stale file handle")

    stop = StopRequest(lambda *_: None)
    stop._flag = tmp_path / "stop"
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", away)
        assert not stop.wanted
    (tmp_path / "stop").touch()
    assert stop.wanted
