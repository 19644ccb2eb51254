"""Directories that belong to others: said before anything is tried, all at once, with what mends it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rankzero.errors import AccessError
from rankzero.launch.node import ownership, preparation
from rankzero.launch.node.ownership import must_be_writable
from rankzero.launch.node.pid1 import StopWish
from rankzero.launch.node.settings import NodeSettings
from rankzero.spec.resolve import resolve, to_yaml
from tests.support.runs import small_spec


def test_what_belongs_to_others_is_told_at_once_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = [tmp_path / "outputs", tmp_path / "cache"]
    for one in closed:
        one.mkdir()
    ours = tmp_path / "ours"
    ours.mkdir()
    # whoever runs tests as root may write everywhere
    monkeypatch.setattr(ownership.os, "access", lambda path, _mode: Path(path) not in closed)
    monkeypatch.setattr(ownership.os, "geteuid", lambda: 1000)
    with pytest.raises(AccessError) as caught:
        must_be_writable([closed[0] / "runs" / "r", closed[1] / "hf", closed[1] / "rankzero", ours])
    assert [problem.where for problem in caught.value.problems] == [str(one) for one in closed]
    problem, owner = caught.value.problems[0], closed[0].stat().st_uid
    assert f"belongs to user {owner}" in problem.what and "user 1000 may not write" in problem.what
    assert f"chown 1000 {closed[0]}" in problem.hint and f"user: {owner}" in problem.hint
    assert caught.value.exit_code == 77, "trying again does not change it"


def test_hosts_have_no_volumes_and_no_user_of_a_cluster_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership.os, "access", lambda _path, _mode: False)
    with pytest.raises(AccessError) as caught:
        must_be_writable([tmp_path / "runs"], hosts=True)
    problem = caught.value.problems[0]
    assert problem.where == str(tmp_path) and f"chmod g+rwx {tmp_path}" in problem.hint and "user:" not in problem.hint


def test_a_directory_that_is_still_to_be_made_is_judged_by_the_one_above(tmp_path: Path) -> None:
    must_be_writable([tmp_path / "a" / "b"])
    assert list(tmp_path.iterdir()) == []
    assert os.access(tmp_path, os.W_OK)


@pytest.mark.parametrize("variables", [{"HF_HOME": "$SCRATCH/hf"}, {"RANKZERO_CACHE": "~/cache"}])
def test_a_preparation_looks_at_the_places_that_its_variables_mean(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those who write there take them, on hosts, where a run's `env` may have them so."""
    closed, config = tmp_path / "closed", tmp_path / "config"
    closed.mkdir()
    config.mkdir()
    (config / "run.yaml").write_text(to_yaml(resolve(small_spec(tmp_path, tmp_path))))
    (config / "node.json").write_text(NodeSettings(run="r", max_restarts=0).to_json())
    monkeypatch.setattr(ownership.os, "access", lambda path, _mode: Path(path) != closed)
    monkeypatch.setattr(preparation, "marked", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["prepare", str(config)])
    for name in ("RANKZERO_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    more = {"SCRATCH": str(closed), "HOME": str(closed), "RANKZERO_TERMINATION_LOG": str(tmp_path / "words")}
    for name, value in {**more, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as left:
        preparation.live(StopWish())
    assert left.value.code == 77 and "may not write here" in (tmp_path / "words").read_text()
