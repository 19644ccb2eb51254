"""What the writers of several formats share: turns, calls and images as JSON values, and what a format cannot say.

Where the text stays and only its frame changes (raw prompt and completion as chat turns), a named rule says so and is
counted. Pure; knows no format as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats.format import CannotSayError
from rankzero.data.rows.formats.images import TAG
from rankzero.data.rows.formats.json_text import write_text

RAW_AS_CHAT = "raw prompt and completion become chat turns"
NAMES_LEFT_OUT = "ids and groups of rows are left out"
NAMES_AS_TEXT = "ids and groups of rows that are numbers or objects become text"
REASONING_AS_TEXT = "reasoning becomes <think>…</think> before the answer"


def require_plain(conversation: Conversation, target: str) -> None:
    """Raise where the row has what only a format of its own can say."""
    if conversation.rejected:
        raise CannotSayError("preference row", f"{target} has no place for a rejected answer", "use --as preference")
    if conversation.verbatim:
        raise CannotSayError("segments", f"{target} has no place for segments of raw text", "use --as segments")
    if conversation.label is not None:
        raise CannotSayError("classification row", f"{target} has no place for a label", "use --as classification")


def chat_turns(conversation: Conversation, target: str) -> tuple[Sequence[Message], tuple[str, ...]]:
    """The row's chat turns; raw prompt and completion as two of them."""
    require_plain(conversation, target)
    if conversation.templated:
        return conversation.messages, ()
    if len(conversation.messages) == 2:
        prompt, completion = conversation.messages
        return (Message("user", prompt.content), Message("assistant", completion.content)), (RAW_AS_CHAT,)
    raise CannotSayError("plain text", f"{target} needs a question, and the row is plain text", "use --as text")


def plain_turns(conversation: Conversation, target: str) -> tuple[Sequence[Message], tuple[str, ...]]:
    """The row's chat turns for a format that has neither weights nor a place for reasoning."""
    turns, rules = chat_turns(conversation, target)
    if any(turn.weight != 1 for turn in turns):
        raise CannotSayError("per-turn weight", f"{target} cannot say how much a turn counts", "use --as messages")
    if any(turn.reasoning for turn in turns):
        written = tuple(turn.with_thought_in_text() for turn in turns)
        if list(map(_apart, written)) != list(map(_apart, turns)):
            what = f"{target} has reasoning as text, which would end at its own </think>"
            raise CannotSayError("reasoning that closes itself", what, "use --as messages")
        return written, (*rules, REASONING_AS_TEXT)
    return turns, rules


def _apart(turn: Message) -> tuple[str, str]:
    """What a turn's reasoning and its answer are once it is read, but for the line breaks between the two."""
    return turn.thought.strip("\n"), turn.answer.lstrip("\n")


def one_round(conversation: Conversation, target: str, *, system: bool) -> tuple[list[Message], tuple[str, ...]]:
    """The turns of a row that has one question and one answer, and a system prompt at most."""
    turns, rules = plain_turns(conversation, target)
    roles = [turn.role for turn in turns]
    if conversation.tools or any(turn.tool_calls for turn in turns):
        raise CannotSayError("tools", f"{target} has no place for tools")
    if conversation.images:
        raise CannotSayError("images", f"{target} has no place for images")
    if roles not in ([["user", "assistant"], ["system", "user", "assistant"]] if system else [["user", "assistant"]]):
        what = f"{target} has one question and one answer, and the row's turns are {', '.join(roles[:8])}"
        raise CannotSayError("more than one round", what, "use --as messages or --as sharegpt")
    marked = any(turn.train is not None for turn in turns[:-1]) and not conversation.completion_only
    if turns[-1].train is False or marked:
        raise CannotSayError("per-turn loss", f"{target} cannot say that a turn is not trained")
    if not all(turn.content.strip() for turn in turns):
        raise CannotSayError("empty turn", f"{target} has no place for a turn without text")
    return list(turns), rules


def tagged(message: Message) -> str:
    """The text with a tag wherever an image stands."""
    pieces: list[str] = []
    at = 0
    for offset in message.image_offsets:
        pieces += (message.content[at:offset], TAG)
        at = offset
    return "".join([*pieces, message.content[at:]])


def content_parts(message: Message, images: list[str], kind: str) -> list[dict[str, Any]]:
    """Content parts, each image with its own source, taken from the front of `images`."""
    parts: list[dict[str, Any]] = []
    at = 0
    for offset in message.image_offsets:
        if offset > at:
            parts.append({"type": "text", "text": message.content[at:offset]})
        source = images.pop(0)
        image = {"image_url": {"url": source}} if kind == "image_url" else {"image": source}
        parts.append({"type": kind, **image})
        at = offset
    if at < len(message.content) or not parts:
        parts.append({"type": "text", "text": message.content[at:]})
    return parts


def call_row(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call as OpenAI writes it: its arguments are JSON in a string."""
    function = call["function"]
    return {**call, "function": {"name": function["name"], "arguments": write_text(function["arguments"])}}


def turn_row(message: Message, content: Any, flag: str = "loss") -> dict[str, Any]:
    """A turn with all that it has. `flag` names whether it is trained: loss (true, false) or weight (1, 0)."""
    turn: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        turn["tool_calls"] = [call_row(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.train and message.weight != 1:
        turn["loss_weight"] = message.weight
    elif message.train is not None:
        turn[flag] = message.train if flag == "loss" else int(message.train)
    return turn


def beside(conversation: Conversation) -> dict[str, Any]:
    """What stands beside the turns in every chat format."""
    row: dict[str, Any] = {}
    if conversation.tools:
        row["tools"] = [dict(tool) for tool in conversation.tools]
    if conversation.template_kwargs and conversation.templated:
        row["chat_template_kwargs"] = dict(conversation.template_kwargs)
    if conversation.id is not None:
        row["id"] = conversation.id
    if conversation.group is not None:
        row["conversation_id"] = conversation.group
    return row


def as_prompt(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns in a place that is never trained, which nothing but an answer without a word has to say."""
    return [row if _is_silent(row) else {key: row[key] for key in row if key != "loss"} for row in rows]


def _is_silent(row: Mapping[str, Any]) -> bool:
    content = row["content"]
    return row["role"] == "assistant" and isinstance(content, str) and not content.strip() and "tool_calls" not in row


def turn_rows(turns: Sequence[Message], conversation: Conversation) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Turns with `loss`, and `images` beside them; parts with their own images where a tag would be misread."""
    in_answers = all(turn.role == "assistant" for turn in turns if turn.image_offsets)
    if conversation.images and (in_answers or any(TAG in turn.content for turn in turns)):
        left = list(conversation.images)
        return [
            turn_row(turn, content_parts(turn, left, "image") if turn.image_offsets else turn.content) for turn in turns
        ], {}
    images = {"images": list(conversation.images)} if conversation.images else {}
    return [turn_row(turn, tagged(turn)) for turn in turns], images
