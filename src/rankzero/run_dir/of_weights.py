"""What the manifest of a result, or of a checkpoint, says of its weights. Reads JSON; knows no spec but as values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.run_dir.atomic import MANIFEST
from rankzero.run_dir.intact import WEIGHTS
from rankzero.spec.tasks import TASKS

if TYPE_CHECKING:
    from rankzero.spec.tasks import ModelUse

TEMPLATE_KWARGS = "chat_template_kwargs"
"""What the chat template was given: in a card, and in the manifest of a model that has none."""
MAX_LENGTH = "max_length"
"""The longest text of a classifier, in tokens: in the manifest of a model that was made of a result."""


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The weights before training, by content, as the manifest of a result or of a checkpoint has them."""

    fingerprint: str
    own_code: ModelUse | None
    """The use of which the model's own code is in it; None: none is."""


def template_kwargs_of(directory: Path) -> dict[str, Any]:
    """What the chat template was given where a result was trained, as the result says itself."""
    manifest = words(directory / MANIFEST)
    card = manifest.get("card")
    said = card.get(TEMPLATE_KWARGS) if isinstance(card, dict) else manifest.get(TEMPLATE_KWARGS)
    return said if isinstance(said, dict) else {}


def labels_of(directory: Path) -> tuple[str, ...] | None:
    """The classes that a result or a checkpoint's weights were trained on, by number; None where nothing says them."""
    for place in (directory, directory.parent):
        try:
            found = json.loads((place / MANIFEST).read_text(encoding="utf-8")).get("labels")
        except (OSError, ValueError):
            continue
        return tuple(found) if found else None
    return None


def trained_on_of(directory: Path) -> TrainedOn | None:
    """Which base a result, or a checkpoint's weights, were trained on; None where the manifest does not say it, as of
    results of before it did."""
    said = about(directory)
    fingerprint, spec = said.get("model"), said.get("spec")
    if not isinstance(fingerprint, str) or not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        return None
    if not spec["model"].get("trust_remote_code"):
        return TrainedOn(fingerprint, None)
    task = TASKS.get(str(spec.get("task")))
    return None if task is None else TrainedOn(fingerprint, task.uses)


def gguf_of(weights: Path) -> str | None:
    """The GGUF file that a result's base was made of, by its manifest."""
    spec = about(weights).get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    return name if isinstance(name, str) and name.endswith(".gguf") else None


def stop_ids_of(directory: Path) -> tuple[int, ...]:
    """The tokens that answers end with, by a checkpoint's manifest; () where it does not say them."""
    found = about(directory).get("stop_ids")
    return tuple(number for number in found if isinstance(number, int)) if isinstance(found, list) else ()


def taught_ends_of(directory: Path) -> tuple[int, ...]:
    """The tokens that answers of a result, an adapter or a checkpoint end with, the one that was taught among them; ()
    where nothing says them."""
    found = words(directory / "generation_config.json").get("eos_token_id")
    several = found if isinstance(found, list) else [found]
    return tuple(number for number in several if isinstance(number, int)) or stop_ids_of(directory)


def tokenizer_of(directory: Path) -> str | None:
    """The tokenizer and chat template that weights were trained with, by content; None where the manifest does not say
    it."""
    found = about(directory).get("tokenizer")
    return found if isinstance(found, str) else None


def dtype_of(directory: Path) -> str | None:
    """The precision that a run computed in, and packed its base from; None where the manifest does not say it."""
    found = about(directory).get("dtype")
    return found if found in ("bfloat16", "float16", "float32") else None


def about(weights: Path) -> dict[str, Any]:
    """The manifest of the result, or of the checkpoint, that has these weights; {} where there is none."""
    return words(weights / MANIFEST) or (words(weights.parent / MANIFEST) if weights.name == WEIGHTS else {})


def words(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def quantization_of(directory: Path) -> str | None:
    """In how many bits a run held the base; None where it held it as it is, or the manifest does not say it."""
    spec = about(directory).get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    found = model.get("quantization") if isinstance(model, dict) else None
    return found if isinstance(found, str) and found != "none" else None


def max_length_of(directory: Path) -> int | None:
    """Longest text of a classifier, in tokens; None where the manifest does not say it."""
    manifest = about(directory)
    spec = manifest.get("spec")
    data = spec.get("data") if isinstance(spec, dict) else None
    found = manifest.get(MAX_LENGTH) or (data.get("max_length") if isinstance(data, dict) else None)
    return found if isinstance(found, int) else None
