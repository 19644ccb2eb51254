"""Batches of columns as rows of JSON. Knows Arrow's types; nothing of files or of what columns mean."""

from __future__ import annotations

import datetime
import decimal
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import IO, Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from rankzero.data.read.containers.image_bytes import embed
from rankzero.data.read.containers.stream import DamagedError, Packing, Place, blocks, opened
from rankzero.data.rows.chunks import Said
from rankzero.data.rows.problems import RowProblem
from rankzero.errors import StorageError
from rankzero.wording import first_line

BATCH_ROWS = 1024
"""Rows as Python objects at a time."""

PICTURED_ROWS = 16
"""The same of rows that hold images: megabytes each."""

UNREAD = ("audio", "video")
"""Columns whose bytes are left out: nothing reads them, and rows that have them are refused."""

_COPY_BYTES = 1 << 20
Result = TypeVar("Result")


@contextmanager
def unpacked_file(path: Place, packing: Packing | None) -> Iterator[IO[bytes]]:
    """The file, unpacked first where it is packed as a whole: such files are not read from their beginning alone."""
    if packing is None:
        with opened(path) as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        stream = blocks(path, packing, _COPY_BYTES)
        while block := next(stream, b""):
            try:
                copy.write(block)
            except OSError as error:
                hint = "unpack the file yourself, or set TMPDIR to a directory with room"
                raise StorageError(f"unpacking failed: {error.strerror}", where=str(path), hint=hint) from error
        yield copy


def reading(step: Callable[[], Result], path: Place, kind: str) -> Result:
    """What a step of reading gives. Raises DamagedError, and StorageError where the volume fails."""
    try:
        return step()
    except (OSError, pa.ArrowException) as error:
        if getattr(error, "errno", None):
            raise StorageError(f"reading failed: {error}", where=str(path)) from error
        what = f"the {kind} data is damaged: {first_line(error)}"
        raise DamagedError("damaged file", what, "copy or download the file again") from error


def require_distinct(names: Iterable[str]) -> None:
    """Raise DamagedError where two columns have one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DamagedError("header", f"two columns are named {twice[0]!r}", "which of the two is meant?")


def rows_of_batch(batch: Any, first: int, json_is_text: bool = False) -> Iterator[tuple[bytes, Said | None]]:
    """The rows of a batch as JSON, each with the rules that changed it, if any did. Where one value cannot be a Python
    object, its row alone is a problem. `json_is_text`: columns of JSON are not what they hold."""
    names = batch.schema.names
    try:
        columns = [_as_text(column) for column in batch.columns]
        values = [column.to_pylist() for column in columns]
    except (ValueError, OverflowError, pa.ArrowException):
        if len(batch) > 1:
            for index in range(len(batch)):
                yield from rows_of_batch(batch.slice(index, 1), first + index, json_is_text)
            return
        yield b"", _value_problem(first, names, batch.columns)
        return
    parsers = [(place, parse) for place, column in enumerate(columns) if (parse := _parser(column.type))]
    for place, parse in () if json_is_text else parsers:
        values[place] = [_each(parse, value) for value in values[place]]
    tidiers = [(place, tidy) for place, column in enumerate(columns) if (tidy := _tidier(column.type))]
    finders = [(place, find) for place, column in enumerate(columns) if (find := _unreal_finder(column.type))]
    for number, row in enumerate(zip(*values, strict=True), first):
        made_up = [tidy(row[place]) for place, tidy in tidiers if row[place] is not None]
        try:
            line = orjson.dumps(dict(zip(names, row, strict=True)), default=_plain)
            unreal = any(find(row[place]) for place, find in finders if row[place] is not None)
            rules = ((MADE_UP,) if any(made_up) else ()) + ((NO_NUMBER,) if unreal else ())
            yield line, rules or None
        except TypeError as error:
            hint = "write the column as text or numbers, or leave it out of the file"
            yield repr(row).encode(errors="replace"), RowProblem(number, "value without JSON", str(error), hint)


def _parser(kind: Any) -> Callable[[Any], Any] | None:
    """What puts into a value of this type the JSON that it holds as text, as the library datasets keeps what has a type
    of its own in each row (`Json()`); None where there is none."""
    if isinstance(kind, pa.BaseExtensionType):
        return _json if kind.extension_name == "arrow.json" else _parser(kind.storage_type)
    if pa.types.is_map(kind):
        of_item = _parser(kind.item_type)
        return None if of_item is None else lambda pairs: [(key, _each(of_item, item)) for key, item in pairs]
    if _is_list(kind):
        inner = _parser(kind.value_type)
        return None if inner is None else lambda values: [_each(inner, one) for one in values]
    if not pa.types.is_struct(kind):
        return None
    members = {field.name: parse for field in kind if (parse := _parser(field.type))}
    if not members:
        return None
    return lambda value: value | {name: _each(parse, value[name]) for name, parse in members.items()}


def _each(parse: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else parse(value)


def _json(text: str | bytes) -> orjson.Fragment:
    """As it is, in the line of its row: it may be over several, and in a string of JSON is no line break."""
    plain = text if isinstance(text, bytes) else text.encode()
    return orjson.Fragment(plain.replace(b"\r", b" ").replace(b"\n", b" "))


def _is_list(kind: Any) -> bool:
    types = pa.types
    views = (types.is_list_view, types.is_large_list_view)
    return any(is_one(kind) for is_one in (types.is_list, types.is_large_list, types.is_fixed_size_list, *views))


MADE_UP = "null members of tool calls and tools, which a table's columns make up, are left out"

_ARGUMENTS = frozenset({"arguments", "parameters", "input", "args", "input_schema", "inputSchema"})
_DEFINING = frozenset({"parameters", "input_schema", "inputSchema"})
"""What a function's definition has beside its name."""


