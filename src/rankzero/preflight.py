"""Everything about a run that costs no seconds to find out, in one go with what is wrong in the spec itself.

Reads directories, configs and headers; imports no torch and asks no network. Paths are asked for by os.path, to which
one that may not be looked at is none: pathlib raises then, and the other findings would be lost.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import platform
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rankzero.data.read.local import local_files, may_be_here
from rankzero.directories import is_file, is_folder, status, why_not_writable
from rankzero.errors import AccessError, ConfigError, DataError, Problem, RankzeroError, ServiceError, StorageError
from rankzero.machine import local_gpu_count, offline
from rankzero.model.context import stored_context
from rankzero.model.files import (
    NAMED_AS_STORED,
    cut_off,
    read_config,
    sees_nothing,
    stored_layers,
    tokenizer_problems,
    weight_files,
    weight_problems,
)
from rankzero.model.hub import cached, not_cached
from rankzero.model.layer_names import named_instead, trained_otherwise
from rankzero.run_dir.lease import holder
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import settled
from rankzero.run_dir.unread import may_be_read, read_errors
from rankzero.spec.load import Loaded, Reading, in_reading_order
from rankzero.spec.local_paths import LocalPart, PathField, absolute, in_base, local_part, path_fields
from rankzero.spec.nearby import dangling, near, shown
from rankzero.spec.no_effect import in_vain_on_cpus, unread_of_local_model, unread_of_run, unread_of_text_model
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import DataSpec, ModelSpec, RunSpec
from rankzero.spec.tasks import TASKS
from rankzero.track.send import server_modules


@dataclass(frozen=True, slots=True)
class Finding:
    """`field` is dotted (`data.train[1].path`); where it was written is told by whoever has the file."""

    field: str
    what: str
    hint: str = ""
    error: type[RankzeroError] | None = ConfigError
    """None: it keeps nothing from running, and is said all the same."""


Part = Literal["paths", "model", "device", "run directory", "copies", "trackers"]
"""paths: files that the spec names. model: what is in the model's directory. device: what it has no use for. run
directory: whether it can be one. copies, trackers: whether what they need is installed and set."""

EVERYTHING: tuple[Part, ...] = ("paths", "model", "device", "run directory", "copies", "trackers")
_WORST_FIRST = (ConfigError, DataError, AccessError, ServiceError, StorageError)
"""Of several kinds of problems the exit code is that of the first here: what never mends itself before what may."""


def look(
    reading: Reading[RunSpec], parts: Collection[Part] = EVERYTHING, *, warn: Callable[[Problem], None] = lambda _: None
) -> Loaded[RunSpec]:
    """The spec, where nothing is wrong with it and with what it names here. `warn` is told what is only doubtful.

    Raises the RankzeroError of the worst kind that was found, with every problem of every kind, each at its line.
    """
    found = reading.found
    every = [] if found is None else _findings(found, parts)
    every = [finding for finding in every if not _is_doubtful(finding.field, reading.doubtful)]
    findings = [finding for finding in every if finding.error is not None]
    if found is not None:
        for doubt in in_reading_order([_at(found, finding) for finding in every if finding.error is None]):
            warn(doubt)
    if found is None or reading.problems or findings:
        places = [_at(found, finding) for finding in findings] if found is not None else []
        kinds = {finding.error for finding in findings} | (
            {ConfigError} if reading.problems or found is None else set()
        )
        error: type[RankzeroError] = next((kind for kind in _WORST_FIRST if kind in kinds), RankzeroError)
        raise error(in_reading_order([*reading.problems, *places]))
    return found


def _at(found: Loaded[RunSpec], finding: Finding) -> Problem:
    return Problem(finding.what, found.where(finding.field), finding.hint)


def look_for_files(reading: Reading[RunSpec]) -> Loaded[RunSpec]:
    """As `look`, for a spec whose absolute paths are another machine's: only what lies in the wrong place here."""
    loaded = reading.loaded()
    problems = [_at(loaded, finding) for finding in misplaced(loaded)]
    if problems:
        raise ConfigError(in_reading_order(problems))
    return loaded


def _findings(found: Loaded[RunSpec], parts: Collection[Part]) -> list[Finding]:
    elsewhere = misplaced(found) if parts else []
    findings: list[Finding] = []
    if "paths" in parts:
        findings += [*path_findings(found), *evaluation_findings(found), *_doubtful(unread_of_run(found.spec))]
    if "model" in parts:
        findings += model_findings(found)
    if "device" in parts:
        findings += device_findings(found.spec)
    if "run directory" in parts:
        findings += run_directory_findings(found)
    if "copies" in parts:
        findings += copy_findings(found.spec.output_url)
    if "trackers" in parts:
        findings += tracker_findings(found.spec)
    told = {finding.field for finding in elsewhere}
    return [*elsewhere, *(finding for finding in findings if finding.field not in told)]


