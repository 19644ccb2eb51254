"""One command in all warm pods at once: what they print as it comes, and how they end. Knows nothing of what runs."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from rankzero.errors import INTERRUPTED, RankzeroError, ServiceError
from rankzero.launch.backend import Backend
from rankzero.launch.node.settings import MASTER_PORT, WARM_DIR
from rankzero.launch.warm.pods import WarmPod
from rankzero.launch.warm.sync import WORK

PEER_SECONDS = 10.0
"""How long the others may take to end by themselves when one has failed."""
_PROGRAM = ["python", "-P", "-m", "rankzero.launch.node.group", WARM_DIR]
_LOOK_SECONDS = 0.2

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
) -> int:
    """Run a command in all pods, each with its variables, after what was run there before has been ended.

    Returns the exit code of the first that failed, 0 where none did, and INTERRUPTED after Ctrl-C, which ends all.
    Raises ServiceError where a pod is lost; the others are ended.
    """
    order = uuid4().hex
    told = {"id": order, "command": list(command), "work": WORK, "grace": grace}
    orders = {pod.name: json.dumps({**told, "env": dict(env[pod.name])}) for pod in pods}
    return _Together(backend, pods, order, orders, line).run()


@dataclass(frozen=True, slots=True)
class _Over:
    """A pod's command has ended."""

    code: int
    error: RankzeroError | None = None


class _Together:
    def __init__(
        self, backend: Backend, pods: Sequence[WarmPod], order: str, orders: Mapping[str, str], line: Line
    ) -> None:
        self._backend, self._pods, self._line = backend, {pod.name: pod for pod in pods}, line
        self._order, self._orders = order, orders
        self._news: queue.SimpleQueue[tuple[str, str | _Over]] = queue.SimpleQueue()
        self._left = set(self._pods)
        self._failed: _Over | None = None
        self._failed_at = 0.0
        self._told = False

    def run(self) -> int:
        for name in self._pods:
            threading.Thread(target=self._one, args=(name,), daemon=True).start()
        try:
            self._listen()
        except KeyboardInterrupt:
            self._end()
            self._listen()
            return INTERRUPTED
        if self._failed is not None and self._failed.error is not None:
            raise self._failed.error
        return 0 if self._failed is None else self._failed.code

    def _listen(self) -> None:
        """Until all have ended. Where one has failed, the others are not waited for much longer."""
        while self._left:
            if self._failed is not None and not self._told and time.monotonic() - self._failed_at > PEER_SECONDS:
                self._end()
            try:
                name, news = self._news.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(news, str):
                self._line(self._pods[name], news)
                continue
            self._left.discard(name)
            if news.code and self._failed is None:
                self._failed, self._failed_at = news, time.monotonic()

    def _one(self, name: str) -> None:
        """A thread for each pod."""
        lines = _Lines(lambda text: self._news.put((name, text)))
        try:
            ended = self._backend.execute(name, [*_PROGRAM, "run", self._orders[name]], lines.hear)
            lines.flush()
            for text in ended.words.replace("\0", "").splitlines():
                self._news.put((name, text))
            over = _Over(ended.code)
        except RankzeroError as error:
            over = _Over(int(error.exit_code), error)
        except Exception as error:  # a thread's last frame: whoever waits for it must hear of it
            over = _Over(1, ServiceError(f"{type(error).__name__}: {error}", where=f"pod {name}"))
        self._news.put((name, over))

    def _end(self) -> None:
        """Tell all that still run."""
        self._told = True
        for name in self._left:
            threading.Thread(target=partial(self._end_one, name), daemon=True).start()

    def _end_one(self, name: str) -> None:
        try:
            self._backend.execute(name, [*_PROGRAM, "end", self._order], lambda _data: None)
        except RankzeroError as error:
            self._news.put((name, _Over(int(error.exit_code), error)))


class _Lines:
    """Bytes as they come, as whole lines."""

    def __init__(self, put: Callable[[str], None]) -> None:
        self._put, self._rest = put, b""

    def hear(self, data: bytes) -> None:
        *whole, self._rest = (self._rest + data).split(b"\n")
        for one in whole:
            self._put(one.decode(errors="replace"))

    def flush(self) -> None:
        if self._rest:
            self._put(self._rest.decode(errors="replace"))
            self._rest = b""