def _tidier(kind: Any, inside: bool = False) -> Callable[[Any], bool] | None:
    """What leaves out null members of a value of this type, wherever calls and definitions of functions are in it, and
    says whether there were any; None where there can be none.

    A column has one type: each row's arguments have the members of all rows. Which nulls were in the data is not known.
    """
    if _is_list(kind):
        inner = _tidier(kind.value_type, inside)
        return None if inner is None else lambda values: any([inner(one) for one in values if one is not None])
    if not pa.types.is_struct(kind):
        return None
    inside = inside or _defines(kind)
    calls = any(field.name == "name" for field in kind)
    members = {
        field.name: tidy
        for field in kind
        if (tidy := _tidier(field.type, inside or (calls and field.name in _ARGUMENTS)))
    }

    def tidied(value: dict[str, Any]) -> bool:
        empty = [name for name, member in value.items() if member is None] if inside else []
        for name in empty:
            del value[name]
        found = [tidy(value[name]) for name, tidy in members.items() if value.get(name) is not None]
        return bool(empty) or any(found)

    return tidied if inside or members else None


NO_NUMBER = "NaN or infinity in an object of a table is null"


def _unreal_finder(kind: Any, inside: bool = False) -> Callable[[Any], bool] | None:
    """What says whether a value of this type has an object with a number that JSON does not have; None where it cannot.
    A number in a column of its own is not asked about: NaN is how tables have what is missing."""
    if inside and pa.types.is_floating(kind):
        return _is_unreal
    if _is_list(kind):
        inner = _unreal_finder(kind.value_type, inside)
        return None if inner is None else lambda values: any(inner(one) for one in values if one is not None)
    if not pa.types.is_struct(kind):
        return None
    members = {field.name: find for field in kind if (find := _unreal_finder(field.type, inside=True))}
    if not members:
        return None
    return lambda value: any(find(value[name]) for name, find in members.items() if value.get(name) is not None)


def _is_unreal(value: float) -> bool:
    return not math.isfinite(value)


