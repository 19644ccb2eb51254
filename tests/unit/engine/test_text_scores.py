"""What counts as the same answer: the look of a text is left out, what it says is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.engine.text_scores import exact_match, token_f1


@pytest.mark.parametrize(
    ("answer", "wanted", "exact", "f1"),
    [
        ("The capital is Lima.", "the capital is lima", True, 1.0),
        ("Lima", "The capital is Lima.", False, 0.4),
        ("a a b", "a b b", False, 2 / 3),
        ("東京。", "東京", True, 1.0),
        ("naïve", "nai\u0308ve", True, 1.0),
        ("+", "+", True, 1.0),
        ("+", "-", False, 0.0),
        ("", "Lima", False, 0.0),
        ("", "", True, 1.0),
        ("-5", "5", False, 0.0),
        ("1.5", "15", False, 0.0),
    ],
)
def test_scores(answer: str, wanted: str, exact: bool, f1: float) -> None:
    assert exact_match(answer, wanted) is exact
    assert token_f1(answer, wanted) == pytest.approx(f1) == token_f1(wanted, answer)


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("the answer", "The answer."),
        ("Yes, it is", "Yes: it is!"),
        ("It is 5", "It is 5."),
        ("**Lima**", "Lima"),
        ("(**Lima**), or `Quito`", "(Lima) or Quito"),
        ("(***x***)", "(x)"),
        ("**x** = **-5**", "x = -5"),
        ("**Note:**now", "Note: now"),
        ("* **Lima**\n* *Quito*", "Lima\nQuito"),
        ("x**2", "x ** 2"),
        ("- milk\n- eggs", "milk\neggs"),
        ("# Heading\ntext", "Heading text"),
        ("well-known", "well known"),
        ("Yes — it is", "Yes, it is"),
        ('"don\'t"', "“don’t”"),
        ("x+1", "x + 1"),
        ("5 %", "5%"),
        ("\u22125", "-5"),
        ("1\u20133", "1-3"),
        ("x²", "x^2"),
        ("\u2764\ufe0f", "\u2764"),
        ("１，５", "1,5"),
        ("क्या?", "क्या"),
        ("1½", "1 1/2"),
        ("½", "1/2"),
        ('{"a": [1,2], "b": [[3,4]]}', '{"a": [1, 2], "b": [[3, 4]]}'),
        ("[1,000]", "1,000"),
        ("[$1,234.50]", "$1,234.50"),
        (r"\[1,234\]", "1,234"),
        (r"\[ x = 1,234 \]", "x = 1,234"),
        ("[1,2,[3,4]]", "[1, 2, [3, 4]]"),
        ("[[1,2],3,4]", "[[1, 2], 3, 4]"),
        ('[{"a":[1]},1,2]', '[{"a": [1]}, 1, 2]'),
    ],
)
def test_the_same_answer_in_another_dress(answer: str, wanted: str) -> None:
    assert exact_match(answer, wanted) and token_f1(answer, wanted) == 1.0


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("C++", "C#"),
        ("$5", "€5"),
        ("Yes 👍", "Yes 👎"),
        ("5²", "52"),
        ("x != y", "x = y"),
        ("A-", "A"),
        (".5", "5"),
        ("- 5", "5"),
        ("x**2", "x*2"),
        ("x ** 2", "x * 2"),
        ("**x**2**", "**x*2**"),
        ("return a**b", "return a*b"),
        ("(a+b)**-1", "(a+b)*-1"),
        ("12:30", "12.30"),
        ("R&D", "R/D"),
        ("#5", "5"),
        ("5%", "5"),
        ("1½", "11/2"),
        ("2¾", "23/4"),
        ("[1,2]", "[12]"),
        ("[1.2]", "[1,2]"),
    ],
)
def test_another_answer(answer: str, wanted: str) -> None:
    assert not exact_match(answer, wanted) and token_f1(answer, wanted) < 1.0


NUMBERS = st.integers(0, 10**6).map(str)
OPERANDS = NUMBERS | st.sampled_from(["x", "y", "total", "(a + b)", "-3", "x_1"])
OPERATORS = ["+", "-", "*", "/", "%", "^", "=", "<", ">", "<=", ">=", "!=", "×", "÷", "±", "≠", "≤", "→"]
OPERATORS += ["**", "//", "==", "<<", ">>"]
SPACES = st.sampled_from(["", " "])


@given(OPERANDS, OPERANDS, SPACES, st.permutations(OPERATORS))
def test_another_operator_is_another_answer(left: str, right: str, space: str, operators: list[str]) -> None:
    one, other = (f"{left}{space}{operator}{space}{right}" for operator in operators[:2])
    assert not exact_match(one, other) and token_f1(one, other) < 1.0, (one, other)


@given(st.sampled_from(["", "It is ", "x = ", "("]), NUMBERS, st.permutations(["", "-", "+", "±", "~", "$", "€", "#"]))
def test_another_sign_is_another_answer(before: str, number: str, signs: list[str]) -> None:
    one, other = (f"{before}{sign}{number}" for sign in signs[:2])
    assert not exact_match(one, other) and token_f1(one, other) < 1.0, (one, other)


@given(NUMBERS, NUMBERS, st.permutations([".", ",", "", ":", "/", " "]), st.sampled_from(["", "-", "It is "]))
def test_another_decimal_mark_is_another_answer(whole: str, part: str, marks: list[str], before: str) -> None:
    one, other = (f"{before}{whole}{mark}{part}" for mark in marks[:2])
    assert not exact_match(one, other) and token_f1(one, other) < 1.0, (one, other)
