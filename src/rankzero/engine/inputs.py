"""What a run reads, found and checked before weights are loaded: model files, tokenizer, processor, rows, labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.embedded import require_embedded, unembedded_problems
from rankzero.data.cache.joined import longest_sequences
from rankzero.data.cache.known_tokenizers import remember_tokenizer
from rankzero.data.cache.stream.plan import Stream
from rankzero.data.cache.tokenize import tokenizer_fingerprint
from rankzero.data.cache.training_data import TrainingData, training_data
from rankzero.data.progress import Progress, no_progress, show_progress
from rankzero.data.prompts import Prompt, read_prompts
from rankzero.data.read.locate import LocatedSource, input_bytes
from rankzero.data.tokens.built_in_templates import read_template
from rankzero.engine.console import logger
from rankzero.engine.distributed import World
from rankzero.engine.goodput import Ledger
from rankzero.engine.references import References
from rankzero.engine.tasks.protocol import Task, find_task
from rankzero.engine.taught_stops import taught_stop
from rankzero.errors import ConfigError, DataError, Problem
from rankzero.machine import cache_root, usable_cores
from rankzero.model.context import Context, computed_context, most_in_training, require_rows_within
from rankzero.model.expert_exchange import require_exchange
from rankzero.model.generate import Speaker, all_ids, require_sight
from rankzero.model.load import (
    ModelKind,
    kind_of,
    load_config,
    load_tokenizer,
    meta_model,
    padding_id,
    unembedded_tokens,
)
from rankzero.model.parts import position_limit
from rankzero.model.routers import balance_coefficient, trains_routers
from rankzero.model.source import ModelSource, locate
from rankzero.model.targets import target_modules
from rankzero.model.vision import Vision, load_vision
from rankzero.spec.names import PLAIN_NOTE, PLAIN_TEMPLATE
from rankzero.spec.run_spec import RunSpec
from rankzero.wording import counted


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run reads, checked: cheap to make, and all that a resume is compared by."""

    task: Task
    source: ModelSource
    kind: ModelKind
    tokenizer: Any
    config: Any
    vision: Vision | None
    train: TokenizedDataset | Stream
    eval: TokenizedDataset | None
    labels: tuple[str, ...] | None
    """The classes by number; None for other tasks."""
    tokenizer_fingerprint: str
    balance: float | None
    """What the loss that balances routers is multiplied by; None where none are trained."""
    speaker: Speaker
    """Who answers prompts, without a model yet."""
    prompts: tuple[Prompt, ...] = ()
    taught_stop: int | None = None
    """What rows end answers with, as a token."""

    @property
    def n_rows(self) -> int | None:
        """Rows to train on; None of a stream, whose rows nobody has counted."""
        return None if isinstance(self.train, Stream) else len(self.train)

    @property
    def pad_token_id(self) -> int:
        """What fills rows up where the model looks for the end of a row by it."""
        return padding_id(self.tokenizer, self.config)


def read_inputs(
    spec: RunSpec, world: World, ledger: Ledger, heard: Callable[[ModelSource], None] = lambda _: None
) -> Inputs:
    """Find the model's files, load the tokenizer, check names and vocabulary, tokenise. Loads no weights. `heard` is
    told of the files as soon as they are there.

    Raises ConfigError, AccessError, ServiceError or DataError with every problem of its kind.
    """
    task = find_task(spec.task)
    with ledger.phase("model_files"):
        logger.info("[STEP] find the model: %s", spec.model.local_dir or spec.model.name)
        source = locate(spec.model, spec.task_section.uses)
        heard(source)
        tokenizer = load_tokenizer(source, spec.model, spec.data.chat_template)
        config = load_config(source, spec.model)
        kind = kind_of(config, spec.task_section.uses)
        vision = None
        if kind == "vision":
            limit, chosen = spec.data.image_max_tokens, spec.data.chat_template is not None
            vision = load_vision(source, spec.model, tokenizer, max_tokens=limit, keep_template=chosen)
        unembedded = unembedded_tokens(tokenizer, config, kind, source)
        if unembedded:
            words = "[DATA] the model has no embedding for %s of its tokenizer (%s): rows with one are refused"
            logger.info(words, counted(len(unembedded), "added token"), ", ".join(list(unembedded.values())[:5]))
        shape = meta_model(config, spec.model, spec.task_section.uses)
        targets = None
        if spec.lora is not None:
            targets = target_modules(spec.lora, spec.train.parts, shape, spec.task_section.uses)
        require_exchange(
            shape,
            spec.train.expert_parallel,
            whole=() if targets is None else targets.saved,
            quantization=spec.model.quantization,
        )
        trained = trains_routers(shape, spec.train.parts, targets)
        if trained and spec.task_section.trains == "preferences":
            hint = "leave them out: they stay as the reference has them"
            raise ConfigError(f"task {spec.task} trains no routers", where="lora.modules_to_save", hint=hint)
        balance = balance_coefficient(spec.train.router_aux_loss_coef, shape, trained=trained)
        positions = position_limit(shape)
        spec = within_positions(spec, positions)
    with ledger.phase("data"):
        logger.info("[STEP] read and tokenise the data")
        data = _read_data(spec, tokenizer, vision, world, unembedded)
        if world.is_main and not spec.model.trust_remote_code:
            fingerprint = tokenizer_fingerprint(tokenizer)
            remember_tokenizer(source.tokenizer, spec.data.chat_template, fingerprint, cache_root())
        require_context({"data.train": data.train, "data.eval": data.eval}, computed_context(config))
        _keep_plain_template(tokenizer, data)
        labels = task.labels(spec, data)
        if labels is not None:
            logger.info("[DATA] %d classes: %s", len(labels), ", ".join(labels[:20]))
        stop = taught_stop(spec, tokenizer, data.train)
        speaker = Speaker(None, tokenizer, vision, spec.data.chat_template_kwargs, dated_as_trained=True)
        prompts: tuple[Prompt, ...] = ()
        if spec.eval.prompts is not None:
            asked = read_prompts(spec.eval.prompts, seed=spec.train.seed, offline=spec.model.local_files_only)
            prompts = tuple(map(References(speaker).comparable, asked))
            longest = min((limit for limit in (positions, most_in_training(config)) if limit), default=None)
            require_answerable(speaker, prompts, spec, longest, unembedded)
    return Inputs(
        task,
        source,
        kind,
        tokenizer,
        config,
        vision,
        data.train,
        data.eval,
        labels,
        tokenizer_fingerprint(tokenizer),
        balance,
        speaker,
        prompts,
        stop,
    )


