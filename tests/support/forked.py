"""Runs in several processes that start in a moment: forked from one that has imported everything, once for all tests.

The processes are the product's workers with what a test does to them; the product's own launcher has its own tests.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rankzero.machine import CPU_FEATURES_VARIABLE
from rankzero.run_dir.handover import PARENT_VARIABLE, read_payload
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.runs import require_told

if TYPE_CHECKING:
    from rankzero.engine.hooks import Hooks

SECONDS = 240


@dataclass(frozen=True)
class Ordeal:
    """What happens to a run."""

    stop_in_step: int | None = None
    """Every rank gets SIGTERM as this step begins (1 is the first)."""
    kill_in_save_of: int | None = None
    """Rank 0 gets SIGKILL while it commits the checkpoint of this step."""
    nan_in_step: int | None = None
    """The last rank's losses of this step are NaN."""
    out_of_memory_above: int | None = None
    """The last rank's backward passes of more tokens than this fail from the third step on, after their gradients."""
    memory_in_step: tuple[int, int] | None = None
    """In this step every rank may take so many bytes of address space more than it has."""


@dataclass(frozen=True)
class Outcome:
    """Exit codes by rank, the report, and what rank 0 printed."""

    codes: list[int]
    report: dict[str, Any] | None
    said: str


def run_forked(
    spec: RunSpec, nproc: int = 2, ordeal: Ordeal | None = None, *, a_node: int | None = None, **options: Any
) -> Outcome:
    """Train in `nproc` processes; whatever happens, none is left behind. `a_node`: as `in_ranks` takes it."""
    require_told(spec)
    payload = {
        "spec": spec.model_dump(mode="json"),
        "options": asdict(RunOptions(log_level="INFO", **options)),
        "ordeal": asdict(ordeal or Ordeal()),
        "env": {name: os.environ[name] for name in ("RANKZERO_CACHE", CPU_FEATURES_VARIABLE) if name in os.environ},
    }
    with tempfile.TemporaryDirectory() as name:
        codes = in_ranks(run_rank, nproc, Path(name), json.dumps(payload), a_node=a_node)
        report = Path(name) / "report.json"
        return Outcome(
            codes,
            json.loads(report.read_text()) if report.is_file() else None,
            "".join((Path(name) / f"said-{rank}").read_text() for rank in range(nproc)),
        )


class ForkedWorker:
    """What the product's own launcher starts as a process, forked instead: to `rankzero.launch.processes` it looks like
    a `subprocess.Popen`. For tests in whose own process the launcher is, of runs that are not about how they start."""

    def __init__(self, command: list[str], *, env: dict[str, str], stdout: Any, stderr: Any, **_: object) -> None:
        said = f"/proc/{os.getpid()}/fd/2" if stderr is None else stderr.name
        self._process = _context().Process(target=_enter_worker, args=(command[-3:], env, stdout.name, said))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        self._process.join(SECONDS)
        return self.returncode

    def send_signal(self, number: int) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)


def fork_workers(patch: pytest.MonkeyPatch) -> None:
    """Have the launcher in this process fork its workers."""
    known = SimpleNamespace(Popen=ForkedWorker, DEVNULL=subprocess.DEVNULL)
    patch.setattr("rankzero.launch.processes.subprocess", known)


def _enter_worker(command: list[str], env: dict[str, str], stdout: str, stderr: str) -> None:
    """`python -m rankzero.start MODULE …`, but for the interpreter. It is to die with the process that forks."""
    from rankzero.start import main

    os.setpgid(0, 0)
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update({**env, PARENT_VARIABLE: str(os.getppid()), "CUDA_VISIBLE_DEVICES": ""})
    sys.modules.pop(command[1], None)  # it becomes the main one
    sys.argv[:] = command
    main()


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.warm", "deepspeed", __name__])
    return context


