"""A cluster planned, made and taken down as an infra.yaml says. Knows no terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError

if TYPE_CHECKING:
    from rankzero.provision.steps import Step, Walk
    from rankzero.spec.infra_spec import InfraSpec

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Planned:
    """One step of a plan."""

    title: str
    commands: tuple[str, ...]
    """As they could be typed; ids that are not known yet stand between < and >."""
    there: bool
    """It is there already."""


class Provisioning:
    """One infra.yaml. `provider` is to be the one that it names, or says it where the file does not."""

    def __init__(self, file: Path, provider: str | None, say: Say) -> None:
        """Raises ConfigError with every problem of the file, StorageError where what was made cannot be read."""
        from rankzero.provision.programs import Programs
        from rankzero.provision.providers import provider as provider_of
        from rankzero.provision.record import Record
        from rankzero.provision.steps import Walk
        from rankzero.spec.infra_load import load_infra_spec
        from rankzero.spec.load import Setting

        chosen = [] if provider is None else [Setting("provider", provider, "--provider", keep_existing=True)]
        loaded = load_infra_spec(file, chosen, env=os.environ)
        self.spec: InfraSpec = loaded.spec
        if provider is not None and provider != self.spec.provider:
            what = f"the file says {self.spec.provider}"
            raise ConfigError(what, where=f"--provider {provider}", hint=f"see {loaded.where('provider')}")
        self._provider = provider_of(self.spec.provider)
        self._programs = Programs(os.environ, say, file.absolute().parent)
        steps, seconds = self._provider.steps(self.spec), float(self.spec.ready_timeout_seconds)
        self.walk: Walk = Walk(steps, self._programs, Record(file), say, seconds)

    def require(self) -> None:
        """Raise ConfigError for every program that is not installed."""
        self._programs.require(self._provider.programs)

    def plan(self, *, look: bool = True) -> list[Planned]:
        """What making it would run. Changes nothing; without `look`, runs nothing either."""
        shown = self._programs.shown
        return [
            Planned(step.title, tuple(shown(command) for command in commands or ()), commands is None)
            for step, commands in self.walk.plan(look=look)
        ]

    def create(self) -> dict[str, str]:
        """Make what is not there. Returns the ids, by kind. Raises the first failure."""
        return self.walk.create()

    def credentials(self) -> str:
        """Give this machine access to the cluster, which has to be there. Returns the context of the kubeconfig."""
        return self.walk.create(["kubeconfig"])["kubeconfig"]

    def deletable(self, *, with_data: bool) -> tuple[list[Step], list[Step]]:
        """What was made here and is there: what would be deleted, the last one made first, and what stays."""
        ours = self.walk.ours()
        return [step for step in ours if with_data or not step.data], [s for s in ours if s.data and not with_data]

    def delete(self, steps: Sequence[Step], kept: Sequence[Step]) -> None:
        """Take these down. Raises the first failure."""
        self.walk.delete(steps)
        self.walk.forget(kept)