def _is_doubtful(field: str, doubtful: Collection[str]) -> bool:
    """Whether a field's value is a stand-in for one that the schema refused."""
    return any(a == b or a.startswith((f"{b}.", f"{b}[")) for d in doubtful for a, b in ((field, d), (d, field)))


def _doubtful(problems: Iterable[Problem]) -> list[Finding]:
    return [Finding(one.where, one.what, one.hint, error=None) for one in problems]


def device_findings(spec: RunSpec) -> list[Finding]:
    """What the devices of this machine have no use for. Drivers take a moment to answer, so they are asked last."""
    unread = in_vain_on_cpus(spec)
    on_cpus = bool(unread) and platform.system() != "Darwin" and not local_gpu_count(os.environ)
    return _doubtful(unread) if on_cpus else []


_MOST_PROBED = 50
"""Data files of which the beginning is looked at."""


def path_findings(found: Loaded[RunSpec]) -> list[Finding]:
    """What is missing, unreadable, or of another kind than it has to be."""
    findings = []
    for field in path_fields(found.spec):
        part = local_part(field, found.base)
        if part is not None and field.kind != "output":
            findings += _looked_at(field, in_base(part.path, found.base))
    return findings


_COUNTED_BYTES = 1 << 20
"""A larger file to evaluate on has more than one row, or one that is worth it."""


def evaluation_findings(found: Loaded[RunSpec]) -> list[Finding]:
    """Whether what is evaluated on is a single row."""
    fields = [
        field for field in path_fields(found.spec) if field.field.startswith("data.eval") and field.kind == "data"
    ]
    parts = [local_part(field, found.base) for field in fields]
    try:
        listed = [None if part is None else local_files(in_base(part.path, found.base)) for part in parts]
    except StorageError:
        return []
    known = [files for files in listed if isinstance(files, tuple)]
    if not known or len(known) < len(fields) or importlib.util.find_spec("orjson") is None:
        return []
    from rankzero.data.read.sources import count_rows

    files = [name for names in known for name in names]
    try:
        if sum(os.path.getsize(name) for name in files) > _COUNTED_BYTES or sum(map(count_rows, files)) != 1:
            return []
    except (OSError, RankzeroError):
        return []  # which is a finding of its own, about the path
    what = f"{shown(files[0])} has one row, whose loss tells next to nothing"
    hint = "give it some dozens, or hold out a share: data.eval: {fraction: 0.05}"
    return [Finding("data.eval", what, hint, error=None)]


def misplaced(found: Loaded[RunSpec]) -> list[Finding]:
    """Relative paths of a spec in another directory that only mean something in the working directory."""
    if found.base == Path.cwd():
        return []
    findings = []
    for field in path_fields(found.spec):
        part = local_part(field, found.base) or _here(field)
        if part is None or field.kind == "output" or os.path.isabs(os.path.expanduser(part.path)):
            continue
        if not _exists(part.path, found.base) and _exists(part.path, Path.cwd()):
            way = os.path.relpath(part.path, found.base)
            hint = f"write {way}, or give {field.field}={part.path} on the command line"
            meant = shown(in_base(part.path, found.base))
            what = (
                f"there is no {meant}: relative paths of a spec are relative to its file, "
                f"and only the working directory has {part.path}"
            )
            findings.append(Finding(field.field, what, hint, DataError if field.kind == "data" else ConfigError))
    return findings


def _here(field: PathField) -> LocalPart | None:
    """The path in a field as the working directory sees it: what looks like a Hub id may be a directory there."""
    return local_part(field, Path.cwd()) if field.kind in ("model", "data") else None


def _exists(path: str, base: Path) -> bool:
    """Or may: what cannot be looked at is spoken of where it is meant."""
    place = in_base(path, base)
    try:
        return may_be_here(place) or not isinstance(local_files(place), Problem)
    except StorageError:
        return True


def _looked_at(field: PathField, path: str) -> list[Finding]:
    try:
        with read_errors(path):
            return _of_field(field, path)
    except (ConfigError, StorageError) as error:
        told = [(f"{shown(problem.where)}: {problem.what}", problem.hint) for problem in error.problems]
        return [Finding(field.field, what, hint, type(error)) for what, hint in told]


