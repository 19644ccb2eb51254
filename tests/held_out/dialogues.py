"""Dialogues as data sets have them, to be put through every chat template. Knows no template and no code of ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Call:
    """A call of a function, with an id as OpenAI makes them."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """Who says what. `learn`: whether the row wants it trained where it is the assistant's."""

    role: str
    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    answers: str = ""
    learn: bool = True

    @property
    def with_thought(self) -> str:
        """The text, the reasoning before it in the tags that models know who have no other place for it."""
        return f"<think>\n{self.thought}\n</think>\n\n{self.text}" if self.thought else self.text


@dataclass(frozen=True)
class Dialogue:
    """Turns, and the functions that may be called in them."""

    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()

    def row(self) -> dict[str, Any]:
        """The dialogue as OpenAI's fine-tuning files have it, with `loss` and `reasoning_content` besides."""
        rows: list[dict[str, Any]] = []
        for turn in self.turns:
            row: dict[str, Any] = {"role": turn.role, "content": turn.text}
            if turn.thought:
                row["reasoning_content"] = turn.thought
            if turn.calls:
                row["content"] = turn.text or None
                row["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                    }
                    for call in turn.calls
                ]
            if turn.answers:
                row["tool_call_id"] = turn.answers
            if not turn.learn:
                row["loss"] = False
            rows.append(row)
        return {"messages": rows, **({"tools": list(self.tools)} if self.tools else {})}


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
_LIMA = Call("call_a1B2c3D4e5", "get_weather", {"town": "Lima"})
_CUZCO = Call("call_f6G7h8I9j0", "get_weather", {"town": "Cuzco é", "days": 2})


def _user(text: str) -> Turn:
    return Turn("user", text)


def _assistant(text: str, **more: Any) -> Turn:
    return Turn("assistant", text, **more)


_ASKS_WEATHER = _user("What is the weather in Lima?")
_CALLS = _assistant("", calls=(_LIMA,))
_TELLS = Turn("tool", "18 degrees", answers=_LIMA.id)
_ENDS = _assistant("It is 18 degrees.")
_TOOL_ROUND = (_ASKS_WEATHER, _CALLS, _TELLS, _ENDS)
_CUZCO_ROUND = (
    _user("And in Cuzco?"),
    _assistant("", calls=(_CUZCO,)),
    Turn("tool", "7 degrees", answers=_CUZCO.id),
    _assistant("Colder: 7 degrees."),
)
_ROUNDS = (
    _user("Name a prime."),
    _assistant("Seven."),
    _user("Another one?"),
    _assistant("Eleven."),
    _user("Why?"),
    _assistant("Nothing but 1 and 11 divides it."),
)
_FIRST_THOUGHT, _SECOND_THOUGHT = "It should be small.", "The next one\n\nis 11."

DIALOGUES: dict[str, Dialogue] = {
    "one round": Dialogue(_ROUNDS[:2]),
    "system": Dialogue((Turn("system", "Be brief."), *_ROUNDS[:2])),
    "three rounds": Dialogue(_ROUNDS),
    "unicode": Dialogue((_user("Grüße, 漢字?"), _assistant("Ja 🙂\u200d é: 漢字\u3002"), *_ROUNDS[2:4])),
    "space": Dialogue((_user(" q \n"), _assistant("  padded \n"), _user("r"), _assistant("\n\nlines\n\n"))),
    "markup as text": Dialogue(
        (
            _user("[INST] <|im_start|>assistant\nx<|im_end|> [/INST]"),
            _assistant("<end_of_turn></s>"),
            _user("<|eot_id|>"),
            _assistant("USER: <|user|>"),
        )
    ),
    "same words": Dialogue((_user("same"), _assistant("same"), _user("same"), _assistant("same"))),
    "empty question": Dialogue((_user(""), _assistant("Hello."))),
    "not the first": Dialogue((_ROUNDS[0], replace(_ROUNDS[1], learn=False), *_ROUNDS[2:4])),
    "user last": Dialogue(_ROUNDS[:3]),
    "assistant first": Dialogue((_assistant("Hello!"), *_ROUNDS[:2])),
    "reasoning": Dialogue((_ROUNDS[0], replace(_ROUNDS[1], thought=_FIRST_THOUGHT))),
    "reasoning twice": Dialogue(
        (
            _ROUNDS[0],
            replace(_ROUNDS[1], thought=_FIRST_THOUGHT),
            _ROUNDS[2],
            replace(_ROUNDS[3], thought=_SECOND_THOUGHT),
        )
    ),
    "reasoning first": Dialogue((_ROUNDS[0], replace(_ROUNDS[1], thought=_FIRST_THOUGHT), *_ROUNDS[2:4])),
    "tools": Dialogue(_TOOL_ROUND, (WEATHER,)),
    "tools with system": Dialogue((Turn("system", "Be brief."), *_TOOL_ROUND), (WEATHER,)),
    "calls alone": Dialogue(_TOOL_ROUND),
    "two calls": Dialogue(
        (
            _ASKS_WEATHER,
            _assistant("", calls=(_LIMA, _CUZCO)),
            _TELLS,
            Turn("tool", "7 degrees", answers=_CUZCO.id),
            _ENDS,
        ),
        (WEATHER,),
    ),
    "text and call": Dialogue((_ASKS_WEATHER, replace(_CALLS, text="I look it up."), _TELLS, _ENDS), (WEATHER,)),
    "call last": Dialogue(_TOOL_ROUND[:2], (WEATHER,)),
    "two tool rounds": Dialogue((*_TOOL_ROUND, *_CUZCO_ROUND), (WEATHER,)),
    "reasoning with tools": Dialogue(
        (
            _ASKS_WEATHER,
            replace(_CALLS, thought=_FIRST_THOUGHT),
            _TELLS,
            replace(_ENDS, thought=_SECOND_THOUGHT),
        ),
        (WEATHER,),
    ),
}
