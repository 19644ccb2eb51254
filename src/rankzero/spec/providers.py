"""Who clusters can be made at: names, and which fields of infra.yaml each has no use for or cannot do without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


@dataclass(frozen=True, slots=True)
class ProviderSection:
    """What a provider makes of infra.yaml; how it does it is in provision/providers/."""

    cannot: tuple[str, ...] = ()
    """Fields that it has no use for."""
    needs: tuple[str, ...] = ()
    """Fields that it cannot do without."""
    unread: tuple[str, ...] = ()
    """Fields of which it makes nothing, and which once were passed over."""
    version_parts: int | None = None
    """It takes versions of so many parts alone."""


_NO_CLOUD = ("subnet", "filesystem", "chart", *(f"nodes.{name}" for name in ("platform", "preset", "drivers")))
PROVIDERS: Mapping[str, ProviderSection] = {
    "nebius": ProviderSection(needs=("nodes.platform", "nodes.preset"), version_parts=2),
    "kind": ProviderSection(
        cannot=(*_NO_CLOUD, "nodes.service_account"),
        unread=("public_endpoint", "nodes.boot_disk_type", "nodes.boot_disk_gib"),
        version_parts=3,
    ),
}

if TYPE_CHECKING:
    Provider = str
else:  # the names above, for the schema, suggestions and the command line
    Provider = Literal[tuple(PROVIDERS)]
