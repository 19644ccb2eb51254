"""Runs pulled from a store and through a pod: whole, verified, gone on with, and nothing half-written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rankzero.errors import ConfigError, ServiceError, StorageError
from rankzero.persist import pulling
from rankzero.persist.pulling import Pulled, pull
from rankzero.persist.sources import CommandSource, ObjectSource, Source
from rankzero.run_dir.atomic import MANIFEST, TEMPORARY_PREFIX, NotReadError, commit_directory, verify_directory
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from rankzero.spec.resolve import resolve, to_yaml
from rankzero.spec.run_spec import RunSpec
from tests.support.unreadable import close, stale
from tests.support.volume import run_python

SPEC = {"name": "r", "model": {"name": "o/m"}, "data": {"train": "t.jsonl"}}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(pulling, "CHUNK", 1000)


def spec_text(**changes: object) -> str:
    return to_yaml(resolve(RunSpec.model_validate({**SPEC, **changes})))


def committed(directory: Path, text: str, **about: str) -> None:
    staged = directory.parent / "staged"
    (staged / "model").mkdir(parents=True)
    (staged / "model" / "model.safetensors").write_text(text * 700)
    (staged / "card").write_text("a card")
    commit_directory(staged, directory, about)


@pytest.fixture
def there(tmp_path: Path) -> RunDir:
    """A run that is elsewhere, with everything that such a directory may have."""
    run = RunDir(tmp_path / "volume" / "runs" / "r")
    run.checkpoints.mkdir(parents=True)
    run.spec.write_text(spec_text())
    run.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in range(300)))
    run.report.write_text("{}")
    run.stop_flag.write_text("")
    (run.root / "lease.json").write_text("{}")
    (run.root / f"{TEMPORARY_PREFIX}x").write_text("half")
    run.log(0).parent.mkdir()
    run.log(0).write_bytes(b"\xff\x00 not text")
    for step in (5, 10):
        committed(run.checkpoint(step), f"{step}")
    run.set_link("best", 5)
    run.set_link("last", 10)
    committed(run.final, "final")
    return run


@pytest.fixture(params=["store", "pod"])
def source(request: pytest.FixtureRequest, there: RunDir, monkeypatch: pytest.MonkeyPatch) -> Source:
    volume = there.root.parents[1]
    if request.param == "store":
        return ObjectSource.find(f"file://{volume}", "r")
    return CommandSource.find(run_python, str(volume), "r", "outputs")


def test_all_but_checkpoints_and_a_second_time_nothing(source: Source, there: RunDir, tmp_path: Path) -> None:
    here = RunDir(tmp_path / "here")
    done = pull(source, here.root, print)
    verify_directory(here.final)
    names = {path.relative_to(here.root).as_posix() for path in here.root.rglob("*") if path.is_file()}
    final = {"final/manifest.json", "final/card", "final/model/model.safetensors"}
    assert names == {"run.yaml", "metrics.jsonl", "report.json", "logs/rank-0.log", *final}
    assert here.log(0).read_bytes() == there.log(0).read_bytes()
    assert (done.result, done.fetched, done.kept) == (True, 6, 0)
    again = pull(source, here.root, print)
    assert (again.fetched, again.kept, again.fetched_bytes) == (0, 6, 0)


@pytest.mark.parametrize(("wanted", "steps"), [("best", [5]), ("last", [10]), ("all", [10, 5])])
def test_checkpoints_that_are_asked_for(source: Source, tmp_path: Path, wanted: str, steps: list[int]) -> None:
    here = RunDir(tmp_path / "here")
    pull(source, here.root, print, checkpoints=wanted)  # type: ignore[arg-type]
    assert here.committed_steps() == steps
    for step in steps:
        verify_directory(here.checkpoint(step))
    assert here.read_link("last") == (10 if 10 in steps else None)
    assert here.read_link("best") == (5 if 5 in steps else None)


def test_only_the_result_or_the_reports(source: Source, tmp_path: Path) -> None:
    pull(source, tmp_path / "a", print, only="final")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["final", "run.yaml"]
    pull(source, tmp_path / "b", print, only="report")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["report.json", "run.yaml"]


class Broken:
    """A source whose reads of one file go wrong from some offset on."""

    def __init__(self, source: Source, offset: int, spoil: Callable[[bytes], bytes] | None = None) -> None:
        self._source, self._offset, self._spoil = source, offset, spoil
        self.where, self.files, self.links = source.where, source.files, source.links
        self.asked: list[int] = []

    def read(self, name: str, offset: int, length: int) -> bytes:
        if not name.endswith(".safetensors"):
            return self._source.read(name, offset, length)
        self.asked.append(offset)
        if offset < self._offset:
            return self._source.read(name, offset, length)
        if self._spoil is None:
            raise ServiceError("no route to host")
        return self._spoil(self._source.read(name, offset, length))


def test_what_was_cut_off_goes_on_where_it_was_and_is_not_there_before(source: Source, tmp_path: Path) -> None:
    here = RunDir(tmp_path / "here")
    with pytest.raises(ServiceError):
        pull(Broken(source, 2000), here.root, print)
    assert not here.final.exists()
    whole = Broken(source, 10**9)
    pull(whole, here.root, print)
    assert whole.asked == [2000, 3000]
    verify_directory(here.final)
    assert not [path for path in here.root.iterdir() if path.name.startswith(TEMPORARY_PREFIX)]


def test_wrong_bytes_are_fetched_again_once_and_never_kept(source: Source, tmp_path: Path) -> None:
    here = RunDir(tmp_path / "here")
    said: list[str] = []
    with pytest.raises(StorageError, match="sha256 differs"):
        pull(Broken(source, 0, lambda data: data[::-1]), here.root, said.append)
    assert not here.final.exists()
    assert [line for line in said if "fetched again" in line]
    spoiled = iter([True])
    pull(Broken(source, 0, lambda data: b"x" * len(data) if next(spoiled, False) else data), here.root, print)
    verify_directory(here.final)


def test_a_newer_result_replaces_the_one_that_is_here(source: Source, there: RunDir, tmp_path: Path) -> None:
    here = RunDir(tmp_path / "here")
    pull(source, here.root, print)
    shutil.rmtree(there.final)
    committed(there.final, "newer")
    done = pull(source, here.root, print)
    assert (here.final / "model/model.safetensors").read_text().startswith("newer")
    assert done.fetched == 1 and done.kept == 5, "its card is the same file"
    verify_directory(here.final)


def test_a_damaged_file_here_is_mended(source: Source, tmp_path: Path) -> None:
    here = RunDir(tmp_path / "here")
    pull(source, here.root, print)
    (here.final / "card").write_text("a cord")
    assert pull(source, here.root, print).fetched == 1
    verify_directory(here.final)


def test_another_runs_directory_and_one_that_is_trained_in_stay(source: Source, tmp_path: Path) -> None:
    here = RunDir(tmp_path / "here")
    here.root.mkdir()
    here.spec.write_text(spec_text(train={"learning_rate": 1.0}))
    with pytest.raises(ConfigError, match=r"another run(.|\n)*2e-05 there, 1.0 here"):
        pull(source, here.root, print)
    here.spec.write_text(spec_text(train={"num_train_epochs": 9}))
    assert pull(source, here.root, print).result, "the same run, continued for longer"
    lease = Lease(here.root)
    lease.acquire()
    with pytest.raises(StorageError, match="trains in this directory"):
        pull(source, here.root, print)
    lease.release()


MADE_OF = {"model": "m", "tokenizer": "t", "data": "d"}


def of_here(tmp_path: Path, text: str, **about: str) -> RunDir:
    here = RunDir(tmp_path / "here")
    here.root.mkdir()
    here.spec.write_text(text)
    committed(here.final, "mine", **about)
    return here


@pytest.mark.parametrize(
    "changes", [{"model": {"name": "o/other"}}, {"data": {"train": "theirs.jsonl"}}, {"data": {"train": "/a/t.jsonl"}}]
)
@pytest.mark.parametrize("knows", [{}, MADE_OF])
def test_a_result_of_other_places_stays_where_content_does_not_tell(
    source: Source, tmp_path: Path, changes: dict[str, object], knows: dict[str, str]
) -> None:
    here = of_here(tmp_path, spec_text(**changes), **knows)
    with pytest.raises(ConfigError, match=r"another run(.|\n)* there, .* here"):
        pull(source, here.root, print)
    assert (here.final / "model/model.safetensors").read_text().startswith("mine")
    assert here.spec.read_text() == spec_text(**changes)


def test_a_run_whose_spec_was_cut_off_is_one(source: Source, tmp_path: Path) -> None:
    """A copy onto a full disk has left nothing of it."""
    here = of_here(tmp_path, "", **MADE_OF)
    with pytest.raises(ConfigError, match="another run"):
        pull(source, here.root, print)
    assert (here.final / "model/model.safetensors").read_text().startswith("mine")


@pytest.mark.parametrize("of", ["result", "checkpoint"])
def test_what_cannot_be_read_here_may_be_another_runs(
    of: str, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the names of places alone would say that it is this one's, and its result be replaced."""
    here = of_here(tmp_path, spec_text(), **MADE_OF)
    if of == "checkpoint":
        committed(here.checkpoint(3), "mine", **MADE_OF)
    with monkeypatch.context() as patch:
        stale(patch, here.checkpoint(3) / MANIFEST if of == "checkpoint" else here.final / MANIFEST)
        with pytest.raises(NotReadError, match="Stale file handle"):
            pull(source, here.root, print)
    assert (here.final / "model/model.safetensors").read_text().startswith("mine")


