"""A pod's command from its start to its exit code: reads what it is given, runs a node, leaves a message."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from rankzero.errors import NEVER_RETRIED, ConfigError, ExitCode, RankzeroError
from rankzero.hub_variables import adopt_hub_variables
from rankzero.launch.node.attempts import Attempts
from rankzero.launch.node.client import Client
from rankzero.launch.node.command import Node
from rankzero.launch.node.coordinator import Coordinator
from rankzero.launch.node.inputs import read_inputs
from rankzero.launch.node.mirror import downloaded, mirrored, settled_there
from rankzero.launch.node.output import STAMPS_VARIABLE, Output
from rankzero.launch.node.ownership import must_be_writable
from rankzero.launch.node.park import park
from rankzero.launch.node.pid1 import StopWish, allow_locking
from rankzero.launch.node.platform import Place, find_place
from rankzero.launch.node.prepared import wait_for_marker
from rankzero.launch.node.server import Server
from rankzero.launch.node.settings import ALLOCATION_VARIABLE, CONFIG_DIR, TOKEN_VARIABLE, NodeSettings
from rankzero.launch.node.software import require_packages, require_trackers
from rankzero.launch.node.submission import Submission
from rankzero.launch.node.termination import internal, message, write
from rankzero.redaction import Redactor
from rankzero.run_dir.paths import RunDir
from rankzero.spec.resolve import spec_hash
from rankzero.spec.run_spec import RunSpec


def live(stop: StopWish) -> None:
    """Run a node and leave with the exit code that its end has. `stop` is called by the signal handlers."""
    redact = Redactor(os.environ)
    output = Output(redact, stamps=STAMPS_VARIABLE in os.environ)
    for line in adopt_hub_variables(os.environ):
        output.say(line)
    submission = Submission(os.environ)
    env = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}  # processes have no use for it
    node, root, results, offset, stays = 0, Path(), Path(), 0, False
    attempts: Attempts | None = None
    error: RankzeroError | None = None
    try:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else CONFIG_DIR)
        spec, settings = read_inputs(directory, os.environ)
        offset, stays = settings.retry_exit_offset, settings.park
        spec = settled_there(spec, settings, output.say)
        root = Path(spec.output_dir) / str(spec.name)
        results = Path() if settings.options.smoke is not None else root
        place = find_place(settings, os.environ, socket.gethostname())
        node = place.node
        marker = settings.prepared_marker
        written = [root, *([Path(marker).parent] if marker is not None else [])]
        must_be_writable(written, hosts="SLURM_JOB_ID" in os.environ)
        if settings.rdma:
            allow_locking()
        if offset:
            allocation = os.environ.get(ALLOCATION_VARIABLE, "")
            attempts = Attempts(RunDir(root), node, submission.name, settings.max_restarts, allocation)
            attempts.begin()
        run(spec, settings, place, env, submission, output, stop)
    except RankzeroError as known:
        error = known
    except Exception as unknown:  # the last frame: whatever it is, the pod's status must say it
        error = internal(unknown)
    said = message(node, RunDir(results), error, redact)
    write(said, os.environ)
    if error is not None:
        output.error(error)
    code = ExitCode.DONE if error is None else error.exit_code
    final = code == ExitCode.DONE or code in NEVER_RETRIED
    if stays and final and not stop.wanted:
        park(said, node, output.say, lambda: stop.wanted)
    sys.exit(int(code) if final or not _restarts(code, attempts) else int(code) + offset)


def _restarts(code: ExitCode, attempts: Attempts | None) -> bool:
    """Whether the platform is to start the pod again, where it counts nothing itself."""
    if attempts is None:
        return False
    if code == ExitCode.STOPPED:
        with suppress(RankzeroError):  # then it is charged
            attempts.excuse()
        return True
    return attempts.may_restart


def run(
    spec: RunSpec,
    settings: NodeSettings,
    place: Place,
    env: Mapping[str, str],
    submission: Submission,
    output: Output,
    stop: StopWish,
) -> None:
    """Everything between finding the place and leaving. Raises the RankzeroError that ended it."""
    require_packages(spec, settings)
    if settings.prepared_marker is not None:
        wait_for_marker(settings.prepared_marker, spec, submission.name, lambda: stop.wanted, output.say)
    with ExitStack() as stack:
        client = None
        if settings.num_nodes > 1:
            identity = {"run": settings.run, "spec": spec_hash(spec), "nproc": place.nproc, "nodes": place.num_nodes}
            if place.node == 0:
                coordinator = Coordinator(settings.num_nodes, settings.min_nodes or settings.num_nodes)
                server = Server(place.control_port, coordinator, identity, submission, output.say)
                stack.callback(server.close)
            client = Client(place, identity, submission, output.say)
            stack.callback(client.close)
        node = Node(spec, settings, place, env, output, stop, client)
        downloaded(settings, output.say, lambda: stop.wanted)
        try:
            stack.enter_context(mirrored(spec, settings, place.node, output.say))
            if place.node == 0:
                require_trackers(spec, settings, output.say, knows_copies=True)
        except ConfigError as refusal:  # only node 0 knows of it
            node.refuse(refusal)
        node.run()
