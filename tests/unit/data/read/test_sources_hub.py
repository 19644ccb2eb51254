"""Hub data sets as files, against made-up listings."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.data.read.locate import expand
from rankzero.data.read.network import RemoteFile, other_meaning
from rankzero.errors import AccessError, ServiceError
from rankzero.spec.data_paths import RowSlice
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.read.fake_network import FakeNetwork, fault, located, own_cache

__all__ = ["own_cache"]
pytestmark = pytest.mark.usefixtures("own_cache")


def hub(*names: str, card: str = "", converted: tuple[str, ...] = ()) -> FakeNetwork:
    sets: dict[tuple[str, str | None], list[str]] = {("o/n", None): [*names, *(["README.md"] if card else [])]}
    if converted:
        sets["o/n", "refs/convert/parquet"] = list(converted)
    return FakeNetwork({"hub/o/n/None/README.md": card.encode()}, sets)


def of_hub(path: str, network: FakeNetwork) -> list[str]:
    files = located(path, network).files
    contents = [Path(name).read_text().removeprefix("content of hub/o/n/") for name in files]
    return [content.removeprefix("None/") for content in contents]


SHARDS = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet")


def test_shards_are_split_by_name() -> None:
    network = hub(*SHARDS, ".gitattributes", "dataset_infos.json")
    assert of_hub("o/n", network) == of_hub("o/n[train]", network) == list(SHARDS[:2])
    assert of_hub("o/n[test]#3", network) == [SHARDS[2]]
    assert of_hub("o/n[test+train]", network) == [SHARDS[2], *SHARDS[:2]]
    problem = fault("o/n[dev]", network)
    assert problem.what == "it has no split 'dev'" and "train, test" in problem.hint and problem.where == "o/n[dev]"
    assert "[train[:10%]]" in fault("o/n[train:10%]", network).hint
    assert located("o/n[train[:10%]]#3", network).rows == RowSlice(None, 10, True)
    assert "rows are taken of one split" in fault("o/n[train+test[:5]]", network).what


def test_a_slip_in_a_path_that_looks_like_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.jsonl").touch()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ServiceError, match=r"did you mean data/train\.jsonl, which is here"):
        expand([SourceSpec(path="data/train")])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("AI-ModelScope/alpaca-gpt4-data-en", "on the Hub the same is vicgalle/alpaca-gpt4"),
        ("swift/other", "modelscope download --dataset swift/other --local_dir other"),
    ],
)
def test_an_id_of_modelscope(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert words in other_meaning(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ServiceError, match=words):
        expand([SourceSpec(path=f"{name}#500")])


def test_words_in_names_and_folders_are_splits() -> None:
    assert of_hub("o/n", hub("FIRE-train-100K.json", "FIRE-test.json", "FIRE-1M.json")) == ["FIRE-train-100K.json"]
    assert of_hub("o/n[validation]", hub("a/dev.csv", "a/training.csv")) == ["a/dev.csv"]
    assert of_hub("o/n[test]", hub("train/x.jsonl", "test/x.jsonl")) == ["test/x.jsonl"]
    assert of_hub("o/n", hub("rows.json", "README.txt")) == ["rows.json"]
    assert of_hub("o/n", hub("train.json", "test/rows.json")) == ["train.json"]
    sft = ("data/train_sft-00000-of-00001.parquet", "data/test_sft-00000-of-00001.parquet")
    assert of_hub("o/n[train_sft]", hub(*sft)) == [sft[0]]
    assert "which one is meant" in fault("o/n", hub(*sft)).what


CARD = """---
licence: mit
configs:
- config_name: sst2
  data_files:
  - split: train
    path: sst2/train-*
  - split: test
    path: ["sst2/test-*", "extra/**/t?.parquet"]
- config_name: cola
  data_dir: cola
---
# About
"""


def test_the_card_decides() -> None:
    files = ("sst2/train-0.parquet", "sst2/test-0.parquet", "extra/a/b/t1.parquet", "cola/train.csv", "cola/test.csv")
    network = hub(*files, card=CARD)
    assert of_hub("o/n:sst2", network) == ["sst2/train-0.parquet"]
    assert of_hub("o/n:sst2[test]", network) == ["sst2/test-0.parquet", "extra/a/b/t1.parquet"]
    assert of_hub("o/n:cola[test]", network) == ["cola/test.csv"]
    problem = fault("o/n", network)
    assert problem.what == "it has 2 subsets; which one is meant?" and "sst2, cola" in problem.hint
    assert "no subset 'x'" in fault("o/n:x", network).what
    marked = CARD.replace("  data_dir: cola", "  data_dir: cola\n  default: true")
    assert of_hub("o/n", hub(*files, card=marked)) == ["cola/train.csv"]
    plain = "---\nconfigs:\n- config_name: default\n  data_files: '*.jsonl'\n---\n"
    assert of_hub("o/n", hub("b.jsonl", "a.jsonl", "x/c.jsonl", card=plain)) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize(
    ("names", "card"),
    [
        (("o.py", "data.zip"), ""),
        (("a/train.jsonl", "b/train.jsonl"), ""),
        (("train.jsonl", "train.csv"), ""),
        (("x.jsonl",), CARD.replace("sst2", "s")),
        (("x.jsonl",), "---\nconfigs: [\n---\n"),
        (("x.txt",), "---\nconfigs:\n- config_name: s\n  data_files: https://h/x.jsonl\n---\n"),
    ],
)
def test_where_it_is_not_clear_the_hubs_conversion_is_read(names: tuple[str, ...], card: str) -> None:
    converted = ("s/train/0000.parquet", "s/train/0001.parquet", "s/test/0000.parquet")
    prefix = "refs/convert/parquet/"
    assert of_hub("o/n:s" if card else "o/n", hub(*names, card=card, converted=converted)) == [
        prefix + name for name in converted[:2]
    ]
    problem = fault("o/n:s" if card else "o/n", hub(*names, card=card))
    assert "not clear" in problem.what and "hf://datasets/" in problem.hint


def test_a_conversion_of_a_part_is_not_taken_for_the_whole() -> None:
    network = hub("o.py", converted=("s/partial-train/0000.parquet", "s/test/0000.parquet"))
    assert "only a part" in fault("o/n", network).what
    assert of_hub("o/n[test]", network) == ["refs/convert/parquet/s/test/0000.parquet"]


def test_a_revision_is_asked_for() -> None:
    network = FakeNetwork({}, {("o/n", "v1.0"): ["train.csv"], ("o/n", "odd"): ["a/train.csv", "b/train.csv"]})
    assert Path(located("o/n@v1.0", network).files[0]).read_text() == "content of hub/o/n/v1.0/train.csv"
    assert "not clear" in fault("o/n@odd", network).what
    assert "no such data set" in fault("o/n@v2", network).what


def test_a_misspelled_file_is_not_only_called_a_missing_data_set() -> None:
    assert "neither a file here" in fault("data/trian", FakeNetwork({})).hint


def test_access_errors_stay_what_they_are() -> None:
    class Gated(FakeNetwork):
        def data_set(self, name: str, revision: str | None) -> tuple[RemoteFile, ...]:
            raise AccessError("the data set is gated", where=name)

    with pytest.raises(AccessError):
        located("o/n", Gated({}))
