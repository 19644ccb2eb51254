"""What a row format is: what the file of each says of it in one value, FORMAT. Knows no format.

The names are listed in spec/row_formats.py, and a format's file is found by its name. Nothing else is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import RowProblem
from rankzero.spec.tasks import Trains

Row = Mapping[str, Any]
Keys = frozenset[str]

SYSTEM_KEYS = ("system", "system_prompt", "systemInstruction", "system_instruction")
"""Where rows have a system prompt beside their turns."""

SEEN: Keys = frozenset(
    {"tools", "functions", "toolConfig", "documents", "image", "images", "video", "videos", "audio", "audios"}
) | {*SYSTEM_KEYS}
"""Keys of what the model would have to see: leaving one out in silence would train something else."""

ASKING: Keys = SEEN | {"context", "passage", "choices", "options", "history"}
"""The same for rows of one question, of which these would be a part."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A row that could be read, and the named rules that were applied to it. They are counted, so that nothing happens
    to a row unseen. Without conversations the row is left out, by the rule in `dropped`."""

    conversations: tuple[Conversation, ...]
    rules: tuple[str, ...] = ()
    dropped: str = ""
    if_minus_one_is_a_class: Conversation | None = None
    """What the row is then, instead of left out."""


Result = Conversation | tuple[Conversation, ...] | Noted | list[RowProblem]
"""The row's conversation, or several where a row holds several; what was done to it; or all that is wrong with it."""


def with_rules(conversation: Conversation, rules: tuple[str, ...]) -> Conversation | Noted:
    """The conversation, with the rules that were applied to it where there are any."""
    return Noted((conversation,), rules) if rules else conversation


@dataclass(frozen=True, slots=True)
class Claim:
    """How a format knows its rows by keys that are common in many places."""

    keys: Keys
    """Those that such a row has, with values that are not null."""
    beside: Keys = frozenset()
    """Marks, of whichever formats, that it may have as well. A row with any other mark is not asked about."""
    judge: Callable[[Row, Set[str], int], bool | RowProblem] | None = None
    """Of a row with these keys, all its keys whose value is not null, and its line: whether it is one after all, or
    why that is a question."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A row put together from several lines: the line of its first piece, and how many rows it is made of."""

    line: int
    row: Row
    rows: int


@dataclass(slots=True)
class Joined:
    """What pieces became: whole rows in the order of their lines. Every piece is in one of them, or has a problem."""

    wholes: list[Whole] = field(default_factory=list)
    problems: list[RowProblem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a format's rows look where a file has them in pieces, one a line."""

    is_piece: Callable[[Row], bool]
    join: Callable[[Iterable[tuple[int, Row]]], Joined]
    """The pieces of one file with their line numbers."""


class CannotSayError(Exception):
    """What a row has that the format to be written has no place for: `reason` is short and the same for every such
    row."""

    def __init__(self, reason: str, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.reason, self.hint = reason, hint


class NothingToLearnError(Exception):
    """That training leaves a row out, and no format writes it: `rule` is the same for every such row."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


Column = Literal["text", "flag", "number", "json"] | Sequence["Column"] | Mapping[str, "Column"]
"""What a table's column holds: text, true or false, a number, any value as JSON in a string, a list (of the one kind
that is named) or an object."""

Written = tuple[dict[str, Any], tuple[str, ...]]
"""A row as the format has it, and the named rules that were applied on the way."""


@dataclass(frozen=True, slots=True)
class Writer:
    """How conversations are written, under the name that `data convert --as` takes. Raises CannotSayError or
    NothingToLearnError."""

    name: str
    to_row: Callable[[Conversation], Written]
    columns: Mapping[str, Column] = field(default_factory=dict)
    """In their order, where the rows fit into a table. Only text, and JSON that some rows have beside it: into CSV and
    TSV, too, but for those rows."""
    to_columns: Callable[[Conversation], Written] | None = None
    """The row in a table, where that is another."""

    @property
    def flat(self) -> bool:
        """Whether a row is a line of texts, but for JSON that some rows have beside them."""
        return bool(self.texts) and all(column in ("text", "json") for column in self.columns.values())

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts alone."""
        return tuple(name for name, column in self.columns.items() if column == "text")


@dataclass(frozen=True, slots=True)
class Format:
    """One row shape."""

    name: str
    needs: tuple[Keys, ...]
    """Keys that a row has to have to be called one: any of these sets."""
    reads: Keys
    shape: str
    """How a row looks, for error messages."""
    to_conversation: Callable[[Row, int], Result]
    """Of a row that has what it `needs`, and its line."""
    unread: Keys = SEEN
    """Keys that it must not leave out in silence; those that it reads are taken away."""
    learns_answers: bool = True
    """Whether the answers are to be learnt, unless a key beside them says which of them are wanted."""
    first_for: Trains | None = None
    """A task that trains this takes a row for one that has what the format `needs`, whatever other marks it has."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Other names that a key may have in the data."""

    # How its rows are recognised. Marks decide, unless a claim does; what has the marks of two formats is a question.
    marks: tuple[Keys, ...] = ()
    """Keys that stand for this shape alone: a row is one if its marks, of all formats' marks, are one of these sets."""
    only_together: Keys = frozenset()
    """Marks that say nothing unless all of them are there."""
    claims: tuple[Claim, ...] = ()
    settles: Callable[[Row, Keys], bool] | None = None
    """Of a row whose marks fit no shape, and these marks: whether its values show that it is one all the same."""
    near_miss: Callable[[Row, Keys, int], RowProblem | None] | None = None
    """Of a row that is no format's: what it lacks to be this one. Without a hint, the accepted shapes are its hint."""

    # Where a key may stand several times in one line, so that what is more is there twice by mistake.
    turn_lists: Keys = frozenset()
    """Keys whose values are lists of turns; with a dot, a key of the object under the first."""
    turn_keys: Keys = frozenset()
    """Keys of those turns that decide what is trained."""
    unread_in_turn: Callable[[Mapping[str, Any]], Set[str]] | None = None
    """Of such a turn the keys that say something and that nothing reads."""
    nests: bool = False
    """Objects lie in objects, to any depth."""

    pieces: Pieces | None = None
    writers: tuple[Writer, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "unread", self.unread - self.reads)
