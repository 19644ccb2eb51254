"""Secrets, written and read. Values go to the server, and from it to who asks: none is kept, said or in an error."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence

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
_UNAPPLIED = "the server rejected our request due to an error in our request"
"""All that the API says of a JSON Patch that does not apply, whichever operation it was. What a webhook refuses with
the same status has other words."""


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

    for attempt in range(1, TRIES + 1):  # somebody may create or delete it in between
        try:
            _merge(api, manifest, hide)
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


def _merge(api: Api, manifest: Manifest, hide: Callable[[str], str]) -> None:
    name, run = str(manifest["metadata"]["name"]), label(manifest, labels.RUN)
    if run is None:
        keys = {part: manifest[part] for part in ("metadata", "data")}
        api.write("PATCH", SECRET, name, keys, params=_PARAMS, content_type=MERGE_PATCH, hide=hide)
        return
    for patch in _only_of(run, manifest["data"]):
        try:
            api.write("PATCH", SECRET, name, patch, params=_PARAMS, content_type=JSON_PATCH, hide=hide)
            return
        except ApiError as error:
            if error.status != 422 or error.causes or not error.refusal.message.startswith(_UNAPPLIED):
                raise
    raise ConfigError([taken(manifest)])


def _only_of(run: str, data: Manifest) -> tuple[Sequence[Manifest], Sequence[Manifest]]:
    """The server itself looks whose it is: many who may write Secrets may not read any. The second is for one without
    keys, which has no place that the first could add them to."""
    mine = {"op": "test", "path": f"/metadata/labels/{labels.RUN.replace('/', '~1')}", "value": run}
    empty = {"op": "test", "path": "/data", "value": None}
    keys = [{"op": "add", "path": f"/data/{key}", "value": value} for key, value in data.items()]
    return [mine, *keys], [mine, empty, {"op": "add", "path": "/data", "value": data}]


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
