"""The frame: every raw row has one outcome, one side, one image; memory does not grow with the rows."""

from __future__ import annotations

import json
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from rankzero.data.images.layout import image_key
from rankzero.datasets import fire, volcano
from rankzero.datasets.frame import FrameSettings, Recipe, run
from rankzero.datasets.images.resolve import ImageSettings
from rankzero.datasets.images.stores import open_store
from rankzero.datasets.raw import find_inputs
from rankzero.errors import DataError, StorageError, UsageError
from tests.unit.datasets.support import fire_row, llava_row, many_fire_rows, read_jsonl, trajectory, write_array


def fire_recipe(policy: fire.FirePolicy | None = None) -> Recipe:
    convert = partial(fire.convert, policy=policy or fire.FirePolicy())
    return Recipe("fire", fire.FILE_NAME, convert, needs_image=True, reads=fire.READS)


VOLCANO = Recipe("volcano", volcano.FILE_NAME, volcano.convert, needs_image=False, reads=volcano.READS)


def frame(tmp_path: Path, **choices: Any) -> FrameSettings:
    return FrameSettings(tmp_path / "out", tmp_path / "images", **choices)


def run_fire(tmp_path: Path, rows: list[Any], policy: fire.FirePolicy | None = None, **choices: Any) -> dict[str, Any]:
    raw = write_array(tmp_path / "FIRE-train.json", rows)
    stats = run(fire_recipe(policy), {"train": [raw]}, frame(tmp_path, **choices))
    assert stats == json.loads((tmp_path / "out/stats.json").read_text())
    return dict(stats["splits"]["train"])


def test_a_thousand_trajectories_add_up(tmp_path: Path) -> None:
    rows = many_fire_rows(1000)
    stats = run_fire(tmp_path, rows, skip_images=True, eval_fraction=0.1)
    attempts = sum("Answer: a" in turn["value"] for row in rows for turn in row["conversations"])
    assert stats["rows_in"] == stats["rows_used"] == 1000
    assert stats["steps_in"] == stats["steps_out"] == stats["rows_out"] == attempts
    assert sum(stats["rounds"].values()) == 1000 and sum(stats["scores"].values()) == attempts
    assert sum(int(rounds) * count for rounds, count in stats["rounds"].items()) == attempts
    train, held = (read_jsonl(tmp_path / f"out/fire_bc_{name}.jsonl") for name in ("train", "eval"))
    assert stats["written"] == {"fire_bc_train.jsonl": len(train), "fire_bc_eval.jsonl": len(held)}
    assert len(train) + len(held) == attempts
    # One side for each row, trajectory, and image, whatever the image's path is called.
    assert len({row["id"] for row in train + held}) == attempts
    assert not {row["conversation_id"] for row in train} & {row["conversation_id"] for row in held}
    assert not {image_key(row["images"][0]) for row in train} & {image_key(row["images"][0]) for row in held}
    assert {row["id"].split("-")[0] for row in train} ^ {row["id"].split("-")[0] for row in held} == {
        row["id"] for row in rows
    }
    share = len({row["id"].split("-")[0] for row in held}) / 1000
    assert 0.09 < share < 0.11
    text = (tmp_path / "out/fire_bc_train.jsonl").read_text() + (tmp_path / "out/fire_bc_eval.jsonl").read_text()
    assert "SECRET" not in text and "TRUTH" not in text


def test_shuffled_input_gives_the_same_sides(tmp_path: Path) -> None:
    rows = many_fire_rows(120)
    sides = []
    for order in (rows, rows[::-1]):
        run_fire(tmp_path, order, skip_images=True, eval_fraction=0.2)
        sides.append([sorted((tmp_path / f"out/fire_bc_{n}.jsonl").read_text().split("\n")) for n in ("train", "eval")])
    assert sides[0] == sides[1]


