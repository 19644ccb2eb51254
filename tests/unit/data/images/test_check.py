"""The check over many images, and paths that must not be followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rankzero.data.images.check import check_images
from rankzero.data.images.decode import ImageLimits
from rankzero.data.images.paths import Refused, inside, refusal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for number in range(40):
        path = folder / f"gqa/images/{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + number, 8), (number, 0, 0)).save(path)
    (folder / "vg").mkdir()
    (folder / "vg/bad.jpg").write_bytes(b"<html>")
    (folder / "vg/empty.jpg").write_bytes(b"")
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_every_bad_image_with_its_reason(root: Path, workers: int) -> None:
    good = [f"gqa/images/{number}.jpg" for number in range(40)]
    sizes: list[int] = []
    report = check_images(
        [*good, "vg/bad.jpg", "vg/empty.jpg", "gqa/images/99.jpg", *good, "/etc/passwd"],
        root,
        workers=workers,
        progress=sizes.append,
    )
    assert report.checked == 44 and not report.ok
    assert {path: problem.reason for path, problem in report.problems.items()} == {
        "vg/bad.jpg": "not an image",
        "vg/empty.jpg": "empty file",
        "gqa/images/99.jpg": "no such image",
        "/etc/passwd": "absolute image path",
    }
    assert report.sources["gqa"] == {"ok": 40, "no such image": 1}
    assert report.sources["vg"] == {"not an image": 1, "empty file": 1}
    assert report.sources["(refused)"] == {"absolute image path": 1}
    assert sum(sizes) == sum((root / path).stat().st_size for path in good)
    shown = report.as_json(examples=2)
    assert len(shown["problems"]) == 2 and shown["problems_by_reason"]["empty file"] == 1


def test_the_limits_reach_the_workers(root: Path) -> None:
    paths = [f"gqa/images/{number}.jpg" for number in (0, 39)]
    report = check_images(paths, root, workers=2, limits=ImageLimits(100))
    assert report.reasons == {"too many pixels": 1} and "gqa/images/39.jpg" in report.problems


def test_nothing_to_check(root: Path) -> None:
    assert check_images([], root).ok


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/etc/passwd", "absolute image path"),
        ("../secret.jpg", "`..` in image path"),
        ("a/../../secret.jpg", "`..` in image path"),
        ("a/..", "`..` in image path"),
        ("a\0.jpg", "NUL in image path"),
        ("..\\secret.jpg", "backslash in image path"),
        ("C:\\x.jpg", "backslash in image path"),
        ("https://example.org/x.jpg", "image is a URL"),
        ("file:///etc/passwd", "image is a URL"),
        ("data:image/png;base64,AAAA", "image is a URL"),
        ("", "empty image path"),
        (" ", "empty image path"),
        ("./", "empty image path"),
        ("a\nb.jpg", "odd character in image path"),
        ("\udc80.jpg", "odd character in image path"),
    ],
)
def test_refused_paths(path: str, reason: str, tmp_path: Path) -> None:
    found = refusal(path)
    assert found is not None and found.reason == reason
    there = inside(path, tmp_path)
    assert isinstance(there, Refused) and there.reason == reason


def test_an_absolute_path_is_followed_below_the_root_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    assert inside(f"{root}/in/a.jpg", root) == (root / "in" / "a.jpg").resolve()
    (root / "out").symlink_to(tmp_path)
    for path in (f"{tmp_path}/a.jpg", f"{root}/in/../../a.jpg", f"{root}/out/a.jpg", f"{root}x/a.jpg"):
        assert isinstance(inside(path, root), Refused), path
    refused = inside(f"{tmp_path}/a.jpg", root)
    assert isinstance(refused, Refused) and f"image_root: {tmp_path}" in refused.hint
    assert inside(f"{tmp_path}/a.jpg", tmp_path) == (tmp_path / "a.jpg").resolve(), "what the hint says helps"


@pytest.mark.parametrize("path", ["a.jpg", "./a.jpg", "a//b.jpg", "ä ö/图.jpg", "a..b/c...jpg", "~/x.jpg", "-rf"])
def test_paths_that_are_followed(path: str, tmp_path: Path) -> None:
    found = inside(path, tmp_path)
    assert isinstance(found, Path) and found.is_relative_to(tmp_path.resolve())


def test_links_are_resolved_first(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    Image.new("RGB", (4, 4)).save(outside / "x.jpg")
    (root / "out").symlink_to(outside)
    (root / "file.jpg").symlink_to(outside / "x.jpg")
    (root / "loop.jpg").symlink_to(root / "loop.jpg")
    (root / "within.jpg").symlink_to(root / "gqa/images/1.jpg")
    (tmp_path / "root-twin").mkdir()  # shares the root's name as a prefix
    (root / "twin").symlink_to(tmp_path / "root-twin")
    for path in ("out/x.jpg", "file.jpg", "twin/x.jpg"):
        found = inside(path, root)
        assert isinstance(found, Refused) and found.reason == "image leaves its root"
    report = check_images(["out/x.jpg", "file.jpg", "within.jpg", "loop.jpg"], root)
    reasons = {path: problem.reason for path, problem in report.problems.items()}
    assert reasons.pop("loop.jpg") in ("unreadable file", "no such image")
    assert reasons == {"out/x.jpg": "image leaves its root", "file.jpg": "image leaves its root"}


def test_a_root_that_is_a_link_itself(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert check_images(["gqa/images/1.jpg"], tmp_path / "link").ok
