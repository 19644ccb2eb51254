"""Files of one format as files of another: nothing is lost, and what cannot be said is a problem."""

from __future__ import annotations

import gc
import gzip
import json
import os
import random
import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command

from rankzero.cli.main import app
from rankzero.data.convert.convert import convert
from rankzero.data.convert.writers import SUFFIXES
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.formats import FORMATS, WRITERS
from rankzero.data.rows.formats import convert as convert_row
from rankzero.data.rows.formats.format import CannotSayError
from rankzero.data.rows.formats.messages import PATHS_FOR_OPENAI
from rankzero.data.rows.formats.prompt_completion import CHAT_AS_RAW
from rankzero.data.rows.formats.sharegpt import LOSS_LEFT_OUT
from rankzero.data.rows.formats.writing import NAMES_AS_TEXT, NAMES_LEFT_OUT, RAW_AS_CHAT
from rankzero.data.rows.parse import parse
from rankzero.errors import DataError, StorageError, UsageError
from rankzero.spec.run_spec import SourceSpec
from tests.unit.data.convert.convert_support import conversations, read_rows, run, table_rows, write_rows
from tests.unit.data.rows.formats.support import CALL, ROWS, read
from tests.unit.data.rows.formats.test_oasst import FLAT
from tests.unit.data.support import chat, user_assistant


class TestCounts:
    def test_every_format_to_messages(self, tmp_path: Path) -> None:
        rows = [
            row
            for name in ROWS
            if name not in ("text", "preference", "openai_preference", "classification", "segments")
            for row in ROWS[name]
        ]
        result, out = run(rows, "messages", tmp_path)
        assert result.rows_in == result.rows_out == result.converted == len(rows) == len(conversations(out))
        assert result.rules[RAW_AS_CHAT] == 1 and not result.dropped
        assert result.reasons["openorca"] == "openorca: keys system_prompt, question, response"

    def test_all_ways_at_once_add_up(self, tmp_path: Path) -> None:
        rows = [
            user_assistant("q", "a"),
            {"text": "t"},
            {"text": "t", "label": -1},
            {"zzz": 1},
            {"text": "t", "label": 1},
        ]
        result, out = run([*rows, *FLAT], "messages", tmp_path, quarantine=tmp_path / "bad.jsonl")
        assert (
            result.rows_in == 10 and result.rows_out == 1 and result.quarantined == 8
        )  # flat rows in a file of others
        assert result.dropped == {"unlabelled": 1}
        assert read_rows(tmp_path / "bad.jsonl") == [rows[1], rows[3], rows[4], *FLAT]
        assert len(read_rows(out)) == 1

    def test_messages_of_trees_a_row(self, tmp_path: Path) -> None:
        orphan = FLAT[0] | {"message_id": "x", "parent_id": "zz"}
        rows = [*FLAT, orphan, {"text": "other"}]
        random.Random(3).shuffle(rows)
        rows.sort(key=lambda row: "text" in row and len(row) == 1)  # the first row says what the file is
        result, out = run(rows, "messages", tmp_path, quarantine=tmp_path / "bad.jsonl")
        assert (result.rows_in, result.rows_out, result.merged, result.quarantined) == (7, 2, 3, 2)
        said = {row["messages"][0]["content"]: row["messages"][1]["content"] for row in read_rows(out)}
        assert said == {"q": "x", "r": "z"}
        assert {row["conversation_id"] for row in read_rows(out)} == {"a", "d"}
        assert read_rows(tmp_path / "bad.jsonl") == [orphan, {"text": "other"}]
        assert result.log.reasons == {"orphan": 1, "plain text": 1}

    def test_a_row_is_never_lost_in_silence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from rankzero.errors import RankzeroError

        monkeypatch.setattr("rankzero.data.convert.convert.parse", lambda *args, trains: _losing(*args))
        with pytest.raises(RankzeroError, match="do not add up"):
            run([user_assistant("q", "a")] * 2, "messages", tmp_path)
        assert not (tmp_path / "out.jsonl").exists()

    def test_names_that_are_no_text_are_counted(self, tmp_path: Path) -> None:
        """Numbers and objects become text where rows have them beside; true and false name nothing."""
        names = [True, 7, 1.0, "", "7", {"$oid": "5f"}, [], None, False]
        rows = [{"text": "a", "id": name} for name in names] + [{"text": "a", "id": 1, "conversation_id": True}]
        result, out = run(rows, "text", tmp_path)
        assert result.rules == {NAMES_AS_TEXT: 4} and result.ignored_keys == {"id": 2, "conversation_id": 1}
        ids = [row.get("id") for row in read_rows(out)]
        assert ids == [None, "7", "1", None, "7", '{"$oid":"5f"}', None, None, None, "1"]
        assert run(rows, "text", tmp_path, "out.csv")[0].rules == {NAMES_LEFT_OUT: 5}
        columns = {"text": "t", "id": "n"}
        source = write_rows(tmp_path / "in.jsonl", [{"t": "a", "n": True}, {"t": "a", "n": 1}])
        renamed = convert([source.model_copy(update={"columns": columns})], tmp_path / "renamed.jsonl", "text")
        assert renamed.rules == {NAMES_AS_TEXT: 1} and renamed.ignored_keys == {"n": 1}

    def test_json(self, tmp_path: Path) -> None:
        result, _ = run([user_assistant("q", "a")], "sharegpt", tmp_path)
        report = json.loads(json.dumps(result.as_json()))
        assert report["rows_in"] == report["rows_out"] == 1 and report["formats"] == {"messages": 1}


