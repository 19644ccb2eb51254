"""Images of rows are known by what they hold: wherever they lie, whatever they are called, whoever replaced them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import rankzero.data.cache.pictures
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.pictures import changed_images
from rankzero.data.cache.selection import held_out_by_group
from rankzero.data.cache.tokenize import Shard, TokenRules, prepare, prepare_shard
from rankzero.data.read import hashing
from rankzero.errors import DataError, StorageError
from rankzero.spec.run_spec import SourceSpec
from tests.support.pictures import draw, qwen_vl_files, qwen_vl_tokenizer, vision_of
from tests.support.tiny import write_jsonl
from tests.support.unreadable import stale
from tests.unit.data.support import user_assistant

SIZES = [(64, 64), (200, 120), (97, 333), (64, 64)]


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> TokenRules:
    return TokenRules(vision=vision_of(qwen_vl_files(tmp_path_factory.mktemp("qwen"))).rules)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = draw(tmp_path / "data", SIZES)
    rows = [{**user_assistant("<image>Which?", "this one"), "images": [name]} for name in names]
    write_jsonl(tmp_path / "data" / "rows.jsonl", rows)
    return tmp_path / "data"


def tokenised(folder: Path, rules: TokenRules, cache: Path, **source: Any) -> TokenizedDataset:
    """The rows of the folder's file; the images are beside it unless the source says otherwise."""
    of_folder = [SourceSpec(path=str(folder / "rows.jsonl"), **source)]
    return prepare(of_folder, qwen_vl_tokenizer(), rules, cache)