def _of_field(field: PathField, path: str) -> list[Finding]:
    """Raises OSError or StorageError where it cannot be looked at."""
    if field.kind == "data":
        meant = f"a list of one prompt is written [{field.text}]" if _is_prompt(field) else ""
        return [
            Finding(field.field, f"{shown(p.where or path)}: {p.what}", meant or p.hint, DataError) for p in _data(path)
        ]
    if field.kind == "file":
        return [Finding(field.field, what, hint) for what, hint in _file(field, path)]
    if field.kind == "model" and path.endswith(".gguf"):
        missing = [] if is_file(path) else [_no_such("file", path)]
        return [Finding(field.field, what, hint) for what, hint in missing]
    if is_folder(path):
        return []
    if status(path) is not None:
        return [Finding(field.field, f"{shown(path)} is a file, not a directory", _wanted(field))]
    what, hint = _no_such("directory", path)
    return [Finding(field.field, what, hint or _wanted(field))]


def _is_prompt(field: PathField) -> bool:
    """Whether it rather looks like what is asked than like a file of it."""
    return field.field == "eval.prompts" and " " in field.text.strip()


def _data(path: str) -> list[Problem]:
    found = local_files(path)
    if isinstance(found, Problem):
        return [found]
    problems = [Problem("may not be read by this user", name) for name in found if not may_be_read(name)]
    if problems or importlib.util.find_spec("orjson") is None:
        return problems
    from rankzero.data.read.sources import probe

    probed = [(name, probe(name)) for name in found[:_MOST_PROBED]]
    return [Problem(problem.what, name, problem.hint) for name, problem in probed if problem is not None]


def _file(field: PathField, path: str) -> list[tuple[str, str]]:
    """Problems of a file that is read as a whole, as (what, hint)."""
    if is_folder(path):
        return [(f"{shown(path)} is a directory, not a file", "")]
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return [_no_such("file", path)]
    except UnicodeDecodeError as error:
        return [(f"{shown(path)} cannot be read: {error}", "")]
    if field.field == "train.deepspeed":
        try:
            json.loads(text)
        except ValueError as error:
            return [(f"{shown(path)} is no JSON: {error}", "")]
    return []


def _no_such(kind: str, path: str) -> tuple[str, str]:
    close, link = near(path), dangling(path)
    return f"there is no {kind} {shown(path)}", link or (f"did you mean {shown(close)}?" if close else "")


def _wanted(field: PathField) -> str:
    if field.field.endswith("image_root"):
        return "it is the directory that image paths are relative to"
    if field.field == "model.tokenizer_dir":
        return "give a directory with tokenizer.json"
    hub = " a Hub id (Qwen/Qwen3-8B)," if field.kind == "model" else ""
    return f"give{hub} a directory in Hugging Face format" + (" or a .gguf file" if field.kind == "model" else "")


def run_directory_findings(found: Loaded[RunSpec]) -> list[Finding]:
    """Why no run can be written there, or should not be."""
    output_dir = found.spec.output_dir
    if "://" in output_dir:
        hint = "run directories are on a file system; output_url copies them to an object store"
        return [Finding("output_dir", f"{output_dir} is no directory", hint)]
    name = str(settled(absolute(resolve(found.spec), found.base)).name)
    root = Path(in_base(output_dir, found.base)) / name
    here = Path(in_base(output_dir, Path.cwd())) / name
    if not os.path.exists(root) and here != root and os.path.isfile(RunDir(here).spec):
        what = f"this run is in {shown(here)} already, and relative paths of a spec are relative to its file"
        hint = f"move it to {shown(root)}, or give output_dir={output_dir} on the command line to continue it there"
        return [Finding("output_dir", what, hint)]
    return _not_writable(root) or _held(root) or _of_another_place(found)


def _of_another_place(found: Loaded[RunSpec]) -> list[Finding]:
    """That the spec is a run directory's own, and says where that was before it was moved or copied. Nothing of a name
    that was given beside it, and of what is to be new: that is no going on with it."""
    source = found.source("output_dir")
    own = Path(source or "")
    lies_in_a_run = own.name == RunDir(own.parent).spec.name and os.path.exists(RunDir(own.parent).environment)
    anew = found.spec.resume == "new" and found.source("resume") != source
    if not lies_in_a_run or found.spec.name is None or found.source("name") != source or anew:
        return []
    root = Path(in_base(found.spec.output_dir, found.base)) / found.spec.name
    if os.path.realpath(own.parent) == os.path.realpath(root):
        return []
    here = own.parent.absolute()
    what = f"this run was in {shown(root)} and is trained there, not here, where its directory lies now"
    hint = f"to go on here: output_dir={shlex.quote(str(here.parent))} name={shlex.quote(here.name)}"
    return [Finding("output_dir", what, hint, error=None)]


