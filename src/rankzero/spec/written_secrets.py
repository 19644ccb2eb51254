"""Secrets that stand in a cluster.yaml, from which manifests and scripts are made. Pure.

What is looked at: the values of variables, by their names; free texts, by the shape of what is in them; passwords in
URLs, anywhere. A secret of no known shape under a name that does not tell is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankzero.errors import Problem
from rankzero.redaction import SHORTEST_SECRET, holds_password, looks_secret, shaped_like_secrets
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.texts import texts_in

_FREE_TEXT = re.compile(r"annotations\.|storage\.[^.]+\.url$|slurm\.(setup|options)\b|pod_patch\.")
"""Fields that take any text. Of what has the pattern of a name (claims, accounts, images, paths), no part is a token,
whatever it begins with."""
_SHELL = re.compile(r"slurm\.setup\[|pod_patch\..*\.(command|args)\[\d+\]$")
"""Fields in which variables may be set, as NAME=value."""
_SET_HERE = re.compile(
    r"""(?:^|[\s;&|(])(?P<name>[A-Z_][A-Z0-9_]*)=(?P<value>"[^"$`]*"|'[^']*'|[^\s;&|()$`'"]+)(?=[\s;&|)]|$)"""
)
"""A literal. What has a $ or a backtick in it the shell makes of something else."""
_NO_SECRET = re.compile(
    r"|true|false|yes|no|on|off|none|null"
    rf"|[+-]?[\d.]{{1,{SHORTEST_SECRET - 1}}}"
    r"|\$\([^()]+\)|\$\{[^{}]+\}|\{\{.*\}\}"
    r"|(?:~|\.{1,2})?/(?!\S*[a-z0-9]{30})[\w./@:~-]*"
    r"|[a-z][a-z0-9+.-]*://[^\s@?]+",
    re.IGNORECASE | re.DOTALL,
)
"""A switch, a small number, a reference, a path (of no part as long as a key), a URL without credentials; nothing."""
_PART = r"(?:(?:\d{1,3}x)?[A-Za-z][a-z]*(?:[A-Z][a-z]+)*|[A-Z]{1,12})\d{0,4}|\d{1,8}"
_NAME = re.compile(rf"(?:[spr]k-(?:{_PART})(?:[-_]+(?:{_PART}))*[-_]*|(?i:key)=(?:{_PART}))")
"""What begins as a key does and goes on as a name: of words and small numbers. Keys have long runs of digits and
letters instead."""
_READ_FROM_A_FILE = {"GOOGLE_APPLICATION_CREDENTIALS"}
"""Variables of which programs take nothing but a path, and show in errors what they cannot open."""


def is_secret(name: str, value: str) -> bool:
    """Whether a variable's value is a secret: by its name, where it is not plainly something else, or by its shape."""
    named = looks_secret(name) and _NO_SECRET.fullmatch(value) is None
    return named or _has_shape(value) or holds_password(value)


def secret_problems(spec: ClusterSpec) -> list[Problem]:
    """A problem for each text that is a secret, without the text. `env` has a rule of its own (`cluster_checks`)."""
    found = dict(_named_secrets(spec.pod_patch, "pod_patch"))
    for field, text in texts_in(spec.model_dump(mode="json", exclude={"env"})):
        named = [name for name, value in _set_in(text) if is_secret(name, value)] if _SHELL.match(field) else []
        if named:
            found[field] = named[0]
        elif holds_password(text) or (_FREE_TEXT.match(field) and _has_shape(text)):
            found.setdefault(field, "NAME")
    what = "this holds a secret, and is written into manifests and scripts"
    patched = {field: ", or valueFrom here" for field in found if field.startswith("pod_patch.")}
    return [
        Problem(what, field, f"take it out, and give it by {way_in(name, patched.get(field, ''))}")
        for field, name in found.items()
    ]


def way_in(variable: str, more: str = "") -> str:
    """How pods get what such a variable holds, and `more` of that way where it is by a variable."""
    if variable in _READ_FROM_A_FILE:
        return "a Secret that pod_patch mounts, with the path of its file here"
    return f"secrets: {{{variable}: {{name: NAME-OF-SECRET, key: KEY}}}}{more}"


def _has_shape(text: str) -> bool:
    return any(_NAME.fullmatch(word) is None for word in shaped_like_secrets(text))


def _set_in(line: str) -> Iterator[tuple[str, str]]:
    """Variables that a line of shell sets to literals."""
    for match in _SET_HERE.finditer(line):
        yield match["name"], match["value"].strip("'\"")


def _named_secrets(value: object, field: str) -> Iterator[tuple[str, str]]:
    """Fields of the literal values of variables that hold secrets, with their names."""
    if isinstance(value, dict):
        name, text = value.get("name"), value.get("value")
        if isinstance(name, str) and isinstance(text, str) and is_secret(name, text):
            yield f"{field}.value", name
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, one in inner:
        yield from _named_secrets(one, f"{field}[{key}]" if isinstance(key, int) else f"{field}.{key}")
