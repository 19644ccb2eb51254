"""Rows with `contents` of role and parts, as Gemini's. Knows nothing of templates or tokens."""

from __future__ import annotations

from rankzero.data.rows.formats.fields import CHAT_FIELDS, chat
from rankzero.data.rows.formats.format import Claim, Format, Result, Row
from rankzero.data.rows.formats.images import Slots
from rankzero.data.rows.formats.messages import require_reply
from rankzero.data.rows.formats.tools import decoded
from rankzero.data.rows.formats.turn_loss import LOSS_KEYS
from rankzero.data.rows.formats.turns import read_messages, unread_beside

KEYS = frozenset({"contents"})
SHAPE = '{"contents": [{"role": "user", "parts": [{"text": "…"}]}, {"role": "model", "parts": [{"text": "…"}]}]}'

_READ = frozenset({"role", "parts", *LOSS_KEYS})


def to_conversation(row: Row, line: int) -> Result:
    """The contents as turns, under the system instruction."""
    contents = decoded(row["contents"])
    slots = Slots(row, line)
    # A turn that does not say whose it is is the user's.
    turns = [
        {"role": "user", **{"content" if key == "parts" else key: value for key, value in item.items()}}
        if isinstance(item, dict)
        else item
        for item in (contents if isinstance(contents, list) else ())
    ]
    messages, problems = read_messages(turns if isinstance(contents, list) else contents, line, "contents", slots)
    if not problems:
        problems = require_reply(messages, line)
    return chat(row, line, messages, problems, slots)


FORMAT = Format(
    name="gemini",
    needs=(KEYS,),
    reads=KEYS | CHAT_FIELDS,
    shape=SHAPE,
    to_conversation=to_conversation,
    claims=(Claim(KEYS),),
    turn_lists=KEYS,
    turn_keys=_READ,
    unread_in_turn=lambda item: unread_beside(item, _READ),
)
