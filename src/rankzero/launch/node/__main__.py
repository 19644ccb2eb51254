"""`python -m rankzero.launch.node DIRECTORY`: what a pod runs. DIRECTORY holds run.yaml and node.json."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

from rankzero.errors import NEVER_RETRIED, ExitCode, RankzeroError
from rankzero.hub_variables import adopt_hub_variables
from rankzero.launch.node.client import Client
from rankzero.launch.node.command import Node
from rankzero.launch.node.coordinator import Coordinator
from rankzero.launch.node.inputs import read_inputs
from rankzero.launch.node.mirror import mirrored
from rankzero.launch.node.output import Output, Redactor
from rankzero.launch.node.park import park
from rankzero.launch.node.platform import Place, find_place
from rankzero.launch.node.prepared import wait_for_marker
from rankzero.launch.node.server import Server
from rankzero.launch.node.settings import CONFIG_DIR, NodeSettings
from rankzero.launch.node.stop import StopWish
from rankzero.launch.node.termination import internal, message, write
from rankzero.launch.processes import signals_to
from rankzero.run_dir.paths import RunDir
from rankzero.spec.resolve import spec_hash
from rankzero.spec.run_spec import RunSpec


def main() -> None:
    """Run a node and leave with the exit code that its end has."""
    redact = Redactor(os.environ)
    output = Output(redact)
    for line in adopt_hub_variables(os.environ):
        output.say(line)
    stop = StopWish()
    node, root, offset, stays = 0, Path(), 0, False
    error: RankzeroError | None = None
    with signals_to(stop, (signal.SIGTERM, signal.SIGINT)):
        try:
            spec, settings = read_inputs(Path(sys.argv[1] if len(sys.argv) > 1 else CONFIG_DIR))
            root, offset, stays = Path(spec.output_dir) / str(spec.name), settings.retry_exit_offset, settings.park
            place = find_place(settings, os.environ, socket.gethostname())
            node = place.node
            run(spec, settings, place, output, stop)
        except RankzeroError as known:
            error = known
        except Exception as unknown:  # the last frame: whatever it is, the pod's status must say it
            error = internal(unknown)
        said = message(node, RunDir(root), error, redact)
        write(said, os.environ)
        if error is not None:
            output.error(error)
        code = ExitCode.DONE if error is None else error.exit_code
        final = code == ExitCode.DONE or code in NEVER_RETRIED
        if stays and final and not stop.wanted:
            park(said, node, output.say, lambda: stop.wanted)
    sys.exit(int(code) if final else int(code) + offset)


def run(spec: RunSpec, settings: NodeSettings, place: Place, output: Output, stop: StopWish) -> None:
    """Everything between finding the place and leaving. Raises the RankzeroError that ended it."""
    if settings.prepared_marker is not None:
        wait_for_marker(Path(settings.prepared_marker), spec, lambda: stop.wanted, output.say)
    with ExitStack() as stack:
        client = None
        if settings.num_nodes > 1:
            identity = {"run": settings.run, "spec": spec_hash(spec), "nproc": place.nproc, "nodes": place.num_nodes}
            if place.node == 0:
                coordinator = Coordinator(settings.num_nodes, settings.min_nodes or settings.num_nodes)
                server = Server(place.control_port, coordinator, identity, output.say)
                stack.callback(server.close)
            client = Client(place, identity, settings.rendezvous_seconds, output.say)
            stack.callback(client.close)
        with mirrored(spec, settings, place.node, output.say, lambda: stop.wanted):
            Node(spec, settings, place, os.environ, output, stop, client).run()


if __name__ == "__main__":
    main()
