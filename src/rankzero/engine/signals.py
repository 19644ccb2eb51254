"""A request to stop: SIGTERM, SIGINT, SIGHUP or a flag file becomes a wish that the loop lets all ranks agree on.

Nothing is saved inside a signal handler. Before the first step there is nothing to save, so a request ends the process
with exit code 75: by an exception that no `except Exception` takes for its own, and where that does not get through (a
library that catches everything, a wait in C for another process) by a thread, after LEAVE_SECONDS.

That thread hears of signals from the C handler, so it answers at once even while the main thread is in a long
operation, and lets a second Ctrl-C leave without saving. In a process that was not started for the run it ends nothing:
there a second Ctrl-C is a KeyboardInterrupt, once the main thread is back in Python. Knows nothing of what a step or a
checkpoint is.
"""

from __future__ import annotations

import _thread
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from rankzero.errors import INTERRUPTED, ExitCode, StopNow, StoppedError
from rankzero.wording import counted

AGAIN_SECONDS = 5.0
"""A second Ctrl-C within this time leaves at once; a later one counts as a first."""
LEAVE_SECONDS = 10.0
"""How long start-up may take to end once it was asked to."""
_LOOK_SECONDS = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_CLEAR_LINE_AND_SHOW_CURSOR = "\r\x1b[K\x1b[?25h"

Activity = Literal["rows", "step", "evaluation", "samples", "save", "result", "ending", "leaving"]
_ANSWERS: dict[Activity, str] = {
    "rows": "saving, then stopping, without the rows that are waited for",
    "step": "stopping after this step, then saving",
    "evaluation": "stopping after this pass of the evaluation, then saving",
    "samples": "stopping after this token of an answer, then saving",
    "save": "saving, then stopping",
    "result": "every step is done and saved; this ends when the result is written",
    "ending": "ending, once what was being saved is",
    "leaving": "ending",
}

Leaving = Literal["stopped", "interrupted"]
Say = Callable[[str], None]
Tell = Callable[[Activity, int], None]
"""What hears of each activity that begins, and how many steps are done then."""


