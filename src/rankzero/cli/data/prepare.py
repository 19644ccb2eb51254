"""`rankzero data prepare`: tokenise a run's data ahead of time, alone or together with others."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankzero.errors import UsageError
from rankzero.wording import named_keys

if TYPE_CHECKING:
    from rankzero.data.cache.dataset import TokenizedDataset
    from rankzero.data.cache.stream.plan import Stream
    from rankzero.data.cache.tokenize import Shard
    from rankzero.data.progress import Progress
    from rankzero.data.read.locate import LocatedSource


def prepare(
    arguments: Annotated[list[str], typer.Argument(metavar="RUN.yaml|key=value", help="Run spec, overrides.")],
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Do part I (from 0) of N; whoever is last puts all together.")
    ] = "0/1",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tokenise a run's data into the cache, where training finds it. Goes on where a killed one stopped."""
    from rankzero.api.installed import require_engine

    require_engine()
    from rankzero.cli.seed_flags import SeedFlags
    from rankzero.cli.train import read_spec
    from rankzero.data.cache.training_data import prepare_part
    from rankzero.machine import cache_root
    from rankzero.model.load import kind_of, load_config, load_tokenizer, settle_libraries
    from rankzero.model.source import locate
    from rankzero.model.vision import load_vision

    part = parse_shard(shard)
    spec = read_spec(arguments, SeedFlags(), world_size=1)
    settle_libraries()
    source = locate(spec.model)
    tokenizer = load_tokenizer(source, spec.model, spec.data.chat_template)
    vision = None
    if kind_of(load_config(source, spec.model), spec.task_section.uses) == "vision":
        limit, chosen = spec.data.image_max_tokens, spec.data.chat_template is not None
        vision = load_vision(source, spec.model, tokenizer, max_tokens=limit, keep_template=chosen).rules
    made = prepare_part(spec, tokenizer, cache_root(), part, workers=None, show=show, vision=vision)
    done = {label: None if rows is None else _facts(rows) for label, rows in made.items()}
    if as_json:
        typer.echo(json.dumps(done, indent=2))
        return
    for label, facts in done.items():
        if facts is None:
            typer.echo(f"{label}: part {shard} is done; others are still at work")
        elif "streamed" in facts:
            typer.echo(f"{label}: {facts['streamed']}")
        else:
            trained = "" if spec.task_section.trains == "label" else f", {facts['supervised_tokens']:,} trained"
            typer.echo(
                f"{label}: {facts['rows']:,} of {facts['rows_in']:,} rows, {facts['tokens']:,} tokens{trained}\n"
                f"  {facts['directory']}"
            )
            for note, rows in facts["notes"].items():
                typer.echo(f"  {rows:,} rows: {note}")
            if facts["ignored_keys"]:
                typer.echo(f"  keys of rows that nothing reads: {', '.join(named_keys(facts['ignored_keys']))}")


def _facts(made: TokenizedDataset | Stream) -> dict[str, Any]:
    from rankzero.data.cache.stream.plan import Stream

    if isinstance(made, Stream):
        files, nbytes = len(made.shards), made.nbytes
        return {"streamed": made.in_words(), "files": files, "bytes": nbytes, "fingerprint": made.fingerprint}
    return {"directory": str(made.directory), "fingerprint": made.fingerprint, **made.stats.as_json()}


def show(label: str, sources: Sequence[LocatedSource]) -> AbstractContextManager[Progress]:
    """A progress bar over the bytes of all files."""
    from rankzero.data.progress import show_progress
    from rankzero.data.read.locate import input_bytes

    return show_progress(label, input_bytes(sources))


def parse_shard(text: str) -> Shard:
    """`3/8`, with the first part 0. Raises UsageError."""
    from rankzero.data.cache.tokenize import Shard

    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        hint = "0/8 is the first of eight parts, 7/8 the last"
        raise UsageError(f"{text!r} is no part of a whole", where="--shard", hint=hint)
    return Shard(int(match[1]), int(match[2]))
