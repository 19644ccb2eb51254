"""What a store says of what lies there: nothing only where nothing is, never where it could not be looked at."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from rankzero.store_listing import facts_below, is_there
from tests.support.unreadable import refuse, stale


class Slow(AsyncFileSystem):  # type: ignore[misc]
    """A store of one folder that it lists once, with the listing of every store that has none of its own."""

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": 0, "type": "directory"}

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        if path == "b/shut":
            raise OSError(errno.EIO, "no answer")
        return [{"name": "b/shut", "size": 0, "type": "directory"}, {"name": "b/file", "size": 3, "type": "file"}]


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_what_lies_below(kind: str, tmp_path: Path) -> None:
    store, root = fsspec.core.url_to_fs(f"{kind}://{tmp_path}/store")
    assert not is_there(store, root) and not is_there(store, f"{root}/a/x") and facts_below(store, root) == {}
    store.makedirs(f"{root}/a/b")
    assert is_there(store, root) and facts_below(store, root) == {}
    store.pipe_file(f"{root}/a/b/x", b"1")
    store.pipe_file(f"{root}/y", b"22")
    assert (
        {name: facts["size"] for name, facts in facts_below(store, root).items()}
        == {
            f"{root}/a/b/x": 1,
            f"{root}/y": 2,
        }
        == {name: facts["size"] for name, facts in store.find(root, detail=True).items()}
    )
    assert is_there(store, f"{root}/y") and not is_there(store, f"{root}/y/z")
    assert list(facts_below(store, f"{root}/y")) == [f"{root}/y"]


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES, errno.EIO, errno.ENOTCONN])
def test_what_cannot_be_looked_at_is_an_error(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, root = fsspec.core.url_to_fs(tmp_path.as_uri())
    (tmp_path / "shut").mkdir()
    stale(monkeypatch, tmp_path / "shut", number)
    with pytest.raises(OSError) as raised:
        is_there(store, f"{root}/shut")
    assert raised.value.errno == number
    with pytest.raises(OSError):
        facts_below(store, root)


def test_a_folder_that_goes_meanwhile_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a checkpoint that its run removes."""
    store, root = fsspec.core.url_to_fs(tmp_path.as_uri())
    for folder in ("gone", "kept"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_text("1")
    refuse(monkeypatch, "gone", FileNotFoundError)
    assert list(facts_below(store, root)) == [f"{root}/kept/x"]


def test_a_store_without_a_listing_of_its_own_passes_over_nothing() -> None:
    with pytest.raises(OSError, match="no answer"):
        facts_below(Slow(skip_instance_cache=True), "b")