def _defines(kind: Any) -> bool:
    """Whether it is the definition of a function, or of a tool that is one."""
    types = {field.name: field.type for field in kind}
    function = types.get("function")
    return ("name" in types and not _DEFINING.isdisjoint(types)) or (
        function is not None and pa.types.is_struct(function) and _defines(function)
    )


def _as_text(column: Any) -> Any:
    """Times as ISO text, which keeps their nanoseconds, and years that Python has not; those inside of other values
    too. Where the time zone is not known here (`utc`, `tzlocal()`), in UTC."""
    if pa.types.is_dictionary(column.type) and _text_type(column.type.value_type) != column.type.value_type:
        column = column.dictionary_decode()
    if _text_type(column.type) == column.type:
        return column
    column = _without_views(column)
    wanted = _text_type(column.type)
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        return column.cast(_with_times(column.type, _in_utc)).cast(wanted)


def _without_views(column: Any) -> Any:
    """The column with lists in place of views of lists: pyarrow casts these to lists of other rows."""
    kind = column.type
    if not _has_views(kind) or pa.types.is_union(kind):
        return column
    if pa.types.is_struct(kind):
        members = [_without_views(column.field(index)) for index in range(kind.num_fields)]
        return pa.StructArray.from_arrays(members, [field.name for field in kind], mask=column.is_null())
    if pa.types.is_map(kind):
        ends = column.offsets.to_pylist()
        keys, items = (of_all.slice(ends[0], ends[-1] - ends[0]) for of_all in (column.keys, column.items))
        starts = pa.array([end - ends[0] for end in ends], pa.int32())
        return pa.MapArray.from_arrays(starts, _without_views(keys), _without_views(items), mask=column.is_null())
    lengths = pc.list_value_length(column).to_pylist()
    starts = pa.array(accumulate((length or 0 for length in lengths), initial=0), pa.int64())
    return pa.LargeListArray.from_arrays(starts, _without_views(column.flatten()), mask=column.is_null())


def _has_views(kind: Any) -> bool:
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return True
    return any(_has_views(kind.field(index).type) for index in range(kind.num_fields))


def _text_type(kind: Any) -> Any:
    """The type with text in place of times."""
    return _with_times(kind, lambda _time: pa.string())


def _in_utc(time: Any) -> Any:
    return pa.timestamp(time.unit, "UTC") if pa.types.is_timestamp(time) and time.tz is not None else time


def _with_times(kind: Any, other: Callable[[Any], Any]) -> Any:
    """The type with other types in place of times."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_time(kind):
        return other(kind)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_with_times(field.type, other)) for field in kind])
    if types.is_map(kind):
        item = kind.item_field.with_type(_with_times(kind.item_type, other))
        return pa.map_(_with_times(kind.key_type, other), item)
    if not _is_list(kind):
        return kind
    value = kind.value_field.with_type(_with_times(kind.value_type, other))
    if types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return kind if value.type == kind.value_type else pa.large_list(value)
    return pa.large_list(value) if types.is_large_list(kind) else pa.list_(value)


def _value_problem(number: int, names: list[str], columns: list[Any]) -> RowProblem:
    for name, column in zip(names, columns, strict=True):
        try:
            _as_text(column).to_pylist()
        except (ValueError, OverflowError, pa.ArrowException) as error:
            what = f"column {name!r} cannot be read: {first_line(error)}"
            return RowProblem(number, "value without JSON", what, "write the column as text")
    return RowProblem(number, "value without JSON", "the row cannot be read")


def _plain(value: object) -> object:
    """What JSON has for a type that it does not have. Bytes that are text are text: older writers do not say so."""
    if isinstance(value, bytes):
        if image := embed(value):
            return image
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"bytes": len(value)}  # not null, which a row without an image has
    if isinstance(value, (decimal.Decimal, datetime.timedelta)):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no JSON")
