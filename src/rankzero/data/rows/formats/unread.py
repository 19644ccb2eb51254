"""Keys inside turns that say something and that nothing reads: of their parts, calls and images. Knows what is read
there; nothing of what it means.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson

from rankzero.data.rows.formats.format import SYSTEM_KEYS

Reads = Mapping[str, "Reads"]
"""The keys that are read of an object, each with those of the objects under it; none: what is there is read whole."""

_WHOLE: Reads = {}


def _keys(*names: str, **inner: Reads) -> Reads:
    return dict.fromkeys(names, _WHOLE) | inner


_CALL = _keys("id", "type", "name", "arguments", "parameters", function=_keys("name", "arguments", "parameters"))
_TEXT = _keys("type", "text")
_IMAGE = _keys("type", "image", "url", "path", "media_type", "data")
_FILE = _keys("mimeType", "mime_type", "data", "fileUri", "file_uri")
_THOUGHT = _keys("type", "value", thinking=_TEXT, reasoning=_TEXT, text=_TEXT)
_TYPED: Mapping[str, Reads] = {
    "tool_use": _keys("type", "id", "name", "input"),
    "tool_result": _keys("type", "tool_use_id", content=_TEXT),
    "tool_call": _keys("type", value=_CALL),
    "function_call": _keys("type", value=_CALL),
    "thinking": _THOUGHT,
    "reasoning": _THOUGHT,
    **dict.fromkeys(("text", "input_text", "output_text"), _keys("type", "text", "value")),
    **dict.fromkeys(
        ("image", "image_url", "input_image"),
        _keys("type", "path", image_url=_IMAGE, image=_IMAGE, url=_IMAGE, source=_IMAGE, value=_IMAGE),
    ),
}
_USE, _RESULT = _keys("toolUseId", "name", "input"), _keys("toolUseId", content=_TEXT)
_ASKED, _RESPONSE = _keys("id", "name", "args"), _keys("id", "name", "response")
_UNTYPED = _keys(
    "text",
    "thought",
    reasoningContent=_keys(reasoningText=_keys("text")),
    toolUse=_USE,
    tool_use=_USE,
    toolResult=_RESULT,
    tool_result=_RESULT,
    functionCall=_ASKED,
    function_call=_ASKED,
    functionResponse=_RESPONSE,
    function_response=_RESPONSE,
    inlineData=_FILE,
    inline_data=_FILE,
    fileData=_FILE,
    file_data=_FILE,
    image=_keys("format", source=_keys("bytes", s3Location=_keys("uri"))),
)


def unread_inside(item: Mapping[str, Any]) -> set[str]:
    """The unread keys of what a turn holds in parts and of its calls, by their paths."""
    found: set[str] = set()
    for key, value in item.items():
        if key in ("content", "parts") and isinstance(value, list):
            parts = [part for part in value if isinstance(part, Mapping)]
            found.update(f"{key}[].{one}" for part in parts for one in unread_of(part, _reads(part)))
        elif key in ("tool_calls", "function_call") and value:
            found.update(_below(key, _json(value), _CALL))
    return found


def unread_around(row: Mapping[str, Any], reads: Collection[str]) -> set[str]:
    """The unread keys of what stands beside a row's turns in objects: a system prompt, an answer with its place."""
    beside = (key for key in _BESIDE if key in row and key in reads)
    return {one for key in beside for one in _below(key, row[key], _BESIDE[key])}


_BESIDE: Mapping[str, Reads] = {
    **dict.fromkeys(SYSTEM_KEYS, _keys("role", "type", "text", parts=_TEXT)),
    "answers": _keys("text", "answer_start"),
}


def _json(value: object) -> object:
    """JSON in a string, as columns have it that can hold only text."""
    try:
        return orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError:
        return value


def _reads(part: Mapping[str, Any]) -> Reads:
    name = part.get("type")
    return _TYPED.get(name, _WHOLE) if isinstance(name, str) else _UNTYPED


def unread_of(value: Mapping[str, Any], reads: Reads) -> Iterable[str]:
    """The unread keys of an object and of what is in it, by their paths."""
    for key, inner in value.items() if reads else ():
        if key not in reads:
            if inner is not None and inner not in ("", [], {}):
                yield str(key)
        elif reads[key]:
            yield from _below(key, inner, reads[key])


def _below(key: str, value: object, reads: Reads) -> Iterable[str]:
    if isinstance(value, Mapping):
        yield from (f"{key}.{one}" for one in unread_of(value, reads))
    for item in value if isinstance(value, list) else ():
        # Answers of tools are texts, or JSON that is read whole.
        if isinstance(item, Mapping) and (reads is not _TEXT or isinstance(item.get("text"), str)):
            yield from (f"{key}[].{one}" for one in unread_of(item, reads))
