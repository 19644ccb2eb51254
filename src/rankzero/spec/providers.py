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
    whole_version: bool = False
    """It takes no version without its last part."""


_NO_CLOUD = ("subnet", "filesystem", "chart", *(f"nodes.{name}" for name in ("platform", "preset", "drivers")))
PROVIDERS: Mapping[str, ProviderSection] = {
    "nebius": ProviderSection(needs=("nodes.platform", "nodes.preset")),
    "kind": ProviderSection(cannot=(*_NO_CLOUD, "nodes.service_account"), whole_version=True),
}

if TYPE_CHECKING:
    Provider = str
else:  # the names above, for the schema, suggestions and the command line
    Provider = Literal[tuple(PROVIDERS)]
