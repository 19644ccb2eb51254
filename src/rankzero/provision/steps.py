"""Step: one thing of a cluster, how it is found, made and taken down; and the walks over all of them. No provider."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rankzero.errors import AccessError, ConfigError, RankzeroError, ServiceError
from rankzero.provision.programs import Command, Programs, Say
from rankzero.provision.record import Made, Record
from rankzero.spec.infra_spec import InfraSpec
from rankzero.wording import listed

LOOK_SECONDS = 15.0
_TAKEN_DOWN = "`rankzero cluster delete` takes down what was made from this file"
Facts = Mapping[str, str]
"""Id of each thing by its kind, or whatever commands call it; and `directory`, where infra.yaml is."""


@dataclass(frozen=True, slots=True)
class Found:
    """Something that is there."""

    id: str
    ready: bool = True
    """Whether what follows can use it."""
    trouble: RankzeroError | None = None
    """Why it never will: what would be made stops there. It is taken down as everything is, and what only needs its id
    has that."""
    redo: tuple[Command, ...] | None = None
    """It was left half made, which is its trouble: what is ours is put right by these, and made once more."""
    notes: tuple[str, ...] = ()
    """In what it is not what was asked for, where that stops nothing."""


Find = Callable[[Programs, Facts], Found | None]
Among = Callable[[Programs, Facts], list[str]]
Commands = Callable[[Facts], list[Command]]


def no_commands(_facts: Facts) -> list[Command]:
    """Of what is only looked for."""
    return []


def _usable(found: Found) -> Found:
    """Raises its trouble."""
    if found.trouble is not None:
        raise found.trouble
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """One thing."""

    kind: str
    name: str
    find: Find
    """Looks for it by its name; None: there is none. Raises ServiceError where the answer is neither. What is there and
    is of no use is found all the same, with its trouble: who takes it down has to know."""
    make: Commands = no_commands
    remove: Commands = no_commands
    needs: tuple[str, ...] = ()
    """Kinds of the steps before it whose ids its commands have."""
    asks_with: tuple[str, ...] | None = None
    """Kinds of those whose ids `find` has; None: of all that it needs."""
    among: Among | None = None
    """Of what is done each time, on this machine alone, twice being once: the ids that there are of its kind, and that
    may be of what it is inside of, as far as the ids tell that it has. Its own is the one that `find` says, else the
    one that is new. It goes with what it is inside of, unless it was there before."""
    inside: str | None = None
    """Kind of the step that it is gone with."""
    made_with: str | None = None
    """Kind of the step whose commands make it, too: where nobody said that they had ended, it may never be ready."""
    data: bool = False
    """People's data are on it."""
    programs: tuple[str, ...] = ()
    """That it takes besides those of its provider."""
    place: bool = False
    """All that is made is in it. Nothing is made, found or deleted for the same infra.yaml in another one."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name}"

    def is_askable(self, facts: Facts) -> bool:
        """Whether all is known that looking for it takes."""
        return facts.keys() >= set(self.needs if self.asks_with is None else self.asks_with)

    @property
    def is_made(self) -> bool:
        """Whether it is made here, and not only looked for."""
        return self.make is not no_commands


class Provider(Protocol):
    """One place that has clusters."""

    @property
    def programs(self) -> tuple[str, ...]:
        """That have to be installed, whichever steps are taken."""

    def steps(self, spec: InfraSpec) -> list[Step]:
        """In the order in which they are made. One of them is the kind `kubeconfig`, whose id is the context."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What was written down, held against what there is."""

    ours: list[Step]
    """What there is that was made here, the last one made first. What is gone with another is not among them."""
    gone: list[Step]
    """What was made here and was not found."""
    theirs: list[Step]
    """What there is under these names that was not made here, as far as anybody wrote down."""
    unasked: list[str]
    """Titles of what was made here and nobody could be asked about: it, or what it is in, has another name now."""
    facts: Facts