def _losing(*args: Any) -> Any:
    parsed = parse(*args)
    parsed.conversations.pop()
    return parsed


class TestWhatATargetCannotSay:
    MANY = user_assistant("q", "a", "r", "b")
    MARKED = chat(("user", "q"), ("assistant", "a", False), ("user", "r"), ("assistant", "b"))
    TOOLS = ROWS["messages"][1]
    IMAGES = ROWS["messages"][2]

    @pytest.mark.parametrize(
        ("row", "to", "reason"),
        [
            (MANY, "alpaca", "more than one round"),
            (chat(("assistant", "a")), "alpaca", "more than one round"),
            (MARKED, "sharegpt", "per-turn loss"),
            (chat(("user", "q"), ("assistant", "a", False)), "alpaca", "per-turn loss"),
            (chat(("user", "q", False), ("assistant", "a")), "openai", "per-turn loss"),
            (chat(("user", "q", False), ("assistant", "a")), "sharegpt", "per-turn loss"),
            (TOOLS, "alpaca", "tools"),
            (TOOLS, "sharegpt", "tool answer's call"),
            (IMAGES, "alpaca", "images"),
            (chat(("developer", "d"), ("user", "q"), ("assistant", "a")), "sharegpt", "role"),
            (chat(("user", "q"), ("assistant", "", False), ("assistant", "a")), "sharegpt", "per-turn loss"),
            (MANY, "text", "prompt or turns"),
            ({"prompt": "p", "completion": "c"}, "text", "prompt or turns"),
            ({"text": "t"}, "messages", "plain text"),
            ({"text": "t"}, "prompt_completion", "plain text"),
            (chat(("assistant", "a"), ("user", "q")), "prompt_completion", "no prompt"),
            (chat(("user", "q"), ("assistant", "a", False)), "prompt_completion", "no prompt"),
            *(
                (ROWS["preference"][0], to, "preference row")
                for to in WRITERS
                if to not in ("preference", "classification", "segments")
            ),
            *((ROWS["classification"][0], to, "classification row") for to in ("messages", "text", "alpaca")),
            (MANY, "preference", "no rejected answer"),
            (MANY, "classification", "no label"),
        ],
    )
    def test_is_a_problem(self, tmp_path: Path, row: Any, to: str, reason: str) -> None:
        with pytest.raises(DataError) as caught:
            run([row], to, tmp_path)
        assert caught.value.problems[0].where == f"{tmp_path / 'in.jsonl'}:1"
        assert not (tmp_path / "out.jsonl").exists() and not list(tmp_path.glob(".tmp*"))
        good = {"messages": user_assistant("q", "a"), "text": {"text": "t"}}.get("text" if to == "text" else "messages")
        if to in ("preference", "classification"):
            good = ROWS[to][0]
        (tmp_path / "in.jsonl").unlink()
        result, _ = run([row, good], to, tmp_path, quarantine=tmp_path / "bad.jsonl")
        assert result.log.reasons == {reason: 1} and result.rows_out == 1
        assert read_rows(tmp_path / "bad.jsonl") == [row]

    def test_what_training_leaves_out_is_left_out_and_counted(self, tmp_path: Path) -> None:
        """Two answers that are equal once they are read: check calls the row usable, and the pair would not be."""
        turns = user_assistant("q", "a")["messages"]
        equal = {"prompt": "q", "chosen": turns, "rejected": turns[1:]}
        result, out = run([equal, ROWS["preference"][0]], "preference", tmp_path)
        assert result.dropped == {"answers_alike": 1} and (result.rows_in, result.rows_out) == (2, 1)
        assert len(read_rows(out)) == 1 and not result.log.total

    def test_what_to_do_instead_can_be_typed(self) -> None:
        """A hint that names an option of the command names one that there is, with a value that it takes."""
        command = get_command(app).commands["data"].commands["convert"]  # type: ignore[attr-defined]
        takes = {"--as": set(WRITERS), "--to": set(SUFFIXES.values())}
        assert takes.keys() <= {name for option in command.params for name in option.opts}
        said = set()
        for rows in ROWS.values():
            for row in (*rows, self.MANY, self.MARKED, *FLAT):
                _, result = convert_row(row, 1)
                hints = [problem.hint for problem in result] if isinstance(result, list) else []
                for writer in WRITERS.values():
                    try:
                        for conversation in () if hints else read(row)[1]:
                            writer.to_row(conversation)
                    except CannotSayError as error:
                        hints.append(error.hint)
                said |= {found for hint in hints for found in re.findall(r"(--[a-z-]+) (\w+)", hint)}
        assert len(said) >= 4
        assert [(name, value) for name, value in said if value not in takes[name]] == []

    def test_openai_needs_ids_and_images_of_users(self, tmp_path: Path) -> None:
        call = {key: value for key, value in CALL.items() if key != "id"}
        row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]}
        with pytest.raises(DataError, match="needs an id"):
            run([row], "openai", tmp_path)
        with pytest.raises(DataError, match="no image in a assistant turn"):
            run([chat(("user", "<image>q"), ("assistant", "<image>a")) | {"images": ["1", "2"]}], "openai", tmp_path)

    def test_loss_that_one_answer_alone_asks_for(self, tmp_path: Path) -> None:
        """With `train_on: last_turn` it is trained besides the last; where all before it ask, that is counted."""
        more = (("user", "r"), ("assistant", "b"), ("user", "s"), ("assistant", "c", True))
        some = chat(("user", "q"), ("assistant", "a", True), *more)
        with pytest.raises(DataError, match="sharegpt cannot say that a turn is trained"):
            run([some], "sharegpt", tmp_path)
        last = chat(("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b", True))
        assert not run([last], "sharegpt", tmp_path)[0].rules
        every = chat(("user", "q"), ("assistant", "a", True), ("user", "r"), ("assistant", "b", True))
        assert run([every], "sharegpt", tmp_path, "all.jsonl")[0].rules == {LOSS_LEFT_OUT: 1}
        unsaid = chat(("user", "q"), ("assistant", "a", True), ("user", "r"), ("assistant", "b"))
        assert run([unsaid], "sharegpt", tmp_path, "unsaid.jsonl")[0].rules == {LOSS_LEFT_OUT: 1}
        one = chat(("user", "q"), ("assistant", "a", True))
        for to in ("sharegpt", "alpaca"):
            assert not run([one], to, tmp_path, f"{to}.jsonl")[0].rules

    def test_an_image_of_an_answer_does_not_become_the_question_s(self, tmp_path: Path) -> None:
        drawn = [{"type": "text", "text": "here: "}, {"type": "image", "image": "1.png"}]
        row = {"messages": [{"role": "user", "content": "draw"}, {"role": "assistant", "content": drawn}]}
        with pytest.raises(DataError, match="all images are in answers beside text"):
            run([row], "sharegpt", tmp_path)

    @pytest.mark.parametrize(("to", "name"), [("openai", "a.jsonl"), ("sharegpt", "b.parquet"), ("alpaca", "c.csv")])
    def test_reasoning_that_closes_itself_does_not_become_the_answer(self, tmp_path: Path, to: str, name: str) -> None:
        row = user_assistant("What closes a think block?", "A tag.")
        row["messages"][1]["reasoning_content"] = "The tag is </think>. I say so."
        with pytest.raises(DataError, match=f"{to} has reasoning as text, which would end at its own </think>"):
            run([row], to, tmp_path, name)
        row["messages"][1]["reasoning_content"] = "\nA tag.\n"
        assert run([row], to, tmp_path, name)[0].rows_out == 1

    def test_openai_is_told_of_paths(self, tmp_path: Path) -> None:
        asked = chat(("user", "<image>q"), ("assistant", "a"))
        rows = [asked | {"images": [image]} for image in ("1.png", "https://x/1.png", "data:image/png;base64,AA")]
        assert run(rows, "openai", tmp_path)[0].rules == {PATHS_FOR_OPENAI: 1}

    def test_a_table_has_one_question_and_one_answer(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="one question and one answer"):
            run([chat(("system", "s"), ("user", "q"), ("assistant", "a"))], "prompt_completion", tmp_path, "out.csv")


