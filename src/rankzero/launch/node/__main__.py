"""`python -m rankzero.launch.node DIRECTORY`: what a pod runs. DIRECTORY holds run.yaml and node.json."""

from __future__ import annotations

from rankzero.launch.node.pid1 import listen


def main() -> None:
    """Listen, then live."""
    stop = listen()
    from rankzero.launch.node.entry import live

    live(stop)


if __name__ == "__main__":
    main()
