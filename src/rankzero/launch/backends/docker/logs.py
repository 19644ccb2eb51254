"""Lines of several containers as one stream. Knows nothing of runs or pods beyond their names."""

from __future__ import annotations

import heapq
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO

from rankzero.launch.backend import LogLine
from rankzero.launch.backends.docker.command import Docker, end, follow, refusal
from rankzero.launch.log_lines import read_stamp


@dataclass(frozen=True, slots=True)
class Source:
    """Whose lines a container's are."""

    pod: str
    node: int
    role: str


def recent(
    docker: Docker, container: str, source: Source, *, since: int | None = None, tail: int | None = None
) -> list[LogLine]:
    """What a container has said up to now; nothing where it has been removed. Raises as `Docker.call`: of a logging
    driver that keeps nothing to be read."""
    arguments = _arguments(container, since, tail)
    answer = docker.try_call(*arguments)
    if answer.code != 0:
        if not docker.inspect(container):
            return []
        raise refusal(arguments, answer)
    # Both channels come apart here; their stamps put them in order again.
    lines = [_line(source, text) for channel in (answer.out, answer.err) for text in _split(channel)]
    return sorted(lines, key=_time_of)


def merged(parts: Iterable[Sequence[LogLine]]) -> Iterator[LogLine]:
    """Lines of several containers by time."""
    return heapq.merge(*parts, key=_time_of)


@dataclass(frozen=True, slots=True)
class _Ended:
    """Behind the last line of a container."""

    identity: str
    said: str
    """The last words of docker's own; "": there were none."""


Look = Callable[[], tuple[Mapping[str, Source], bool]]
"""The containers that have started, by id, and whether others will."""


def followed(
    look: Look, poll_seconds: float, *, since: int | None = None, tail: int | None = None
) -> Iterator[LogLine]:
    """Lines as they come, until no container runs and none is about to.

    A container that takes the place of one that ended has another id. Those that come later are read from their start.
    """
    lines: queue.SimpleQueue[LogLine | _Ended] = queue.SimpleQueue()
    streams: dict[str, tuple[subprocess.Popen[bytes], threading.Thread]] = {}
    known, pending = look()
    try:
        for identity, source in known.items():
            streams[identity] = _open(identity, source, lines, since, tail)
        seen = set(known)
        while streams or pending:
            item: LogLine | _Ended | None = None
            with suppress(queue.Empty):
                item = lines.get(timeout=poll_seconds)
            if isinstance(item, LogLine):
                yield item
                continue
            failed = item is not None and _close(*streams.pop(item.identity)) != 0
            found, pending = look()
            if item is not None and failed and item.identity in found:
                yield _line(found[item.identity], f"docker logs: {item.said}")
            for identity, source in found.items():
                if identity not in seen:
                    seen.add(identity)
                    streams[identity] = _open(identity, source, lines)
    finally:
        for process, thread in streams.values():
            end(process)
            _close(process, thread)


def _open(
    identity: str,
    source: Source,
    lines: queue.SimpleQueue[LogLine | _Ended],
    since: int | None = None,
    tail: int | None = None,
) -> tuple[subprocess.Popen[bytes], threading.Thread]:
    process, output = follow([*_arguments(identity, since, tail), "--follow"])
    thread = threading.Thread(target=_read, args=(identity, source, output, lines), daemon=True)
    thread.start()
    return process, thread


def _close(process: subprocess.Popen[bytes], thread: threading.Thread) -> int:
    code = process.wait()
    thread.join()
    return code


def _read(identity: str, source: Source, output: IO[bytes], lines: queue.SimpleQueue[LogLine | _Ended]) -> None:
    """Lines without a stamp are docker's own: that the container has been removed meanwhile, or cannot be read."""
    said = ""
    with closing(output):
        for raw in output:
            line = _line(source, raw.decode(errors="replace").rstrip("\n"))
            if line.time is not None:
                lines.put(line)
            else:
                said = line.text or said
    lines.put(_Ended(identity, said))


def _arguments(container: str, since: int | None, tail: int | None) -> list[str]:
    return [
        *("logs", container, "--timestamps"),
        *(("--since", f"{since}s") if since is not None else ()),
        *(("--tail", str(tail)) if tail is not None else ()),
    ]


def _split(text: str) -> list[str]:
    """Lines as their writer ended them: progress bars return without a new line."""
    return text.removesuffix("\n").split("\n") if text else []


def _line(source: Source, text: str) -> LogLine:
    line = read_stamp(text)
    return LogLine(source.node, source.pod, source.role, line.text, line.time)


_FIRST = datetime.min.replace(tzinfo=UTC)


def _time_of(line: LogLine) -> datetime:
    return line.time or _FIRST
