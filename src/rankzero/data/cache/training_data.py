"""The data of a run: tokenised rows of all its sources, what takes part of them, and the hold-out.

Knows the spec's data section and the cache; nothing of models, devices or batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankzero.data.cache.dataset import Indices, TokenizedDataset
from rankzero.data.cache.labels import classes_of
from rankzero.data.cache.selection import first_occurrences, held_out_by_group, mix
from rankzero.data.cache.stream.plan import Stream, make_stream
from rankzero.data.cache.tokenize import Shard, TokenRules, cached, prepare, prepare_shard
from rankzero.data.progress import Progress
from rankzero.data.read.local import may_be_here
from rankzero.data.read.locate import LocatedSource, expand
from rankzero.data.read.network import RealNetwork
from rankzero.data.rows.formats.classification import UNLABELLED
from rankzero.data.tokens.image_tokens import ImageRules
from rankzero.data.tokens.tokenizer import Tokenizer
from rankzero.errors import ConfigError, DataError, Problem
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.run_spec import DataSpec, EvalFraction, RunSpec, SourceSpec
from rankzero.wording import counted, named_keys

ShowProgress = Callable[[str, Sequence[LocatedSource]], AbstractContextManager[Progress]]
"""Opens a progress bar for what is read next; advanced by bytes."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The rows to train on, and those to evaluate on."""

    train: TokenizedDataset | Stream
    eval: TokenizedDataset | None
    notes: frozenset[str] = frozenset()
    """What was done to rows, by its name; of a stream, to the first ones."""


def token_rules(spec: RunSpec, vision: ImageRules | None = None) -> TokenRules:
    """What decides the tokens of a row. `vision`: of a model that sees images."""
    data = spec.data
    return TokenRules(
        max_length=data.max_length,
        over_length=data.over_length,
        assistant_only_loss=data.assistant_only_loss,
        trains=spec.task_section.trains,
        vision=vision,
        train_on="all_turns" if "data.train_on" in spec.task_section.unread else data.train_on,
        reasoning=data.reasoning,
        template_kwargs=data.chat_template_kwargs,
        minus_one_is_a_class="-1" in (data.labels or ()),
    )


def parts_of(data: DataSpec) -> dict[str, list[SourceSpec]]:
    """The sources of `train` and, where it has its own, of `eval`.

    Raises ConfigError where nothing says which split of a Hub data set is to be evaluated on.
    """
    given = {"train": data.train, "eval": data.eval}
    parts = {
        label: [SourceSpec(path=value)] if isinstance(value, str) else list(value)
        for label, value in given.items()
        if value is not None and not isinstance(value, EvalFraction)
    }
    _require_a_split(parts.get("eval", []))
    return parts


def training_data(
    spec: RunSpec,
    tokenizer: Tokenizer,
    cache_dir: Path,
    *,
    workers: int,
    show: ShowProgress,
    say: Say,
    warn: Say,
    vision: ImageRules | None = None,
) -> TrainingData:
    """Everything a run reads, tokenised or found in the cache. `vision`: of a model that sees images. Raises as
    `prepare` does, and DataError for a hold-out that cannot be."""
    read: dict[str, TokenizedDataset] = {}
    rules, seed = token_rules(spec, vision), spec.train.seed
    parts = parts_of(spec.data)
    streamed = _streamed(spec, parts.pop("train"), tokenizer, rules) if spec.data.streaming else None
    if streamed is not None:
        say(f"train: {streamed.in_words()}")
    located = {label: expand(sources, offline=spec.model.local_files_only) for label, sources in parts.items()}
    for label, sources in located.items():
        with show(f"tokenise {label}", sources) as advance:
            dataset = prepare(sources, tokenizer, rules, cache_dir, workers=workers, seed=seed, progress=advance)
        stats = dataset.stats
        trained = "" if spec.task_section.trains == "label" else f", {stats.supervised_tokens} trained"
        say(
            f"{label}: {len(dataset)} rows, {stats.tokens} tokens{trained}; "
            f"{stats.truncated} truncated, {sum(stats.dropped.values())} dropped"
        )
        if unlabelled := stats.dropped.get(UNLABELLED):
            why = "their label is null or -1; where -1 is a class, data.labels names it"
            warn(f"{label}: {counted(unlabelled, 'row')} left out: {why}")
        for note, rows in stats.notes.items():
            say(f"{label}: {rows} rows: {note}")
        if stats.ignored_keys:
            say(f"{label}: keys of rows that nothing reads: {', '.join(named_keys(stats.ignored_keys))}")
        read[label] = _deduplicated(dataset, label, say) if spec.data.deduplicate else dataset
    notes = frozenset(note for dataset in read.values() for note in dataset.stats.notes)
    if streamed is not None:
        return TrainingData(streamed, read.get("eval"), notes | streamed.noted)
    return _parted(spec, read, located["train"], notes, say=say, warn=warn)


