"""A node's side of the control channel: finds node 0, waits with words and an end, and hands messages over in order."""

from __future__ import annotations

import queue
import socket
import time
import uuid
from collections.abc import Callable

from rankzero.errors import ConfigError, ServiceError, StoppedError
from rankzero.launch.node.channel import Channel, Message
from rankzero.launch.node.platform import Place
from rankzero.launch.node.submission import Submission

Say = Callable[[str], None]
RETRY_SECONDS = 0.5
REPLY_SECONDS = 5.0
PARTING_SECONDS = 2.0


class Wait:
    """A wait that speaks at growing intervals and ends."""

    def __init__(self, limit_seconds: float, say: Say) -> None:
        self._limit, self._say = limit_seconds, say
        self._since = time.monotonic()
        self._next = 5.0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._since

    @property
    def over(self) -> bool:
        """Whether it has lasted long enough."""
        return self.seconds > self._limit

    def speak(self, what: str) -> None:
        """Say what is waited for, if it is time to."""
        if self.seconds >= self._next:
            self._next *= 2 if self._next < 60 else 1.5
            limit = f"{self._limit / 60:.0f} min" if self._limit >= 120 else f"{self._limit:.0f} s"
            self._say(f"waiting for {what}: {self.seconds:.0f} s; gives up after {limit}")


class Client:
    """The connection to node 0, made again where it was lost."""

    def __init__(self, place: Place, identity: Message, submission: Submission, say: Say) -> None:
        self._place, self._identity, self._submission, self._say = place, identity, submission, say
        self._messages: queue.SimpleQueue[tuple[Channel, Message | None]] = queue.SimpleQueue()
        self._channel: Channel | None = None
        self._incarnation = uuid.uuid4().hex
        """Tells this pod from another that says it is the same node."""

    def connect(self, stopped: Callable[[], bool], wait: Wait) -> bool:
        """Reach node 0 and be let in. Returns False where `stopped` became true first.

        Raises ServiceError when the wait is over, saying what failed last, and ConfigError where node 0 refuses us.
        """
        self.close()
        while not stopped():
            trouble = self._reach()
            if not trouble:
                return True
            if wait.over:
                raise ServiceError(
                    f"node 0 was not reached in {wait.seconds:.0f} s: {trouble}",
                    where=f"node {self._place.node}",
                    hint="see what its pod waits for; rendezvous_timeout_seconds sets how long the others wait",
                )
            wait.speak(f"node 0 ({trouble})")
            time.sleep(RETRY_SECONDS)
        return False

    def _reach(self) -> str:
        """Try once. Returns what is in the way; nothing where we are let in."""
        # Node 0 meets itself without its name, which may take seconds to resolve and says nothing of the others.
        address = "127.0.0.1" if self._place.node == 0 else self._place.master_address
        try:
            connection = socket.create_connection((address, self._place.control_port), timeout=5)
        except OSError as error:
            return _in_words(error, self._place)
        self._channel = Channel(connection, lambda from_, message: self._messages.put((from_, message)))
        self._channel.open()
        challenge = str((self.next(REPLY_SECONDS) or {}).get("challenge", ""))
        hello = {"identity": self._identity, "node": self._place.node, "incarnation": self._incarnation}
        self._channel.send({"hello": hello, "proof": self._submission.proof(challenge, hello)})
        reply = self.next(REPLY_SECONDS) or {}
        if "replaced" in reply:
            raise place_taken(self._place.node)
        if "refused" in reply:
            what = "node 0 is of another run, layout or submission, and has turned this node away"
            hint = "node 0's log says what differs; delete the older run, or submit again"
            raise ConfigError(what, where=f"node {self._place.node}", hint=hint)
        if "welcome" in reply:
            return ""
        self._channel.close()
        return f"{address}:{self._place.control_port} takes connections but does not answer: a proxy in between?"

    def send(self, message: Message) -> None:
        """Tell node 0."""
        if self._channel is not None:
            self._channel.send(message)

    def next(self, timeout: float) -> Message | None:
        """The next message, {"lost": True} where the connection is gone, or None where nothing came in time."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                channel, message = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if channel is self._channel:  # else the last words of a connection that was given up
                return {"lost": True} if message is None else message

    def close(self) -> None:
        """Hang up, when what was said has arrived."""
        if self._channel is not None:
            self._channel.finish()
            self._channel.ended(PARTING_SECONDS)
            self._channel.close()
            self._channel = None


def place_taken(node: int) -> StoppedError:
    """What a pod ends with that another one has followed: it was deleted, or its node was cut off for a while."""
    return StoppedError(f"another pod has taken the place of node {node}", hint="the run goes on without this one")


def _in_words(error: OSError, place: Place) -> str:
    target = f"{place.master_address}:{place.control_port}"
    if isinstance(error, socket.gaierror):
        return f"the name {place.master_address} does not resolve: is its pod there?"
    if isinstance(error, ConnectionRefusedError):
        return f"{target} refuses connections: its command is not up yet"
    if isinstance(error, TimeoutError):
        return f"{target} does not answer: a network policy, or a node that is gone"
    return f"{target}: {error.strerror or error}"
