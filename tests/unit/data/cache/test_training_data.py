"""All sources of a run, what takes part of them, and the hold-out."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.selection import held_out_by_group
from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.data.cache.training_data import TrainingData, training_data
from rankzero.data.progress import no_progress
from rankzero.data.read.locate import LocatedSource
from rankzero.errors import ConfigError, DataError
from rankzero.spec.data_paths import RowSlice
from rankzero.spec.run_spec import RunSpec, SourceSpec
from tests.support.tiny import chat_rows, tiny_tokenizer, write_jsonl
from tests.unit.data.support import user_assistant


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


def read(
    tokenizer: Any, cache: Path, said: list[str] | None = None, warned: list[str] | None = None, **data: Any
) -> TrainingData:
    spec = RunSpec.model_validate({"model": {"name": "m"}, "data": data})
    say, warn = ((said if said is not None else []).append, (warned if warned is not None else []).append)
    return training_data(
        *(spec, tokenizer, cache), workers=1, show=lambda _l, _s: nullcontext(no_progress), say=say, warn=warn
    )


def texts(dataset: Any, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(dataset.row(i)[0]) for i in range(len(dataset))]


def test_weights_count_per_source_and_the_hold_out_has_every_row_once(
    tokenizer: Any, own_cache: Path, tmp_path: Path
) -> None:
    a = write_jsonl(tmp_path / "a.jsonl", [user_assistant(f"a{i}", "x") for i in range(100)])
    b = write_jsonl(tmp_path / "b.jsonl", [user_assistant(f"b{i}", "x") for i in range(40)])
    sources = [{"path": str(a), "weight": 0.5}, {"path": str(b), "weight": 3}]
    data = read(tokenizer, own_cache, train=sources, eval={"fraction": 0.2})
    assert data.eval is not None
    held = texts(data.eval, tokenizer)
    trained = texts(data.train, tokenizer)
    assert len(held) == len(set(held)) == 28
    assert not set(held) & set(trained)
    of_b = [text for text in trained if "b" in text.split("assistant")[0].replace("user", "")]
    assert len(of_b) == 3 * len(set(of_b))
    rest = len(trained) - len(of_b)
    assert abs(rest - 0.5 * (112 - len(set(of_b)))) <= 1


@pytest.mark.parametrize(("fraction", "rows"), [(0.05, 1), (0.2, 4)])
def test_a_hold_out_of_one_row_is_warned_of(
    fraction: float, rows: int, tokenizer: Any, own_cache: Path, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", chat_rows(20))
    warned: list[str] = []
    data = read(tokenizer, own_cache, warned=warned, train=str(path), eval={"fraction": fraction})
    assert data.eval is not None and len(data.eval) == rows
    assert [text.partition(":")[0] for text in warned] == (
        ["data.eval.fraction 0.05 of 20 rows holds out one row, which tells next to nothing"] if rows == 1 else []
    )


def test_duplicates_are_dropped_by_name(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [*chat_rows(10), *chat_rows(10)])
    said: list[str] = []
    assert len(read(tokenizer, own_cache, train=str(path)).train) == 20
    data = read(tokenizer, own_cache, said, train=str(path), deduplicate=True)
    assert len(data.train) == 10
    assert "train: 10 rows dropped as duplicates" in said
    assert [data.train.where(i) for i in range(10)] == [f"{path}:{i + 1}" for i in range(10)]


def test_keys_that_nothing_reads_are_named_once(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    rows = [{**row, "source": "web", "score": i} for i, row in enumerate(chat_rows(10))]
    path = write_jsonl(tmp_path / "a.jsonl", [*rows, *chat_rows(2)])
    line = "train: keys of rows that nothing reads: score 10, source 10"
    for _made_then_found in "ab":
        said: list[str] = []
        read(tokenizer, own_cache, said, train=str(path))
        assert said.count(line) == 1
    said = []
    read(tokenizer, own_cache, said, train=str(write_jsonl(tmp_path / "b.jsonl", chat_rows(2))))
    assert not any("nothing reads" in words for words in said)


def test_weights_that_leave_nothing(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", chat_rows(3))
    with pytest.raises(DataError, match="leave no row"):
        read(tokenizer, own_cache, train=[{"path": str(path), "weight": 0.1}])


def test_one_row_is_not_split(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", chat_rows(1))
    with pytest.raises(DataError, match="one row cannot be split"):
        read(tokenizer, own_cache, train=str(path), eval={"fraction": 0.5})


def test_the_same_seed_selects_the_same(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", chat_rows(50))
    one, other = (
        read(tokenizer, own_cache, train=[{"path": str(path), "weight": 0.5}], eval={"fraction": 0.1}) for _ in "ab"
    )
    assert one.train.fingerprint == other.train.fingerprint
    assert np.array_equal(one.train.lengths, other.train.lengths)


def test_a_sample_is_drawn_from_all_files_of_a_source(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    for name in "ab":
        write_jsonl(tmp_path / f"{name}.jsonl", [user_assistant(f"{name}{i}", "x") for i in range(50)])
    data = read(tokenizer, own_cache, train=f"{tmp_path}/*.jsonl#30")
    where = [data.train.where(i) for i in range(len(data.train))]
    assert len(where) == len(set(where)) == 30
    assert {place.rpartition("/")[2][0] for place in where} == {"a", "b"}
    again = read(tokenizer, own_cache, train=[{"path": f"{tmp_path}/*.jsonl", "sample": 30}])
    assert again.train.fingerprint == data.train.fingerprint


def test_a_part_of_a_split_is_of_all_its_files(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    rows = {name: [user_assistant(name, str(i)) for i in range(50)] for name in "ab"}
    paths = [str(write_jsonl(tmp_path / f"{name}.jsonl", of)) for name, of in rows.items()]

    def made(rows: RowSlice | None, sample: int | None = None) -> TokenizedDataset:
        source = LocatedSource(SourceSpec(path="o/n[train[…]]"), tuple(paths), sample, rows)
        return prepare([source], tokenizer, TokenRules(), own_cache)

    half = made(RowSlice(None, 52, True))
    first, second = ([f"{path}:{n}" for n in numbers] for path, numbers in zip(paths, ((1, 50), (1, 2)), strict=True))
    assert [half.where(i) for i in (0, 49, 50, 51)] == first + second
    assert len(half) == 52 and len(made(RowSlice(-3, None))) == 3
    assert all(half.where(i).startswith(paths[0]) for i in range(50))
    assert len({made(rows).fingerprint for rows in (None, RowSlice(0, 50), RowSlice(50, None))}) == 3
    drawn = made(RowSlice(50, None), 5)
    assert len(drawn) == 5 and all(drawn.where(i).startswith(paths[1]) for i in range(5))
    with pytest.raises(DataError, match=r"have 100 rows, which \[:101\] goes beyond"):
        made(RowSlice(None, 101))


def test_a_sample_larger_than_the_source(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", chat_rows(5))
    with pytest.raises(DataError, match="a sample of 6 rows of only 5"):
        read(tokenizer, own_cache, train=f"{path}#6")


def test_columns_of_another_name(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("frage,antwort\nHallo,Welt\nPing,Pong\n")
    columns = {"prompt": "frage", "completion": "antwort"}
    data = read(tokenizer, own_cache, train=[{"path": str(path), "columns": columns}])
    assert [text.replace("<|im_end|>", "") for text in texts(data.train, tokenizer)] == ["HalloWelt", "PingPong"]
    with pytest.raises(ConfigError, match="no column `antwor`"):
        read(tokenizer, own_cache, train=[{"path": str(path), "columns": {**columns, "completion": "antwor"}}])


def test_trees_stay_together(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    rows = []
    for tree in range(20):
        shared = {"message_tree_id": f"t{tree}", "lang": "en", "deleted": False, "review_result": True}
        rows.append({**shared, "message_id": f"t{tree}", "parent_id": None, "role": "prompter", "text": f"q{tree}"})
        rows.append(
            {**shared, "message_id": f"a{tree}", "parent_id": f"t{tree}", "role": "assistant", "text": "x", "rank": 0}
        )
    path = write_jsonl(tmp_path / "oasst.jsonl", rows[::2] + rows[1::2])
    data = read(tokenizer, own_cache, train=str(path), eval={"fraction": 0.25})
    assert data.eval is not None
    assert (len(data.train), len(data.eval)) == (15, 5)


def test_conversations_stay_together_as_before(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    ids = [None, "a", "b", 3, None, "a", 3, "c", None, "b", None, "c", 3, "d", None]
    rows = [user_assistant(f"q{i}", "x") | {"conversation_id": ids[i]} for i in range(15)]
    data = read(tokenizer, own_cache, train=str(write_jsonl(tmp_path / "a.jsonl", rows)), eval={"fraction": 0.3})
    assert data.eval is not None
    numbers = [ids.index(name) if name is not None else i for i, name in enumerate(ids)]
    kept, held = held_out_by_group(np.array(numbers), seed=42, fraction=0.3)
    assert [data.eval.where(i).rpartition(":")[2] for i in range(len(data.eval))] == [str(row + 1) for row in held]
    assert len(data.train) == len(kept)


def test_a_hub_data_set_to_evaluate_on_names_its_split(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", chat_rows(5))
    with pytest.raises(ConfigError, match="which split") as caught:
        read(tokenizer, own_cache, train=str(path), eval="org/name")
    assert "org/name[test]" in str(caught.value)
