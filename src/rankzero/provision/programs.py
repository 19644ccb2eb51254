"""Programs of others, run by lists of arguments: shown before they run, their secrets in no output. No shell, ever."""

from __future__ import annotations

import codecs
import io
import json
import os
import select
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from rankzero.errors import AccessError, ConfigError, Problem, ServiceError, StopNow
from rankzero.redaction import LineRedactor, Redactor
from rankzero.stderr import write_stderr
from rankzero.stop_signals import signals_held
from rankzero.wording import printable

Say = Callable[[str], None]
_HOW = {
    "nebius": "https://docs.nebius.com/cli/install, then `nebius profile create`",
    "helm": "https://helm.sh/docs/intro/install",
    "kubectl": "https://kubernetes.io/docs/tasks/tools",
    "kind": "https://kind.sigs.k8s.io/docs/user/quick-start/#installation",
}
_ABSENT = ("code = notfound", "code=notfound", "not_found", "resource not found", "release: not found")
"""What services say of a thing that is not there. A profile, or a program, that is `not found` is another matter."""
_REFUSED = ("permissiondenied", "permission denied", "unauthenticated", "unauthorized", "forbidden")
_THERE = ("already exists", "alreadyexists", "already_exists")
_OPEN = (
    *(
        "unavailable",
        "deadlineexceeded",
        "deadline exceeded",
        "timeout",
        "timed out",
        "connection",
        "eof",
        "broken pipe",
    ),
    *("code = internal", "code = unknown", "code = aborted", "code = canceled", "context canceled"),
)
"""What is said where nobody knows what came of it."""
_LAST_LINES = 3
QUIET_SECONDS = 3.0
"""What a program says is kept to itself for so long: only one that takes longer may wait for somebody who reads it."""
END_SECONDS = 20.0
"""A program that was told to stop has so long to end, which is less than batch systems give to all of it."""
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Command:
    """A program and its arguments, and what it reads from standard input."""

    words: tuple[str, ...]
    stdin: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program left behind."""

    code: int
    out: str
    err: str

    @property
    def says_absent(self) -> bool:
        """Whether it failed because there is no such thing, and for no other reason."""
        return self.says(_ABSENT)

    @property
    def says_there(self) -> bool:
        """Whether it failed because there is such a thing already."""
        return self.says(_THERE)

    @property
    def leaves_open(self) -> bool:
        """Whether what it was to make may come to be all the same: after an outage, or where it was killed."""
        return self.code < 0 or self.says(_OPEN)

    def says(self, signs: tuple[str, ...]) -> bool:
        """Whether it failed with one of these words, in small letters."""
        return self.code != 0 and any(words in self.err.lower() for words in signs)


class Programs:
    """Those of this machine."""

    def __init__(self, env: Mapping[str, str], say: Say, pass_on: Say = write_stderr) -> None:
        """They run where this process does: KUBECONFIG and PATH may have relative paths. `pass_on` takes whole lines of
        what those that take long say."""
        self._env, self._say, self._redact, self._pass_on = dict(env), say, Redactor(env), pass_on

    def require(self, names: Iterable[str]) -> None:
        """Raise ConfigError for every one that is not installed."""
        missing = [name for name in names if shutil.which(name, path=self._env.get("PATH")) is None]
        if missing:
            raise ConfigError(Problem(f"the program {name} is not installed", name, _HOW[name]) for name in missing)

    def ask(self, *words: str) -> str:
        """What a program that only looks printed. Raises ServiceError, AccessError."""
        answer = self.run(Command(words))
        if answer.code != 0:
            raise self.failure(words, answer)
        return answer.out

    def ask_for_object(self, *words: str) -> dict[str, Any] | None:
        """The JSON that it printed; None: it says that there is no such thing. Raises ServiceError, AccessError."""
        value: dict[str, Any] | None = self._json(words, dict)
        return value

    def ask_for_list(self, *words: str) -> list[Any] | None:
        """As `ask_for_object`."""
        value: list[Any] | None = self._json(words, list)
        return value

    def _json(self, words: tuple[str, ...], kind: type) -> Any:
        answer = self.run(Command(words))
        if answer.says_absent:
            return None
        if answer.code != 0:
            raise self.failure(words, answer)
        try:
            value = json.loads(answer.out)
        except ValueError:
            value = None
        if not isinstance(value, kind):
            what = f"its answer is no JSON {'object' if kind is dict else 'array'}"
            raise ServiceError(what, where=" ".join(words[:4]), hint="is it another program?")
        return value

    def do(self, command: Command) -> None:
        """Run what changes something. Raises ServiceError, AccessError."""
        answer = self.run(command)
        if answer.code != 0:
            raise self.failure(command.words, answer)

    def failure(self, words: Sequence[str], answer: Answer) -> ServiceError | AccessError:
        """The error for a command that failed."""
        err = self._redact(answer.err)  # as a whole: a key goes over several lines
        lines = [line for line in err.strip().splitlines() if line.strip()] or [f"exit code {answer.code}"]
        said = self._redact(printable(" / ".join(lines[-_LAST_LINES:])))
        where = " ".join(words[:4])
        if any(sign in answer.err.lower() for sign in _REFUSED):
            return AccessError(
                said, where=where, hint="log in there, or ask for the right; then the same command goes on"
            )
        return ServiceError(said, where=where, hint="what was made is known: the same command goes on from here")

    def shown(self, command: Command) -> str:
        """As it could be typed."""
        typed = shlex.join(command.words)
        if command.stdin:
            typed += f" <<'END'\n{command.stdin.rstrip()}\nEND"
        return self._redact(printable(typed))

    def run(self, command: Command) -> Answer:
        """Show it and run it, whatever comes of it. Raises ConfigError where it is no program."""
        answer, stop = self.finish(command)
        if stop is not None:
            raise stop
        return answer

    def finish(self, command: Command) -> tuple[Answer, BaseException | None]:
        """As `run`; with what stopped this process meanwhile, which is to be raised."""
        program, *_ = command.words
        self._say(f"$ {self.shown(command)}")
        reading, writing = os.pipe()
        stderr = os.fdopen(writing, "wb")
        said = _Said(reading, LineRedactor(self._redact), self._pass_on)
        process: subprocess.Popen[bytes] | None = None
        stops: list[BaseException] = []
        while True:
            try:
                if process is None:
                    with signals_held(), stderr:  # a stop that comes meanwhile is told to it
                        process = self._started(command, stderr)
                if not stops:
                    out = _printed(process, command.stdin.encode(), said)
                    return Answer(process.returncode, out.decode(errors="replace"), said.whole()), None
                self._wait(process, program, said, stops)
                return Answer(process.returncode, "", ""), stops[0]
            except (KeyboardInterrupt, StopNow) as stop:  # one by one: until the program has ended nobody may go on
                if process is None:
                    stderr.close()  # whose reader waits for that
                    raise
                stops.append(stop)

    def _started(self, command: Command, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        """The program. Raises ConfigError."""
        program, *_ = command.words
        try:
            return subprocess.Popen(
                list(command.words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._env,
                executable=shutil.which(program, path=self._env.get("PATH")),
            )
        except OSError as error:
            what = f"{program} cannot be run: {error.strerror or error}"
            raise ConfigError(what, where=program, hint=_HOW[program]) from error

    def _wait(
        self, process: subprocess.Popen[bytes], program: str, said: _Said, stops: Sequence[BaseException]
    ) -> None:
        """Until its end. Ctrl-C it hears as well, from the terminal; another stop it is told. Killed in the middle of
        its work it would leave that half done: it has the time that it takes, until Ctrl-C once more; after another
        stop, which this process does not survive for long, some seconds."""
        *before, last = stops
        by_hand = isinstance(last, KeyboardInterrupt)
        if before and by_hand:
            process.kill()
            process.wait()
            return
        if not by_hand:
            process.terminate()
        if not before and process.poll() is None:
            said.let()
            self._pass_on(f"waiting for {program} to end; Ctrl-C now kills it, and leaves its work half done\n")
        try:
            process.communicate(timeout=None if by_hand else END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Said:
    """The standard error of one program: kept for the failure, and passed on once it is let."""

    def __init__(self, pipe: int, redact: LineRedactor, pass_on: Say) -> None:
        self._pipe, self._redact, self._pass_on = pipe, redact, pass_on
        self._text = ""
        self._passed = 0
        """Where what was not passed on begins."""
        self._aloud = False
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="stderr of a program", daemon=True)
        self._reader.start()

    def let(self) -> None:
        """From now on each line is passed on as it comes, after those that came already."""
        with self._lock:
            self._aloud = True
            self._tell(self._text.rfind("\n") + 1)

    def whole(self) -> str:
        """All of it, once the program has ended."""
        self._reader.join()
        return self._text

    def _read(self) -> None:
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        with open(self._pipe, "rb", buffering=0) as stream:
            ends = False
            while not ends:
                waits = QUIET_SECONDS if self._passed < len(self._text) else None
                if select.select([stream], [], [], waits)[0]:
                    part = stream.read(_CHUNK_BYTES)
                    ends = not part
                    with self._lock:
                        self._text += decoder.decode(part, final=ends)
                        self._tell(len(self._text) if ends else self._text.rfind("\n") + 1)
                else:  # a question, whose line somebody's answer ends
                    with self._lock:
                        self._tell(len(self._text))

    def _tell(self, until: int) -> None:
        if not self._aloud or until <= self._passed:
            return
        lines = self._text[self._passed : until].removesuffix("\n").split("\n")
        self._passed = until
        for line in lines:
            told = self._redact(printable(line.rstrip()))
            if told is not None:
                self._pass_on(f"{told}\n")


def _printed(process: subprocess.Popen[bytes], stdin: bytes, said: _Said) -> bytes:
    """On standard output, until its end. A login may wait for somebody who reads what it says on the other one."""
    try:
        return process.communicate(stdin, timeout=QUIET_SECONDS)[0]
    except subprocess.TimeoutExpired:
        said.let()
        return process.communicate()[0]