class TestQuarantine:
    def test_rows_of_an_earlier_run_do_not_stay(self, tmp_path: Path) -> None:
        aside = tmp_path / "bad.jsonl"
        rows = [user_assistant("q", "a"), {"zzz": 1}]
        run(rows, "messages", tmp_path, quarantine=aside)
        assert read_rows(aside) == [{"zzz": 1}]
        run(rows[:1], "messages", tmp_path, quarantine=aside, overwrite=True)
        assert aside.read_bytes() == b""
        run(rows[:1], "messages", tmp_path, "other.jsonl", quarantine=tmp_path / "none.jsonl")
        assert not (tmp_path / "none.jsonl").exists(), "which the next run would find there"

    def test_one_that_fails_leaves_them(self, tmp_path: Path) -> None:
        aside = tmp_path / "bad.jsonl"
        aside.write_text("before")
        with pytest.raises(DataError, match="no row is left"):
            run([{"zzz": 1}], "messages", tmp_path, quarantine=aside, overwrite=True)
        assert aside.read_text() == "before"

    @pytest.mark.parametrize("name", ["in.jsonl.gz", "in.json", "in.csv", "in.parquet"])
    def test_the_rest_of_a_damaged_file_is_no_row(self, tmp_path: Path, name: str) -> None:
        """Nobody knows how many are behind that place: one line that is set aside does not say that half are gone."""
        path, drawn = tmp_path / name, random.Random(3)
        rows = [{"prompt": f"q{i}", "completion": drawn.randbytes(500).hex()} for i in range(4000)]
        if name.endswith(".parquet"):
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1000)
            data = bytearray(path.read_bytes())
            data[len(data) // 2 : len(data) // 2 + 400] = b"\xff" * 400
            path.write_bytes(data)
        elif name.endswith(".csv"):
            table = [f"{row['prompt']},{row['completion']}\n" for row in rows]
            path.write_text("".join(["prompt,completion\n", *table[:2000], 'q,"open\n', *table[2000:]]))
        elif name.endswith(".gz"):
            packed = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
            path.write_bytes(packed[: len(packed) // 2])
        else:
            path.write_text(json.dumps(rows)[:-100_000])
        good = write_rows(tmp_path / "good.jsonl", [*rows, {"zzz": 1}])
        out, aside = tmp_path / "out.jsonl", tmp_path / "aside.jsonl"
        with pytest.raises(DataError, match=r"; \d+ rows before it were read") as caught:
            convert([SourceSpec(path=str(path)), good], out, "messages", quarantine=aside)
        (problem,) = caught.value.problems
        assert problem.where.startswith(str(path)) and not out.exists() and not aside.exists()
        if name.endswith(".csv"):
            assert "; 2000 rows" in problem.what

    def test_a_pipe_gets_them_when_all_else_is_written(self, tmp_path: Path) -> None:
        """Who reads both in turn waits for nothing, and rows that are read twice are set aside once."""
        pipe, out, taken = tmp_path / "pipe", tmp_path / "out.jsonl", list[tuple[bool, str]]()
        os.mkfifo(pipe)
        sources = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            shown = user_assistant("<image>q", "a") | {"images": ["1.png"]}
            sources.append(write_rows(tmp_path / name / "in.jsonl", [{"zzz": name}, shown]))

        def read() -> None:
            with pipe.open() as file:
                taken.append((out.exists(), file.read()))

        reader = threading.Thread(target=read)
        reader.start()
        result = convert(sources, out, "messages", quarantine=pipe)
        reader.join()
        assert result.quarantined == 2 and taken == [(True, '{"zzz": "a"}\n{"zzz": "b"}\n')]

    def test_every_line_of_a_tables_is_json(self, tmp_path: Path) -> None:
        (tmp_path / "in.csv").write_text('prompt,completion\n"a\nb",c\n"d\ne",\nf,"g\nh",i\n')
        aside = tmp_path / "bad.jsonl"
        convert([SourceSpec(path=str(tmp_path / "in.csv"))], tmp_path / "out.jsonl", "messages", quarantine=aside)
        assert read_rows(aside) == [{"prompt": "d\ne", "completion": ""}, 'f,"g h",i']

    def test_no_byte_of_one_in_another_encoding_is_lost(self, tmp_path: Path) -> None:
        row = '"café",'.encode("latin-1") + "é🙂".encode()
        (tmp_path / "in.csv").write_bytes(b"prompt,completion\na,b\n" + row + b"\n")
        aside = tmp_path / "bad.jsonl"
        convert([SourceSpec(path=str(tmp_path / "in.csv"))], tmp_path / "out.jsonl", "messages", quarantine=aside)
        assert [text.encode(errors="surrogateescape") for text in read_rows(aside)] == [row]
        assert "é🙂".encode() in aside.read_bytes()


class TestFiles:
    @pytest.mark.parametrize("to", ["messages", "sharegpt"])
    def test_parquet_of_turns(self, tmp_path: Path, to: str) -> None:
        rows = [ROWS["messages"][0], user_assistant("q", "a", "r", "b"), ROWS["messages"][2]]
        if to == "messages":
            rows.append(ROWS["messages"][1])
        else:
            rows.pop()
        run(rows * 1500, to, tmp_path, "out.parquet")
        write_rows(tmp_path / "back.jsonl", pq.read_table(tmp_path / "out.parquet").to_pylist())
        assert conversations(tmp_path / "back.jsonl") == conversations(tmp_path / "in.jsonl")

    def test_parquet_holds_some_megabytes_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rows may have their pictures in them."""
        monkeypatch.setattr("rankzero.data.convert.writers._BATCH_BYTES", 100_000)
        row = chat(("user", "<image>q"), ("assistant", "a")) | {"images": ["data:image/png;base64," + "A" * 40_000]}
        run([row] * 7, "messages", tmp_path, "out.parquet")
        groups = pq.ParquetFile(tmp_path / "out.parquet").metadata
        assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [3, 3, 1]

    @pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
    def test_a_parquet_file_that_is_begun_anew_or_given_up_says_nothing_of_it(self, tmp_path: Path) -> None:
        sources = []
        for name in "ab":  # images of two folders: their paths are known to need others with the second one
            (tmp_path / name).mkdir()
            shown = user_assistant("<image>q", "a") | {"images": ["1.png"]}
            (tmp_path / name / "1.png").write_bytes(b"x")
            sources.append(write_rows(tmp_path / name / "in.jsonl", [shown]))
        assert convert(sources, tmp_path / "out.parquet", "messages").rows_out == 2
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 2
        with pytest.raises(DataError):
            run([user_assistant("q", "a"), {"zzz": 1}], "messages", tmp_path, "bad.parquet")
        gc.collect()

    def test_a_parquet_file_into_a_pipe_has_an_end_where_it_is_whole(self, tmp_path: Path) -> None:
        for rows, whole in (([user_assistant("q", "a")] * 3000, True), ([user_assistant("q", "a"), {"zzz": 1}], False)):
            pipe, taken = tmp_path / f"{whole}.parquet", list[bytes]()
            os.mkfifo(pipe)
            reader = threading.Thread(target=lambda pipe=pipe, taken=taken: taken.append(pipe.read_bytes()))
            reader.start()
            with nullcontext() if whole else pytest.raises(DataError):
                run(rows, "messages", tmp_path, pipe.name)
            reader.join()
            assert taken[0].startswith(b"PAR1") and (len(taken[0]) > 4 and taken[0].endswith(b"PAR1")) is whole

    def test_parquet_of_turns_with_reasoning_and_weights(self, tmp_path: Path) -> None:
        row = user_assistant("q", "a", "r", "b")
        row["messages"][1] |= {"reasoning_content": "x", "loss_weight": 0.5}
        run([row], "messages", tmp_path, "out.parquet")
        write_rows(tmp_path / "back.jsonl", pq.read_table(tmp_path / "out.parquet").to_pylist())
        assert conversations(tmp_path / "back.jsonl") == conversations(tmp_path / "in.jsonl")

    def test_what_no_column_of_a_parquet_file_has_is_a_problem(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        less = {"messages": [{"role": "text"}]}
        monkeypatch.setitem(WRITERS, "messages", replace(WRITERS["messages"], columns=less))
        with pytest.raises(DataError, match="no column for `messages.content`"):
            run([user_assistant("q", "a")], "messages", tmp_path, "out.parquet")

    def test_names_of_rows_have_no_column_in_a_table(self, tmp_path: Path) -> None:
        result, out = run([{"prompt": "p", "completion": "c", "id": 1}], "prompt_completion", tmp_path, "out.csv")
        assert result.rules == {NAMES_LEFT_OUT: 1}
        assert out.read_text() == '"prompt","completion"\n"p","c"\n'
        result, _ = run([user_assistant("q", "a")], "prompt_completion", tmp_path, "out.tsv")
        assert result.rules == {CHAT_AS_RAW: 1}

    @pytest.mark.parametrize(
        ("text", "name", "what"),
        [
            ("a\tb\nc", "out.tsv", "a tab and a line break"),
            ("a\0b", "out.tsv", "a NUL"),
            ("a\0b", "out.csv", "a NUL"),
        ],
    )
    def test_what_would_be_refused_in_a_table_is_not_written_into_it(
        self, tmp_path: Path, text: str, name: str, what: str
    ) -> None:
        rows = [{"prompt": text, "completion": "c"}, {"prompt": "p", "completion": "c"}]
        with pytest.raises(DataError, match=f"in.jsonl:1: `prompt` has {what}"):
            run(rows, "prompt_completion", tmp_path, name)
        result, out = run(rows, "prompt_completion", tmp_path, name, quarantine=tmp_path / "bad.jsonl")
        assert result.quarantined == 1 and read_rows(tmp_path / "bad.jsonl") == rows[:1]
        assert conversations(out) == conversations(tmp_path / "in.jsonl")[1:]
        for held in ("more.jsonl", "more.parquet"):
            assert run(rows, "prompt_completion", tmp_path, held)[0].rows_out == 2

    def test_labels(self, tmp_path: Path) -> None:
        _, out = run(ROWS["classification"], "classification", tmp_path, "out.tsv")
        assert table_rows(out) == [{"text": "a warm , patient film ", "label": "1"}, {"text": "t", "label": "neg"}]

    @pytest.mark.parametrize(
        ("to", "name", "match"),
        [
            ("messages", "out.csv", "cannot hold messages"),
            ("openai", "out.parquet", "cannot hold openai"),
            ("nonsense", "out.jsonl", "cannot be written as"),
            ("messages", "out.txt", "cannot be told from its name"),
            ("messages", "in.jsonl", "is read and would be written"),
        ],
    )
    def test_what_cannot_be(self, tmp_path: Path, to: str, name: str, match: str) -> None:
        with pytest.raises(UsageError, match=match):
            run([user_assistant("q", "a")], to, tmp_path, name)

    def test_nothing_is_overwritten_unasked(self, tmp_path: Path) -> None:
        _, out = run([user_assistant("q", "a")], "messages", tmp_path)
        with pytest.raises(UsageError, match="there already"):
            run([user_assistant("r", "b")], "messages", tmp_path)
        assert "q" in out.read_text()
        run([user_assistant("r", "b")], "messages", tmp_path, overwrite=True)
        assert "q" not in out.read_text()
        with pytest.raises(UsageError, match="same file"):
            run([user_assistant("r", "b")], "messages", tmp_path, "x.jsonl", quarantine=tmp_path / "x.jsonl")

    def test_nothing_left(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no row is left: 2 × unlabelled"):
            run([{"text": "t", "label": -1}] * 2, "classification", tmp_path)
        (tmp_path / "blank.jsonl").write_text("\n\n")
        with pytest.raises(DataError, match="no rows"):
            convert([SourceSpec(path=str(tmp_path / "blank.jsonl"))], tmp_path / "out.jsonl", "messages")
        assert list(tmp_path.glob("out*")) == []

    def test_a_place_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(StorageError):
            convert([write_rows(tmp_path / "in.jsonl", ROWS["text"])], tmp_path / "file" / "out.jsonl", "text")

    def test_columns(self, tmp_path: Path) -> None:
        write_rows(tmp_path / "in.jsonl", [{"ask": "q", "reply": "a"}])
        source = SourceSpec(path=str(tmp_path / "in.jsonl"), columns={"prompt": "ask", "completion": "reply"})
        convert([source], tmp_path / "out.jsonl", "prompt_completion")
        assert read_rows(tmp_path / "out.jsonl") == [{"prompt": "q", "completion": "a"}]
        wrong = source.model_copy(update={"columns": {"promt": "ask", "completion": "replay"}})
        with pytest.raises(DataError) as caught:
            convert([wrong], tmp_path / "out2.jsonl", "prompt_completion")
        assert [p.hint for p in caught.value.problems] == ["did you mean prompt?", "did you mean reply?"]

    def test_chunks_from_elsewhere(self, tmp_path: Path) -> None:
        chunks = [Chunk(0, 1, b'{"text": "a"}\n'), Chunk(0, 5, b'{"text": ""}\n')]
        with pytest.raises(DataError) as caught:
            convert([SourceSpec(path="hub")], tmp_path / "o.jsonl", "text", read=lambda source, index: iter(chunks))
        assert [p.where for p in caught.value.problems] == ["hub:5"]


class TestContainersIn:
    @pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.parquet"])
    def test_a_table_there_and_back(self, tmp_path: Path, name: str) -> None:
        pairs = [{"prompt": 'a, "b"\nc', "completion": " d\t"}, {"prompt": "é", "completion": "🙂\u2028x"}]
        _, table = run(pairs, "prompt_completion", tmp_path, name)
        result = convert([SourceSpec(path=str(table))], tmp_path / "back.jsonl", "prompt_completion")
        assert read_rows(tmp_path / "back.jsonl") == pairs and result.rows_in == 2

    def test_other_column_names_and_bad_rows(self, tmp_path: Path) -> None:
        (tmp_path / "in.csv").write_text('ask,reply\nq1,a1\nq2,\n"q3",a3,more\nq4,a4\n')
        source = SourceSpec(path=str(tmp_path / "in.csv"), columns={"prompt": "ask", "completion": "reply"})
        result = convert([source], tmp_path / "o.jsonl", "messages", quarantine=tmp_path / "bad.jsonl")
        assert (result.rows_in, result.rows_out, result.quarantined) == (4, 2, 2)
        assert len((tmp_path / "bad.jsonl").read_bytes().splitlines()) == 2
        assert [turns["messages"][0]["content"] for turns in read_rows(tmp_path / "o.jsonl")] == ["q1", "q4"]

    def test_rows_of_an_array_that_begin_on_one_line(self, tmp_path: Path) -> None:
        question, answer = (json.dumps(user_assistant(*said)) for said in (("q", "a"), ("r", "b")))
        (tmp_path / "in.json").write_text(f'[\n{question},\n{question}, {{"x": 1}}, {{"y": 1}}, {answer}\n]')
        aside = tmp_path / "bad.jsonl"
        source = SourceSpec(path=str(tmp_path / "in.json"))
        result = convert([source], tmp_path / "o.jsonl", "messages", quarantine=aside)
        assert (result.rows_in, result.converted, result.added, result.quarantined) == (5, 3, 0, 2)
        assert read_rows(aside) == [{"x": 1}, {"y": 1}]
        assert [row["messages"][0]["content"] for row in read_rows(tmp_path / "o.jsonl")] == ["q", "q", "r"]

    def test_rows_that_the_container_could_not_give_are_counted_once(self) -> None:
        from rankzero.data.rows.problems import RowProblem

        damaged = RowProblem(9, "damaged", "what")
        parsed = parse(Chunk(0, 1, b'{"text": "a"}\nx,y\n', (4, 9), {1: damaged}), "auto")
        assert parsed.rows == 2 and parsed.problems == [damaged] and parsed.conversations[0].line == 4


def test_every_format_can_be_converted_to_something(tmp_path: Path) -> None:
    targets = {name: name for name in ("text", "preference", "classification", "segments")}
    targets["openai_preference"] = "preference"
    for name in FORMATS:
        (tmp_path / name).mkdir()
        result, _ = run(ROWS[name], targets.get(name, "messages"), tmp_path / name)
        assert result.rows_in == result.rows_out == len(ROWS[name])
