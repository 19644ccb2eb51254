"""`rankzero data check`, `stats` and `convert` as typed: what is printed, what is written, how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from rankzero.cli.data.inputs import FormatOption
from rankzero.data.images.decode import MAX_PIXELS
from rankzero.spec.run_spec import RowFormat
from tests.support.cli import Cli
from tests.support.families import family_tokenizer
from tests.support.pipes import read_pipe
from tests.support.tiny import chat_rows, tiny_tokenizer, write_jsonl
from tests.unit.data.support import GOOD, GOOD_TEXT, user_assistant, write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model")
    tiny_tokenizer().save_pretrained(directory)
    return str(directory)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    """Two bad rows of ten."""
    return write(tmp_path / "bad.jsonl", *[GOOD] * 3, b"{oops", *[GOOD] * 5, b'{"messages": []}')


@pytest.mark.parametrize("command", ["check", "show --model org/m"])
def test_no_name_at_all_is_no_error_of_ours(cli: Cli, command: str) -> None:
    done = cli(f"data {command} ''")
    assert done.code == 2 and "data: it is ''" in done.err


def test_every_format_can_be_named() -> None:
    assert get_args(get_args(FormatOption)[0]) == get_args(RowFormat)


@pytest.mark.parametrize("command", ["check rows.jsonl", "stats rows.jsonl", "show rows.jsonl", "check run.yaml"])
def test_a_hub_that_does_not_answer_is_told_as_training_tells_it(command: str, tmp_path: Path) -> None:
    """In a process of its own, since the Hub's client reads its address once."""
    write(tmp_path / "rows.jsonl", GOOD)
    (tmp_path / "run.yaml").write_text("model: {name: org/model}\ndata: {train: rows.jsonl}\n", encoding="utf-8")
    flag = [] if command.endswith("yaml") else ["--model", "org/model"]
    env = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    words = [sys.executable, "-m", "rankzero", "data", *command.split(), *flag]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    where = "--model" if flag else "model.name"
    lines = done.stderr.splitlines()
    assert done.returncode == 69, done.stderr
    assert lines[0] == f"error: {where}: the Hub did not answer for org/model"
    assert len(lines) == 2 and lines[1].startswith("  hint: check the network"), done.stderr


class TestPipes:
    """A name that stands for a pipe is written into; the pipe stays."""

    @pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
    def test_converted_rows(self, cli: Cli, tmp_path: Path, ending: str) -> None:
        rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "A"}])
        command = f"data convert {rows} --as prompt_completion --force -o"
        assert cli(f"{command} {tmp_path}/file.{ending}").code == 0
        with read_pipe(tmp_path / f"pipe.{ending}") as found:
            done = cli(f"{command} {tmp_path}/pipe.{ending}")
        assert done.code == 0 and found == [(tmp_path / f"file.{ending}").read_bytes()], done.err

    @pytest.mark.parametrize("command", ["check", "convert --as messages -o {folder}/out.jsonl --force"])
    def test_rows_set_aside(self, cli: Cli, tmp_path: Path, bad: str, command: str) -> None:
        with read_pipe(tmp_path / "pipe.jsonl") as found:
            cli(f"data {command.format(folder=tmp_path)} {bad} --quarantine {tmp_path}/pipe.jsonl")
        assert found == [b'{oops\n{"messages": []}\n']

    def test_a_page(self, cli: Cli, tmp_path: Path, bad: str) -> None:
        with read_pipe(tmp_path / "pipe.html") as found:
            cli(f"data check {bad} --html {tmp_path}/pipe.html")
        assert found[0].startswith(b"<!doctype html>") or found[0].startswith(b"<!DOCTYPE html>")


class TestSamples:
    """Of a sample of several files some may have no row, as training has it."""

    @pytest.fixture
    def several(self, tmp_path: Path) -> Path:
        for name in ("a", "b", "c"):
            write_jsonl(tmp_path / "rows" / f"{name}.jsonl", [{"text": name}])
        return tmp_path / "rows"

    def test_are_checked_and_converted(self, cli: Cli, several: Path, tmp_path: Path) -> None:
        done = cli(f"data check {several}#1 --json")
        assert done.code == 0 and json.loads(done.out)["rows"] == 1, done.out
        done = cli(f"data convert {several}#1 --as text -o {tmp_path}/out.jsonl")
        assert done.code == 0 and len((tmp_path / "out.jsonl").read_text().splitlines()) == 1, done.err

    def test_a_file_without_rows_is_named_where_all_are_taken(self, cli: Cli, several: Path, tmp_path: Path) -> None:
        (several / "d.jsonl").write_text("\n")
        for command in ("check", f"convert --as text -o {tmp_path}/out.jsonl"):
            done = cli(f"data {command} {several}")
            assert done.code == 65 and "d.jsonl: there are no rows in it" in done.err


