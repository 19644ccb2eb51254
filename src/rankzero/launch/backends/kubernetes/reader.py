"""A pod that is there for a while: created, waited for, replaced where it ends too early, removed. Knows nothing of
what is done in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

from rankzero.errors import ConfigError, ServiceError
from rankzero.launch.backend import Say
from rankzero.launch.backends.kubernetes.api import Api
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.execute import Place, execute
from rankzero.launch.backends.kubernetes.resources import CLAIM
from rankzero.launch.labels import Manifest
from rankzero.launch.pods import Pod, parse_pod
from rankzero.launch.resource import POD
from rankzero.launch.untyped_json import maps, text

READY_SECONDS, LOOK_SECONDS = 300.0, 1.0
_NEVER = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "ErrImageNeverPull")


class PodEndedError(ServiceError):
    """The pod has ended before the command."""


class Reader:
    """Runs commands in a pod, one after the other, and in another such pod when it has ended meanwhile: its life is
    bounded, and a node may evict it. A context manager; raises as `there_meanwhile`."""

    def __init__(self, api: Api, pod: Manifest, say: Say) -> None:
        self._api, self._pod, self._say = api, pod, say
        self._there = ExitStack()
        self._made = 0

    def __enter__(self) -> Reader:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._there.close()

    def execute(self, command: Sequence[str]) -> str:
        """What the command has printed; it may be given twice. Raises as `execute.execute`, and PodEndedError where two
        pods have ended before it."""
        try:
            return self._once(command)
        except PodEndedError as ended:
            self._say(f"{ended.problems[0].where} {ended.problems[0].what}; another one reads on")
        self._there.close()
        self._begin()
        return self._once(command)

    @property
    def _name(self) -> str:
        """A pod that is being removed has its name till it is gone."""
        first = str(self._pod["metadata"]["name"])
        return first if self._made == 1 else f"{first}-{self._made}"

    def _begin(self) -> None:
        self._made += 1
        pod = {**self._pod, "metadata": {**self._pod["metadata"], "name": self._name}}
        self._there.enter_context(there_meanwhile(self._api, pod, self._say))

    def _once(self, command: Sequence[str]) -> str:
        own = str(self._pod["spec"]["containers"][0]["name"])
        try:
            return execute(self._api, Place(self._name, own), command)
        except (ApiError, ServiceError) as error:
            why = self._why_ended()
            if why is None:
                raise
            hint = "the same command goes on with what it has"
            raise PodEndedError(why, where=f"pod {self._name}", hint=hint) from error

    def _why_ended(self) -> str | None:
        """None: it runs, or nobody can tell."""
        try:
            item = self._api.read(POD, self._name)
        except ApiError:  # the command's own error says more
            return None
        seen = None if item is None else parse_pod(item)
        if seen is not None and seen.is_running:
            return None
        return _end(seen) if seen is None or seen.is_over else "is being removed"


@contextmanager
def there_meanwhile(api: Api, pod: Manifest, say: Say) -> Iterator[None]:
    """From when its container runs. Raises ApiError; ConfigError where a claim of it is not there, for which it would
    only wait; ServiceError where it does not get to run in READY_SECONDS."""
    name = str(pod["metadata"]["name"])
    _look_for_claims(api, pod)
    try:
        api.write("POST", POD, name, pod)
    except ApiError as error:
        if error.status != 409:  # its name is nobody else's: an answer was lost
            raise
    try:
        _wait(api, name, say)
        yield
    finally:
        try:
            api.write("DELETE", POD, name, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                say(f"the pod {name} could not be removed ({error.refusal.message}); it ends by itself")


def _look_for_claims(api: Api, pod: Manifest) -> None:
    for volume in maps(pod, "spec", "volumes"):
        claim = text(volume, "persistentVolumeClaim", "claimName")
        try:
            missing = bool(claim) and api.read(CLAIM, claim) is None
        except ApiError as error:
            if error.status != 403:
                raise
            return
        if missing:
            what = f"there is no such claim in namespace {api.place.namespace}"
            hint = f"correct storage.{volume['name']}.claim in cluster.yaml, or its namespace"
            raise ConfigError(what, where=f"{CLAIM.kind}/{claim}", hint=hint)


def _wait(api: Api, name: str, say: Say) -> None:
    deadline = api.clock.monotonic() + READY_SECONDS
    said = ""
    while True:
        item = api.read(POD, name)
        seen = None if item is None else parse_pod(item)
        if seen is not None and seen.is_running:
            return
        why = "" if seen is None else seen.waits_for
        if seen is None or seen.is_over or seen.waiting in _NEVER or api.clock.monotonic() >= deadline:
            hint = f"kubectl describe pod -n {api.place.namespace} shows such pods while they wait"
            raise ServiceError(
                f"the pod that was to read the volume {_end(seen)}", where=f"pod {name}", hint=why or hint
            )
        if why and why != said:
            said = why
            say(f"  {name} waits: {why}")
        api.clock.sleep(LOOK_SECONDS)


def _end(seen: Pod | None) -> str:
    if seen is None:
        return "was removed by somebody"
    if seen.is_over:
        return f"ended: {seen.reason or seen.phase} {seen.message}".strip()
    return f"cannot start: {seen.waiting}" if seen.waiting in _NEVER else f"did not start in {READY_SECONDS:.0f} s"
