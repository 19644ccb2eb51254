"""A Slurm on this machine for the session: munge, a controller and two nodes, their ports and directory their own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
CREDENTIAL_SECONDS = 5
"""So long a job that is queued again waits at least; Slurm's own default is two minutes."""
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire={credential}
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={port0} CPUs=1 RealMemory=1000
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=1 RealMemory=1000
PartitionName=low Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=120
PartitionName=high Nodes=n0,n1 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> str:
    """Why there can be no Slurm here; nothing where there is."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"there is no {', '.join(absent)} (Debian: slurm-wlm, munge)" if absent else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs Slurm."""
    reason = missing()
    for item in items:
        if "tests/slurm" in str(item.path):
            item.add_marker(pytest.mark.slurm)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


class Cluster:
    """The daemons."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Return when both nodes are idle."""
        names = {"host": socket.gethostname(), "user": getpass.getuser(), "root": self.root}
        ports = {name: free_port() for name in ("port", "port0", "port1")}
        (self.root / "slurm.conf").write_text(CONF.format(**names, **ports, credential=CREDENTIAL_SECONDS))
        (self.root / "state").mkdir()
        key = self.root / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
        options = [f"--{name}={self.root / value}" for name, value in {**files, "seed-file": "munge.seed"}.items()]
        self._daemon("munged", "--foreground", "--force", *options)
        self._until("munge.socket", lambda: (self.root / "munge.socket").exists())
        self._daemon("slurmctld", "-D", "-c")
        for node in ("n0", "n1"):
            self._daemon("slurmd", "-D", "-N", node)
        self._until(
            "two idle nodes", lambda: self.say("sinfo", "-h", "-p", "low", "-o", "%D %t").split() == ["2", "idle"]
        )

    def say(self, *arguments: str) -> str:
        """What one of Slurm's programs prints."""
        return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(
            f"{path.name}:\n{path.read_text(errors='replace')[-2000:]}" for path in self.root.glob("*.log")
        )

    def stop(self) -> None:
        """No process is left: jobs first, as their processes are nobody's children."""
        self.say("scancel", "--state=PENDING", f"--user={getpass.getuser()}")
        self.say("scancel", "--signal=KILL", "--full", f"--user={getpass.getuser()}")
        self.say("scancel", f"--user={getpass.getuser()}")
        with suppress(AssertionError):
            self._until("an empty queue", lambda: not self.say("squeue", "-h").strip(), seconds=30)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _daemon(self, *arguments: str) -> None:
        with (self.root / f"{'-'.join(arguments[:1] + arguments[3:4])}-out.log".replace("/", "_")).open("ab") as log:
            self._daemons.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _until(self, what: str, done, seconds: float = 300) -> None:  # type: ignore[no-untyped-def]
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"no {what} in {seconds} s\n{self.logs()}"
            time.sleep(0.1)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """The cluster, and SLURM_CONF in this process's environment."""
    before = dict(os.environ)
    root = Path(tempfile.mkdtemp(prefix="rankzero-slurm-"))  # pytest's own is too long a path for a socket
    root.chmod(0o755)
    cluster = Cluster(root)
    os.environ["SLURM_CONF"] = str(root / "slurm.conf")
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(root, ignore_errors=True)


def worker_processes(job: str) -> Sequence[int]:
    """The processes of a job that train."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            trains = entry.name.isdigit() and b"rankzero.engine.worker" in (entry / "cmdline").read_bytes()
            if trains and f"SLURM_JOB_ID={job}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
