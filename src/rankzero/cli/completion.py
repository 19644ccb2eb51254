"""What a shell completes besides commands, flags and files: names of runs in ./runs, and of cluster profiles. Quick."""

from __future__ import annotations


def run_names(incomplete: str) -> list[str]:
    """Of ./runs, the newest first."""
    from pathlib import Path

    from rankzero.run_dir.named import DEFAULT_OUTPUT, runs_in

    names = [Path(run).name for run in runs_in(Path(DEFAULT_OUTPUT))]
    return [name for name in names if name.startswith(incomplete)]


def profile_names(incomplete: str) -> list[str]:
    """Of the cluster profiles that come with the package."""
    from rankzero.spec.cluster_load import profiles

    return [name for name in profiles() if name.startswith(incomplete)]
