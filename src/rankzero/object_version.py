"""By which of the facts that a store tells of a file another content of it is known. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS = ("ETag", "etag", "blob_id", "md5Hash", "checksum", "Last-Modified", "LastModified", "mtime", "created")


def object_version(facts: Mapping[str, Any]) -> str:
    """Changes with the content; empty where the store, by what fsspec tells of it, does not say."""
    return next((str(facts[key]) for key in _KEYS if facts.get(key)), "")
