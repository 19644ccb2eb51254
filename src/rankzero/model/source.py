"""Where a model's files are: a local directory, the Hub's cache, a GGUF file or the Hub. Loads no weights.

Everything ends as a local directory in Hugging Face format whose files were checked, so that loading itself cannot
fail for a missing file, and says all that is missing at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rankzero.cache import cache_root
from rankzero.data.read.hashing import file_digest, remembered_digest
from rankzero.errors import AccessError, ConfigError, Problem, ServiceError
from rankzero.machine import offline, usable_cores
from rankzero.run_dir.atomic import file_sha256, storage_errors
from rankzero.spec.run_spec import ModelSpec

_log = logging.getLogger("rankzero.model")

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_SAID_BYTES = 1 << 30
"""Hashing fewer takes a moment that needs no words."""
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_HUB_IGNORED = ["original/*", "consolidated*", "onnx/*", "openvino/*"]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Checked local directories of the weights and of the tokenizer, and the name to write into results."""

    weights: Path
    tokenizer: Path
    name: str


def weights_fingerprint(directory: Path) -> str:
    """Tells two models apart by all of their bytes: the config, and name and sha256 of each file that is loaded.

    Large files are read once and remembered in the cache until their inode, size or times change. Raises StorageError.
    """
    digest = hashlib.sha256()
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config.pop("transformers_version", None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    files, cache = _weight_files(directory), cache_root()
    unread = sum(path.stat().st_size for path in files if remembered_digest(str(path), cache) is None)
    if unread > _SAID_BYTES:
        _log.info("[STEP] hash the weights, %.1f GB: once, then as long as they stay as they are", unread / 1e9)
    with storage_errors(directory), ThreadPoolExecutor(usable_cores()) as pool:
        for path, sha256 in zip(files, pool.map(lambda path: file_digest(str(path), cache), files), strict=True):
            digest.update(f"{path.name}:{sha256}:".encode())
    return digest.hexdigest()


def _weight_files(directory: Path) -> list[Path]:
    """The files that are loaded: one, the shards of an index, or pickles where there is nothing else."""
    whole, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        return [directory / shard for shard in sorted(_shards(index))]
    return sorted(directory.glob("pytorch_model*.bin"))


def _shards(index: Path) -> set[str]:
    return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())


def locate(spec: ModelSpec) -> ModelSource:
    """Find, and where allowed download, the model's files.

    Raises ConfigError (files missing), AccessError (gated or unauthorised), ServiceError (Hub unreachable).
    """
    if spec.local_dir is not None:
        weights = _existing_directory(spec.local_dir, "model.local_dir")
        name = spec.name
    elif spec.name.endswith(".gguf"):
        weights = gguf_as_safetensors(Path(spec.name))
        name = str(weights)
    elif Path(spec.name).is_dir():
        weights = Path(spec.name)
        name = str(weights.resolve())
    else:
        weights = _from_hub(spec)
        name = spec.name
    tokenizer = weights
    if spec.tokenizer_dir is not None:
        tokenizer = _existing_directory(spec.tokenizer_dir, "model.tokenizer_dir")
    problems = [*_weight_problems(weights, trust_pickle=spec.trust_pickle), *_tokenizer_problems(tokenizer)]
    if problems:
        raise ConfigError(problems)
    return ModelSource(weights=weights, tokenizer=tokenizer, name=name)


def _existing_directory(path: str, field: str) -> Path:
    directory = Path(path).expanduser()
    if not directory.is_dir():
        what = "is a file, not a directory" if directory.exists() else "does not exist"
        raise ConfigError(f"{path} {what}", where=field, hint="give a directory in Hugging Face format")
    return directory


def _weight_problems(directory: Path, *, trust_pickle: bool) -> list[Problem]:
    patterns = ("*.json", "*.safetensors", "pytorch_model*.bin")
    files = sorted(path for pattern in patterns for path in directory.glob(pattern))
    hint = f"this process runs as user {os.getuid()}: chmod a+r it (libraries write weights for their owner alone)"
    problems = [Problem("it may not be read", str(path), hint) for path in files if not os.access(path, os.R_OK)]
    if problems:
        return problems
    if not (directory / "config.json").is_file():
        problems.append(Problem("config.json is missing", str(directory), "copy it from the model's Hub page"))
    if (directory / "model.safetensors").is_file():
        return problems
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(_shards(index))
        missing = [shard for shard in shards if not (directory / shard).is_file()]
        hint = f"copy the {len(missing)} of {len(shards)} shards that are missing"
        return problems + [Problem(f"{shard} is missing", str(directory), hint) for shard in missing]
    pickled = sorted(path.name for path in directory.glob("pytorch_model*.bin"))
    if pickled and trust_pickle:
        return problems
    if pickled:
        hint = "convert it to safetensors, or set model.trust_pickle: true if you trust whoever made the file"
        problems.append(
            Problem(f"{pickled[0]} is a pickle, which can run code when it is loaded", str(directory), hint)
        )
    else:
        hint = "the directory needs model.safetensors, or model.safetensors.index.json with its shards"
        problems.append(Problem("no weights: model.safetensors is missing", str(directory), hint))
    return problems


