"""The smoke test of one process: every check in turn, measures in its log, and one error with all that is wrong."""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rankzero.collector import look_as_usual
from rankzero.engine.console import RunConsole, logger, results_alone_on_stdout
from rankzero.engine.device import Device, pick_device, set_threads
from rankzero.engine.distributed import (
    World,
    broadcast_object,
    gather_objects,
    lost_a_peer,
    process_group,
    time_limit,
    world_from_env,
)
from rankzero.engine.signals import stop_on_signals
from rankzero.engine.smoke.clocks import Skew, clock_skews
from rankzero.engine.smoke.collectives import SIZES, Measured, measure
from rankzero.engine.smoke.learning import Learned, learn
from rankzero.engine.smoke.links import Link, link_of
from rankzero.engine.smoke.volume import Written, try_volume
from rankzero.errors import NonFiniteError, PeerLostError, Problem, RankzeroError, ServiceError, StorageError
from rankzero.run_dir.atomic import ONE_VOLUME
from rankzero.spec.run_options import RunOptions, SmokeSettings
from rankzero.spec.run_spec import RunSpec
from rankzero.wording import counted, listed

SLOW_SHARE = 0.25
"""Of what the link should give: less is worth a look, if it is no failure."""
MOST_SKEW = 1.0
"""Seconds; more than that and the lines of several nodes' logs cannot be put in order."""

Wrong = tuple[type[RankzeroError], Problem]


def smoke(
    spec: RunSpec, options: RunOptions, *, begun: float | None = None, own_process: bool = True
) -> dict[str, Any]:
    """Test the place of a run as one of its processes. Returns what was measured. Of the spec it takes where results go
    and how long collectives may take; `begun` is when the start began, on the monotonic clock. `own_process`:
    this one was started for it.

    Raises, on every rank alike, the error of what is wrong: ServiceError for the ranks' communication, StorageError for
    the volume, NonFiniteError or RankzeroError for the computation; all problems are in it. StoppedError for a signal.
    """
    begun = time.monotonic() if begun is None else begun
    settings = options.smoke or SmokeSettings()
    world = world_from_env(dict(os.environ))
    look_as_usual()
    with stop_on_signals(logger.warning, own_process=own_process), ExitStack() as stack:
        console = RunConsole(speaks=world.is_main, level=options.log_level)
        stack.callback(console.close)
        stack.enter_context(results_alone_on_stdout())
        set_threads(world.local_world_size)
        device = pick_device(world.local_rank)
        logger.info("[STEP] smoke test, torch %s, %s", torch.__version__, device.describe())
        logger.info("[STEP] seed %d, %s", settings.seed, counted(world.world_size, "process", "processes"))
        stack.enter_context(process_group(world, device, dict(os.environ)))
        stack.enter_context(time_limit(spec.train.collective_timeout_seconds))
        try:
            report, wrong = _look(spec, settings, world, device)
        except Exception as error:
            if not lost_a_peer(error) or isinstance(error, RankzeroError):
                raise
            hint = "the log of each node says what became of its processes"
            raise PeerLostError(f"another process is gone, or does not answer: {error}", hint=hint) from error
    report["seconds"] = round(time.monotonic() - begun, 3)
    if wrong:
        raise _worst(wrong)
    return report


def _look(spec: RunSpec, settings: SmokeSettings, world: World, device: Device) -> tuple[dict[str, Any], list[Wrong]]:
    """What was measured, and what is wrong, the same on every rank."""
    places = gather_objects((socket.gethostname(), world.local_rank, device.describe()))
    hosts = list(dict.fromkeys(host for host, _, _ in places))
    tensors = device.torch_device if device.kind == "cuda" else torch.device("cpu")
    logger.info("[DDP] %s on %s", counted(world.world_size, "process", "processes"), listed(hosts))
    learned = learn(settings, world, device.torch_device)
    link = _slowest(gather_objects(link_of(cuda=device.kind == "cuda", other_hosts=len(hosts) > 1, env=os.environ)))
    measured = []
    if world.world_size > 1:
        for one in measure(world, tensors, SIZES["cuda" if device.kind == "cuda" else "cpu"]):
            measured.append(one)
            logger.info("[RESULT] %s", _in_words(one, link))
    leaders = [rank for rank, (_, local, _) in enumerate(places) if rank and local == 0]
    skews: list[Skew] = broadcast_object(clock_skews(world, leaders, tensors) if leaders else [])
    written = try_volume(Path(spec.output_dir), places[world.rank][0], world)
    notes = [*_slow(measured, link), *_skewed(skews, places)]
    for note in notes:
        logger.warning("[RESULT] %s", note)
    wrong = [*_wrong_values(learned, measured), *_wrong_volume(written), *_wrong_loss(learned, settings)]
    if not isinstance(written, StorageError):
        speed = written.bytes / written.seconds / 1e6
        logger.info("[RESULT] %s takes %.0f MB/s, with fsync", written.directory, speed)
    if not wrong:
        equal = "; weights are equal on all ranks" if world.world_size > 1 else ""
        logger.info("[RESULT] loss %.4f -> %.4f%s", learned.before, learned.after, equal)
    report = {
        "world_size": world.world_size,
        "hosts": hosts,
        "devices": [device for _, _, device in places],
        "backend": device.backend if world.world_size > 1 else None,
        "loss": {"before": learned.before, "epochs": list(learned.epochs), "after": learned.after},
        "link": None if link is None else asdict(link),
        "collectives": [asdict(one) for one in measured],
        "clocks": [{"host": places[skew.rank][0], **asdict(skew)} for skew in skews],
        "volume": None if isinstance(written, StorageError) else asdict(written),
        "notes": notes,
    }
    return report, wrong


