"""The marker on the cache volume: whose it is, who believes it, and what a preparation that dies leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankzero.errors import AccessError, ExitCode, RankzeroError, ServiceError, StoppedError
from rankzero.launch.node import preparation, prepared
from rankzero.launch.node.output import Output
from rankzero.launch.node.pid1 import StopWish
from rankzero.launch.node.prepared import begin, end, own_marker, wait_for_marker
from rankzero.launch.node.settings import PREPARE_RESTARTS, TOKEN_VARIABLE, NodeSettings
from rankzero.launch.node.submission import Submission
from rankzero.redaction import Redactor
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import small_spec


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return small_spec(tmp_path, tmp_path)


def fail(marker: Path, spec: RunSpec, submission: str, error: RankzeroError) -> None:
    end(marker, spec, submission, error, starts=begin(marker, spec, submission))


def wait(place: Path, spec: RunSpec, submission: str, *, looks: int = 5) -> bool:
    """Wait for some looks. Returns whether it was over before that."""
    count = 0

    def enough() -> bool:
        nonlocal count
        count += 1
        return count > looks

    wait_for_marker(str(place), spec, submission, enough, lambda _line: None)
    return count <= looks


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "POLL_SECONDS", 0.0)


def test_an_older_submissions_failure_is_not_this_ones(tmp_path: Path, spec: RunSpec) -> None:
    marker = tmp_path / "m.json"
    fail(marker, spec, "first", AccessError("gated"))
    with pytest.raises(AccessError, match="gated"):
        wait(marker, spec, "first")
    assert not wait(marker, spec, "second")
    end(marker, spec, "second", None, starts=begin(marker, spec, "second"))
    assert wait(marker, spec, "second")


def test_two_clusters_with_one_cache_do_not_take_each_others_marker(tmp_path: Path, spec: RunSpec) -> None:
    """Both have a namespace and a run of the same names; pods of the first that start late find it prepared."""
    settings = tmp_path / "default.r.json"
    first, second = (own_marker(str(settings), name) for name in ("first", "second"))
    end(first, spec, "first", None, starts=begin(first, spec, "first"))
    begin(second, spec, "second")
    assert wait(settings, spec, "first")
    assert not wait(settings, spec, "second")
    assert own_marker(str(settings), "") == settings


def test_what_a_version_before_has_prepared_is_found_by_pods_made_anew(tmp_path: Path, spec: RunSpec) -> None:
    """It wrote where the settings say, and did not name the file by the submission."""
    settings = tmp_path / "r.json"
    end(settings, spec, "s", None, starts=begin(settings, spec, "s"))
    assert wait(settings, spec, "s")
    assert not wait(settings, spec, "another")
    fail(settings, spec, "s", AccessError("gated"))
    with pytest.raises(AccessError, match="gated"):
        wait(settings, spec, "s")
    own = own_marker(str(settings), "s")
    end(own, spec, "s", None, starts=begin(own, spec, "s"))
    assert wait(settings, spec, "s"), "its own counts first"


def test_what_nobody_expected_of_a_preparation_is_told_like_any_failure(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait would wait for a day else."""

    def unreadable(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/outputs/runs/small")

    monkeypatch.setattr(preparation, "require_packages", unreadable)
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token")
    settings, name = NodeSettings(run="r", prepared_marker=str(tmp_path / "m.json")), Submission(os.environ).name
    for _ in range(PREPARE_RESTARTS + 1):
        error = preparation.marked(spec, settings, Output(Redactor({})), StopWish())
        assert error is not None and error.exit_code == ExitCode.INTERNAL
    with pytest.raises(RankzeroError, match="PermissionError.*/outputs/runs/small"):
        wait(tmp_path / "m.json", spec, name)


def test_without_submissions_a_failure_counts_when_it_is_new_or_nothing_replaces_it(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kubectl apply` of a rendering: the marker of the last time is there until the preparation has started."""
    marker = tmp_path / "m.json"
    fail(marker, spec, "", AccessError("gated"))
    assert not wait(marker, spec, "")
    looks = 0

    def fails_again() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            fail(marker, spec, "", AccessError("gated still"))
            os.utime(marker, ns=(looks, looks))
        return looks > 5

    with pytest.raises(AccessError, match="gated still"):
        wait_for_marker(str(marker), spec, "", fails_again, lambda _line: None)
    monkeypatch.setattr(prepared, "SILENT_SECONDS", 0.0)
    with pytest.raises(AccessError):
        wait(marker, spec, "")


def test_what_is_tried_again_does_not_end_those_who_wait(tmp_path: Path, spec: RunSpec) -> None:
    marker = tmp_path / "m.json"
    for start in range(1, PREPARE_RESTARTS + 2):
        assert not wait(marker, spec, "s")
        assert begin(marker, spec, "s") == start
        end(marker, spec, "s", ServiceError("no network"), starts=start)
    with pytest.raises(ServiceError, match="no network"):
        wait(marker, spec, "s")


def test_a_stop_is_no_failure(tmp_path: Path, spec: RunSpec) -> None:
    marker = tmp_path / "m.json"
    end(marker, spec, "s", StoppedError("evicted"), starts=PREPARE_RESTARTS + 5)
    assert not marker.exists()


def test_one_that_dies_without_a_word_is_not_waited_for_a_day(
    tmp_path: Path, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "m.json"
    monkeypatch.setattr(prepared, "SILENT_SECONDS", 0.0)
    for _ in range(PREPARE_RESTARTS):
        begin(marker, spec, "s")
        assert not wait(marker, spec, "s"), "it is started again"
    begin(marker, spec, "s")
    with pytest.raises(ServiceError, match=f"started {PREPARE_RESTARTS + 1} times and ended each time without a word"):
        wait(marker, spec, "s")
