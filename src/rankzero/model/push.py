"""A directory as a new repository on the Hub, when somebody asks for it. Knows the Hub's client; loads no weights."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from pathlib import Path

from rankzero.directories import files_below, is_file
from rankzero.errors import AccessError, ConfigError, Problem, RankzeroError, ServiceError, StorageError
from rankzero.machine import offline
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import MANIFEST, NotReadError, read_manifest, storage_errors
from rankzero.run_dir.intact import WEIGHTS
from rankzero.run_dir.paths import MERGE, RunDir
from rankzero.run_dir.result import ADAPTER_CONFIG
from rankzero.wording import first_line

KEPT_HERE = (MANIFEST, MERGE)
"""What says where things lay on this machine."""
_READ = (".json", ".md", ".jinja", ".txt", ".py")
_VOCABULARIES = frozenset({"tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "tekken.json"})


def push_problems(directory: Path, repo: str) -> list[Problem]:
    """What keeps a directory from being pushed, before anything is sent."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    problems = []
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        problems.append(Problem(first_line(error), "--repo", "a repository is named OWNER/NAME"))
    if offline():
        problems.append(Problem("the network is not to be used", "HF_HUB_OFFLINE", "unset it for this command"))
    if get_token() is None:
        hint = "export HF_TOKEN=<a write token>, or log in with `hf auth login`"
        problems.append(Problem("there is no token of the Hub", "HF_TOKEN", hint))
    if (directory / ADAPTER_CONFIG).is_file():
        problems += _base_problems(directory / ADAPTER_CONFIG)
    elif _is_checkpoint(Path(os.path.realpath(directory))):
        what = "a checkpoint has the weights as training holds them, which nobody else loads, and no tokenizer"
        hint = f"make a model of it, and push that: rankzero export {shlex.quote(str(directory))} -o exported"
        problems.append(Problem(what, str(directory), hint))
    redact = Redactor(os.environ)
    for file in sent_files(directory):
        if file.suffix in _READ and file.name not in _VOCABULARIES:
            text = file.read_text(encoding="utf-8", errors="replace")
            if redact(text) != text:
                problems.append(Problem("there is a secret in it", str(file), "take it out, or push another directory"))
    return problems


def _is_checkpoint(weights: Path) -> bool:
    return weights.name == WEIGHTS and RunDir(weights.parent.parent.parent).is_checkpoint(weights.parent)


def sent_files(directory: Path) -> list[Path]:
    """The files of a directory that others get. What is hidden stays here, at any depth, and so do other results that
    were written inside: each is pushed by its own name. Raises StorageError."""

    def is_part(name: str) -> bool:
        return not Path(name).name.startswith(".") and not _is_result(directory / name)

    with storage_errors(directory):
        found = [path for path in files_below(directory, into=is_part) if is_file(path)]
    return [path for path in found if path.name not in KEPT_HERE and not path.name.startswith(".")]


def _is_result(directory: Path) -> bool:
    """Raises StorageError where nobody can tell."""
    try:
        read_manifest(directory)
    except NotReadError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return True  # of a newer version
    except StorageError:
        return False
    return True


def push(directory: Path, repo: str, *, private: bool) -> str:
    """Make the repository and put the directory's files into it, in one commit. Returns its URL. A name without an
    owner is one of whose token it is.

    One that is there already is left alone; of one that could not be filled nothing is left. Raises ConfigError,
    AccessError, ServiceError, StorageError.
    """
    import httpx2
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    made = None
    try:
        made = api.create_repo(repo, private=private, exist_ok=False)
        repo = made.repo_id
        files = {path.relative_to(directory).as_posix(): path for path in sent_files(directory)}
        added = [CommitOperationAdd(name, path) for name, path in files.items()]
        api.create_commit(repo, added, commit_message="Upload by rankzero")
    except BaseException as error:
        if made is not None:
            with suppress(Exception):  # the first error is the one to tell
                api.delete_repo(repo)
        if isinstance(error, HfHubHTTPError):  # which is an OSError too
            raise _refused(error, repo) from error
        if isinstance(error, httpx2.HTTPError | ConnectionError):
            raise ServiceError(f"the Hub did not answer: {first_line(error)}", where=repo, hint="try again") from error
        if isinstance(error, OSError):
            raise StorageError(f"it cannot be read: {error.strerror or error}", where=str(directory)) from error
        raise
    return str(made)


def _refused(error: Exception, repo: str) -> RankzeroError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    words = Redactor(os.environ)(first_line(error))
    if status == 409:
        return ConfigError("there is such a repository already", where=repo, hint="name another with --repo")
    if status in (401, 403):
        hint = "the token needs the right to write, in the name of that owner"
        return AccessError(f"the Hub refused: {words}", where=repo, hint=hint)
    return ServiceError(f"the Hub refused: {words}", where=repo, hint="try again later")


def _base_problems(config: Path) -> list[Problem]:
    """What keeps others from loading the base of an adapter: it is a path, which nobody else has, or is not named."""
    try:
        base = json.loads(config.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        hint = "it may be cut off: copy the adapter again"
        return [Problem(f"it cannot be read: {first_line(error)}", str(config), hint)]
    if not isinstance(base, str) or not base:
        hint = f"write base_model_name_or_path into {ADAPTER_CONFIG}: the base's name on the Hub"
        return [Problem("the adapter does not say which model it belongs to", str(config), hint)]
    if not base.startswith((".", "/", "~")) and base.count("/") <= 1:
        return []
    hint = "push the merged model (--to safetensors first), or write the base's name on the Hub there"
    return [Problem(f"its base is a directory of this machine, {base}", ADAPTER_CONFIG, hint)]
