"""The docker command line: runs it and turns its refusals into errors. Knows nothing of pods or runs."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal, cast

from rankzero.errors import AccessError, ConfigError, RankzeroError, ServiceError
from rankzero.launch.silence import SilentError
from rankzero.wording import signal_name

PROGRAM = "docker"
_MOST_STDERR = 2000
_NOT_CONNECTED = "error during connect:"
_LOG = "the daemon's own log says more: `journalctl -u docker`, of a rootless one `journalctl --user -u docker`"
_OF_PODMAN = (
    "install docker's own client, and have it ask podman: `systemctl --user start podman.socket` and "
    "`export DOCKER_HOST=unix://$XDG_RUNTIME_DIR/podman/podman.sock`"
)
_NO_CONTAINER = re.compile("no such (?:container|object)", re.IGNORECASE)
Kind = Literal["volume", "network", "image"]
_ABSENT: Mapping[Kind, Sequence[str]] = {
    "volume": ("no such volume", "volume {} not found"),
    "network": ("no such network", "network {} not found", "network not found"),
    "image": ("no such image", "image not known", "invalid reference format"),
}
"""How versions of docker say that there is none of a name, a manager of a swarm, and podman in docker's place."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


Execute = Callable[[Sequence[str], Mapping[str, str]], Answer]
"""Runs a whole argument list, with variables added to its environment."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the daemon says of its machine."""

    name: str
    cpus: int
    memory: int
    """Bytes."""
    limits_memory: bool = True
    limits_swap: bool = True
    limits_cpu: bool = True
    has_selinux: bool = False
    """Whether containers are kept from files that are not labelled for them."""