@pytest.mark.parametrize("changed", MADE_OF)
def test_content_tells_a_result_of_another_run_at_the_same_places(
    source: Source, there: RunDir, tmp_path: Path, changed: str
) -> None:
    for directory in (there.checkpoint(10), there.final):
        shutil.rmtree(directory)
        committed(directory, "theirs", **MADE_OF)
    here = of_here(tmp_path, spec_text(), **{**MADE_OF, changed: "another"})
    with pytest.raises(ConfigError, match="another run") as raised:
        pull(source, here.root, print)
    assert [problem.where for problem in raised.value.problems[1:]] == [changed]
    assert (here.final / "model/model.safetensors").read_text().startswith("mine")


def test_a_run_is_known_at_other_places_by_content_and_with_other_data_by_its_first_step(
    source: Source, there: RunDir, tmp_path: Path
) -> None:
    """On another machine, and after other data were accepted."""
    for directory in (there.checkpoint(10), there.final):
        shutil.rmtree(directory)
        committed(directory, "theirs", **MADE_OF)
    here = of_here(tmp_path, spec_text(data={"train": "/mnt/rows.jsonl"}), **MADE_OF)
    assert pull(source, here.root, print).result
    shutil.rmtree(here.final)
    committed(here.final, "before", **{**MADE_OF, "data": "before"})
    with pytest.raises(ConfigError, match="another run"):
        pull(source, here.root, print)
    first = '{"step": 1, "time": 5.5}\n'
    here.metrics.write_text(first)
    there.metrics.write_text(f'{first}{{"step": 2, "time": 6.5}}\n')
    pull(source, here.root, print)
    assert (here.final / "model/model.safetensors").read_text().startswith("theirs")


