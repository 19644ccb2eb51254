"""Names of the row shapes: a format's registration. Its file is data/rows/formats/NAME.py.

Apart from the spec's models, so that a command's --help need not load those, nor anything of the data side. Where a
row's keys are common in many places, the first format of this list that claims them has it: the more a format asks of a
row, the earlier it stands.
"""

from __future__ import annotations

from typing import Literal, get_args

RowFormat = Literal[
    "auto",
    "messages",
    "prompt_completion",
    "preference",
    "openai_preference",
    "sharegpt",
    "text",
    "alpaca",
    "classification",
    "oasst",
    "openorca",
    "query_response",
    "gemini",
    "segments",
]

ROW_FORMATS: tuple[str, ...] = tuple(name for name in get_args(RowFormat) if name != "auto")

Reasoning = Literal["keep", "last", "drop"]
"""How much of the reasoning of answers is trained: data.reasoning."""
