"""The flags of train_framework.py as spec fields. Pure: flags in, dotted fields out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankzero.errors import Problem, UsageError
from rankzero.spec.load import Setting
from rankzero.spec.names import PATTERNS_IN_WORDS, RUN_NAME_PATTERN

SEED_TARGET_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]


@dataclass(frozen=True, slots=True)
class SeedFlags:
    """What was given; None where a flag was not."""

    model: str | None = None
    data: str | None = None
    row_format: str | None = None
    output: str | None = None
    epochs: float | None = None
    seq_len: int | None = None
    batch: int | None = None
    grad_accum: int | None = None
    bf16: bool = False
    lora: bool = False
    lora_r: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float | None = None
    target_modules: Sequence[str] = ()
    model_local_dir: str | None = None
    tokenizer_local_dir: str | None = None
    local_files_only: bool = False


def as_settings(flags: SeedFlags, *, world_size: int) -> list[Setting]:
    """Spec fields for the flags that were given, each knowing its flag. Raises UsageError.

    global_batch_size = batch x grad_accum x world_size, as the flags define it; one of the two alone leaves the other
    at 1.
    """
    given: list[tuple[str, object, str]] = [
        ("model.name", flags.model, "--model"),
        ("data.train", _rows(flags), "--data"),
        ("train.num_train_epochs", flags.epochs, "--epochs"),
        ("data.max_length", flags.seq_len, "--seq-len"),
        ("model.dtype", "bfloat16" if flags.bf16 else None, "--bf16"),
        ("model.local_dir", flags.model_local_dir, "--model-local-dir"),
        ("model.tokenizer_dir", flags.tokenizer_local_dir, "--tokenizer-local-dir"),
        ("model.local_files_only", True if flags.local_files_only else None, "--local-files-only"),
        ("lora.r", flags.lora_r, "--lora-r"),
        ("lora.alpha", flags.lora_alpha, "--lora-alpha"),
        ("lora.dropout", flags.lora_dropout, "--lora-dropout"),
        ("lora.target_modules", _modules(flags.target_modules), "--target-modules"),
    ]
    settings = [Setting(field, value, flag) for field, value, flag in given if value is not None]
    if flags.lora:
        settings.append(Setting("lora.target_modules", SEED_TARGET_MODULES, "--lora", keep_existing=True))
    if flags.batch is not None or flags.grad_accum is not None:
        size = (flags.batch or 1) * (flags.grad_accum or 1) * world_size
        settings.append(Setting("train.global_batch_size", size, "--batch"))
    if flags.output is not None:
        settings += _run_directory(flags.output)
    return settings


def _rows(flags: SeedFlags) -> object:
    if flags.row_format is None:
        return flags.data
    if flags.data is None:
        hint = f"add --data FILE; of a spec's rows: data.train: [{{path: …, format: {flags.row_format}}}]"
        raise UsageError("--format says how the rows of --data look", where="--format", hint=hint)
    return [{"path": flags.data, "format": flags.row_format}]


def _modules(names: Sequence[str]) -> object:
    """Names of modules, or the one word that stands for them."""
    if len(names) == 1 and names[0] in ("auto", "all-linear"):
        return names[0]
    return list(names) or None


def require_lora(flags: SeedFlags, lora_source: str | None) -> None:
    """Raise UsageError where adapters are described but nothing asks for them.

    `lora_source` is the file or flag that first wrote the lora section.
    """
    if not flags.lora and lora_source in {"--lora-r", "--lora-alpha", "--lora-dropout", "--target-modules"}:
        raise UsageError(f"{lora_source} needs --lora", hint="add --lora, or leave it out for a full fine-tune")


def _run_directory(output: str) -> list[Setting]:
    """--output names the run directory itself."""
    path = Path(output)
    if not re.fullmatch(RUN_NAME_PATTERN, path.name):
        hint = f"the directory's name is the run's name: {PATTERNS_IN_WORDS[RUN_NAME_PATTERN]}"
        raise UsageError(Problem(f"{path.name or output!r} cannot be a run's name", "--output", hint))
    return [Setting("output_dir", str(path.parent), "--output"), Setting("name", path.name, "--output")]
