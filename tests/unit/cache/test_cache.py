"""What is in the cache, who uses it, and what pruning leaves alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from rankzero.cache.contents import entries, unknown
from rankzero.cache.kinds import KINDS
from rankzero.cache.prune import prune
from rankzero.cache.uses import release, use
from rankzero.errors import StorageError
from tests.support.cli import Cli
from tests.support.tiny import chat_rows, write_jsonl
from tests.support.unreadable import close

SRC = Path(__file__).parents[3] / "src" / "rankzero"
DAY = 86400.0


def put(root: Path, name: str, size: int = 100, days: float = 0.0) -> Path:
    """A file that was last touched so long ago, and so its directory."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    age(root, days, path, *path.parents)
    return path


def age(root: Path, days: float, *paths: Path) -> None:
    then = os.stat("/proc/self").st_mtime - days * DAY
    for path in paths:
        if root in path.parents:
            os.utime(path, (then, then))


def names(root: Path) -> set[str]:
    return {f"{entry.kind}/{entry.name}" for entry in entries(root)}


def test_every_place_that_is_written_to_is_a_kind() -> None:
    """Else something would be kept that nobody lists and nothing removes."""
    found = set()
    for path in SRC.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:cache_root\(\)|\bcache_dir|\bcache) / f?"([a-z_]+)', text))
        found |= set(re.findall(r"cache\.mount\}/rankzero/([a-z_]+)", text))
    assert found == set(KINDS)


def test_an_entry_is_all_that_belongs_to_it(own_cache: Path) -> None:
    put(own_cache, "tokenized/abc/rows.arrow", 1000)
    put(own_cache, "tokenized/abc.partial/0.arrow", 10)
    for name in ("abc.lock", "abc.commit.lock", f".tmp-abc-{'0' * 32}/rows.arrow"):
        put(own_cache, f"tokenized/{name}", 1)
    put(own_cache, "models/SmolLM2-1.7B-abc/model.safetensors", 7)
    put(own_cache, "images/ab/abcd", 5)
    put(own_cache, "images/cd/cdef", 5)
    put(own_cache, "mine/notes.txt")
    found = {f"{one.kind}/{one.name}": one.bytes for one in entries(own_cache)}
    assert found == {"tokenized/abc": 1013, "images/": 10, "models/SmolLM2-1.7B-abc": 7}
    assert unknown(own_cache) == ["mine"]


def test_by_age_and_by_room(own_cache: Path) -> None:
    for days in (1, 10, 40):
        put(own_cache, f"downloads/d{days}/data", 100, days)
    put(own_cache, "timings/t.json", 100, 5)
    assert prune(own_cache, older_than=30 * DAY, dry_run=True).bytes == 100
    assert len(names(own_cache)) == 4
    assert [one.name for one in prune(own_cache, older_than=30 * DAY).gone] == ["d40"]
    assert [one.name for one in prune(own_cache, keep=150, kinds=["downloads"]).gone] == ["d10"]
    assert names(own_cache) == {"downloads/d1", "timings/t.json"}
    assert prune(own_cache, keep=0).bytes == 200
    assert not list(own_cache.glob(".trash/*"))


def test_what_one_of_a_kind_needs_of_another_outlives_it(own_cache: Path) -> None:
    put(own_cache, "images/ab/abcd", days=50)
    put(own_cache, "tokenized/abc/rows.arrow", days=1)
    put(own_cache, "prepared/r.json", days=50)
    assert prune(own_cache, older_than=30 * DAY).gone == ()
    assert len(prune(own_cache, older_than=0.0).gone) == 2
    assert names(own_cache) == {"prepared/r.json"}


