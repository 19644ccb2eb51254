"""A format that is added with its own file and its name in the list, and nothing else."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import rankzero
from rankzero.data.rows.formats import FORMATS, WRITERS
from tests.support.additions import Package

FILE = '''
"""Rows of `ask` and `reply`."""

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.fields import read_id, read_text
from rankzero.data.rows.formats.format import CannotSayError, Format, Result, Row, Writer, Written
from rankzero.data.rows.problems import RowProblem

KEYS = frozenset({"ask", "reply"})


def to_conversation(row: Row, line: int) -> Result:
    texts = [read_text(row, key, line) for key in ("ask", "reply")]
    problems = [text for text in texts if isinstance(text, RowProblem)]
    ask, reply = texts
    return problems or Conversation((Message("user", ask), Message("assistant", reply)), True, line, id=read_id(row))


def to_row(conversation: Conversation) -> Written:
    if [turn.role for turn in conversation.messages] != ["user", "assistant"]:
        raise CannotSayError("more than one round", "ask_reply has one question and one answer", "use --as messages")
    ask, reply = conversation.messages
    return {"ask": ask.content, "reply": reply.content}, ()


FORMAT = Format(
    name="ask_reply",
    needs=(KEYS,),
    reads=KEYS | {"id"},
    shape='{"ask": "…", "reply": "…"}',
    to_conversation=to_conversation,
    aliases={"reply": ("reply", "retort")},
    marks=(KEYS,),
    writers=(Writer("ask_reply", to_row, {"ask": "text", "reply": "text"}),),
)
'''

RUN = """
import json
from typer.testing import CliRunner
from rankzero.cli.main import app
from rankzero.data.rows.formats import check_columns, convert, reason, rename
from rankzero.spec.run_spec import SourceSpec

def say(*words):
    done = CliRunner().invoke(app, words)
    return [done.exit_code, done.stdout if done.exception is None else str(done.exception)]

row = {"ask": "q", "reply": "a", "id": "1"}
found = {
    "detected": reason(row, convert(row, 1)[0]),
    "torn": [(p.reason, p.hint) for p in convert({"ask": "q", "reply": "a", "messages": []}, 1)[1]],
    "stated": [(p.reason, p.hint) for p in convert({"ask": "q"}, 1, "ask_reply")[1]],
    "accepted": convert({"zzz": 1}, 1)[1][0].hint,
    "renamed": rename({"q": "x", "retort": "y", "r": "z"}, {"ask": "q", "reply": "r"}),
    "columns": [problem.hint for problem in check_columns("ask_reply", {"repy": "r"})],
    "check": say("data", "check", "in.jsonl", "--json"),
    "spec": SourceSpec(path="in.jsonl", format="ask_reply").format,
    "help": say("data", "check", "--help"),
    "read": say("data", "convert", "in.jsonl", "-o", "chats.jsonl"),
    "written": say("data", "convert", "chats.jsonl", "--as", "ask_reply", "-o", "back.jsonl"),
    "table": say("data", "convert", "chats.jsonl", "--as", "ask_reply", "-o", "back.csv"),
    "cannot": say("data", "convert", "long.jsonl", "--as", "ask_reply", "-o", "long.out.jsonl"),
}
print(json.dumps(found))
"""


def test_a_format_is_its_file_and_its_name(tmp_path: Path) -> None:
    package = Package(tmp_path)
    package.add(
        {"data/rows/formats/ask_reply.py": FILE},
        {"spec/row_formats.py": ('    "messages",\n', '    "messages",\n    "ask_reply",\n')},
    )
    rows = [{"ask": f"q{i}", "reply": f"a{i}"} for i in range(3)]
    write(tmp_path / "in.jsonl", *rows)
    turns = [("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")]
    write(tmp_path / "long.jsonl", {"messages": [{"role": role, "content": text} for role, text in turns]})
    found = json.loads(package.python(RUN))

    assert found["detected"] == "ask_reply: keys ask, reply"
    assert found["torn"][0][0] == "ambiguous row"
    assert found["stated"] == [["not in the stated format", 'expected: {"ask": "…", "reply": "…"}']]
    assert '{"ask": "…", "reply": "…"}' in found["accepted"]
    assert found["renamed"] == {"ask": "x", "reply": "z"}
    assert found["columns"] == ["did you mean reply?"]
    code, checked = found["check"]
    assert (code, json.loads(checked)["formats"]) == (0, {"ask_reply": 3}), checked
    assert found["spec"] == "ask_reply"
    code, shown = found["help"]
    assert code == 0 and "ask_reply" in shown
    assert found["read"][0] == found["written"][0] == found["table"][0] == 0, found
    assert [json.loads(line)["messages"][1]["content"] for line in read(tmp_path / "chats.jsonl")] == ["a0", "a1", "a2"]
    assert [json.loads(line) for line in read(tmp_path / "back.jsonl")] == rows
    assert read(tmp_path / "back.csv") == ['"ask","reply"', '"q0","a0"', '"q1","a1"', '"q2","a2"']
    assert found["cannot"][0] != 0 and "one question and one answer" in found["cannot"][1]
    assert not (tmp_path / "long.out.jsonl").exists()


def test_the_example_of_the_docs_is_that_of_the_code() -> None:
    docs = (Path(__file__).parents[5] / "docs" / "architecture.md").read_text()
    file, name = (
        docs.partition("# data/rows/formats/alpaca.py\n")[2].partition("```")[0].split("# spec/row_formats.py\n")
    )
    source = Path(rankzero.__file__).parent
    assert len(file) > 200 and file.strip() in (source / "data" / "rows" / "formats" / "alpaca.py").read_text()
    assert name in (source / "spec" / "row_formats.py").read_text() and name.strip()


def test_what_the_docs_say_cannot_be_written() -> None:
    assert FORMATS.keys() - WRITERS.keys() == {"query_response", "openorca", "oasst", "gemini", "openai_preference"}
    assert WRITERS.keys() - FORMATS.keys() == {"openai"}


def test_formats_with_lists_of_turns_say_what_is_read_of_a_turn() -> None:
    for format_ in FORMATS.values():
        told = (bool(format_.turn_lists), bool(format_.turn_keys), format_.unread_in_turn is not None)
        assert len(set(told)) == 1, format_.name


def test_no_other_file_asks_for_a_format_by_name() -> None:
    keys = frozenset[str]().union(*(format_.reads for format_ in FORMATS.values()))
    names = FORMATS.keys() - keys  # `text` and `messages` are keys of rows as well
    assert len(names) >= 8
    source = Path(rankzero.__file__).parent
    for path in source.rglob("*.py"):
        if path == source / "spec" / "row_formats.py":
            continue
        tree = ast.parse(path.read_text())
        known = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in names}
        own = {path.stem} if path.parent == source / "data" / "rows" / "formats" else set()
        assert known <= own, path


def write(path: Path, *rows: object) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[str]:
    return path.read_text().splitlines()
