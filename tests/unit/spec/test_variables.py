"""`${NAME}` in text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.spec.yaml_tree import escape, expand

ENV = {"A": "x", "EMPTY": "", "N_1": "7", "REF": "${A}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("${A}", "x"),
        ("a${A}b${N_1}", "axb7"),
        ("${MISSING:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY}", ""),
        ("${A:-d}", "x"),
        ("${MISSING:-}", ""),
        ("${MISSING:-/a:-b}", "/a:-b"),
        ("$${A}", "${A}"),
        ("$A $ $$ {A}", "$A $ $$ {A}"),
        ("${REF}", "${A}"),  # what a variable holds is not read again
    ],
)
def test_expands(text: str, expected: str) -> None:
    assert expand(text, ENV) == (expected, [])


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("${NOPE}", "environment variable NOPE is not set", "${NOPE:-value}"),
        ("${1A}", "cannot read what follows ${", "$${"),
        ("${}", "cannot read", "${NAME:-default}"),
        ("${A", "cannot read", "${NAME}"),
        ("${A-d}", "cannot read", "${NAME}"),
        ("${X:-${A}}", "cannot read", "${NAME}"),
    ],
)
def test_says_what_is_wrong(text: str, what: str, hint: str) -> None:
    problem = expand(text, ENV)[1][0]
    assert what in problem.what
    assert hint in problem.hint


@given(st.text(alphabet="${}:-aA_1 "))
def test_escape_is_the_inverse(text: str) -> None:
    assert expand(escape(text), {}) == (text, [])


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "DB_PASSWORD", "LANGFUSE_SECRET_KEY"]
)
def test_a_secret_never_becomes_part_of_a_spec(name: str) -> None:
    text, (problem,) = expand(f"a${{{name}:-x}}b", {name: "canary"})
    assert "canary" not in text + str(problem)
    assert "secrets" in problem.hint


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "MAX_TOKENS", "MODEL_ID", "KEYBOARD", "IMAGE_MAX_TOKEN_NUM"]
)
def test_other_names_do(name: str) -> None:
    assert expand(f"${{{name}}}", {name: "x"}) == ("x", [])
