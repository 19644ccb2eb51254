"""Functions that a model may call, and its calls of them, as OpenAI writes them. Knows nothing of templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rankzero.data.rows.formats.format import Row
from rankzero.data.rows.formats.json_text import read_text
from rankzero.data.rows.problems import RowProblem, kind

Call = Mapping[str, Any]

TOOL_KEYS = ("tools", "functions", "toolConfig")
"""Where rows have the functions that may be called."""

_TOOL_SHAPE = '[{"type": "function", "function": {"name": "…", "parameters": {…}}}]'
_CALL_SHAPE = '[{"type": "function", "function": {"name": "…", "arguments": "{…}"}}]'


def read_tools(row: Row, line: int) -> tuple[tuple[Mapping[str, Any], ...], list[RowProblem]]:
    """The row's tools, under whichever of their names, each as {"type": "function", "function": {…}}."""
    given = [key for key in TOOL_KEYS if row.get(key)]
    if len(given) > 1:
        what = f"the row has {' and '.join(f'`{key}`' for key in given)}"
        return (), [RowProblem(line, "tools in two places", what, "keep `tools`")]
    key = given[0]
    value = decoded(row[key])
    if isinstance(value, Mapping) and isinstance(value.get("tools"), list):  # Bedrock's toolConfig
        value = value["tools"]
    if isinstance(value, list):
        value = [tool for item in value for tool in _declared(item)]
    if not isinstance(value, list):
        what = f"`{key}` is {kind(value)}, not a list"
        return (), [RowProblem(line, "bad tools", what, f"expected: {_TOOL_SHAPE}")]
    found: list[Mapping[str, Any]] = []
    for index, item in enumerate(value):
        function = item.get("function", item) if isinstance(item, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
            what = f"{key}[{index}] is not a function with a name"
            return (), [RowProblem(line, "bad tools", what, f"expected: {_TOOL_SHAPE}")]
        found.append(item if "function" in item else {"type": "function", "function": dict(item)})
    return tuple(found), []


def _declared(item: object) -> list[object]:
    """The functions of one item, which may hold several (Gemini), in the form that OpenAI gives them."""
    if not isinstance(item, Mapping):
        return [item]
    several = item.get("functionDeclarations", item.get("function_declarations"))
    if isinstance(several, list):
        return several
    one = item.get("toolSpec", item)
    if not isinstance(one, Mapping) or not ({"input_schema", "inputSchema"} & one.keys()):
        return [one]
    schema = one.get("input_schema", one.get("inputSchema"))
    schema = schema["json"] if isinstance(schema, Mapping) and schema.keys() == {"json"} else schema
    rest = {key: value for key, value in one.items() if key not in ("input_schema", "inputSchema")}
    return [{**rest, "parameters": schema}]


def read_calls(value: object, line: int, where: str) -> tuple[tuple[Call, ...], list[RowProblem]]:
    """A turn's calls, their arguments decoded."""
    value = decoded(value)
    items = value if isinstance(value, list) else [value]
    calls: list[Call] = []
    for index, item in enumerate(items):
        at = f"{where}[{index}]" if isinstance(value, list) else where
        call = _read_call(item, line, at)
        if isinstance(call, RowProblem):
            return (), [call]
        calls.append(call)
    return tuple(calls), []


def _read_call(item: object, line: int, where: str) -> Call | RowProblem:
    function = item.get("function", item) if isinstance(item, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        what = f"{where} is not the call of a function with a name"
        return RowProblem(line, "bad tool call", what, f"expected: {_CALL_SHAPE}")
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = read_text(arguments)
        except orjson.JSONDecodeError as error:
            what = f"{where}.arguments is not valid JSON: {error.msg} at column {error.colno}"
            return RowProblem(line, "tool call arguments are not JSON", what, 'a call without arguments has "{}"')
    if not isinstance(arguments, dict):
        what = f"{where}.arguments is {kind(arguments)}, not an object"
        return RowProblem(line, "tool call arguments are not an object", what, 'a call without arguments has "{}"')
    call: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if isinstance(item.get("id"), str) and item["id"]:
        call = {"id": item["id"], **call}
    return call


def decoded(value: object) -> object:
    """JSON inside a string, as columns that can hold only text have it. Raises TwiceReadError."""
    if isinstance(value, str):
        try:
            return read_text(value)
        except orjson.JSONDecodeError:
            return value
    return value
