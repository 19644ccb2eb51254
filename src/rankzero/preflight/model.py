"""Whether a model's files can be loaded and have the layers that a spec names. Reads configs and headers only."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

from rankzero.errors import Problem
from rankzero.machine import offline
from rankzero.model.files import (
    NAMED_AS_STORED,
    cut_off,
    read_config,
    stored_layers,
    tokenizer_problems,
    weight_files,
    weight_problems,
)
from rankzero.model.hub import cached, not_cached
from rankzero.preflight.finding import Finding
from rankzero.spec.load import Loaded
from rankzero.spec.local_paths import PathField, in_base, local_part
from rankzero.spec.nearby import shown
from rankzero.spec.run_spec import ModelSpec, RunSpec

_NOT_FOR_ADAPTERS = ("embed", "norm", "ln_", "lm_head", "wte", "wpe", "score", "classifier")
"""In names of layers that adapters are not put on."""


def model_findings(found: Loaded[RunSpec]) -> list[Finding]:
    """What is missing in the model's directory, and names in lora.target_modules that it does not have."""
    model = found.spec.model
    field, directory = _directory(model, found.base)
    if directory is None:
        return _hub_findings(model)
    if not directory.is_dir():
        return []  # a finding of its own, about the path
    problems = weight_problems(directory, trust_pickle=model.trust_pickle)
    if not problems:
        broken = ((file, cut_off(file)) for file in weight_files(directory))
        hint = "copy it again"
        problems = [Problem(f"{file.name} {what}", str(directory), hint) for file, what in broken if what]
    if model.tokenizer_dir is None:
        problems += tokenizer_problems(directory)
    findings = [_of(problem, field) for problem in problems]
    if model.tokenizer_dir is not None:
        tokenizer = Path(in_base(model.tokenizer_dir, found.base))
        if tokenizer.is_dir():
            findings += [_of(problem, "model.tokenizer_dir") for problem in tokenizer_problems(tokenizer)]
    return [*findings, *_layer_findings(found.spec, directory)]


def _directory(model: ModelSpec, base: Path) -> tuple[str, Path | None]:
    """The field that says where the weights are, and their directory; None for the Hub's and for a .gguf file."""
    if model.local_dir is not None:
        return "model.local_dir", Path(in_base(model.local_dir, base))
    part = local_part(PathField("model.name", "model", model.name), base)
    is_directory = part is not None and not part.path.endswith(".gguf")
    return "model.name", Path(in_base(model.name, base)) if is_directory else None


def _of(problem: Problem, field: str) -> Finding:
    return Finding(field, f"{shown(problem.where)}: {problem.what}", problem.hint)


def _hub_findings(model: ModelSpec) -> list[Finding]:
    """A Hub model that is not here although it may not be fetched either."""
    stays_here = model.local_files_only or offline()
    if model.name.endswith(".gguf") or not stays_here or importlib.util.find_spec("huggingface_hub") is None:
        return []
    if cached(model):
        return []
    problem = not_cached(model)
    return [Finding("model.name", problem.what, problem.hint)]


def _layer_findings(spec: RunSpec, directory: Path) -> list[Finding]:
    """Names that no layer has, where the files say what layers there are."""
    wanted = () if spec.lora is None or isinstance(spec.lora.target_modules, str) else spec.lora.target_modules
    as_stored = read_config(directory).get("model_type") in NAMED_AS_STORED and not spec.model.trust_remote_code
    layers = stored_layers(directory) if wanted and as_stored else None
    if layers is None:
        return []
    last = sorted({name.rpartition(".")[2] for name in layers})
    last = [name for name in last if not any(part in name for part in _NOT_FOR_ADAPTERS)]
    findings = []
    for name in wanted:
        if not any(layer == name or layer.endswith(f".{name}") for layer in layers):
            close = difflib.get_close_matches(name, last, n=1)
            hint = (f"did you mean {close[0]}? " if close else "") + f"it has: {', '.join(last)} (or say all-linear)"
            findings.append(Finding("lora.target_modules", f"the model has no linear module {name}", hint))
    return findings