def test_what_has_to_stay_makes_no_room(own_cache: Path) -> None:
    """Images are the oldest, and are named by rows: these make room first, and by what is left of them it is said."""
    put(own_cache, "images/ab/abcd", 1000, days=50)
    for days in (1, 2):
        put(own_cache, f"tokenized/d{days}/rows.arrow", 100, days)
    assert [one.name for one in prune(own_cache, keep=1100).gone] == ["d2"]
    use(own_cache / "tokenized/d1")
    age(own_cache, 1, own_cache / "tokenized/d1")
    done = prune(own_cache, keep=500)
    assert done.gone == () and [one.name for one in done.in_use] == ["d1"]
    assert [(one.kind, why) for one, why in done.stays] == [("images", "what stays of tokenized names files of it")]
    release()
    assert len(prune(own_cache, keep=0, dry_run=True).gone) == 2


def test_a_kind_that_is_a_link_is_said_and_its_rows_keep_their_images(
    own_cache: Path, tmp_path: Path, cli: Cli
) -> None:
    put(tmp_path / "elsewhere", "abc/rows.arrow", days=50)
    put(own_cache, "images/ab/abcd", days=50)
    (own_cache / "tokenized").symlink_to(tmp_path / "elsewhere")
    done = cli("cache prune --keep 0GB")
    assert done.code == 0 and "stays  tokenized: a link" in done.out and "stays  images/: what stays of tok" in done.out
    assert json.loads(cli("cache prune images --keep 0GB --json").out)["stays"][0]["kind"] == "images"


def test_links_are_not_followed(own_cache: Path, tmp_path: Path) -> None:
    elsewhere = put(tmp_path / "elsewhere", "weights.bin", 10**6)
    own_cache.mkdir()
    (own_cache / "downloads").symlink_to(elsewhere.parent)
    (own_cache / "served/abc").mkdir(parents=True)
    (own_cache / "served/abc/name").symlink_to(elsewhere.parent)
    (own_cache / "models").mkdir()
    (own_cache / "models/mine").symlink_to(elsewhere.parent)
    assert sum(one.bytes for one in entries(own_cache)) < 10**4
    assert {one.kind for one in prune(own_cache, older_than=0.0).gone} == {"served", "models"}
    assert elsewhere.is_file() and (own_cache / "downloads").is_symlink()


READER = """
    import sys
    from pathlib import Path
    from rankzero.cache.uses import use

    rows = Path(sys.argv[1])
    use(rows.parent)
    print("reading", flush=True)
    while sys.stdin.readline():
        print(len(rows.read_bytes()), flush=True)
"""


def test_beside_a_running_reader(own_cache: Path) -> None:
    """Also one that began long ago, and opens its files anew each time."""
    rows = put(own_cache, "tokenized/abc/rows.arrow", 1234)
    put(own_cache, "tokenized/old/rows.arrow", 10)
    command = [sys.executable, "-c", textwrap.dedent(READER), str(rows)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        age(own_cache, 400, rows, rows.parent)
        done = prune(own_cache, older_than=0.0)
        assert [one.name for one in done.gone] == ["old"]
        assert [(one.name, one.used_by.split()[:2]) for one in done.in_use] == [("abc", ["pid", str(reader.pid)])]
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "1234\n"
        reader.kill()  # it could not say that it has ended
        reader.wait()
        assert [one.name for one in prune(own_cache, older_than=0.0).gone] == ["abc"]
    assert list(own_cache.glob(".uses/*.use")) == []


def test_who_makes_an_entry_keeps_it(own_cache: Path) -> None:
    put(own_cache, "streams/abc/window-0/rows.arrow")
    with FileLock(own_cache / "streams/abc.lock"):
        assert prune(own_cache, older_than=0.0).gone == ()
    assert len(prune(own_cache, older_than=0.0).gone) == 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE])
