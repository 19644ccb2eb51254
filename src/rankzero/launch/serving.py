"""A server of a model on this machine: its command, its start until it answers, its end. Knows no weights.

Two servers are known, both with OpenAI's routes: vLLM, and `transformers serve`. A model is served under one name by
both, whatever directory it lies in, so that clients keep what they ask for when the model is made anew.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rankzero.errors import ConfigError, Problem, ServiceError, UsageError
from rankzero.launch import server_arguments
from rankzero.launch.server_arguments import KEY_FLAG, KEY_VARIABLE
from rankzero.redaction import Redactor
from rankzero.stop_signals import signals_held, signals_to, stop_signals

Engine = Literal["vllm", "transformers"]
POLL_SECONDS = 0.2
ANSWER_SECONDS = 600.0
"""How long the first answer may take: kernels are compiled for it."""
END_SECONDS = 10.0
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_TAIL = 2000
SMOKE = "Say hello."
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_TEMPLATE = "chat_template"
_TEMPLATES_IN = ("tokenizer_config.json", "processor_config.json", "chat_template.json")
"""Where templates were before they had files of their own."""


@dataclass(frozen=True, slots=True)
class Server:
    """How a model is served."""

    engine: Engine
    model: Path
    """A directory in Hugging Face format; for `transformers` its last part is the name that is served."""
    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given besides the turns."""
    more: Sequence[str] = ()
    """Arguments of the engine's own."""
    trust_remote_code: bool = False

    @property
    def command(self) -> list[str]:
        """What starts it, in the directory `cwd`."""
        return self._command(self.more)

    def _command(self, more: Sequence[str]) -> list[str]:
        place = ["--host", self.host, "--port", str(self.port)]
        trusted = ["--trust-remote-code"] if self.trust_remote_code else []
        kwargs = [json.dumps(dict(self.template_kwargs))] if self.template_kwargs else []
        if self.engine == "vllm":
            told = ["--default-chat-template-kwargs", *kwargs] if kwargs else []
            return [
                "vllm",
                "serve",
                str(self.model),
                "--served-model-name",
                self.name,
                *place,
                *trusted,
                *told,
                *more,
            ]
        told = ["--chat-template-kwargs", *kwargs] if kwargs else []
        return ["transformers", "serve", self.name, *place, *trusted, *told, *more]

    @property
    def cwd(self) -> Path:
        """Where it is started: `transformers serve` calls a model what it was given, so that is a name from here."""
        return self.model.parent

    @property
    def url(self) -> str:
        """Of its API; a server on all addresses is reached by loopback of the same family: it may have no other."""
        host = self.host or "0.0.0.0"
        if _is_everywhere(host):
            host = "::1" if ":" in host else "127.0.0.1"
        scheme = "https" if self.engine == "vllm" and server_arguments.is_tls(self.more) else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def api_key(self) -> str | None:
        """A key that it takes, where it asks for one. `transformers serve` never does."""
        if self.engine != "vllm":
            return None
        given = server_arguments.keys(self.more)
        return given[0] if given else os.environ.get(KEY_VARIABLE) or None

    @property
    def chats(self) -> bool:
        """Whether there is a template that makes a text of a chat, by itself or beside the model, which is there."""
        if server_arguments.has(self.more, "--chat-template") or (self.model / f"{_TEMPLATE}.jinja").is_file():
            return True
        return any(_is_default(_read(self.model / name).get(_TEMPLATE)) for name in _TEMPLATES_IN)

    @property
    def draws(self) -> bool:
        """Whether a temperature that clients ask for has an effect: to `transformers serve` it says how tokens are
        drawn, and the model, which is there, whether they are."""
        return self.engine == "vllm" or _read(self.model / "generation_config.json").get("do_sample") is True

    def as_typed(self) -> str:
        """What a person would type, with secrets hidden."""
        line = shlex.join(self._command(server_arguments.shown(self.more)))
        return line if self.engine == "vllm" else f"cd {shlex.quote(str(self.cwd))} && {line}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said to a first request."""

    route: str
    """CHAT; COMPLETION where the model has no chat template."""
    text: str


def require_servable(name: str | None, engine: str) -> None:
    """Raise UsageError where no server, here or in a pod, takes this name, or is called so."""
    problems = []
    if name is not None and not _NAME.fullmatch(name):
        hint = "letters, digits, dots, dashes and underscores: --name my-model"
        problems.append(Problem(f"{name!r} cannot be a model's name", "--name", hint))
    if engine not in ("auto", "vllm", "transformers"):
        problems.append(Problem(f"{engine!r} is no server", "--engine", "auto, vllm or transformers"))
    if problems:
        raise UsageError(problems)


