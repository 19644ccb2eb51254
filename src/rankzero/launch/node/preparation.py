"""The life of the preparation Job's pod, from the same files as a node's: fetch, tokenise, leave the marker."""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from rankzero.errors import ExitCode, RankzeroError, StoppedError
from rankzero.hub_variables import adopt_hub_variables, hub_home
from rankzero.launch.node.inputs import read_inputs
from rankzero.launch.node.mirror import downloaded
from rankzero.launch.node.output import STAMPS_VARIABLE, Output
from rankzero.launch.node.ownership import must_be_writable
from rankzero.launch.node.pid1 import StopWish, reap_orphans
from rankzero.launch.node.prepared import beating, begin, end, own_marker
from rankzero.launch.node.settings import CONFIG_DIR, NodeSettings
from rankzero.launch.node.software import require_packages, require_trackers
from rankzero.launch.node.submission import Submission
from rankzero.launch.node.termination import internal, message, write
from rankzero.launch.processes import POLL_SECONDS, Ranks, Workers
from rankzero.launch.start_directory import start_directory
from rankzero.machine import cache_root
from rankzero.redaction import Redactor
from rankzero.run_dir.handover import write_payload
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec

MODULE = "rankzero.engine.prepare"


def live(stop: StopWish) -> None:
    """Prepare and leave with the exit code that its end has. `stop` is called by the signal handlers."""
    redact = Redactor(os.environ)
    output = Output(redact, stamps=STAMPS_VARIABLE in os.environ)
    for line in adopt_hub_variables(os.environ):
        output.say(line)
    root = Path()
    error: RankzeroError | None = None
    try:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else CONFIG_DIR)
        spec, settings = read_inputs(directory, os.environ)
        root = Path(spec.output_dir) / str(spec.name)
        written = [cache_root()] if os.environ.get("RANKZERO_CACHE") else []
        written += [hub_home(os.environ)] if os.environ.get("HF_HOME") else []
        must_be_writable(written, hosts="SLURM_JOB_ID" in os.environ)
        error = marked(spec, settings, output, stop)
    except RankzeroError as known:
        error = known
    except Exception as unknown:  # the last frame: whatever it is, the pod's status must say it
        error = internal(unknown)
    write(message(0, RunDir(root), error, redact), os.environ)
    if error is not None:
        output.error(error)
    sys.exit(int(ExitCode.DONE if error is None else error.exit_code))


def marked(spec: RunSpec, settings: NodeSettings, output: Output, stop: StopWish) -> RankzeroError | None:
    """Prepare, with a marker on the volume that says how it stands. Returns what it failed with."""
    submission = Submission(os.environ).name
    path = None if settings.prepared_marker is None else own_marker(settings.prepared_marker, submission)
    starts = 1 if path is None else begin(path, spec, submission)
    with beating(path) if path is not None else nullcontext():
        try:
            require_packages(spec, settings)
            require_trackers(spec, settings, output.say, knows_copies=False)
            downloaded(settings, output.say, lambda: stop.wanted)
            error = run(spec, settings, output, stop)
        except RankzeroError as known:
            error = known
        except Exception as unknown:  # those who wait for the marker have to hear of it as well
            error = internal(unknown)
    if path is not None:
        end(path, spec, submission, error, starts=starts)
    return error


def run(spec: RunSpec, settings: NodeSettings, output: Output, stop: StopWish) -> RankzeroError | None:
    """Prepare in a process of its own, which can be ended at any time. Returns what it failed with."""
    with start_directory() as directory:
        payload = write_payload(directory, spec, settings.options)
        workers = Workers(directory, Ranks(first=0, count=1, world_size=1), module=MODULE)
        try:
            workers.start(
                payload, os.environ, time.monotonic(), lambda local: output.pipe("", directory / f"stderr-{local}")
            )
            stop.on_first = workers.ask_to_stop
            if stop.wanted:
                workers.ask_to_stop(stop.number)
            while workers.running():
                reap_orphans({process.pid for process in workers.processes})
                time.sleep(POLL_SECONDS)
        finally:
            stop.on_first = None
            workers.kill()
            output.flush()
        failure = workers.failure()
    if failure is not None and stop.wanted:
        return StoppedError("stopped while preparing", hint="what is done is kept; it goes on from there")
    return failure
