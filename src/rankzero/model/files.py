"""The files of a model's directory, without loading any: what is missing, and what a header says of the layers.

Standard library only. Knows the format of safetensors headers; nothing of architectures.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from rankzero.directories import is_file, is_folder
from rankzero.errors import ConfigError, Problem
from rankzero.machine import cache_root
from rankzero.run_dir.atomic import file_sha256
from rankzero.run_dir.paths import TOKENIZER_FILES
from rankzero.run_dir.unread import may_be_read, read_errors

CHAT_TEMPLATES = "additional_chat_templates"
"""The folder of a tokenizer's chat templates that have names: one for tools, say, beside the default one."""
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_GENERATION = "generation_config.json"
_PICKLES = "pytorch_model*.bin"

NAMED_AS_STORED = frozenset(
    {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt2", "gpt_neox", "opt"}
    | {"bloom", "falcon", "bert", "distilbert", "roberta", "xlm-roberta", "deberta-v2", "electra", "modernbert"}
    | {"smollm3", "olmo", "olmo2", "olmo3", "granite", "starcoder2", "stablelm", "cohere", "cohere2", "glm", "glm4"}
)
"""Model types whose layers have the same names in the files as in the model. Others may be renamed as they load."""

_LONGEST_HEADER = 100 << 20


def if_own_code(error: BaseException, otherwise: str) -> str:
    """The hint where a model cannot be loaded: how its own code is run, where that is what transformers asks for."""
    if "trust_remote_code" not in str(error):
        return otherwise
    return (
        "its own code runs only where a run.yaml allows it (model.trust_remote_code: true); what was made of a run is "
        "asked by its run directory"
    )


def existing_directory(path: str, field: str) -> Path:
    """The directory at a path. Raises ConfigError where there is none, StorageError where that cannot be told now."""
    directory = Path(os.path.expanduser(path))
    with read_errors(directory):
        if not is_folder(directory):
            what = "is a file, not a directory" if is_file(directory) else "does not exist"
            raise ConfigError(f"{path} {what}", where=field, hint="give a directory in Hugging Face format")
    return directory


def weight_problems(directory: Path, *, trust_pickle: bool) -> list[Problem]:
    """What keeps the weights in a directory from being loaded. Raises StorageError where it cannot be read now."""
    with read_errors(directory):
        return _weight_problems(directory, trust_pickle=trust_pickle)


def _weight_problems(directory: Path, *, trust_pickle: bool) -> list[Problem]:
    patterns = ("*.json", "*.safetensors", _PICKLES)
    files = sorted(path for pattern in patterns for path in _named(directory, pattern))
    hint = f"this process runs as user {os.getuid()}: chmod a+r it (libraries write weights for their owner alone)"
    problems = [Problem("it may not be read", str(path), hint) for path in files if not may_be_read(path)]
    if problems:
        return problems
    problems += _config_problems(directory)
    if is_file(directory / WEIGHTS):
        return problems or _scale_problems(directory)
    if is_file(directory / INDEX):
        problems += _index_problems(directory)
        return problems or _scale_problems(directory)
    pickled = [path.name for path in pickles(directory)]
    if pickled and trust_pickle:
        return problems
    if pickled:
        hint = "convert it to safetensors, or set model.trust_pickle: true if you trust whoever made the file"
        problems.append(
            Problem(f"{pickled[0]} is a pickle, which can run code when it is loaded", str(directory), hint)
        )
    elif is_file(directory / "adapter_config.json"):
        hint = "name the base as the model; `rankzero merge` makes one model of both"
        problems = [Problem("this is an adapter, not a model", str(directory), hint)]
    else:
        hint = "the directory needs model.safetensors, or model.safetensors.index.json with its shards"
        problems.append(Problem("no weights: model.safetensors is missing", str(directory), hint))
    return problems


def pickles(directory: Path) -> list[Path]:
    """Weights as PyTorch wrote them before safetensors. Raises OSError where the directory cannot be listed."""
    return _named(directory, _PICKLES)


def _named(directory: Path, pattern: str) -> list[Path]:
    """As `Path.glob`, which takes a directory that cannot be listed for an empty one."""
    names = os.listdir(directory) if is_folder(directory) else []
    return sorted(directory / name for name in fnmatch.filter(names, pattern))


def tokenizer_problems(directory: Path) -> list[Problem]:
    """Whether there is a tokenizer. Raises StorageError where that cannot be told now."""
    with read_errors(directory):
        if any(is_file(directory / name) for name in TOKENIZER_FILES):
            return []
    hint = "copy tokenizer.json and tokenizer_config.json, or set model.tokenizer_dir"
    return [Problem("no tokenizer: tokenizer.json is missing", str(directory), hint)]


def read_config(directory: Path) -> dict[str, Any]:
    """config.json; empty where it is none. Raises ConfigError or StorageError where it cannot be read."""
    return _read_object(directory / "config.json") or {}


def sees_nothing(config: Mapping[str, Any]) -> bool:
    """Whether a config.json that says of what kind its model is says nothing of images."""
    return "model_type" in config and not any(name.startswith(("vision", "image", "mm_")) for name in config)


def _read_object(file: Path) -> dict[str, Any] | None:
    """None where it is no JSON object."""
    try:
        with read_errors(file):
            value = json.loads(file.read_text(encoding="utf-8")) if is_file(file) else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def stored_layers(directory: Path) -> tuple[str, ...] | None:
    """Names of all modules that have a weight in the safetensors files; None where these do not say it."""
    names: list[str] = []
    if is_file(directory / WEIGHTS):
        names = list(_header(directory / WEIGHTS) or ())
    elif is_file(directory / INDEX):
        names = list(_weight_map(directory) or ())
    suffix = ".weight"
    return tuple(name.removesuffix(suffix) for name in names if name.endswith(suffix)) or None


def stored_shapes(directory: Path) -> dict[str, tuple[int, ...]] | None:
    """The shape of every tensor in the safetensors files, by its name; None where one of them says nothing."""
    files = weight_files(directory)
    headers = [_header(file) if is_file(file) else None for file in files]
    shapes = {
        name: tuple(int(size) for size in entry["shape"])
        for header in headers
        for name, entry in (header or {}).items()
        if name != "__metadata__"
    }
    return shapes if headers and all(header is not None for header in headers) else None


def stored_precision(directory: Path) -> str | None:
    """What all tensors of the safetensors files are stored in, by safetensors' name (BF16); None where they differ."""
    headers = [_header(file) or {} for file in weight_files(directory)]
    found = {entry["dtype"] for header in headers for name, entry in header.items() if name != "__metadata__"}
    return found.pop() if len(found) == 1 else None


_VALUE_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


def stored_value_bytes(directory: Path) -> int:
    """Bytes of a value in a whole model that is made of this one: of the precision that `load.stored_dtype` finds, here
    without torch."""
    config = read_config(directory)
    text = config.get("text_config")
    for section in (config, text if isinstance(text, dict) else {}):
        said = str(section.get("dtype") or section.get("torch_dtype")).removeprefix("torch.")
        if said in _VALUE_BYTES:
            return _VALUE_BYTES[said]
    return _VALUE_BYTES.get(stored_precision(directory) or "", 4)


def cut_off(file: Path) -> str | None:
    """Why a safetensors file is not whole, by its size and the header's."""
    header = _header(file)
    if header is None:
        return "is no safetensors file, or its beginning is damaged"
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    whole = 8 + _header_size(file) + max(ends, default=0)
    size = file.stat().st_size
    return f"is cut off: {size:,} bytes of {whole:,}" if size < whole else None


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that the weights are in."""
    if is_file(directory / WEIGHTS):
        return [directory / WEIGHTS]
    return [directory / shard for shard in sorted(set((_weight_map(directory) or {}).values()))]


def _config_problems(directory: Path) -> list[Problem]:
    if not is_file(directory / "config.json"):
        return [Problem("config.json is missing", str(directory), "copy it from the model's Hub page")]
    config = read_config(directory)
    if not config:
        return [Problem("config.json is no JSON object", str(directory), "copy it from the model's Hub page")]
    if not isinstance(config.get("model_type"), str):
        hint = "copy it from the model's Hub page"
        return [Problem("config.json says no model_type, so nothing knows what the model is", str(directory), hint)]
    if is_file(directory / _GENERATION) and _read_object(directory / _GENERATION) is None:
        # transformers passes over it without a word, and with it over what an answer ends with.
        hint = "copy it from the model's Hub page, or remove it"
        return [Problem(f"{_GENERATION} is no JSON object", str(directory), hint)]
    return _kind_problems(config, str(directory / "config.json"))


def _kind_problems(config: Mapping[str, Any], where: str) -> list[Problem]:
    """Values of config.json that are read here before transformers checks them, or that it does not check."""
    text, problems = config.get("text_config"), []
    for prefix, section in (("", config), ("text_config.", text if isinstance(text, dict) else {})):
        for name, (kind, fits) in _KINDS.items():
            value = section.get(name)
            if value is not None and not fits(value):
                what = f"{prefix}{name} is {json.dumps(value)[:60]}, and is to be {kind}"
                problems.append(Problem(what, where, "copy config.json from the model's Hub page"))
    return problems


def _is_name(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_packing(value: Any) -> bool:
    block = value.get("weight_block_size") if isinstance(value, dict) else ()
    sizes = isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)
    return block is None or sizes


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "architectures": ("a list of names", lambda value: isinstance(value, list) and all(map(_is_name, value))),
    "auto_map": ("an object", _is_object),
    "is_causal": ("true or false", lambda value: isinstance(value, bool)),
    "num_hidden_layers": ("how many there are", lambda value: type(value) is int and value >= 0),
    "quantization_config": ("an object, a weight_block_size in it two numbers", _is_packing),
    "sliding_window": ("a number", lambda value: isinstance(value, int | list)),
    "text_config": ("an object", _is_object),
    "vision_config": ("an object", _is_object),
}
"""What values are to be, where there are any."""


def _index_problems(directory: Path) -> list[Problem]:
    where = _weight_map(directory)
    if where is None:
        return [Problem(f"{INDEX} cannot be read", str(directory), "copy it from the model's Hub page")]
    shards = sorted(set(where.values()))
    outside = [shard for shard in shards if shard != os.path.basename(shard) or shard in {"", ".", ".."}]
    if outside:
        hint = "weights lie beside their index; take the model from where it was published"
        return [
            Problem(f"{INDEX} names {shard[:80]!r}, outside of the model", str(directory), hint) for shard in outside
        ]
    missing = [shard for shard in shards if not is_file(directory / shard)]
    hint = f"copy the {len(missing)} of {len(shards)} shards that are missing"
    return [Problem(f"{shard} is missing", str(directory), hint) for shard in missing]


_EIGHT_BITS = frozenset({"F8_E4M3", "F8_E5M2", "I8", "U8"})
_SCALED_BY = ("{0}_scale_inv", "{1}.weight_scale_inv", "{1}.scale", "{1}.qscale_weight")
"""Where the scales of a weight are looked for as it is read: by its name, and by its module's."""
_NO_WEIGHTS = (".bias", ".masked_bias", ".mask", ".position_ids")
"""Causal masks and the like, which older versions of transformers saved, in bytes: no model reads them."""


def _scale_problems(directory: Path) -> list[Problem]:
    """Weights in 8 bits that would be read as if these were their values: without scales, or by scales for other
    places. Their format is one of those that config.json does not name, or names otherwise."""
    config = read_config(directory)
    text = config.get("text_config")
    packing = config.get("quantization_config") or (text or {}).get("quantization_config") or {}
    stored = {
        name: entry
        for file in weight_files(directory)
        for name, entry in (_header(file) or {}).items()
        if name != "__metadata__"
    }
    for name, entry in stored.items():
        kinds = _EIGHT_BITS if not packing else _EIGHT_BITS - {"I8", "U8"}  # what packs into bytes names them itself
        if entry["dtype"] not in kinds or len(entry["shape"]) < 2 or name.endswith(_NO_WEIGHTS):
            continue
        names = [pattern.format(name, name.removesuffix(".weight")) for pattern in _SCALED_BY] if packing else []
        scales = next((stored[scale]["shape"] for scale in names if scale in stored), None)
        if scales is not None and _scales_fit(entry["shape"], scales, packing.get("weight_block_size")):
            continue
        unknown = "nothing says by which scales" if scales is None else "its scales are of no layout that is known"
        what = f"{name} is stored in 8 bits ({entry['dtype']}), and {unknown}"
        hint = "take its unquantised weights, or FP8 ones with weight_scale_inv and a quantization_config"
        return [Problem(what, str(directory), hint)]
    return []


def _scales_fit(weight: list[int], scales: list[int], block: list[int] | None) -> bool:
    """Whether scales are one for all, or a grid over the rows and columns of a weight."""
    if prod(scales) == 1:
        return True
    if len(scales) != len(weight):
        return False
    sizes = list(zip(weight[-2:], scales[-2:], strict=True))
    cut = block is not None and all(-(-size // of) == count for (size, count), of in zip(sizes, block, strict=True))
    return cut or all(count and size % count == 0 for size, count in sizes)


def _weight_map(directory: Path) -> dict[str, str] | None:
    """The file of each tensor; None where nothing says it. Raises ConfigError or StorageError where that cannot be
    read."""
    try:
        value = (_read_object(directory / INDEX) or {})["weight_map"]
        return {str(name): str(file) for name, file in value.items()}
    except (KeyError, TypeError, AttributeError):
        return None


def _header_size(file: Path) -> int:
    with file.open("rb") as opened:
        return int.from_bytes(opened.read(8), "little")


def _header(file: Path) -> dict[str, Any] | None:
    """Shapes and places of the tensors, by their names. The file begins with the header's length and the header."""
    size = _header_size(file)
    if size > _LONGEST_HEADER:
        return None
    with file.open("rb") as opened:
        opened.seek(8)
        try:
            value = json.loads(opened.read(size))
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def gguf_place(file: Path) -> Path:
    """Where in the cache a GGUF file lies as a plain directory, by its content and by how it is converted."""
    digest = hashlib.sha256(f"{file_sha256(file)}:3".encode()).hexdigest()[:16]
    return cache_root() / "models" / f"{file.stem}-{digest}"


def converted_gguf(file: Path) -> Path | None:
    """The directory that a GGUF file became before; None where it has not been converted here."""
    target = gguf_place(file) if file.is_file() else None
    return target if target is not None and (target / "config.json").is_file() else None
