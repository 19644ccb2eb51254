"""Calls to a cluster's API: retries, pages, watches and streams of lines. Knows no run; objects are plain JSON."""

from __future__ import annotations

import builtins
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import httpcore2
import httpx2

from rankzero.launch.backend import LONGEST_SILENCE, Say
from rankzero.launch.backends.kubernetes.auth import Connection
from rankzero.launch.backends.kubernetes.errors import NO_ANSWER, NO_API, ApiError, Place, unanswered
from rankzero.launch.backends.kubernetes.streams import Change, Clock, Streams, split_lines
from rankzero.launch.evidence import Refusal
from rankzero.launch.labels import Manifest
from rankzero.launch.resource import POD, Resource
from rankzero.redaction import without_secrets

ATTEMPTS = 6
LONGEST_DELAY = 20.0
MOST_RETRY_AFTER = 60.0
PAGE = 500
CLOCK_SLACK = timedelta(seconds=2)
"""Dates have whole seconds, and answers take a while."""
WATCH_SECONDS = 240
"""The server ends a watch after this; silence for longer means that the connection is dead."""
UPGRADED_SILENCE = 120.0
"""Seconds for which a command in a pod may print nothing, or take nothing of what it is sent."""
STALLED = httpcore2.TimeoutException
CLOSED = (httpcore2.NetworkError, httpcore2.ProtocolError)
"""What a connection raises that is no longer HTTP: where the peer is silent, and where it has gone."""
_WORTH_A_RETRY = {NO_ANSWER, 429, 500, 502, 503, 504}
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
WRITE = {"fieldManager": "rankzero"}
"""Parameters of a patch: who it is by."""
_METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
"""In a header: the code of all warnings of the API, who warns, and the quoted words."""


def _heedless(_words: str) -> None:
    """Told of a warning where nobody asked for any."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, and how messages speak of it."""

    method: str
    path: str
    verb: str
    params: Mapping[str, str] = field(default_factory=dict)
    resource: Resource | None = None
    name: str = ""
    body: Manifest | Sequence[Manifest] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    hide: Callable[[str], str] = str
    """What becomes of the server's words before anybody hears them: it may quote what it was sent."""
    warned: Say = _heedless
    """Told each of the warnings that come with an answer."""
    tries: int = ATTEMPTS
    patient: bool = False
    """Whether to go on asking a server that does not answer for as long as LONGEST_SILENCE."""

    @property
    def subject(self) -> str:
        return f"{self.resource.kind}/{self.name}" if self.resource is not None and self.name else ""


