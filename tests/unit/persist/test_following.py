"""A volume that is filled from an object store has what the store has now, whatever lay there before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rankzero.data.read.local import local_files
from rankzero.errors import StoppedError, StorageError
from rankzero.launch.node.mirror import downloaded
from rankzero.launch.node.settings import Mirror, NodeSettings
from rankzero.persist import following
from rankzero.persist.following import NOTES, download_tree
from tests.support.s3 import BUCKET, Store, s3_store
from tests.support.unreadable import shut


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    fsspec.filesystem("memory").store.clear()
    return "memory://bucket/prefix"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with s3_store(monkeypatch) as served:
        yield served


URL = f"s3://{BUCKET}/rows"


def never() -> bool:
    return False


def files_of(directory: Path) -> set[str]:
    """All but the notes."""
    below = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {path.as_posix() for path in below if path.parts[0] != NOTES}


def test_a_tree_is_fetched_once(tmp_path: Path, url: str) -> None:
    store, root = fsspec.core.url_to_fs(url)
    store.makedirs(f"{root}/a", exist_ok=True)
    store.pipe_file(f"{root}/a/x", b"1")
    store.pipe_file(f"{root}/y", b"22")
    assert download_tree(url, tmp_path / "d", never) == 2
    assert (tmp_path / "d" / "a" / "x").read_bytes() == b"1"
    assert download_tree(url, tmp_path / "d", never) == 0
    said: list[str] = []
    settings = NodeSettings(run="r", mirrors=(Mirror(url, str(tmp_path / "d2"), "download"),))
    downloaded(settings, said.append, never)
    assert "2 files fetched" in said[0]


def test_a_file_of_the_same_size_with_other_bytes_is_another_file(store: Store, tmp_path: Path) -> None:
    store.put("rows/train.jsonl", b'{"text": "old"}')
    store.put("rows/kept.jsonl", b'{"text": "one"}')
    assert download_tree(URL, tmp_path, never) == 2
    store.put("rows/train.jsonl", b'{"text": "new"}')
    assert download_tree(URL, tmp_path, never) == 1
    assert (tmp_path / "train.jsonl").read_bytes() == b'{"text": "new"}'
    assert download_tree(URL, tmp_path, never) == 0


def test_of_a_file_without_a_note_nothing_is_known(store: Store, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b'{"text": "old"}')
    store.put("rows/train.jsonl", b'{"text": "new"}')
    assert download_tree(URL, tmp_path, never) == 1
    assert (tmp_path / "train.jsonl").read_bytes() == b'{"text": "new"}'


def test_what_was_changed_here_is_as_the_store_has_it_again(store: Store, tmp_path: Path) -> None:
    store.put("rows/train.jsonl", b'{"text": "mine"}')
    download_tree(URL, tmp_path, never)
    (tmp_path / "train.jsonl").write_bytes(b'{"text": "ours"}')
    assert download_tree(URL, tmp_path, never) == 1
    assert (tmp_path / "train.jsonl").read_bytes() == b'{"text": "mine"}'


def test_a_volume_that_another_url_fills_now_has_its_files(store: Store, tmp_path: Path) -> None:
    store.put("rows/train.jsonl", b"same")
    store.put("others/train.jsonl", b"same")
    download_tree(URL, tmp_path, never)
    assert download_tree(f"s3://{BUCKET}/others", tmp_path, never) == 1


def test_only_what_came_from_the_store_goes_with_it(store: Store, tmp_path: Path) -> None:
    for name in ("rows/a.jsonl", "rows/b.jsonl", "rows/edited.jsonl", "others/theirs.jsonl"):
        store.put(name, b'{"text": "theirs"}')
    download_tree(URL, tmp_path, never)
    download_tree(f"s3://{BUCKET}/others", tmp_path, never)
    (tmp_path / "own.jsonl").write_text("{}")
    (tmp_path / "edited.jsonl").write_text("own words")
    store.remove("rows/b.jsonl")
    store.remove("rows/edited.jsonl")
    assert download_tree(URL, tmp_path, never) == 0
    assert files_of(tmp_path) == {"a.jsonl", "own.jsonl", "edited.jsonl", "theirs.jsonl"}
    assert download_tree(URL, tmp_path, never) == 0
    found = local_files(str(tmp_path))
    assert isinstance(found, tuple) and len(found) == 4, "notes are no rows"


def test_a_store_that_lists_nothing_any_more_takes_nothing_away(store: Store, tmp_path: Path) -> None:
    store.put("rows/a.jsonl", b"{}")
    download_tree(URL, tmp_path, never)
    store.remove("rows/a.jsonl")
    with pytest.raises(StorageError, match="nothing is there any more"):
        download_tree(URL, tmp_path, never)
    assert files_of(tmp_path) == {"a.jsonl"}


def test_a_folder_of_a_mount_that_cannot_be_listed_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a", "b"):
        (tmp_path / "store" / folder).mkdir(parents=True)
        (tmp_path / "store" / folder / "x").write_text("1")
    url, here = (tmp_path / "store").as_uri(), tmp_path / "here"
    assert download_tree(url, here, never) == 2
    with monkeypatch.context() as patch:
        shut(patch, tmp_path / "store" / "b")
        with pytest.raises(StorageError, match="Permission denied"):
            download_tree(url, here, never)
    assert files_of(here) == {"a/x", "b/x"}


def test_killed_between_a_file_and_its_note_it_is_fetched_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("rows/train.jsonl", b"old")
    download_tree(URL, tmp_path, never)
    store.put("rows/train.jsonl", b"new")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(following, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            download_tree(URL, tmp_path, never)
    store.put("rows/train.jsonl", b"old")  # as the note that is still there says
    assert download_tree(URL, tmp_path, never) == 1
    assert (tmp_path / "train.jsonl").read_bytes() == b"old"


def test_a_note_is_of_the_bytes_that_its_node_has_put_there(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node, slower and of the store's earlier state, puts its file there before this one's note is written."""
    store.put("rows/train.jsonl", b"new")
    write = following.write_json

    def overtaken(note: Path, value: Any) -> None:
        (tmp_path / "train.jsonl").write_bytes(b"old")
        write(note, value)

    with monkeypatch.context() as patch:
        patch.setattr(following, "write_json", overtaken)
        download_tree(URL, tmp_path, never)
    assert download_tree(URL, tmp_path, never) == 1
    assert (tmp_path / "train.jsonl").read_bytes() == b"new"