def _slowest(links: list[Link | None]) -> Link | None:
    """Of all ranks'; None where one is not known."""
    known = [link for link in links if link is not None]
    return min(known, key=lambda link: link.bytes_per_second) if len(known) == len(links) else None


def _in_words(one: Measured, link: Link | None) -> str:
    share = "" if link is None else f", {one.bus_bandwidth / link.bytes_per_second:.0%} of {link.name}"
    size = f"{one.bytes / 2**20:g} MiB" if one.bytes >= 2**20 else f"{one.bytes / 2**10:g} KiB"
    return f"{one.operation} of {size}: {one.seconds * 1e3:.3g} ms, {one.bus_bandwidth / 1e9:.3g} GB/s{share}"


def _slow(measured: list[Measured], link: Link | None) -> list[str]:
    """Of the largest all-reduce, which is what training waits for."""
    largest = max((one for one in measured if one.operation == "all-reduce"), key=lambda one: one.bytes, default=None)
    if link is None or largest is None or largest.bus_bandwidth >= SLOW_SHARE * link.bytes_per_second:
        return []
    share = largest.bus_bandwidth / link.bytes_per_second
    return [
        f"all-reduce has {share:.0%} of what {link.name} gives ({link.bytes_per_second / 1e9:.3g} GB/s);"
        " NCCL_DEBUG=INFO says which way NCCL takes"
    ]


def _skewed(skews: list[Skew], places: list[tuple[str, int, str]]) -> list[str]:
    return [
        f"the clock of {places[skew.rank][0]} is {skew.offset:+.2f} s from rank 0's; set it by NTP"
        for skew in skews
        if abs(skew.offset) - skew.uncertainty > MOST_SKEW
    ]


def _wrong_values(learned: Learned, measured: list[Measured]) -> list[Wrong]:
    """What the ranks told each other wrongly."""
    hint = "the link, its driver or NCCL corrupts what it carries: NCCL_DEBUG=INFO, and the devices' error counters"
    found: list[Wrong] = []
    if learned.differing:
        ranks = listed(str(rank) for rank in learned.differing)
        found.append((ServiceError, Problem("weights are not those of rank 0 after training", f"rank {ranks}", hint)))
    for one in measured:
        if not one.right:
            found.append((ServiceError, Problem("brought wrong values", f"{one.operation} of {one.bytes} bytes", hint)))
    return found


def _wrong_volume(written: Written | StorageError) -> list[Wrong]:
    if isinstance(written, StorageError):
        return [(StorageError, problem) for problem in written.problems]
    if not written.not_seen_by:
        return []
    what = f"{listed(written.not_seen_by)} does not see what rank 0 writes"
    return [(StorageError, Problem(what, written.directory, ONE_VOLUME))]


def _wrong_loss(learned: Learned, settings: SmokeSettings) -> list[Wrong]:
    losses = (learned.before, *learned.epochs, learned.after)
    if not all(map(math.isfinite, losses)):
        hint = "lower --lr; if it stays so, the devices compute wrongly"
        return [(NonFiniteError, Problem(f"the loss went from {learned.before:.4g} to {learned.after:.4g}", hint=hint))]
    if learned.after < learned.before:
        return []
    hint = (
        f"with --lr {SmokeSettings().lr:g} and --epochs 2 it should; these were {settings.lr:g} and {settings.epochs}"
    )
    what = f"the loss did not fall: {learned.before:.4f} before, {learned.after:.4f} after"
    return [(RankzeroError, Problem(what, hint=hint))]


def _worst(wrong: list[Wrong]) -> RankzeroError:
    """One error of all: they stand in the order of what is looked at first."""
    return wrong[0][0](problem for _, problem in wrong)
