"""From kubeconfigs to the chosen context and all that it refers to. Knows no connection."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml
from lightkube import ConfigError as KubeconfigError
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig

from rankzero.errors import ConfigError

VARIABLE = "KUBECONFIG"


class Impersonation(msgspec.Struct):
    """For whom a user acts: a part of users that lightkube does not read."""

    user: str | None = msgspec.field(name="as", default=None)
    uid: str | None = msgspec.field(name="as-uid", default=None)
    groups: list[str] | None = msgspec.field(name="as-groups", default=None)
    extra: dict[str, list[str]] | None = msgspec.field(name="as-user-extra", default=None)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A context with all that it refers to."""

    config: SingleConfig = field(repr=False)
    cluster: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """As it stands there."""
    login: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The user's login command as it stands there."""
    impersonates: Impersonation = field(default_factory=Impersonation)
    context: str = ""
    """What kubectl knows it by; nothing where it is a pod's own service account."""

    @property
    def proxy(self) -> str | None:
        """The cluster's proxy-url."""
        return self.cluster.get("proxy-url")

    @property
    def server_name(self) -> str | None:
        """The cluster's tls-server-name: the name in its certificate, where that is not the address's."""
        return self.cluster.get("tls-server-name")

    @property
    def interactive(self) -> str:
        """The interactiveMode of the user's login command."""
        return str(self.login.get("interactiveMode") or "IfAvailable")

    def told_to_login(self) -> dict[str, Any] | None:
        """What the login command is told of the cluster; None where it did not ask for it. Raises OSError where the
        file of its authority cannot be read, TypeError or ValueError where its extensions are none."""
        if not self.login.get("provideClusterInfo"):
            return None
        told = {key: self.cluster[key] for key in _TOLD_TO_LOGINS if self.cluster.get(key)}
        file = self.cluster.get("certificate-authority")
        if file and "certificate-authority-data" not in told:
            told["certificate-authority-data"] = base64.b64encode(Path(file).read_bytes()).decode()
        extensions = {one.get("name"): one.get("extension") for one in map(dict, self.cluster.get("extensions") or ())}
        return told | ({"config": extensions[_FOR_LOGINS]} if _FOR_LOGINS in extensions else {})


_TOLD_TO_LOGINS = (
    *("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data"),
    *("proxy-url", "disable-compression"),
)
_FOR_LOGINS = "client.authentication.k8s.io/exec"
"""The name of what a cluster has for login commands alone."""


def find_config(context: str | None, env: Mapping[str, str]) -> Chosen:
    """The chosen context: of $KUBECONFIG, of ~/.kube/config, or the pod's own service account. Raises ConfigError."""
    named = [Path(os.path.expanduser(name)) for name in env.get(VARIABLE, "").split(os.pathsep) if name]
    usual = Path(os.path.expanduser(env.get("HOME", "~"))) / ".kube" / "config"
    files = [path for path in named or [usual] if os.path.exists(path) and not os.path.isdir(path)]
    if files:
        return _choose(context, files)
    if named:
        hint = f"correct {VARIABLE}, or unset it to use ~/.kube/config"
        raise ConfigError(f"no such file: {', '.join(map(str, named))}", where=f"environment {VARIABLE}", hint=hint)
    if context is None and "KUBERNETES_SERVICE_HOST" in env and Path(SERVICE_ACCOUNT, "token").is_file():
        try:
            inside = KubeConfig.from_service_account(SERVICE_ACCOUNT).get()
        except (KubeconfigError, KeyError, OSError, ValueError) as error:
            what = f"the service account of this pod cannot be used: {error}"
            raise ConfigError(what, where=SERVICE_ACCOUNT, hint=f"set {VARIABLE} to a kubeconfig instead") from error
        if inside is not None:
            return Chosen(inside)
    hint = f"set {VARIABLE}, or save the cluster's kubeconfig as ~/.kube/config"
    raise ConfigError("there is no kubeconfig, so no cluster to talk to", where=str(usual), hint=hint)


def namespace_of(context: str | None, env: Mapping[str, str]) -> str | None:
    """The namespace of the chosen context; None where it names none, or no context can be chosen: rendering needs no
    cluster, and whoever connects to one is told what is wrong with the kubeconfig."""
    try:
        config = find_config(context, env).config
    except ConfigError:
        return None
    return (config.context.namespace if config.context is not None else None) or None


