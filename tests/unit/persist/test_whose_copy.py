"""The copy of another run under the same name is neither brought back nor written over."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rankzero.errors import ConfigError, StorageError
from rankzero.launch.node.mirror import mirrored
from rankzero.launch.node.settings import Mirror, NodeSettings
from rankzero.persist import copying
from rankzero.persist.run_store import RunStore
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from tests.support.stored_runs import checkpoint, result, spec_of, store_of


@pytest.fixture
def url() -> str:
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/prefix"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "r")
    run.root.mkdir(parents=True)
    run.metrics.write_text('{"step": 1}\n')
    (run.root / "lease.json").write_text("{}")
    (run.root / "logs").mkdir()
    run.log(0).write_text("hello")
    return run


class Broken:
    """Fails whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise PermissionError("no")


def settings_for(run: RunDir, url: str) -> tuple[RunSpec, NodeSettings]:
    return spec_of(run), NodeSettings(run="r", mirrors=(Mirror(url, str(run.root.parent), "upload"),))


SLOWER = {"train": {"learning_rate": 0.003}}


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def other(run: RunDir, tmp_path: Path) -> tuple[Path, str]:
    """A store with a run of another learning rate at step 10, which is `run`'s place in it."""
    there = RunDir(tmp_path / "other" / "r")
    there.root.mkdir(parents=True)
    there.metrics.write_text("theirs")
    checkpoint(there, 10, **SLOWER)
    url = (tmp_path / "store" / "r").as_uri()
    store_of(there, url, **SLOWER).upload()
    return tmp_path / "store" / "r", url


@pytest.mark.parametrize("here", [None, 5, 15])
def test_a_run_of_another_setting_is_neither_brought_back_nor_written_over(
    run: RunDir, other: tuple[Path, str], here: int | None
) -> None:
    place, url = other
    if here is not None:
        checkpoint(run, here)
    before, there = everything(run.root), everything(place)
    with pytest.raises(ConfigError, match=r"train\.learning_rate: 0\.003 in the checkpoint") as refused:
        copying.bring_back(run, store_of(run, url), print)
    assert url in str(refused.value) and "another name" in str(refused.value)
    assert (everything(run.root), everything(place)) == (before, there)
    spec, settings = settings_for(run, url.removesuffix("/r"))
    with pytest.raises(ConfigError, match="learning_rate"), mirrored(spec, settings, 0, print):
        pytest.fail("trained though its results have no place")
    assert everything(place) == there


def test_a_change_that_is_allowed_goes_on_from_the_store(run: RunDir, other: tuple[Path, str]) -> None:
    _, url = other
    copying.bring_back(run, store_of(run, url, allowed=("train.learning_rate",)), print)
    assert run.committed_steps() == [10]
    shutil.rmtree(run.root)
    copying.bring_back(run, store_of(run, url, resume="continue"), print)
    assert run.committed_steps() == [10]


def test_a_result_alone_in_the_store_is_one_of_another_run_too(run: RunDir, other: tuple[Path, str]) -> None:
    place, url = other
    (place / "checkpoints" / "step-10").rename(place / "final")
    with pytest.raises(ConfigError, match="learning_rate"):
        copying.bring_back(run, store_of(run, url), print)
    copying.bring_back(run, store_of(run, url, **SLOWER), print)


SAYS_WHAT_IT_IS = {"model": "m", "tokenizer": "t"}


def ends(run: RunDir, **about: str) -> None:
    result(run, "of ten", **SAYS_WHAT_IT_IS, **about)
    run.report.write_text('{"steps": 10}')


def test_a_result_without_checkpoints_is_known_for_this_run_s(run: RunDir, tmp_path: Path) -> None:
    """Here and there, as where who frees the disk removes them from both."""
    ends(run)
    place, said = tmp_path / "store" / "r", list[str]()
    store_of(run, place.as_uri()).upload()
    copying.bring_back(run, store := store_of(run, place.as_uri()), said.append)
    run.evaluation.write_text("of now")
    store.upload()
    assert not said and (place / "eval.json").read_text() == "of now"


def test_a_result_on_other_data_is_another_run_s(run: RunDir, other: tuple[Path, str], tmp_path: Path) -> None:
    ends(run)
    there = RunDir(tmp_path / "there" / "r")
    there.root.mkdir(parents=True)
    ends(there, data="e")
    url = (tmp_path / "elsewhere").as_uri()
    store_of(there, url).upload()
    with pytest.raises(ConfigError, match="data: the training data"):
        copying.bring_back(run, store_of(run, url), print)
    place, slower = other  # what is here is of other settings than the run that is meant
    (place / "checkpoints" / "step-10").rename(place / "final")
    assert not store_of(run, slower, **SLOWER).require_ours()


def test_a_store_that_is_down_keeps_no_finished_run_from_being_it(
    run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_self: RunStore) -> None:
        raise StorageError("it does not answer", where=url)

    monkeypatch.setattr(RunStore, "require_ours", down)
    said: list[str] = []
    with pytest.raises(StorageError, match="so nothing was started"):
        copying.bring_back(run, store_of(run, url), said.append)
    ends(run)
    copying.bring_back(run, store_of(run, url), said.append)
    assert said[-1].endswith("the run is finished, by what is here")


def test_a_start_that_came_to_no_checkpoint_is_in_nobodys_way(run: RunDir, other: tuple[Path, str]) -> None:
    """As in a run directory: nothing is lost."""
    place, url = other
    shutil.rmtree(place / "checkpoints")
    copying.bring_back(run, store_of(run, url), print)
    store_of(run, url).upload()
    assert (place / "metrics.jsonl").read_text() == run.metrics.read_text()


def test_the_same_setting_on_other_data_is_another_run(run: RunDir, url: str, tmp_path: Path) -> None:
    there = RunDir(tmp_path / "other" / "r")
    there.root.mkdir(parents=True)
    checkpoint(there, 10, data="e")
    store_of(there, url).upload()
    checkpoint(run, 5)
    with pytest.raises(ConfigError, match="data: the training data"):
        copying.bring_back(run, store_of(run, url), print)
    copying.bring_back(run, store_of(run, url, allowed=("data",)), print)
    assert run.committed_steps() == [10, 5]


def test_a_store_that_was_down_is_looked_at_before_anything_goes_there(
    run: RunDir, other: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, url = other
    there = everything(place)
    checkpoint(run, 15)
    store, said = store_of(run, url), []
    with monkeypatch.context() as down:
        down.setattr(store._copy, "_store", Broken())
        copying.bring_back(run, store, said.append)
    with copying.copied([store], said.append) as failures:
        pass
    assert "learning_rate" in str(failures[0])
    assert everything(place) == there
