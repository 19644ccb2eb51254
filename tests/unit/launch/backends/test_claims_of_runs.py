"""`delete --claims` keeps what other runs may have results on, and nothing else: the same on Kubernetes and docker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from rankzero.launch.backends.docker.backend import DockerBackend
from rankzero.launch.backends.docker.command import Answer, Docker
from rankzero.spec.run_options import SmokeSettings
from tests.support.fake_cluster import FakeCluster
from tests.unit.launch.backends.docker.fake_docker import Daemon
from tests.unit.launch.backends.kubernetes.runs import STORAGE, Bench, objects

OUTPUTS = {"outputs": STORAGE["outputs"]}


class Where(Protocol):
    """A place in which runs come to their ends."""

    said: list[str]

    def finish(self, name: str, **more: Any) -> None:
        """Submit a run, and let it end."""

    def clean_up(self, name: str) -> None:
        """Somebody takes away what has ended: its containers, its Job and pods."""

    def delete(self, name: str, *, claims: bool) -> list[str]: ...

    def claims(self) -> set[str]:
        """Those that are there."""

    def drop(self, claim: str) -> None:
        """By hand, with what the message says."""

    def notes(self) -> int:
        """How many are there, of all runs and claims."""


class Cluster:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.said = bench.said

    def finish(self, name: str, **more: Any) -> None:
        self.bench.submit(objects(name=name, **more))
        self.bench.cluster.world.run_down()

    def clean_up(self, name: str) -> None:
        store = self.bench.cluster.store
        for pod in [one for one in store.of("pods") if one["metadata"]["labels"]["rankzero.dev/run"] == name]:
            store.drop("pods", pod["metadata"]["name"])
        store.drop("jobs", name)

    def delete(self, name: str, *, claims: bool) -> list[str]:
        return self.bench.backend().delete(name, claims=claims, say=self.said.append)

    def _there(self) -> list[dict[str, Any]]:
        return self.bench.cluster.store.of("persistentvolumeclaims")

    def claims(self) -> set[str]:
        return {one["metadata"]["name"] for one in self._there()}

    def drop(self, claim: str) -> None:
        self.bench.cluster.store.drop("persistentvolumeclaims", claim)

    def notes(self) -> int:
        return sum(len(one["metadata"].get("annotations") or {}) for one in self._there())


class Machine:
    def __init__(self, directory: Path) -> None:
        self.daemon = Daemon(directory / "docker.json")
        self.daemon.change(images=["i"])
        self.said: list[str] = []

        def execute(arguments: Sequence[str], env: Mapping[str, str]) -> Answer:
            return Answer(*self.daemon.execute(arguments, env))

        self.backend = DockerBackend(
            Docker(execute), env={"XDG_STATE_HOME": str(directory)}, gpus=lambda env: ("0", "1")
        )

    def _containers(self, name: str) -> list[str]:
        every = self.daemon.state["containers"].values()
        return [one["Name"][1:] for one in every if one["Config"]["Labels"]["rankzero.dev/run"] == name]

    def finish(self, name: str, **more: Any) -> None:
        self.backend.submit(objects(name=name, kind="docker", **more), self.said.append)
        for one in self._containers(name):
            self.daemon.finish(one, 0)

    def clean_up(self, name: str) -> None:
        self.daemon.execute(["docker", "rm", *self._containers(name)], {})

    def delete(self, name: str, *, claims: bool) -> list[str]:
        return self.backend.delete(name, claims=claims, say=self.said.append)

    def _volumes(self) -> list[str]:
        return [one for one in self.daemon.state["volumes"] if not one.startswith(("rankzero-a-", "rankzero-b-"))]

    def claims(self) -> set[str]:
        return {one.removeprefix("rankzero-") for one in self._volumes() if ".used-by." not in one}

    def drop(self, claim: str) -> None:
        self.daemon.execute(["docker", "volume", "rm", f"rankzero-{claim}"], {})

    def notes(self) -> int:
        return sum(".used-by." in one for one in self._volumes())


@pytest.fixture(params=["kubernetes", "docker"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Where]:
    if request.param == "docker":
        yield Machine(tmp_path)
        return
    cluster = FakeCluster().start()
    yield Cluster(Bench(cluster, tmp_path))
    cluster.stop()


def kept(where: Where, claim: str, user: str) -> bool:
    words = f"{claim} is also used by the run {user}, whose results may be on it; kept"
    return any(words in line for line in where.said)


@pytest.mark.parametrize("how", ["cleaned up", "deleted", "another claim"])
def test_claims_with_results_of_another_run_stay(where: Where, how: str) -> None:
    where.finish("a")
    if how == "deleted":
        where.delete("a", claims=False)
    elif how == "cleaned up":
        where.clean_up("a")
    else:  # its first results stay where they are
        where.finish("a", storage={"outputs": {"mount": "/outputs", "claim": "second", "size": "1Gi"}})
    where.finish("b")
    removed = where.delete("b", claims=True)
    assert {"outputs", "cache"} <= where.claims(), removed
    assert kept(where, "outputs", "a")
    where.delete("a", claims=True)
    assert where.claims() == set() and where.notes() == 0


def test_claims_of_a_run_that_was_cleaned_up_are_known_as_its_own(where: Where) -> None:
    where.finish("a")
    where.clean_up("a")
    where.delete("a", claims=True)
    assert where.claims() == set() and where.notes() == 0


def test_a_claim_that_was_made_anew_has_no_results_of_before(where: Where) -> None:
    where.finish("a", storage=OUTPUTS)
    where.delete("a", claims=False)
    where.drop("outputs")
    where.finish("b", storage=OUTPUTS)
    where.delete("b", claims=True)
    assert where.claims() == set() and where.notes() == 0, where.said


def test_of_a_claim_that_is_gone_nothing_stays(where: Where) -> None:
    where.finish("a", storage=OUTPUTS)
    where.finish("b", storage=OUTPUTS)
    where.clean_up("a")
    where.clean_up("b")
    where.drop("outputs")
    where.delete("a", claims=False)
    assert where.notes() == 0


def test_a_smoke_test_leaves_no_results(where: Where) -> None:
    where.finish("b", smoke=SmokeSettings())
    where.clean_up("b")
    assert where.notes() == 0
    where.finish("a")
    where.delete("a", claims=True)
    assert where.claims() == set()


@pytest.mark.parametrize("files", ["there", "of another version", "gone"])
def test_a_run_that_was_never_noted_keeps_its_claims_when_it_is_deleted(tmp_path: Path, files: str) -> None:
    """As a version of rankzero leaves it that noted nothing at submit."""
    machine = Machine(tmp_path)
    machine.finish("a")
    for note in [one for one in machine.daemon.state["volumes"] if ".used-by." in one]:
        machine.daemon.execute(["docker", "volume", "rm", note], {})
    for path in (tmp_path / "rankzero").rglob("node.json") if files != "there" else ():
        path.unlink() if files == "gone" else path.write_text("{}")
    machine.delete("a", claims=False)
    assert machine.notes() == 2, "one a claim"
    machine.finish("b")
    machine.delete("b", claims=True)
    assert {"outputs", "cache"} <= machine.claims() and kept(machine, "outputs", "a")
    machine.delete("a", claims=True)
    assert machine.claims() == set() and machine.notes() == 0


def test_a_smoke_test_that_is_deleted_leaves_no_note(where: Where) -> None:
    where.finish("b", smoke=SmokeSettings())
    where.delete("b", claims=False)
    assert where.notes() == 0


def test_a_run_is_noted_once(where: Where) -> None:
    where.finish("a")
    where.finish("a")
    assert where.notes() == 2, "one a claim"
