"""Tokens, present or not and never shown, and the Hub, which is asked only where somebody wants it asked."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException, InvalidURL

from rankzero.doctor.finding import Finding, look, ok, wrong
from rankzero.errors import ExitCode
from rankzero.hub_variables import expanded, hub_home
from rankzero.machine import offline

SECONDS = 5.0
_TRACKERS = {
    "MLflow": ("MLFLOW_TRACKING_URI",),
    "Weights & Biases": ("WANDB_API_KEY",),
    "Langfuse": ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"),
    "Trackio": ("TRACKIO_SERVER_URL",),
}


def tokens(env: Mapping[str, str]) -> Iterator[Finding]:
    """Of the Hub and of trackers."""
    source, _ = hub_token(env)
    if source:
        yield ok("Hub's token", f"there, from {source}")
    else:
        yield ok("Hub's token", "none: public models alone; `hf auth login` or HF_TOKEN for gated ones")
    there = [name for name, variables in _TRACKERS.items() if all(env.get(one) for one in variables)]
    half = [name for name, variables in _TRACKERS.items() if name not in there and any(env.get(v) for v in variables)]
    yield ok("trackers", f"{', '.join(there)} set up" if there else "none set up: metrics.jsonl and TensorBoard")
    for name in half:
        missing = [variable for variable in _TRACKERS[name] if not env.get(variable)]
        yield look("trackers", f"{name} is half set up", f"set {' and '.join(missing)}")


def hub_token(env: Mapping[str, str]) -> tuple[str, str]:
    """Where the Hub's token is from, and the token; both empty where there is none."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"):
        if token := _without_line_ends(env.get(name, "")):
            return name, token
    named = env.get("HF_TOKEN_PATH")
    path = expanded(named, env) if named else hub_home(env) / "token"
    try:
        token = _without_line_ends(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return "", ""
    return (str(path), token) if token else ("", "")


def _without_line_ends(text: str) -> str:
    """As the Hub's client takes a token, also from within: of a line that an editor has broken."""
    return text.replace("\r", "").replace("\n", "").strip()


def reach_hub(env: Mapping[str, str]) -> Finding:
    """Ask the Hub who the token's owner is, or without a token for anything at all."""
    if offline():
        return look("Hub", "the environment forbids the network", "unset HF_HUB_OFFLINE, or leave --online out")
    url = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    _, token = hub_token(env)
    path = "/api/whoami-v2" if token else "/api/models?limit=1"
    if not (token.isascii() and token.isprintable()):
        fix = "make a new one at huggingface.co/settings/tokens, then hf auth login"
        return wrong("Hub", "the token has characters that no token has", fix, ExitCode.ACCESS)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=SECONDS) as answer:
            said = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403) and token:
            fix = "make a new one at huggingface.co/settings/tokens, then hf auth login"
            return wrong("Hub", f"{url} does not accept the token ({error.code})", fix, ExitCode.ACCESS)
        return wrong("Hub", f"{url} answers {error.code}", "try again later", ExitCode.SERVICE)
    except (OSError, ValueError, HTTPException) as error:
        untrusted = isinstance(_cause(error), ssl.SSLCertVerificationError)
        fix = f"{_TRUST if untrusted else 'HTTPS_PROXY for a proxy'}, {_NO_HUB}"
        return wrong("Hub", f"{url} cannot be reached: {_reason(error)}", fix, ExitCode.SERVICE)
    who = f" as {said.get('name', '?')}" if token and isinstance(said, dict) else ""
    return ok("Hub", f"{url} answers{who}")


_NO_HUB = "HF_ENDPOINT for a mirror, or model.local_dir and no Hub"
_TRUST = "SSL_CERT_FILE and REQUESTS_CA_BUNDLE for a file with the authority of a proxy that opens TLS"


def _cause(error: Exception) -> object:
    """What urllib has wrapped."""
    return error.reason if isinstance(error, urllib.error.URLError) else error


def _reason(error: Exception) -> str:
    """Why, in words that hold nothing of what was sent."""
    reason = _cause(error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({getattr(reason, 'verify_message', '') or type(reason).__name__})"
    if isinstance(reason, ssl.SSLError):  # whose errno is none of the system's
        why = getattr(reason, "reason", "") or type(reason).__name__
        return f"what answers there does not speak TLS as asked ({why})"
    if isinstance(error, OSError):
        number = getattr(reason, "errno", None)
        return os.strerror(number) if isinstance(number, int) and number > 0 else str(reason)
    if isinstance(error, HTTPException) and not isinstance(error, InvalidURL):
        return f"what answers there does not speak HTTP ({type(error).__name__})"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "what answers there is not the Hub"
    return "that is no URL"
