"""The templates of pages: one look (`base.html.jinja`), and every value shown as text alone. Knows no page's content.

Everything that a template is given is escaped, whatever the template does with it, and the page's own policy forbids
whatever might get past that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from jinja2 import BytecodeCache, ChoiceLoader, Environment, PackageLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from rankzero import __version__
from rankzero.wording import counted

LONGEST = 2000
"""Characters that are shown of one value."""


class _Compiled(BytecodeCache):
    """Templates that this process has compiled: a page is written with each start and end of a run, and shown anew
    every few seconds, by an environment of its own."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        code = self._codes.get((bucket.key, bucket.checksum))
        if code is not None:
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


def environment(package: str, *, longest: int = LONGEST, redact: Callable[[str], str] = str) -> Environment:
    """What finds a package's templates, and the shared ones. `redact` sees every value before it is cut."""
    one_value = partial(shown, longest=longest, redact=redact)
    here, shared = (PackageLoader(name, "") for name in (package, __package__ or ""))
    made = Environment(
        loader=ChoiceLoader([here, shared]),
        autoescape=True,
        finalize=one_value,
        undefined=StrictUndefined,
        bytecode_cache=_COMPILED,
    )
    made.globals["version"] = __version__
    made.filters["count"] = count
    made.filters["whole"] = partial(_whole, redact=redact)
    return made


def shown(value: object, *, longest: int = LONGEST, redact: Callable[[str], str] = str) -> object:
    """A value as it stands, and only as text: what a browser does not show is shown as a box, long text is cut. The
    template's own markup is left alone."""
    if isinstance(value, Markup):
        return value
    text = redact(str(value))
    cut = "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in text[:longest])
    return cut + "…" if len(text) > longest else cut


def _whole(value: object, redact: Callable[[str], str]) -> Markup:
    """A value as all others are shown, but never cut."""
    return escape(shown(value, longest=sys.maxsize, redact=redact))


def count(number: int, noun: str = "") -> str:
    """`1,200`, or `1,200 rows`."""
    return counted(number, noun) if noun else f"{number:,}"
