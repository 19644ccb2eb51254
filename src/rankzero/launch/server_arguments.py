"""Arguments of a server's own: which of them are secrets, the key that it asks for, and by which protocol it is asked.
Pure; knows only how vLLM reads its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankzero.errors import Problem, UsageError
from rankzero.redaction import HIDDEN, holds_secret, without_secrets

KEY_FLAG, KEY_VARIABLE = "--api-key", "VLLM_API_KEY"
"""How vLLM is told which keys it asks for; the flag goes before the variable."""
_SECRETS = {KEY_FLAG: KEY_VARIABLE, "--hf-token": "HF_TOKEN"}
"""Flags whose values are secrets, whatever they look like, and the variables that say the same."""
_TLS = ("--ssl-certfile", "--ssl-keyfile")


@dataclass(slots=True)
class _Flag:
    name: str
    """As vLLM knows it, who takes it with underscores, too."""
    values: dict[int, str] = field(default_factory=dict)
    """By the place of the argument that has it."""


def _flags(arguments: Sequence[str]) -> list[_Flag]:
    found = [_Flag("")]
    for place, argument in enumerate(arguments):
        if argument.startswith("-"):
            name, equals, value = argument.partition("=")
            found.append(_Flag(name.replace("_", "-"), {place: value} if equals else {}))
        else:
            found[-1].values[place] = argument
    return found


def keys(arguments: Sequence[str]) -> list[str]:
    """Those of its flag for keys; the last one where there are several flags, as vLLM takes it."""
    given = [flag for flag in _flags(arguments) if flag.name == KEY_FLAG]
    return [value for value in given[-1].values.values() if value] if given else []


def has(arguments: Sequence[str], flag: str) -> bool:
    """Whether a flag is among them."""
    return any(given.name == flag for given in _flags(arguments))


def is_tls(arguments: Sequence[str]) -> bool:
    """Whether what it serves is asked for by https."""
    return any(has(arguments, flag) for flag in _TLS)


def shown(arguments: Sequence[str]) -> list[str]:
    """The same with secrets hidden."""
    said = [without_secrets(argument) for argument in arguments]
    for flag in _flags(arguments):
        for place in flag.values if flag.name in _SECRETS else ():
            begins, equals, _ = arguments[place].partition("=")
            said[place] = f"{begins}={HIDDEN}" if equals and begins.startswith("-") else HIDDEN
    return said


def require_no_secrets(arguments: Sequence[str]) -> None:
    """Raise UsageError, without them, where some are secrets: they would be written into manifests."""
    problems = []
    for flag in _flags(arguments):
        if flag.values and (flag.name in _SECRETS or any(map(holds_secret, flag.values.values()))):
            variable = _SECRETS.get(flag.name, "NAME")
            what = "this is a secret, and arguments are written into manifests"
            hint = f"cluster.yaml's secrets: {{{variable}: {{name: NAME-OF-SECRET, key: KEY}}}}"
            problems.append(Problem(what, flag.name or "--", f"{hint}; `rankzero secret set` creates it"))
    if problems:
        raise UsageError(problems)