@pytest.mark.parametrize("by", ["checkpoint", "report"])
def test_a_run_that_is_further_here_stays_as_it_is(source: Source, tmp_path: Path, by: str) -> None:
    """Trained on here since, with its checkpoints or after they were removed."""
    here = RunDir(tmp_path / "here")
    pull(source, here.root, print, checkpoints="last")
    shutil.rmtree(here.final)
    committed(here.final, "newer")
    here.metrics.write_text('{"step": 15}\n')
    if by == "checkpoint":
        committed(here.checkpoint(15), "15")
        here.set_link("last", 15)
    else:
        here.report.write_text('{"steps": 15}')
    for checkpoints in ("none", "last"):
        with pytest.raises(ConfigError, match="step 15 here, and only at step 10 there"):
            pull(source, here.root, print, checkpoints=checkpoints)  # type: ignore[arg-type]
    assert (here.final / "model/model.safetensors").read_text().startswith("newer")
    assert here.metrics.read_text() == '{"step": 15}\n'
    assert here.read_link("last") == (15 if by == "checkpoint" else 10)


def test_a_run_without_a_result(source: Source, there: RunDir, tmp_path: Path) -> None:
    shutil.rmtree(there.final)
    done: Pulled = pull(source, tmp_path / "here", print, checkpoints="last")
    assert not done.result and done.steps == (10,)
    with pytest.raises(ConfigError, match="no result yet"):
        pull(source, tmp_path / "here", print, only="final")


