"""A Kubernetes cluster that is only a protocol: its API over HTTP, and controllers that follow a script.

Small and our own, on the standard library: the fake servers there are do not know creation by server-side apply, dry
runs, uids, foreground deletion or the end of a watch's history, and those are what submitting is about.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.fake_cluster.faults import Fault
from tests.support.fake_cluster.server import Server, in_thread, kubeconfig, plain
from tests.support.fake_cluster.store import KINDS, Object, Store
from tests.support.fake_cluster.world import Act, World, life, make_pods
from tests.support.fake_cluster.writes import RefusedError, Writes, needs_runtime

__all__ = ["Act", "FakeCluster", "Fault", "Request", "as_text", "life", "make_pods", "plain"]

TOKEN = "fake-token"
KUEUE = {"workloads", "localqueues", "workloadpriorityclasses"}
VOLCANO = {"podgroups"}
"""Kinds of a cluster that has one of these; others are served by default."""


@dataclass(frozen=True)
class Request:
    """What was asked of the server."""

    method: str
    path: str
    body: bytes

    @property
    def changes(self) -> bool:
        """Whether it was to change anything."""
        return self.method != "GET" and "dryRun" not in self.path and "accessreviews" not in self.path


@dataclass
class FakeCluster:
    """`start()`, use, `stop()`. Kinds that are in `plurals` are served."""

    store: Store = field(default_factory=Store)
    plurals: set[str] = field(default_factory=lambda: set(KINDS) - KUEUE - VOLCANO)
    faults: list[Fault] = field(default_factory=list)
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """(verb, plural) that roles do not permit."""
    reviews: bool = True
    """Everybody may ask what they may do."""
    requests: list[Request] = field(default_factory=list)
    documents: dict[str, Object] = field(default_factory=dict)
    faults_of_its_own: list[str] = field(default_factory=list)
    ends_idle_watches: bool = False
    """A watch in a world where nothing happens any more ends, as it does on a server after its time."""

    run: Callable[[list[str]], tuple[int, bytes, bytes]] = lambda _command: (0, b"", b"")
    feed: Callable[[str, list[str], bytes], tuple[int, bytes, bytes]] | None = None
    """As `run`, for who has to know the pod, and what the command was sent."""
    takes: int | None = None
    """Bytes of its standard input that a command reads before it ends; all of them."""
    """What a command in a pod does: its exit code, standard output and standard error."""

    date: str = "Sat, 21 Nov 2026 08:00:00 GMT"
    """What answers have as their time."""
    dying: bool = False
    """The request that is being answered is the last one."""

    def __post_init__(self) -> None:
        self.world = World(self.store)
        self.writes = Writes(self.store)
        self.writes.admission.append(needs_runtime(self.store))
        self._dead = False
        self.publish()

    def start(self) -> FakeCluster:
        """Listen."""
        self._server = Server(self)
        self._thread = in_thread(self._server)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def stop(self) -> None:
        """End everything; a fault of the fake itself fails the test."""
        for fault in self.faults:
            if fault.hold is not None:
                fault.hold.set()
        self.die()
        self._thread.join()
        assert not self.faults_of_its_own, self.faults_of_its_own

    def die(self) -> None:
        """Nobody answers any more."""
        if self._dead:
            return
        self._dead = self.dying = True
        with self.store.news:
            self.store.news.notify_all()
        self._server.cut_all()
        closing = threading.Thread(target=self._close)
        closing.start()
        if threading.current_thread() is threading.main_thread():
            closing.join()

    def _close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, directory: Path) -> Path:
        """Written for this server."""
        path = directory / "kubeconfig"
        path.write_text(kubeconfig(self.url, TOKEN), encoding="utf-8")
        return path

    def publish(self) -> None:
        """What discovery says, from `plurals`."""
        groups: dict[str, dict[str, list[str]]] = {}
        for plural in self.plurals:
            api, _ = KINDS[plural]
            if "/" in api:
                group, version = api.split("/")
                groups.setdefault(group, {}).setdefault(version, []).append(plural)
        listed = []
        self.documents = {key: value for key, value in self.documents.items() if key.startswith("/openapi")}
        for group, versions in sorted(groups.items()):
            shown = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
            listed.append({"name": group, "versions": shown, "preferredVersion": shown[0]})
            for version, plurals in versions.items():
                self.documents[f"/apis/{group}/{version}"] = {"resources": [{"name": name} for name in plurals]}
        self.documents["/version"] = {"major": "1", "minor": "36", "gitVersion": "v1.36.2"}
        self.documents["/apis"] = {"kind": "APIGroupList", "groups": listed}

    def fail(self, method: str, part: str, **what: Any) -> Fault:
        """Order a fault."""
        fault = Fault(method, part, **what)
        self.faults.append(fault)
        return fault

    def script(self, role: str, node: int, *lives: list[Act]) -> None:
        """What the pods in a place do, one life after the other."""
        self.world.scripts[role, node] = list(lives)

    def changes(self) -> list[str]:
        """`PATCH jobs/r` of everything that was to change something."""
        found = []
        for request in self.requests:
            if request.changes:
                path = request.path.partition("?")[0]
                found.append(f"{request.method} {'/'.join(path.split('/')[-2:])}")
        return found

    def names(self, *plurals: str) -> list[str]:
        """`jobs/r` of everything that there is."""
        return [f"{plural}/{one['metadata']['name']}" for plural in plurals or KINDS for one in self.store.of(plural)]

    def get(self, plural: str, name: str) -> Object:
        """A copy of an object that must be there."""
        found = self.store.find(plural, name)
        assert found is not None, self.names()
        return copy.deepcopy(found)

    # for the server

    def note(self, method: str, path: str, body: bytes) -> None:
        """Remember a request."""
        self.requests.append(Request(method, path, body))

    def authorise(self, method: str, parts: list[str], query: dict[str, str], header: str) -> None:
        """401 and 403."""
        if header != f"Bearer {TOKEN}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        reading = "watch" if query.get("watch") else "list"
        for verb, plural in self.forbidden:
            plural, _, name = plural.partition("/")  # of one object alone: secrets/keys
            if plural not in parts or (name and name != parts[-1]):
                continue
            one = parts[-1] != plural
            asked = {"GET": "get" if one else reading, "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
            if asked == verb:
                api, _ = KINDS[plural]
                group = api.rpartition("/")[0]
                name = f'{plural} is forbidden: User "me" cannot {verb} resource "{plural}" in API group "{group}"'
                raise RefusedError(403, "Forbidden", f'{name} in the namespace "train"')

    def idle(self, has_news: Callable[[], bool]) -> bool:
        """Somebody has read all there is: let something happen. False where the stream is to end."""
        with self.store.news:
            while not self._dead:
                if has_news() or self.world.step():
                    return True
                if self.ends_idle_watches:
                    return False
                self.store.news.wait()
            return False


def as_text(requests: list[Request]) -> str:
    """All that was sent, for looking for what must not be there."""
    return json.dumps([[request.method, request.path, request.body.decode(errors="replace")] for request in requests])