def test_where_nobody_can_tell_who_uses_what_nothing_goes(
    number: int, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(own_cache, "downloads/abc/data", days=50)
    use(own_cache / "downloads/abc")
    age(own_cache, 50, own_cache / "downloads/abc")
    assert len(prune(own_cache, older_than=DAY).in_use) == 1
    listing = os.listdir

    def refused(path: Any = ".") -> Any:
        if str(path).endswith("/.uses"):
            raise OSError(number, os.strerror(number), str(path))
        return listing(path)

    monkeypatch.setattr(os, "listdir", refused)
    monkeypatch.setattr(os, "scandir", refused)  # by which pathlib's glob lists, of which Python it is
    with pytest.raises(StorageError, match=os.strerror(number)):
        prune(own_cache, older_than=DAY)
    assert (own_cache / "downloads/abc/data").is_file()


def test_a_lock_that_cannot_be_opened_is_held(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, who makes the entry: it may be read alone, or not even that."""
    for name in ("abc", "def", "ghi"):
        put(own_cache, f"tokenized/{name}/rows.arrow", days=50)
    locks = [own_cache / f"tokenized/{name}.lock" for name in ("abc", "def", "ghi")]
    opening = os.open

    def theirs(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if path == locks[0] and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        if path == locks[1]:
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return opening(path, flags, *more, **named)

    with FileLock(locks[0]):
        for lock in locks[1:]:
            lock.touch()
        age(own_cache, 50, *locks)
        monkeypatch.setattr(os, "open", theirs)
        done = prune(own_cache, older_than=DAY)
    assert [one.name for one in done.gone] == ["ghi"] and len(done.in_use) == 2


def test_a_use_of_all_of_a_kind_or_of_a_part(own_cache: Path) -> None:
    put(own_cache, "images/ab/abcd")
    put(own_cache, "downloads/abc/data")
    use(own_cache / "images")
    use(own_cache / "downloads/abc/data")
    use(own_cache.parent / "elsewhere")
    assert prune(own_cache, older_than=0.0).gone == ()
    release()
    assert len(prune(own_cache, older_than=0.0).gone) == 2


def test_who_may_write_the_cache_may_use_it(own_cache: Path) -> None:
    """A cache that users share: none of them keeps the others from noting what they use."""
    own_cache.mkdir()
    own_cache.chmod(0o2775)
    use(own_cache / "downloads/abc")
    assert (own_cache / ".uses").stat().st_mode & 0o7777 == 0o2775
    assert (own_cache / ".uses/lock").stat().st_mode & 0o777 == 0o664


def test_who_can_only_read_the_cache_keeps_everything(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another user: it cannot write down what it uses."""
    put(own_cache, "downloads/abc/data")
    assert prune(own_cache, older_than=DAY).gone == ()
    opened = os.open

    def only_read(path: Any, flags: int, *mode: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *mode)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", only_read)
        use(own_cache / "downloads/abc")
        use(own_cache / "images")
    done = prune(own_cache, older_than=0.0)
    assert done.gone == () and [one.used_by for one in done.in_use] == ["a process that may not write the cache"]
    release()
    assert len(prune(own_cache, older_than=0.0).gone) == 1


def test_who_can_only_read_the_lock_of_those_who_can_only_read_sees_them(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another user of the same cache has made; one that cannot be read either tells nothing."""
    put(own_cache, "downloads/abc/data")
    assert prune(own_cache, older_than=DAY).gone == ()
    readers = own_cache / ".uses/readers"
    opened = os.open

    def theirs(refused: int) -> Any:
        def open_(path: Any, flags: int, *mode: int, **named: Any) -> int:
            if Path(path) == readers and flags & os.O_ACCMODE in (os.O_RDWR, refused):
                raise PermissionError(13, "Permission denied", str(path))
            return opened(path, flags, *mode, **named)

        return open_

    file = os.open(readers, os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_SH)
    monkeypatch.setattr(os, "open", theirs(os.O_RDWR))
    assert prune(own_cache, older_than=0.0).gone == ()
    os.close(file)
    monkeypatch.setattr(os, "open", theirs(os.O_RDONLY))
    assert prune(own_cache, older_than=0.0).gone == ()
    monkeypatch.setattr(os, "open", theirs(os.O_RDWR))
    assert len(prune(own_cache, older_than=0.0).gone) == 1


def test_a_lock_is_for_all_users_also_in_the_directory_of_another(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_cache / ".uses").mkdir(parents=True)
    own_cache.chmod(0o777)
    chmod = os.chmod

    def theirs_is_refused(path: Any, *arguments: Any, **named: Any) -> None:
        if Path(path).name == ".uses":
            raise PermissionError(1, "Operation not permitted", str(path))
        chmod(path, *arguments, **named)

    monkeypatch.setattr(os, "chmod", theirs_is_refused)
    prune(own_cache, older_than=DAY)
    modes = {(own_cache / ".uses" / name).stat().st_mode & 0o777 for name in ("lock", "readers")}
    assert modes == {0o666}


def test_who_only_looks_takes_nothing_from_those_who_begin(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that has its name is locked: nobody takes it for one of a process that is gone."""
    from rankzero.cache import uses

    seen = []
    rename = Path.rename

    def looked_at(path: Path, target: Path) -> Path:
        seen.append(uses.used_in(own_cache))
        done = rename(path, target)
        seen.append(uses.used_in(own_cache))
        return done

    monkeypatch.setattr(Path, "rename", looked_at)
    put(own_cache, "downloads/abc/data")
    use(own_cache / "downloads/abc")
    assert len(list(own_cache.glob(".uses/*.use"))) == 1 and seen == [{}, {}]
    assert list(uses.used_in(own_cache)) == ["downloads/abc"]


def test_on_a_full_volume_a_user_keeps_everything(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(own_cache, "downloads/abc/data")
    put(own_cache, "downloads/other/data")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    use(own_cache / "downloads/abc")
    monkeypatch.undo()
    assert prune(own_cache, older_than=0.0).gone == ()
    release()
    assert len(prune(own_cache, older_than=0.0).gone) == 2


def test_without_locks_nothing_goes(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    put(own_cache, "downloads/abc/data")

    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match="No locks"):
        prune(own_cache, older_than=0.0)
    monkeypatch.undo()
    assert (own_cache / "downloads/abc/data").is_file()


def test_what_another_user_made_stays_and_the_rest_goes(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    for name in ("theirs", "mine"):
        put(own_cache, f"tokenized/{name}/rows.arrow", days=40)
    put(own_cache, "images/ab/abcd", days=40)  # which they name
    put(own_cache, f".trash/{'0' * 32}/data")  # of a call that was killed
    rename = Path.rename

    def theirs_is_refused(path: Path, target: Path) -> Path:
        if path.name == "theirs":
            raise PermissionError(1, "Operation not permitted", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", theirs_is_refused)
    done = cli("cache prune --older-than 30d")
    assert done.code == 0 and "stays  tokenized/theirs: another user's" in done.out, done.err
    assert "100 B are free" in done.out and names(own_cache) == {"tokenized/theirs", "images/"}
    assert list(own_cache.glob(".trash/*")) == []


def test_what_could_not_be_removed_is_not_moved(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of another user within one that everybody may write."""
    put(own_cache, "downloads/abc/theirs/data")
    close(monkeypatch, own_cache / "downloads/abc/theirs")
    [(entry, why)] = prune(own_cache, older_than=0.0).stays
    assert (entry.name, why) == ("abc", "another user's") and names(own_cache) == {"downloads/abc"}


def test_a_trash_that_another_user_keeps_is_left_alone(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(own_cache, "downloads/abc/data")
    put(own_cache, ".trash/theirs")
    close(monkeypatch, own_cache / ".trash")
    rename = Path.rename

    def none_into_it(path: Path, target: Path) -> Path:
        if target.parent == own_cache / ".trash":
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", none_into_it)
    assert len(prune(own_cache, older_than=0.0).gone) == 1
    assert not (own_cache / "downloads/abc").exists() and not list(own_cache.glob("downloads/.trash/*"))


def test_what_cannot_be_removed_from_the_trash_does_not_end_pruning(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a mount point, or a file that NFS has renamed because somebody has it open."""
    put(own_cache, ".trash/busy/data")
    put(own_cache, "downloads/abc/data")
    remove = shutil.rmtree

    def busy(path: Path) -> None:
        if path.name == "busy":
            raise OSError(16, "Device or resource busy", str(path))
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", busy)
    assert len(prune(own_cache, older_than=0.0).gone) == 1
    assert [path.name for path in own_cache.glob(".trash/*")] == ["busy"]
    assert caplog.text.count("Device or resource busy") == 1 and "busy stays" in caplog.text


@pytest.mark.parametrize("name", ["models/abc/weights", "images/ab/abcd"])
def test_a_kind_on_a_volume_of_its_own(own_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    put(own_cache, name)
    put(own_cache, "downloads/abc/data")
    mount = own_cache / name.split("/")[0]
    rename = Path.rename

    def from_mount(path: Path, target: Path) -> Path:
        if path == mount:
            raise OSError(16, "Device or resource busy", str(path))
        if (mount in path.parents) != (mount in target.parents):
            raise OSError(18, "Invalid cross-device link", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", from_mount)
    assert len(prune(own_cache, older_than=0.0).gone) == 2
    assert mount.is_dir() and names(own_cache) == set() and not list(own_cache.rglob(".trash/*"))


def test_two_calls_at_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One has come to its end when the other begins to remove, or in the middle of it."""
    put(own_cache, "downloads/abc/data")
    remove = shutil.rmtree

    def others_first(path: Path) -> None:
        monkeypatch.setattr(shutil, "rmtree", remove)
        assert prune(own_cache, older_than=0.0).gone == ()
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", others_first)
    assert len(prune(own_cache, older_than=0.0).gone) == 1
    assert not list(own_cache.glob(".trash/*"))


def test_rows_that_are_open_stay_and_pruned_ones_are_made_again(own_cache: Path, tmp_path: Path) -> None:
    from rankzero.data.cache.tokenize import prepare
    from rankzero.data.tokens.token_rules import TokenRules
    from rankzero.spec.run_spec import SourceSpec
    from tests.support.tiny import tiny_tokenizer

    sources = [SourceSpec(path=str(write_jsonl(tmp_path / "t.jsonl", chat_rows(20))))]
    tokenizer = tiny_tokenizer()
    rows = prepare(sources, tokenizer, TokenRules(max_length=64), own_cache)
    assert prune(own_cache, older_than=0.0, kinds=["tokenized"]).gone == ()
    release()
    assert len(prune(own_cache, older_than=0.0, kinds=["tokenized"]).gone) == 1
    again = prepare(sources, tokenizer, TokenRules(max_length=64), own_cache)
    assert len(again) == len(rows) == 20


def test_typed(cli: Cli, own_cache: Path) -> None:
    assert cli("cache list").code == 0  # there is none yet
    put(own_cache, "downloads/abc/data", 2_500_000, 40)
    put(own_cache, "mine.txt")
    listed = cli("cache list").out
    assert "downloads     2.5 MB in 1: data files from URLs and stores, last used 40 days ago" in listed
    assert "not ours, and never removed: mine.txt" in listed
    facts: dict[str, Any] = json.loads(cli("cache list --json").out)
    assert facts["kinds"]["downloads"]["bytes"] == 2_500_000
    assert "2.5 MB would be free" in cli("cache prune --older-than 30d --dry-run").out
    assert "0 B are free" in cli("cache prune --keep 3MB").out
    done = cli("cache prune downloads --keep 1MiB --older-than 1w --json")
    assert done.code == 0 and json.loads(done.out)["bytes"] == 2_500_000
    assert (own_cache / "mine.txt").is_file()


@pytest.mark.parametrize("words", ["", "--older-than 30", "--keep lots", "hub --keep 0B", "prepared --keep 0B"])
def test_typed_wrongly(words: str, cli: Cli) -> None:
    assert cli(f"cache prune {words}").code == 2
