"""Providers by their names, a file each: its constant PROVIDER."""

from __future__ import annotations

import importlib
from typing import cast

from rankzero.provision.steps import Provider


def provider(name: str) -> Provider:
    """The one of this name."""
    return cast("Provider", importlib.import_module(f"rankzero.provision.providers.{name}").PROVIDER)