def cached_data(spec: RunSpec, tokenizer: str, cache_dir: Path) -> TrainingData | None:
    """The same where all of it was made before with the tokenizer of this fingerprint, is here, and has no images; else
    None. Raises as `training_data` does."""
    if spec.data.streaming or not _is_here(spec.data):
        return None
    read: dict[str, TokenizedDataset] = {}
    located = {
        label: expand(sources, offline=spec.model.local_files_only) for label, sources in parts_of(spec.data).items()
    }
    for label, sources in located.items():
        dataset = cached(sources, tokenizer, token_rules(spec), cache_dir, seed=spec.train.seed)
        if dataset is None:
            return None
        read[label] = _deduplicated(dataset, label, _nothing) if spec.data.deduplicate else dataset
    return _parted(spec, read, located["train"], frozenset(), say=_nothing, warn=_nothing)


def _is_here(data: DataSpec) -> bool:
    paths = [source.path for sources in parts_of(data).values() for source in sources]
    return all(parse_data_path(path, may_be_here).place == "local" for path in paths)


def _nothing(_words: str) -> None:
    """Said when the rows were made."""


def _parted(
    spec: RunSpec,
    read: Mapping[str, TokenizedDataset],
    sources: Sequence[LocatedSource],
    notes: frozenset[str],
    *,
    say: Say,
    warn: Say,
) -> TrainingData:
    """What is held out, and how often an epoch has each source."""
    train, held_out, seed = read["train"], read.get("eval"), spec.train.seed
    if isinstance(spec.data.eval, EvalFraction):
        train, held_out = _held_out(train, seed, spec.data.eval.fraction)
        if len(held_out) == 1:
            share = f"data.eval.fraction {spec.data.eval.fraction:g} of {len(train) + 1} rows"
            warn(f"{share} holds out one row, which tells next to nothing: raise it, or give data.eval a file")
    return TrainingData(_weighted(train, sources, seed, say), held_out, notes)


def prepare_part(
    spec: RunSpec,
    tokenizer: Tokenizer,
    cache_dir: Path,
    shard: Shard,
    *,
    workers: int | None,
    show: ShowProgress,
    vision: ImageRules | None = None,
) -> dict[str, TokenizedDataset | Stream | None]:
    """This shard's part of the tokenising of a run's data; None where other shards are still at work. Of a stream
    nothing is made: its files are listed and its first rows looked at. Raises DataError where all is there and cannot
    be trained on."""
    made: dict[str, TokenizedDataset | Stream | None] = {}
    read: dict[str, TokenizedDataset] = {}
    located: dict[str, Sequence[LocatedSource]] = {}
    parts = parts_of(spec.data)
    if spec.data.streaming:
        made["train"] = _streamed(spec, parts.pop("train"), tokenizer, token_rules(spec, vision))
    for label, given in parts.items():
        sources = expand(given, offline=spec.model.local_files_only)
        with show(f"tokenise {label}", sources) as advance:
            made[label] = rows = prepare_shard(
                sources,
                tokenizer,
                token_rules(spec, vision),
                cache_dir,
                shard,
                workers=workers,
                seed=spec.train.seed,
                progress=advance,
            )
        if rows is not None:
            read[label] = _deduplicated(rows, label, _nothing) if spec.data.deduplicate else rows
        located[label] = sources
    if len(read) == len(parts):
        _require_trainable(spec, read, located)
    return made