def replace_image(path: Path, size: tuple[int, int] = (64, 64), colour: str = "purple") -> None:
    Image.new("RGB", size, colour).save(path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each image is read as a whole. Files count as settled, however young they are."""
    counted: Counter[str] = Counter()
    sha256 = rankzero.data.cache.pictures.file_sha256

    def counting(path: Path) -> str:
        counted[path.name] += 1
        return sha256(path)

    monkeypatch.setattr(rankzero.data.cache.pictures, "file_sha256", counting)
    monkeypatch.setattr(hashing, "_SETTLED_NS", -(10**18))
    return counted


def test_the_same_images_elsewhere_are_the_same_rows(folder: Path, rules: TokenRules, own_cache: Path) -> None:
    here = tokenised(folder, rules, own_cache)
    elsewhere = shutil.copytree(folder, folder.with_name("mounted"))
    there = tokenised(elsewhere, rules, own_cache)
    with_root = tokenised(folder, rules, own_cache, image_root=str(elsewhere))
    assert there.fingerprint == here.fingerprint == with_root.fingerprint
    assert here.images(0) == (str(folder / "0.png"),)
    assert there.images(0) == with_root.images(0) == (str(elsewhere / "0.png"),)
    assert there.digests.tolist() == here.digests.tolist()
    chosen = [held_out_by_group(rows.groups, seed=1, fraction=0.5)[1].tolist() for rows in (here, there)]
    assert chosen[0] == chosen[1]


def test_other_images_under_the_same_names_are_other_rows(folder: Path, rules: TokenRules, own_cache: Path) -> None:
    here = tokenised(folder, rules, own_cache)
    elsewhere = shutil.copytree(folder, folder.with_name("mounted"))
    replace_image(elsewhere / "0.png")
    there = tokenised(elsewhere, rules, own_cache)
    assert there.row(0)[0].tolist() == here.row(0)[0].tolist(), "by their size alone, nobody could tell"
    assert there.fingerprint != here.fingerprint


def test_an_image_under_two_names_ties_its_rows(folder: Path, rules: TokenRules, own_cache: Path) -> None:
    shutil.copy(folder / "0.png", folder / "3.png")
    rows = tokenised(folder, rules, own_cache)
    assert rows.groups[0] == rows.groups[3] and len(set(rows.groups.tolist())) == 3
    assert rows.digests[0] == rows.digests[3]


@pytest.mark.parametrize("size", [SIZES[0], (320, 320)])
def test_images_that_were_replaced_are_tokenised_again(
    size: tuple[int, int], folder: Path, rules: TokenRules, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = tokenised(folder, rules, own_cache)
    tokens, fingerprint = len(before.row(0)[0]), before.fingerprint
    replace_image(folder / "0.png", size)
    after = tokenised(folder, rules, own_cache)
    assert after.fingerprint != fingerprint and (len(after.row(0)[0]) > tokens) == (size != SIZES[0])
    assert f"1 image changed since the rows were tokenised, or cannot be read (such as {folder}/0.png)" in caplog.text


def test_images_that_are_gone_are_named_with_their_rows(folder: Path, rules: TokenRules, own_cache: Path) -> None:
    tokenised(folder, rules, own_cache)
    (folder / "2.png").unlink()
    with pytest.raises(DataError, match="no such image") as caught:
        tokenised(folder, rules, own_cache)
    assert [problem.where for problem in caught.value.problems] == [f"{folder}/rows.jsonl:3"]


def test_images_that_cannot_be_looked_at_now_have_not_changed(
    folder: Path, rules: TokenRules, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows would be tokenised again, or the run be over: images are missing."""
    tokenised(folder, rules, own_cache)
    stale(monkeypatch, folder / "2.png")
    with pytest.raises(StorageError, match="cannot be read at the moment: Stale file handle"):
        tokenised(folder, rules, own_cache)


def test_images_that_nobody_touched_are_not_read_again(
    folder: Path, rules: TokenRules, own_cache: Path, reads: Counter[str]
) -> None:
    first = tokenised(folder, rules, own_cache)
    assert reads == dict.fromkeys(["0.png", "1.png", "2.png", "3.png"], 1)
    reads.clear()
    again = tokenised(folder, rules, own_cache)
    assert not reads and again.fingerprint == first.fingerprint


def test_images_that_were_only_touched_are_read_once_more(
    folder: Path, rules: TokenRules, own_cache: Path, reads: Counter[str]
) -> None:
    first = tokenised(folder, rules, own_cache)
    made = first.directory.stat().st_ino
    os.utime(folder / "1.png", (1, 1))
    reads.clear()
    for _ in range(3):
        again = tokenised(folder, rules, own_cache)
        assert again.fingerprint == first.fingerprint and again.directory.stat().st_ino == made
        assert reads == {"1.png": 1}
    os.utime(folder / "1.png", (2, 2))
    replace_image(folder / "2.png", SIZES[2])
    assert tokenised(folder, rules, own_cache).fingerprint != first.fingerprint


def test_what_may_have_changed_unseen_is_read_again(folder: Path, rules: TokenRules, own_cache: Path) -> None:
    """Within a tick of the clock a second write leaves no trace in a file's state."""
    files = tokenised(folder, rules, own_cache).image_files()
    assert {file.state for file in files} == {""}
    replace_image(folder / "0.png")
    assert changed_images(files, own_cache / "digests" / "x") == [str(folder / "0.png")]


def test_images_that_change_while_rows_are_tokenised(
    folder: Path, rules: TokenRules, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One before it is read, one of a row that is done."""
    sha256 = rankzero.data.cache.pictures.file_sha256

    def disturbed(changed: str, while_reading: str) -> Any:
        def read(path: Path) -> str:
            if path.name == while_reading:
                replace_image(folder / changed, (80, 80))
            return sha256(path)

        return read

    monkeypatch.setattr(rankzero.data.cache.pictures, "file_sha256", disturbed("1.png", "1.png"))
    with pytest.raises(DataError, match="the file changed while it was read") as caught:
        tokenised(folder, rules, own_cache)
    assert caught.value.problems[0].where == f"{folder}/rows.jsonl:2"
    monkeypatch.setattr(rankzero.data.cache.pictures, "file_sha256", disturbed("0.png", "3.png"))
    with pytest.raises(DataError, match="1 image changed while the rows were tokenised") as caught:
        tokenised(folder, rules, own_cache)
    assert caught.value.problems[0].where == str(folder / "0.png")
    monkeypatch.setattr(rankzero.data.cache.pictures, "file_sha256", sha256)
    assert len(tokenised(folder, rules, own_cache)) == len(SIZES)


def test_shards_notice_too(folder: Path, rules: TokenRules, own_cache: Path) -> None:
    source = [SourceSpec(path=str(folder / "rows.jsonl"))]

    def made() -> str:
        rows = prepare_shard(source, qwen_vl_tokenizer(), rules, own_cache, Shard())
        assert rows is not None
        return rows.fingerprint

    before = made()
    assert made() == before
    replace_image(folder / "0.png")
    assert made() != before


def test_many_files_are_looked_at_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rankzero.data.cache.pictures, "_AT_A_TIME", 3)
    monkeypatch.setattr(hashing, "_SETTLED_NS", -(10**18))
    files = []
    for number in range(20):
        path = tmp_path / str(number)
        path.write_bytes(b"%d" % number)
        files.append(rankzero.data.cache.pictures.image_file(str(path), tuple(hashing.file_state(str(path)))))
    assert changed_images(files, tmp_path / "record") == []
    for number in (4, 17):
        (tmp_path / str(number)).write_bytes(b"another")
    (tmp_path / "8").unlink()
    (tmp_path / "9").touch()
    assert changed_images(files, tmp_path / "record") == sorted(str(tmp_path / name) for name in ("4", "17", "8"))
