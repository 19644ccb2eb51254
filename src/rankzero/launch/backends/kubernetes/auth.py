"""From a kubeconfig to a connection: which cluster, as whom, over which TLS. Knows no object and sends nothing.

lightkube reads kubeconfigs and sets up TLS and most credentials. Ours are the choice of the file and exec plugins, of
which it takes no `client.authentication.k8s.io/v1`, the version that several cloud providers write today.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import yaml
from lightkube import ConfigError as KubeconfigError
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User, UserExec

from rankzero.errors import AccessError, ConfigError

VARIABLE = "KUBECONFIG"
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


def connect(context: str | None, env: Mapping[str, str]) -> Connection:
    """Open no connection yet, but have everything for one. Raises ConfigError, or AccessError for a failed login."""
    config = find_config(context, env)
    try:
        config = config._replace(user=config.user or User())
        params = ConnectionParams(timeout=TIMEOUT).httpx_params(config)
    except (KubeconfigError, OSError, ValueError) as error:
        hint = "`kubectl config view` shows what the context refers to"
        raise ConfigError(f"cannot use context {config.context_name}: {error}", where=_place(env), hint=hint) from error
    if config.user is not None and config.user.exec is not None:
        params["auth"] = ExecLogin(config.user.exec, server=config.cluster.server)
    http = httpx2.Client(**{**params, "limits": LIMITS, "headers": {"User-Agent": "rankzero"}})
    return Connection(http, config.cluster.server, config.context_name)


def find_config(context: str | None, env: Mapping[str, str]) -> SingleConfig:
    """The chosen context: of $KUBECONFIG, of ~/.kube/config, or the pod's own service account. Raises ConfigError."""
    named = [Path(name).expanduser() for name in env.get(VARIABLE, "").split(os.pathsep) if name]
    usual = Path(env.get("HOME", "~")).expanduser() / ".kube" / "config"
    files = [path for path in named or [usual] if path.is_file()]
    if files:
        return _choose(context, [(path, _read(path)) for path in files])
    if named:
        hint = f"correct {VARIABLE}, or unset it to use ~/.kube/config"
        raise ConfigError(f"no such file: {', '.join(map(str, named))}", where=f"environment {VARIABLE}", hint=hint)
    if context is None and "KUBERNETES_SERVICE_HOST" in env and Path(SERVICE_ACCOUNT, "token").is_file():
        inside = KubeConfig.from_service_account().get()
        if inside is not None:
            return inside
    hint = f"set {VARIABLE}, or save the cluster's kubeconfig as ~/.kube/config"
    raise ConfigError("there is no kubeconfig, so no cluster to talk to", where=str(usual), hint=hint)


def _read(path: Path) -> KubeConfig:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError("it has no clusters, users and contexts")
        return KubeConfig.from_dict(value, fname=path)
    except yaml.MarkedYAMLError as error:  # its own text quotes lines of the file, which hold credentials
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(f"not YAML: {error.problem}", where=f"{path}:{line}") from None
    except (OSError, KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        hint = "`kubectl config view` says more"
        raise ConfigError(f"not a kubeconfig: {type(error).__name__} {error}", where=str(path), hint=hint) from error


def _choose(context: str | None, configs: list[tuple[Path, KubeConfig]]) -> SingleConfig:
    """The first file that has the context counts; without one, the first that names a current one."""
    where = os.pathsep.join(str(path) for path, _ in configs)
    known = sorted({name for _, config in configs for name in config.contexts})
    wanted = context or next((config.current_context for _, config in configs if config.current_context), None)
    hint = f"contexts there: {', '.join(known)}" if known else "it has no contexts"
    if wanted is None:
        raise ConfigError("no current context", where=where, hint=f"set context in cluster.yaml; {hint}")
    for path, config in configs:
        if wanted in config.contexts:
            try:
                chosen = config.get(wanted)
            except KeyError as error:
                what = f"context {wanted} refers to {error.args[0]}, which is not in the file"
                raise ConfigError(what, where=str(path)) from error
            if chosen is not None:
                return chosen
    raise ConfigError(f"there is no context {wanted}", where=where, hint=hint)


def _place(env: Mapping[str, str]) -> str:
    return env.get(VARIABLE) or "~/.kube/config"


class ExecLogin(httpx2.Auth):
    """Runs the kubeconfig's login command for a token, and again when the token has run out or is refused."""

    def __init__(self, command: UserExec, *, server: str) -> None:
        self._command = command
        self._server = server
        self._lock = threading.Lock()
        self._token: str | None = None
        self._ends: datetime | None = None

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Put the token on a request; a new one where the first is refused."""
        token = self._current(refused=None)
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            request.headers["Authorization"] = f"Bearer {self._current(refused=token)}"
            yield request

    def _current(self, *, refused: str | None) -> str:
        with self._lock:  # threads that follow logs do not all log in
            if self._token is None or self._token == refused or (self._ends and self._ends <= datetime.now(UTC)):
                self._token, self._ends = self._log_in()
            return self._token

    def _log_in(self) -> tuple[str, datetime | None]:
        wanted = self._command
        info = {"apiVersion": wanted.apiVersion, "kind": "ExecCredential"}
        spec = {"interactive": False, "cluster": {"server": self._server}}
        env = {
            **os.environ,
            "KUBERNETES_EXEC_INFO": json.dumps({**info, "spec": spec}),
            **{variable.name: variable.value for variable in wanted.env or ()},
        }
        where = f"login command {wanted.command}"
        try:
            done = subprocess.run([wanted.command, *(wanted.args or ())], env=env, capture_output=True, check=False)
        except OSError as error:
            hint = wanted.installHint or "the kubeconfig's user names it; install it, or log in another way"
            raise AccessError(f"cannot be run: {error.strerror}", where=where, hint=hint) from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise AccessError(f"failed with exit code {done.returncode}: {said}", where=where, hint="log in again")
        try:
            status: dict[str, Any] = json.loads(done.stdout)["status"]
            ends = status.get("expirationTimestamp")
            return str(status["token"]), datetime.fromisoformat(ends) if ends else None
        except (ValueError, KeyError, TypeError):
            hint = "client certificates from login commands are not supported"
            raise AccessError("it gave no token", where=where, hint=hint) from None  # the cause holds its output
