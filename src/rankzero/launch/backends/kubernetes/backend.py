"""The Kubernetes backend: what launch/backend.py asks for, put together from the parts beside this file."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from rankzero.launch.backend import Ended, Execute, Hear, LogLine, LogQuery, Say
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.apply import Submission
from rankzero.launch.backends.kubernetes.auth import connect
from rankzero.launch.backends.kubernetes.collect import all_runs, collect, with_endings
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError, as_error
from rankzero.launch.backends.kubernetes.execute import Place, stream
from rankzero.launch.backends.kubernetes.logs import Following, past_lines
from rankzero.launch.backends.kubernetes.reader import Reader
from rankzero.launch.backends.kubernetes.secrets import put_secret, secret_value
from rankzero.launch.backends.kubernetes.serve import serve
from rankzero.launch.backends.kubernetes.stop import cancel, delete
from rankzero.launch.backends.kubernetes.survey import Surveyor
from rankzero.launch.evidence import Evidence
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import parse_pod
from rankzero.launch.resource import POD
from rankzero.launch.survey import Survey


def open_kubernetes(
    context: str | None, namespace: str, *, say: Say, wait: bool = True, env: Mapping[str, str] | None = None
) -> KubernetesBackend:
    """The cluster of a kubeconfig context. Raises ConfigError where there is none, AccessError where login fails."""
    api = Api(connect(context, os.environ if env is None else env), namespace, say=say)
    return KubernetesBackend(api, wait=wait)


class KubernetesBackend:
    """One namespace of one cluster."""

    def __init__(self, api: Api, *, wait: bool = True) -> None:
        """With `wait`, submit waits for the preparation before it applies the object that trains."""
        self._api = api
        self._wait = wait
        self._containers: dict[str, str] = {}
        self._endings: dict[str, list[Manifest]] = {}
        """What was seen to end, by the run that was followed."""
        self._discovery = Discovery(api)
        weakref.finalize(self, api.close)

    def submit(self, objects: Sequence[Manifest], say: Say, *, replace: bool = False) -> None:
        """Check all objects on the server, then apply them in order."""
        self._endings.clear()
        with self._spoken():
            Submission(self._api, self._discovery, objects, say, wait=self._wait, replaces=replace).run()

    def survey(self, objects: Sequence[Manifest]) -> Survey:
        """What the cluster has for these objects, and whether it would take them."""
        with self._spoken():
            return Surveyor(self._api, self._discovery, objects).look()

    def runs(self) -> list[Evidence]:
        """All runs of the namespace."""
        with self._spoken():
            return all_runs(self._api, self._discovery)

    def collect(self, run: str, *, log_lines: int = 50) -> Evidence:
        """Everything about one run."""
        with self._spoken():
            found = collect(self._api, self._discovery, run, log_lines=log_lines)
        return with_endings(found, self._endings.get(run, ()))

    def logs(self, run: str, query: LogQuery) -> Iterator[LogLine]:
        """Lines of all pods."""
        with self._spoken():
            if query.follow:
                following = Following(self._api, self._discovery, run, query)
                yield from following.lines()
                self._endings[run] = following.endings()
            else:
                yield from past_lines(self._api, run, query)

    def cancel(self, run: str, say: Say) -> None:
        """Stop the pods; all objects stay that may be told to have none."""
        with self._spoken():
            cancel(self._api, self._discovery, run, say)

    def delete(self, run: str, *, claims: bool, say: Say) -> list[str]:
        """Remove the run's objects."""
        self._endings.pop(run, None)
        with self._spoken():
            return delete(self._api, self._discovery, run, claims=claims, say=say)

    def serve(self, objects: Sequence[Manifest], say: Say) -> str:
        """Apply a Deployment and what goes with it, and wait until it answers. Returns what kubectl calls it here."""
        with self._spoken():
            return serve(self._api, objects, say)

    def put_secret(self, manifest: Manifest) -> str:
        """Create a Secret, or add its keys to the one that is there. Returns `created` or `updated`."""
        with self._spoken():
            return put_secret(self._api, manifest)

    def secret_value(self, name: str, key: str) -> str:
        """A Secret's value; nothing where there is none."""
        with self._spoken():
            return secret_value(self._api, name, key)

    @contextmanager
    def reading(self, pod: Manifest, say: Say) -> Iterator[Execute]:
        """A pod for as long as the context lasts, or several, one after the other."""
        with self._spoken(), Reader(self._api, pod, say) as reader:

            def run(command: Sequence[str]) -> str:
                with self._spoken():
                    return reader.execute(command)

            yield run

    def execute(self, pod: str, command: Sequence[str], hear: Hear, stdin: IO[bytes] | None = None) -> Ended:
        """An exec of the API."""
        with self._spoken():
            return stream(self._api, Place(pod, self._container(pod)), command, hear, stdin)

    def _container(self, pod: str) -> str:
        """The one that is ours, which no other pod of this name has otherwise."""
        if pod not in self._containers:
            there = self._api.read(POD, pod)
            if there is None:
                return ""
            self._containers[pod] = parse_pod(there).container
        return self._containers[pod]

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """What the API refuses, in words for a person."""
        try:
            yield
        except ApiError as error:
            raise as_error(error, self._api.place) from error