def in_ranks(
    function: Callable[..., None], nproc: int, directory: Path, *arguments: Any, a_node: int | None = None
) -> list[int]:
    """Call `function(directory, *arguments)` in `nproc` ranks on the CPU. Returns their exit codes: 0, or ours.
    `a_node`: they are told that so many of them are on each node; None: all."""
    context, local = _context(), a_node or nproc
    places = [(rank, rank % local, nproc, min(local, nproc - rank // local * local)) for rank in range(nproc)]
    ranks = [context.Process(target=_enter, args=(function, place, directory, arguments)) for place in places]
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(SECONDS)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return [process.exitcode if process.exitcode is not None else -signal.SIGKILL for process in ranks]


def run_rank(directory: Path, text: str) -> None:
    """One rank of a run."""
    from rankzero.engine import worker

    payload = json.loads(text)
    os.environ.update(payload["env"])
    spec, options = read_payload(text)
    with pytest.MonkeyPatch.context() as patch:
        report = worker.run(spec, options, suffer(Ordeal(**payload["ordeal"]), patch))
    if os.environ["RANK"] == "0":
        (directory / "report.json").write_text(json.dumps(report))


def suffer(ordeal: Ordeal, patch: pytest.MonkeyPatch) -> Hooks:
    """Arrange for what is to happen to the run that starts in this process with these hooks."""
    from rankzero.engine import step
    from rankzero.engine.hooks import Hooks
    from rankzero.run_dir import atomic

    if ordeal.out_of_memory_above is not None:
        fail_above(ordeal.out_of_memory_above, patch)
    loss_sum, hashed = step.Stepper.loss_sum, atomic.file_sha256
    at = {"step": 0}
    whole_machine = resource.getrlimit(resource.RLIMIT_AS)

    def begin(number: int) -> None:
        at["step"] = number
        if number == ordeal.stop_in_step:
            os.kill(os.getpid(), signal.SIGTERM)
        if ordeal.memory_in_step is not None and number == ordeal.memory_in_step[0]:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * os.sysconf("SC_PAGE_SIZE") + ordeal.memory_in_step[1]
            resource.setrlimit(resource.RLIMIT_AS, (limit, whole_machine[1]))

    def end(_number: int, _facts: dict[str, Any]) -> None:
        resource.setrlimit(resource.RLIMIT_AS, whole_machine)  # what comes now starts threads, whose stacks count too

    def poisoned(stepper: Any, *arguments: Any) -> Any:
        last = int(os.environ.get("RANK", "0")) + 1 == int(os.environ.get("WORLD_SIZE", "1"))
        loss = loss_sum(stepper, *arguments)
        return loss * float("nan") if last and loss.requires_grad and at["step"] == ordeal.nan_in_step else loss

    def kill(path: Path) -> str:
        committing = path.name == "trainer.json"  # which the rank that commits hashes
        if committing and path.parent.name.startswith(f".tmp-step-{ordeal.kill_in_save_of}-"):
            os.kill(os.getpid(), signal.SIGKILL)
        return hashed(path)

    patch.setattr(step.Stepper, "loss_sum", poisoned)
    patch.setattr(atomic, "file_sha256", kill)
    return Hooks(step_begins=begin, step_ends=end)


def fail_above(tokens: int, patch: pytest.MonkeyPatch) -> None:
    """Have the last rank's backward passes over more tokens fail from the third step on, their gradients added."""
    import torch

    from rankzero.engine.parallel.fsdp import Fsdp
    from rankzero.engine.parallel.replicas import Replicated
    from rankzero.engine.step import Stepper

    gradients, loss_sum = Stepper.gradients, Stepper.loss_sum
    at = {"step": 0, "tokens": 0}

    def begin(stepper: Any, batches: Any, work: Any, step: int, **rest: Any) -> Any:
        at["step"] = step + 1
        return gradients(stepper, batches, work, step, **rest)

    def note(stepper: Any, batch: Any, *more: Any) -> Any:
        at["tokens"] = batch.computed
        return loss_sum(stepper, batch, *more)

    def failing(backward: Callable[..., None]) -> Callable[..., None]:
        def fail(parallel: Any, loss: Any, *, last: bool) -> None:
            backward(parallel, loss, last=last)
            is_last_rank = int(os.environ.get("RANK", "0")) + 1 == int(os.environ.get("WORLD_SIZE", "1"))
            if is_last_rank and at["step"] >= 3 and at["tokens"] > tokens:
                torch.empty(1 << 58, dtype=torch.uint8)

        return fail

    patch.setattr(Stepper, "gradients", begin)
    patch.setattr(Stepper, "loss_sum", note)
    for kind in (Replicated, Fsdp):
        patch.setattr(kind, "backward", failing(kind.backward))


def _enter(
    function: Callable[..., None],
    place: tuple[int, int, int, int],
    directory: Path,
    arguments: tuple[object, ...],
) -> None:
    """Become a rank, as the launcher would make one. `place`: rank and local rank, of how many and on this node."""
    from rankzero.engine.process import hand_over

    rank = place[0]
    said = (directory / f"said-{rank}").open("w", buffering=1)
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    os.environ.update({name: str(value) for name, value in zip(names, place, strict=True)})
    os.environ["RANKZERO_RENDEZVOUS"] = (directory / "rendezvous").as_uri()
    os.environ["RANKZERO_ERROR_FILE"] = str(directory / f"error-{rank}.json")
    if Path("/sys/class/net/lo").exists():
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        function(directory, *arguments)
    except Exception as error:
        code = hand_over(error)
        said.write((directory / f"error-{rank}.json").read_text())
        sys.exit(code)