def picture(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(path, format="PNG")


def test_rows_without_a_usable_image_are_dropped_by_name(tmp_path: Path) -> None:
    picture(tmp_path / "store/coco/val2017/000000000007.jpg")
    picture(tmp_path / "images/gqa/images/1.jpg", 1)
    (tmp_path / "images/gqa/images/2.jpg").write_bytes(b"<html>")
    names = [
        "coco/train2014/COCO_train2014_000000000007.jpg",
        "gqa/images/1.jpg",
        "gqa/images/2.jpg",
        "gqa/images/3.jpg",
        "../../etc/passwd",
        None,
    ]
    rows: list[Any] = [fire_row(f"r{i}", name, trajectory(2)) for i, name in enumerate(names)]
    rows += ["text", fire_row("r9", None, trajectory(2)) | {"image": ["a.jpg", "b.jpg"]}]
    raw = write_array(tmp_path / "FIRE-train.json", rows)
    store = open_store(str(tmp_path / "store"))
    stats = run(fire_recipe(), {"train": [raw]}, frame(tmp_path), [store])["splits"]["train"]
    assert (stats["rows_in"], stats["rows_used"], stats["rows_out"]) == (8, 2, 4)
    assert stats["rows_dropped"] == {
        "not an image": 1,
        "image missing": 1,
        "`..` in image path": 1,
        "no image": 1,
        "not an object": 1,
        "image is not a path": 1,
    }
    assert stats["rounds"] == {"2": 2} and stats["scores"] == {"1": 2, "2": 2}, "of the rows that are used"
    assert stats["steps_dropped"] == {"not an image": 2, "image missing": 2, "`..` in image path": 2}
    assert stats["dropped_examples"]["image missing"] == [
        {"row": 4, "what": "gqa/images/3.jpg is in none of the places"}
    ]
    assert stats["images"]["sources"]["gqa"]["lost"] == {"not an image": 1, "image missing": 1}
    assert stats["images"]["how"] == {"in place": 1, "copied": 1}
    written = read_jsonl(tmp_path / "out/fire_bc_train.jsonl")
    assert [row["images"] for row in written[::2]] == [
        ["train/coco/train2014/COCO_train2014_000000000007.jpg"],
        ["gqa/images/1.jpg"],
    ]
    assert all((tmp_path / "images" / row["images"][0]).is_file() for row in written)
    assert [row["conversation_id"] for row in written[::2]] == ["coco:7", "gqa/images/1.jpg"]


def test_bad_json_is_dropped_and_counted(tmp_path: Path) -> None:
    good = json.dumps(fire_row("a", "gqa/images/1.jpg", trajectory(1)))
    (tmp_path / "train.jsonl").write_text(f"{good}\n{{bad\n{good}\n")
    stats = run(fire_recipe(), {"train": [str(tmp_path / "train.jsonl")]}, frame(tmp_path, skip_images=True))
    assert stats["splits"]["train"]["rows_dropped"] == {"not valid JSON": 1}
    assert stats["splits"]["train"]["rows_in"] == 3


def test_max_samples_counts_raw_rows_of_each_split(tmp_path: Path) -> None:
    raw = write_array(tmp_path / "raw.json", many_fire_rows(30))
    stats = run(fire_recipe(), {"train": [raw], "test": [raw]}, frame(tmp_path, skip_images=True, max_samples=7))
    assert [stats["splits"][split]["rows_in"] for split in ("train", "test")] == [7, 7]
    used = len({row["conversation_id"] for row in read_jsonl(tmp_path / "out/fire_bc_test.jsonl")})
    assert stats["images_in_several_splits"] == used, "the same images on both sides are told"


def test_ids_of_rows_without_one(tmp_path: Path) -> None:
    rows = [fire_row("a", "gqa/1.jpg", trajectory(1)) | {"id": value} for value in (7, None, True, "")]
    run_fire(tmp_path, rows, skip_images=True)
    written = read_jsonl(tmp_path / "out/fire_bc_train.jsonl")
    assert [row["id"] for row in written] == ["7-t0", "train-2-t0", "train-3-t0", "train-4-t0"]


def test_a_split_without_any_row_is_an_error_that_says_why(tmp_path: Path) -> None:
    rows = [fire_row("a", "gqa/images/1.jpg", trajectory(1))] * 3
    with pytest.raises(DataError, match="3 × image missing") as caught:
        run_fire(tmp_path, rows)
    assert "stats-failed.json" in caught.value.problems[0].hint
    failed = tmp_path / "out/stats-failed.json"
    assert json.loads(failed.read_text())["splits"]["train"]["rows_out"] == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["stats-failed.json"]
    assert run_fire(tmp_path, rows, skip_images=True)["rows_out"] == 3 and not failed.exists()


def test_a_run_that_fails_leaves_earlier_rows_and_their_statistics(tmp_path: Path) -> None:
    raw = write_array(tmp_path / "raw.json", many_fire_rows(20))
    run(fire_recipe(), {"train": [raw], "test": [raw]}, frame(tmp_path, skip_images=True))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    bad = write_array(tmp_path / "bad.json", [])
    with pytest.raises(DataError, match="no training row"):
        run(fire_recipe(), {"train": [raw], "test": [bad]}, frame(tmp_path, skip_images=True, max_samples=3))
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert json.loads(after.pop("stats-failed.json"))["splits"]["test"]["rows_out"] == 0
    assert after == before


def test_a_cut_off_file_leaves_nothing_behind(tmp_path: Path) -> None:
    raw = tmp_path / "FIRE-train.json"
    text = json.dumps(many_fire_rows(50))
    raw.write_text(text[: len(text) // 2])
    with pytest.raises(DataError, match="ends in the middle"):
        run(fire_recipe(), {"train": [str(raw)]}, frame(tmp_path, skip_images=True))
    assert list((tmp_path / "out").iterdir()) == []


def test_what_an_earlier_run_held_out_does_not_come_back_into_train(tmp_path: Path) -> None:
    rows = many_fire_rows(20)
    run_fire(tmp_path, rows, skip_images=True, eval_fraction=0.2)
    with pytest.raises(UsageError, match="would now be in train"):
        run_fire(tmp_path, rows, skip_images=True)
    (tmp_path / "out/fire_bc_eval.jsonl").unlink()
    assert run_fire(tmp_path, rows, skip_images=True)["written"].keys() == {"fire_bc_train.jsonl"}


def test_rows_are_held_out_of_those_that_can_be_used(tmp_path: Path) -> None:
    """Of 100 images 30 are there: a tenth of their rows is, not a tenth of all."""
    rows = [fire_row(f"r{index}", f"gqa/images/{index}.jpg", trajectory(1)) for index in range(100)]
    for index in range(0, 100, 10):
        for one in range(3):
            picture(tmp_path / f"images/gqa/images/{index + one}.jpg", index + one)
    stats = run_fire(tmp_path, rows, eval_fraction=0.1)
    assert stats["rows_dropped"] == {"image missing": 70}
    assert stats["written"] == {"fire_bc_train.jsonl": 27, "fire_bc_eval.jsonl": 3}


@pytest.mark.parametrize("there", [0, 1])
def test_a_hold_out_that_ends_empty_is_an_error_and_leaves_both_earlier_sides(there: int, tmp_path: Path) -> None:
    rows = [fire_row(f"r{index}", f"gqa/images/{index}.jpg", trajectory(1)) for index in range(10)]
    run_fire(tmp_path, rows, skip_images=True, eval_fraction=0.2)
    sides = [tmp_path / f"out/fire_bc_{name}.jsonl" for name in ("train", "eval")]
    assert [len(read_jsonl(side)) for side in sides] == [8, 2]
    for index in range(there):
        picture(tmp_path / f"images/gqa/images/{index}.jpg")
    words = "nothing can be held out: .* have one image; dropped: 9 × image missing" if there else "no training row"
    with pytest.raises(DataError, match=words) as caught:
        run_fire(tmp_path, rows, eval_fraction=0.2)
    assert [problem.where for problem in caught.value.problems] == ["train"]
    assert [len(read_jsonl(side)) for side in sides] == [8, 2]


@pytest.mark.parametrize(
    ("splits", "words"), [(("test",), "not among the splits"), (("train", "eval"), "split `eval`")]
)
def test_a_hold_out_needs_train(splits: tuple[str, ...], words: str, tmp_path: Path) -> None:
    raw = write_array(tmp_path / "raw.json", many_fire_rows(5))
    with pytest.raises(UsageError, match=words):
        run(fire_recipe(), dict.fromkeys(splits, [raw]), frame(tmp_path, skip_images=True, eval_fraction=0.2))


def test_volcano_text_rows_are_groups_of_their_own(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]
    rows = [{"id": i, "conversations": turns} | ({"image": f"gqa/images/{i}.jpg"} if i % 2 else {}) for i in range(100)]
    raw = write_array(tmp_path / "raw.json", rows)
    stats = run(VOLCANO, {"train": [raw]}, frame(tmp_path, skip_images=True, eval_fraction=0.1))["splits"]["train"]
    assert stats["kinds"] == {"answer": 50, "text": 50} and stats["rows_out"] == 100
    assert sum(stats["written"].values()) == 100 and stats["written"]["volcano_eval.jsonl"] == 10
    text = [row for row in read_jsonl(tmp_path / "out/volcano_train.jsonl") if "images" not in row]
    assert text and all("conversation_id" not in row for row in text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def chat_row(name: str, asked: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": "a cat"}], **more}


def test_a_list_of_one_image_is_the_image(tmp_path: Path) -> None:
    """As text it would be a question of a tag that stands for nothing, whose image is lost without a word."""
    rows = [
        chat_row("a", "<image>\nWhat?", images=["z.jpg"]),
        chat_row("b", "What?", images="z.jpg", image="z.jpg"),
        chat_row("c", "What is <image>?", images=[], image=None),
        chat_row("d", "<image>\nWhat?", images=["y.jpg", "z.jpg"]),
        chat_row("e", "<image>\nWhat?", images=["y.jpg"], image="z.jpg"),
        chat_row("f", "<image>\nWhat?", images=[{"bytes": "AA"}]),
        chat_row("g", "<image>\nWhat?", image=["z.jpg"]),
    ]
    raw = write_array(tmp_path / "raw.json", rows)
    stats = run(VOLCANO, {"train": [raw]}, frame(tmp_path, skip_images=True))["splits"]["train"]
    assert stats["kinds"] == {"answer": 2, "text": 1} and stats["changes_inside_rows"] == {"<image> tag put first": 1}
    assert stats["rows_dropped"] == {"more than one image": 2, "image is not a path": 2} and not stats["keys_not_read"]
    written = read_jsonl(tmp_path / "out/volcano_train.jsonl")
    assert [row.get("images") for row in written] == [["z.jpg"], ["z.jpg"], None]
    fires = [fire_row("a", None, trajectory(1)) | {"images": ["coco/1.jpg"]}]
    assert run_fire(tmp_path, fires, skip_images=True)["rows_used"] == 1


def test_keys_that_nobody_reads_are_counted(tmp_path: Path) -> None:
    rows = [chat_row("a", "Why?", weight=0.5, source=""), chat_row("b", "Why?", source="x")]
    rows[0]["conversations"][1]["loss"] = False
    rows.append(chat_row("c", "Why?", weight=2, conversations=[]))
    raw = write_array(tmp_path / "raw.json", rows)
    stats = run(VOLCANO, {"train": [raw]}, frame(tmp_path, skip_images=True))["splits"]["train"]
    assert stats["keys_not_read"] == {"weight": 1, "conversations[].loss": 1, "source": 1}, "of rows that are used"
    fires = [make("a", "coco/1.jpg", trajectory(2)) for make in (fire_row, llava_row)]
    fires[0]["conversations"][0]["tokens"] = 5
    fires[0]["question"]["lang"] = "en"
    stats = run_fire(tmp_path, fires, skip_images=True)
    assert stats["keys_not_read"] == {"conversations[].tokens": 1, "question.lang": 1}


KEYS = st.sampled_from(["id", "image", "images", "question", "conversations", "raw", "groundtruth"])
ODD_ROWS = st.dictionaries(KEYS, JSON, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(odd=st.lists(JSON | ODD_ROWS, max_size=8), kind=st.sampled_from(["fire", "volcano"]))
def test_whatever_the_rows_are_they_are_accounted_for(odd: list[Any], kind: str, tmp_path: Path) -> None:
    raw = write_array(tmp_path / "raw.json", [fire_row("good", "gqa/1.jpg", trajectory(2)), *odd])
    recipe = fire_recipe() if kind == "fire" else VOLCANO
    name = "stats.json"
    try:
        run(recipe, {"train": [raw]}, frame(tmp_path, skip_images=True))
    except DataError:
        assert kind == "volcano"
        name = "stats-failed.json"
    stats = json.loads((tmp_path / "out" / name).read_text())["splits"]["train"]
    assert stats["rows_in"] == 1 + len(odd) == stats["rows_used"] + sum(stats["rows_dropped"].values())


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """2,000 rows of 10 kB: held at once they would be 20 MB."""
    filler = "word " * 1000
    recipe = fire_recipe()
    peaks = []
    for count in (200, 2000):
        raw = tmp_path / "train.json"
        with raw.open("w") as file:
            for index in range(count):
                turns = [("s", f"Answer: {index} {filler}"), ("t", f"Score: 3\nFeedback: {filler}"), ("s", "Answer: b")]
                row = json.dumps(fire_row(f"r{index}", f"gqa/images/{index}.jpg", turns))
                file.write(("[" if index == 0 else ",\n") + row)
            file.write("]")
        tracemalloc.start()
        stats = run(recipe, {"train": [str(raw)]}, frame(tmp_path, skip_images=True, eval_fraction=0.1))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert stats["splits"]["train"]["rows_out"] == 2 * count
    assert peaks[1] < 40 << 20 and peaks[1] < peaks[0] + (8 << 20), peaks


def test_one_picture_under_two_names_is_on_one_side(tmp_path: Path) -> None:
    """GQA's images are Visual Genome's."""
    names = [f"{source}/{number}.jpg" for number in range(20) for source in ("gqa/images", "vg/VG_100K")]
    for number, name in enumerate(names):
        picture(tmp_path / "images" / name, number // 2)
    rows = [fire_row(f"r{i}", name, trajectory(1)) for i, name in enumerate(names)]
    raw = {
        split: [write_array(tmp_path / f"{split}.json", part)] for split, part in (("train", rows), ("test", rows[::2]))
    }
    stats = run(fire_recipe(), raw, frame(tmp_path, eval_fraction=0.3))
    sides = [read_jsonl(tmp_path / f"out/fire_bc_{name}.jsonl") for name in ("train", "eval")]
    seen = [{Path(row["images"][0]).name for row in side} for side in sides]
    assert not seen[0] & seen[1] and len(seen[0]) == 14 and [len(side) for side in sides] == [28, 12]
    assert not {row["conversation_id"] for row in sides[0]} & {row["conversation_id"] for row in sides[1]}
    assert stats["images_compared"] == "by content" and stats["images_in_several_splits"] == 20
    unlooked = run(fire_recipe(), raw, frame(tmp_path, eval_fraction=0.3, skip_images=True))
    assert unlooked["images_compared"] == "by name" and unlooked["images_in_several_splits"] == 20
    run(fire_recipe(), {"train": raw["train"]}, frame(tmp_path, eval_fraction=0.3, images=ImageSettings(check=False)))
    assert json.loads((tmp_path / "out/stats.json").read_text())["images_compared"] == "by name"


def test_a_raw_file_that_would_be_written_over_stays(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    raw = Path(write_array(tmp_path / "out/fire_bc_train.jsonl", many_fire_rows(5)))
    before = raw.read_bytes()
    (tmp_path / "link.json").symlink_to(raw)
    for name in (str(raw), str(tmp_path / "link.json")):
        with pytest.raises(UsageError, match="is read and would be written over") as caught:
            run(fire_recipe(), {"train": [name]}, frame(tmp_path, skip_images=True))
        assert "--output_dir" in caught.value.problems[0].hint
    with pytest.raises(UsageError, match="would be written"):
        run(fire_recipe(), {"train": [str(raw)], "test": [str(raw)]}, frame(tmp_path, skip_images=True))
    assert raw.read_bytes() == before and list((tmp_path / "out").iterdir()) == [raw]


def test_rows_beside_the_raw_files_are_no_raw_rows_of_the_next_run(tmp_path: Path) -> None:
    write_array(tmp_path / "FIRE-train.json", many_fire_rows(5))
    settings = FrameSettings(tmp_path, tmp_path / "images", skip_images=True, eval_fraction=0.3)
    sides = []
    for _again in range(2):
        run(fire_recipe(), find_inputs([str(tmp_path)], ["train"], "x/y"), settings)
        sides.append([(tmp_path / f"fire_bc_{name}.jsonl").read_bytes() for name in ("train", "eval")])
    assert sides[0] == sides[1]


def test_splits_that_are_made_one_by_one_beside_the_raw_files_stay_no_raw_rows(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_array(tmp_path / f"FIRE-{split}.json", many_fire_rows(5))
    settings = FrameSettings(tmp_path, tmp_path / "images", skip_images=True)
    for split in ("train", "test", "train", "test"):
        inputs = find_inputs([str(tmp_path)], [split], "x/y")
        assert inputs == {split: (str(tmp_path / f"FIRE-{split}.json"),)}
        run(fire_recipe(), inputs, settings)
    assert list(find_inputs([str(tmp_path)], [], "x/y")) == ["train", "test"]
    (tmp_path / "fire_bc_train.jsonl").unlink()
    run(fire_recipe(), {"test": [str(tmp_path / "FIRE-test.json")]}, settings)
    assert json.loads((tmp_path / "stats.json").read_text())["written_before"] == []


def test_all_splits_appear_or_none(tmp_path: Path) -> None:
    raw = write_array(tmp_path / "raw.json", many_fire_rows(5))
    run(fire_recipe(), {"train": [raw]}, frame(tmp_path, skip_images=True))
    before = (tmp_path / "out/fire_bc_train.jsonl").read_bytes()
    (tmp_path / "out/fire_bc_test.jsonl").mkdir()
    more = write_array(tmp_path / "more.json", many_fire_rows(9))
    with pytest.raises(StorageError, match="fire_bc_test.jsonl"):
        run(fire_recipe(), {"train": [more], "test": [raw]}, frame(tmp_path, skip_images=True))
    assert (tmp_path / "out/fire_bc_train.jsonl").read_bytes() == before
