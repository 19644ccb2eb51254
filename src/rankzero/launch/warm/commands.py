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
from rankzero.launch.backend import Backend
from rankzero.launch.node.settings import MASTER_PORT, WARM_DIR
from rankzero.launch.processes import signals_to, stop_signals
from rankzero.launch.warm.pods import WarmPod
from rankzero.launch.warm.sync import WORK, failed

PEER_SECONDS = 10.0
"""How long the others may take to end by themselves when one has failed."""
TRIES = 3
"""Of an order to end."""
RETRY_SECONDS = 2.0
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
    by: str = "",
) -> int:
    """Run a command in all pods, each with its variables, after what was run there before has been ended. Whoever ran
    that is told `by` whom.

    Returns the exit code of the first that failed, 0 where none did, and 128 and its number after a signal: Ctrl-C,
    SIGTERM and SIGHUP end all, and so does what `line` raises. Raises ServiceError where a pod is lost or cannot be
    told to end; the others are ended.
    """
    order = uuid4().hex
    told = {"id": order, "by": by, "at": time.time(), "command": list(command), "work": WORK, "grace": grace}
    orders = {pod.name: json.dumps({**told, "env": dict(env[pod.name])}) for pod in pods}
    return _Together(backend, pods, order, orders, line).run()


@dataclass(frozen=True, slots=True)
class _Over:
    """A pod's command has ended, or nothing more is heard of it."""

    code: int
    error: RankzeroError | None = None

    @property
    def unsure(self) -> bool:
        """Whether the command may go on."""
        return isinstance(self.error, ServiceError)


@dataclass(frozen=True, slots=True)
class _Told:
    """A pod was told to end its command."""

    error: RankzeroError | None = None
    """Why it could not be."""


class _Together:
    def __init__(
        self, backend: Backend, pods: Sequence[WarmPod], order: str, orders: Mapping[str, str], line: Line
    ) -> None:
        self._backend, self._pods, self._line = backend, {pod.name: pod for pod in pods}, line
        self._order, self._orders = order, orders
        self._news: queue.SimpleQueue[tuple[str, str | _Over | _Told]] = queue.SimpleQueue()
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
        self._signal = 0
        self._refused: Exception | None = None
        """What became of the last line, where nobody takes them."""

    def run(self) -> int:
        with suppress(KeyboardInterrupt), signals_to(self._stop, stop_signals()):
            for name in self._pods:
                threading.Thread(target=self._one, args=(name,), daemon=True).start()
            self._listen()
        problems = [self._may_run(name) for name in self._pods if name in self._left or name in self._lost]
        error = self._failed.error if self._failed is not None else None
        if problems:
            raise ServiceError([*(error.problems if error is not None and not self._signal else ()), *problems])
        if self._refused is not None:
            raise self._refused
        if self._signal:
            return 128 + self._signal
        if error is not None:
            raise error
        return 0 if self._failed is None else self._failed.code

    def _stop(self, number: int) -> None:
        """The signal handler. Who asks twice waits for nothing."""
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number

    def _listen(self) -> None:
        """Until all have ended. Where one has failed, the others are not waited for much longer."""
        while self._left:
            late = self._failed is not None and time.monotonic() - self._failed_at > PEER_SECONDS
            if late or self._signal or self._refused is not None:
                self._end(self._left)
            try:
                name, news = self._news.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(news, str):
                self._say(name, news)
            elif isinstance(news, _Told):
                self._note_told(name, news)
            else:
                self._note_over(name, news)

    def _say(self, name: str, text: str) -> None:
        if self._refused is not None:
            return
        try:
            self._line(self._pods[name], text)
        except Exception as error:  # a closed pipe or terminal: raised when nothing runs any more
            self._refused = error

    def _note_over(self, name: str, over: _Over) -> None:
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
        if told.error is not None or name in self._unheard:
            self._left.discard(name)

    def _one(self, name: str) -> None:
        """A thread for each pod."""
        lines = _Lines(lambda text: self._news.put((name, text)))
        try:
            ended = self._backend.execute(name, [*_PROGRAM, "run", self._orders[name]], lines.hear)
            lines.flush()
            for text in ended.words.replace("\0", "").splitlines():
                self._news.put((name, text))
            over = _Over(ended.code)
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
        for attempt in range(TRIES):
            time.sleep(RETRY_SECONDS if attempt else 0)
            try:
                ended = self._backend.execute(name, command, lambda _data: None)
                error = failed(name, command, ended) if ended.code else None
            except Exception as caught:  # as above
                error = _known(caught, name)
            if error is None:
                break
        self._news.put((name, _Told(error)))

    def _may_run(self, name: str) -> Problem:
        lost = self._lost.get(name)
        told = ": it was told to end" if self._told.get(name) else ""
        why = told if lost is None else f": it could not be told to end ({lost.problems[0].what})"
        hint = "the next `rankzero dev run` ends it first, `rankzero dev down` with the pods"
        return Problem(f"the command may still run there{why}", f"pod {name}", hint)


def _known(error: Exception, pod: str) -> RankzeroError:
    if isinstance(error, RankzeroError):
        return error
    return ServiceError(f"{type(error).__name__}: {error}", where=f"pod {pod}")


class _Lines:
    """Bytes as they come, as lines. A line that is written over, as progress bars are, is shown every few seconds."""

    def __init__(self, put: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._put, self._now = put, now
        self._rest = bytearray()
        self._state: bytes | None = None
        """What the line was, before it is written over."""
        self._is_shown = False
        self._next_at = -math.inf

    def hear(self, data: bytes) -> None:
        begin = 0
        for end in _ENDS.finditer(data):
            self._rest += data[begin : end.start()]
            begin = end.end()
            if end[0] == b"\n":
                self._end_line()
            elif self._rest:
                self._note_state()
        self._rest += data[begin:]

    def flush(self) -> None:
        if self._rest or self._state is not None:
            self._end_line()

    def _note_state(self) -> None:
        self._state, self._is_shown = bytes(self._rest), False
        self._rest.clear()
        if (now := self._now()) >= self._next_at:
            self._next_at, self._is_shown = now + BAR_SECONDS, True
            self._show(self._state)

    def _end_line(self) -> None:
        if self._rest or self._state is None:
            self._show(bytes(self._rest))
        elif not self._is_shown:
            self._show(self._state)
        self._rest.clear()
        self._state = None

    def _show(self, line: bytes) -> None:
        self._put(line.decode(errors="replace"))