def _require_trainable(
    spec: RunSpec, read: Mapping[str, TokenizedDataset], located: Mapping[str, Sequence[LocatedSource]]
) -> None:
    """Raise DataError as training does for whole data sets that are nothing together, before anything is started that
    would train on them."""
    train, held_out = read.get("train"), read.get("eval")
    if train is not None:
        parted = _parted(spec, read, located["train"], frozenset(), say=_nothing, warn=_nothing)
        assert isinstance(parted.train, TokenizedDataset)
        train, held_out = parted.train, parted.eval
    if spec.task_section.trains == "label" and (train is not None or held_out is not None):
        classes_of(train, held_out, spec.data.labels)


def _streamed(spec: RunSpec, sources: Sequence[SourceSpec], tokenizer: Tokenizer, rules: TokenRules) -> Stream:
    if rules.vision is not None:
        hint = "leave it out: pictures that rows bring are kept on disk, all of them"
        raise ConfigError("rows with images are not streamed", where="data.streaming", hint=hint)
    stream = make_stream(
        sources,
        tokenizer,
        rules,
        seed=spec.train.seed,
        window_rows=spec.data.shuffle_buffer_size,
        cache_bytes=int(spec.data.streaming_cache_gb * 1e9),
        network=RealNetwork(),
        offline=spec.model.local_files_only,
    )
    return stream if rules.trains != "label" or spec.data.labels is None else stream.of_classes(spec.data.labels)


def _require_a_split(sources: list[SourceSpec]) -> None:
    """A Hub data set without a split means its training split, which is not what one evaluates on."""
    paths = [(source.path, parse_data_path(source.path, may_be_here)) for source in sources]
    problems = [
        Problem("which split is to be evaluated on?", f"data.eval {text}", f"such as {path.path}[test]")
        for text, path in paths
        if path.place == "hub" and path.split is None
    ]
    if problems:
        raise ConfigError(problems)


def _deduplicated(dataset: TokenizedDataset, label: str, say: Say) -> TokenizedDataset:
    kept = first_occurrences(dataset.digests)
    say(f"{label}: {len(dataset) - len(kept)} rows dropped as duplicates")
    return dataset if len(kept) == len(dataset) else dataset.select(kept)


def _held_out(train: TokenizedDataset, seed: int, fraction: float) -> tuple[TokenizedDataset, TokenizedDataset]:
    kept, held_out = parted_rows(train.groups, seed, fraction)
    return train.select(kept), train.select(held_out)


def parted_rows(groups: Indices, seed: int, fraction: float) -> tuple[Indices, Indices]:
    """The rows to train on and those held out, by the group of each row. Raises DataError where that cannot be."""
    if len(groups) < 2:
        raise DataError("one row cannot be split into training and evaluation", where="data.eval")
    try:
        return held_out_by_group(groups, seed=seed, fraction=fraction)
    except ValueError as error:
        hint = "give data.eval a file of its own"
        raise DataError("all rows are of one group, which cannot be split", where="data.eval", hint=hint) from error


def _weighted(train: TokenizedDataset, sources: Sequence[LocatedSource], seed: int, say: Say) -> TokenizedDataset:
    """Each source as often as its weight says; after the hold-out, which has every row once."""
    weights = [located.source.weight for located in sources]
    if all(weight == 1 for weight in weights):
        return train
    source_of_file = np.array([index for index, located in enumerate(sources) for _ in located.files], dtype=np.int64)
    rows = weighted_rows(source_of_file[train.source_of], weights, seed)
    say(f"train: {len(rows)} rows an epoch by weight")
    return train.select(rows)


def weighted_rows(sources: Indices, weights: Sequence[float], seed: int) -> Indices:
    """The rows of an epoch, by the source of each row. Raises DataError where there are none."""
    rows = mix(sources, weights, seed=seed)
    if not len(rows):
        raise DataError("the weights leave no row", where="data.train", hint="raise a weight")
    return rows
