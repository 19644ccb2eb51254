"""Where a model's files are: a local directory, the Hub's cache, a GGUF file or the Hub. Loads no weights.

Everything ends as a local directory in Hugging Face format whose files were checked, so that loading itself cannot
fail for a missing file, and says all that is missing at once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from rankzero.errors import ConfigError
from rankzero.model.files import existing_directory, tokenizer_problems, weight_problems
from rankzero.model.gguf import gguf_as_safetensors
from rankzero.model.hub import WEIGHTS, snapshot
from rankzero.spec.run_spec import ModelSpec

_FINGERPRINT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Checked local directories of the weights and of the tokenizer, and the name to write into results."""

    weights: Path
    tokenizer: Path
    name: str


def weights_fingerprint(directory: Path) -> str:
    """Tells two models apart without reading gigabytes: the config, and name, size and head of each weights file.

    A safetensors file starts with the names, shapes and offsets of its tensors; the tensors follow.
    """
    digest = hashlib.sha256()
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    for path in sorted([*directory.glob("*.safetensors"), *directory.glob("pytorch_model*.bin")]):
        digest.update(f"{path.name}:{path.stat().st_size}:".encode())
        with path.open("rb") as file:
            digest.update(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()


def locate(spec: ModelSpec) -> ModelSource:
    """Find, and where allowed download, the model's files.

    Raises ConfigError (files missing), AccessError (gated or unauthorised), ServiceError (Hub unreachable).
    """
    if spec.local_dir is not None:
        weights = existing_directory(spec.local_dir, "model.local_dir")
        name = spec.name
    elif spec.name.endswith(".gguf"):
        weights = gguf_as_safetensors(Path(spec.name))
        name = str(weights)
    elif Path(spec.name).is_dir():
        weights = Path(spec.name)
        name = str(weights.resolve())
    else:
        weights = snapshot(spec, WEIGHTS)
        name = spec.name
    tokenizer = weights
    if spec.tokenizer_dir is not None:
        tokenizer = existing_directory(spec.tokenizer_dir, "model.tokenizer_dir")
    problems = [*weight_problems(weights, trust_pickle=spec.trust_pickle), *tokenizer_problems(tokenizer)]
    if problems:
        raise ConfigError(problems)
    return ModelSource(weights=weights, tokenizer=tokenizer, name=name)
