"""Images found by name in every kind of place, and what is missing told by source."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rankzero.data.read.network import Found, RemoteFile
from rankzero.datasets.images.resolve import MISSING as MISSING_RULE
from rankzero.datasets.images.resolve import ImageSettings, Located, Lost, locate_images
from rankzero.datasets.images.stores import Store, open_store
from rankzero.errors import DataError, StorageError, UsageError


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(buffer, format="PNG")
    return buffer.getvalue()


MEMBERS = {
    "coco/train2017/000000000001.jpg": picture(1),
    "gqa/images/7.jpg": picture(7),
    "chartqa/train/png/9.png": picture(9),
}
WANTED = ["coco/val2014/COCO_val2014_000000000001.jpg", "gqa/images/7.jpg", "chartqa/train/png/9.png"]
SHADES = dict(zip(WANTED, (1, 7, 9), strict=True))
MISSING = ["gqa/images/8.jpg", "ai2d/images/1.png"]


def folder(path: Path) -> str:
    for name, data in MEMBERS.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return str(path)


def tar(path: Path, mode: str = "w") -> str:
    with tarfile.open(path, mode) as archive:
        for name, data in reversed(MEMBERS.items()):
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def zipped(path: Path) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in MEMBERS.items():
            archive.writestr(name, data)
    return str(path)


def parquet(path: Path, **columns: Sequence[object]) -> str:
    data = list(MEMBERS.values())
    names = columns or {"file_name": list(MEMBERS)}
    table = pa.table({**names, "image": [{"bytes": image, "path": None} for image in data]})
    pq.write_table(table, path, row_group_size=1)
    return str(path)


def place(kind: str, tmp_path: Path) -> str:
    make = {
        "folder": lambda: folder(tmp_path / "store"),
        "tar": lambda: tar(tmp_path / "images.tar"),
        "tar.gz": lambda: tar(tmp_path / "images.tar.gz", "w:gz"),
        "zip": lambda: zipped(tmp_path / "images.zip"),
        "parquet": lambda: parquet(tmp_path / "images.parquet"),
    }
    return make[kind]()


def shade(located: Located, path: str, image_dir: Path) -> int:
    found = located.of(path)
    assert isinstance(found, str), found
    return int(Image.open(image_dir / found).convert("L").getpixel((0, 0)))


@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz", "zip", "parquet"])
def test_every_kind_of_store(kind: str, tmp_path: Path) -> None:
    image_dir = tmp_path / "out"
    store = open_store(place(kind, tmp_path))
    located = locate_images([*WANTED, *MISSING, "../x.jpg"], image_dir, "train", [store])
    assert {path: shade(located, path, image_dir) for path in WANTED} == SHADES
    assert located.how == {"copied" if kind == "folder" else "unpacked": 3}
    lost = located.of("ai2d/images/1.png")
    assert isinstance(lost, Lost) and lost.rule == "image missing"
    reports = {name: report.as_json(name) for name, report in located.sources.items()}
    assert reports["gqa"] == {
        "images": 2,
        "found": 1,
        "lost": {"image missing": 1},
        "examples": ["gqa/images/8.jpg"],
        "looked_for_in": ["gqa/images"],
    }
    assert reports["coco"] == {"images": 1, "found": 1}
    assert reports["(refused)"]["lost"] == {"`..` in image path": 1}
    assert store.seen.used == 3
    assert not list(image_dir.rglob(".tmp-*"))
    # The next run finds all of it in place and needs no store.
    again = locate_images(WANTED, image_dir, "train")
    assert again.how == {"in place": 3} and {path: shade(again, path, image_dir) for path in WANTED} == SHADES


@pytest.mark.parametrize("kind", ["tar", "zip", "parquet", "hub"])
def test_a_member_that_is_too_large_is_called_that(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.datasets.images.stores.MAX_BYTES", 8)
    if kind == "hub":
        (tmp_path / "hub/some/mirror").mkdir(parents=True)
        tar(tmp_path / "hub/some/mirror/all.tar")
        store: Store = open_store("hub:some/mirror", FakeNetwork(tmp_path / "hub"))
    else:
        store = open_store(place(kind, tmp_path))
    located = locate_images([*WANTED, "gqa/images/8.jpg"], tmp_path / "out", "train", [store])
    lost = [located.of(path) for path in (*WANTED, "gqa/images/8.jpg")]
    assert [one.rule for one in lost if isinstance(one, Lost)] == ["image too large"] * 3 + ["image missing"]
    assert store.seen.too_large == 3


def test_one_file_serves_all_spellings(tmp_path: Path) -> None:
    spellings = ["coco/train2017/000000000001.jpg", "coco/train2014/COCO_train2014_000000000001.jpg"]
    located = locate_images(spellings, tmp_path / "out", "train", [open_store(folder(tmp_path / "store"))])
    assert located.of(spellings[0]) == located.of(spellings[1]) == "train/coco/train2017/000000000001.jpg"
    assert located.sources["coco"].found == 1


def test_links_share_the_file_and_stay_within_the_folder(tmp_path: Path) -> None:
    store = open_store(folder(tmp_path / "store"))
    located = locate_images(WANTED, tmp_path / "out", "train", [store], ImageSettings(mode="link"))
    assert located.how == {"linked": 3}
    one = tmp_path / "out/train/gqa/images/7.jpg"
    assert os.stat(one).st_nlink == 2 and not one.is_symlink()


def test_link_falls_back_to_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    store = open_store(folder(tmp_path / "store"))
    assert locate_images(WANTED, tmp_path / "out", "train", [store], ImageSettings(mode="link")).how == {"copied": 3}


def test_a_store_of_one_source(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "val2017.zip", "w") as archive:
        archive.writestr("val2017/000000000001.jpg", picture(1))
        archive.writestr("readme.txt", "hello")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/000000000002.jpg").write_bytes(picture(2))
    stores = [open_store(f"coco={tmp_path / 'val2017.zip'}"), open_store(f"coco={tmp_path / 'flat'}")]
    paths = ["coco/train2014/COCO_train2014_000000000001.jpg", "coco/train2017/000000000002.jpg"]
    located = locate_images(paths, tmp_path / "out", "test", stores)
    assert [shade(located, path, tmp_path / "out") for path in paths] == [1, 2]
    assert stores[0].seen.others == ["readme.txt"]


@pytest.mark.parametrize("column", ["image_id", "cocoid", "id"])
def test_parquet_by_coco_id_only_where_it_is_declared(column: str, tmp_path: Path) -> None:
    path = parquet(tmp_path / "mirror.parquet", **{column: [3, 1, 2]})
    wanted = ["coco/train2017/000000000001.jpg", "coco/val2014/COCO_val2014_000000000002.jpg"]
    located = locate_images(wanted, tmp_path / "out", "train", [open_store(f"coco={path}")])
    assert [shade(located, name, tmp_path / "out") for name in wanted] == [7, 9]
    undeclared = open_store(path)
    located = locate_images(wanted, tmp_path / "other", "train", [undeclared])
    assert all(isinstance(located.of(name), Lost) for name in wanted) and undeclared.seen.unnamed == 3


@pytest.mark.parametrize(
    ("columns", "words"),
    [({"image": [b"x"]}, "no column with their names"), ({"path": ["a"]}, "no column with images")],
)
def test_parquet_without_the_columns(columns: dict[str, list[object]], words: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=words):
        locate_images(WANTED, tmp_path / "out", "train", [open_store(str(tmp_path / "x.parquet"))])


def test_parquet_by_the_path_inside_the_image(tmp_path: Path) -> None:
    names = ["7.jpg", None, "../8.jpg"]
    images = [{"bytes": data, "path": name} for name, data in zip(names, MEMBERS.values(), strict=True)]
    pq.write_table(pa.table({"image": images, "label": [0, 1, 2]}), tmp_path / "x.parquet")
    store = open_store(f"gqa/images={tmp_path / 'x.parquet'}".replace("gqa/images", "gqa"))
    located = locate_images(["gqa/7.jpg", "gqa/8.jpg"], tmp_path / "out", "train", [store])
    assert shade(located, "gqa/7.jpg", tmp_path / "out") == 1
    assert isinstance(located.of("gqa/8.jpg"), Lost)
    assert store.seen.unnamed == 2, "rows without a usable name are counted, and never paired by order"


def test_members_that_would_leave_the_folder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as archive:
        for name in ("../escape.jpg", "/abs.jpg"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(b"evil"))
        link = tarfile.TarInfo("gqa/images/7.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    located = locate_images(["gqa/images/7.jpg"], tmp_path / "out", "train", [open_store(str(tmp_path / "evil.tar"))])
    assert isinstance(located.of("gqa/images/7.jpg"), Lost)
    assert not (tmp_path / "escape.jpg").exists() and not (tmp_path / "out").exists()


def test_a_link_out_of_the_folder_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(picture(5))
    (tmp_path / "out/gqa/images").mkdir(parents=True)
    (tmp_path / "out/gqa/images/7.jpg").symlink_to(tmp_path / "secret.jpg")
    lost = locate_images(["gqa/images/7.jpg"], tmp_path / "out", "train").of("gqa/images/7.jpg")
    assert isinstance(lost, Lost) and lost.rule == "image leaves its root"


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="leads out"):
        locate_images(WANTED, tmp_path / "out", "train", [open_store(folder(tmp_path / "store"))])
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_cannot_be_decoded_is_lost_and_not_kept(tmp_path: Path) -> None:
    store_dir = tmp_path / "store"
    folder(store_dir)
    (store_dir / "gqa/images/7.jpg").write_bytes(b"<html>not found</html>")
    located = locate_images(WANTED, tmp_path / "out", "train", [open_store(str(store_dir))])
    lost = located.of("gqa/images/7.jpg")
    assert isinstance(lost, Lost) and lost.rule == "not an image" and "HTML" in lost.what
    assert located.sources["gqa"].lost == {"not an image": 1}
    assert not (tmp_path / "out/train/gqa/images/7.jpg").exists(), "or the next run would take it for good"
    assert (store_dir / "gqa/images/7.jpg").exists()
    unchecked = locate_images(
        WANTED, tmp_path / "raw", "train", [open_store(str(store_dir))], ImageSettings(check=False)
    )
    assert unchecked.of("gqa/images/7.jpg") == "train/gqa/images/7.jpg"


@pytest.mark.parametrize("kind", ["tar.gz", "zip", "parquet"])
def test_a_damaged_archive_is_an_error_and_not_a_list_of_missing_images(kind: str, tmp_path: Path) -> None:
    path = Path(place(kind, tmp_path))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError) as caught:
        locate_images(WANTED, tmp_path / "out", "train", [open_store(str(path))])
    assert caught.value.problems[0].where == str(path)


class FakeNetwork:
    """Data sets in folders, and a note of what was downloaded."""

    def __init__(self, root: Path) -> None:
        self.root, self.downloaded = root, list[str]()

    def find(self, url: str) -> Found:
        raise AssertionError(url)

    def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
        files = sorted((self.root / name).iterdir())
        return tuple(RemoteFile(path.name, str(path), path.stat().st_size, "v1") for path in files)

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        self.downloaded.append(file.name)
        yield Path(file.url).read_bytes()[start:]


def test_a_hub_mirror_is_read_until_all_is_found(tmp_path: Path) -> None:
    mirror = tmp_path / "hub/some/mirror"
    mirror.mkdir(parents=True)
    (mirror / "README.md").write_text("# mirror")
    parquet(mirror / "train-0.parquet", image_id=[1, 2, 3])
    parquet(mirror / "train-1.parquet", image_id=[4, 5, 6])
    parquet(mirror / "train-2.parquet", image_id=[7, 8, 9])
    network = FakeNetwork(tmp_path / "hub")
    store: Store = open_store("coco=hub:some/mirror", network)
    wanted = ["coco/train2017/000000000002.jpg", "coco/val2014/COCO_val2014_000000000004.jpg"]
    located = locate_images(wanted, tmp_path / "out", "train", [store])
    assert [shade(located, path, tmp_path / "out") for path in wanted] == [7, 1]
    assert network.downloaded == ["train-0.parquet", "train-1.parquet"]
    assert (store.seen.members, store.seen.used) == (4, 2), "row groups after the last image are not read"


def test_a_mirror_without_files_of_a_known_kind(tmp_path: Path) -> None:
    (tmp_path / "hub/some/mirror").mkdir(parents=True)
    store = open_store("hub:some/mirror", FakeNetwork(tmp_path / "hub"))
    with pytest.raises(DataError, match="no file of a kind"):
        locate_images(WANTED, tmp_path / "out", "train", [store])


@pytest.mark.parametrize(("text", "words"), [("nowhere", "no such folder"), ("../x=.", "no such folder")])
def test_places_that_are_not(text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=words):
        open_store(text)


@pytest.mark.parametrize("text", ["~/x=1", "~/x=1/y.zip", "coco=~/x=1"])
def test_a_place_in_a_home_may_have_an_equals_sign(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x=1").mkdir()
    zipped(tmp_path / "x=1/y.zip")
    assert str(tmp_path / "x=1") in open_store(text).label


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "x.rar").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"\.tar"):
        open_store(str(tmp_path / "x.rar"))


class TestDamagedInPlace:
    NAME = "gqa/images/7.jpg"

    def damaged(self, image_dir: Path, name: str) -> Path:
        (image_dir / name).parent.mkdir(parents=True)
        (image_dir / name).write_bytes(MEMBERS[self.NAME][:45])
        return image_dir / name

    @pytest.mark.parametrize("place", ["train/gqa/images/7.jpg", "gqa/images/7.jpg"])
    @pytest.mark.parametrize("kind", ["folder", "zip"])
    def test_it_is_brought_anew(self, kind: str, place: str, tmp_path: Path) -> None:
        there = self.damaged(tmp_path / "out", place)
        before = there.read_bytes()
        make = {"folder": lambda: folder(tmp_path / "store"), "zip": lambda: zipped(tmp_path / "images.zip")}
        located = locate_images([self.NAME], tmp_path / "out", "train", [open_store(make[kind]())])
        assert shade(located, self.NAME, tmp_path / "out") == 7 and located.sources["gqa"].found == 1
        assert located.of(self.NAME) == f"train/{self.NAME}"
        if not place.startswith("train/"):
            assert there.read_bytes() == before, "what is not below the split's folder is the user's"
        again = locate_images([self.NAME], tmp_path / "out", "train")
        assert again.of(self.NAME) == f"train/{self.NAME}" and again.how == {"in place": 1}

    def test_without_another_copy_it_is_lost_and_stays(self, tmp_path: Path) -> None:
        there = self.damaged(tmp_path / "out", f"train/{self.NAME}")
        before = there.read_bytes()
        for stores in ([], [open_store(str(tmp_path / "out/train"))], [open_store(str(tmp_path / "out"))]):
            lost = locate_images([self.NAME], tmp_path / "out", "train", stores).of(self.NAME)
            assert isinstance(lost, Lost) and lost.rule != MISSING_RULE
            assert there.read_bytes() == before

    def test_nothing_of_another_folder_is_replaced_through_a_link(self, tmp_path: Path) -> None:
        there = self.damaged(tmp_path / "out", self.NAME)
        before = there.read_bytes()
        (tmp_path / "out/train").mkdir()
        (tmp_path / "out/train/gqa").symlink_to(tmp_path / "out/gqa")
        located = locate_images([self.NAME], tmp_path / "out", "train", [open_store(folder(tmp_path / "store"))])
        assert isinstance(located.of(self.NAME), Lost) and there.read_bytes() == before

    def test_a_damaged_one_from_a_store_replaces_nothing(self, tmp_path: Path) -> None:
        there = self.damaged(tmp_path / "out", f"train/{self.NAME}")
        before = there.read_bytes()
        folder(tmp_path / "store")
        (tmp_path / "store" / self.NAME).write_bytes(b"<html>")
        located = locate_images([self.NAME], tmp_path / "out", "train", [open_store(str(tmp_path / "store"))])
        lost = located.of(self.NAME)
        assert isinstance(lost, Lost) and lost.rule == "damaged image"
        assert there.read_bytes() == before and [path.name for path in there.parent.iterdir()] == [there.name]
