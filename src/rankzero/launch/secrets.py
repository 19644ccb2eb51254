"""Secrets on their way from an env file or the environment into Kubernetes Secrets. Sends nothing, shows no value."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from rankzero.errors import ConfigError, Problem
from rankzero.hub_variables import other_names
from rankzero.launch import labels
from rankzero.launch.labels import Manifest
from rankzero.spec.cluster_checks import env_name_of
from rankzero.spec.cluster_spec import SecretRef

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}
LARGEST = 1024 * 1024
"""What a Secret may hold."""

Values = dict[str, SecretStr]


@dataclass(frozen=True, slots=True)
class Choice:
    """What goes where."""

    secrets: dict[str, Values]
    """Keys and values by the Secret's name."""
    missing: tuple[str, ...] = ()
    """Variables that cluster.yaml refers to and for which there was no value."""
    unused: tuple[str, ...] = ()
    """Variables that nothing refers to."""


def read_env_file(path: Path) -> Values:
    """The variables of a file of KEY=VALUE lines. Raises ConfigError that names lines, never what is in them."""
    where = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read it: {error.strerror or type(error).__name__}", where=where) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:  # its own text quotes the bytes
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError("not UTF-8", where=f"{where}:{line}", hint="save the file as UTF-8") from None
    return parse_env(text, where)


def parse_env(text: str, where: str) -> Values:
    """As read_env_file. Nothing is expanded: what a shell and other readers would take differently is refused."""
    values: Values = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.split("\n"), start=1):
        at = f"{where}:{number}"
        found = _parse_line(line.rstrip("\r"))
        if found is None:
            continue
        if isinstance(found, Problem):
            problems.append(Problem(found.what, at, found.hint))
        elif found[0] in values:
            problems.append(Problem(f"{found[0]} is there twice", at, "keep one of them"))
        else:
            values[found[0]] = SecretStr(found[1])
    if problems:
        raise ConfigError(problems)
    return values


def _parse_line(line: str) -> tuple[str, str] | Problem | None:
    rest = line.strip()
    if not rest or rest.startswith("#"):
        return None
    rest = re.sub(r"^export\s+", "", rest)
    name, equals, value = rest.partition("=")
    if not equals or not _NAME.fullmatch(name):
        return Problem("not KEY=VALUE", hint="one variable a line, no spaces around =, no dots or dashes in its name")
    parsed = _parse_value(value)
    if isinstance(parsed, Problem):
        return Problem(f"{name}: {parsed.what}", hint=parsed.hint)
    return name, parsed


def _parse_value(value: str) -> str | Problem:
    if value[:1] in ("'", '"'):
        return _parse_quoted(value)
    value = re.sub(r"(^|\s+)#.*$", "", value).strip()
    if re.search(r"[\s'\"`$\\]", value):
        return Problem("spaces, quotes, $ and \\ need quotes", hint="put single quotes around the value")
    return value


def _parse_quoted(value: str) -> str | Problem:
    quote, done = value[0], []
    i = 1
    while i < len(value) and value[i] != quote:
        if quote == '"' and value[i] == "\\":
            if value[i + 1 : i + 2] not in _ESCAPES:
                return Problem("an escape that is not known", hint=r"\n \t \r \" \\ \$ are, or use single quotes")
            done.append(_ESCAPES[value[i + 1]])
            i += 2
            continue
        if quote == '"' and value[i] in "$`":
            return Problem("$ and ` would be expanded by a shell", hint="put single quotes around the value")
        done.append(value[i])
        i += 1
    if i >= len(value):
        return Problem("the quote does not end on its line", hint=r"write a line break as \n in double quotes")
    if not re.fullmatch(r"\s*(#.*)?", value[i + 1 :]):
        return Problem("something follows the closing quote", hint="a comment starts with #")
    return "".join(done)


def from_environment(names: Collection[str], env: Mapping[str, str]) -> Values:
    """Those of `names` that are set, under whichever of their names."""
    found = {name: _set_as(env_name_of(name), env) for name in names}
    return {name: SecretStr(env[at]) for name, at in found.items() if at is not None}


def _set_as(name: str, given: Mapping[str, str | SecretStr]) -> str | None:
    """Under which name a variable is given: its own, in capitals or not, or another of the Hub's. The first that holds
    something is what the Hub's client reads in a pod; one that is empty stands only where none does."""
    spelled = [each for one in (name, *other_names(name)) for each in (one, one.lower()) if each in given]
    return next((one for one in spelled if not _is_empty(given[one])), next(iter(spelled), None))


def choose(refs: Mapping[str, SecretRef], values: Values, wanted: Collection[str] | None, source: str) -> Choice:
    """Which value goes to which key of which Secret, as cluster.yaml refers to them. Raises ConfigError.

    `wanted` are the variables asked for by name: all of them must be there. `hf_token` is HF_TOKEN, wherever it stands,
    and HUGGINGFACE_HUB_TOKEN is, where that holds nothing.
    """
    meant = {env_name_of(name): ref for name, ref in refs.items()}
    taken = {name: at for name in meant if (at := _set_as(name, values)) is not None}
    given = {name: values[at] for name, at in taken.items()}
    asked = list(meant) if wanted is None else [env_name_of(name) for name in wanted]
    problems = [
        Problem(f"{name} is not set", source, "set it there, or leave it out")
        for name in asked
        if wanted is not None and name not in given
    ]
    problems += [Problem(f"{name} is empty", source) for name in asked if name in given and _is_empty(given[name])]
    found: dict[str, Values] = {}
    for name in asked:
        if name in given:
            found.setdefault(meant[name].name, {})[meant[name].key] = given[name]
    if not found and not problems:
        names = ", ".join(refs) or "none at all"
        problems.append(Problem("there is nothing in it that cluster.yaml refers to", source, f"its secrets: {names}"))
    if problems:
        raise ConfigError(problems)
    missing = tuple(name for name in asked if name not in given)
    stored = {*meant, *taken.values()}
    return Choice(found, missing, tuple(sorted(one for one in values if not {one, env_name_of(one)} & stored)))


def secret_manifest(name: str, namespace: str, values: Values) -> Manifest:
    """A Secret. Raises ConfigError for keys that cannot be."""
    problems = [Problem(f"{key} cannot be a key of a Secret") for key in values if not _KEY.fullmatch(key)]
    if sum(len(value.get_secret_value().encode()) for value in values.values()) > LARGEST:
        problems.append(Problem("more than 1 MiB cannot be in a Secret", f"Secret/{name}"))
    if problems:
        raise ConfigError(problems)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "rankzero", labels.MANAGED_BY: "rankzero"},
        },
        "type": "Opaque",
        "data": {
            key: base64.b64encode(value.get_secret_value().encode()).decode() for key, value in sorted(values.items())
        },
    }


def _is_empty(value: str | SecretStr) -> bool:
    return not (value if isinstance(value, str) else value.get_secret_value()).strip()