def test_what_another_node_fetched_after_this_ones_listing_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("rows/a.jsonl", b"{}")
    listing = following.facts_in

    def then_more_comes(*args: Any) -> Any:
        found = listing(*args)
        monkeypatch.setattr(following, "facts_in", listing)
        store.put("rows/b.jsonl", b"{}")
        download_tree(URL, tmp_path, never)
        return found

    monkeypatch.setattr(following, "facts_in", then_more_comes)
    download_tree(URL, tmp_path, never)
    assert files_of(tmp_path) == {"a.jsonl", "b.jsonl"}


def test_nodes_that_share_a_volume_fetch_at_the_same_time(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    data = os.urandom(16 << 20)
    (source / "weights").write_bytes(data)
    with ThreadPoolExecutor(4) as nodes:
        done = [nodes.submit(download_tree, f"file://{source}", tmp_path / "cache", never) for _ in range(4)]
        assert all(each.result() in (0, 1) for each in done)
    assert (tmp_path / "cache" / "weights").read_bytes() == data
    assert files_of(tmp_path / "cache") == {"weights"}, "nothing temporary is left"
    assert download_tree(f"file://{source}", tmp_path / "cache", never) == 0


def test_a_stop_ends_fetching_between_files(tmp_path: Path, url: str) -> None:
    tree = f"{url}/stopped"
    store, root = fsspec.core.url_to_fs(tree)
    store.makedirs(root, exist_ok=True)
    for name in "ab":
        store.pipe_file(f"{root}/{name}", b"1")
    asked = iter([False, True])
    with pytest.raises(StoppedError):
        download_tree(tree, tmp_path / "d", lambda: next(asked))
    assert files_of(tmp_path / "d") == {"a"}
    assert download_tree(tree, tmp_path / "d", never) == 1, "what was fetched is kept"
