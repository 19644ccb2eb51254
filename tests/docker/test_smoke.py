"""A smoke test as containers: the pods of a run, told to test their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rankzero.launch import labels
from tests.docker.conftest import docker


def test_two_containers(image: str, cli: Any, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir(mode=0o777)
    outputs.chmod(0o777)
    cluster = {
        **{"image": image, "kind": "docker", "gpu": False, "num_nodes": 2, "resources": {"limits": {"cpu": 1}}},
        "storage": {"outputs": {"mount": "/outputs", "host_path": str(outputs)}},
    }
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    done = cli(f"smoke --cluster {tmp_path}/cluster.yaml")
    assert done.code == 0, done.err
    assert "all-to-all of 16 MiB" in done.err and "weights are equal on all ranks" in done.err
    assert docker("ps", "--all", "--quiet", "--filter", f"label={labels.RUN}=rankzero-smoke").stdout == ""