def copy_findings(url: str | None) -> list[Finding]:
    """Why results could not be copied to this object store. Nothing asks it whether it is there."""
    if url is None:
        return []
    if importlib.util.find_spec("fsspec") is None:
        return [Finding("output_url", "object stores need another package", "pip install 'rankzero[s3]'")]
    from fsspec.registry import known_implementations, registry

    protocol = url.partition("://")[0]
    if protocol in registry:
        return []
    if protocol not in known_implementations:
        return [Finding("output_url", f"{protocol}:// is no kind of object store", "s3://, gs:// or az://")]
    module = known_implementations[protocol]["class"].partition(".")[0]
    if importlib.util.find_spec(module) is None:
        return [Finding("output_url", f"{protocol}:// needs another package", f"pip install {module}")]
    return []


def tracker_findings(spec: RunSpec) -> list[Finding]:
    """What servers of trackers need and what is not here."""
    return [
        Finding(f"tracking.{name}", problem.what, problem.hint)
        for name, module in server_modules(spec.tracking).items()
        for problem in module.problems(os.environ)
    ]


def _not_writable(root: Path) -> list[Finding]:
    why = why_not_writable(root)
    if why is None:
        return []
    hint = "set output_dir to a directory that can be written"
    return [Finding("output_dir", f"{shown(why[0])} {why[1]}", hint, StorageError)]


def _held(root: Path) -> list[Finding]:
    who = holder(root)
    if who is None:
        return []
    hint = "wait for it, stop it, or give this run another name"
    return [Finding("output_dir", f"{shown(root)} is in use by {who}", hint, StorageError)]


_NOT_FOR_ADAPTERS = ("embed", "norm", "ln_", "lm_head", "wte", "wpe", "score", "classifier")
"""In names of layers that adapters are not put on."""
_MAY_BE_TIED = ("lm_head", "embed_out")
"""Heads, which files leave out where they are the embeddings."""


def model_findings(found: Loaded[RunSpec]) -> list[Finding]:
    """What is missing in the model's directory, and names in lora.target_modules that it does not have."""
    model = found.spec.model
    field, directory = _directory(model, found.base)
    local = field == "model.name" and (directory is not None or model.name.endswith(".gguf"))
    unread = _doubtful(unread_of_local_model(found.spec)) if local else []
    if directory is None:
        return [*unread, *_hub_findings(model)]
    if not os.path.isdir(directory):
        return unread  # a finding of its own, about the path
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
        if os.path.isdir(tokenizer):
            findings += [_of(problem, "model.tokenizer_dir") for problem in tokenizer_problems(tokenizer)]
    config = read_config(directory)
    unread += _doubtful(unread_of_text_model(found.spec)) if sees_nothing(config) else []
    return [*unread, *findings, *_layer_findings(found.spec, directory), *_context_findings(found, config)]


def _context_findings(found: Loaded[RunSpec], config: Mapping[str, Any]) -> list[Finding]:
    """Rows that are asked for longer than the model was made for. The default is no wish, also where a resolved spec
    has it: then rows that are longer are counted once they are tokenised (`model/context.py`)."""
    context, longest = stored_context(config), found.spec.data.max_length
    if context is None or longest <= context.length or longest == DataSpec.model_fields["max_length"].default:
        return []
    what = f"{longest} is beyond the model's context of {context.length} tokens (max_position_embeddings)"
    if context.extended:
        return [Finding("data.max_length", f"{what}; its config stretches positions", error=None)]
    return [Finding("data.max_length", what, f"set it to {context.length}; data.over_length cuts or drops longer rows")]


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
    lora = spec.lora
    wanted = () if lora is None or isinstance(lora.target_modules, str) else lora.target_modules
    makes_a_head = TASKS[spec.task].uses == "classifies"  # as the model is loaded: no file has its name
    whole = () if lora is None or makes_a_head else lora.modules_to_save
    as_stored = read_config(directory).get("model_type") in NAMED_AS_STORED and not spec.model.trust_remote_code
    layers = stored_layers(directory) if (wanted or whole) and as_stored else None
    if layers is None:
        return []
    last = sorted({name.rpartition(".")[2] for name in layers})
    last = [name for name in last if not any(part in name for part in _NOT_FOR_ADAPTERS)]
    findings = []
    for name in wanted:
        if not any(layer == name or layer.endswith(f".{name}") for layer in layers):
            if name in _MAY_BE_TIED:
                what = f"adapters are not put on {name}: it is the model's head"
                findings.append(Finding("lora.target_modules", what, trained_otherwise(name)))
                continue
            what = f"the model has no linear module {name}"
            findings.append(Finding("lora.target_modules", what, named_instead(name, last)))
    for name in whole:
        if name not in _MAY_BE_TIED and not any(f".{name}." in f".{layer}." for layer in layers):
            parts = sorted({part for layer in layers for part in layer.split(".") if not part.isdigit()})
            close = difflib.get_close_matches(name, parts, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it has: {', '.join(parts)}"
            findings.append(Finding("lora.modules_to_save", f"the model has no module {name} with weights", hint))
    return findings
