"""An adapter and its base as one plain model, and the proof that both say the same. Knows nothing of runs.

Each adapted weight is the base's plus the adapter's share, computed in float32 and rounded once to the precision that
the base's files have. Of a base that was packed for training there are two: the weights as they were computed with
(packed and unpacked again), which give the merged model the losses that were measured, and those of the files, which
the adapter has never seen.

What was written is loaded again and asked the same as base and adapter were (proof.py); a model that answers otherwise
is refused. There is one model in memory at a time.
"""

from __future__ import annotations

import gc
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.trainable_tokens.layer import TrainableTokensLayer

from rankzero.directories import is_file
from rankzero.errors import ConfigError, RankzeroError
from rankzero.model.files import CHAT_TEMPLATES
from rankzero.model.load import (
    ClassHead,
    kind_of,
    load_config,
    load_model,
    load_tokenizer,
    padding_id,
    stop_token_ids,
    stored_dtype,
)
from rankzero.model.lora import CLASSIFIER, load_adapter, read_adapter_config
from rankzero.model.parts import parameter_parts, position_limit
from rankzero.model.proof import Difference, Prompts, compare, logits_of, prompts_for
from rankzero.model.quantize import is_quantised, unpack
from rankzero.model.source import ModelSource, locate, require_trained_tokenizer, warn_of_another_tokenizer
from rankzero.model.tying import say_whether_tied
from rankzero.model.vision import Vision, load_vision
from rankzero.model.weights import library_errors, name_stop_ids, save_whole, staged_for
from rankzero.run_dir.atomic import (
    commit_directory,
    require_nothing_at,
    write_json,
    write_text,
)
from rankzero.run_dir.card import CARD, Card, card_text
from rankzero.run_dir.of_weights import MAX_LENGTH, TEMPLATE_KWARGS
from rankzero.run_dir.paths import MERGE, TOKENIZER_FILES, has_tokenizer
from rankzero.run_dir.result import Rendering
from rankzero.spec.run_spec import ModelSpec
from rankzero.wording import counted

BaseWeights = Literal["trained", "files"]
OF_TOKENIZER = (
    *TOKENIZER_FILES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json"),
)
"""What a tokenizer is made of, all of one place: a file of another's would change its tokens."""
OTHERS = (
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "generation_config.json"),
)
"""What else belongs to a model besides weights and config; the adapter's are taken before the base's."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written, and how far it is from base and adapter."""

    directory: Path
    base: str
    base_weights: BaseWeights
    dtype: str
    layers: int
    """Layers and tensors that an adapter was added to."""
    difference: Difference
    prompts: int
    images: int
    tokens: int
    adapter_changes: float
    """The largest difference of logits that the adapter itself makes to its base."""
    from_trained: float | None
    """Where the files' weights were taken of a base that was packed: the largest difference from what was trained."""

    @property
    def in_words(self) -> str:
        """`logits differ by up to 0.002 over 8 prompts, …`: what the proof has found."""
        off, asked = self.difference, counted(self.prompts, "prompt")
        images = f", {counted(self.images, 'image')}" if self.images else ""
        text = (
            f"logits differ by up to {off.largest:.3g} over {asked} ({counted(self.tokens, 'token')}{images}), where "
        )
        text += f"rounding explains {off.tolerance:.3g}; the adapter itself changes them by up to "
        text += f"{self.adapter_changes:.3g}"
        if not self.adapter_changes > off.tolerance:
            text += ", which is too little to tell a wrong model from a right one"
        if self.from_trained is not None:
            text += f"; by up to {self.from_trained:.3g} from the base in fewer bits that it was trained on"
        return text

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, without the place; merge.json has it."""
        found = asdict(self)
        del found["directory"], found["difference"]
        return {**found, **{f"logits_{name}": value for name, value in asdict(self.difference).items()}}


@dataclass(frozen=True, slots=True)
class OfRun:
    """What an adapter's run knows that does not lie beside it."""

    rows: Sequence[Sequence[int]] = ()
    """Token ids of its data, which the proof asks about."""
    rendering: Rendering | None = None
    """Of a checkpoint: what is written beside the model is then what the run would write beside a result."""
    stop_ids: Sequence[int] = ()
    """Of a checkpoint: the tokens that answers end with, as it says."""
    max_length: int | None = None
    """Longest text of a classifier, in tokens."""
    dtype: str | None = None
    """The precision that it computed in, and packed its base from; None: that of the base's files."""
    tokenizer: str | None = None
    """Of a checkpoint: by content, the tokenizer and chat template that it was trained with; None: nothing says it."""
    base_is_given: bool = False
    """Whether somebody named the base, which is then taken with the tokenizer that is there."""


_NO_RUN = OfRun()


@dataclass(frozen=True, slots=True)
class _Adapted:
    """A base with an adapter on it, whose weights are plain ones, and what it is told by."""

    model: Any
    source: ModelSource
    dtype: torch.dtype
    head: ClassHead | None
    tokenizer: Any
    vision: Vision | None


