"""Names of the row shapes. Apart from the spec's models, so that a command's --help need not load those."""

from __future__ import annotations

from typing import Literal

RowFormat = Literal[
    "auto",
    "messages",
    "prompt_completion",
    "text",
    "alpaca",
    "sharegpt",
    "query_response",
    "openorca",
    "oasst",
    "preference",
    "classification",
]

Reasoning = Literal["keep", "last", "drop"]
"""How much of the reasoning of answers is trained: data.reasoning."""
