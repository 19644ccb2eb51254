"""The fingerprint of a base, found by a thread while the process does something else. Knows when it is wanted, and
nothing of what it is for."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from rankzero.model.source import ModelSource, weights_fingerprint
from rankzero.spec.tasks import ModelUse


class FingerprintBeside:
    """A start hashes its base while it tokenises and loads: of a large model that takes as long as to load it.

    Whoever leaves, for whatever reason, closes it.
    """

    def __init__(self, own_code: ModelUse | None) -> None:
        self._own_code = own_code
        self._left = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fingerprint")
        self._found: Future[str] | None = None

    def begin(self, source: ModelSource) -> None:
        """Hash these files from now on."""
        own_code, left = self._own_code, self._left.is_set
        self._found = self._thread.submit(weights_fingerprint, source.weights, own_code=own_code, stopped=left)

    def wait(self) -> str:
        """The fingerprint. Raises as weights_fingerprint does."""
        assert self._found is not None, "nothing has begun"
        return self._found.result()

    def close(self) -> None:
        """Have the thread stop, and wait until it has."""
        self._left.set()
        self._thread.shutdown()
