"""What is sent to a command in a pod that takes no more of it: a stall, and a peer that has gone, end it in words."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import httpcore2
import pytest

from rankzero.errors import ServiceError
from rankzero.launch.backends.kubernetes import execute as module
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.execute import Place, stream

BEAT = bytes([0x82, 2, 2, 0])
"""A message: one byte of standard error."""


MOST_BEATS = 20_000


class Peer:
    """A pod whose command beats for ever, and takes what it is sent as it is told."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    @contextmanager
    def upgraded(self, *_: object) -> Iterator[tuple[Callable[[int], bytes], Callable[[bytes], None]]]:
        beats = iter(range(MOST_BEATS))

        def receive(_most: int) -> bytes:
            threading.Event().wait(0.001)
            assert next(beats, None) is not None, "nobody else ends it"
            return BEAT

        yield receive, self._take


def sent_to(peer: Peer) -> None:
    stream(cast(Api, peer), Place("dev-0", ""), ["apply"], lambda _data: None, io.BytesIO(bytes(100_000)))


def test_an_upload_that_stalls_ends_in_words() -> None:
    """What was sent of it then is not known: it cannot go on."""

    def stall(_data: bytes) -> None:
        raise httpcore2.WriteTimeout("timed out")

    with pytest.raises(ServiceError, match="took nothing of what it was sent for 120 s") as caught:
        sent_to(Peer(stall))
    assert caught.value.problems[0].where == "pod dev-0"


def test_who_takes_no_more_is_not_heard_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_data: bytes) -> None:
        raise httpcore2.WriteError("Broken pipe")

    monkeypatch.setattr(module, "LAST_WORDS_SECONDS", 0.1)
    with pytest.raises(ServiceError, match="the connection broke before the command ended"):
        sent_to(Peer(closed))
