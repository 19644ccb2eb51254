"""What the API refuses, as our errors with their exit codes; in words by launch/refusals.py. Sends nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rankzero.errors import AccessError, ConfigError, Problem, RankzeroError, ServiceError
from rankzero.launch.evidence import Refusal
from rankzero.launch.refusals import Asked, is_about_rights, not_served, reason_of
from rankzero.launch.resource import Resource
from rankzero.launch.silence import SilentError

NO_ANSWER = 0
"""Status of a call that got none."""
NO_API = "NotKubernetes"
"""Reason of an answer that no API server gives."""
NO_TLS = "NoTLS"
"""Reason of a call without an answer where both sides speak, and will not agree at another try either."""
_DISAGREEING = re.compile(
    "CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|UNKNOWN_PROTOCOL|UNSUPPORTED_PROTOCOL|HTTP_REQUEST|NO_PROTOCOLS"
    "|ALERT_PROTOCOL_VERSION|ALERT_HANDSHAKE_FAILURE|NO_SHARED_CIPHER|UNKNOWN_CA|BAD_CERTIFICATE"
    "|CERTIFICATE_(?:REQUIRED|EXPIRED|UNKNOWN)"
)
"""In words of OpenSSL. All else that it says may be one connection's fault."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster and namespace that calls go to."""

    server: str
    context: str
    """Of a kubeconfig; nothing where there is none, but a pod's own service account."""
    namespace: str
    proxy: str = ""
    """What names the proxy that they go through, where there is one."""

    @property
    def kubectl(self) -> str:
        """The command for the same cluster."""
        return Asked("", context=self.context).kubectl

    @property
    def named(self) -> str:
        """Where it stands which cluster it is."""
        return f"context {self.context} in the kubeconfig" if self.context else "this pod's service account"

    @property
    def between(self) -> str:
        """The end of a hint about the way there."""
        return f"; the way there is through a proxy ({self.proxy})" if self.proxy else ""


class ApiError(Exception):
    """A call that was refused, or not answered, after what tries it was worth."""

    def __init__(
        self,
        refusal: Refusal,
        *,
        subject: str = "",
        resource: Resource | None = None,
        causes: tuple[tuple[str, str], ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{refusal.verb}: {refusal.status} {refusal.reason}: {refusal.message}")
        self.refusal = refusal
        self.subject = subject
        """`Job/my-run`, where the call was about one object."""
        self.resource = resource
        self.causes = causes
        """(field, message) of everything that is wrong with an object."""
        self.retry_after = retry_after

    @property
    def status(self) -> int:
        """HTTP status; NO_ANSWER where there was none."""
        return self.refusal.status

    @property
    def is_without_tls(self) -> bool:
        """Whether it got no answer since the two sides do not agree on TLS: trying again is in vain."""
        return self.status == NO_ANSWER and self.refusal.reason == NO_TLS


def unanswered(verb: str, error: Exception, *, spoken: bool) -> Refusal:
    """Of a call that got no answer. `spoken`: whether the server has answered others, and so can speak TLS with us."""
    said = str(error) or type(error).__name__
    in_vain = not spoken and _DISAGREEING.search(said) is not None
    return Refusal(verb, NO_ANSWER, NO_TLS if in_vain else type(error).__name__, said)


def as_error(failures: ApiError | Iterable[ApiError], place: Place) -> RankzeroError:
    """One error with every problem; its class decides the exit code."""
    together = (failures,) if isinstance(failures, ApiError) else tuple(failures)
    kinds = {_class_of(failure) for failure in together}
    problems = [problem for failure in together for problem in problems_of(failure, place)]
    for kind in (SilentError, ServiceError, ConfigError, AccessError):
        if kind in kinds:
            return kind(problems)
    return RankzeroError(problems)


def problems_of(failure: ApiError, place: Place) -> list[Problem]:
    """What to tell a person about one refused call."""
    what, hint = _words(failure, place)
    if failure.status == 422 and failure.causes:
        return [
            Problem(f"{field}: {message}" if field else message, failure.subject, hint)
            for field, message in failure.causes
        ]
    return [Problem(what, failure.subject or place.server, hint)]


def _class_of(failure: ApiError) -> type[RankzeroError]:
    status = failure.status
    if failure.is_without_tls:
        return ServiceError
    if status == NO_ANSWER or status == 429 or status >= 500:
        return SilentError
    if status == 401 or (status == 403 and is_about_rights(failure.refusal.message)):
        return AccessError
    return ConfigError


def _words(failure: ApiError, place: Place) -> tuple[str, str]:
    """What was refused, and what to do; only what the connection itself says is put into words here."""
    refusal, resource = failure.refusal, failure.resource
    if refusal.reason == NO_API:
        return refusal.message, f"correct the server of {place.named}; or is a login page or a proxy between?"
    if failure.is_without_tls:
        return _without_tls(refusal.message, place)
    if refusal.status == NO_ANSWER:
        reach = f"`{place.kubectl} get pods -n {place.namespace}` asks the same server"
        return f"the cluster does not answer: {refusal.message}", f"is the network or VPN up? {reach}{place.between}"
    kind, run = (resource.kind if resource is not None else ""), failure.subject.partition("/")[2]
    reason = reason_of(refusal, Asked(f"the cluster refused to {refusal.verb}", run, kind, place.context))
    if refusal.status == 404 and reason.code == "refused":
        if resource is None or refusal.message.startswith(resource.title):
            return refusal.message, ""  # there is no such object, which says all
        reason = not_served(resource.kind, resource.api_version)
    return reason.cause, reason.fix


def _without_tls(message: str, place: Place) -> tuple[str, str]:
    if "CERTIFICATE_VERIFY_FAILED" in message:
        hint = (
            f"the certificate-authority of {place.named} has to be this server's: get a new"
            " kubeconfig; a proxy that opens TLS has an authority of its own; or is this machine's clock wrong?"
        )
        return f"the server's certificate is not trusted: {message}", hint + place.between
    hint = f"is https right for this address and port? It is the server of {place.named}"
    return f"the server and this machine do not agree on TLS: {message}", hint + place.between
