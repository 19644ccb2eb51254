"""Files of a warm pod: a copy that is cut off or is not what was announced changes nothing."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from rankzero.launch.node.workspace import BrokenCopyError, apply, mark, pack, present


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    """With one file that was sent, and one that was made there."""
    source = tmp_path / "a.py"
    source.write_text("a", encoding="utf-8")
    out = io.BytesIO()
    pack({"lib/a.py": source}, {"lib/a.py": mark(source)}, out)
    assert apply(tmp_path / "pod", "work", io.BytesIO(out.getvalue())) == {"put": 1, "removed": 0, "replaced": []}
    (tmp_path / "pod/work/own").write_text("made there", encoding="utf-8")
    return tmp_path / "pod"


def sent(tmp_path: Path, *, told: str | None = None) -> bytes:
    """`b.py` in the place of `lib/a.py`."""
    source = tmp_path / "b.py"
    source.write_bytes(b"b" * 50_000)
    out = io.BytesIO()
    pack({"b.py": source}, {"b.py": told or mark(source)}, out)
    return out.getvalue()


@pytest.mark.parametrize("broken", ["cut", "other"])
def test_a_broken_copy_changes_nothing(pod: Path, tmp_path: Path, broken: str) -> None:
    stream = sent(tmp_path)[:20_000] if broken == "cut" else sent(tmp_path, told="0" * 64)
    with pytest.raises((BrokenCopyError, OSError, tarfile.TarError)):
        apply(pod, "work", io.BytesIO(stream))
    assert {path.name for path in (pod / "work").rglob("*")} == {"lib", "a.py", "own"}
    assert list(present(pod, "work")) == ["lib/a.py"] and not list(pod.glob("work.new*"))


def test_two_that_come_at_once_do_not_take_each_other_s_files(pod: Path, tmp_path: Path) -> None:
    """The first is a client's that has gone, whose program still sends."""
    stream = sent(tmp_path)
    read, write = os.pipe()
    words = [sys.executable, "-P", "-m", "rankzero.launch.node.workspace", str(pod), "work", "apply", str(len(stream))]
    with subprocess.Popen(words, stdin=read, stdout=subprocess.PIPE) as first, open(write, "wb", 0) as sending:
        sending.write(stream[:30_000])
        while not any(pod.glob("work.new*/files/b.py")):
            assert first.poll() is None
        assert apply(pod, "work", io.BytesIO(stream)) == {"put": 1, "removed": 1, "replaced": []}
        sending.write(stream[30_000:])
        assert first.stdout is not None and b'"put": 1' in first.stdout.read()
    assert (pod / "work/b.py").read_bytes() == b"b" * 50_000
    assert not list(pod.glob("work.new*"))


def test_what_one_that_was_killed_has_left_is_removed(pod: Path, tmp_path: Path) -> None:
    for name in ("work.new", "work.new-1"):  # the first is an older version's
        (pod / name / "files").mkdir(parents=True)
    apply(pod, "work", io.BytesIO(sent(tmp_path)))
    assert not list(pod.glob("work.new*"))


