"""Secrets, written and read. Values go to the server, and from it to who asks: none is kept, said or in an error."""

from __future__ import annotations

import base64

from rankzero.launch.backends.kubernetes.api import MERGE_PATCH, Api
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import SECRET
from rankzero.launch.labels import Manifest
from rankzero.launch.untyped_json import text

_PARAMS = {"fieldManager": "rankzero", "fieldValidation": "Strict"}
TRIES = 3


def put_secret(api: Api, manifest: Manifest) -> str:
    """Merge the keys into the Secret of that name, or create it. Raises ApiError without any value in it.

    Not server-side apply: that would take away the keys that an earlier command has set.
    """
    name, values = str(manifest["metadata"]["name"]), _values(manifest)

    def hide(words: str) -> str:
        for value in values:
            words = words.replace(value, "***")
        return words

    keys = {part: manifest[part] for part in ("metadata", "data")}
    for attempt in range(1, TRIES + 1):  # somebody may create or delete it in between
        try:
            api.write("PATCH", SECRET, name, keys, params=_PARAMS, content_type=MERGE_PATCH, hide=hide)
            return "updated"
        except ApiError as error:
            if error.status != 404 or attempt == TRIES:
                raise
        try:
            api.write("POST", SECRET, name, manifest, params=_PARAMS, hide=hide)
            return "created"
        except ApiError as error:
            if error.status != 409:
                raise
    raise AssertionError("the last attempt returns or raises")


def secret_value(api: Api, name: str, key: str) -> str:
    """What a Secret has under a key; nothing where either is not there. Raises ApiError."""
    there = api.read(SECRET, name)
    encoded = text(there or {}, "data", key)
    return base64.b64decode(encoded).decode()


def _values(manifest: Manifest) -> list[str]:
    """Encoded and plain, the longest first."""
    encoded = [str(value) for value in manifest["data"].values() if value]
    plain = [base64.b64decode(value).decode(errors="replace") for value in encoded]
    return sorted({*encoded, *plain}, key=len, reverse=True)
