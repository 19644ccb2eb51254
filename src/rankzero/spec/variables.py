"""`${NAME}` and `${NAME:-default}` in text, from a given environment. Pure; knows nothing of YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankzero.errors import Problem
from rankzero.spec.secret_names import looks_secret

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<body>[^{}]*)\}|\$\{")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-.*)?", re.DOTALL)


def expand(text: str, env: Mapping[str, str]) -> tuple[str, list[Problem]]:
    """`text` with its references replaced, and what is wrong with them (without a place).

    As in a shell, a default also stands in for a variable that is set but empty. `$${` is a literal `${`.
    """
    problems: list[Problem] = []

    def value(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        body = _BODY.fullmatch(match.group("body") or "")
        if body is None:
            hint = "write ${NAME} or ${NAME:-default}, or $${ for the two characters themselves"
            problems.append(Problem("cannot read what follows ${", hint=hint))
            return ""
        name, default = body.group("name"), body.group("default")
        if looks_secret(name):
            hint = f"leave it out: a process finds {name} in its environment; pods get it by cluster.yaml's secrets"
            problems.append(Problem(f"{name} holds a secret, and a spec is written to disk and shown", hint=hint))
            return ""
        if default is not None:
            return env.get(name) or default.removeprefix(":-")
        if name not in env:
            hint = f"set it, or give it a default: ${{{name}:-value}}"
            problems.append(Problem(f"the environment variable {name} is not set", hint=hint))
        return env.get(name, "")

    return _REFERENCE.sub(value, text), problems


def escape(text: str) -> str:
    """`text` such that `expand` gives it back unchanged."""
    return text.replace("${", "$${")
