"""What pods say reaches a terminal as text and nothing else; what is secret by its shape reaches nobody."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.cli.describe_text import described_json
from rankzero.cli.log_view import as_line
from rankzero.errors import ConfigError
from rankzero.launch.backend import LogLine
from rankzero.launch.diagnose import redact
from rankzero.launch.evidence import Evidence
from rankzero.redaction import Redactor
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.wording import first_line, in_bytes, named_keys, printable

TOKEN = "hf_" + "a1B2" * 8
CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8=\x07"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (f"a{CLIPBOARD}b", "ab"),
        ("a\x1b]0;title\x1b\\b", "ab"),
        ("a\x1b[2J\x1b[31mb\x1b[0m", "ab"),
        ("a\x1b]52;c;never ends\nb", "a\nb"),
        ("loss\t1.5\n50%|\r|", "loss\t1.5\n50%||"),
        ("\x9b31mx\u202egnp", "31mxgnp"),
        ("äöü 你好 🙂", "äöü 你好 🙂"),
    ],
)
def test_escape_sequences_are_left_out(text: str, seen: str) -> None:
    assert printable(text) == redact(text) == seen
    assert as_line(LogLine(0, "p", "node", text), colour=False) == f"[node 0] {seen}"


@given(st.text())
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    assert not any(ord(character) < 32 and character not in "\t\n" for character in printable(text))
    assert printable(printable(text)) == printable(text)


def test_describe_as_json_shows_no_secret() -> None:
    env = [{"name": "MY_TOKEN", "value": "plain-words"}, {"name": "X", "value": TOKEN}, {"name": "Y", "value": "1"}]
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "node", "env": env}]}}
    event = {"metadata": {}, "message": f"pull with {TOKEN}{CLIPBOARD} failed", "involvedObject": {}}
    found = described_json(Evidence("r", datetime.now(UTC), (), (pod,), (event,)))
    assert TOKEN not in str(found) and "plain-words" not in str(found) and "\x1b" not in str(found)
    assert found["pods"][0]["spec"]["containers"][0]["env"][2] == {"name": "Y", "value": "1"}


@pytest.mark.parametrize("value", [TOKEN, "https://me:pass@host/x", "AKIA" + "A1" * 8, "ghp_" + "x" * 20])
def test_values_that_are_secrets_whatever_they_are_called(value: str) -> None:
    assert value not in Redactor({"HARMLESS": value})(f"using {value} now")
    with pytest.raises(ConfigError, match="looks like a secret"):
        load_cluster_spec(None, ["image=i", f"env.X={value}"], env={})


def test_values_that_are_none() -> None:
    for value in ("mlx5_0", "eth0", "https://mirror.example/simple", "sk-learn", "hf_transfer"):
        load_cluster_spec(None, ["image=i", f"env.X={value}"], env={})


def test_sizes_have_three_digits_and_all_before_the_point() -> None:
    sizes = (0, 254, 4_500, 7_170, 541_600_000, 1.53e9, 1.5e12)
    assert [in_bytes(size) for size in sizes] == ["0 B", "254 B", "4.5 kB", "7.17 kB", "542 MB", "1.53 GB", "1,500 GB"]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("what\nmore", "what"),
        ("", "ValueError"),
        ("field 'a':\n    expected int\nmore", "field 'a': expected int"),
        ("field 'a':", "field 'a':"),
    ],
)
def test_what_an_error_says_first(said: str, line: str) -> None:
    assert first_line(ValueError(said)) == line


def test_keys_that_nothing_reads_are_all_named_and_those_of_turns_first() -> None:
    """Metadata is in every row; what says something of a turn may be in a few."""
    keys = {f"meta_{number}": 100 for number in range(12)} | {"messages[].train_span": 5, "rare": 1}
    named = named_keys(keys)
    assert named[:2] == ["messages[].train_span 5", "rare 1"] and len(named) == len(keys)
    assert named_keys(keys, most=3)[2:] == ["meta_0 100", "and 11 more"]
