"""Secrets, written and read. Values go to the server, and from it to who asks: none is kept, said or in an error."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from rankzero.errors import ConfigError
from rankzero.launch import labels
from rankzero.launch.backends.kubernetes.api import JSON_PATCH, MERGE_PATCH, Api
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import SECRET, label
from rankzero.launch.backends.kubernetes.steps import taken
from rankzero.launch.labels import Manifest
from rankzero.launch.untyped_json import text

_PARAMS = {"fieldManager": "rankzero", "fieldValidation": "Strict"}
TRIES = 3


def put_secret(api: Api, manifest: Manifest) -> str:
    """Merge the keys into the Secret of that name, or create it. One with a run's label is merged into one of that run
    alone. Raises ApiError without any value in it, or ConfigError for a Secret of somebody else.

    Not server-side apply: that would take away the keys that an earlier command has set.
    """
    name, values = str(manifest["metadata"]["name"]), _values(manifest)

    def hide(words: str) -> str:
        for value in values:
            words = words.replace(value, "***")
        return words

    run = label(manifest, labels.RUN)
    keys = {part: manifest[part] for part in ("metadata", "data")} if run is None else _only_of(run, manifest["data"])
    kind = MERGE_PATCH if run is None else JSON_PATCH
    for attempt in range(1, TRIES + 1):  # somebody may create or delete it in between
        try:
            api.write("PATCH", SECRET, name, keys, params=_PARAMS, content_type=kind, hide=hide)
            return "updated"
        except ApiError as error:
            if run is not None and error.status == 422 and not error.causes:
                raise ConfigError([taken(manifest)]) from error
            if error.status != 404 or attempt == TRIES:
                raise
        try:
            api.write("POST", SECRET, name, manifest, params=_PARAMS, hide=hide)
            return "created"
        except ApiError as error:
            if error.status != 409:
                raise
    raise AssertionError("the last attempt returns or raises")


def _only_of(run: str, data: Manifest) -> Sequence[Manifest]:
    """The server itself looks whose it is: many who may write Secrets may not read any."""
    mine = {"op": "test", "path": f"/metadata/labels/{labels.RUN.replace('/', '~1')}", "value": run}
    return [mine, *({"op": "add", "path": f"/data/{key}", "value": value} for key, value in data.items())]


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
