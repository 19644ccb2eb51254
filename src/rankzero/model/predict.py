"""Classes of texts from a sequence classification model. Knows nothing of runs or files."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankzero.data.cache.embedded import unembedded_problems
from rankzero.data.tokens.chat import Rendered, TokenRules
from rankzero.data.tokens.row_tokens import Encoder
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import ConfigError, DataError, NonFiniteError, Problem, RankzeroError
from rankzero.model.context import borders_in_use, most_in_use
from rankzero.model.load import (
    ClassHead,
    load_config,
    load_model,
    load_tokenizer,
    padding_counts,
    padding_id,
    settled_libraries,
    unembedded_tokens,
)
from rankzero.model.lora import load_adapter
from rankzero.model.out_of_memory import largest_first
from rankzero.model.parts import forget_lengths, position_limit
from rankzero.model.source import locate, warn_of_another_base, warn_of_another_tokenizer
from rankzero.model.while_writing import NO_NUMBERS_HINT
from rankzero.run_dir.result import Result

_WINDOW = 1024
"""Texts that are sorted by length together, so that those of like length share a pass."""
_BATCH = 32


@dataclass(frozen=True, slots=True)
class Prediction:
    """The likeliest class of a text, and the probability of each; they sum to one."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True, slots=True)
class Classifier:
    """A model in evaluation mode with what its texts become ids by."""

    model: Any
    encoder: Encoder
    labels: tuple[str, ...]
    """By number."""
    pad_token_id: int
    unembedded: Mapping[int, str]
    """Tokens that the model has no row for, by number."""


def load_classifier(result: Result, dtype: torch.dtype, device: torch.device) -> Classifier:
    """The model, with its adapter on top where it has one. Where there is none, the model's own config names the
    classes. Raises ConfigError, also where a text is in none of them or in several, AccessError, ServiceError.
    """
    spec, adapter, labels = result.model, result.adapter, result.labels
    source = locate(spec, "classifies")
    warn_of_another_base(source, result.trained_on)
    tokenizer = load_tokenizer(source, spec, None)
    if result.chat_template is None:  # texts for a class need none, and it is no part of this tokenizer
        warn_of_another_tokenizer(source, tokenizer, result.tokenizer)
    config = load_config(source, spec)
    if adapter is None:
        _require_trained_head(config, spec.name)
        labels = tuple(str(config.id2label[number]) for number in range(config.num_labels))
        _require_one_class_each(config, labels, source.weights / "config.json")
    elif labels is None:
        what = "the adapter does not say which classes it was trained on"
        raise ConfigError(what, where=str(adapter), hint="name the run directory that it belongs to")
    unembedded = unembedded_tokens(tokenizer, config, "classifier", source)
    pad = padding_id(tokenizer, config)
    model = load_model(source, spec, config, dtype, device=device, head=ClassHead(labels, pad))
    longest = min(limit for limit in (result.max_length, position_limit(model), most_in_use(config)) if limit)
    rules = TokenRules(max_length=longest, over_length="truncate", trains="label")
    encoder = Encoder(take_apart(tokenizer, "label"), rules)
    if adapter is not None:
        model = load_adapter(model, adapter)
    if spec.quantization == "none":
        model.to(device)
    model.eval()
    return Classifier(model, encoder, labels, pad, unembedded)


def classify(classifier: Classifier, texts: Sequence[str]) -> Iterator[Prediction]:
    """The class of each text, in order; longer texts are cut as in training. Raises DataError for texts without any
    token, or with one that the model cannot look up, as such rows of files are refused; NonFiniteError for
    texts of which it says what is no number."""
    for start in range(0, len(texts), _WINDOW):
        yield from _of_window(classifier, texts[start : start + _WINDOW], start)


