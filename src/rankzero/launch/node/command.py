"""The life of a node: meet the others, run the workers, gather again where one was lost, and end as the run does."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NoReturn

from rankzero.errors import (
    NEVER_RETRIED,
    ConfigError,
    ExitCode,
    PeerLostError,
    RankzeroError,
    ServiceError,
    StoppedError,
)
from rankzero.launch.hang import HangWatch
from rankzero.launch.node.channel import Message
from rankzero.launch.node.client import Client, Wait, place_taken
from rankzero.launch.node.output import Output
from rankzero.launch.node.pid1 import StopWish, reap_orphans
from rankzero.launch.node.platform import Place
from rankzero.launch.node.settings import NodeSettings
from rankzero.launch.processes import POLL_SECONDS, Ranks, Workers, module_for, started
from rankzero.launch.start_directory import start_directory
from rankzero.run_dir.handover import RENDEZVOUS_VARIABLE, write_payload
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.setting import is_finished
from rankzero.spec.run_spec import RunSpec

NEWS_SECONDS = 0.2
PEER_NEWS_SECONDS = 90.0
"""How long a node whose processes lost a peer waits for node 0 to say which; longer than a silent node is borne."""
FINISHED_SECONDS = 30.0
"""How long a node waits for others before it looks whether the run is over: those that are done do not come again."""
MOST_WORDS = 1000
"""Characters of each part of a failure that other nodes are told."""
LAST_WORDS_SECONDS = 600.0
"""How long a node that is done waits for the others: they may still be writing."""


class GatherAgainError(Exception):
    """The nodes gather again."""


class Node:
    """One node of a run."""

    def __init__(
        self,
        spec: RunSpec,
        settings: NodeSettings,
        place: Place,
        env: Mapping[str, str],
        output: Output,
        stop: StopWish,
        client: Client | None,
    ) -> None:
        self._spec, self._settings, self._place, self._env = spec, settings, place, env
        self._output, self._stop, self._client = output, stop, client
        self._at = time.monotonic()
        self._connected = False
        self._ours: set[int] = set()
        self._look_at = 0.0
        self._over = False

    def run(self) -> None:
        """To the end of the run. Raises a RankzeroError that says why it ended otherwise."""
        while True:
            try:
                start = self._gather()
                if start is not None:
                    self._train(*start)
                return
            except GatherAgainError as news:
                self._output.say(str(news))
                if self._client is not None:
                    self._client.send({"ready": True})

    def refuse(self, refusal: ConfigError) -> NoReturn:
        """End the run before any process of it starts: raise `refusal`, once the other nodes are there and told of it.
        Who comes to nobody would wait, and hold its GPUs."""
        if self._client is not None:
            self._output.say(f"ends as soon as the other nodes hear why: {refusal}")
            with suppress(ServiceError):  # those that did not come have no GPUs
                if self._gather() is not None:
                    self._client.send({"ended": int(refusal.exit_code), "why": self._why(refusal)})
        raise refusal

    # ---- meeting ----

    def _gather(self) -> tuple[int, list[int]] | None:
        """Wait for a start. Returns its number and the nodes that take part; None where nothing is left to do."""
        if self._client is None:
            self._leave_if_stopped()
            return 1, [0]
        wait = self._new_wait()
        self._look_at = time.monotonic() + FINISHED_SECONDS
        missing: list[int] = []
        reached = False
        while True:
            self._leave_if_stopped()
            if self._is_over():
                self._output.say("this run is finished; the other nodes do not come again")
                return None
            if not self._connected:
                self._connected = self._client.connect(lambda: self._stop.wanted or self._is_over(), wait)
                continue
            message = self._news(0.2)
            if message is None or "lost" in message:
                if wait.over and (self._place.node == 0 or not reached):
                    who = _listed(missing)
                    hint = "see what its pod waits for; rendezvous_timeout_seconds sets how long the others wait"
                    raise ServiceError(f"{who} did not come in {wait.seconds:.0f} s", where=self._name, hint=hint)
                if message is not None and reached:
                    reached, wait = False, self._new_wait()  # for the next node 0
                wait.speak(f"{_listed(missing)} of {self._place.num_nodes}")
                continue
            self._heed(message)
            if "waiting" in message:
                missing, reached = list(message["waiting"]), True
            elif "start" in message:
                return int(message["start"]), list(message["nodes"])

    def _new_wait(self) -> Wait:
        """A pod that gives up is charged as a restart, so of each attempt only one does.

        That is node 0 for those that do not come, and node 1 for node 0; the others would wait through all attempts.
        """
        attempts = 1 if self._place.node <= 1 else self._settings.max_restarts + 2
        return Wait(self._settings.rendezvous_seconds * attempts, self._output.say)

    def _is_over(self) -> bool:
        """Whether the run was finished by others, so that there is nobody to wait for. Looks now and then."""
        if not self._over and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + 5.0
            self._over = is_finished(RunDir(Path(self._spec.output_dir) / str(self._spec.name)), self._spec)
        return self._over

    # ---- training ----

    def _train(self, generation: int, nodes: list[int]) -> None:
        """One start of the workers. Raises GatherAgainError where the nodes are to gather."""
        ranks = Ranks(
            first=nodes.index(self._place.node) * self._place.nproc,
            count=self._place.nproc,
            world_size=len(nodes) * self._place.nproc,
        )
        if len(nodes) > 1 or generation > 1:
            self._output.say(
                f"start {generation}: node {self._place.node} of {len(nodes)}, "
                f"ranks {ranks.first} to {ranks.first + ranks.count - 1} of {ranks.world_size}"
            )
        with start_directory() as directory:
            payload = write_payload(directory, self._spec, self._settings.options)

            def stderr(local: int) -> IO[bytes]:
                rank = ranks.first + local
                return self._output.pipe("" if rank == 0 else f"[rank {rank}] ", directory / f"stderr-{local}")

            env = {**self._env, **self._meeting(directory, ranks)}
            module = module_for(self._settings.options)
            with started(directory, ranks, payload, env, self._at, stderr, module) as workers:
                self._ours = {process.pid for process in workers.processes}
                self._stop.on_first = workers.ask_to_stop
                if self._stop.wanted:
                    workers.ask_to_stop(self._stop.number)
                try:
                    self._watch(workers)
                finally:
                    self._stop.on_first = None
                    workers.kill()
                    self._ours = set()
                    self._output.flush()
            self._finish(workers)

    def _meeting(self, directory: Path, ranks: Ranks) -> dict[str, str]:
        """How the processes find each other."""
        if ranks.world_size == ranks.count:
            meeting = {RENDEZVOUS_VARIABLE: (directory / "rendezvous").as_uri()}
            if "GLOO_SOCKET_IFNAME" not in self._env and Path("/sys/class/net/lo").exists():
                meeting["GLOO_SOCKET_IFNAME"] = "lo"
            return meeting
        return {"MASTER_ADDR": self._place.master_address, "MASTER_PORT": str(self._place.master_port)}

    def _watch(self, workers: Workers) -> None:
        """Until all workers have ended. Raises GatherAgainError, or the error that node 0 says all leave with."""
        grace = self._settings.grace_seconds
        gentle_since: float | None = None
        because = ""
        run_dir, compiled = RunDir(Path(self._spec.output_dir) / str(self._spec.name)), self._spec.train.torch_compile
        alone = self._client is None
        hang = HangWatch(workers, run_dir, self._output.say, compiled=compiled, alone=alone, attended=False)
        again = self._settings.max_restarts > 0
        told = False
        while workers.running():
            now = time.monotonic()
            if self._stop.at is not None and now - self._stop.at > grace:
                self._output.say(f"processes have not saved in {grace:.0f} s; they are ended")
                workers.end_overdue(self._stop.number, grace, self._name, "a longer grace period saves the rest")
            elif gentle_since is not None and now - gentle_since > grace and not hang.gets_on():
                workers.end_overdue(signal.SIGTERM, grace, self._name)
            elif workers.peers_are_late(grace, hang.gets_on):
                workers.end_late_peers()
            hang.look(end=again and not self._stop.wanted)  # a stop has a grace period of its own
            if hang.over and not told and self._client is not None:
                self._client.send({"over": True})
                told = True
            message = self._news(POLL_SECONDS)
            if message is None:
                continue
            self._heed(message)
            if "over" in message:
                hang.wait_for_others()
            if "again" in message or "lost" in message:
                because = str(message.get("again", "node 0 is gone"))
                if not message.get("gentle"):
                    raise GatherAgainError(because)
                if gentle_since is None:
                    gentle_since = now
                    workers.ask_to_stop(signal.SIGTERM)
        if gentle_since is not None and not self._stop.wanted and _may_gather(workers.failure()):
            raise GatherAgainError(because)

    def _finish(self, workers: Workers) -> None:
        """Make of the workers' end the node's. Returns when the run is done everywhere."""
        failure = workers.failure()
        if self._client is None:
            if failure is not None:
                raise failure
            return
        code = int(ExitCode.DONE if failure is None else failure.exit_code)
        if self._stop.wanted:
            self._client.send({"ended": code, "leaving": True, "why": self._why(failure)})
            if failure is not None:
                raise failure
            return  # processes end well only when rank 0 has written everything: nothing is left to stop
        if isinstance(failure, PeerLostError):
            self._client.send({"ended": code, "peer_lost": True})
            self._await_news(failure, PEER_NEWS_SECONDS)
        elif isinstance(failure, StoppedError):
            self._client.send({"ended": code})
            self._await_news(failure, PEER_NEWS_SECONDS)
        elif failure is not None:
            self._client.send({"ended": code, "why": self._why(failure)})
            raise failure
        else:
            self._client.send({"ended": code})
            self._await_news(None, LAST_WORDS_SECONDS)

    def _await_news(self, failure: RankzeroError | None, limit: float) -> None:
        """The processes are over; node 0 says what follows. Without news the node leaves with what it has."""
        waited = 0.0
        while waited < limit:
            if self._stop.wanted:
                if failure is not None:
                    raise failure
                return
            asked = time.monotonic()
            message = self._news(NEWS_SECONDS)
            if message is None:
                # A machine that stood still meanwhile has not waited, and node 0 may have stood as well.
                waited += min(time.monotonic() - asked, 5 * NEWS_SECONDS)
                continue
            if message.get("end") == ExitCode.DONE:
                return
            if "end" in message:
                raise failure if failure is not None else self._told_to_end(message)
            if "replaced" in message:
                raise place_taken(self._place.node)
            if "again" in message:
                raise GatherAgainError(str(message["again"]))
            if "lost" in message:
                if failure is None:
                    return  # processes end well only when rank 0 has written everything
                raise GatherAgainError("node 0 is gone")
        if failure is not None:
            raise failure

    # ---- small things ----

    @property
    def _name(self) -> str:
        return f"node {self._place.node}"

    def _news(self, timeout: float) -> Message | None:
        reap_orphans(self._ours)
        if self._client is None:
            time.sleep(timeout)
            return None
        message = self._client.next(timeout)
        if message is not None and "lost" in message:
            self._connected = False
        return message

    def _leave_if_stopped(self) -> None:
        if self._stop.wanted:
            what = f"stopped by {self._stop.name} while no process was running"
            raise StoppedError(what, hint="give the same command again")

    def _heed(self, message: Message) -> None:
        """Raise what node 0 says that this node ends with, if it says so."""
        if "end" in message:
            raise self._told_to_end(message)
        if "replaced" in message:
            raise place_taken(self._place.node)

    def _why(self, failure: RankzeroError | None) -> dict[str, str]:
        """What the other nodes are told of a failure."""
        if failure is None or not failure.problems:
            return {}
        problem = failure.problems[0]
        because = f"{self._name}: {problem.what}" if problem.what else f"{self._name} failed"
        said = {"because": because, "where": problem.where, "hint": problem.hint}
        return {key: self._output.redact(text)[:MOST_WORDS] for key, text in said.items()}

    def _told_to_end(self, message: Message) -> RankzeroError:
        code = int(message["end"])
        because = str(message.get("because") or "the run was stopped")
        if code in NEVER_RETRIED:
            hint = str(message.get("hint") or "see that node's message; the same command would fail again")
        else:
            hint = "give the same command again"
        where = str(message.get("where") or self._name)
        error = (StoppedError if code == ExitCode.STOPPED else RankzeroError)(because, where=where, hint=hint)
        error.exit_code = ExitCode(code)
        return error


def _may_gather(failure: RankzeroError | None) -> bool:
    """Whether processes that were to stop for others have done so. A checkpoint that could not be saved is a failure of
    this node, though node 0 waits for it."""
    return failure is None or isinstance(failure, StoppedError | PeerLostError)


def _listed(nodes: list[int]) -> str:
    if not nodes:
        return "the other nodes"
    shown = ", ".join(str(node) for node in nodes[:8]) + (" …" if len(nodes) > 8 else "")
    return f"node{'s' if len(nodes) > 1 else ''} {shown}"
