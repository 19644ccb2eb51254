"""A stream's rows for the ranks of a run: each node has one process that reads ahead, and waits are agreed on.

Knows ranks and streams; nothing of models.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rankzero.data.batches.loader import Steps
from rankzero.data.cache.job import CODE_VERSION
from rankzero.data.cache.stream.plan import Stream
from rankzero.data.cache.stream.rows import COUNTED, Feeder, RowStream, StreamPosition, new_directory
from rankzero.data.pool import worker_count
from rankzero.engine.console import logger
from rankzero.engine.distributed import World, any_rank, gather_objects
from rankzero.errors import PeerLostError, RankzeroError
from rankzero.machine import cache_root, usable_cores
from rankzero.wording import counted

LOOK_SECONDS = 0.02
"""Between two looks whether rows have come."""


def open_stream(stream: Stream, world: World, saved: Mapping[str, Any] | None) -> RowStream:
    """The stream from where a checkpoint says that it was, or from its beginning. A collective."""
    saved_position = StreamPosition() if saved is None else StreamPosition.from_json(saved)
    position = saved_position.under(stream)
    if position.taken < saved_position.taken and position.cursor == saved_position.cursor and world.rank == 0:
        what = f"the {counted(saved_position.taken, 'row')} trained of the window under way come once more"
        logger.warning("[DATA] train: %s: windows have another size, or another version made their tokens", what)
    feeder = directory = None
    if world.local_rank == 0:
        directory = new_directory(cache_root())
        spare = usable_cores() - world.local_world_size
        workers = max(1, spare) if stream.nbytes is None else worker_count(stream.nbytes, max(1, spare))
        feeder = Feeder(stream, position.cursor, directory, workers=workers)
    places = gather_objects(None if directory is None else str(directory))
    return RowStream(stream, position, Path(places[world.rank - world.local_rank]), feeder)


def tokens_of_another_version(saved: Mapping[str, Any] | None) -> bool:
    """Whether another version than this one made the tokens of a stream's window where a checkpoint left it."""
    return saved is not None and StreamPosition.from_json(saved).code_version != CODE_VERSION


def wait_for_rows(
    steps: Steps, device: torch.device, *, stop_wanted: Callable[[], bool], waiting: Callable[[], None]
) -> RankzeroError | bool:
    """Until every rank has the rows of the next step: True. False where a stop was agreed on meanwhile, and an error,
    on every rank, where the rows of one of them will not come. `waiting` hears that there is something to wait for.

    A collective. Nothing of a step is begun, so all that was trained can be saved.
    """
    while True:
        ready, failure = False, None
        try:
            ready = steps.ready()
        except RankzeroError as error:
            failure = error
        if not any_rank(not ready, device):
            return True
        if any_rank(failure is not None, device):
            return failure or PeerLostError("another process does not get its rows")
        if any_rank(stop_wanted(), device):
            return False
        waiting()
        time.sleep(LOOK_SECONDS)


def what_became_of_rows(saved: Mapping[str, Any]) -> str:
    """`12,000 rows read, 11,900 of them trained on or to be; 3 truncated, 100 dropped (over_length)`."""
    counts = Counter(saved["counts"])
    dropped = {reason: rows for reason, rows in counts.items() if reason not in COUNTED}
    reasons = f" ({', '.join(f'{rows} × {reason}' for reason, rows in dropped.items())})" if dropped else ""
    return (
        f"{counts['rows_in']} rows read in whole windows, {counts['rows']} of them kept; "
        f"{counts['truncated']} truncated, {sum(dropped.values())} dropped{reasons}"
    )
