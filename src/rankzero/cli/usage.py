"""What the parser complains of, as our errors. Knows the parser's exceptions by their shape only.

The parser's exception classes have moved between its versions; `format_message` has always been there.
"""

from __future__ import annotations

from rankzero.errors import UsageError

_WITH_SPEC = ("train", "render", "submit", "prepare")
"""Commands that take key=value, so that another tool's flag may be a field."""


def is_parser_error(error: Exception) -> bool:
    """Whether it comes from the parser and speaks of the command line."""
    return hasattr(error, "format_message")


def help_asked_for(error: Exception) -> str | None:
    """The help text where a command was given without anything that it needs."""
    return str(error) if type(error).__name__ == "NoArgsIsHelpError" else None


def as_usage_error(error: Exception) -> UsageError:
    """`--nope: no such option`, with what may have been meant and where the help is."""
    message = str(getattr(error, "format_message", lambda: error)()).rstrip(".")
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context is not None else "rankzero --help"
    option = getattr(error, "option_name", None)
    if type(error).__name__ != "NoSuchOption" or not option:
        return UsageError(message, hint=hint)
    near = " or ".join(sorted(set(getattr(error, "possibilities", None) or ()) - {"--help"}))
    meant = f"did you mean {near}?" if near else ""
    if getattr(context, "info_name", None) in _WITH_SPEC:
        meant = _field_for(option, known=True) or meant or _field_for(option)
    return UsageError("no such option", where=option, hint=meant or hint)


def _field_for(option: str, *, known: bool = False) -> str:
    """Flags of other tools are fields here: `--per_device_train_batch_size`. `known`: none that is only similar."""
    from rankzero.spec.renames import RENAMES, normalised
    from rankzero.spec.run_spec import RunSpec
    from rankzero.spec.unknown_keys import guess

    name = normalised(option.lstrip("-"))
    if known and name not in RENAMES:
        return ""
    meant = guess(RunSpec, (name,), RENAMES)
    if meant.field and name not in RENAMES:
        return f"write {meant.field}=VALUE, without dashes"
    if name not in RENAMES:
        return ""
    return f"{meant.hint}; write {meant.field}=VALUE" if meant.field else meant.hint
