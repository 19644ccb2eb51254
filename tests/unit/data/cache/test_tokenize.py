"""prepare: the cache, its lock, what is left behind when things go wrong."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankzero.data.cache.encode
import rankzero.data.cache.job
import rankzero.data.cache.segments
import rankzero.data.cache.tokenize
import rankzero.data.pool
import rankzero.data.read.hashing
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.tokenize import TokenRules, prepare, tokenizer_fingerprint
from rankzero.data.inspect.validate import check
from rankzero.errors import ConfigError, DataError, ExitCode, StorageError
from rankzero.spec.run_spec import SourceSpec
from tests.support.families import family_tokenizer
from tests.support.tiny import CHATML, chat_rows, tiny_tokenizer, write_jsonl
from tests.support.unreadable import stale
from tests.unit.data.support import GOOD, GOOD_TEXT, chat, user_assistant, write


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(write_jsonl(tmp_path / "train.jsonl", chat_rows(50)))


@pytest.fixture
def encoded_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every chunk that is tokenised in this process."""
    calls: list[int] = []
    original = rankzero.data.cache.tokenize.chunk_encoder

    def counting(*args: Any) -> Any:
        work = original(*args)
        return lambda task: calls.append(task.chunk.first_line) or work(task)

    monkeypatch.setattr(rankzero.data.cache.tokenize, "chunk_encoder", counting)
    return calls


def sources(*paths: str) -> list[SourceSpec]:
    return [SourceSpec(path=path) for path in paths]