class Api:
    """One cluster and one namespace of it. Every method raises ApiError."""

    def __init__(self, connection: Connection, namespace: str, *, say: Say, clock: Clock | None = None) -> None:
        self._http = connection.http
        self.tell = say
        self.clock = clock or Clock()
        self._ahead = timedelta()
        self._silence_told = False
        self._spoken = False
        """Whether the server has ever answered."""
        self.place = Place(without_secrets(connection.server), connection.context, namespace, connection.proxy)

    def now(self) -> datetime:
        """The server's time: ages are of what it has stamped, and this machine's clock may be minutes off."""
        return self.clock.now() + self._ahead

    def close(self) -> None:
        """Let go of all connections."""
        self._http.close()

    def get(self, path: str) -> Manifest:
        """Anything, by its path."""
        return self._send(_Call("GET", path, f"get {path}"))

    def read(self, resource: Resource, name: str, *, patient: bool = False) -> Manifest | None:
        """One object, or None. `patient`, for who follows a run: a silence is waited out, within bounds."""
        path = resource.path(self.place.namespace, name)
        call = _Call("GET", path, f"get {resource.title}", resource=resource, name=name, patient=patient)
        try:
            found = self._send(call)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        if not isinstance(found.get("metadata"), dict):
            raise _no_api(call.verb, "of Kubernetes")
        return found

    def text(self, path: str, params: Mapping[str, str]) -> str:
        """A short text such as the end of a log. Not tried again: it is one fact among many."""
        call = _Call("GET", path, f"get {POD.plural}/log", params, POD)
        response = self._once(call)
        if isinstance(response, ApiError):
            raise response
        return response.content.decode(errors="replace")

    def write(
        self,
        method: Literal["POST", "PATCH", "DELETE"],
        resource: Resource,
        name: str,
        body: Manifest | Sequence[Manifest],
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        hide: Callable[[str], str] | None = None,
        warned: Say = _heedless,
    ) -> Manifest:
        """Create, patch or delete one object. With `hide`, which takes secrets out of words, no answer is asked for.
        `warned` hears what the server warns of."""
        path = resource.path(self.place.namespace, None if method == "POST" else name)
        verb = f"{_VERBS[method]} {resource.title}"
        headers = {"Content-Type": content_type, "Accept": "application/json" if hide is None else _METADATA_ONLY}
        call = _Call(method, path, verb, params or {}, resource, name, body, headers, hide or str, warned)
        return self._send(call)

    def review(self, resource: Resource, asked: Manifest, *, tries: int = ATTEMPTS) -> Manifest:
        """What the server says to an object that it does not keep."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        path, verb = resource.path(self.place.namespace), f"create {resource.title}"
        return self._send(_Call("POST", path, verb, resource=resource, body=asked, headers=headers, tries=tries))

    def page(self, resource: Resource) -> builtins.list[Manifest] | None:
        """All objects where they fit into one page; None where there are more."""
        path, params, verb = resource.path(self.place.namespace), {"limit": str(PAGE)}, f"list {resource.title}"
        answer = self._send(_Call("GET", path, verb, params, resource))
        if (answer.get("metadata") or {}).get("continue"):
            return None
        return [
            {"apiVersion": resource.api_version, "kind": resource.kind, **it} for it in part_of(answer, "items", verb)
        ]

    def list(
        self, resource: Resource, params: Mapping[str, str] | None = None, *, patient: bool = False
    ) -> tuple[list[Manifest], str]:
        """All objects page by page, and the version that a watch goes on from. `patient` as in `read`."""
        path, verb = resource.path(self.place.namespace), f"list {resource.title}"
        items: list[Manifest] = []
        page = {**(params or {}), "limit": str(PAGE)}
        expired = 0
        while True:
            try:
                answer = self._send(_Call("GET", path, verb, page, resource, patient=patient))
            except ApiError as error:
                expired += 1
                if error.status != 410 or expired > 3:
                    raise
                items, page = [], {**(params or {}), "limit": str(PAGE)}  # the list has aged: from the start
                continue
            metadata = answer.get("metadata") or {}
            # items of a list do not say what they are
            items += [
                {"apiVersion": resource.api_version, "kind": resource.kind, **it}
                for it in part_of(answer, "items", verb)
            ]
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion", ""))
            page["continue"] = metadata["continue"]

    def follow(
        self,
        resource: Resource,
        params: Mapping[str, str],
        *,
        streams: Streams | None = None,
        seconds: Callable[[], float] = lambda: WATCH_SECONDS,
    ) -> Iterator[Change]:
        """All objects now, then every change of them, for ever: dropped and expired watches are taken up again, and a
        server that has answered once and does so no more is waited for.

        `seconds` says how long one connection may last before IDLE is seen.
        """
        own = streams or Streams()
        answered = False
        while not own.stopped.is_set():
            items, version = self.list(resource, params, patient=answered)
            answered = True
            yield Change("SYNC", tuple(items))
            while version and not own.stopped.is_set():
                began = self.clock.monotonic()
                quiet = True
                for kind, item in self._watch(resource, {**params, "resourceVersion": version}, own, seconds()):
                    if kind == "GONE":
                        version = ""
                        break
                    version = str(item["metadata"].get("resourceVersion", version))
                    if kind != "BOOKMARK":
                        quiet = False
                        yield Change(kind, (item,))  # type: ignore[arg-type]
                if quiet:
                    if version:
                        yield Change("IDLE")
                    if self.clock.monotonic() - began < 1:
                        self.clock.sleep(1)  # a server that hangs up at once is not asked without pause

    def _watch(
        self, resource: Resource, params: Mapping[str, str], streams: Streams, seconds: float
    ) -> Iterator[tuple[str, Manifest]]:
        """One connection's worth of a watch. A dropped connection ends it. GONE: what it was to go on from has aged, or
        the server does not begin it; a list finds out why."""
        bounded = max(1, int(seconds))
        heard = False
        asked = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(bounded), **params}
        path = resource.path(self.place.namespace)
        try:
            for line in self.lines(path, asked, resource=resource, streams=streams, silence=bounded + 30):
                heard, event = True, json.loads(line)
                item = event["object"]
                if event["type"] == "ERROR":
                    if item.get("code") == 410:
                        yield "GONE", {}
                        return
                    raise ApiError(_refusal(f"watch {resource.title}", item.get("code", 500), item), resource=resource)
                yield event["type"], item
        except ApiError as error:
            if error.status != 410 and error.status not in _WORTH_A_RETRY:
                raise
            if error.status == 410 or not heard:
                yield "GONE", {}
        except json.JSONDecodeError:  # the connection broke within a line
            return

    def lines(
        self,
        path: str,
        params: Mapping[str, str],
        *,
        resource: Resource,
        streams: Streams,
        silence: float,
        opened: Callable[[], None] | None = None,
    ) -> Iterator[str]:
        """A response line by line as it comes; `opened` is called when it begins, with or without lines. Ends with the
        stream; raises ApiError where it breaks or is refused."""
        verb = f"{'watch' if 'watch' in params else 'get'} {resource.title}"
        timeout = httpx2.Timeout(60.0, connect=10.0, read=silence)
        request = self._http.build_request("GET", path, params=dict(params), timeout=timeout)
        try:
            response = self._http.send(request, stream=True)
            with streams.holding(response):
                try:
                    if not response.is_success:
                        response.read()
                        raise _failure(response, verb, resource)
                    if opened is not None:
                        opened()
                    yield from split_lines(response.iter_bytes())
                finally:
                    response.close()
        except httpx2.TransportError as error:
            raise ApiError(unanswered(verb, error, spoken=self._spoken), resource=resource) from error

    @contextmanager
    def upgraded(
        self,
        verb: str,
        pod: str,
        part: str,
        asked: Mapping[str, str | Sequence[str]],
        headers: Mapping[str, str],
    ) -> Iterator[tuple[Callable[[int], bytes], Callable[[bytes], None]]]:
        """A connection to a pod's part that speaks another protocol from its answer on: how to receive and send."""
        more = {**headers, "Connection": "Upgrade", "Upgrade": "websocket"}
        path = POD.path(self.place.namespace, pod, part)
        request = self._http.build_request("GET", path, params=dict(asked), headers=more)
        try:
            response = self._http.send(request, stream=True)
            try:
                if response.status_code != 101:
                    response.read()
                    raise _failure(response, verb, POD, f"Pod/{pod}")
                stream = response.extensions["network_stream"]
                yield (
                    lambda most: stream.read(most, timeout=UPGRADED_SILENCE),
                    lambda data: stream.write(data, timeout=UPGRADED_SILENCE),
                )
            finally:
                response.close()
        except (httpx2.TransportError, STALLED, *CLOSED) as error:
            raise ApiError(unanswered(verb, error, spoken=self._spoken), resource=POD) from error

    def _send(self, call: _Call) -> Manifest:
        """One call; again, a little later, where that may help: all of them may be given twice."""
        attempt, began = 0, self.clock.monotonic()
        while True:
            attempt += 1
            response = self._once(call)
            if not isinstance(response, ApiError):
                self._silence_told = False
                return _decoded(response, call.verb)
            hopeless = response.status not in _WORTH_A_RETRY or response.is_without_tls
            waits = call.patient and self.clock.monotonic() - began < LONGEST_SILENCE
            if hopeless or (attempt >= call.tries and not waits):
                raise response
            self._wait(attempt, response)

    def _once(self, call: _Call) -> httpx2.Response | ApiError:
        content = None if call.body is None else json.dumps(call.body).encode()
        try:
            response = self._http.request(
                call.method, call.path, params=dict(call.params), content=content, headers=dict(call.headers)
            )
        except httpx2.TransportError as error:
            refusal = unanswered(call.verb, error, spoken=self._spoken)
            return ApiError(refusal, subject=call.subject, resource=call.resource)
        self._spoken = True
        self._note_time(response.headers.get("Date", ""))
        if not response.is_success:
            return _failure(response, call.verb, call.resource, call.subject, call.hide)
        for header in response.headers.get_list("Warning"):
            for words in _WARNING.findall(header):
                call.warned(call.hide(re.sub(r"\\(.)", r"\1", words)))
        return response

    def _note_time(self, date: str) -> None:
        try:
            ahead = parsedate_to_datetime(date) - self.clock.now()
        except (TypeError, ValueError):  # none, or one that no server writes
            return
        self._ahead = ahead if abs(ahead) > CLOCK_SLACK else timedelta()

    def _wait(self, attempt: int, failure: ApiError) -> None:
        delay = min(LONGEST_DELAY, 0.5 * 2 ** (attempt - 1) * random.uniform(0.8, 1.2))
        if failure.retry_after is not None:
            delay = min(max(delay, failure.retry_after), MOST_RETRY_AFTER)
        said = failure.refusal.message or failure.refusal.reason
        if 1 < attempt < ATTEMPTS:
            self.tell(f"{said}; trying again in {delay:.0f} s")
        elif attempt >= ATTEMPTS and not self._silence_told:  # others who follow the run hear the same silence
            self._silence_told = True
            most = f"{LONGEST_SILENCE / 60:.0f} minutes at most"
            self.tell(f"{said}; what runs goes on, and the cluster is waited for, {most}")
        self.clock.sleep(delay)