def test_whoever_waits_for_files_to_be_read_is_shown_that_it_lives(pod: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    code = f"""
from rankzero.launch.node import beat, workspace
beat.SECONDS = 0.01
workspace.present = lambda *_: open({str(tmp_path / "told")!r}).read()
workspace.main()"""
    words = [sys.executable, "-c", code, str(pod), "work", "list"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.read(2) == "\0\0"
        (tmp_path / "told").write_text("there", encoding="utf-8")
        assert process.stdout.read() == '"there"\n'


def test_a_whole_one_puts_and_removes_what_was_sent_before(pod: Path, tmp_path: Path) -> None:
    assert apply(pod, "work", io.BytesIO(sent(tmp_path))) == {"put": 1, "removed": 1, "replaced": []}
    assert {path.name for path in (pod / "work").rglob("*")} == {"b.py", "own"}


def test_it_needs_no_more_than_the_first_python_that_rankzero_takes(
    pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tarfile's filters came with Python 3.11.4; Debian's is 3.11.2."""

    def as_before(
        _tar: tarfile.TarFile, path: str = ".", members: object = None, *, numeric_owner: bool = False
    ) -> None:
        raise AssertionError("without filters it takes whatever it is given")

    monkeypatch.setattr(tarfile.TarFile, "extractall", as_before)
    assert apply(pod, "work", io.BytesIO(sent(tmp_path)))["put"] == 1


def test_links_are_not_taken(pod: Path, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w|") as tar:
        link = tarfile.TarInfo("files/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(BrokenCopyError, match="files/link"):
        apply(pod, "work", io.BytesIO(out.getvalue()))
    assert not (pod / "work/link").exists()


def test_what_was_changed_there_is_kept_when_it_is_replaced_or_removed(pod: Path, tmp_path: Path) -> None:
    (pod / "work/lib/a.py").write_text("changed there", encoding="utf-8")
    (pod / "work/b.py").write_text("made there", encoding="utf-8")
    done = apply(pod, "work", io.BytesIO(sent(tmp_path)))
    assert done == {"put": 1, "removed": 1, "replaced": ["work.replaced/1/lib/a.py", "work.replaced/1/b.py"]}
    assert (pod / "work/b.py").read_bytes() == b"b" * 50_000 and not (pod / "work/lib").exists()
    assert [(pod / name).read_text() for name in done["replaced"]] == ["changed there", "made there"]
    assert apply(pod, "work", io.BytesIO(sent(tmp_path)))["replaced"] == [], "what was sent is there"
    (pod / "work/b.py").write_text("again", encoding="utf-8")
    assert apply(pod, "work", io.BytesIO(sent(tmp_path)))["replaced"] == ["work.replaced/2/b.py"]


def test_what_was_made_there_goes_aside_for_a_file_that_was_a_directory(pod: Path, tmp_path: Path) -> None:
    """Python leaves its __pycache__ in a directory that is a file now."""
    (pod / "work/lib/__pycache__").mkdir()
    (pod / "work/lib/__pycache__/a.pyc").write_text("compiled", encoding="utf-8")
    (pod / "work/lib/a.py").write_text("changed there", encoding="utf-8")
    source = tmp_path / "lib"
    source.write_text("a file now", encoding="utf-8")
    out = io.BytesIO()
    pack({"lib": source}, {"lib": mark(source)}, out)
    done = apply(pod, "work", io.BytesIO(out.getvalue()))
    assert done == {"put": 1, "removed": 1, "replaced": ["work.replaced/1/lib/a.py", "work.replaced/2/lib"]}
    assert (pod / "work/lib").read_text() == "a file now" and list(present(pod, "work")) == ["lib"]
    assert (pod / "work.replaced/1/lib/a.py").read_text() == "changed there"
    assert (pod / "work.replaced/2/lib/__pycache__/a.pyc").read_text() == "compiled"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_and_a_file_that_was_made_there_for_a_directory(pod: Path, tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (pod / "work/conf").write_text("made there", encoding="utf-8")
    else:
        (pod / "work/conf").symlink_to("nowhere")
    out = io.BytesIO()
    (tmp_path / "c").write_text("1", encoding="utf-8")
    names = {name: tmp_path / "c" for name in ("conf/deep/a", "conf/deep/b")}
    pack(names, {name: mark(path) for name, path in names.items()}, out)
    done = apply(pod, "work", io.BytesIO(out.getvalue()))
    assert done == {"put": 2, "removed": 1, "replaced": ["work.replaced/1/conf"]}
    assert (pod / "work/conf/deep/b").read_text() == "1"
    assert (pod / "work.replaced/1/conf").is_symlink() == (kind == "link")


def test_names_that_lead_out_are_not_taken(pod: Path, tmp_path: Path) -> None:
    out = io.BytesIO()
    pack({"../../evil": b"x"}, {"../../evil": "0"}, out)
    with pytest.raises((BrokenCopyError, tarfile.TarError)):
        apply(pod, "work", io.BytesIO(out.getvalue()))
    assert not (tmp_path / "evil").exists() and not (pod / "evil").exists()


def test_what_is_kept_takes_the_place_of_nothing_that_was(pod: Path, tmp_path: Path) -> None:
    """Also where somebody has tidied some of it away."""
    source = tmp_path / "a.py"
    for number in ("1", "2", "3"):
        (pod / "work/lib/a.py").write_text(f"made there {number}", encoding="utf-8")
        source.write_text(f"sent {number}", encoding="utf-8")
        out = io.BytesIO()
        pack({"lib/a.py": source}, {"lib/a.py": mark(source)}, out)
        done = apply(pod, "work", io.BytesIO(out.getvalue()))
        assert done["replaced"] == [f"work.replaced/{number}/lib/a.py"]
        if number == "2":
            shutil.rmtree(pod / "work.replaced/1")
    assert (pod / "work.replaced/2/lib/a.py").read_text() == "made there 2"


def test_where_nothing_is_kept_no_place_is_made(pod: Path, tmp_path: Path) -> None:
    apply(pod, "work", io.BytesIO(sent(tmp_path)))
    assert not (pod / "work.replaced").exists()


def test_a_file_that_a_command_removes_while_it_is_looked_at_is_none(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.is_file

    def then_removed(self: Path) -> bool:
        there = real(self)
        self.unlink()
        return there

    monkeypatch.setattr(Path, "is_file", then_removed)
    assert present(pod, "work") == {}