def choose_engine(wanted: str) -> Engine:
    """vLLM where its program is found, else `transformers serve`; or the one that is wanted.

    The program, and no package: vLLM and rankzero ask for different versions of transformers.

    Raises ConfigError where what it needs is not installed, UsageError for another one.
    """
    require_servable(None, wanted)
    if wanted in ("auto", "vllm") and _program("vllm"):
        return "vllm"
    if wanted == "vllm":
        hint = "install it in an environment of its own, and have that one's `vllm` on PATH"
        raise ConfigError("there is no program `vllm`", where="--engine", hint=hint)
    missing = [name for name in ("fastapi", "uvicorn", "openai", "transformers") if not _have(name)]
    if missing:
        hint = "pip install 'rankzero[train,serve]', or vllm"
        raise ConfigError(f"no server is installed: {', '.join(missing)}", where="--engine", hint=hint)
    return "transformers"


def require_key_asked(engine: str, host: str) -> None:
    """Raise ConfigError where others reach a server that asks nobody for the key that is there for it."""
    if engine != "transformers" or _is_loopback(host) or not os.environ.get(KEY_VARIABLE):
        return
    hint = f"--engine vllm, which does; or unset {KEY_VARIABLE}, and put something that does before it"
    raise ConfigError("transformers serve asks for no key, and others reach it", where=KEY_VARIABLE, hint=hint)


def require_free(host: str, port: int) -> None:
    """Raise ServiceError where another program listens there already: it would answer in the server's place."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = "choose another --port"
            raise ServiceError(
                f"cannot listen: {error.strerror or error}", where=f"{host}:{port}", hint=hint
            ) from error


@contextmanager
def serving(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process for the duration, with all that it has started ended at the end. Its output is stderr."""
    require_free(server.host, server.port)
    program, *arguments = server.command
    process = None
    try:
        with signals_held():
            process = subprocess.Popen(
                [_program(program) or program, *arguments],
                cwd=server.cwd,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                process_group=0,
            )
        yield process
    finally:
        if process is not None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask, then kill. Who is told to stop once more meanwhile kills at once, and does not leave before it is done."""
    with signals_to(lambda _number: _signal_all(process, signal.SIGKILL), stop_signals()):
        _signal_all(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        _signal_all(process, signal.SIGKILL)
        process.wait()


def _signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    """To it and all that it has started: it leads a group of its own."""
    with suppress(ProcessLookupError, PermissionError):  # nobody is left; some systems say it in this way
        os.killpg(process.pid, number)


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], seconds: float) -> None:
    """Return when the server says that it is there. Raises ServiceError where it ended, or took longer."""
    import httpx2

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            hint = "its own words are above; `rankzero serve … --print` shows the command"
            raise ServiceError(f"the server ended with {process.returncode}", where=server.engine, hint=hint)
        with suppress(httpx2.HTTPError):
            # Its certificate is for the names that clients know it by.
            if httpx2.get(f"{server.url}/health", timeout=5.0, trust_env=False, verify=False).status_code == 200:
                return
        time.sleep(POLL_SECONDS)
    raise ServiceError(f"the server was not ready after {seconds:.0f} s", where=server.engine, hint="raise --wait")


def smoke(server: Server, question: str = SMOKE) -> Answer:
    """The answer to one question that is asked under the served name, or how a model that knows no chats goes on with
    it. Raises ServiceError where there is none."""
    import httpx2

    chats, key, hint = server.chats, server.api_key, ""
    asked = {"messages": [{"role": "user", "content": question}]} if chats else {"prompt": question}
    body = {"model": server.name, **asked, "max_tokens": 16, "temperature": 0.0}
    route = CHAT if chats else COMPLETION
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        response = httpx2.post(
            f"{server.url}{route}",
            json=body,
            headers=headers,
            timeout=ANSWER_SECONDS,
            trust_env=False,
            verify=False,
        )
        if response.status_code == 200:
            choice = response.json()["choices"][0]
            return Answer(route, str((choice["message"]["content"] if chats else choice["text"]) or ""))
        what = f"{response.status_code} {response.text[:_TAIL]}"
        if response.status_code == 401:
            hint = f"{KEY_VARIABLE}, or {KEY_FLAG} behind --, has to be a key that it takes"
    except (httpx2.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
    what = Redactor({KEY_VARIABLE: key or ""})(what)
    raise ServiceError(f"a request was not answered: {what}", where=f"{server.url}{route}", hint=hint)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_everywhere(host: str) -> bool:
    """Whether it stands for all addresses, however it is written."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def _is_default(template: object) -> bool:
    """Whether it is one, or the one of several with names that is taken where none is asked for."""
    if isinstance(template, list):
        return any(isinstance(one, dict) and one.get("name") == "default" for one in template)
    return "default" in template if isinstance(template, dict) else isinstance(template, str)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; {} where there is none, which the server itself complains of."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _program(name: str) -> str | None:
    """This environment's, activated or not, else the one on PATH; None where there is none."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


def _have(module: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # something stands in for it that is no module
        return False