def merge(
    spec: ModelSpec,
    adapter: Path,
    output: Path,
    *,
    base_weights: BaseWeights = "trained",
    labels: tuple[str, ...] | None = None,
    of_run: OfRun = _NO_RUN,
    card: Card | None = None,
    shard_bytes: int | None = None,
) -> Merged:
    """Write the model `spec` with `adapter` added to its weights to `output`, whole or not at all.

    `labels` are the classes of a classifier by number. The proof asks about its own prompts and about the run's rows.
    `card`: of the adapter; `shard_bytes`: the largest file. Raises ConfigError, AccessError, ServiceError,
    StorageError; RankzeroError where the merged model does not say what base and adapter say.
    """
    require_nothing_at(output)
    peft_type = read_adapter_config(adapter).peft_type
    if peft_type != "LORA":
        raise ConfigError(
            f"{peft_type} adapters cannot be merged", where=str(adapter), hint="use the tool that made it"
        )
    as_trained = None
    if base_weights == "files" and spec.quantization != "none":
        packed = _load(spec, adapter, labels, of_run)
        as_trained = logits_of(packed.model, _prompts(packed, of_run.rows))
        del packed
        gc.collect()
        spec = spec.model_copy(update={"quantization": "none"})
    adapted = _load(spec, adapter, labels, of_run)
    model, source, dtype = adapted.model, adapted.source, adapted.dtype
    prompts = _prompts(adapted, of_run.rows)
    expected = logits_of(model, prompts)
    with model.disable_adapter():
        changes = float((expected - logits_of(model, prompts)).abs().max())
    routed = "router" in parameter_parts(model.get_base_model()).values()
    of_base = (weight for name, weight in model.named_parameters() if "lora_" not in name and weight.ndim > 1)
    others = sum(weight.dtype != dtype for weight in of_base)
    layers = add_adapters(model, dtype)
    plain = model.unload()
    plain.config.use_cache = True
    say_whether_tied(plain)
    with staged_for(output) as staged:
        with library_errors(output):
            save_whole(plain, staged, dtype=dtype, shard_bytes=shard_bytes)
            places: tuple[Path, ...] = (adapter, source.tokenizer, source.weights)
            if of_run.rendering is not None:
                _write_companions(plain, adapted, staged)
                places = (staged, *places)
            _copy_companions(places, staged, code=spec.trust_remote_code)
            if of_run.stop_ids:
                name_stop_ids(staged, sorted({*stop_token_ids(plain, adapted.tokenizer), *of_run.stop_ids}))
        head, longest = None, None
        if adapted.head is not None:
            head, longest = ClassHead(None, adapted.head.pad_token_id), _longest_text(plain, of_run.max_length)
        del model, plain, adapted
        gc.collect()
        found = _say_again(staged, spec, dtype, head, prompts)
        done = Merged(
            directory=output,
            base=source.name,
            base_weights=base_weights,
            dtype=str(dtype).removeprefix("torch."),
            layers=layers,
            difference=compare(expected, found, dtype=dtype, rounded=max(layers, others), routed=routed),
            prompts=len(prompts.rows) + len(prompts.pictures),
            images=len(prompts.pictures),
            tokens=expected.shape[0],
            adapter_changes=changes,
            from_trained=None if as_trained is None else float((as_trained - found).abs().max()),
        )
        _require_the_same(done)
        write_json(staged / MERGE, done.to_json())
        about = {"base": source.name, "base_weights": base_weights, "adapter": str(adapter), "labels": labels}
        meta: dict[str, Any] = {"merged": about}
        if of_run.rendering is not None:
            meta |= {TEMPLATE_KWARGS: dict(of_run.rendering.chat_template_kwargs)}
        if longest is not None:
            meta |= {MAX_LENGTH: longest}
        if card is not None:
            notes = (*card.notes, f"Merged: {done.in_words}.")
            merged = replace(card, form="merged", notes=notes, max_length=longest or card.max_length)
            write_text(staged / CARD, card_text(merged))
            meta |= {"card": merged.to_json(), "labels": labels}
        commit_directory(staged, output, meta, replaces=False)
    return done


def _load(spec: ModelSpec, adapter: Path, labels: tuple[str, ...] | None, of_run: OfRun) -> _Adapted:
    """The base with the adapter on it, in the precision of its files. What is packed is so as the run had it, from the
    precision that it computed in, and unpacked again."""
    rendering = of_run.rendering
    template, limit = (None, None) if rendering is None else (rendering.chat_template, rendering.image_max_tokens)
    classifies = read_adapter_config(adapter).task_type == CLASSIFIER
    source = locate(spec, "classifies" if classifies else "writes")
    config = load_config(source, spec)
    dtype = computed = stored_dtype(config, source.weights)
    if spec.quantization != "none" and of_run.dtype is not None:
        computed = getattr(torch, of_run.dtype)
    tokenizer, head = load_tokenizer(source, spec, template), None
    if classifies:
        head = ClassHead(labels, padding_id(tokenizer, config))
    vision, known = None, of_run.tokenizer
    if head is None and kind_of(config, "writes") == "vision":
        try:
            vision = load_vision(source, spec, tokenizer, max_tokens=limit, keep_template=template is not None)
        except ConfigError:  # no processor, or an unknown one: it is asked about texts alone, which merge.json says
            vision, known = None, None  # its template was perhaps the processor's
    (warn_of_another_tokenizer if of_run.base_is_given else require_trained_tokenizer)(source, tokenizer, known)
    model = load_model(source, spec, config, computed, head=head)
    if is_quantised(model):
        _as_in_files(model, unpack(model), computed, dtype)
    return _Adapted(load_adapter(model, adapter), source, dtype, head, tokenizer, vision)