class StopRequest:
    """Whether this process was asked to stop, by what, and what leaving at once would cost at the moment."""

    def __init__(
        self,
        say: Say,
        tell: Tell | None = None,
        *,
        own_process: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reason: str | None = None
        self._say, self._tell, self._own_process, self._clock = say, tell, own_process, clock
        self._note_leaving: Callable[[Leaving], None] = lambda _: None
        self._flag: Path | None = None
        self._activity: Activity | None = None
        self._step = self._saved = 0
        self._raised = self._over = False
        self._asked_at: float | None = None
        self._patience_told = self._interrupts = False
        self._echoes = 0
        """Signals that the listening thread has sent itself, and is still to hear."""

    def defer(self, flag: Path) -> None:
        """From now on note requests instead of raising: the loop saves first. Also watches `flag` from here on."""
        self._flag = flag
        self._activity = "step"

    def tell_of_leaving(self, note: Callable[[Leaving], None]) -> None:
        """Have `note` called, in the listening thread, where a request ends the process past the main thread."""
        self._note_leaving = note

    def now(self, activity: Activity, *, step: int, saved: int) -> None:
        """What the loop is doing: `step` steps are done, the checkpoint of step `saved` is the newest (0: none)."""
        self._step, self._saved, self._activity = step, saved, activity
        if self._tell is not None:
            self._tell(activity, step)

    def after_the_loop(self, activity: Literal["ending", "leaving"], *, saved: int) -> None:
        """What is being saved is waited for, or, `leaving`, nothing is written any more but what tells of the run. What
        ends before the loop stays a start that ends."""
        if self._activity is not None:
            self.now(activity, step=self._step, saved=saved)

    @property
    def wanted(self) -> bool:
        """Whether to stop at the next occasion."""
        if self.reason is None and self._flag is not None and os.path.exists(self._flag):
            self.reason = f"the file {self._flag}"
        return self.reason is not None

    @property
    def ends_start_up(self) -> bool:
        """Whether a stop is wanted while nothing has been trained that would have to be saved."""
        return self.reason is not None and self._activity is None

    def early(self) -> StoppedError:
        """The error of a start-up that was asked to stop."""
        why = self.reason or "another process"
        return StoppedError(f"stopped by {why} before the first step", hint="give the same command again")

    def over(self) -> None:
        """The process is leaving by itself: what comes now is only noted."""
        self._over = True

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """The handler, in the main thread, when Python next has a moment there."""
        self._note(number)
        if self._interrupts and not self._over:
            self._interrupts = False
            raise KeyboardInterrupt
        if self._activity is None and not self._over and not self._raised:
            self._raised = True  # once: a second one would cut short what the first lets go of
            raise StopNow

    def heard(self, number: int) -> None:
        """The same signal, at once, in the listening thread. May end the process."""
        if self._echoes:
            self._echoes -= 1
            return
        self._note(number)
        before, self._asked_at = self._asked_at, self._clock()
        again = before is not None and self._asked_at - before <= AGAIN_SECONDS
        if self._activity is None:
            if again and (self._own_process or number == signal.SIGINT):
                self._leave_start_up()
        elif number != signal.SIGINT:
            self._say(f"[STOP] {signal.Signals(number).name}: {_ANSWERS[self._activity]}")
        elif again:
            there = f"; the same command continues from step {self._saved}" if self._saved else ""
            self._leave(INTERRUPTED, f"left at once, losing {self._cost()}{there}")
        else:
            offer = f"Ctrl-C again within {AGAIN_SECONDS:.0f} s: leave now, losing {self._cost()}"
            self._say(f"[STOP] {_ANSWERS[self._activity]}; {offer}")

    def look(self) -> None:
        """Now and then, in the listening thread: end a start-up that was asked to stop and does not."""
        if not self.ends_start_up or self._over or self._asked_at is None:
            return
        if self._own_process and self._clock() - self._asked_at > LEAVE_SECONDS:
            self._leave_start_up()
        if not self._patience_told:
            self._patience_told = True
            self._say("[STOP] stopping; no step is done yet, so nothing is lost")

    def _note(self, number: int) -> None:
        if self.reason is None:
            self.reason = signal.Signals(number).name

    def _cost(self) -> str:
        """What leaving now loses."""
        steps = self._step - self._saved
        if self._activity == "result":
            return "nothing: the same command writes the result"
        if steps == 0:
            return "nothing" if self._activity in ("ending", "leaving") else "the step under way"
        count = counted(steps, "step")
        return f"{count} since step {self._saved}" if self._saved else f"{count}, all there are"

    def _leave_start_up(self) -> None:
        self._leave(ExitCode.STOPPED, f"stopped: {self.early()}")

    def _leave(self, code: int, words: str) -> None:
        """End the process here, past everything that may be stuck. What was being written keeps its temporary name.
        Another's process is not ours to end: its main thread is interrupted."""
        if not self._own_process:
            self._say(f"[STOP] {words}")
            self._interrupts, self._echoes = True, self._echoes + 1
            _thread.interrupt_main(signal.SIGINT)  # two that came while the main thread was in C are one to it
            return
        self._note_leaving("interrupted" if code == INTERRUPTED else "stopped")
        if sys.stderr.isatty():
            words = f"{_CLEAR_LINE_AND_SHOW_CURSOR}{words}"
        with suppress(OSError):  # the terminal is gone
            os.write(2, f"{words}\n".encode())
        os._exit(code)


@contextmanager
def stop_on_signals(say: Say, tell: Tell | None = None, *, own_process: bool = True) -> Iterator[StopRequest]:
    """Turn SIGTERM, SIGINT and SIGHUP into a StopRequest for the duration; `say` shows what it answers, and `tell`
    hears what the loop does. `own_process`: this one was started for the run, so that ending the run may end it.

    A SIGHUP that is ignored already, as under nohup, stays so. Only a program's main thread can mind signals: in
    another one the request is of the flag file alone.

    Raises StoppedError where a request ended the block before the first step, whatever the block made of it: an error
    that follows from having been stopped is not the user's. KeyboardInterrupt for a second Ctrl-C in another's process.
    """
    request = StopRequest(say, tell, own_process=own_process)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    hearing, telling = socket.socketpair()
    telling.setblocking(False)
    hearing.settimeout(_LOOK_SECONDS)
    listener = threading.Thread(target=_listen, args=(hearing, request), name="signals", daemon=True)
    listener.start()
    woken = signal.set_wakeup_fd(telling.fileno(), warn_on_full_buffer=False)
    minded = [number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, request.on_signal) for number in minded}
    try:
        try:
            yield request
        finally:
            request.over()
    except BaseException as error:
        if request.ends_start_up and not isinstance(error, KeyboardInterrupt):
            raise request.early() from None if isinstance(error, StopNow) else error
        raise
    finally:
        signal.set_wakeup_fd(woken)
        telling.close()
        listener.join()  # before the handlers go: what it may still send is for this one
        hearing.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _listen(hearing: socket.socket, request: StopRequest) -> None:
    """Pass on the numbers of signals, one byte each, until the other end is closed."""
    while True:
        try:
            numbers = hearing.recv(16)
        except TimeoutError:
            request.look()
            continue
        if not numbers:
            return
        for number in numbers:
            if number in _SIGNALS:
                request.heard(number)
