"""Images in a column of a Parquet file, by the name or the id beside them. Imports pyarrow only when used.

The name comes from `file_name`, `filename`, `image_path` or `path`; else, for COCO, from the integer `image_id`,
`cocoid` or `id`; else from the path that is stored with the image. The names are read first: row groups without a
wanted image are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankzero.data.images import coco
from rankzero.data.images.layout import coco_key
from rankzero.datasets.images.stores import Fetched, Seen, member_key
from rankzero.errors import ConfigError, DataError

_NAMES = ("file_name", "filename", "image_path", "path")
_IDS = ("image_id", "cocoid", "id")
_IMAGES = ("image", "img", "jpg", "bytes")
_ROWS = 16
"""Rows read at a time: images are large."""


class ParquetStore:
    """One Parquet file."""

    def __init__(self, path: Path, source: str = "") -> None:
        self.label, self.seen = f"{source}={path}" if source else str(path), Seen()
        self._path, self._source = path, source

    def fetch(self, wanted: Mapping[str, str]) -> Iterator[Fetched]:
        """Rows by name or id; of two with one name the first."""
        parquet, failures = _pyarrow()
        left = set(wanted)
        try:
            file = parquet.ParquetFile(self._path)
            image, name = self._columns(file.schema_arrow)
            for group in range(file.num_row_groups):
                if not left:
                    return
                names = file.read_row_group(group, columns=[name]).column(0).to_pylist()
                keys = [self._key(value) for value in names]
                self._note(names, keys, left)
                if not left.isdisjoint(keys):
                    yield from self._images(file, group, image, keys, left)
        except (failures, OSError) as error:
            what = f"the Parquet file cannot be read: {str(error).splitlines()[0]}"
            raise DataError(what, where=str(self._path), hint="was the download cut off?") from error

    def _columns(self, schema: Any) -> tuple[str, str]:
        """The column of the images, and the one that names them."""
        image = next((column for column in _IMAGES if column in schema.names), None)
        candidates = [*_NAMES, *(_IDS if self._source == coco.SOURCE else ())]
        name = next((column for column in candidates if column in schema.names), None)
        if image is not None and name is None:
            inner = schema.field(image).type
            if hasattr(inner, "get_field_index") and inner.get_field_index("path") >= 0:
                name = f"{image}.path"
        if image is None or name is None:
            missing = "images" if image is None else "their names"
            hint = f"images are looked for in {', '.join(_IMAGES)}, names in {', '.join(candidates)} and image.path"
            what = f"no column with {missing}: the columns are {', '.join(schema.names)}"
            raise DataError(what, where=str(self._path), hint=hint)
        return image, name

    def _key(self, value: object) -> str | None:
        """A name may be the image's struct with its path inside, for a nested column comes as one."""
        if isinstance(value, Mapping):
            value = value.get("path")
        if isinstance(value, int) and not isinstance(value, bool):
            return coco_key(value) if self._source == coco.SOURCE else None
        return member_key(value, self._source) if isinstance(value, str) else None

    def _note(self, names: list[object], keys: list[str | None], left: set[str]) -> None:
        for name, key in zip(names, keys, strict=True):
            self.seen.note(str(name), used=key in left)
            self.seen.unnamed += key is None

    def _images(self, file: Any, group: int, column: str, keys: list[str | None], left: set[str]) -> Iterator[Fetched]:
        row = 0
        for batch in file.iter_batches(_ROWS, row_groups=[group], columns=[column]):
            for value in batch.column(0):
                key = keys[row]
                row += 1
                if key is None or key not in left:
                    continue
                data = value.as_py()
                if isinstance(data, Mapping):
                    data = data.get("bytes")
                if isinstance(data, bytes):
                    left.discard(key)
                    yield Fetched(key, data=data)


def _pyarrow() -> tuple[Any, type[Exception]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        hint = 'pip install "rankzero[data]"'
        raise ConfigError("Parquet needs pyarrow, which is not installed", hint=hint) from error
    return parquet, pyarrow.ArrowException