def _tokenizer_problems(directory: Path) -> list[Problem]:
    if any((directory / name).is_file() for name in TOKENIZER_FILES):
        return []
    hint = "copy tokenizer.json and tokenizer_config.json, or set model.tokenizer_dir"
    return [Problem("no tokenizer: tokenizer.json is missing", str(directory), hint)]


def _from_hub(spec: ModelSpec) -> Path:
    """A snapshot in the Hub's own cache; each file is downloaded once, by one process."""
    if spec.name.count("/") > 1 or spec.name.startswith((".", "/", "~")):
        raise ConfigError(f"{spec.name} is no directory", where="model.name", hint="check the path")
    from huggingface_hub import errors, snapshot_download

    allowed = [*_HUB_PATTERNS, *(["*.bin"] if spec.trust_pickle else []), *(["*.py"] if spec.trust_remote_code else [])]
    local_only = spec.local_files_only or offline()
    try:
        path = snapshot_download(
            spec.name,
            revision=spec.revision,
            allow_patterns=allowed,
            ignore_patterns=_HUB_IGNORED,
            local_files_only=local_only,
        )
    except errors.HFValidationError as error:
        hint = "a Hub id looks like Qwen/Qwen3-8B; a local model needs the path of an existing directory"
        raise ConfigError(f"{spec.name} is neither a directory nor a Hub id", where="model.name", hint=hint) from error
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise _no_access(spec.name, error) from error
    except errors.RevisionNotFoundError as error:
        hint = "check model.revision against the branches and tags on the model's page"
        raise ConfigError(f"{spec.name} has no revision {spec.revision}", where="model.revision", hint=hint) from error
    except errors.LocalEntryNotFoundError as error:
        if local_only:
            hint = (
                "run once with the network, or put the files into a directory and set model.local_dir "
                "(--model-local-dir); it needs config.json, model.safetensors (or its shards) and tokenizer.json"
            )
            raise ConfigError(
                f"{spec.name} is not in the local cache and the network is not to be used",
                where="model.name",
                hint=hint,
            ) from error
        raise _unreachable(spec.name) from error
    except (OSError, errors.HfHubHTTPError) as error:
        raise _unreachable(spec.name) from error
    return Path(path)


def _unreachable(name: str) -> ServiceError:
    hint = "check the network and HF_ENDPOINT, or put the files into a directory and set model.local_dir"
    return ServiceError(f"the Hub did not answer for {name}", where="model.name", hint=hint)


def _no_access(name: str, error: Exception) -> AccessError:
    reason = "is gated" if "Gated" in type(error).__name__ else "does not exist, or this token may not read it"
    hint = (
        f"(1) accept its terms on the model's Hub page ({name}) with your account; "
        "(2) export HF_TOKEN=<a read token of that account>, or log in with `hf auth login`; "
        "(3) or use a local copy: model.local_dir (--model-local-dir DIR --local-files-only)"
    )
    return AccessError(f"{name} {reason}", where="model.name", hint=hint)


def gguf_as_safetensors(file: Path) -> Path:
    """A GGUF file's model and tokenizer as a plain directory in the cache, converted once per content.

    A model that transformers read from GGUF refuses `save_pretrained` (it counts as quantised), so its state is
    copied into a plain model of the same config.
    """
    if not file.is_file():
        raise ConfigError(f"{file} does not exist", where="model.name", hint="give the path of a .gguf file")
    digest = hashlib.sha256(f"{file_sha256(file)}:1".encode()).hexdigest()[:16]
    target = cache_root() / "models" / f"{file.stem}-{digest}"
    if (target / "config.json").is_file():
        return target
    try:
        import gguf  # noqa: F401  transformers reads GGUF through it
    except ImportError as error:
        hint = "pip install 'rankzero[demo]'"
        raise ConfigError("reading a GGUF file needs the package gguf", where="model.name", hint=hint) from error
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not (target / "config.json").is_file():
            staged = target.with_name(f".tmp-{target.name}-{uuid.uuid4().hex}")
            try:
                _convert_gguf(file, staged)
                os.rename(staged, target)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    return target


def _convert_gguf(file: Path, staged: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory, name = str(file.resolve().parent), file.name
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
    quantised = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(staged)
    tokenizer.save_pretrained(staged)
