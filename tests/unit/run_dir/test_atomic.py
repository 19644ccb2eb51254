"""What is committed is whole; what is not committed is recognisable."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from rankzero.errors import ExitCode, StorageError
from rankzero.run_dir import atomic
from rankzero.run_dir.atomic import (
    commit_directory,
    put_back_displaced,
    read_manifest,
    remove_stale,
    verify_directory,
    write_json,
    write_text,
    written_files,
)
from tests.support.pipes import read_pipe


def staged(parent: Path, content: bytes = b"weights") -> Path:
    directory = parent / atomic.stage_name("step-1")
    (directory / "model").mkdir(parents=True)
    (directory / "model/a.safetensors").write_bytes(content)
    (directory / "trainer.json").write_text("{}")
    return directory


def test_a_committed_directory_verifies(tmp_path: Path) -> None:
    commit_directory(staged(tmp_path), tmp_path / "step-1", {"step": 1})
    manifest = verify_directory(tmp_path / "step-1")
    assert manifest["step"] == 1
    assert set(manifest["files"]) == {"model/a.safetensors", "trainer.json"}
    assert os.listdir(tmp_path) == ["step-1"]


def test_what_others_have_written_is_there_or_nothing_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = staged(tmp_path), staged(tmp_path)
    (first / "theirs").write_text("2")
    known = written_files(first, [first / "theirs"])
    listed = Path.rglob
    with monkeypatch.context() as patch:  # a listing of a network file system may be an old one
        patch.setattr(Path, "rglob", lambda *asked: (path for path in listed(*asked) if path.name != "theirs"))
        commit_directory(first, tmp_path / "step-1", {}, known=known)
    assert list(verify_directory(tmp_path / "step-1")["files"]) == ["model/a.safetensors", "theirs", "trainer.json"]
    with pytest.raises(StorageError, match="theirs, which another process has written, is not seen here") as error:
        commit_directory(second, tmp_path / "step-1", {}, known=known)
    assert "one volume that all nodes mount" in str(error.value)
    assert "theirs" in verify_directory(tmp_path / "step-1")["files"], "the older one stays"


def test_committing_again_replaces_the_whole_directory(tmp_path: Path) -> None:
    commit_directory(staged(tmp_path, b"old"), tmp_path / "step-1", {})
    second = staged(tmp_path, b"new")
    (second / "trainer.json").unlink()
    commit_directory(second, tmp_path / "step-1", {})
    assert (tmp_path / "step-1/model/a.safetensors").read_bytes() == b"new"
    assert not (tmp_path / "step-1/trainer.json").exists()
    assert os.listdir(tmp_path) == ["step-1"]


def test_what_a_pipe_is_given_comes_out_of_it(tmp_path: Path) -> None:
    with read_pipe(tmp_path / "pipe") as found:
        write_text(tmp_path / "pipe", "hello\n")
    assert found == [b"hello\n"] and os.listdir(tmp_path) == ["pipe"]


def test_a_link_to_a_pipe_leads_into_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("pipe")
    with read_pipe(tmp_path / "pipe") as found:
        write_text(tmp_path / "link", "hello\n")
    assert found == [b"hello\n"] and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_what_it_leads_to_is_replaced(there: bool, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "file"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    (tmp_path / "link").symlink_to(target)
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and target.read_text() == "new" and os.listdir(target.parent) == ["file"]


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_manifest_of_the_first_format_has_no_seal_and_names_no_file_outside(tmp_path: Path) -> None:
    commit_directory(staged(tmp_path), tmp_path / "step-1", {})
    path = tmp_path / "step-1/manifest.json"
    first = {**json.loads(path.read_text()), "format": 1}
    del first["seal"]
    path.write_text(json.dumps(first))
    verify_directory(tmp_path / "step-1")
    for name in ("../x", "/etc/passwd", "a/../../x"):
        path.write_text(json.dumps({**first, "files": {name: {"size": 1, "sha256": ""}}}))
        with pytest.raises(StorageError, match="not one of"):
            verify_directory(tmp_path / "step-1")


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_of_a_manifest_passes(bit: int, tmp_path: Path) -> None:
    commit_directory(staged(tmp_path), tmp_path / "step-1", {"step": 1, "spec": {"lr": 0.01, "x": None, "on": True}})
    path = tmp_path / "step-1/manifest.json"
    whole = path.read_bytes()
    as_written = json.loads(whole)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            passed = read_manifest(tmp_path / "step-1")
        except StorageError:
            continue
        assert passed == {name: value for name, value in as_written.items() if name != "seal"}, "white space alone"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: (d / "model/a.safetensors").write_bytes(b"weighty"), "bytes changed"),
        (lambda d: (d / "model/a.safetensors").write_bytes(b"weigh"), "5 bytes where 7 were saved"),
        (lambda d: (d / "trainer.json").unlink(), "missing"),
        (lambda d: (d / "manifest.json").unlink(), "never committed"),
        (lambda d: (d / "manifest.json").write_text("{"), "cannot be read"),
        (lambda d: (d / "manifest.json").write_text("[]"), "not one of rankzero's"),
        (lambda d: _edit(d / "manifest.json", '"step": 1', '"step": 3'), "manifest changed"),
        (lambda d: _edit(d / "manifest.json", '"format": 2', '"format": 3'), "newer rankzero"),
        (lambda d: _edit(d / "manifest.json", '"seal"', '"deal"'), "manifest changed"),
    ],
)
def test_every_damage_is_named(damage: object, words: str, tmp_path: Path) -> None:
    commit_directory(staged(tmp_path), tmp_path / "step-1", {"step": 1})
    damage(tmp_path / "step-1")  # type: ignore[operator]
    with pytest.raises(StorageError, match=words):
        verify_directory(tmp_path / "step-1")


@pytest.mark.parametrize("call", ["fsync", "rename"])
@pytest.mark.parametrize("nth", range(6))
def test_a_crash_at_any_call_leaves_the_old_or_the_new(
    call: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nth fsync or rename fails: what verifies afterwards is one of the two directories, whole."""
    commit_directory(staged(tmp_path, b"old"), tmp_path / "step-1", {"step": "old"})
    new = staged(tmp_path, b"new")
    real, calls = getattr(os, call), 0

    def failing(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls > nth:
            raise OSError(errno.EIO, "crash")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        try:
            commit_directory(new, tmp_path / "step-1", {"step": "new"})
        except StorageError as error:
            assert "crash" in str(error)
    whole = [d for d in tmp_path.iterdir() if (d / "manifest.json").is_file() and verify_directory(d)]
    contents = {read_manifest(d)["step"]: (d / "model/a.safetensors").read_bytes() for d in whole}
    assert contents.get("old", b"old") == b"old" and contents.get("new", b"new") == b"new"
    assert contents, "neither survived"
    put_back_displaced(tmp_path)  # what the next start does first
    assert verify_directory(tmp_path / "step-1")["step"] in ("old", "new"), "one of them has the name"


def test_a_directory_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_directory(staged(tmp_path, b"old"), tmp_path / "step-1", {"step": "old"})
    real = os.rename

    def refuse_the_new(source: Path, target: Path) -> None:
        if target == tmp_path / "step-1" and "old-" not in source.name:
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    new = staged(tmp_path, b"new")
    monkeypatch.setattr(os, "rename", refuse_the_new)
    with pytest.raises(StorageError):
        commit_directory(new, tmp_path / "step-1", {"step": "new"})
    assert verify_directory(tmp_path / "step-1")["step"] == "old"


def test_nothing_is_put_back_over_a_newer_one(tmp_path: Path) -> None:
    commit_directory(staged(tmp_path, b"new"), tmp_path / "step-1", {"step": "new"})
    (tmp_path / atomic.stage_name("old-step-1")).mkdir()
    assert put_back_displaced(tmp_path) == []
    assert verify_directory(tmp_path / "step-1")["step"] == "new"
    assert len(remove_stale(tmp_path)) == 1


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_the_umask_decides_who_may_read(umask: int, mode: int, tmp_path: Path) -> None:
    """Some libraries write their files for the owner alone, and another user's server could not read the result."""
    before = os.umask(umask)
    try:
        directory = staged(tmp_path)
        (directory / "model/a.safetensors").chmod(0o600)
        commit_directory(directory, tmp_path / "step-1", {})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "step-1").rglob("*") if path.is_file()}
    assert modes == dict.fromkeys(("a.safetensors", "trainer.json", "manifest.json"), mode)


def test_a_file_that_cannot_be_read_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_directory(staged(tmp_path), tmp_path / "step-1", {})

    def unreadable(_path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(atomic, "file_sha256", unreadable)
    with pytest.raises(StorageError, match="cannot be read: Input/output error"):
        verify_directory(tmp_path / "step-1")
    assert verify_directory(tmp_path / "step-1", hashes=False)["files"]


def test_text_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"a": 1})

    def no_space(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StorageError) as full:
        write_json(path, {"a": 2})
    assert full.value.exit_code == ExitCode.STORAGE
    assert "free space" in str(full.value)
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_file_where_a_directory_is_needed(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(StorageError, match="output_dir"):
        write_text(tmp_path / "runs/a/run.yaml", "x")


def test_only_temporary_names_are_removed(tmp_path: Path) -> None:
    staged(tmp_path)
    (tmp_path / ".tmp-report.json-1").write_text("")
    (tmp_path / "step-2").mkdir()
    assert len(remove_stale(tmp_path)) == 2
    assert os.listdir(tmp_path) == ["step-2"]
