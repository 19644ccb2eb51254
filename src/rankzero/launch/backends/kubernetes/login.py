"""Runs the login command of a kubeconfig: hears what it says while it says it, and waits for people, not for ever."""

from __future__ import annotations

import codecs
import os
import select
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rankzero.errors import AccessError
from rankzero.redaction import LineRedactor, Redactor
from rankzero.stderr import write_stderr

PATIENCE_SECONDS = 600.0
"""People open a browser, look for their telephone and type a code; a code is good for a quarter of an hour at most."""
_LAST_WORDS_SECONDS = 1.0
"""For the end of what it says: a child that outlives it may hold standard error open."""
_QUIET_SECONDS = 0.5
"""After so long a line without an end is a question, which somebody's answer ends."""
_TAIL = 500


@dataclass(frozen=True, slots=True)
class Login:
    """How it ended."""

    code: int
    out: bytes
    said: str
    """The end of standard error, without secrets."""


def may_ask(mode: str) -> bool:
    """Whether the command gets the terminal, by the kubeconfig's interactiveMode: where there is one, unless Never."""
    return mode != "Never" and os.isatty(0)


def log_in(command: Sequence[str], env: Mapping[str, str], *, asks: bool, where: str) -> Login:
    """Run it. Standard error, where it tells people what to do, is passed on as it comes. Raises OSError where it
    cannot be run, AccessError where it does not end."""
    read, write = os.pipe()
    heard = _Heard(read, Redactor(env))
    alone = not asks and not _has_terminal()  # who leads a group of its own may not read the terminal
    try:
        process = subprocess.Popen(
            command,
            env=dict(env),
            stdin=None if asks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=write,
            start_new_session=alone,
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    heard.start()
    with process:
        try:
            out = _answer(process)
        except subprocess.TimeoutExpired:
            _kill(process, alone)
            hint = f"log in first: {shlex.join(command)}"
            what = f"has not ended within {PATIENCE_SECONDS / 60:.0f} minutes: {heard.tail()}".rstrip(": ")
            raise AccessError(what, where=where, hint=hint) from None
        except BaseException:
            _kill(process, alone)
            raise
    return Login(process.returncode, out, heard.tail())


def _has_terminal() -> bool:
    """Whether this process has one, wherever its standard input comes from: the command may ask there as well."""
    try:
        os.close(os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _answer(process: subprocess.Popen[bytes]) -> bytes:
    """What it printed. Once it has ended there is no more of it, though a child may hold its output open."""
    until, ended = time.monotonic() + PATIENCE_SECONDS, False
    while True:
        left = max(0.0, until - time.monotonic())
        try:
            return process.communicate(timeout=min(left, _LAST_WORDS_SECONDS))[0]
        except subprocess.TimeoutExpired as unfinished:
            if ended:
                return bytes(unfinished.output or b"")
            ended = process.poll() is not None
            if not ended and not left:
                raise


def _kill(process: subprocess.Popen[bytes], alone: bool) -> None:
    """With all that it has started, where that is a group of its own."""
    if not alone:
        process.kill()
        return
    with suppress(ProcessLookupError, PermissionError):  # nobody is left; some systems say it in this way
        os.killpg(process.pid, signal.SIGKILL)


class _Heard(threading.Thread):
    """Passes on what a pipe brings, and keeps its end."""

    def __init__(self, pipe: int, redact: Redactor) -> None:
        super().__init__(name="stderr of a login command", daemon=True)
        self._pipe, self._redact, self._line = pipe, redact, LineRedactor(redact)
        self._text = ""

    def run(self) -> None:
        """Until nobody holds the other end. Line by line: a secret that came in parts would be in none of them."""
        decoder, rest, ends = codecs.getincrementaldecoder("utf-8")("replace"), "", False
        with open(self._pipe, "rb", buffering=0) as pipe:
            there = select.poll()
            there.register(pipe, select.POLLIN)
            while not ends:
                if there.poll(_QUIET_SECONDS * 1000 if rest else None):
                    part = pipe.read(65536)
                    ends = not part
                    *lines, rest = (rest + decoder.decode(part, final=ends)).split("\n")
                    for line in lines:
                        self._tell(line, "\n")
                    if not ends:
                        continue
                self._tell(rest, "")
                rest = ""

    def _tell(self, said: str, end: str) -> None:
        told = self._line(said)
        if told is None:
            return
        self._text = (self._text + told + end)[-4 * _TAIL :]
        if told or end:
            write_stderr(told + end)

    def tail(self) -> str:
        """What was said last."""
        self.join(_LAST_WORDS_SECONDS)
        return self._redact(self._text).strip()[-_TAIL:]
