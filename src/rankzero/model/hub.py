"""Models on the Hub: what is fetched of them, what is here already, and what to say where the Hub says no.

Knows the Hub's client; nothing of what is in the files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rankzero.errors import AccessError, ConfigError, Problem, ServiceError
from rankzero.machine import offline
from rankzero.spec.nearby import meant_here, modelscope_hint, near
from rankzero.spec.run_spec import ModelSpec

TOKENIZER = ("*.json", "*.model", "*.txt", "*.jinja")
"""What a tokenizer, a processor and a config are made of."""
WEIGHTS = (*TOKENIZER, "*.safetensors", "README.md", "LICENSE*")
"""A model, and what it says about its licence, which the card of a result repeats."""
_IGNORED = ["original/*", "consolidated*", "onnx/*", "openvino/*"]


def require_hub_id(name: str) -> None:
    """Raise ConfigError for what can only have been meant as a path here, and is none."""
    if os.path.isfile(name):
        hint = "a model is a directory in Hugging Face format, a .gguf file, or a Hub id"
        raise ConfigError(f"{name} is a file, not a model", where="model.name", hint=hint)
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        close = near(name)
        hint = f"did you mean {close}?" if close else "check the path"
        raise ConfigError(f"there is no directory {name}", where="model.name", hint=hint)


def snapshot(spec: ModelSpec, patterns: Sequence[str]) -> Path:
    """The directory in the Hub's own cache with the files that match; each is downloaded once, by one process.

    Raises ConfigError, AccessError (gated or unauthorised) or ServiceError (Hub unreachable).
    """
    require_hub_id(spec.name)
    from huggingface_hub import errors, snapshot_download

    allowed = [*patterns, *(["*.bin"] if spec.trust_pickle else []), *(["*.py"] if spec.trust_remote_code else [])]
    local_only = spec.local_files_only or offline()
    try:
        path = snapshot_download(
            spec.name,
            revision=spec.revision,
            allow_patterns=allowed,
            ignore_patterns=_IGNORED,
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
            raise ConfigError(not_cached(spec)) from error
        raise _unreachable(spec.name) from error
    except (OSError, errors.HfHubHTTPError) as error:
        raise _unreachable(spec.name) from error
    return Path(path)


def _other_meaning(name: str) -> str:
    """The beginning of a hint: what a name that the Hub does not have may be instead."""
    return meant_here(name) or modelscope_hint(name, "model", "model.name")


def not_cached(spec: ModelSpec) -> Problem:
    """What to say of a Hub model that is not here and may not be fetched."""
    hint = _other_meaning(spec.name) + (
        "run once with the network, or put the files into a directory and set model.local_dir "
        "(`train --model-local-dir`); it needs config.json, model.safetensors (or its shards) and tokenizer.json"
    )
    return Problem(f"{spec.name} is not in the local cache and the network is not to be used", "model.name", hint)


def cached(spec: ModelSpec) -> bool:
    """Whether any of a Hub model's files were fetched before. A name that is no Hub id counts as one that was."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(spec.name, "config.json", revision=spec.revision), str)
    except errors.HFValidationError:
        return True  # `locate` says what is wrong with it


def cached_directory(spec: ModelSpec) -> Path | None:
    """The directory of a Hub model's files in the Hub's own cache; None where it is not there."""
    from huggingface_hub import errors, try_to_load_from_cache

    try:
        found = try_to_load_from_cache(spec.name, "config.json", revision=spec.revision)
    except errors.HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def _unreachable(name: str) -> ServiceError:
    hint = "check the network and HF_ENDPOINT, or put the files into a directory and set model.local_dir"
    return ServiceError(f"the Hub did not answer for {name}", where="model.name", hint=_other_meaning(name) + hint)


def _no_access(name: str, error: Exception) -> AccessError:
    reason = "is gated" if "Gated" in type(error).__name__ else "does not exist, or this token may not read it"
    hint = _other_meaning(name) + (
        f"(1) accept its terms on the model's Hub page ({name}) with your account; "
        "(2) export HF_TOKEN=<a read token of that account>, or log in with `hf auth login`; "
        "(3) or use a local copy: model.local_dir (`train --model-local-dir DIR --local-files-only`)"
    )
    return AccessError(f"{name} {reason}", where="model.name", hint=hint)
