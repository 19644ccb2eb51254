"""From a chosen context to a connection: as whom, over which TLS. Knows no object and sends nothing.

lightkube sets up TLS and most credentials. Ours are exec plugins, of which it takes no
`client.authentication.k8s.io/v1`, the version that several cloud providers write today.
"""

from __future__ import annotations

import json
import os
import shlex
import ssl
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
from lightkube import ConfigError as KubeconfigError
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.models import User, UserExec

from rankzero.errors import AccessError, ConfigError
from rankzero.launch.backends.kubernetes.connections import Connections
from rankzero.launch.backends.kubernetes.kubeconfig import Chosen, Impersonation, find_config, place
from rankzero.launch.backends.kubernetes.login import log_in, may_ask
from rankzero.launch.backends.kubernetes.proxies import Proxy, machine_proxy

TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
"""A busy API server takes its time; one that cannot be reached is known soon."""
LIMITS = httpx2.Limits(max_connections=256, max_keepalive_connections=16)
"""Each followed pod holds a connection."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A client for one cluster."""

    http: httpx2.Client = field(repr=False)
    server: str
    context: str
    """Of a kubeconfig; nothing where it is a pod's own service account."""
    proxy: str = ""
    """What names the proxy that it goes through, where there is one."""


def connect(context: str | None, env: Mapping[str, str]) -> Connection:
    """Open no connection yet, but have everything for one. Raises ConfigError, or AccessError for a failed login."""
    chosen = find_config(context, env)
    user = chosen.config.user or User()
    if user.token:
        where = f"{place(env)} token"
        user = msgspec.structs.replace(user, token=_of_a_header(user.token, where=where))
    config = chosen.config._replace(user=user)
    proxy: Proxy | None = None
    try:
        _must_have_key(user)
        proxy = Proxy(chosen.proxy, f"{place(env)} proxy-url") if chosen.proxy else machine_proxy(config.cluster.server)
        if proxy is not None:
            _must_be_an_address(proxy)
        params = ConnectionParams(timeout=TIMEOUT, proxy=proxy.url if proxy is not None else None).httpx_params(config)
        params |= {"limits": LIMITS, "trust_env": False}  # of which nothing but another choice of proxies is left
        _trust_as_kubectl(params["verify"])
        if user.exec is not None:
            params = _with_login(user.exec, chosen, params)
        elif user.token_file is not None:
            params["auth"] = TokenFile(Path(user.token_file))
        headers = [("User-Agent", "rankzero"), *_impersonating(chosen.impersonates)]
        http = httpx2.Client(**params, headers=[(name.encode(), value.encode()) for name, value in headers])
    except ImportError as error:  # of httpx, whose own words name a package that is not ours
        where = proxy.source if proxy is not None else place(env)
        hint = "`pip install socksio`, or name a proxy that speaks HTTP"
        raise ConfigError("a SOCKS proxy needs the package socksio", where=where, hint=hint) from error
    except (KubeconfigError, httpx2.InvalidURL, OSError, TypeError, ValueError) as error:
        hint = "`kubectl config view` shows what the context refers to"
        raise ConfigError(f"cannot use context {config.context_name}: {error}", where=place(env), hint=hint) from error
    if chosen.server_name is not None:
        name = chosen.server_name
        http.event_hooks["request"].append(lambda request: request.extensions.update(sni_hostname=name))
    return Connection(http, config.cluster.server, chosen.context, proxy.source if proxy is not None else "")


_IN_NAMES_OF_HEADERS = "!#$&'*+-.^_`|~"
"""Besides letters and digits."""


