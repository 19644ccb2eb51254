"""Node commands on this machine, as pods would run them: one process each, meeting over the loopback device."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rankzero.launch.node.settings import NodeSettings
from rankzero.spec.resolve import resolve, to_yaml
from rankzero.spec.run_spec import RunSpec
from tests.support.ports import free_port
from tests.support.runs import run_root


class Pods:
    """The pods of one run."""

    def __init__(self, folder: Path, spec: RunSpec, *, env: dict[str, str] | None = None, **settings: Any) -> None:
        self.spec = resolve(spec)
        self.folder = folder
        self.settings = NodeSettings(run="small", **{"num_nodes": 2, "rendezvous_seconds": 90, **settings})
        self.env = {
            "RANKZERO_MASTER": "127.0.0.1",
            "RANKZERO_CONTROL_PORT": str(free_port()),
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        self.config = folder / "etc"
        self.config.mkdir(exist_ok=True)
        (self.config / "run.yaml").write_text(to_yaml(self.spec))
        (self.config / "node.json").write_text(self.settings.to_json())
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, node: int, *, module: str = "rankzero.launch.node") -> subprocess.Popen[str]:
        """Start a pod's command; its log goes to a file."""
        log = (self.folder / f"node-{node}.log").open("a")
        (self.folder / f"termination-{node}").touch()
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(self.config)],
            env={
                **os.environ,
                **self.env,
                "RANKZERO_NODE": str(node),
                "RANKZERO_TERMINATION_LOG": str(self.folder / f"termination-{node}"),
            },
            stdout=log,
            stderr=log,
            text=True,
        )
        self.processes.append(process)
        return process

    def log(self, node: int) -> str:
        """Everything the pods of this node have said."""
        return (self.folder / f"node-{node}.log").read_text()

    def said(self, node: int) -> dict[str, Any]:
        """The termination message."""
        value: dict[str, Any] = json.loads((self.folder / f"termination-{node}").read_text())
        return value

    def wait_for_step(self, step: int, seconds: float = 300) -> None:
        """Until metrics.jsonl has this step."""
        path = run_root(self.spec) / "metrics.jsonl"
        deadline = time.monotonic() + seconds
        while not path.exists() or path.read_text().count("\n") < step:
            assert time.monotonic() < deadline, "\n".join(self.log(i) for i in range(self.settings.num_nodes))
            time.sleep(0.02)

    def end(self) -> None:
        """Leave nothing behind."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
