"""Command-line words before the parser sees them. Pure, and light enough for --help."""

from __future__ import annotations

from collections.abc import Sequence

_SPREAD = ("--target-modules", "--splits")


def spread_values(arguments: Sequence[str]) -> list[str]:
    """`--target-modules a b c` as the flag once for each value, which is how the parser takes several; `--splits` too.

    Values end at the next flag, at a spec file or at a key=value.
    """
    spread: list[str] = []
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        i += 1
        if argument not in _SPREAD:
            spread.append(argument)
            continue
        first = i
        while i < len(arguments) and not _ends_values(arguments[i]):
            spread += [argument, arguments[i]]
            i += 1
        if i == first:
            spread.append(argument)  # without a value: the parser says so
    return spread


def _ends_values(argument: str) -> bool:
    return argument.startswith("-") or "=" in argument or argument.endswith((".yaml", ".yml"))
