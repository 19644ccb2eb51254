"""A batch size as it may be written: a number, or its factors. Pure; knows nothing of processes."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field

_PositiveInt = Annotated[int, Field(ge=1)]


def product(value: object) -> object:
    """[2, 8, 4] is 64, also where a variable in quotes makes a factor text. Anything else stays as it stands, for the
    field to judge."""
    if not isinstance(value, list | tuple) or not value:
        return value
    factors = [int(factor) if isinstance(factor, str) and factor.isdecimal() else factor for factor in value]
    whole = [factor for factor in factors if type(factor) is int and factor >= 1]
    return math.prod(whole) if len(whole) == len(factors) else value


BatchSize = Annotated[_PositiveInt, BeforeValidator(product, json_schema_input_type=_PositiveInt | list[_PositiveInt])]
"""A whole number of at least 1; a list of such numbers stands for their product."""
