"""The README.md of a result: a model card as the Hub reads it, with what the model is made of and how it is loaded.

Knows what it is told, and the licence that a base's own files state. No path of a machine is on a card, and no secret.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from rankzero.errors import StorageError
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import read_manifest
from rankzero.run_dir.load_snippets import Form, Kind, Loading, commands, python

CARD = "README.md"
NOT_STATED = "not stated"
_UNKNOWN = "unknown"
"""The Hub's word for a licence that nobody states."""
_PIPELINES: dict[Kind, str] = {
    "causal": "text-generation",
    "vision": "image-text-to-text",
    "classifier": "text-classification",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_TEXTS = (
    ("Apache License", "apache-2.0"),
    ("Permission is hereby granted, free of charge", "mit"),
    ("GNU GENERAL PUBLIC LICENSE\nVersion 3", "gpl-3.0"),
)
"""What a licence's own text has, and the Hub's name of that licence."""
_FRONT = re.compile(r"---\s*\n(.*?)\n---\s*(?:\n|$)", re.DOTALL)
_LONGEST_SAMPLE = 600
_MOST_SAMPLES = 4
_MOST_FILES = 20


@dataclass(frozen=True, slots=True)
class Licence:
    """What the files of a base say about its licence."""

    name: str = NOT_STATED
    """As the Hub names it; `other` for one that it has no name for."""
    title: str = ""
    """Of a licence that the Hub has no name for."""
    stated_in: str = ""

    @property
    def in_words(self) -> str:
        """`apache-2.0 (README.md of the base)`."""
        known = self.title or self.name
        return known if not self.stated_in else f"{known} ({self.stated_in} of the base)"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows."""

    part: str
    """train or eval."""
    name: str
    """Without its directory."""
    rows: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True)
class Card:
    """All that a card says, as plain values; a result's manifest keeps it, for cards of what is made of the result."""

    name: str
    base: str
    base_id: str | None
    """Of a base on the Hub."""
    licence: Licence
    kind: Kind
    form: Form
    quantization: str = "none"
    dtype: str | None = None
    """Of an adapter: the precision that the run computed in, and packed its base from."""
    rank: int | None = None
    """Of adapters."""
    own_code: bool = False
    """Whether the model's own code was trusted, without which it is not loaded."""
    served_apart: bool = True
    """Whether a server that takes adapters takes this one."""
    labels: tuple[str, ...] | None = None
    max_length: int | None = None
    """Longest text of a classifier, in tokens."""
    is_chat: bool = False
    revision: str | None = None
    """Of a base on the Hub."""
    ends_of_text: int = 0
    """How many tokens the tokenizer itself puts behind a text."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template was given besides the turns; whoever asks the result gives it the same."""
    datasets: tuple[str, ...] = ()
    """Data sets on the Hub."""
    data: tuple[DataFile, ...] = ()
    fingerprint: str = ""
    """Of the training rows as they were tokenised and chosen."""
    settings: tuple[tuple[str, str], ...] = ()
    scores: tuple[tuple[str, float | None, float | None], ...] = ()
    """Name, before, after."""
    samples: tuple[tuple[str, str, str], ...] = ()
    """Prompt, before, after."""
    notes: tuple[str, ...] = ()
    """Paragraphs of ours below the first."""
    version: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, without secrets."""
        value: dict[str, Any] = json.loads(Redactor(os.environ)(json.dumps(asdict(self), ensure_ascii=False)))
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Card:
        """What `to_json` gave. Raises TypeError or KeyError where it is something else."""
        known = {one.name for one in fields(cls)}
        read = {name: _as_tuples(one) for name, one in value.items() if name in known}
        read["licence"] = Licence(**value["licence"])
        read["data"] = tuple(DataFile(**one) for one in value["data"])
        return cls(**read)


def card_text(card: Card) -> str:
    """The README.md, without anything that is a secret by its shape or held by this process's environment."""
    body = [
        f"# {card.name}",
        _introduction(card),
        *card.notes,
        *_load(card),
        *_made_of(card),
        *_scores(card),
        *_samples(card),
    ]
    front = yaml.safe_dump(_front_matter(card), sort_keys=False, allow_unicode=True)
    text = f"---\n{front}---\n\n" + "\n\n".join(body) + "\n"
    return Redactor(os.environ)(text)


def card_of(directory: Path) -> Card | None:
    """The card of a result or a merged model, as its manifest has it; None where there is none, or of a version that
    is not known."""
    try:
        return Card.from_json(read_manifest(directory)["card"])
    except (StorageError, KeyError, TypeError):
        return None


def hub_id(name: str, *, elsewhere: bool) -> str | None:
    """A model's or a data set's name where it is one of the Hub's; `elsewhere`: its files were given, so that the name
    is only a name."""
    path = Path(name)
    if not _HUB_ID.fullmatch(name) or name.startswith(".") or name.endswith(".gguf"):
        return None
    return name if elsewhere or not path.exists() else None


def licence_of(base: Path) -> Licence:
    """What a model's directory says about its licence: its card, its config, or a LICENSE file. Looks nowhere else."""
    card = _front_matter_of(base / CARD)
    named = card.get("license")
    if isinstance(named, list) and named:
        named = named[0]
    if isinstance(named, str) and named and named != _UNKNOWN:
        title = card.get("license_name") if named == "other" else ""
        return Licence(named, title if isinstance(title, str) else "", CARD)
    try:
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        config = {}
    if isinstance(config, dict) and isinstance(config.get("license"), str) and config["license"]:
        return Licence(config["license"], "", "config.json")
    for file in sorted(base.glob("LICEN[CS]E*")):
        try:
            text = file.read_text(encoding="utf-8", errors="replace")[:4000]
        except OSError:
            continue
        flat = re.sub(r"[ \t]*\n[ \t]*", "\n", text)
        known = next((name for part, name in _TEXTS if part in flat), None)
        first = next((line.strip("# ").strip() for line in text.splitlines() if line.strip()), file.name)
        return Licence(known or "other", "" if known else first[:100], file.name)
    return Licence()


def read_samples(path: Path, step: int) -> tuple[tuple[str, str, str], ...]:
    """Each prompt of samples.jsonl that was answered before the first step and by the weights of `step`, with both
    answers. A line that is none is passed over: the file may be being written."""
    asked: dict[str, dict[int, str]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ()
    for line in lines:
        try:
            value = json.loads(line)
            done, prompt, text = value["step"], value["prompt"], value["text"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(done, int) and isinstance(prompt, str) and isinstance(text, str):
            asked.setdefault(prompt, {})[done] = text
    found = [(prompt, said[0], said[step]) for prompt, said in asked.items() if step and {0, step} <= said.keys()]
    return tuple(found[:_MOST_SAMPLES])


def _front_matter(card: Card) -> dict[str, Any]:
    tags = ["rankzero", card.name]
    if card.form == "adapter":
        tags.insert(1, "lora")
    found: dict[str, Any] = {}
    if card.base_id is not None:
        relation = "adapter" if card.form == "adapter" else "finetune"
        found |= {"base_model": card.base_id, "base_model_relation": relation}
    found |= {"library_name": "peft" if card.form == "adapter" else "transformers"}
    found |= {"pipeline_tag": _PIPELINES[card.kind], "tags": tags}
    stated = card.licence.name != NOT_STATED
    found["license"] = card.licence.name if stated else _UNKNOWN
    if card.licence.name == "other" and card.licence.title:
        found["license_name"] = " ".join(card.licence.title.split())
    if card.datasets:
        found["datasets"] = list(card.datasets)
    return found


def _introduction(card: Card) -> str:
    base = f"[{card.base_id}](https://huggingface.co/{card.base_id})" if card.base_id else f"`{_plain(card.base)}`"
    what = {"adapter": "A low-rank adapter for", "merged": "A low-rank adapter merged into", "whole": "A fine-tune of"}
    text = f"{what[card.form]} {base}, made with rankzero {card.version}."
    return f"{text} Licence of the base: {_plain(card.licence.in_words)}."


def _load(card: Card) -> list[str]:
    result = Loading(
        kind=card.kind,
        form=card.form,
        quantization=card.quantization,
        dtype=card.dtype,
        labels=card.labels,
        is_chat=card.is_chat,
        revision=card.revision if card.base_id is not None else None,
        template_kwargs=card.chat_template_kwargs,
        ends_of_text=card.ends_of_text,
        own_code=card.own_code,
        max_length=card.max_length,
    )
    rank = card.rank if card.served_apart else None
    lines = commands(result, base=card.base_id or "BASE", name=card.name, rank=rank)
    found = ["## How to load it", "In this directory:", *([f"```\n{lines}\n```"] if lines else [])]
    found.append(f"```python\n{python(result)}\n```")
    if card.form == "adapter" and card.base_id is None:
        found.append("`adapter_config.json` says where the base was; elsewhere, give its directory instead.")
    if card.form == "adapter" and not card.served_apart:
        found.append("Servers take it merged: `rankzero merge . -o ../merged`.")
    if card.form == "adapter" and card.quantization == "fp8":
        found.append("It was trained on the base in 8-bit floats, which the snippet does not make.")
    return found


def _made_of(card: Card) -> list[str]:
    found = []
    if card.data:
        rows = [
            (file.part, _plain(file.name), "" if file.rows is None else f"{file.rows:,}", _code(file.sha256))
            for file in card.data[:_MOST_FILES]
        ]
        found += ["## Data", _table(("", "file", "rows", "sha256"), rows)]
        if len(card.data) > _MOST_FILES:
            found.append(f"And {len(card.data) - _MOST_FILES:,} more files.")
    if card.fingerprint:
        found.append(f"Training rows, tokenised and chosen: `{card.fingerprint}`.")
    if card.settings:
        found += ["## Training", _table(("", ""), [(name, _plain(value)) for name, value in card.settings])]
    return found


def _scores(card: Card) -> list[str]:
    rows = [(name, _number(before), _number(after)) for name, before, after in card.scores if after is not None]
    return ["## Scores", _table(("", "before", "after"), rows)] if rows else []


def _samples(card: Card) -> list[str]:
    found = ["## Samples"] if card.samples else []
    for prompt, before, after in card.samples:
        for head, text in (("Asked", prompt), ("Before", before), ("After", after)):
            cut = text if len(text) <= _LONGEST_SAMPLE else text[:_LONGEST_SAMPLE] + " …"
            lines = "\n".join(f"    {line}" for line in cut.splitlines() or [""])  # nothing in it is markup
            found.append(f"{head}:\n\n{lines}")
    return found


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def _plain(text: str) -> str:
    """Others' words in a line of Markdown: as text, whatever is in it."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(one) for one in value) if isinstance(value, list | tuple) else value


def _front_matter_of(path: Path) -> dict[str, Any]:
    try:
        match = _FRONT.match(path.read_text(encoding="utf-8", errors="replace"))
        value = yaml.safe_load(match[1]) if match else None
    except (OSError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}