def left_behind(cache: Path) -> list[str]:
    """Files that somebody might take for tokenised rows."""
    return [path.name for path in (cache / "tokenized").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_rows_and_stats(path: str, tokenizer: Any, own_cache: Path) -> None:
    dataset = prepare(sources(path), tokenizer, TokenRules(), own_cache)
    assert len(dataset) == 50
    for i, row in enumerate(chat_rows(50)):
        ids, mask = dataset.row(i)
        assert tokenizer.decode(ids) == tokenizer.apply_chat_template(row["messages"], tokenize=False)
        assert tokenizer.decode(ids[mask]) == row["messages"][1]["content"] + "<|im_end|>"
        assert dataset.where(i) == f"{path}:{i + 1}"
    stats = dataset.stats
    assert (stats.rows_in, stats.rows, stats.truncated, stats.dropped) == (50, 50, 0, {})
    assert (stats.tokens, stats.supervised_tokens) == (dataset.lengths.sum(), dataset.supervised.sum())


def test_every_row_is_accounted_for(tmp_path: Path, tokenizer: Any, own_cache: Path) -> None:
    rows = [
        user_assistant("q", "word " * 50),
        chat(("user", "q"), ("assistant", "a", False)),
        user_assistant("word " * 50, "a"),
        {"prompt": "Say ", "completion": "the end"},
        {"text": "x"},
    ]
    data = "\n\n".join(json.dumps(row) for row in rows).encode()
    path = write(tmp_path / "f.jsonl", data)
    stats = prepare(sources(path), tokenizer, TokenRules(max_length=30), own_cache).stats
    assert stats.dropped == {"nothing_to_train": 1, "truncated_before_trained": 1}
    assert (stats.rows_in, stats.rows, stats.truncated) == (5, 3, 1)
    assert (stats.blank_lines, stats.boundary_rows) == (4, 1)
    assert stats.rows_in == stats.rows + sum(stats.dropped.values())
    dropping = prepare(sources(path), tokenizer, TokenRules(max_length=30, over_length="drop"), own_cache).stats
    assert dropping.dropped == {"over_length": 2, "nothing_to_train": 1} and dropping.truncated == 0


def test_second_time_tokenises_nothing(path: str, tokenizer: Any, own_cache: Path, encoded_chunks: list[int]) -> None:
    first = prepare(sources(path), tokenizer, TokenRules(), own_cache)
    done: list[int] = []
    second = prepare(sources(path), tokenizer, TokenRules(), own_cache, progress=done.append)
    assert len(encoded_chunks) == 1 and sum(done) == os.path.getsize(path)
    assert first.fingerprint == second.fingerprint and (first.lengths == second.lengths).all()


def test_a_moved_file_is_the_same_data_under_its_new_name(
    path: str, tokenizer: Any, own_cache: Path, encoded_chunks: list[int]
) -> None:
    before = prepare(sources(path), tokenizer, TokenRules(), own_cache)
    moved = Path(path).rename(Path(path).with_name("moved.jsonl"))
    after = prepare(sources(str(moved)), tokenizer, TokenRules(), own_cache)
    assert len(encoded_chunks) == 1 and after.fingerprint == before.fingerprint
    assert after.where(3) == f"{moved}:4"


def test_whatever_changes_the_tokens_has_a_place_of_its_own(path: str, tmp_path: Path, own_cache: Path) -> None:
    base = tiny_tokenizer()

    def place(tokenizer: Any = base, data: list[SourceSpec] | None = None, **rules: Any) -> str:
        return prepare(data or sources(path), tokenizer, TokenRules(**rules), own_cache).directory.name

    other = str(write_jsonl(tmp_path / "other.jsonl", chat_rows(51)))
    stated = [SourceSpec(path=path, format="messages")]
    seen = [
        place(),
        place(max_length=100),
        place(over_length="drop"),
        place(assistant_only_loss=False),
        place(tiny_tokenizer(vocab_size=385)),
        place(tiny_tokenizer(chat_template=CHATML.replace("\n", " "))),
        place(tiny_tokenizer(bos="<|im_start|>")),
        place(tiny_tokenizer(eos="<|im_start|>")),
        place(data=sources(other)),
        place(data=stated),
        place(data=sources(path, other)),
        place(data=sources(other, path)),
    ]
    assert len(set(seen)) == len(seen)
    assert place(tiny_tokenizer()) == seen[0]


def test_another_version_makes_rows_anew_and_knows_equal_ones(
    path: str, tokenizer: Any, own_cache: Path, monkeypatch: pytest.MonkeyPatch, encoded_chunks: list[int]
) -> None:
    """A run that was begun before an upgrade goes on with the rows that it had."""
    before = prepare(sources(path), tokenizer, TokenRules(), own_cache)
    monkeypatch.setattr(rankzero.data.cache.job, "CODE_VERSION", 10**6)
    after = prepare(sources(path), tokenizer, TokenRules(), own_cache)
    assert len(encoded_chunks) == 2 and after.directory != before.directory
    assert after.fingerprint == before.fingerprint
    shorter = prepare(sources(path), tokenizer, TokenRules(max_length=28), own_cache)
    assert shorter.fingerprint != before.fingerprint


def test_tokenizer_fingerprint_is_stable(tokenizer: Any) -> None:
    before = tokenizer_fingerprint(tokenizer)
    tokenizer("some use", truncation=True, max_length=2)
    assert tokenizer_fingerprint(tokenizer) == before == tokenizer_fingerprint(tiny_tokenizer())


def test_several_sources_keep_their_order(tmp_path: Path, tokenizer: Any, own_cache: Path) -> None:
    one, two = write(tmp_path / "one", GOOD, b"", GOOD_TEXT), write(tmp_path / "two", GOOD_TEXT)
    dataset = prepare(sources(one, two), tokenizer, TokenRules(), own_cache)
    assert [dataset.where(i) for i in range(3)] == [f"{one}:1", f"{one}:3", f"{two}:1"]


def test_processes_make_the_same_bytes(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_jsonl(tmp_path / "f.jsonl", chat_rows(400)))
    alone = prepare(sources(path), tokenizer, TokenRules(), tmp_path / "alone")
    monkeypatch.setattr(rankzero.data.pool, "SMALL_BYTES", 0)
    done: list[int] = []
    together = prepare(sources(path), tokenizer, TokenRules(), tmp_path / "pool", workers=2, progress=done.append)
    assert sum(done) == os.path.getsize(path)
    files = [(ds.directory / "part-00000.arrow").read_bytes() for ds in (alone, together)]
    assert files[0] == files[1] and alone.fingerprint == together.fingerprint


def test_answers_opened_otherwise_in_use_are_said_so(
    path: str, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = prepare(sources(path), family_tokenizer("empty_thought"), TokenRules(), own_cache)
    assert dataset.stats.unopened == {"<think>\n\n</think>\n\n": 50}
    assert "'<think>\\n\\n</think>\\n\\n', which the same template leaves out of 50 rows" in caplog.text


class TestBadData:
    def test_all_problems_and_nothing_in_the_cache(self, tmp_path: Path, own_cache: Path) -> None:
        system = json.dumps(chat(("system", "s"), ("user", "q"), ("assistant", "a"))).encode()
        path = write(tmp_path / "train.jsonl", GOOD, b"{oops", GOOD, system, b'{"text":""}')
        with pytest.raises(DataError) as caught:
            prepare(sources(path), family_tokenizer("gemma"), TokenRules(), own_cache)
        assert caught.value.exit_code == ExitCode.DATA
        assert [p.where for p in caught.value.problems] == [f"{path}:2", f"{path}:4", f"{path}:5"]
        assert "System role not supported" in caught.value.problems[1].what
        assert left_behind(own_cache) == []

    def test_after_the_first_bad_chunk_rows_are_only_checked(
        self, tmp_path: Path, tokenizer: Any, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoded: list[bool] = []
        monkeypatch.setattr(
            rankzero.data.cache.tokenize,
            "chunk_encoder",
            lambda *args: (
                lambda task: encoded.append(task.encode) or rankzero.data.cache.encode.chunk_encoder(*args)(task)
            ),
        )
        paths = [write(tmp_path / name, line) for name, line in [("1", GOOD), ("2", b"{oops"), ("3", GOOD)]]
        with pytest.raises(DataError):
            prepare(sources(*paths), tokenizer, TokenRules(), own_cache)
        assert encoded == [True, True, False]

    def test_thousands_of_problems(self, tmp_path: Path, tokenizer: Any, own_cache: Path) -> None:
        path = write(tmp_path / "f", *[b'{"text":""}'] * 2500)
        with pytest.raises(DataError) as caught:
            prepare(sources(path), tokenizer, TokenRules(), own_cache)
        counts, shown = caught.value.problems
        assert counts.what == "2500 problems: 2500 × empty text"
        assert shown.where == f"{path}:1" and shown.what.endswith("(also at 2, 3, 4, 5)")

    def test_missing_files_come_before_anything_else(self, path: str, own_cache: Path) -> None:
        with pytest.raises(DataError, match="no such file"):
            prepare(sources(path, path + "x"), object(), TokenRules(), own_cache)  # type: ignore[arg-type]

    def test_file_without_rows(self, tmp_path: Path, path: str, tokenizer: Any, own_cache: Path) -> None:
        blank = write(tmp_path / "blank", b"", b"")
        with pytest.raises(DataError, match="there are no rows") as caught:
            prepare(sources(path, blank), tokenizer, TokenRules(), own_cache)
        assert caught.value.problems[0].where == blank

    @pytest.mark.parametrize(
        ("row", "rules", "hint"),
        [
            (chat(("user", "q"), ("assistant", "a", False)), {}, '"loss": false'),
            (user_assistant("word " * 90, "a"), {"max_length": 50}, "raise data.max_length"),
            (
                user_assistant("q", "word " * 90),
                {"max_length": 50, "over_length": "drop"},
                "data.over_length: truncate",
            ),
        ],
    )
    def test_nothing_left_to_train(
        self, tmp_path: Path, tokenizer: Any, own_cache: Path, row: Any, rules: Any, hint: str
    ) -> None:
        path = str(write_jsonl(tmp_path / "f.jsonl", [row] * 3))
        with pytest.raises(DataError, match="no row has a trained token: all 3 are dropped") as caught:
            prepare(sources(path), tokenizer, TokenRules(**rules), own_cache)
        assert hint in caught.value.problems[0].hint and left_behind(own_cache) == []

    def test_file_that_changes_meanwhile(
        self, path: str, tokenizer: Any, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = rankzero.data.cache.segments.record_batch

        def meddling(*args: Any) -> Any:
            os.utime(path, ns=(1, 1))
            return original(*args)

        monkeypatch.setattr(rankzero.data.cache.segments, "record_batch", meddling)
        with pytest.raises(DataError, match="changed while it was read"):
            prepare(sources(path), tokenizer, TokenRules(), own_cache)
        assert left_behind(own_cache) == []


class TestTablesWithoutNames:
    COLUMNS = {"prompt": "column_1", "completion": "column_2"}

    @pytest.fixture
    def table(self, tmp_path: Path) -> str:
        path = tmp_path / "f.csv"
        path.write_text("What is 2+2?,4\nWhat is 3+3?,6\n")
        return str(path)

    def test_no_row_is_lost(self, table: str, tokenizer: Any, own_cache: Path) -> None:
        given = [SourceSpec(path=table, columns=self.COLUMNS, header=False)]
        dataset = prepare(given, tokenizer, TokenRules(), own_cache)
        assert [tokenizer.decode(dataset.row(i)[0]).startswith(f"What is {n}") for i, n in ((0, 2), (1, 3))] == [
            True
        ] * 2
        sampled = prepare([given[0].model_copy(update={"sample": 2})], tokenizer, TokenRules(), own_cache)
        assert len(sampled) == 2
        assert check(given).counts.readable == 2

    def test_the_first_row_is_not_taken_for_names(self, table: str, tokenizer: Any, own_cache: Path) -> None:
        mapped = {"prompt": "What is 2+2?", "completion": "4"}
        with pytest.raises(DataError, match="looks like a row"):
            prepare([SourceSpec(path=table, columns=mapped)], tokenizer, TokenRules(), own_cache)
        said = SourceSpec(path=table, columns=mapped, header=True)
        assert len(prepare([said], tokenizer, TokenRules(), own_cache)) == 1


class TestConfiguration:
    def test_a_template_that_is_none(self, path: str, own_cache: Path) -> None:
        with pytest.raises(ConfigError, match="not valid Jinja") as caught:
            prepare(sources(path), tiny_tokenizer(chat_template="{% trans %}"), TokenRules(), own_cache)
        assert caught.value.exit_code == ExitCode.CONFIG and left_behind(own_cache) == []

    def test_a_template_that_is_none_in_a_worker(
        self, path: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rankzero.data.pool, "SMALL_BYTES", 0)
        with pytest.raises(ConfigError, match="not valid Jinja"):
            prepare(sources(path), tiny_tokenizer(chat_template="{% trans %}"), TokenRules(), own_cache, workers=2)

    def test_tokenizer_without_eos(self, path: str, own_cache: Path) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.eos_token = None
        with pytest.raises(ConfigError, match="end-of-sequence"):
            prepare(sources(path), tokenizer, TokenRules(), own_cache)

    def test_slow_tokenizer(self, path: str, own_cache: Path) -> None:
        class Slow:
            is_fast = False

        with pytest.raises(ConfigError, match="Slow is a slow tokenizer"):
            prepare(sources(path), Slow(), TokenRules(), own_cache)  # type: ignore[arg-type]

    def test_named_templates(self, path: str, own_cache: Path) -> None:
        several = tiny_tokenizer()
        several.chat_template = {"default": CHATML, "rag": "x"}
        one = prepare(sources(path), tiny_tokenizer(), TokenRules(), own_cache)
        assert prepare(sources(path), several, TokenRules(), own_cache).directory == one.directory
        several.chat_template = {"default": CHATML, "tool_use": "x"}
        assert prepare(sources(path), several, TokenRules(), own_cache).directory != one.directory
        several.chat_template = {"rag": "x", "tool_use": "x"}
        with pytest.raises(ConfigError, match="rag, tool_use"):
            prepare(sources(path), several, TokenRules(), own_cache)


class TestCache:
    def test_a_damaged_part_is_made_again(self, path: str, tokenizer: Any, own_cache: Path) -> None:
        first = prepare(sources(path), tokenizer, TokenRules(), own_cache)
        expected = first.row(7)[0].tolist()
        for damage in (
            lambda: (first.directory / "part-00000.arrow").write_bytes(b"short"),
            lambda: (first.directory / "part-00000.arrow").unlink(),
            lambda: (first.directory / "manifest.json").write_text("{"),
            lambda: (first.directory / "manifest.json").unlink(),
        ):
            damage()
            again = prepare(sources(path), tokenizer, TokenRules(), own_cache)
            assert again.row(7)[0].tolist() == expected
        assert sorted(left_behind(own_cache)) == ["manifest.json", "part-00000.arrow"]

    @pytest.mark.parametrize("number", [errno.ESTALE, errno.EACCES])
    @pytest.mark.parametrize("name", ["", "manifest.json", "part-00000.arrow"])
    def test_what_cannot_be_read_now_is_not_made_again(
        self, name: str, number: int, path: str, tokenizer: Any, own_cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That takes hours, of rows that are there."""
        first = prepare(sources(path), tokenizer, TokenRules(), own_cache)
        made = (first.directory / "part-00000.arrow").stat().st_ino
        with monkeypatch.context() as patch:
            stale(patch, first.directory / name, number)
            with pytest.raises(StorageError, match="the tokenised data cannot be read: ") as error:
                prepare(sources(path), tokenizer, TokenRules(), own_cache)
        assert os.strerror(number) in str(error.value)
        prepare(sources(path), tokenizer, TokenRules(), own_cache)
        assert (first.directory / "part-00000.arrow").stat().st_ino == made

    def test_a_flipped_byte_is_noticed(
        self, path: str, tokenizer: Any, own_cache: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = prepare(sources(path), tokenizer, TokenRules(), own_cache)
        expected = [first.row(i)[0].tolist() for i in range(len(first))]
        part = first.directory / "part-00000.arrow"
        for at in (len(part.read_bytes()) // 3, -200):
            flipped = bytearray(part.read_bytes())
            flipped[at] ^= 1
            part.unlink()
            part.write_bytes(flipped)
            again = prepare(sources(path), tokenizer, TokenRules(), own_cache)
            assert [again.row(i)[0].tolist() for i in range(len(again))] == expected
            assert "is damaged and is made again" in caplog.text and "bytes are not those" in caplog.text
            caplog.clear()

    def test_a_cache_that_cannot_be_written(self, path: str, tokenizer: Any, tmp_path: Path) -> None:
        in_the_way = tmp_path / "file"
        in_the_way.write_text("")
        with pytest.raises(StorageError) as caught:
            prepare(sources(path), tokenizer, TokenRules(), in_the_way)
        assert caught.value.exit_code == ExitCode.STORAGE and "RANKZERO_CACHE" in caught.value.problems[0].hint

    def test_a_full_disk(self, path: str, tokenizer: Any, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_args: Any) -> Any:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(rankzero.data.cache.segments, "record_batch", full)
        with pytest.raises(StorageError, match="No space left") as caught:
            prepare(sources(path), tokenizer, TokenRules(), own_cache)
        assert "RANKZERO_CACHE" in caught.value.problems[0].hint and left_behind(own_cache) == []

    def test_manifest(self, path: str, tokenizer: Any, own_cache: Path) -> None:
        dataset = prepare(sources(path), tokenizer, TokenRules(), own_cache)
        manifest = json.loads((dataset.directory / "manifest.json").read_text())
        assert manifest["format"] == 2 and manifest["parts"] == ["part-00000.arrow"]
        assert manifest["stats"]["rows"] == 50 and manifest["rules"] == {}
        other = prepare(sources(path), tokenizer, TokenRules(max_length=28), own_cache)
        assert json.loads((other.directory / "manifest.json").read_text())["rules"] == {"max_length": 28}

    def test_large_files_are_hashed_once(self, path: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rankzero.data.read.hashing, "REMEMBERED_BYTES", 0)
        reads: list[Path] = []
        original = rankzero.data.read.hashing.file_sha256
        monkeypatch.setattr(rankzero.data.read.hashing, "file_sha256", lambda p: reads.append(p) or original(p))
        content_hash = rankzero.data.read.hashing.content_hash
        fresh = [content_hash(path, own_cache) for _ in range(2)]
        assert len(reads) == 2, "a file changed just now may change again within one tick of the clock"
        monkeypatch.setattr(rankzero.data.read.hashing, "_SETTLED_NS", -1)
        settled = [content_hash(path, own_cache) for _ in range(3)]
        assert len(reads) == 3 and len({*fresh, *settled}) == 1
        Path(path).write_bytes(GOOD)
        assert content_hash(path, own_cache) not in settled and len(reads) == 4


def test_reopening_by_path(path: str, tokenizer: Any, own_cache: Path) -> None:
    dataset = prepare(sources(path), tokenizer, TokenRules(), own_cache)
    again = TokenizedDataset.open(dataset.directory, [path])
    assert np.array_equal(again.row(3)[0], dataset.row(3)[0])