def list_each(api: Api, resources: Iterable[Resource], params: Mapping[str, str] | None = None) -> list[Manifest]:
    """All objects of several kinds that a run may be. A kind that may not be listed, or has gone, has none.

    Many users have rights for the kinds that they use and no others. Raises where not one may be listed.
    """
    found: list[Manifest] = []
    refused: ApiError | None = None
    seen = False
    for resource in resources:
        try:
            found += api.list(resource, params)[0]
            seen = True
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            refused = refused or error
    if refused is not None and not seen:
        raise refused
    return found


def _decoded(response: httpx2.Response, verb: str) -> Manifest:
    try:
        value = response.json()
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _no_api(verb, "JSON")
    return value


def part_of(answer: Manifest, key: str, verb: str) -> list[Any]:
    """What every API server's answer of this kind has. Raises ApiError where it is somebody else's."""
    if not isinstance(found := answer.get(key, 0), list | None):
        raise _no_api(verb, "of Kubernetes")
    return found or []


def _no_api(verb: str, what: str) -> ApiError:
    message = f"the answer is not {what}; is this the address of a Kubernetes API server?"
    return ApiError(Refusal(verb, NO_ANSWER, NO_API, message))


def _failure(
    response: httpx2.Response,
    verb: str,
    resource: Resource | None,
    subject: str = "",
    hide: Callable[[str], str] = str,
) -> ApiError:
    try:
        status = response.json()
    except ValueError:
        status = None
    status = status if isinstance(status, dict) else {"message": response.text.strip()}
    status["message"] = hide(str(status.get("message") or "")[:2000])
    causes = tuple(
        (str(cause.get("field", "")), hide(str(cause.get("message", ""))))
        for cause in (status.get("details") or {}).get("causes") or ()
    )
    after = response.headers.get("Retry-After", "")
    return ApiError(
        _refusal(verb, response.status_code, status),
        subject=subject,
        resource=resource,
        causes=causes,
        retry_after=float(after) if after.isdigit() else None,
    )


def _refusal(verb: str, code: int, status: Mapping[str, Any]) -> Refusal:
    return Refusal(verb, int(code), str(status.get("reason") or ""), str(status.get("message") or "")[:2000])
