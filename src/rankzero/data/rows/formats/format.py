"""What an adapter makes of a row. Knows nothing of any format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import RowProblem

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Noted:
    """A row that could be read, and the named rules that were applied to it. They are counted, so that nothing happens
    to a row unseen. Without conversations the row is left out, by the rule in `dropped`."""

    conversations: tuple[Conversation, ...]
    rules: tuple[str, ...] = ()
    dropped: str = ""


Result = Conversation | tuple[Conversation, ...] | Noted | list[RowProblem]
"""The row's conversation, or several where a row holds several; what was done to it; or all that is wrong with it."""


def with_rules(conversation: Conversation, rules: tuple[str, ...]) -> Result:
    """The conversation, with the rules that were applied to it where there are any."""
    return Noted((conversation,), rules) if rules else conversation
