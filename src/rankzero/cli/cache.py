"""`rankzero cache`: what is kept between runs, and making room there."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.cli.help import Sections
from rankzero.cli.logs import JsonOption
from rankzero.errors import UsageError
from rankzero.wording import in_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankzero.cache.contents import Entry

app = typer.Typer(
    cls=Sections, help="See and prune what is kept between runs.", no_args_is_help=True, rich_markup_mode=None
)

_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@app.callback()
def cache() -> None:
    """What is kept between runs."""


@app.command("list")
def list_cache(as_json: JsonOption = False) -> None:
    """Kinds of what is kept, with size, last use, and who uses it now."""
    from rankzero.cache.contents import entries, unknown
    from rankzero.cache.kinds import KINDS
    from rankzero.machine import cache_root
    from rankzero.run_dir.atomic import place_given_by, storage_errors

    root = cache_root()
    with place_given_by("the variable RANKZERO_CACHE"), storage_errors(root):
        found, others = entries(root), unknown(root)
    by_kind = {kind: [entry for entry in found if entry.kind == kind] for kind in KINDS}
    if as_json:
        kinds = {kind: _facts(those) for kind, those in by_kind.items() if those}
        typer.echo(json.dumps({"cache": str(root), "kinds": kinds, "not_ours": others}, indent=2))
        return
    typer.echo(f"cache  {root}, {in_bytes(sum(entry.bytes for entry in found))}")
    for kind, those in by_kind.items():
        if those:
            typer.echo(_line(kind, those))
    if others:
        typer.echo(f"not ours, and never removed: {', '.join(others)}")


@app.command()
def prune(
    kinds: Annotated[
        list[str] | None, typer.Argument(metavar="KIND", help="Only these kinds, by `rankzero cache list`.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="30d", help="What was last used so long ago: m, h, d or w.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="20GB", help="Then what was used longest ago, until so much is left.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove what was not used for long; never what a process uses, never through a link.

    Whatever goes is made again when a run needs it. An adapter on a model made of a GGUF file, used alone, needs that
    file again: --model FILE.gguf.
    """
    from rankzero.cache import prune as pruning
    from rankzero.cache.kinds import KINDS
    from rankzero.machine import cache_root

    if older_than is None and keep is None:
        raise UsageError("what is to go?", hint="--older-than 30d, --keep 20GB, or both; --dry-run only says it")
    for kind in kinds or ():
        if kind not in KINDS or not KINDS[kind].prunable:
            names = ", ".join(name for name, about in KINDS.items() if about.prunable)
            raise UsageError(f"there is no such kind to prune: {kind}", hint=names)
    done = pruning.prune(
        cache_root(),
        older_than=None if older_than is None else _age(older_than),
        keep=None if keep is None else _size(keep),
        kinds=kinds or None,
        dry_run=dry_run,
    )
    if as_json:
        gone = {
            kind: _facts([one for one in done.gone if one.kind == kind]) for kind in {one.kind for one in done.gone}
        }
        kept = [{"kind": one.kind, "name": one.name, "used_by": one.used_by} for one in done.in_use]
        stays = [{"kind": one.kind, "name": one.name, "why": why} for one, why in done.stays]
        facts = {"bytes": done.bytes, "gone": gone, "in_use": kept, "stays": stays, "linked": done.linked}
        typer.echo(json.dumps({**facts, "dry_run": dry_run}, indent=2))
        return
    for kind in KINDS:
        those = [entry for entry in done.gone if entry.kind == kind]
        if those:
            typer.echo(f"{'would go' if dry_run else 'gone'}  {_line(kind, those)}")
    for entry, why in (*((one, f"used by {one.used_by}") for one in done.in_use), *done.stays):
        typer.echo(f"stays  {entry.kind}/{entry.name}: {why}")
    for kind in done.linked:
        typer.echo(f"stays  {kind}: a link, and what it leads to is not counted")
    typer.echo(f"{in_bytes(done.bytes)} {'would be' if dry_run else 'are'} free")


def _facts(those: Sequence[Entry]) -> dict[str, Any]:
    return {
        "entries": len(those),
        "bytes": sum(entry.bytes for entry in those),
        "last_use": max(entry.last_use for entry in those),
        "in_use": {entry.name: entry.used_by for entry in those if entry.used_by},
    }


def _line(kind: str, those: Sequence[Entry]) -> str:
    """`tokenized   1.2 GB in 3, tokenised rows, used 2 d ago; 1 in use: pid 12 on host`."""
    from rankzero.cache.kinds import KINDS

    days = (time.time() - max(entry.last_use for entry in those)) / 86400
    when = f"{days:.0f} days ago" if days >= 1.5 else "today" if days < 0.5 else "a day ago"
    users = dict.fromkeys(entry.used_by for entry in those if entry.used_by)
    busy = sum(1 for entry in those if entry.used_by)
    by = f"; in use: {busy}, by {', '.join(users)}" if busy else ""
    size = in_bytes(sum(entry.bytes for entry in those))
    return f"{kind:10} {size:>9} in {len(those)}: {KINDS[kind].what}, last used {when}{by}"


def _age(text: str) -> float:
    """Seconds. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a time", where="--older-than", hint="30d, 12h, 4w")
    return float(match[1]) * _SECONDS[match[2]]


def _size(text: str) -> int:
    """Bytes. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*((?:[kmgt]i?)?)b?", text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is not a size", where="--keep", hint="20GB, 500MB, 10GiB")
    return int(float(match[1]) * _BYTES[match[2]])
