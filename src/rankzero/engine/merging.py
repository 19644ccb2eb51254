"""A run's adapter merged into its base: what the proof asks about, and what came of it, noted in the run."""

from __future__ import annotations

import os
from pathlib import Path

from rankzero.data.cache.training_data import parts_of, token_rules
from rankzero.data.read.sources import read_chunks
from rankzero.data.rows.parse import parse
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.chat import Renderer
from rankzero.data.tokens.row_tokens import Encoder
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.engine.console import logger, results_alone_on_stdout
from rankzero.errors import RankzeroError, StorageError
from rankzero.model.load import load_tokenizer, settled_libraries
from rankzero.model.merge import BaseWeights, Merged, OfRun, merge
from rankzero.model.source import locate, require_trained_base, warn_of_another_base
from rankzero.run_dir.atomic import write_json
from rankzero.run_dir.card import card_of
from rankzero.run_dir.of_weights import quantization_of
from rankzero.run_dir.paths import RunDir, has_tokenizer
from rankzero.run_dir.result import Adapter, spec_of
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.run_spec import RunSpec

ROWS = 4
"""Rows of a run's data that base with adapter and merged model are asked about."""


@settled_libraries
def merge_adapter(
    found: Adapter,
    output: Path,
    *,
    base_weights: BaseWeights,
    shard_bytes: int | None = None,
    known_as: Path | None = None,
) -> Merged:
    """Write base and adapter as one model to `output`, whole or not at all, and note in the run how far the two are
    from each other. `known_as`: what is made of the model, where it does not stay.

    Raises as `merge` does, and ConfigError where the base is not the one that was trained on, unless somebody named it.
    """
    with results_alone_on_stdout():
        if found.base_is_given:
            warn_of_another_base(locate(found.base), found.trained_on)
        else:
            require_trained_base(found.base, found.trained_on)
        if found.base.quantization != "none" and found.dtype is None:
            words = "nothing says in which precision its base was packed: it is now packed from that of its files"
            logger.warning("[RESULT] %s: %s", found.directory, words)
        packed = quantization_of(found.directory) if found.run is None else None
        if found.base.quantization == "none" and packed is not None:
            words = "without its run it is added to the base as its files have it, as by --base files"
            logger.warning("[RESULT] %s: trained on a base in %s: %s", found.directory, packed, words)
        rows = [] if found.run is None else first_rows(spec_of(found.run), found)
        done = merge(
            found.base,
            found.directory,
            output,
            base_weights=base_weights,
            labels=found.labels,
            of_run=OfRun(
                rows,
                found.rendering,
                found.stop_ids,
                found.max_length,
                found.dtype,
                found.tokenizer,
                base_is_given=found.base_is_given,
            ),
            card=card_of(found.directory),
            shard_bytes=shard_bytes,
        )
    if found.run is not None:
        note = {"directory": str((known_as or output).absolute()), "rows_of_data": len(rows), **done.to_json()}
        try:
            write_json(RunDir(found.run).merge, note)
        except StorageError as error:  # somebody else's run: the merged model has the same beside it
            logger.warning("[RESULT] the run does not keep what was measured: %s", error)
    return done


def first_rows(spec: RunSpec, trained: Adapter) -> list[list[int]]:
    """The tokens of the first rows of data.eval, of data.train where that is a share of it, as the tokenizer that
    `trained` has been with makes them. Of files that are here and can be read: what is elsewhere is not fetched for a
    proof."""
    try:
        parts = parts_of(spec.data)
        own = has_tokenizer(trained.directory)  # a checkpoint has none
        place = trained.base.model_copy(update={"tokenizer_dir": str(trained.directory)} if own else {})
        template = None if trained.rendering is None else trained.rendering.chat_template
        tokenizer = load_tokenizer(locate(place), place, template)
        of_tokenizer, rules = take_apart(tokenizer, spec.task_section.trains), token_rules(spec)
        renderer, encoder = Renderer(of_tokenizer, rules), Encoder(of_tokenizer, rules)
        found: list[list[int]] = []
        for source in parts.get("eval") or parts["train"]:
            path = parse_data_path(source.path, os.path.exists).path
            if not Path(path).is_file():
                continue
            for chunk in read_chunks(path, header=source.header):
                for conversation in parse(chunk, source.format, source.columns or None).conversations:
                    rendered = renderer.render(conversation, str(Path(path).parent))
                    if not isinstance(rendered, RowProblem):
                        found.append(next(encoder.encode([rendered])).ids)
                    if len(found) == ROWS:
                        return found
        return found
    except RankzeroError as error:
        logger.warning("[RESULT] no rows of the data are asked about: %s", error.problems[0].what)
        return []
