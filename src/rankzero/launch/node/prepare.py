"""`python -m rankzero.launch.node.prepare DIRECTORY`: what the preparation Job's pod runs."""

from __future__ import annotations

from rankzero.launch.node.pid1 import listen


def main() -> None:
    """Listen, then live."""
    stop = listen()
    from rankzero.launch.node.preparation import live

    live(stop)


if __name__ == "__main__":
    main()