def test_runs_that_are_not_there(there: RunDir) -> None:
    volume = there.root.parents[1]
    with pytest.raises(ConfigError, match="run.yaml is missing"):
        ObjectSource.find(f"file://{volume}", "other")
    with pytest.raises(ConfigError, match="no run other") as raised:
        CommandSource.find(run_python, str(volume), "other", "outputs")
    assert "there are r" in str(raised.value)
    with pytest.raises(ServiceError, match="not an answer"):
        CommandSource.find(lambda _command: "motd", str(volume), "r", "outputs")


def test_what_jobs_of_slurm_read_is_no_run(there: RunDir) -> None:
    """But a run whose output_dir is called so is one."""
    volume = there.root.parents[1]
    state = volume / "slurm" / "r"
    (state / "config").mkdir(parents=True)
    (state / "about.json").write_text("{}")
    (state / "config" / "run.yaml").write_text(spec_text())
    with pytest.raises(ConfigError, match="no run config") as raised:
        CommandSource.find(run_python, str(volume), "config", "outputs")
    assert raised.value.problems[0].hint == "there are r"
    assert CommandSource.find(run_python, str(volume), "r", "outputs").where.endswith("/runs/r")
    (volume / "slurm" / "config").mkdir()
    (volume / "slurm" / "config" / "run.yaml").write_text(spec_text())
    assert CommandSource.find(run_python, str(volume), "config", "outputs").where.endswith("/slurm/config")


def test_what_could_not_be_looked_into_is_said_where_there_is_no_run(
    there: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's folder beside the runs keeps nobody from them."""
    volume = there.root.parents[1]
    (volume / "private").mkdir()
    close(monkeypatch, volume / "private")
    assert ObjectSource.find(f"file://{volume}", "r").where.endswith("/r")
    with pytest.raises(ConfigError, match="run.yaml is missing") as raised:
        ObjectSource.find(f"file://{volume}", "other")
    assert "private could not be looked into: Permission denied" in str(raised.value)
    with pytest.raises(ConfigError, match="no run other") as raised:
        CommandSource.find(run_python, str(volume), "other", "outputs")
    assert f"there are r; {volume}/private could not be looked into: Permission denied" in str(raised.value)
    monkeypatch.undo()
    stale(monkeypatch, volume)
    with pytest.raises(StorageError, match="Stale file handle"):
        ObjectSource.find(f"file://{volume}", "r")
    with pytest.raises(ConfigError, match="could not be looked into: Stale file handle"):
        CommandSource.find(run_python, str(volume), "r", "outputs")


def test_names_that_lead_outside_are_refused(source: Source, tmp_path: Path) -> None:
    evil = Broken(source, 0)
    evil.files = lambda: {"../../x": 1}
    with pytest.raises(StorageError, match="outside"):
        pull(evil, tmp_path / "here", print)
    assert [path.name for path in tmp_path.iterdir()] == ["volume"]
