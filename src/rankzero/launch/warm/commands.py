"""One command in all warm pods at once: what they print as it comes, and how they end. Knows nothing of what runs."""

from __future__ import annotations

import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from rankzero.errors import Problem, RankzeroError, ServiceError
from rankzero.launch.backend import Backend, Say
from rankzero.launch.node.group import NOT_BEGUN
from rankzero.launch.node.settings import MASTER_PORT, WARM_DIR
from rankzero.launch.warm.pods import WarmPod
from rankzero.launch.warm.sync import WORK, failed
from rankzero.stop_signals import signals_to, stop_signals

PEER_SECONDS = 10.0
"""How long the others may take to end by themselves when one has failed."""
TRIES = 3
"""Of an order to end."""
RETRY_SECONDS = 2.0
LAST_SECONDS = 1.0
"""How long after a second signal pods may take to be told."""
_PROGRAM = ["python", "-P", "-m", "rankzero.launch.node.group", WARM_DIR]
_LOOK_SECONDS = 0.2
BAR_SECONDS = 5.0
"""How often a line is shown that does not end."""
_ENDS = re.compile(rb"[\r\n]")

Line = Callable[[WarmPod, str], None]
"""Is given each line of each pod."""


def ranks(pod: WarmPod, pods: Sequence[WarmPod]) -> dict[str, str]:
    """What a launcher in one of the pods has to know: `torchrun SCRIPT` takes all of it from here. With one process a
    node a script is its own launcher, and finds its rank."""
    node, nodes, nproc, port = str(pod.node), str(len(pods)), pod.nproc, str(MASTER_PORT)
    found = {
        "RANKZERO_NODE": node,
        "NODE_RANK": node,
        "MASTER_ADDR": pod.master,
        "MASTER_PORT": port,
        "PET_NODE_RANK": node,
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": str(nproc),
        "PET_MASTER_ADDR": pod.master,
        "PET_MASTER_PORT": port,
    }
    if nproc == 1:
        found |= {"RANK": node, "WORLD_SIZE": nodes, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    return found


def run_together(
    backend: Backend,
    pods: Sequence[WarmPod],
    command: Sequence[str],
    env: Mapping[str, Mapping[str, str]],
    grace: float,
    line: Line,
    say: Say,
    by: str = "",
) -> int:
    """Run a command in all pods, each with its variables, after what was run there before has been ended. Whoever ran
    that is told `by` whom.

    Returns the exit code of the first that failed, 0 where none did, and 128 and its number after a signal: Ctrl-C,
    SIGTERM and SIGHUP end all, and so does what `line` raises. Where the command may run on then is said. Raises
    ServiceError where a pod is lost or cannot be told to end; the others are ended.
    """
    order = uuid4().hex
    told = {"id": order, "by": by, "at": time.time(), "command": list(command), "work": WORK, "grace": grace}
    orders = {pod.name: json.dumps({**told, "env": dict(env[pod.name])}) for pod in pods}
    return _Together(backend, pods, order, orders, line, say).run()


@dataclass(frozen=True, slots=True)
class _Over:
    """A pod's command has ended, or nothing more is heard of it."""

    code: int
    error: RankzeroError | None = None
    words: str = ""

    @property
    def unsure(self) -> bool:
        """Whether the command may go on."""
        return isinstance(self.error, ServiceError)


@dataclass(frozen=True, slots=True)
class _Told:
    """A pod was told to end its command."""

    error: RankzeroError | None = None
    """Why it could not be."""
    has_begun: bool = True
    """Where not, nothing of the command ever runs there. Pods of an older version do not say so."""


class _Together:
    """A thread of its own keeps what is known of the pods, and tells them to end. The program's own writes lines, which
    takes as long as somebody likes to read them."""

    def __init__(
        self,
        backend: Backend,
        pods: Sequence[WarmPod],
        order: str,
        orders: Mapping[str, str],
        line: Line,
        say: Say,
    ) -> None:
        self._backend, self._pods, self._line, self._say = backend, {pod.name: pod for pod in pods}, line, say
        self._order, self._orders = order, orders
        self._news: queue.SimpleQueue[tuple[str, bytes | _Over | _Told]] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[tuple[WarmPod, str] | None] = queue.SimpleQueue()
        self._lines = {pod.name: _Lines(partial(self._put, pod)) for pod in pods}
        self._left = set(self._pods)
        """Whose commands are not known to have ended."""
        self._unheard: set[str] = set()
        """Of these nothing more is heard."""
        self._told: dict[str, bool] = {}
        """Which were told to end, and whether that has reached them."""
        self._lost: dict[str, RankzeroError] = {}
        """Which could not be told."""
        self._failed: _Over | None = None
        self._failed_at = 0.0
        self._signals: list[int] = []
        self._refused: Exception | None = None
        """What became of the last line, where nobody takes them."""

    def run(self) -> int:
        keeper = threading.Thread(target=self._keep, daemon=True)
        keeper.start()
        with signals_to(self._stop, stop_signals()):
            with suppress(KeyboardInterrupt):
                for name in self._pods:
                    threading.Thread(target=self._one, args=(name,), daemon=True).start()
                self._write()
            keeper.join()
        unended = [name for name in self._pods if name in self._lost or name in self._left and not self._told.get(name)]
        problems = [self._may_run(name) for name in unended]
        if self._signals:
            for problem in problems:
                self._say(f"warning: {problem}")
            return 128 + self._signals[0]
        error = self._failed.error if self._failed is not None else None
        if problems:
            raise ServiceError([*(error.problems if error is not None else ()), *problems])
        if self._refused is not None:
            raise self._refused
        if error is not None:
            raise error
        return 0 if self._failed is None else self._failed.code

    def _stop(self, number: int) -> None:
        """The signal handler. Who asks twice waits for no line more."""
        self._signals.append(number)
        if len(self._signals) == 2:
            raise KeyboardInterrupt

    def _put(self, pod: WarmPod, text: str) -> None:
        self._to_write.put((pod, text))

    def _write(self) -> None:
        """Until all have ended."""
        while (one := self._to_write.get()) is not None:
            if self._refused is None:
                try:
                    self._line(*one)
                except Exception as error:  # a closed pipe or terminal: raised when nothing runs any more
                    self._refused = error

    def _keep(self) -> None:
        try:
            self._listen()
        except Exception as error:  # a thread's last frame
            self._refused = error
        finally:
            self._to_write.put(None)

    def _listen(self) -> None:
        """Until all have ended. Where one has failed, the others are not waited for much longer."""
        leave_at = math.inf
        while self._left and time.monotonic() < leave_at:
            late = self._failed is not None and time.monotonic() - self._failed_at > PEER_SECONDS
            if late or self._signals or self._refused is not None:
                self._end(self._left)
            if len(self._signals) > 1:
                leave_at = min(leave_at, time.monotonic() + LAST_SECONDS)
            for lines in self._lines.values():
                lines.look()
            try:
                name, news = self._news.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(news, bytes):
                self._lines[name].hear(news)
            elif isinstance(news, _Told):
                self._note_told(name, news)
            else:
                self._note_over(name, news)

    def _note_over(self, name: str, over: _Over) -> None:
        self._lines[name].flush()
        for text in over.words.replace("\0", "").splitlines():
            self._put(self._pods[name], text)
        if over.code and self._failed is None:
            self._failed, self._failed_at = over, time.monotonic()
        if not over.unsure or self._told.get(name):
            self._left.discard(name)
            self._lost.pop(name, None)
            return
        self._unheard.add(name)
        self._end([name])

    def _note_told(self, name: str, told: _Told) -> None:
        if name not in self._left:
            return
        self._told[name] = told.error is None
        if told.error is not None:
            self._lost[name] = told.error
        if told.error is not None or not told.has_begun or name in self._unheard:
            self._left.discard(name)

    def _one(self, name: str) -> None:
        """A thread for each pod."""
        try:
            run = [*_PROGRAM, "run", self._orders[name]]
            ended = self._backend.execute(name, run, lambda data: self._news.put((name, data)))
            over = _Over(ended.code, words=ended.words)
        except Exception as error:  # a thread's last frame: whoever waits for it must hear of it
            known = _known(error, name)
            over = _Over(int(known.exit_code), known)
        self._news.put((name, over))

    def _end(self, names: Iterable[str]) -> None:
        """Tell those that have not been told."""
        for name in set(names) - set(self._told):
            self._told[name] = False
            threading.Thread(target=partial(self._end_one, name), daemon=True).start()

    def _end_one(self, name: str) -> None:
        """A thread for each pod that is told."""
        command = [*_PROGRAM, "end", self._order]
        error: RankzeroError | None = None
        said: list[bytes] = []
        for attempt in range(TRIES):
            time.sleep(RETRY_SECONDS if attempt else 0)
            try:
                ended = self._backend.execute(name, command, said.append)
                error = failed(name, command, ended) if ended.code else None
            except Exception as caught:  # as above
                error = _known(caught, name)
            if error is None:
                break
        self._news.put((name, _Told(error, NOT_BEGUN.encode() not in b"".join(said))))

    def _may_run(self, name: str) -> Problem:
        lost = self._lost.get(name)
        why = "" if lost is None else f": it could not be told to end ({lost.problems[0].what})"
        hint = "the next `rankzero dev run` ends it first, `rankzero dev down` with the pods"
        return Problem(f"the command may still run there{why}", f"pod {name}", hint)


def _known(error: Exception, pod: str) -> RankzeroError:
    if isinstance(error, RankzeroError):
        return error
    return ServiceError(f"{type(error).__name__}: {error}", where=f"pod {pod}")


class _Lines:
    """Bytes as they come, as lines. Of a line that is written over, as progress bars are, what it is now is shown every
    few seconds."""

    def __init__(self, put: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._put, self._now = put, now
        self._rest = bytearray()
        self._before = b""
        """What the line was, before it is written over."""
        self._is_bar = False
        self._shown: bytes | None = None
        """Of this line."""
        self._next_at = -math.inf

    def hear(self, data: bytes) -> None:
        begin = 0
        for end in _ENDS.finditer(data):
            self._rest += data[begin : end.start()]
            begin = end.end()
            if end[0] == b"\n":
                self._end_line()
            else:
                self._is_bar, self._before = True, self._newest()
                self._rest.clear()
        self._rest += data[begin:]
        self.look()

    def look(self) -> None:
        """Whether a line that does not end is to be shown: it may have stalled."""
        if self._is_bar and (now := self._now()) >= self._next_at:
            newest = self._newest()
            if newest and newest != self._shown:
                self._next_at = now + BAR_SECONDS
                self._show(newest)

    def flush(self) -> None:
        if self._newest():
            self._end_line()

    def _newest(self) -> bytes:
        return bytes(self._rest) or self._before

    def _end_line(self) -> None:
        if (newest := self._newest()) != self._shown:
            self._show(newest)
        self._rest.clear()
        self._is_bar, self._before, self._shown = False, b"", None

    def _show(self, line: bytes) -> None:
        self._shown = line
        self._put(line.decode(errors="replace"))