@settled_libraries
def _of_window(classifier: Classifier, window: Sequence[str], start: int) -> list[Prediction]:
    """The classes of texts that are numbered from `start`, all at once: whoever takes them may take their time, or
    stop."""
    rendered = [Rendered(text, [], raw=True, add_eos=False, label="") for text in window]
    ids = [row.ids for row in classifier.encoder.encode(rendered)]
    empty = [n for n, (text, row) in enumerate(zip(window, ids, strict=True), start + 1) if not text.strip() or not row]
    problems = [Problem("this text has no tokens", f"text {n}", "leave it out") for n in empty]
    places = [f"text {start + n}" for n in range(1, len(ids) + 1)]
    problems += unembedded_problems(classifier.unembedded, ids, places)
    if problems:
        raise DataError(problems)
    found: dict[int, Prediction] = {}
    for batch, of_batch in largest_first(
        list(map(len, ids)),
        _kinds(classifier.model.config, ids),
        _BATCH,
        lambda batch: _probabilities(classifier, [ids[i] for i in batch]),
        lambda i: RankzeroError("out of memory", where=places[i], hint="CUDA_VISIBLE_DEVICES= takes the CPU"),
    ):
        for i, shares in zip(batch, of_batch, strict=True):
            if shares is None:
                continue
            named = dict(zip(classifier.labels, shares, strict=True))
            found[i] = Prediction(max(named, key=named.__getitem__), named)
    _require_all(found, places)
    return [found[i] for i in range(len(ids))]


def _require_all(found: Mapping[int, Prediction], places: Sequence[str]) -> None:
    what = "what the model says of its classes is NaN or Inf"
    problems = [Problem(what, where, NO_NUMBERS_HINT) for i, where in enumerate(places) if i not in found]
    if problems:
        raise NonFiniteError(problems)


def _kinds(config: Any, rows: Sequence[Sequence[int]]) -> list[int]:
    """What texts of a pass must have in common: a length where padding counts, else the side of where positions are
    computed in another way."""
    borders, alike = borders_in_use(config), padding_counts(config)
    return [len(row) if alike else bisect_left(borders, len(row)) for row in rows]


def _require_trained_head(config: Any, name: str) -> None:
    if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
        return
    found = ", ".join(config.architectures or ()) or config.model_type
    hint = "name a run of task classify, or ask a model that writes text: rankzero generate"
    raise ConfigError(f"{name} is no trained classifier: it is a {found}", where="model", hint=hint)


def _require_one_class_each(config: Any, labels: Sequence[str], file: Path) -> None:
    """Raise ConfigError where a model that may be anybody's does not put a text into one of several classes: shares
    that sum to one would say something else than it does."""
    with_transformers = 'transformers\' pipeline("text-classification", top_k=None) asks such a model'
    if config.problem_type == "multi_label_classification":
        what, hint = "a text may have several of its classes, or none", with_transformers
    elif config.problem_type == "regression" or len(labels) == 1:
        what, hint = "it says numbers of a text, and no classes", with_transformers
    elif twice := sorted({label for label in labels if labels.count(label) > 1}):
        what, hint = f"two of its classes have one name: {', '.join(twice)}", "name each class once: id2label, label2id"
    else:
        return
    raise ConfigError(what, where=str(file), hint=hint)


def _probabilities(classifier: Classifier, rows: list[list[int]]) -> list[list[float] | None]:
    """Shares of the classes, of shape (rows, classes); None of a row of which the model says what is no number."""
    width = max(map(len, rows))
    ids_BT = torch.full((len(rows), width), classifier.pad_token_id)
    mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids_BT[i, : len(row)] = torch.tensor(row)
        mask_BT[i, : len(row)] = 1
    device = next(classifier.model.parameters()).device
    forget_lengths(classifier.model)
    with torch.inference_mode():
        logits_BC = classifier.model(input_ids=ids_BT.to(device), attention_mask=mask_BT.to(device)).logits.float()
        finite, shares = logits_BC.isfinite().all(dim=-1).tolist(), logits_BC.softmax(dim=-1).tolist()
    return [row if numbers else None for row, numbers in zip(shares, finite, strict=True)]