def _impersonating(whom: Impersonation) -> Iterator[tuple[str, str]]:
    """Headers that have the server act for somebody else than whose credentials these are."""
    if whom.user:
        yield "Impersonate-User", whom.user
    if whom.uid:
        yield "Impersonate-Uid", whom.uid
    for group in whom.groups or ():
        yield "Impersonate-Group", group
    for key, values in (whom.extra or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{quote(key, safe=_IN_NAMES_OF_HEADERS)}", value


def _with_login(command: UserExec, chosen: Chosen, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a client that logs in by a command, from those of one that does not log in."""
    connections = Connections(partial(httpx2.Client, **{**params, "auth": None}))
    auth = ExecLogin(
        command,
        cluster=chosen.told_to_login(),
        tls=params["verify"],
        mode=chosen.interactive,
        renew=connections.renew,
    )
    return {"base_url": params["base_url"], "timeout": params["timeout"], "auth": auth, "transport": connections}


def _trust_as_kubectl(tls: ssl.SSLContext) -> None:
    """Whatever the kubeconfig names is trusted, be it below another authority, and certificates need no identifiers of
    keys, which those of many clusters lack and Python asks for since 3.13."""
    tls.verify_flags = (tls.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN


_LAST_PORT = 65535


def _must_be_an_address(proxy: Proxy) -> None:
    """Raises ConfigError without the parser's own words, which quote the address: it may hold a password."""
    try:
        url = httpx2.Proxy(proxy.url).url
        is_one = bool(url.host) and (url.port or 0) <= _LAST_PORT and "@" not in f"{url.raw_path!r}{url.fragment}"
    except (httpx2.InvalidURL, ValueError):
        is_one = False
    if not is_one:
        hint = "http://HOST:PORT, https:// or socks5://; in a user's name and password / is %2F, @ is %40 and : is %3A"
        raise ConfigError("is no proxy's address", where=proxy.source, hint=hint)


def _must_have_key(user: User) -> None:
    """lightkube takes a certificate for one with a key."""
    if (user.client_cert or user.client_cert_data) and not (user.client_key or user.client_key_data):
        raise KubeconfigError("its user has a client certificate and no key")


class TokenFile(httpx2.Auth):
    """A token that others renew in its file, as a kubelet does. Raises AccessError where it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Put what is in the file by now on a request."""
        try:
            token = self._path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            hint = "log in again, or correct tokenFile in the kubeconfig"
            raise AccessError(f"cannot be read: {why}", where=f"tokenFile {self._path}", hint=hint) from None
        _put(request, _of_a_header(token, where=f"tokenFile {self._path}"))
        yield request


class ExecLogin(httpx2.Auth):
    """Runs the kubeconfig's login command for a token or a client certificate, and again when that has run out or is
    refused. An empty token stands for a certificate alone."""

    def __init__(
        self,
        command: UserExec,
        *,
        cluster: Mapping[str, Any] | None = None,
        tls: ssl.SSLContext | None = None,
        mode: str = "IfAvailable",
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        """`cluster` is what the command is told of it, and `mode` the kubeconfig's interactiveMode: whether it may ask
        a person at the terminal. `renew` has requests go over new connections."""
        self._command = command
        self._mode = mode
        self._cluster = cluster
        self._tls = tls
        self._renew = renew
        self._lock = threading.Lock()
        self._logins = 0
        self._token = ""
        self._ends: datetime | None = None

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Put the token on a request; a new one where the first is refused."""
        token, login = self._current(refused=0)
        _put(request, token)
        response = yield request
        if response.status_code == 401:
            _put(request, self._current(refused=login)[0])
            yield request

    def _current(self, *, refused: int) -> tuple[str, int]:
        """The token, and by which login it is; another than the one that was refused."""
        with self._lock:  # threads that follow logs do not all log in
            if self._logins == refused or (self._ends and self._ends <= datetime.now(UTC)):
                self._token, self._ends = self._log_in()
                self._logins += 1
            return self._token, self._logins

    def _log_in(self) -> tuple[str, datetime | None]:
        wanted = self._command
        info = {"apiVersion": wanted.apiVersion, "kind": "ExecCredential"}
        asks, command = may_ask(self._mode), [wanted.command, *(wanted.args or ())]
        spec = {"interactive": asks} | ({} if self._cluster is None else {"cluster": self._cluster})
        env = {
            **os.environ,
            "KUBERNETES_EXEC_INFO": json.dumps({**info, "spec": spec}, default=str),  # YAML has dates
            **{variable.name: variable.value for variable in wanted.env or ()},
        }
        where = f"login command {wanted.command}"
        if self._mode == "Always" and not asks:
            hint = f"log in first: {shlex.join(command)}"
            raise AccessError("it asks a person, and there is no terminal", where=where, hint=hint)
        try:
            done = log_in(command, env, asks=asks, where=where)
        except OSError as error:
            hint = wanted.installHint or "the kubeconfig's user names it; install it, or log in another way"
            raise AccessError(f"cannot be run: {error.strerror}", where=where, hint=hint) from error
        if done.code != 0:
            raise AccessError(f"failed with exit code {done.code}: {done.said}", where=where, hint="log in again")
        try:
            status: dict[str, Any] = json.loads(done.out)["status"]
            ends = status.get("expirationTimestamp")
            token, certificate = str(status.get("token") or ""), status.get("clientCertificateData")
            if certificate:
                self._take_certificate(str(certificate), str(status["clientKeyData"]))
            elif not token:
                raise KeyError
            return _of_a_header(token, where=where), _moment(ends) if ends else None
        except (AttributeError, ValueError, KeyError, TypeError, ssl.SSLError):  # the cause holds its output
            raise AccessError("it gave no token and no certificate", where=where, hint="log in again") from None

    def _take_certificate(self, certificate: str, key: str) -> None:
        """For every connection from now on, and every request has one of these. The TLS library takes files only;
        nobody else may read this one."""
        if self._tls is None:
            raise KeyError
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pem") as file:
            file.write(f"{certificate.rstrip()}\n{key}")
            file.flush()
            self._tls.load_cert_chain(file.name)
        self._renew()


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _of_a_header(token: str, *, where: str) -> str:
    """The token, without what a file has around it. Raises AccessError for one that no header takes: the client's own
    error would quote it."""
    token = token.strip()
    if not token.isprintable():
        raise AccessError("the token has a line break or the like in it", where=where, hint="log in again")
    return token


def _put(request: httpx2.Request, token: str) -> None:
    if token:
        request.headers["Authorization"] = f"Bearer {token}"
