"""check: counts, order, both ways of running, what is set aside, what may pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

import rankzero.data.pool
from rankzero.data.inspect.report import CheckReport, Tolerance, column
from rankzero.data.inspect.token_counts import Tokens
from rankzero.data.inspect.validate import CheckOptions, check
from rankzero.data.rows.formats import FORMATS
from rankzero.data.tokens.chat import TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import ConfigError, DataError, StorageError, UsageError
from rankzero.spec.run_spec import SourceSpec
from tests.support.families import family_tokenizer
from tests.unit.data.support import GOOD, GOOD_TEXT, chat, check_file, user_assistant, write


def line(row: dict[str, Any]) -> bytes:
    return orjson.dumps(row)


def looked(*paths: str, **options: Any) -> CheckReport:
    return check([SourceSpec(path=path) for path in paths], CheckOptions(**options))


def test_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, b"", GOOD_TEXT, b'{"prompt":"p","completion":"c","source":1}', GOOD_TEXT)
    counts = check_file(path).counts
    assert (counts.rows, counts.readable, counts.bad, counts.blank) == (4, 4, 0, 1)
    assert counts.formats == {"messages": 1, "text": 2, "prompt_completion": 1}
    assert counts.roles == {"user": 1, "assistant": 1} and counts.turns == {2: 1}
    assert counts.ignored_keys == {"source": 1}
    assert counts.detected["messages"] == "messages: keys messages"


def test_every_key_that_is_not_read_is_counted(tmp_path: Path) -> None:
    repeated = write(tmp_path / "f.jsonl", GOOD[:-1] + b',"prompt":"q","text":null}')
    assert check_file(repeated).counts.ignored_keys == {"prompt": 1, "text": 1}


def test_json_report_holds_everything(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, b"{")
    report = json.loads(json.dumps(check_file(path).as_json()))
    assert report["ok"] is False and report["rows"] == 2 and report["formats"] == {"messages": 1}
    assert report["problem_count"] == 1 and report["problems_by_reason"] == {"not valid JSON": 1}
    (problem,) = report["problems"]
    assert (problem["file"], problem["line"], problem["column"]) == (path, 2, 2)


def test_columns_of_problems() -> None:
    assert column("not valid JSON: unexpected character at column 17") == 17
    assert column("byte 5 (0xe9) is not UTF-8") == 5
    assert column("a raw NUL byte at byte 9") == 9
    assert column("`messages` is empty") is None


def test_files_and_rows_are_reported_together(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one.jsonl", GOOD, b"{"), write(tmp_path / "two.jsonl", b"{,", GOOD)
    report = looked(one, str(tmp_path / "none"), two)
    where = [located.public().where for located in report.problems]
    assert where == [str(tmp_path / "none"), f"{one}:2", f"{two}:1"]
    assert report.counts.rows == 4


def test_processes_and_this_process_alone_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [GOOD if i % 7 else b'{"text":""}' for i in range(2000)]
    path = write(tmp_path / "f.jsonl", *lines)
    source = SourceSpec(path=path)
    options = CheckOptions(
        Tokens(take_apart(family_tokenizer("smollm2")), TokenRules()), quarantine=tmp_path / "q.jsonl"
    )
    alone, done = check([source], options), []
    alone_aside = (tmp_path / "q.jsonl").read_bytes(), (tmp_path / "q.reasons.jsonl").read_bytes()
    monkeypatch.setattr(rankzero.data.pool, "SMALL_BYTES", 0)
    together = check([source], options, workers=2, progress=done.append)
    assert together.as_json() == alone.as_json()
    assert ((tmp_path / "q.jsonl").read_bytes(), (tmp_path / "q.reasons.jsonl").read_bytes()) == alone_aside
    assert sum(done) == Path(path).stat().st_size


def test_progress_is_shown_once_the_size_is_known(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", GOOD, GOOD)
    seen: list[Any] = []

    @contextmanager
    def show(size: int) -> Iterator[Any]:
        seen.append(("size", size))
        yield seen.append
        seen.append("end")

    check([SourceSpec(path=str(tmp_path))], show=show)
    size = Path(path).stat().st_size
    assert seen == [("size", size), size, "end"]


def test_directories_patterns_and_other_containers(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    one, two = write(tmp_path / "d" / "a.jsonl", GOOD), write(tmp_path / "d" / "b.jsonl", GOOD, b"{")
    assert looked(str(tmp_path / "d")).files == (one, two) == looked(f"{tmp_path}/d/*.jsonl").files
    table = tmp_path / "t.csv"
    table.write_text("prompt,completion\nq,a\nq,\n")
    report = looked(str(table))
    assert report.counts.formats == {"prompt_completion": 1} and report.counts.bad == 1
    assert report.problems[0].public().where == f"{table}:3"


def test_column_maps(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", b'{"frage": "q", "antwort": "a"}')
    names = {"prompt": "frage", "completion": "antwort"}
    spec = SourceSpec(path=path, format="prompt_completion", columns=names)
    assert check([spec]).counts.formats == {"prompt_completion": 1}
    wrong = SourceSpec(path=path, format="prompt_completion", columns={"prompt": "fragen"})
    with pytest.raises(ConfigError, match="no column `fragen`"):
        check([wrong])


def test_samples_look_at_the_rows_that_would_be_trained(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", *[b'{"text":"%d"}' % i for i in range(100)])
    assert looked(f"{path}#30", seed=3).counts.rows == 30
    with pytest.raises(DataError, match="a sample of 101 rows of only 100"):
        looked(f"{path}#101")


class TestTrees:
    """Messages of trees, one a line."""

    @staticmethod
    def message(name: str, parent: str | None, role: str, **more: Any) -> bytes:
        return line(
            {"message_id": name, "parent_id": parent, "message_tree_id": "t", "role": role, "text": name, **more}
        )

    def test_every_message_is_accounted_for(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "f.jsonl",
            self.message("a", None, "prompter", lang="en"),
            self.message("b", "a", "assistant"),
            self.message("c", "nobody", "assistant"),
            b"{",
            self.message("d", "a", "assistant"),
            self.message("e", None, "prompter"),
        )
        report = looked(path, quarantine=tmp_path / "q.jsonl")
        counts = report.counts
        assert (counts.rows, counts.readable, counts.bad, counts.merged) == (6, 1, 2, 2)
        assert counts.dropped.total() == 1 and counts.examples == 1
        assert sorted((tmp_path / "q.jsonl").read_bytes().splitlines()) == sorted(
            Path(path).read_bytes().splitlines()[2:4]
        )
        assert report.quarantined == 2


class TestQuarantine:
    BAD = (b"{oops", b'{"text": "caf\xe9"}', b'{"messages":[{"role":"user","content":""}]}', b'\x00{"a":1}')

    def test_bad_lines_as_they_stand_and_why(self, tmp_path: Path) -> None:
        one = write(tmp_path / "1.jsonl", GOOD, self.BAD[0], GOOD, self.BAD[1])
        two = write(tmp_path / "2.jsonl", self.BAD[2], GOOD_TEXT, self.BAD[3], end=b"\r\n")
        aside = tmp_path / "out" / "bad.jsonl"
        report = looked(one, two, quarantine=aside)
        assert aside.read_bytes() == b"".join(bad + b"\n" for bad in self.BAD)
        reasons = [json.loads(text) for text in (tmp_path / "out" / "bad.reasons.jsonl").read_text().splitlines()]
        assert [(r["row"], r["file"], r["line"]) for r in reasons] == [
            (1, one, 2),
            (2, one, 4),
            (3, two, 1),
            (4, two, 3),
        ]
        found = [(p["reason"], p["what"]) for r in reasons for p in r["problems"]]
        assert found == [(located.problem.reason, located.problem.what) for located in report.problems]
        assert report.quarantined == report.counts.bad == 4
        assert sorted(path.name for path in aside.parent.iterdir()) == ["bad.jsonl", "bad.reasons.jsonl"]

    def test_rows_that_begin_on_one_line_are_told_apart(self, tmp_path: Path) -> None:
        """Each is counted, and only the bad ones are set aside."""
        bad = b'{"text": 3}'
        rows = [b"[", GOOD_TEXT + b",", GOOD + b", " + bad + b", " + bad + b", " + GOOD_TEXT + b",", GOOD_TEXT, b"]"]
        path = write(tmp_path / "rows.json", *rows)
        report = looked(path, quarantine=tmp_path / "bad.jsonl")
        counts = report.counts
        assert (counts.rows, counts.readable, counts.bad, counts.examples) == (6, 4, 2, 4)
        assert [located.problem.line for located in report.problems] == [3, 3]
        assert (tmp_path / "bad.jsonl").read_bytes() == (bad + b"\n") * 2 and report.quarantined == 2

    def test_what_is_set_aside_is_bad_again(self, tmp_path: Path) -> None:
        path = write(tmp_path / "1.jsonl", GOOD, *self.BAD)
        first = looked(path, quarantine=tmp_path / "bad.jsonl")
        again = looked(str(tmp_path / "bad.jsonl"))
        assert again.log.reasons == first.log.reasons and again.counts.readable == 0

    def test_more_bad_rows_than_problems_are_kept(self, tmp_path: Path) -> None:
        path = write(tmp_path / "1.jsonl", GOOD, *[b"{oops"] * 3000)
        report = looked(path, quarantine=tmp_path / "bad.jsonl", keep=10)
        assert report.quarantined == 3000 and len(report.problems) == 10

    def test_rows_that_the_template_refuses(self, tmp_path: Path) -> None:
        refused = line(chat(("user", "a"), ("user", "b"), ("assistant", "c")))
        path = write(tmp_path / "1.jsonl", GOOD, refused, GOOD)
        tokens = Tokens(take_apart(family_tokenizer("mistral")), TokenRules())
        report = looked(path, quarantine=tmp_path / "bad.jsonl", tokens=tokens)
        assert (tmp_path / "bad.jsonl").read_bytes() == refused + b"\n"
        assert (report.counts.readable, report.counts.bad, report.counts.examples) == (2, 1, 2)
        assert report.counts.tokens is not None and report.counts.tokens.examples == 2

    def test_nothing_bad_leaves_no_old_rows(self, tmp_path: Path) -> None:
        path = write(tmp_path / "1.jsonl", GOOD)
        (tmp_path / "bad.jsonl").write_text("of an earlier check")
        assert looked(path, quarantine=tmp_path / "bad.jsonl").quarantined == 0
        assert (tmp_path / "bad.jsonl").read_bytes() == b"" == (tmp_path / "bad.reasons.jsonl").read_bytes()

    def test_a_check_that_fails_leaves_the_old_ones(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write(tmp_path / "1.jsonl", GOOD, b"{")
        looked(path, quarantine=tmp_path / "bad.jsonl")
        before = (tmp_path / "bad.jsonl").read_bytes()

        def fail(_line: bytes, _number: int) -> None:
            raise StorageError("the volume is gone")

        monkeypatch.setattr("rankzero.data.rows.parse.read_json", fail)
        with pytest.raises(StorageError):
            looked(path, quarantine=tmp_path / "bad.jsonl")
        assert (tmp_path / "bad.jsonl").read_bytes() == before
        assert not [file for file in tmp_path.iterdir() if file.name.startswith(".tmp-")]

    def test_it_never_overwrites_what_is_read(self, tmp_path: Path) -> None:
        path = write(tmp_path / "1.jsonl", GOOD, b"{")
        reasons = write(tmp_path / "bad.reasons.jsonl", GOOD)
        for aside in (tmp_path / "1.jsonl", tmp_path / "x" / ".." / "1.jsonl", tmp_path / "bad.jsonl"):
            with pytest.raises(StorageError, match="one of the files that are read"):
                looked(path, reasons, quarantine=aside)
        assert Path(path).read_bytes() == GOOD + b"\n{\n"

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        path = write(tmp_path / "1.jsonl", GOOD)
        with pytest.raises(StorageError):
            looked(path, quarantine=Path(path) / "below" / "a.jsonl")


class TestImages:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        image = pytest.importorskip("PIL.Image")
        (tmp_path / "img" / "coco").mkdir(parents=True)
        image.new("RGB", (4, 4)).save(tmp_path / "img" / "coco" / "good.png")
        whole = (tmp_path / "img" / "coco" / "good.png").read_bytes()
        (tmp_path / "img" / "coco" / "half.png").write_bytes(whole[: len(whole) // 2])
        return tmp_path

    @staticmethod
    def row(*images: str) -> bytes:
        turns = [{"role": "user", "content": "<image>" * len(images) + "q"}, {"role": "assistant", "content": "a"}]
        return line({"messages": turns, "images": list(images)})

    def test_rows_with_bad_images_are_bad_rows(self, folder: Path) -> None:
        path = write(
            folder / "img" / "f.jsonl",
            self.row("coco/good.png"),
            self.row("coco/half.png"),
            GOOD,
            self.row("gqa/none.jpg", "coco/good.png"),
            self.row("coco/half.png", "../../secret.png"),
        )
        aside = folder / "bad.jsonl"
        report = looked(path, images=True, quarantine=aside)
        assert (report.counts.rows, report.counts.readable, report.counts.bad) == (5, 2, 3)
        assert report.log.reasons == {"damaged image": 2, "no such image": 1, "`..` in image path": 1}
        assert [located.problem.line for located in report.problems] == [2, 4, 5, 5]
        assert aside.read_bytes().splitlines() == [Path(path).read_bytes().splitlines()[i] for i in (1, 3, 4)]
        assert report.images is not None and report.images.checked == 4
        assert report.images.sources["coco"] == {"ok": 1, "damaged image": 1}
        assert report.images.sources["gqa"] == {"no such image": 1}
        assert json.loads(json.dumps(report.as_json()))["decoded_images"]["checked"] == 4

    @pytest.mark.parametrize("sample", [None, 6])
    def test_rows_with_bad_images_on_one_line(self, folder: Path, sample: int | None) -> None:
        good, bad, gone = (self.row(f"coco/{name}.png") for name in ("good", "half", "none"))
        rows = [b"[", GOOD + b",", b", ".join([good, bad, gone, bad]) + b",", good, b"]"]
        path = write(folder / "img" / "f.json", *rows)
        aside = folder / "bad.jsonl"
        source = SourceSpec(path=path, sample=sample)
        report = check([source], CheckOptions(images=True, quarantine=aside))
        assert (report.counts.rows, report.counts.readable, report.counts.bad) == (6, 3, 3)
        assert report.log.reasons == {"damaged image": 2, "no such image": 1}
        assert aside.read_bytes().splitlines() == [bad, gone, bad] and report.quarantined == 3

    def test_roots_of_their_own(self, folder: Path) -> None:
        path = write(folder / "f.jsonl", self.row("coco/good.png"))
        assert looked(path, images=True).log.reasons == {"no such image": 1}
        rooted = SourceSpec(path=path, image_root=str(folder / "img"))
        assert check([rooted], CheckOptions(images=True)).ok
        both = check([rooted, SourceSpec(path=path)], CheckOptions(images=True))
        assert both.counts.bad == 1 and both.images is not None and both.images.checked == 2

    def test_unasked_they_are_only_counted(self, folder: Path) -> None:
        report = looked(write(folder / "f.jsonl", self.row("coco/none.png")))
        assert report.ok and report.images is None and report.counts.image_sources == {"coco": 1}


class TestDuplicates:
    def test_copies_and_leaks(self, tmp_path: Path) -> None:
        other = line(user_assistant("x", "y"))
        train = write(tmp_path / "train.jsonl", GOOD, other, GOOD[:-1] + b',"id":"1"}')
        held_out = write(tmp_path / "eval.jsonl", line(user_assistant("new", "z")), other)
        sources, evaluation = [SourceSpec(path=train)], [SourceSpec(path=held_out)]
        report = check(sources, evaluation=evaluation)
        assert (report.duplicates.copies, report.duplicates.leaks) == (1, 1)
        assert report.as_json()["duplicates"] == {
            "copies": 1,
            "in_train_and_eval": 1,
            "examples": [
                {"copy": f"{held_out}:2", "of": f"{train}:2"},
                {"copy": f"{train}:3", "of": f"{train}:1"},
            ],
        }
        assert report.ok


class TestTolerance:
    def test_numbers_and_shares(self) -> None:
        assert Tolerance.parse("3").allows(3, 3) and not Tolerance.parse("3").allows(4, 1000)
        assert Tolerance.parse("0.5%").allows(5, 1000) and not Tolerance.parse("0.5%").allows(6, 1000)
        assert str(Tolerance.parse("1000")) == "1,000" and str(Tolerance.parse("0.50 %")) == "0.5%"
        for wrong in ("", "-1", "1.5", "101%", "many", "1%%"):
            with pytest.raises(UsageError, match="no number of rows"):
                Tolerance.parse(wrong)

    def test_what_passes(self, tmp_path: Path) -> None:
        bad = check_file(write(tmp_path / "f.jsonl", GOOD, b"{"))
        assert bad.passes(Tolerance(1)) and bad.passes(Tolerance(percent=50)) and not bad.passes(Tolerance())
        nothing_good = check_file(write(tmp_path / "g.jsonl", b"{"))
        assert not nothing_good.passes(Tolerance(percent=100))
        missing = looked(write(tmp_path / "h.jsonl", GOOD), str(tmp_path / "none"))
        assert not missing.passes(Tolerance(percent=100))
        assert check_file(write(tmp_path / "i.jsonl", GOOD)).passes(Tolerance())

    def test_a_damaged_file_is_not_one_bad_row(self, tmp_path: Path) -> None:
        import gzip

        packed = gzip.compress(b"".join(GOOD + b"\n" for _ in range(5000)))
        (tmp_path / "f.jsonl.gz").write_bytes(packed[:-20])
        report = looked(str(tmp_path / "f.jsonl.gz"))
        assert report.damaged and not report.passes(Tolerance(1000))


def test_no_row_of_any_format_is_lost(tmp_path: Path) -> None:
    """rows in = readable + bad + left out, for good and bad rows of every format, asked for and detected."""
    rows = [
        GOOD,
        GOOD_TEXT,
        b'{"instruction":"i","input":"","output":"o"}',
        b'{"conversations":[{"from":"human","value":"h"},{"from":"gpt","value":"g"}]}',
        b'{"question":"q","answer":"a"}',
        b'{"system_prompt":"","question":"q","response":"r"}',
        b'{"prompt":"p","chosen":"c","rejected":"r"}',
        b'{"sentence":"s","label":1}',
        b'{"sentence":"s","label":-1}',
        b"{}",
        b"[]",
        b"null",
    ]
    path = write(tmp_path / "f.jsonl", *rows, b"", b"  ")
    for name in ("auto", *FORMATS):
        counts = check_file(path, name).counts
        assert counts.rows == len(rows) == counts.readable + counts.bad + counts.dropped.total(), name
        assert counts.blank == 2
