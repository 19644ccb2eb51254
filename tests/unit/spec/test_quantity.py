"""Quantities as the API takes them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rankzero.spec.quantity import as_bytes, as_number, exact


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        *(("8", 8), ("300m", Fraction(3, 10)), ("2u", Fraction(1, 500_000)), ("5n", Fraction(1, 200_000_000))),
        *(("1k", 1000), ("2Ki", 2048), ("1.5Gi", 3 * 2**29), ("1E", 10**18), ("1Ei", 2**60)),
        *(("1e12", 10**12), ("1E3", 1000), ("12e-1", Fraction(6, 5)), (".5", Fraction(1, 2)), ("5.", 5), ("+3", 3)),
    ],
)
def test_quantities(quantity: str, number: Fraction | int) -> None:
    assert exact(quantity) == number and as_number(quantity) == float(number)
    assert as_bytes(quantity) == int(number)


@pytest.mark.parametrize("text", ["", "x", "1e", "5mm", "Ki", "1e5Ki", "1 Gi", "1e999", "0x10", "."])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        as_number(text)


def test_more_than_there_is_a_float_for() -> None:
    assert as_number("9" * 400) == float("inf")
