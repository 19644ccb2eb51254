"""`python -m rankzero.launch.node DIRECTORY`: what a pod runs. DIRECTORY holds run.yaml and node.json.

PID 1 ignores signals that it has no handler for, and importing the rest takes a second or two: the handlers come first.
"""

from __future__ import annotations

import signal

from rankzero.launch.node.stop import StopWish


def main() -> None:
    """Listen, then live."""
    stop = StopWish()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stop(received))
    from rankzero.launch.node.entry import live

    live(stop)


if __name__ == "__main__":
    main()
