"""Secrets: which names and values are some, and their values taken out of what is written. Pure; keeps no value that it
was not given an environment of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_SECRET_WORDS = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY", "PAT"}
_OF_ITS_PLACE = {"PATH", "FILE", "DIR", "LOCATION", "NAME", "URL", "URI", "ID", "ENDPOINT", "HOST", "PROVIDER", "TYPE"}
_OF_ITS_MEASURE = {"NUM", "COUNT", "SIZE", "LENGTH", "LIMIT", "VERSION"}
_OF_ITS_TIME = {"TTL", "EXPIRY", "EXPIRATION", "TIMEOUT", "SECONDS", "MINUTES", "HOURS", "DAYS"}
_NOT_THE_VALUE = _OF_ITS_PLACE | _OF_ITS_MEASURE | _OF_ITS_TIME
_KEYS = re.compile(r"(^|_)(API|ACCESS|PRIVATE|SECRET|ACCOUNT|AUTH|ENCRYPTION|SIGNING|SSH|WANDB|LANGFUSE|OPENAI)_KEY$")


def looks_secret(name: str) -> bool:
    """Whether a variable or field of this name holds a secret: HF_TOKEN does, TOKENIZERS_PARALLELISM does not."""
    upper = re.sub(r"[^A-Z0-9]+", "_", name.upper())
    words = upper.strip("_").split("_")
    if words[-1] in _NOT_THE_VALUE:
        return False
    return bool(_SECRET_WORDS & set(words)) or _KEYS.search(upper) is not None


_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}|\b(?:sk|pk|rk)-[A-Za-z0-9_-]{20,}|\b(?:gh[pousr]_|github_pat_|glpat-|npm_)[A-Za-z0-9_-]{16,}"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9._-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----)?"
    r"|(?<=[?&])(?i:X-Amz-(?:Signature|Credential|Security-Token)|X-Goog-(?:Signature|Credential)|sig|signature"
    r"|(?:access_|auth_|api_)?(?:token|key))=[^&\s'\"#]+",
    re.DOTALL,
)
"""Tokens of the Hub, of model and code hosts and of clouds, web tokens, private keys, signatures in URLs."""
HIDDEN = "[hidden]"
_PASSWORD = re.compile(
    r"(://[^/\s:@'\"]*:)(?!(?:\[hidden\]|\$\([\w.-]+\)|\$\{\w+\}|\$[A-Z_][A-Z0-9_]*)@)[^/\s@'\"]+(?=@(?!sha256:))"
)
"""In a URL. A reference to a variable is none, nor the tag of an image before its digest."""


def holds_secret(value: str) -> bool:
    """Whether a value is a secret by its shape, whatever the name that it goes by."""
    return _SHAPES.search(value) is not None or holds_password(value)


def holds_password(text: str) -> bool:
    """Whether a URL in it has a password."""
    return _PASSWORD.search(text) is not None


def shaped_like_secrets(text: str) -> Iterator[str]:
    """The parts of a text that have the shape of a token, a key or a signature."""
    return (match.group() for match in _SHAPES.finditer(text))


def without_secrets(text: str) -> str:
    """The text with HIDDEN in the place of everything that is a secret by its shape."""
    return _PASSWORD.sub(rf"\1{HIDDEN}", _SHAPES.sub(HIDDEN, text))


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


_KEY_EDGE = re.compile(r"-----(BEGIN|END) [A-Z ]*PRIVATE KEY-----")
_OF_A_KEY = re.compile(r"\s*[A-Za-z0-9+/=]+\s*")


class LineRedactor:
    """A Redactor for the lines of one stream, in their order: a private key goes over several."""

    def __init__(self, redact: Redactor) -> None:
        self._redact, self._in_key = redact, False

    def __call__(self, line: str) -> str | None:
        """None: nothing is left of it."""
        was_in_key, edges = self._in_key, _KEY_EDGE.findall(line)
        if edges:
            self._in_key = edges[-1] == "BEGIN"
        if was_in_key and (edges or _OF_A_KEY.fullmatch(line)):
            return None
        return self._redact(line)