def _choose(context: str | None, files: list[Path]) -> Chosen:
    """Files are merged as kubectl does it: of what several have, the first counts."""
    where = os.pathsep.join(str(path) for path in files)
    merged = _merged(files)
    try:
        config = KubeConfig.from_dict(merged)
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise _no_kubeconfig(f"{type(error).__name__} {error}", where) from error
    known = sorted(map(str, config.contexts))
    wanted = context or config.current_context
    hint = f"contexts there: {', '.join(known)}" if known else "it has no contexts"
    if not wanted:
        raise ConfigError("no current context", where=where, hint=f"set context in cluster.yaml; {hint}")
    if not context and isinstance(merged["current-context"], list | dict):
        raise _no_kubeconfig("its current-context is no name", where)
    if wanted not in config.contexts:
        raise ConfigError(f"there is no context {wanted}", where=where, hint=hint)
    try:
        chosen = config.get(wanted)
    except KeyError as error:
        raise ConfigError(f"context {wanted} refers to {error.args[0]}, which is not there", where=where) from error
    if chosen is None:
        raise ConfigError(f"there is no context {wanted}", where=where, hint=hint)
    cluster = next(one for one in merged["clusters"] if one["name"] == chosen.context.cluster)["cluster"]
    for key in ("proxy-url", "tls-server-name"):  # which lightkube does not read
        if cluster.get(key) and not isinstance(cluster[key], str):
            raise _no_kubeconfig(f"{key} of the cluster {chosen.context.cluster} is no text", where)
    user: dict[str, Any] = next((one["user"] for one in merged["users"] if one["name"] == chosen.context.user), {})
    return Chosen(chosen, cluster, user.get("exec") or {}, _impersonation(user, where), wanted)


def _impersonation(user: Mapping[str, Any], where: str) -> Impersonation:
    try:
        found = msgspec.convert(user, Impersonation)
    except msgspec.ValidationError as error:
        raise _no_kubeconfig(f"of its user, {error}", where) from error
    if not found.user and (found.uid or found.groups or found.extra):
        what = "its user names whom to act as by as-uid, as-groups or as-user-extra, and has no `as`"
        raise ConfigError(what, where=where, hint="add as: NAME, or leave the others out")
    return found


def _merged(files: list[Path]) -> dict[str, Any]:
    merged: dict[str, Any] = {section: [] for section in _SECTIONS}
    for path in files:
        value = _read(path)
        merged["current-context"] = merged.get("current-context") or value.get("current-context")
        for section, kind in _SECTIONS.items():
            known = {one["name"] for one in merged[section]}
            for one in value.get(section) or ():
                if isinstance(one["name"], list | dict):
                    raise _no_kubeconfig(f"one of its {section} has no name", str(path))
                if one["name"] not in known:
                    fields = one.get(kind) or {}
                    if not isinstance(fields, dict):
                        raise _no_kubeconfig(f"the {kind} {one['name']} has no fields", str(path))
                    merged[section].append({**one, kind: _resolved(fields, path.parent)})
    return merged


_SECTIONS = {"clusters": "cluster", "contexts": "context", "users": "user"}
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


def _resolved(value: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Relative paths are relative to the file that they stand in."""
    found: dict[str, Any] = {
        key: str(folder.absolute() / named) if key in _FILES and isinstance(named, str) and named else named
        for key, named in value.items()
    }
    login = found.get("exec")
    if isinstance(login, dict) and "/" in str(login.get("command")):  # else it is looked for in PATH
        found["exec"] = {**login, "command": str(folder.absolute() / str(login["command"]))}
    return found


def _read(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = _text(path)
        value = yaml.safe_load(text) or {}  # kubectl takes empty files as well
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError("not YAML: it has a control character", where=f"{path}:{line}") from None
    except yaml.MarkedYAMLError as error:  # its own text quotes lines of the file, which hold credentials
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(f"not YAML: {error.problem}", where=f"{path}:{line}") from None
    except (OSError, ValueError) as error:
        raise _no_kubeconfig(type(error).__name__, str(path)) from error
    sections = [value.get(section) or [] for section in _SECTIONS] if isinstance(value, dict) else [None]
    if not all(isinstance(one, list) and all(isinstance(e, dict) and "name" in e for e in one) for one in sections):
        raise _no_kubeconfig("it has no clusters, users and contexts", str(path))
    return dict(value)


def _no_kubeconfig(why: str, where: str) -> ConfigError:
    return ConfigError(f"not a kubeconfig: {why}", where=where, hint="`kubectl config view` says more")


def _text(path: Path) -> str:
    status = path.stat()
    return path.read_text(encoding="utf-8") if path.is_file() else _said(path, status.st_dev, status.st_ino)


@cache
def _said(pipe: Path, _device: int, _inode: int) -> str:
    """What KUBECONFIG=<(…) says, which can be read once, by whoever in this process asks first."""
    return pipe.read_text(encoding="utf-8")


def place(env: Mapping[str, str]) -> str:
    """Where whoever is to mend it finds it."""
    return env.get(VARIABLE) or "~/.kube/config"