@dataclass(frozen=True, slots=True)
class Walk:
    """A spec's steps, with all that walking over them takes."""

    steps: Sequence[Step]
    programs: Programs
    record: Record
    say: Say
    ready_seconds: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    @property
    def _here(self) -> Facts:
        return {"directory": str(self.record.path.parent)}

    def taken(self, kinds: Collection[str]) -> list[Step]:
        """What `create` takes with these kinds."""
        wanted = self._with_needs(kinds)
        return [step for step in self.steps if step.kind in wanted]

    def noted(self) -> list[Step]:
        """What is to be asked for to delete it: all that was made here and is not gone with something else."""
        noted = [step for step in self.steps if self.record.of(step.kind, step.name) is not None]
        kinds = [step.kind for step in noted]
        return [step for step in noted if step.inside not in kinds]

    def plan(self, *, look: bool = True) -> list[tuple[Step, list[Command] | None]]:
        """Each step with the commands that would make it; None where it is there. Changes nothing. Without `look`
        nobody is asked what is there."""
        facts: dict[str, str] = {}
        unknown: dict[str, str] = {}
        planned: list[tuple[Step, list[Command] | None]] = []
        for step in self.steps:
            askable = look and step.among is None and step.is_askable(facts)
            found = self._found(step, facts) if askable else None
            redo = self._redo(step, facts, found)
            if found is not None and redo is None:
                facts[step.kind] = _usable(found).id
                planned.append((step, None if found.ready or step.is_made else []))
                if not found.ready:
                    self.say(f"{step.title} is not ready: create waits for it")
                for note in found.notes:
                    self.say(note)
            else:
                known = self._noted(step, step.among, facts) if look and step.among is not None else None
                facts |= {step.kind: known} if known is not None else {}
                unknown[step.kind] = f"<{step.kind}>"
                planned.append((step, [*(redo or ()), *step.make({**self._here, **unknown, **facts})]))
        return planned

    def _noted(self, step: Step, among: Among, facts: Facts) -> str | None:
        """The id of what is done each time, where it is there from before."""
        made = self.record.of(step.kind, step.name)
        if made is None or not made.id or not self._is_here(made, step, facts):
            return None
        return made.id if made.id in among(self.programs, facts) else None

    def create(self, kinds: Collection[str] | None = None) -> dict[str, str]:
        """Make what is not there, in order, and wait for it; returns the ids. With `kinds` no more than these, from
        what has to be there. Raises the first failure; the next call goes on from there."""
        if kinds is None:
            self._refuse_new_names()
        facts: dict[str, str] = {}
        wanted = {step.kind for step in self.steps} if kinds is None else self._with_needs(kinds)
        for step in self.steps:
            if step.kind in wanted:
                facts[step.kind] = self._there(step, facts, makes=kinds is None or step.kind in kinds)
        return facts

    def _refuse_new_names(self) -> None:
        """Raise ConfigError where what others were made with has another name now: they would be lost from sight."""
        for step in self.steps:
            before = [title for title in self.record.titles if title.startswith(f"{step.kind} ")]
            with_it = [one for one in self.steps if step.kind in one.needs and self.record.of(one.kind, one.name)]
            if before and with_it and self.record.of(step.kind, step.name) is None:
                what = f"{before[0]} was made from this file, and {with_it[0].title} with it; now it is {step.name}"
                hint = "give it its name again; for another cluster, copy infra.yaml to a directory of its own"
                raise ConfigError(what, where=step.kind, hint=hint)

    def _with_needs(self, kinds: Collection[str]) -> set[str]:
        wanted = {*kinds, *(step.kind for step in self.steps if step.place)}
        for step in reversed(self.steps):
            if step.kind in wanted:
                wanted |= set(step.needs)
        return wanted

    def _found(self, step: Step, facts: Facts) -> Found | None:
        """Raises ConfigError in another place than the one in which things were made."""
        found = step.find(self.programs, facts)
        if found is not None and step.place:
            self.record.enter(found.id)
        return found

    def _there(self, step: Step, facts: Facts, *, makes: bool) -> str:
        """The id of what a step is about, which is there and ready afterwards."""
        if step.among is not None:
            return self._done_again(step, step.among, facts)
        found = self._found(step, facts)
        redo = self._redo(step, facts, found)
        if redo is not None and makes:
            self.say(f"{step.title} was left half made: it is made once more")
            self._do_all(redo)
            found = None
        guessed = found is not None and self._is_ours(step, facts, found) and self.is_guessed(step)
        if found is None:
            if not (makes and step.is_made):
                hint = "`rankzero cluster create` makes it" if step.is_made else "it has to be there before"
                raise ServiceError(f"there is no {step.title}", where=step.kind, hint=hint)
            self._refuse_what_comes_too_late(step, facts)
            self._make(step, facts)
            found = step.find(self.programs, facts)
            if found is None:
                raise ServiceError(f"{step.title} was made, and is not to be found", hint="give the same command again")
        elif step.is_made and not self._is_ours(step, facts, found):
            self.say(f"{step.title} was there before: it is used, and will not be deleted")
        elif guessed:
            self.say(f"{step.title} was asked for, and nobody said that it was made: what has its name is taken for it")
        for note in found.notes:
            self.say(note)
        if makes or found.trouble is None:
            found = self._ready(step, facts, found)
        else:
            self.say(str(found.trouble))
        if self._is_ours(step, facts, found):
            self.record.put(step.kind, step.name, found.id, within=self._within(step, facts), by_name=guessed)
        return found.id

    def _redo(self, step: Step, facts: Facts, found: Found | None) -> tuple[Command, ...] | None:
        """What comes before making it once more; None: it is whole, or somebody else's to put right."""
        return found.redo if found is not None and self._is_ours(step, facts, found) else None

    def _refuse_what_comes_too_late(self, step: Step, facts: Facts) -> None:
        """Raise the trouble of what is to have it and is there without it, before it is made and costs something. Of
        the rest that it needs all has to be known: what is not would be taken for missing, too."""
        for later in self.steps:
            if step.kind in later.needs and later.is_askable(facts) and facts.keys() >= {*later.needs} - {step.kind}:
                found = later.find(self.programs, facts)
                if found is not None:
                    _usable(found)

    def _make(self, step: Step, facts: Facts) -> None:
        """What was plainly not made is not noted as asked for: whoever makes it later, it is theirs."""
        asked_before = self.record.of(step.kind, step.name) is not None
        self.record.put(step.kind, step.name, within=self._within(step, facts))
        for number, command in enumerate(step.make({**self._here, **facts})):
            answer, stop = self.programs.finish(command)
            if stop is not None:
                if answer.code == 0:
                    self._note(step, facts)
                raise stop
            if answer.code == 0:
                continue
            if not answer.leaves_open:
                theirs = number == 0 and answer.says_there and not asked_before
                if theirs or self._is_absent(step, facts):
                    self.record.drop(step.kind, step.name)
            raise self.programs.failure(command.words, answer)

    def _note(self, step: Step, facts: Facts) -> None:
        """The id of what its program made, as far as it can be looked at now: else only its name would tell it."""
        try:
            found = step.find(self.programs, facts)
        except (ServiceError, AccessError):
            return
        if found is not None:
            self.record.put(step.kind, step.name, found.id, within=self._within(step, facts))

    def _is_absent(self, step: Step, facts: Facts) -> bool:
        """Whether it is not there for certain. What failed before this look is what a user has to hear of."""
        try:
            return step.find(self.programs, facts) is None
        except (ServiceError, AccessError):
            return False

    def _done_again(self, step: Step, among: Among, facts: Facts) -> str:
        """Its id: the one of before, or the one that is new since then, also where a program refuses to do it twice.
        Never just the one that is current, nor one for something that is gone."""
        within = self._within(step, facts)
        known = self.record.of(step.kind, step.name)
        if known is not None and not self._is_here(known, step, facts):
            self._do_all(self._taken_back(step, {}))
            known = None
        before = among(self.programs, facts)
        others = tuple(before) if known is None else known.others
        self.record.put(step.kind, step.name, known.id if known is not None else "", others, within=within)
        for command in step.make({**self._here, **facts}):
            answer = self.programs.run(command)
            if answer.code != 0 and not (answer.says_there and known is not None):
                if known is None and not answer.leaves_open:  # what is new after this is another's
                    self.record.drop(step.kind, step.name)
                failure = self.programs.failure(command.words, answer)
                if answer.says_there:
                    (said,) = failure.problems
                    raise ServiceError(said.what, where=said.where, hint=self._way_out(step, among))
                raise failure
        found = step.find(self.programs, facts)
        expected = found.id if found is not None else known.id if known is not None else ""
        id = _chosen(among(self.programs, facts), expected, (before, others))
        if id is None:
            what = f"which {step.kind} is that of {step.name} cannot be told"
            raise ServiceError(what, where=step.kind, hint=self._way_out(step, among))
        self.record.put(step.kind, step.name, id, others, within=within)
        return id

    def _way_out(self, step: Step, among: Among) -> str:
        """Of those that are there, whatever they are of: one of another cluster may have the name that is needed."""
        away = " and ".join(f"`{self.programs.shown(command)}`" for command in step.remove({step.kind: "NAME"}))
        there = listed(among(self.programs, {})) or "none"
        return f"there is {there}; {away} removes the one in its way, and the same command then makes it anew"

    def _ready(self, step: Step, facts: Facts, found: Found) -> Found:
        until = self.clock() + self.ready_seconds
        while not _usable(found).ready:
            for other in self.steps:
                if other.kind == step.made_with and self.is_guessed(other):
                    what = f"{step.title} is not ready, and nobody said that {other.title} was made to its end"
                    hint = f"give the same command again, in case it is starting still; else {_TAKEN_DOWN}"
                    raise ServiceError(what, where=step.kind, hint=hint)
            if self.clock() >= until:
                what = f"{step.title} is not ready after {self.ready_seconds:.0f} s"
                hint = f"give the same command again: it goes on waiting; {_TAKEN_DOWN}"
                raise ServiceError(what, where=step.kind, hint=hint)
            self.say(f"waiting for {step.title}")
            self.sleep(LOOK_SECONDS)
            found = step.find(self.programs, facts) or found
        return found

    def _is_ours(self, step: Step, facts: Facts, found: Found) -> bool:
        """By what was written down; of the same name, but another id, or in another cluster, it is somebody else's."""
        made = self.record.of(step.kind, step.name)
        return made is not None and made.id in ("", found.id) and self._is_here(made, step, facts)

    def _is_here(self, made: Made, step: Step, facts: Facts) -> bool:
        """Whether what it is inside of is that in which it was made. Nobody says so of older versions'."""
        return made.within in ("", self._within(step, facts))

    def _within(self, step: Step, facts: Facts) -> str:
        """Id of what it is inside of, as long as that is there."""
        return "" if step.inside is None else facts.get(step.inside, "")

    def is_guessed(self, step: Step) -> bool:
        """Whether what was asked for from here is known by its name alone."""
        made = self.record.of(step.kind, step.name)
        return made is not None and made.is_guessed

    def inventory(self) -> Inventory:
        """Ask for all that was made here. Raises the first failure: an outage is no answer."""
        facts: dict[str, str] = {}
        mine: list[Step] = []
        gone: list[Step] = []
        theirs: list[Step] = []
        for step in self.steps:
            askable = step.is_askable(facts)
            if step.among is not None:
                if askable and self._is_needed_to_delete(step.kind, mine, facts):
                    facts[step.kind] = self._there(step, facts, makes=True)
                continue
            if step.inside in [one.kind for one in mine]:
                continue
            found = self._found(step, facts) if askable else None
            if found is not None:
                facts[step.kind] = found.id
            if found is not None and self._is_ours(step, facts, found):
                mine.append(step)
            elif self._was_asked(step, facts, gone) and self.record.of(step.kind, step.name) is not None:
                gone.append(step)
            if found is not None and step.is_made and step not in mine:
                theirs.append(step)
        known = {step.title for step in (*mine, *gone)}
        with_them = [one.kind for one in (*mine, *gone)]
        known |= {step.title for step in self.steps if step.among is not None or step.inside in with_them}
        unasked = [title for title in self.record.titles if title not in known]
        return Inventory(mine[::-1], gone, theirs[::-1], unasked, facts)

    def _was_asked(self, step: Step, facts: Facts, gone: Sequence[Step]) -> bool:
        """Or is gone with what it needs."""
        return step.is_askable({**facts, **{one.kind: "" for one in gone}})

    def _is_needed_to_delete(self, kind: str, mine: Sequence[Step], facts: Facts) -> bool:
        kinds = [one.kind for one in mine]
        later = [step for step in self.steps if kind in step.needs and step.inside not in kinds]
        noted = [(self.record.of(step.kind, step.name), step) for step in later]
        return any(made is not None and self._is_here(made, step, facts) for made, step in noted)

    def delete(self, steps: Sequence[Step], there: Inventory) -> None:
        """Take these down, in their order, and forget what is gone. Raises the first failure; the next call goes on
        from there. What was made here and is neither stays written down."""
        for step in steps:
            left = self._left_behind(step, there.facts)  # as long as it is there to tell what is of it
            self._do_all(step.remove(there.facts))
            self._forget(step, left)
        for step in there.gone:
            self._forget(step, self._left_behind(step, {}))

    def _left_behind(self, step: Step, facts: Facts) -> list[Step]:
        """What is to be taken back with it, where it does not take that along."""
        return [other for other in self.steps if other.inside == step.kind and self._taken_back(other, facts)]

    def _forget(self, step: Step, left: Sequence[Step]) -> None:
        """With what is gone with it. The step itself last: after a failure the next call comes by here again."""
        for other in left:
            self._do_all(self._taken_back(other, {}))
        for other in self.steps:
            if other.inside == step.kind:
                self.record.drop(other.kind, other.name)
        self.record.drop(step.kind, step.name)

    def _taken_back(self, step: Step, facts: Facts) -> list[Command]:
        """What it left on this machine, where that was not there before: it would be in the way of the next one."""
        made = self.record.of(step.kind, step.name)
        if step.among is None or made is None or not made.id or made.id in made.others:
            return []
        return step.remove({step.kind: made.id}) if made.id in step.among(self.programs, facts) else []

    def _do_all(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.programs.do(command)


def _chosen(there: Sequence[str], expected: str, befores: Sequence[Sequence[str]]) -> str | None:
    """The one that is expected, else the only one that is new: since just now, or since the first time."""
    if expected in there:
        return expected
    for before in befores:
        new = [one for one in there if one not in before]
        if len(new) == 1:
            return new[0]
    return None
