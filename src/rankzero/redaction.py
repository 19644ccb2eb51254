"""Values of secrets taken out of what is written: logs, errors, messages. Knows them by name or by shape."""

from __future__ import annotations

from collections.abc import Mapping

from rankzero.spec.secret_names import HIDDEN, holds_secret, looks_secret, without_secrets

SHORTEST_SECRET = 6
"""Shorter values are words that may stand anywhere."""


class Redactor:
    """Replaces the values of variables that are secrets by their name or by their shape, and whatever else in a text
    has such a shape: a password in a URL comes from no variable."""

    def __init__(self, env: Mapping[str, str]) -> None:
        secrets = [value for name, value in env.items() if looks_secret(name) or holds_secret(value)]
        # Logs are read line by line, so each line of a key that has several is a secret of its own.
        values = {part.strip() for value in secrets for part in (value, *value.splitlines())}
        self._values = sorted((value for value in values if len(value) >= SHORTEST_SECRET), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return without_secrets(text)
