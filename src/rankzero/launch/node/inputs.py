"""What a pod is given: run.yaml and node.json in its ConfigMap."""

from __future__ import annotations

from pathlib import Path

from rankzero.errors import ConfigError
from rankzero.launch.node.settings import NodeSettings
from rankzero.run_dir.setting import settled
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import RunSpec


def read_inputs(directory: Path) -> tuple[RunSpec, NodeSettings]:
    """Raises ConfigError where either cannot be read."""
    spec = settled(load_run_spec(directory / "run.yaml", env={}).spec)
    path = directory / "node.json"
    try:
        settings = NodeSettings.from_json(path.read_text(encoding="utf-8"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        hint = "was it made by another version of rankzero than the image's?"
        raise ConfigError(f"the node settings cannot be read: {error}", where=str(path), hint=hint) from error
    return spec, settings