def require_answerable(
    speaker: Speaker, prompts: Sequence[Prompt], spec: RunSpec, longest: int | None, unembedded: Mapping[int, str]
) -> None:
    """Raise ConfigError or DataError for prompts that this model cannot be asked: with images where it sees none, with
    turns that its chat template refuses, with a token that it cannot look up, or with no room left for an answer among
    the `longest` tokens that it takes."""
    beyond = []
    hint = "name a vision-language model, or leave the images out"
    for prompt in prompts:
        require_sight(speaker, prompt, hint=hint, where=prompt.where)
    for prompt, ids in zip(prompts, all_ids(speaker, prompts), strict=True):
        tokens = len(ids)
        beyond += unembedded_problems(unembedded, [ids], [prompt.where])
        if longest is not None and tokens + spec.eval.max_new_tokens > longest:
            what = f"{tokens} tokens and an answer of {spec.eval.max_new_tokens}, and the model takes {longest}"
            beyond.append(Problem(what, prompt.where, "shorten it, or lower eval.max_new_tokens"))
    if beyond:
        raise DataError(beyond)
    words = "[DATA] %s, answers of up to %d tokens before the first step, at each evaluation and at the end"
    logger.info(words, counted(len(prompts), "prompt"), spec.eval.max_new_tokens)


def _keep_plain_template(tokenizer: Any, data: TrainingData) -> None:
    """Give a tokenizer without a chat template the plain one that rows were rendered with, so that the result is used
    as it was trained."""
    if tokenizer.chat_template is None and PLAIN_NOTE in data.notes:
        tokenizer.chat_template = read_template(PLAIN_TEMPLATE, tokenizer)
        logger.warning(
            "[DATA] the tokenizer has no chat template: chat rows are rendered with rankzero's plain one, which is "
            "saved with the result. data.chat_template: plain says that this is meant; a Jinja file takes another one"
        )


def within_positions(spec: RunSpec, positions: int | None) -> RunSpec:
    """The spec with rows no longer than the model has positions for; said once where that is shorter than asked."""
    if positions is None or spec.data.max_length <= positions:
        return spec
    logger.info("[DATA] data.max_length is %d here: the model has no more positions", positions)
    return spec.model_copy(update={"data": spec.data.model_copy(update={"max_length": positions})})


def require_context(parts: Mapping[str, TokenizedDataset | Stream | None], context: Context | None) -> None:
    """Raise ConfigError where rows are longer than a model's context, or those of a stream may be; a warning where the
    model can be stretched."""
    if context is None:
        return
    lengths = {field: longest_sequences(part) for field, part in parts.items() if isinstance(part, TokenizedDataset)}
    streams = [part.rules.max_length for part in parts.values() if isinstance(part, Stream)]
    unsure = [_may_be_beyond(context, longest) for longest in streams if longest > context.length]
    problems = require_rows_within(context, lengths, unsure)
    for problem in problems:
        logger.warning(
            "[DATA] %s: %s; its config stretches positions, so they are trained", problem.where, problem.what
        )


def _may_be_beyond(context: Context, max_length: int) -> Problem:
    what = f"rows of a stream may have {max_length} tokens, and the model's context is {context.length}"
    return Problem(what, "data.max_length", f"set data.max_length: {context.length}")


def _read_data(
    spec: RunSpec, tokenizer: Any, vision: Vision | None, world: World, unembedded: Mapping[int, str]
) -> TrainingData:
    def show(label: str, sources: Sequence[LocatedSource]) -> AbstractContextManager[Progress]:
        return show_progress(label, input_bytes(sources)) if world.is_main else nullcontext(no_progress)

    workers = max(1, usable_cores() // world.local_world_size)
    say, warn = partial(logger.info, "[DATA] %s"), partial(logger.warning, "[DATA] %s")
    rules = None if vision is None else vision.rules
    cache = cache_root()
    data = training_data(spec, tokenizer, cache, workers=workers, show=show, say=say, warn=warn, vision=rules)
    for part in (data.train, data.eval):
        if isinstance(part, TokenizedDataset):
            require_embedded(part, unembedded)
    if isinstance(data.train, Stream):
        data = replace(data, train=replace(data.train, unembedded=unembedded))
    return data
