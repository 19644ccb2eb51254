"""Which proxy of this machine's a server is asked through: that of HTTPS_PROXY or HTTP_PROXY, as kubectl decides it,
and where none is set, as kubectl does not, that of ALL_PROXY or of the system's settings. Knows no connection."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.request import getproxies

import httpx2


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where requests go, and what says so."""

    url: str = field(repr=False)
    source: str


def machine_proxy(server: str) -> Proxy | None:
    """What the environment (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY) or the system's settings name for a
    server; None where it is asked directly, as one of this machine always is. Raises httpx2.InvalidURL."""
    url, set_here = httpx2.URL(server), getproxies()
    kind = next((name for name in (url.scheme, "all") if set_here.get(name)), None)
    if kind is None or _is_direct(url, set_here.get("no", "")):
        return None
    named = set_here[kind]
    variables = [name for name in os.environ if name.lower() == f"{kind}_proxy" and os.environ[name] == named]
    source = f"environment {variables[0]}" if variables else "the system's settings"
    return Proxy(named if "://" in named else f"http://{named}", source)


def _is_direct(url: httpx2.URL, listed: str) -> bool:
    """`listed` is NO_PROXY: names with all below them, addresses, networks, each with a port or without."""
    host, address = url.host.lower(), _address(url.host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    port = url.port or {"https": 443, "http": 80}.get(url.scheme)
    return any(_is_listed(host, address, port, entry.strip().lower()) for entry in listed.split(","))


def _is_listed(host: str, address: IPv4Address | IPv6Address | None, port: int | None, entry: str) -> bool:
    if entry == "*":
        return True
    entry = entry.rpartition("://")[2]
    with suppress(ValueError):
        network = ip_network(entry, strict=False)
        return address is not None and address in network
    name, colon, only = entry.rpartition(":")
    if colon and only.isdecimal():
        if int(only) != port:
            return False
        entry = name
    name = entry.strip("[]").removeprefix("*")
    if address is not None:
        return address == _address(name)
    return bool(name) and (host == name or host.endswith(name if name.startswith(".") else f".{name}"))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