def _as_in_files(model: Any, unpacked: Collection[str], computed: torch.dtype, dtype: torch.dtype) -> None:
    """Let weights that were read in 16 bits have the precision of their files again, which what an adapter brings whole
    then has. Those that were unpacked only where it is float32: else they are rounded once, as sums or where they are
    saved. Buffers and what is float32 stay: an architecture keeps these whatever the precision, as a router's offsets.
    """
    if computed == torch.float32:
        return
    for name, weight in model.named_parameters():
        if weight.dtype == computed and (name not in unpacked or dtype == torch.float32):
            weight.data = weight.data.to(dtype)


def _longest_text(plain: Any, trained: int | None) -> int | None:
    return None if trained is None else min(trained, position_limit(plain) or trained)


def _prompts(adapted: _Adapted, rows: Sequence[Sequence[int]]) -> Prompts:
    return prompts_for(adapted.model, adapted.tokenizer, rows, adapted.vision)


def _write_companions(plain: Any, adapted: _Adapted, staged: Path) -> None:
    """Tokenizer, processor and end tokens, as `export_final` would write them."""
    adapted.tokenizer.save_pretrained(str(staged))
    name_stop_ids(staged, stop_token_ids(plain, adapted.tokenizer))
    if adapted.vision is not None:
        adapted.vision.save(staged)


def _copy_companions(places: Sequence[Path], staged: Path, *, code: bool) -> None:
    """What belongs to a model besides its weights: the first tokenizer there is, of the rest the first of each; with
    `code` also the model's own."""
    names = [*OTHERS, *(file.name for file in sorted(places[-1].glob("*.py")) if code)]
    found = [(name, next((place for place in places if is_file(place / name)), None)) for name in names]
    whole = next((place for place in places if has_tokenizer(place)), None)
    found += [(name, whole) for name in OF_TOKENIZER]
    for name, place in found:
        if place not in (None, staged) and is_file(place / name):
            shutil.copyfile(place / name, staged / name)
    if whole not in (None, staged) and (whole / CHAT_TEMPLATES).is_dir():
        shutil.copytree(whole / CHAT_TEMPLATES, staged / CHAT_TEMPLATES)


def _say_again(
    staged: Path, spec: ModelSpec, dtype: torch.dtype, head: ClassHead | None, prompts: Prompts
) -> torch.Tensor:
    """What the model in a directory says."""
    source = ModelSource(staged, staged, staged.name)
    again = ModelSpec(name=str(staged), trust_remote_code=spec.trust_remote_code)
    return logits_of(load_model(source, again, load_config(source, again), dtype, head=head), prompts)


def _require_the_same(done: Merged) -> None:
    if done.difference.is_small:
        return
    off = done.difference
    share = "" if off.needed == 1.0 else f", and {off.within:.0%} of the tokens are within that (of {off.needed:.0%})"
    what = (
        f"the merged model does not say what base and adapter say: logits differ by up to {off.largest:.4g}, where "
        f"{off.tolerance:.4g} is what rounding to {done.dtype} explains{share}; nothing was written"
    )
    hint = "use the adapter without merging it, and report this with the adapter's adapter_config.json"
    raise RankzeroError(what, where=str(done.directory), hint=hint)


def add_adapters(adapted: Any, dtype: torch.dtype) -> int:
    """Add every adapter to the weight that it belongs to, in float32, one layer at a time, and round the sum to `dtype`
    where the weight was in 16 bits. Returns how many.

    Raises ConfigError where a sum is NaN or infinite.
    """
    count = 0
    uses = Counter(id(parameter) for _, parameter in adapted.named_parameters(remove_duplicate=False))
    for name, layer in adapted.named_modules():
        if isinstance(layer, TrainableTokensLayer):
            layer.merge()
            count += 1
        if not isinstance(layer, LoraLayer):
            continue
        owner = layer.get_base_layer()
        parameter = getattr(owner, layer.parameter_name if isinstance(layer, ParamWrapper) else "weight")
        if uses[id(parameter)] > 1:  # a head that is its embeddings, and only one of the two adapted
            parameter = torch.nn.Parameter(parameter.data.clone(), requires_grad=False)
            owner.weight = parameter
        precision = torch.float32 if parameter.dtype == torch.float32 else dtype
        parameter.data = parameter.data.to(torch.float32)
        try:
            layer.merge(safe_merge=True)
        except ValueError as error:
            hint = "the run diverged; take an earlier checkpoint"
            raise ConfigError("the adapter has NaN or Inf in it", where=name, hint=hint) from error
        parameter = getattr(owner, layer.parameter_name if isinstance(layer, ParamWrapper) else "weight")
        parameter.data = parameter.data.to(precision)
        count += 1
    return count
