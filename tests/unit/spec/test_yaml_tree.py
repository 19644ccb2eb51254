"""YAML with lines: scalars as YAML 1.2 has them, and every slip at its line."""

from __future__ import annotations

import pytest

from rankzero.errors import ConfigError
from rankzero.spec.yaml_tree import Scalar, dotted, parse, plain_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("2e-4", 2e-4), ("2.0e-4", 2e-4), ("1E3", 1000.0), (".5", 0.5), ("1.", 1.0), ("-3", -3), ("+3", 3)),
        *(("010", 10), ("0x10", "0x10"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("1e", "1e")),
        *(("yes", "yes"), ("off", "off"), ("true", True), ("False", False), ("tRue", "tRue")),
        *(("", None), ("~", None), ("null", None), ("nuLL", "nuLL"), (".inf", float("inf"))),
        *((text, float("inf")) for text in (".INF", "+.inf", "+.Inf", "+.INF")),
        *((text, float("-inf")) for text in ("-.inf", "-.Inf", "-.INF")),
        ("9" * 5000, float("inf")),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    found = plain_value(text)
    assert found == value
    assert type(found) is type(value)


def test_quoted_scalars_stay_text() -> None:
    document = parse("a: '2'\nb: \"null\"\nc: |\n  1\n", source="f", env={})
    assert document is not None
    assert document.tree == {"a": Scalar("2", "2"), "b": Scalar("null", "null"), "c": Scalar("1\n", "1\n")}


def test_every_key_knows_its_line() -> None:
    text = "a:\n  b: 1\n  c: [x,\n      {d: 2}]\n\n# comment\ne: {f: 3}\n"
    document = parse(text, source="run.yaml", env={})
    assert document is not None
    lines = {dotted(path): origin.line for path, origin in document.origins.items() if path}
    assert lines == {"a": 1, "a.b": 2, "a.c": 3, "a.c[0]": 3, "a.c[1]": 4, "a.c[1].d": 4, "e": 7, "e.f": 7}


def test_anchors_and_aliases_work() -> None:
    document = parse("a: &x {b: 1}\nc: *x\n", source="f", env={})
    assert document is not None
    assert not document.problems
    assert document.tree == {"a": {"b": Scalar("1", 1)}, "c": {"b": Scalar("1", 1)}}


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_nothing(text: str) -> None:
    assert parse(text, source="f", env={}) is None


@pytest.mark.parametrize(
    ("text", "where", "what", "hint"),
    [
        ("a: [1\n", "f:2:1", "not YAML", ""),
        ("a: {x: 1\nb: 2\n", "f:2:2", "starts on line 1", ""),
        ("a:\n\tb: 1\n", "f:2:1", "cannot start any token", "spaces, not tabs"),
        ("a: 1\n---\nb: 2\n", "f:2", "second YAML document", "---"),
        ("a: 1\n  b: 2\n", "f:2:4", "mapping values are not allowed", "indentation"),
        ("a: b: c\n", "f:1:5", "mapping values are not allowed", "quotes"),
        ("a: {n: ${N}}\n", "f:1:9", "not YAML", 'quotes: "${NAME}"'),
        ("a: @x\n", "f:1:4", "cannot start any token", "begins with @"),
        ("a: *nope\n", "f:1:4", "undefined alias", "begins with *"),
        ("a: 1\nb: \x01\n", "f:2", "control characters", ""),
        ("a: 'x\n", "f:2:1", "unexpected end of stream", ""),
    ],
)
def test_what_is_not_yaml(text: str, where: str, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, source="f", env={})
    (problem,) = caught.value.problems
    assert problem.where == where
    assert what in problem.what
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3 a", "given twice"),
        ("s:\n  a: 1\n  a: 3\n", "f:3 s.a", "given twice"),
        ("? [x]\n: 1\n", "f:1", "a key must be text"),
        ("b: &x {c: 1}\na:\n  <<: *x\n", "f:3 a", "merge keys"),
        ("a: !!python/name:os.system x\n", "f:1 a", "YAML tag"),
        ("a: !!int 5\n", "f:1 a", "YAML tag !!int is not supported"),
        ("a: &x\n  b: *x\n", "f:2 a.b", "contains itself"),
        ("a:\n  b: ${NOPE}\n", "f:2 a.b", "NOPE is not set"),
    ],
)
def test_what_is_yaml_but_refused(text: str, where: str, what: str) -> None:
    document = parse(text, source="f", env={})
    assert document is not None
    (problem,) = [problem for _, problem in document.problems]
    assert problem.where == where
    assert what in problem.what


def test_a_small_file_cannot_grow_without_end() -> None:
    layers = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigError, match="more than"):
        parse(f"l0: &l0 [x, x, x]\n{layers}", source="f", env={})
