"""A cluster planned, made and taken down as an infra.yaml says. Knows no terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankzero.errors import ConfigError

if TYPE_CHECKING:
    from rankzero.provision.steps import Inventory, Step, Walk
    from rankzero.spec.infra_spec import InfraSpec

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Planned:
    """One step of a plan, or of what nobody will do."""

    title: str
    commands: tuple[str, ...]
    """As they could be typed; ids that are not known yet stand between < and >."""
    there: bool
    """It is there already."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a deletion would do."""

    doomed: list[Step]
    """What is deleted, the last one made first."""
    kept: list[Step]
    """What is there, and stays for what is on it."""
    guessed: list[Step]
    """People's data that are taken for what was asked for here by their name alone: deleted where somebody agrees."""
    theirs: list[tuple[Step, list[str]]]
    """What there is under these names, not made here as far as anybody wrote down, and the commands that would delete
    it. Nobody runs them."""
    there: Inventory
    """Of what was made here: what is gone, too, and what nobody could be asked about."""


class Provisioning:
    """One infra.yaml. `provider` is to be the one that it names, or says it where the file does not."""

    def __init__(self, file: Path, provider: str | None, say: Say) -> None:
        """Raises ConfigError with every problem of the file, StorageError where what was made cannot be read."""
        from rankzero.provision.programs import Programs
        from rankzero.provision.providers import provider as provider_of
        from rankzero.provision.record import Record
        from rankzero.provision.steps import Walk
        from rankzero.spec.infra_load import load_infra_spec, unread_of_infra
        from rankzero.spec.load import Setting

        chosen = [] if provider is None else [Setting("provider", provider, "--provider", keep_existing=True)]
        loaded = load_infra_spec(file, chosen, env=os.environ)
        self.spec: InfraSpec = loaded.spec
        self.unread = unread_of_infra(loaded)
        """Fields that the file has, and of which its provider makes nothing."""
        if provider is not None and provider != self.spec.provider:
            what = f"the file says {self.spec.provider}"
            raise ConfigError(what, where=f"--provider {provider}", hint=f"see {loaded.where('provider')}")
        self._provider = provider_of(self.spec.provider)
        self._programs = Programs(os.environ, say)
        steps, seconds = self._provider.steps(self.spec), float(self.spec.ready_timeout_seconds)
        self.walk: Walk = Walk(steps, self._programs, Record(file), say, seconds)

    def require(self, steps: Iterable[Step] | None = None) -> None:
        """Raise ConfigError for every program that these steps, or all, take and that is not installed."""
        some = self.walk.steps if steps is None else steps
        self._programs.require(
            dict.fromkeys((*self._provider.programs, *(name for one in some for name in one.programs)))
        )

    def plan(self, *, look: bool = True) -> list[Planned]:
        """What making it would run. Changes nothing; without `look`, runs nothing either."""
        shown = self._programs.shown
        return [
            Planned(step.title, tuple(shown(command) for command in commands or ()), commands is None)
            for step, commands in self.walk.plan(look=look)
        ]

    def alone(self) -> AbstractContextManager[None]:
        """What changes something is to be called within. Raises StorageError where another command is at work on it."""
        return self.walk.record.held()

    def create(self) -> dict[str, str]:
        """Make what is not there. Returns the ids, by kind. Raises the first failure."""
        return self.walk.create()

    def credentials(self) -> str:
        """Give this machine access to the cluster, which has to be there. Returns the context of the kubeconfig."""
        return self.walk.create(["kubeconfig"])["kubeconfig"]

    def deletion(self, *, with_data: bool, asks: bool) -> Deletion:
        """What was made here, and what becomes of it; `asks`: somebody is asked before. Changes nothing."""
        there = self.walk.inventory()
        guessed = [step for step in there.ours if step.data and self.walk.is_guessed(step)]
        kept = [step for step in there.ours if step.data and not (with_data and (asks or step not in guessed))]
        shown = self._programs.shown
        theirs = [(step, [shown(command) for command in step.remove(there.facts)]) for step in there.theirs]
        return Deletion([step for step in there.ours if step not in kept], kept, guessed, theirs, there)

    def delete(self, deletion: Deletion) -> None:
        """Take it down, and forget what is gone. Raises the first failure."""
        self.walk.delete(deletion.doomed, deletion.there)
