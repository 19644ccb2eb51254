"""`python -m rankzero.launch.node.idle`: what a warm pod runs while nothing is asked of it."""

from __future__ import annotations

import time

from rankzero.launch.node.pid1 import listen, reap_orphans

POLL_SECONDS = 0.2


def main() -> None:
    """Stay until SIGTERM; what runs then is told to stop, and waited for."""
    stop = listen()
    from pathlib import Path

    from rankzero.launch.node.group import end_group
    from rankzero.launch.node.jupyter import PLACE
    from rankzero.launch.node.settings import WARM_DIR

    while not stop.wanted:
        reap_orphans(())
        time.sleep(POLL_SECONDS)
    for place in (Path(WARM_DIR), Path(WARM_DIR, PLACE)):
        end_group(place, meanwhile=lambda: reap_orphans(()))


if __name__ == "__main__":
    main()