class TestCheck:
    @pytest.mark.parametrize(
        ("row", "column"),
        [
            (b'{"prompt": "2+2", "chosen": "4", "rejected": "5"}', "completion"),
            (
                b'{"prompt": [{"role": "user", "content": "2+2"}], "chosen": [{"role": "assistant", "content": "4"}], '
                b'"rejected": [{"role": "assistant", "content": "5"}]}',
                "completion",
            ),
            (
                b'{"chosen": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}], '
                b'"rejected": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "5"}]}',
                "messages",
            ),
        ],
    )
    def test_pairs_are_sound_and_for_task_dpo(
        self, cli: Cli, model: str, tmp_path: Path, row: bytes, column: str
    ) -> None:
        """What the hints say is right."""
        path = write(tmp_path / "pairs.jsonl", row)
        done = cli(f"data check {path}")
        assert done.code == 0 and "pairs        1 of a chosen and a rejected answer, for task dpo" in done.out, done.err
        assert "ok: every row can be read as a pair" in done.out and "run.yaml with task: dpo" in done.out
        done = cli(f"data check {path} --model {model}")
        assert done.code == 65 and "preferences are for task dpo" in done.err and column in done.err, done.err
        assert "set task: dpo" in done.err and "ok:" not in done.out
        assert cli(f"data check {path} --columns {column}=chosen --model {model}").code == 0
        spec = tmp_path / "run.yaml"
        spec.write_text(f"model: {{name: {model}}}\ndata: {{train: pairs.jsonl}}\nlora: {{}}\n")
        assert cli(f"data check {spec}").code == 65
        done = cli(f"data check {spec} task=dpo")
        assert done.code == 0 and "ok: training takes it as it is" in done.out, done.err
        assert "tokens an example, of pairs with the longer answer" in done.out

    def test_no_task_trains_on_pairs_and_on_single_answers(self, cli: Cli, tmp_path: Path) -> None:
        path = write(tmp_path / "both.jsonl", b'{"prompt": "2+2", "chosen": "4", "rejected": "5"}', GOOD)
        done = cli(f"data check {path}")
        assert done.code == 65 and "1 example with a chosen and a rejected answer, 1 example without" in done.err
        assert "ok:" not in done.out and "keep them in files of their own" in done.err
        assert json.loads(cli(f"data check {path} --json").out)["passed"] is False
        assert cli(f"data stats {path}").code == 0

    def test_good_files(self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write(tmp_path / "1.jsonl", GOOD, b"", GOOD[:-1] + b',"origin":1,"lang":"en"}')
        write(tmp_path / "2.jsonl", GOOD_TEXT)
        done = cli("data check 1.jsonl 2.jsonl")
        assert (done.code, done.err) == (0, "")
        assert done.out.splitlines() == [
            "rows         3 in 2 files",
            "readable     3",
            "blank lines  1",
            "formats      messages 2 (by keys messages), text 1 (by keys text)",
            "turns        2.0 a chat on average, 2 to 2",
            "roles        assistant 2, user 2",
            "languages    en 1",
            "not read     lang 1, origin 1",
            "duplicates   1, such as 1.jsonl:3, the same as 1.jsonl:1",
            "",
            "characters an example",
            "  median     2; 90% up to 5, 99% up to 5, most 5",
            "  2 2 " + "█" * 53,
            "  3 0",
            "  4 0",
            "  5 1 " + "█" * 26 + "▌",
            "",
            "ok: every row can be read; --model sees if training takes it",
        ]

    def test_bad_rows_and_files(self, cli: Cli, bad: str, tmp_path: Path) -> None:
        done = cli(f"data check {bad} {tmp_path / 'none.jsonl'}")
        assert done.code == 65 and "bad          2 (20%)" in done.out
        assert f"error: {bad}:4: not valid JSON" in done.err and "column 2" in done.err
        assert f"error: {bad}:10: `messages` is empty\n  hint: remove the row" in done.err
        assert f"error: {tmp_path / 'none.jsonl'}: no such file" in done.err

    def test_so_many_may_be_bad(self, cli: Cli, bad: str, tmp_path: Path) -> None:
        for allowed in ("2", "20%", "2000"):
            done = cli(f"data check {bad} --max-bad {allowed}")
            assert done.code == 0 and done.err.startswith("warning: 2 bad rows of 10, within --max-bad "), done.err
        for allowed in ("1", "19.9%", "0"):
            done = cli(f"data check {bad} --max-bad {allowed}")
            assert done.code == 65 and f"{bad}:10" in done.err
            assert ("2 bad rows of 10, more than --max-bad" in done.err) == (allowed != "0")
        assert cli(f"data check {bad} {tmp_path / 'none'} --max-bad 100%").code == 65
        assert cli(f"data check {bad} --max-bad some").code == 2

    def test_quarantine_and_page(self, cli: Cli, bad: str, tmp_path: Path) -> None:
        done = cli(f"data check {bad} --quarantine {tmp_path / 'q.jsonl'} --html {tmp_path / 'r.html'} --max-bad 2")
        assert done.code == 0 and "bad          2 (20%), 2 of them written to quarantine" in done.out
        assert (tmp_path / "q.jsonl").read_bytes() == b'{oops\n{"messages": []}\n'
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert "<title>Data check: bad.jsonl</title>" in page and "not valid JSON" in page
        rows = Path(bad).read_bytes()
        for flag in ("--html", "--quarantine"):
            assert cli(f"data check {bad} {flag} {bad}").code == 78
        assert cli(f"data check {tmp_path / 'q.jsonl'} --quarantine {tmp_path / 'q.jsonl'}").code == 74
        assert Path(bad).read_bytes() == rows

    def test_json(self, cli: Cli, tmp_path: Path) -> None:
        path = write(tmp_path / "1.jsonl", GOOD, *[b"{oops"] * 1500)
        done = cli(f"data check {path} --json")
        report = json.loads(done.out)
        assert report["problem_count"] == len(report["problems"]) == 1500
        assert (report["ok"], report["passed"], report["bad"]) == (False, False, 1500)
        assert done.code == 65 and done.err == "error: 1,500 problems; the JSON lists them\n"
        done = cli(f"data check {path} --json --max-bad 1500")
        assert done.code == 0 and json.loads(done.out)["passed"] is True and done.err.startswith("warning: ")
        done = cli(f"data check {write(tmp_path / '2.jsonl', GOOD)} --json")
        assert done.code == 0 and json.loads(done.out)["ok"] is True

    def test_formats_and_columns(self, cli: Cli, tmp_path: Path) -> None:
        done = cli(f"data check {write(tmp_path / '1.jsonl', GOOD_TEXT)} --format messages")
        assert done.code == 65 and "not in format messages" in done.err
        path = write(tmp_path / "2.jsonl", b'{"frage":"q","antwort":"a"}')
        assert cli(f"data check {path}").code == 65
        named = f"data check {path} --format prompt_completion --columns prompt=frage --columns completion="
        assert cli(f"{named}antwort").code == 0
        assert cli(f"{named}antwrt").code == 78
        assert cli(f"data check {path} --columns prompt").code == 2

    def test_tokens_and_serving(self, cli: Cli, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        rows = [user_assistant("Ping", "pong " * n) for n in range(1, 60)]
        path = write_jsonl(Path("f.jsonl"), rows)
        done = cli(f"data check {path} --model {model} --max-length 64")
        assert done.code == 0
        for words in (
            "of them trained",
            "truncated    ",
            "tokens an example",
            "serving      the same text as in training",
        ):
            assert words in done.out, done.out
        report = json.loads(cli(f"data check {path} --model {model} --max-length 64 --json").out)
        assert report["tokens"]["examples"] == 59 and report["tokens"]["truncated"] > 10
        assert report["serving"]["answers"] == 59 and report["serving"]["first"] == []
        everything = json.loads(cli(f"data check {path} --model {model} --all-tokens --json").out)
        assert everything["tokens"]["trained_share"] > report["tokens"]["trained_share"]
        other = tmp_path / "t.jinja"
        other.write_text(
            "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}[assistant]<think></think>{% endif %}"
        )
        done = cli(f"data check {path} --model {model} --chat-template {other}")
        assert done.code == 0 and "serving      think block in serving: 59 of 59 rows looked at." in done.out
        assert "  first      f.jsonl:1, turn 2, character 21\n" in done.out
        assert "  serving    '[user]Ping[assistant]<think></think>'" in done.out

    def test_reasoning(self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        answers = [f"<think>\nIt is {word}.\n</think>\n\n{word}" for word in ("seven", "eleven")]
        write_jsonl(tmp_path / "f.jsonl", [user_assistant("q", answers[0], "r", answers[1]), user_assistant("q", "a")])
        for name in ("qwen3", "gpt_oss"):
            family_tokenizer(name).save_pretrained(tmp_path / name)
        done = cli("data check f.jsonl --model qwen3")
        assert done.code == 0, done.err
        words = " ".join(done.out.split())
        assert "rendered chat template: rankzero's qwen3 for training" in words and "out reasoning (1)" in words
        assert "earlier reasoning: 1 of 2 rows looked at" in words
        shown = cli("data show f.jsonl --model qwen3 --row 1")
        assert "rankzero's qwen3 for training" in shown.out and shown.out.count("⟦<") == 2
        done = cli("data check f.jsonl --model gpt_oss")
        assert done.code == 65 and "f.jsonl:1: the chat template leaves the reasoning of turn 2 out" in done.err
        assert "data.reasoning: last or drop" in done.err
        done = cli("data check f.jsonl --model gpt_oss --reasoning drop")
        assert done.code == 0 and "reasoning left out (data.reasoning: drop) (1)" in " ".join(done.out.split())
        assert cli("data show f.jsonl --model gpt_oss --reasoning last --row 1").code == 0

    def test_a_table_without_names(self, cli: Cli, tmp_path: Path) -> None:
        table = tmp_path / "f.csv"
        table.write_text("What is 2+2?,4\nWhat is 3+3?,6\n")
        done = cli(f"data check {table}")
        assert done.code == 65 and "looks like a row" in done.err and "header: false" in done.err
        columns = "--columns prompt=column_1 --columns completion=column_2"
        assert "readable     2" in cli(f"data check {table} --no-header {columns}").out
        out = tmp_path / "o.jsonl"
        assert cli(f"data convert {table} --no-header {columns} --as prompt_completion -o {out}").code == 0
        assert json.loads(out.read_text().splitlines()[0]) == {"prompt": "What is 2+2?", "completion": "4"}

    def test_images(self, cli: Cli, tmp_path: Path) -> None:
        image = pytest.importorskip("PIL.Image")
        (tmp_path / "img").mkdir()
        image.new("RGB", (4, 4)).save(tmp_path / "img" / "a.png")
        turns = [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}]
        path = write_jsonl(tmp_path / "f.jsonl", [{"messages": turns, "images": [f"{name}.png"]} for name in "ab"])
        assert "images       2 in 2 examples" in cli(f"data check {path}").out
        done = cli(f"data check {path} --images --image-root {tmp_path / 'img'}")
        assert done.code == 65 and f"error: {path}:2: image 'b.png': no such image" in done.err
        assert "decoded      2 different ones, 1 cannot be used" in done.out

    def test_nothing_that_could_be_trained(self, cli: Cli, model: str, tmp_path: Path) -> None:
        path = write_jsonl(tmp_path / "f.jsonl", [user_assistant("Ping " * 50, "pong")])
        done = cli(f"data check {path} --model {model} --max-length 16")
        assert done.code == 65 and "all are dropped (1 × truncated_before_trained)" in done.err
        labels = write(tmp_path / "l.jsonl", b'{"sentence":"s","label":-1}')
        done = cli(f"data check {labels}")
        assert done.code == 65 and ("no row is left" in done.err or "label" in done.err)

    def test_what_cannot_be_written_is_told_by_its_own_flag(self, cli: Cli, bad: str, tmp_path: Path) -> None:
        (tmp_path / "taken").touch()
        good = write(tmp_path / "good.jsonl", GOOD)
        for line, flag in (
            (f"data check {good} --html {tmp_path}/taken/page.html", "--html"),
            (f"data check {bad} --quarantine {tmp_path}/taken/bad.jsonl", "--quarantine"),
            (f"data convert {good} -o {tmp_path}/taken/rows.jsonl", "-o"),
        ):
            done = cli(line)
            assert done.code == 74 and f"choose another place with {flag}\n" in done.err, (line, done.err)

    def test_usage(self, cli: Cli, model: str, tmp_path: Path) -> None:
        path = write(tmp_path / "f.jsonl", GOOD)
        assert cli(f"data check {path} --max-length 100").code == 2
        assert cli(f"data check {path} --model {tmp_path / 'none'}").code == 78
        assert cli(f"data check {path} --model {model} --chat-template {tmp_path / 'none'}").code == 2
        assert cli("data check").code == 2

    def test_without_the_engine_s_packages(self, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "orjson", None)
        done = cli(f"data check {write(tmp_path / '1.jsonl', GOOD)}")
        assert done.code == 78 and "rankzero[data]" in done.err

    def test_a_check_without_a_model_loads_no_torch(self, tmp_path: Path) -> None:
        import subprocess

        path = write(tmp_path / "1.jsonl", GOOD)
        code = (
            "import sys; sys.argv = ['rankzero', 'data', 'check', sys.argv[1], '--html', sys.argv[1] + '.html']\n"
            "from rankzero.cli.main import main\n"
            "main()\n"
            "loaded = {'torch', 'transformers', 'tokenizers', 'PIL', 'pyarrow'} & set(sys.modules)\n"
            "assert not loaded, loaded"
        )
        subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True)


class TestRunSpec:
    @pytest.fixture
    def spec(self, tmp_path: Path, model: str) -> Path:
        write_jsonl(tmp_path / "a.jsonl", chat_rows(30))
        write_jsonl(tmp_path / "b.jsonl", [{"frage": "q", "antwort": "a"}])
        write_jsonl(tmp_path / "eval.jsonl", chat_rows(2))
        spec = {
            "model": {"name": "org/name", "tokenizer_dir": model},
            "data": {
                "train": [
                    {"path": str(tmp_path / "a.jsonl") + "#20"},
                    {
                        "path": str(tmp_path / "b.jsonl"),
                        "format": "prompt_completion",
                        "columns": {"prompt": "frage", "completion": "antwort"},
                    },
                ],
                "eval": str(tmp_path / "eval.jsonl"),
                "max_length": 64,
            },
        }
        path = tmp_path / "run.yaml"
        path.write_text(json.dumps(spec))  # JSON is YAML
        return path

    def test_sources_rules_and_model_are_the_run_s(self, cli: Cli, spec: Path) -> None:
        done = cli(f"data check {spec} --json")
        assert done.code == 0, done.err
        report = json.loads(done.out)
        assert report["rows"] == 23 and report["formats"] == {"messages": 22, "prompt_completion": 1}
        assert report["tokens"]["examples"] == 23 and report["serving"]["rows"] == 22
        assert [Path(name).name for name in report["files"]] == ["a.jsonl", "b.jsonl", "eval.jsonl"]
        rows = json.loads(cli(f"data check {spec} data.max_length=8 data.over_length=drop --json").out)
        assert rows["tokens"]["dropped"]["over_length"] > 0

    def test_rows_in_train_and_eval_are_found(self, cli: Cli, spec: Path, tmp_path: Path) -> None:
        done = cli(f"data check {spec} data.train={tmp_path / 'a.jsonl'}")
        assert done.code == 0 and "in both      2 to evaluate on are also trained on, such as" in done.out

    def test_flags_that_the_spec_decides(self, cli: Cli, spec: Path) -> None:
        for flag in ("--model x", "--max-length 9", "--all-tokens", "--format text", "--columns a=b", "--image-root x"):
            done = cli(f"data check {spec} {flag}")
            assert done.code == 2 and f"says that already: {flag.split()[0]}" in done.err

    def test_a_spec_that_is_wrong(self, cli: Cli, spec: Path) -> None:
        assert cli(f"data check {spec} data.max_len=3").code == 78
        assert cli(f"data check {spec.parent / 'none.yaml'}").code == 78


class TestStats:
    def test_bad_rows_are_no_error(self, cli: Cli, bad: str) -> None:
        done = cli(f"data stats {bad}")
        assert done.code == 0 and done.err == "" and "bad          2 (20%)" in done.out
        found = json.loads(cli(f"data stats {bad} --json").out)
        assert found["bad"] == 2 and found["turns"] == {"2": 8} and "problems" not in found and "ok" not in found

    def test_tokens_and_page(self, cli: Cli, bad: str, model: str, tmp_path: Path) -> None:
        done = cli(f"data stats {bad} --model {model} --html {tmp_path / 'r.html'} --json")
        assert json.loads(done.out)["tokens"]["examples"] == 8
        assert "Tokens an example" in (tmp_path / "r.html").read_text(encoding="utf-8")

    def test_files_that_cannot_be_read(self, cli: Cli, tmp_path: Path) -> None:
        assert cli(f"data stats {tmp_path / 'none'}").code == 65
        assert cli(f"data stats {write(tmp_path / 'f.jsonl', b'{')}").code == 65


class TestConvert:
    def test_csv_to_messages(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "in.csv").write_text("prompt,completion\nHi,Hello\nBye,So long\n")
        out = tmp_path / "out.jsonl"
        done = cli(f"data convert {tmp_path / 'in.csv'} -o {out}")
        assert done.code == 0 and done.out.splitlines()[0] == f"2 rows in, 2 written to {out}"
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert [turn["content"] for turn in rows[0]["messages"]] == ["Hi", "Hello"]
        assert cli(f"data convert {tmp_path / 'in.csv'} -o {out}").code == 2
        done = cli(f"data convert {tmp_path / 'in.csv'} -o {out} --as alpaca --force --json")
        assert json.loads(done.out)["rows_out"] == 2 and '"instruction"' in out.read_text()

    def test_keys_that_are_not_read_are_named(self, cli: Cli, tmp_path: Path) -> None:
        rows = [{"prompt": "q", "completion": "a", "source": "web", "score": i} for i in range(3)]
        path = write_jsonl(tmp_path / "a.jsonl", rows)
        done = cli(f"data convert {path} -o {tmp_path / 'out.jsonl'}")
        assert done.code == 0
        assert "keys that are not read, and so not written: score 3, source 3" in done.out

    def test_there_and_back(self, cli: Cli, tmp_path: Path) -> None:
        rows = [{"prompt": f"q {i}", "completion": f"a {i}"} for i in range(9)]
        first = write_jsonl(tmp_path / "a.jsonl", rows)
        for name in ("b.parquet", "c.tsv", "d.csv"):
            done = cli(f"data convert {first} -o {tmp_path / name} --as prompt_completion")
            assert done.code == 0, done.err
            done = cli(f"data convert {tmp_path / name} -o {tmp_path / name}.jsonl --as prompt_completion")
            assert done.code == 0, done.err
            assert [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()] == rows

    def test_bad_rows(self, cli: Cli, bad: str, tmp_path: Path) -> None:
        out, aside = tmp_path / "out.jsonl", tmp_path / "aside.jsonl"
        assert cli(f"data convert {bad} -o {out}").code == 65 and not out.exists()
        done = cli(f"data convert {bad} -o {out} --quarantine {aside}")
        assert (
            done.code == 0 and f"2 rows set aside in {aside}" in done.out and len(aside.read_bytes().splitlines()) == 2
        )
        assert f"  2 rows set aside in {aside}: 1 × " in done.out
        assert cli(f"data check {out}").code == 0

    def test_samples(self, cli: Cli, tmp_path: Path) -> None:
        for name in "ab":
            write_jsonl(tmp_path / "in" / f"{name}.jsonl", [{"text": f"{name} {i}"} for i in range(50)])

        def rows(seed: int, out: str) -> list[dict[str, Any]]:
            line = f"data convert {tmp_path / 'in'}#30 -o {tmp_path / out} --as text --seed {seed}"
            assert cli(line).code == 0
            return [json.loads(text) for text in (tmp_path / out).read_text().splitlines()]

        first, again, other = rows(1, "1.jsonl"), rows(1, "2.jsonl"), rows(2, "3.jsonl")
        assert len(first) == len({row["text"] for row in first}) == 30 and first == again != other
        assert {row["text"][0] for row in first} == {"a", "b"}
        done = cli(f"data convert {tmp_path / 'in'}#101 -o {tmp_path / '4.jsonl'} --as text")
        assert done.code == 65 and "a sample of 101 rows of only 100" in done.err

    def test_a_sample_of_messages_of_trees(self, cli: Cli, tmp_path: Path) -> None:
        rows = [
            {"message_id": "a", "parent_id": None, "role": "prompter", "text": "q"},
            {"message_id": "b", "parent_id": "a", "role": "assistant", "text": "a"},
        ]
        path = write_jsonl(tmp_path / "t.jsonl", rows)
        done = cli(f"data convert {path}#1 -o {tmp_path / 'o.jsonl'}")
        assert done.code == 65 and "tear their trees apart" in done.err
        done = cli(f"data convert {path} -o {tmp_path / 'o.jsonl'}")
        assert done.code == 0 and "1 messages became part of a tree" in done.out

    def test_usage(self, cli: Cli, bad: str, tmp_path: Path) -> None:
        assert cli(f"data convert {bad} -o {tmp_path / 'x.doc'}").code == 2
        assert cli(f"data convert {bad} -o {tmp_path / 'x.jsonl'} --as swift").code == 2
        assert cli(f"data convert {bad} -o {tmp_path / 'x.txt'} --to jsonl --quarantine {tmp_path / 'q'}").code == 0


def test_fire_takes_the_seed_s_input_from_the_hub(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by the command's own name: no flag is needed."""
    asked = []

    def find(given: list[str], wanted: list[str], hub_id: str) -> dict[str, tuple[str, ...]]:
        asked.append((given, wanted, hub_id))
        return {"train": ()}

    monkeypatch.setattr("rankzero.datasets.raw.find_inputs", find)
    cli(f"data fire --output_dir {tmp_path}/o --image_dir {tmp_path}/i --splits train --skip-images")
    cli(f"data volcano --output_dir {tmp_path}/o --image_dir {tmp_path}/i --skip-images --input rows.jsonl")
    assert asked == [(["hub"], ["train"], "PengxiangLi/FIRE"), (["rows.jsonl"], ["train"], "kaist-ai/volcano-train")]


@pytest.mark.parametrize("recipe", ["fire", "volcano"])
def test_no_image_is_kept_that_training_would_refuse(cli: Cli, recipe: str, tmp_path: Path) -> None:
    line = f"data {recipe} --output_dir {tmp_path}/o --image_dir {tmp_path}/i --input rows.jsonl --max-pixels"
    refused = cli(f"{line} {MAX_PIXELS + 1}")
    assert refused.code == 2 and "--max-pixels" in refused.err and str(MAX_PIXELS) in refused.err
    assert "--max-pixels" not in cli(f"{line} {MAX_PIXELS}").err


def test_the_columns_that_a_hint_proposes_can_be_typed_everywhere(cli: Cli, model: str, tmp_path: Path) -> None:
    path = write(tmp_path / "qr.csv", b"question,reply", b"Two plus two?,Four")
    lines = {
        f"data check {path}": "readable     1",
        f"data stats {path}": "readable     1",
        f"data show {path} --model {model}": "qr.csv:2: ",
        f"data convert {path} -o {tmp_path}/out.jsonl": "1 written",
    }
    for line, words in lines.items():
        refused = cli(line)
        if not line.startswith("data stats"):
            assert refused.code == 65 and "--columns prompt=question,completion=reply" in refused.err, line
        done = cli(f"{line} --columns prompt=question,completion=reply")
        assert done.code == 0 and words in done.out, (line, done.err)


def test_reports_name_files_as_a_person_reads_them(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.jsonl", GOOD, GOOD)
    (tmp_path / "run.yaml").write_text(f"model: {{name: {tmp_path}}}\ndata: {{train: a.jsonl}}\n", encoding="utf-8")
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "such as a.jsonl:2, the same as a.jsonl:1" in cli("data check run.yaml").out
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    assert f"suchas{tmp_path}/a.jsonl:2" in "".join(cli("data check ../run.yaml").out.split())


def test_rows_beyond_the_context_are_told_as_training_tells_them(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", GOOD, b'{"text": "' + b"x" * 2000 + b'"}')
    done = cli(f"data check {path} --model {tiny}")
    assert done.code == 65 and "1 of 2 rows are longer than the model's context of 512 tokens" in done.err
    assert json.loads(cli(f"data check {path} --model {tiny} --json").out)["passed"] is False
    assert cli(f"data check {path} --model {tiny} --max-length 512").code == 0
