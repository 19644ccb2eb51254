"""Facts of one environment as JSON, printed by that environment's own python: versions, and for ours, with the model's
name as argument, also the device, its precision and the model's directory."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def versions() -> dict[str, str]:
    """What is installed of what matters."""
    found = {}
    for package in ("rankzero", "trl", "torch", "transformers", "peft"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine(model: str) -> dict[str, Any]:
    """Device and precision as rankzero sees them; the model as a directory, converted or downloaded where needed."""
    from rankzero.engine.device import computes_bfloat16, pick_device
    from rankzero.engine.quickstart import find_model
    from rankzero.model.source import locate
    from rankzero.spec.run_spec import ModelSpec

    device = pick_device(0)
    return {
        "kind": device.kind,
        "device": device.describe(),
        "bfloat16": computes_bfloat16(device),
        "model": str(locate(ModelSpec(name=model or find_model())).weights.resolve()),
    }


if __name__ == "__main__":
    print(json.dumps({"versions": versions()} | (machine(sys.argv[1]) if len(sys.argv) > 1 else {})))