class Docker:
    """One daemon: the one that `docker` itself would talk to."""

    def __init__(self, execute: Execute | None = None) -> None:
        self._execute = execute or _execute

    def call(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        """What the command printed. Raises ServiceError, AccessError or ConfigError."""
        answer = self._execute([PROGRAM, *arguments], env or {})
        if answer.code != 0:
            raise refusal(arguments, answer)
        return answer.out

    def try_call(self, *arguments: str) -> Answer:
        """The same, for questions to which no is an answer. Raises only where there is no daemon to ask, or a signal
        came before its answer."""
        answer = self._execute([PROGRAM, *arguments], {})
        if answer.code < 0 or (answer.code != 0 and _unreachable(answer.err)):
            raise refusal(arguments, answer)
        return answer

    def host(self) -> Host:
        """Ask the daemon what it runs on. Raises as `call`, and ConfigError where podman answers in docker's place."""
        info: dict[str, Any] = json.loads(self.call("info", "--format", "{{json .}}"))
        if info.get("ServerErrors"):  # some versions leave with 0 although nobody answered
            raise refusal(("info",), Answer(1, "", "\n".join(info["ServerErrors"])))
        if "Name" not in info and "host" in info:
            what = "this `docker` is podman, whose answers have other fields"
            raise ConfigError(what, where="docker", hint=_OF_PODMAN)
        return Host(
            name=info["Name"],
            cpus=info["NCPU"],
            memory=info["MemTotal"],
            limits_memory=bool(info.get("MemoryLimit")),
            limits_swap=bool(info.get("SwapLimit")),
            limits_cpu=bool(info.get("CpuCfsQuota")),
            has_selinux=any("name=selinux" in option.split(",") for option in info.get("SecurityOptions") or ()),
        )

    def containers(self, label: str) -> list[dict[str, Any]]:
        """All containers with a label, as `docker inspect` describes them, running or not."""
        names = self.call("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").split()
        if not names:
            return []
        return self.inspect(*names)

    def inspect(self, *names: str) -> list[dict[str, Any]]:
        """Containers as docker describes them; without those of which it says that there are none, for they have been
        removed meanwhile. Raises as `call` does where it says something else of one."""
        arguments = ("inspect", "--type", "container", *names)
        answer = self.try_call(*arguments)
        absent = [line for line in answer.err.split("\n") if _NO_CONTAINER.search(line)]
        away = [name for name in names if any(name in line for line in absent)]
        found: list[dict[str, Any]] = json.loads(answer.out or "[]")
        if answer.code and len(found) + len(away) < len(names):
            raise refusal(arguments, answer)
        return found

    def look_up(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """One thing as docker describes it; None where it says that there is none. Raises as `call` does where it says
        anything else: then there may be one."""
        arguments = (kind, "inspect", name)
        answer = self.try_call(*arguments)
        if answer.code == 0:
            (found,) = json.loads(answer.out)
            return cast("dict[str, Any]", found)
        if not any(words.format(name).lower() in answer.err.lower() for words in _ABSENT[kind]):
            raise refusal(arguments, answer)
        return None

    def has_image(self, image: str) -> bool:
        """Whether the daemon has it already."""
        return self.look_up("image", image) is not None


def follow(arguments: Sequence[str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """Start a command and read its output, both channels, as it comes. It does not hear Ctrl-C: the caller ends it."""
    try:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise _absent() from error
    assert process.stdout is not None  # asked for above
    return process, process.stdout


def end(process: subprocess.Popen[bytes]) -> None:
    """End one that was started here, and what it runs where `docker` is a script."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def stream(arguments: Sequence[str], hear: Callable[[bytes], None], stdin: IO[bytes] | None) -> Answer:
    """Run a command to its end; its output is heard as it comes. It does not hear Ctrl-C: the caller ends it. Where the
    caller is gone, its input ends."""
    try:
        process = subprocess.Popen(
            [PROGRAM, *arguments],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise _absent() from error
    assert process.stdout is not None and process.stderr is not None  # asked for above
    err = bytearray()
    errors = threading.Thread(target=_keep_end, args=(process.stderr, err), daemon=True)
    errors.start()
    feeding = threading.Thread(target=_feed, args=(stdin, process.stdin), daemon=True)
    feeding.start()
    with process:  # waits for it, and closes all three
        try:
            while data := process.stdout.read(1 << 16):
                hear(data)
            errors.join()
            code = process.wait()
        finally:
            end(process)
            feeding.join()  # nobody reads any more
    return Answer(code, "", err.replace(b"\0", b"").decode(errors="replace"))


def _feed(source: IO[bytes] | None, pipe: IO[bytes] | None) -> None:
    """Through us, and not from the file itself: that it would read to its end when we have gone."""
    if source is None or pipe is None:
        return
    with suppress(BrokenPipeError), io.BufferedWriter(cast("io.RawIOBase", pipe)) as buffered:
        shutil.copyfileobj(source, buffered)


def _keep_end(pipe: IO[bytes], kept: bytearray) -> None:
    while data := pipe.read(1 << 16):
        kept += data
        del kept[:-_MOST_STDERR]


def refusal(arguments: Sequence[str], answer: Answer) -> RankzeroError:
    """The error for what a failed command said."""
    said = answer.err.strip()
    if answer.code < 0:
        what = f"docker {arguments[0]} was ended by {signal_name(answer.code)}{f': {said}' if said else ''}"
        return ServiceError(what, where="docker", hint="give the same command again")
    text = said or "it gave no reason"
    what = f"docker {arguments[0]}: {text.splitlines()[-1]}"
    lower = text.lower()
    if "permission denied while trying to connect" in lower:
        hint = "add yourself to the docker group (`sudo usermod -aG docker $USER`), and log in again"
        return AccessError("this user may not talk to the docker daemon", where="docker", hint=hint)
    if _unreachable(text):
        hint = "start it (`sudo systemctl start docker`, or Docker Desktop); DOCKER_HOST says where it is looked for"
        reason = f": {text}" if _NOT_CONNECTED in lower else ""  # ssh's, or TLS's
        return SilentError(f"the docker daemon does not answer{reason}", where="docker", hint=hint)
    if "bind source path does not exist" in lower or "invalid mount config" in lower:
        return ConfigError(what, where="storage", hint="make the directory on this machine, or correct host_path")
    if "could not select device driver" in lower or "nvidia-container-cli" in lower:
        hint = "install the NVIDIA container toolkit on this machine, or set `gpu: false`"
        return ConfigError(what, where="gpu", hint=hint)
    if "is already in use by container" in lower:
        return ConfigError(what, hint="remove that container, or give the run another name")
    return ServiceError(what, hint=_LOG)


def is_dockers_own(err: str) -> bool:
    """Whether these are docker's last words, and not those of a command that it ran."""
    last = next(iter(err.strip().splitlines()[-1:]), "").lower()
    return last.startswith("error response from daemon:") or _unreachable(last)


def _unreachable(err: str) -> bool:
    lower = err.lower()
    return any(
        phrase in lower
        for phrase in (
            "cannot connect to the docker daemon",
            "is the docker daemon running",
            "permission denied while trying to connect",
            "failed to connect to the docker api",
            _NOT_CONNECTED,
        )
    )


def _absent() -> ServiceError:
    hint = "install docker (https://docs.docker.com/engine/install/), or choose another cluster"
    return ServiceError("there is no docker command on this machine", where="docker", hint=hint)


def _execute(arguments: Sequence[str], env: Mapping[str, str]) -> Answer:
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**os.environ, **env},
            start_new_session=True,  # Ctrl-C is for whoever asked; and ssh below it has no terminal to wait for
        )
    except FileNotFoundError as error:
        raise _absent() from error
    # Not text=True: it would take the carriage returns of progress bars for ends of lines.
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
