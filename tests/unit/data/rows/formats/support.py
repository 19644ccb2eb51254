"""Rows of every format, written for these tests, and shorthand for what becomes of one."""

from __future__ import annotations

from typing import Any

from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import FORMATS, Noted, convert
from rankzero.data.rows.problems import RowProblem

Row = dict[str, Any]

CALL: Row = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": [2, "é"]}'},
}
TOOL: Row = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {}}}},
}
TREE: Row = {
    "message_tree_id": "t1",
    "tree_state": "ready_for_export",
    "prompt": {
        "message_id": "t1",
        "text": "Why is the sky blue?",
        "role": "prompter",
        "lang": "en",
        "replies": [
            {"message_id": "c", "text": "Because.", "role": "assistant", "rank": 1, "replies": []},
            {
                "message_id": "b",
                "text": "Rayleigh scattering.",
                "role": "assistant",
                "rank": 0,
                "replies": [{"message_id": "d", "text": "Thanks", "role": "prompter", "rank": None}],
            },
        ],
    },
}

ROWS: dict[str, list[Row]] = {
    "messages": [
        {"messages": [{"role": "user", "content": "q é"}, {"role": "assistant", "content": "a 🙂"}], "id": "m1"},
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "1+2?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "3"},
                {"role": "assistant", "content": "3", "weight": 1},
            ],
            "tools": [TOOL],
            "parallel_tool_calls": False,
        },
        {
            "messages": [
                {"role": "user", "content": "<image>\nWhat is <image>?"},
                {"role": "assistant", "content": "x", "loss": False},
                {"role": "user", "content": "And?"},
                {"role": "assistant", "content": "y"},
            ],
            "images": ["a/1.jpg", "a/2.jpg"],
        },
    ],
    "prompt_completion": [
        {"prompt": "p ", "completion": " c"},
        {
            "prompt": [{"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": "a"}],
        },
    ],
    "text": [{"text": "plain\nwords"}],
    "alpaca": [
        {"instruction": "Name a prime.", "input": "", "output": "7", "text": "Below is an instruction…"},
        {"instruction": "Translate to French.", "input": "Good day", "output": "Bonjour"},
        {"instruction": "i", "output": "o", "system": "s", "history": [["q", "a"]]},
    ],
    "sharegpt": [
        {"id": "sg1_0", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]},
        {"conversation": [{"human": "q", "assistant": "a"}, {"human": "r", "assistant": "b"}], "system": "s"},
    ],
    "query_response": [{"question": "2+3?", "answer": "5"}, {"query": "q", "response": "r", "history": [["a", "b"]]}],
    "openorca": [
        {"id": "cot.17", "system_prompt": "", "question": "2+3?", "response": "5"},
        {"id": "niv.9", "system_prompt": "You are concise.", "question": "Capital of Peru?", "response": "Lima"},
    ],
    "oasst": [TREE],
    "preference": [
        {"prompt": "p", "chosen": "good", "rejected": "bad"},
        {
            "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "good"}],
            "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "bad"}],
        },
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "good"},
            "rejected": {"from": "gpt", "value": "bad"},
        },
    ],
    "openai_preference": [
        {
            "input": {"messages": [{"role": "user", "content": "q é"}], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [{"role": "assistant", "content": "good"}],
            "non_preferred_output": [{"role": "assistant", "content": "bad"}],
        }
    ],
    "gemini": [
        {
            "contents": [{"role": "user", "parts": [{"text": "q é"}]}, {"role": "model", "parts": [{"text": "a"}]}],
            "systemInstruction": {"parts": [{"text": "s"}]},
        }
    ],
    "segments": [
        {"segments": [{"label": False, "text": "<s>q "}, {"label": True, "text": "a é</s>"}]},
        {"segments": [{"label": True, "text": "a "}, {"label": False, "text": "b "}, {"label": True, "text": "c"}]},
    ],
    "classification": [{"sentence": "a warm , patient film ", "label": 1, "idx": 0}, {"text": "t", "label": "neg"}],
}
assert ROWS.keys() == FORMATS.keys()


def read(row: Any, wanted: str = "auto") -> tuple[str, list[Conversation], tuple[str, ...]]:
    """The format, the conversations and the rules of a row that can be read."""
    name, result = convert(row, 7, wanted)
    assert not isinstance(result, list), result
    noted = result if isinstance(result, Noted) else Noted(result if isinstance(result, tuple) else (result,))
    assert all(conversation.line == 7 for conversation in noted.conversations)
    return name, list(noted.conversations), noted.rules


def good(row: Any, wanted: str = "auto") -> Conversation:
    """The one conversation of a row."""
    _, (conversation,), _ = read(row, wanted)
    return conversation


def bad(row: Any, wanted: str = "auto") -> list[RowProblem]:
    """All that is wrong with a row."""
    _, result = convert(row, 7, wanted)
    assert isinstance(result, list) and result, result
    assert all(problem.line == 7 and problem.what for problem in result)
    return result


def reasons(row: Any, wanted: str = "auto") -> list[str]:
    """The reasons of all that is wrong with a row."""
    return [problem.reason for problem in bad(row, wanted)]


def turns(conversation: Conversation) -> list[tuple[str, str]]:
    """Who says what."""
    return [(message.role, message.content) for message in conversation.messages]
