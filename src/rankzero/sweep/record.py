"""What a sweep has tried, in SQLite by Optuna, and what Optuna is asked: what is tried next, and whether a trial ends.

Both answers follow from the record, the sweep's seed and the trial's number alone: each is asked of a copy of the
record in memory, with a sampler or pruner made for it. So it makes no difference how often a sweep was started, or that
it was killed in the middle of an answer. Knows no run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import URL, text

from rankzero.errors import StorageError
from rankzero.spec.search_space import Choices, Label, Numbers, grid
from rankzero.spec.sweep_load import Sweep
from rankzero.wording import first_line

State = Literal["running", "complete", "pruned", "failed"]
_STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}
_CAUSE, _EXIT_CODE = "cause", "exit_code"
_VERDICT = "verdict"
"""What follows from the last evaluation of a trial that was judged: noted before any of it is done, so that a kill in
between leaves it for the next start to do. To judge again would be by what other trials have scored meanwhile."""
_RUN = "run"
"""Of a trial on a cluster: its run's name there, and what tells each rendering that was submitted under it."""
_NOT_SUBMITTED: tuple[str, list[str]] = ("", [])
_OF_A_RUNG = "completed_rung_"
"""What Optuna's successive halving notes of a trial while it judges."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial as it is recorded."""

    number: int
    state: State
    labels: Mapping[str, Label]
    evaluations: tuple[float, ...]
    """What it scored at each evaluation that was judged, in order."""
    value: float | None
    """What the trial's result scored; of one that was pruned, its last evaluation."""
    cause: str = ""
    """Of one that failed."""
    exit_code: int | None = None
    run: str | None = None
    """On a cluster: what its run is called there, whatever the sweep is called since. Empty until it is submitted;
    None: an earlier version has drawn it, which noted no name."""
    submitted: tuple[str, ...] = ()
    """What tells each rendering of it that was submitted under that name from other runs of the name."""

    def run_name(self, sweep: Sweep) -> str:
        """What its run is called, or is to be."""
        return self.run or sweep.run_name(self.number)

    @property
    def is_over(self) -> bool:
        return self.state != "running"


class Record:
    """The trials of one sweep."""

    def __init__(self, sweep: Sweep, file: Path) -> None:
        """Open it, or begin it. Raises StorageError where the file cannot be used."""
        self._sweep, self._file = sweep, file
        self._distributions = {name: _distribution(dimension) for name, dimension in sweep.space.items()}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        url = URL.create("sqlite", database=str(file)).render_as_string()  # directories may have any name
        with self._storage_errors():
            self._storage = optuna.storages.RDBStorage(url, skip_compatibility_check=False)
            there = optuna.get_all_study_names(self._storage)
            # A sweep that was renamed goes on with its trials. Hyperband judges by this name, too.
            self.begun_as = sweep.name if sweep.name in there or not there else there[0]
            """What the sweep was called when it began."""
            self._study = optuna.create_study(
                storage=self._storage, study_name=self.begun_as, direction=self._direction, load_if_exists=True
            )
            for one in self._frozen():
                verdict = one.user_attrs.get(_VERDICT) if one.state == TrialState.RUNNING else None
                if verdict is not None and verdict["at"] >= len(one.intermediate_values):
                    self._carry_out(one, **verdict)  # else an earlier version, which knows none, went on with it

    @property
    def trials(self) -> list[Trial]:
        """All of them, by number."""
        return [_trial(frozen) for frozen in self._frozen()]

    def draw(self) -> Trial | None:
        """Choose the next trial and record it as running. None where a grid has no point left."""
        there = self._frozen()
        if self._sweep.spec.sampler == "grid":
            labels = next((point for at, point in enumerate(grid(self._sweep.space)) if at == len(there)), None)
            if labels is None:
                return None
            chosen = create_trial(
                state=TrialState.RUNNING,
                params=dict(labels),
                distributions=self._distributions,
                user_attrs=self._unsubmitted(),
            )
        else:
            study = self._copy(there, len(there))
            study.ask(self._distributions)
            drawn = study.get_trials(deepcopy=False)[-1]
            chosen = create_trial(
                state=TrialState.RUNNING,
                params=drawn.params,
                distributions=drawn.distributions,
                user_attrs=self._unsubmitted(),
                system_attrs=drawn.system_attrs,
            )
        with self._storage_errors():
            self._study.add_trial(chosen)
        return _trial(self._frozen()[-1])

    def report(self, number: int, value: float) -> bool:
        """Record the trial's next evaluation. Returns whether the trial is to end here; then it is recorded as
        pruned."""
        there = self._frozen()
        own = there[number]
        values = [*_evaluations(own), value]
        prune, noted = self._judge(there, number, values)
        with self._storage_errors():
            verdict: dict[str, Any] = {"at": len(values), "value": value, "ends": prune, "notes": noted}
            if prune or noted:  # else all of it is one write
                self._storage.set_trial_user_attr(own._trial_id, _VERDICT, verdict)
            self._carry_out(own, **verdict)
        return prune

    def complete(self, number: int, value: float) -> None:
        """Record what a trial's result scored."""
        with self._storage_errors():
            self._storage.set_trial_state_values(self._frozen()[number]._trial_id, TrialState.COMPLETE, [value])

    def fail(self, number: int, cause: str, exit_code: int) -> None:
        """Record why a trial has no result."""
        own = self._frozen()[number]._trial_id
        with self._storage_errors():
            self._storage.set_trial_user_attr(own, _CAUSE, cause)
            self._storage.set_trial_user_attr(own, _EXIT_CODE, exit_code)
            self._storage.set_trial_state_values(own, TrialState.FAIL)

    def note_run(self, number: int, name: str, digest: str) -> Trial:
        """Note what a trial's run on a cluster is called, and what tells it; before that is submitted, since it may be
        under way from then on. Returns the trial."""
        own = self._frozen()[number]
        known = [*_run(own)[1]] if _run(own)[0] == name else []
        if digest not in known:
            with self._storage_errors():
                self._storage.set_trial_user_attr(own._trial_id, _RUN, [name, [*known, digest]])
        return _trial(self._frozen()[number])

    def take_up(self, number: int) -> None:
        """Have a trial that failed run again, with its values. The library knows no way back from an end."""
        back = text("UPDATE trials SET state = 'RUNNING', datetime_complete = NULL WHERE trial_id = :trial")
        own = self._frozen()[number]._trial_id
        with self._storage_errors(), self._storage.engine.begin() as connection:
            connection.execute(back, {"trial": own})

    def importances(self) -> dict[str, float]:
        """How much each field matters for what trials score, the largest first; they add up to 1. Empty where too few
        trials tell (PED-ANOVA of the completed ones)."""
        done = [one for one in self._frozen() if one.state == TrialState.COMPLETE]
        if len(done) < 2 or len({one.value for one in done}) < 2:
            return {}
        study = optuna.create_study(direction=self._direction)
        study.add_trials(done)
        found = optuna.importance.get_param_importances(study)
        return {name: float(share) for name, share in found.items() if math.isfinite(share)}

    @property
    def _direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self._sweep.higher_is_better else "minimize"

    def _frozen(self) -> list[FrozenTrial]:
        with self._storage_errors():
            return self._storage.get_all_trials(self._study._study_id, deepcopy=False)

    def _carry_out(self, own: FrozenTrial, *, at: int, value: float, ends: bool, notes: Mapping[str, Any]) -> None:
        """What follows from an evaluation; also where it was carried out before, or in part."""
        for key, note in notes.items():
            self._storage.set_trial_system_attr(own._trial_id, key, note)
        self._storage.set_trial_intermediate_value(own._trial_id, at, value)
        if ends:
            self._storage.set_trial_state_values(own._trial_id, TrialState.PRUNED, [value])

    def _unsubmitted(self) -> dict[str, Any]:
        return {_RUN: _NOT_SUBMITTED} if self._sweep.for_pods else {}

    def _copy(self, trials: list[FrozenTrial], number: int) -> optuna.Study:
        """The study in memory, with these trials and what the answer for this trial's number is made by."""
        study = optuna.create_study(
            study_name=self.begun_as,
            direction=self._direction,
            sampler=_sampler(self._sweep, number),
            pruner=_pruner(self._sweep),
        )
        study.add_trials(trials)
        return study

    def _judge(self, there: list[FrozenTrial], number: int, values: list[float]) -> tuple[bool, dict[str, Any]]:
        """Whether the last of these values ends the trial, and what the pruner has noted of the trial on the way. All
        of them are judged again: what an answer has noted that was cut short in an earlier version does not count."""
        if self._sweep.spec.pruner == "none":
            return False, {}
        own = there[number]
        attributes = {key: note for key, note in own.system_attrs.items() if not key.startswith(_OF_A_RUNG)}
        fresh = create_trial(
            state=TrialState.RUNNING, params=own.params, distributions=own.distributions, system_attrs=attributes
        )
        study = self._copy([*there[:number], fresh, *there[number + 1 :]], number)
        storage = study._storage
        identity = study.get_trials(deepcopy=False)[number]._trial_id
        prune = False
        for step, value in enumerate(values, start=1):
            storage.set_trial_intermediate_value(identity, step, value)
            prune = bool(study.pruner.prune(study, storage.get_trial(identity)))  # else one of NumPy's
        noted = storage.get_trial(identity).system_attrs
        return prune, {key: note for key, note in noted.items() if key.startswith(_OF_A_RUNG)}

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        from optuna.exceptions import StorageInternalError
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (StorageInternalError, SQLAlchemyError, OSError) as error:
            cause = error.__cause__ or error
            hint = "free space on this volume, or move the sweep's directory; then give the same command again"
            raise StorageError(
                f"the record of the sweep: {first_line(cause)}", where=str(self._file), hint=hint
            ) from error


def _sampler(sweep: Sweep, number: int) -> optuna.samplers.BaseSampler:
    """One that has chosen nothing yet: its randomness is of this trial alone."""
    digest = hashlib.sha256(f"{sweep.spec.seed}:{number}".encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    if sweep.spec.sampler == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
    return optuna.samplers.TPESampler(seed=seed) if sweep.spec.sampler == "tpe" else optuna.samplers.RandomSampler(seed)


def _pruner(sweep: Sweep) -> optuna.pruners.BasePruner:
    if sweep.spec.pruner == "median":
        return optuna.pruners.MedianPruner()
    return optuna.pruners.HyperbandPruner() if sweep.spec.pruner == "hyperband" else optuna.pruners.NopPruner()


def _distribution(dimension: Choices | Numbers) -> BaseDistribution:
    if isinstance(dimension, Choices):
        return CategoricalDistribution(dimension.labels)
    if dimension.whole:
        return IntDistribution(int(dimension.low), int(dimension.high), dimension.log, int(dimension.step or 1))
    return FloatDistribution(dimension.low, dimension.high, dimension.log, dimension.step)


def _trial(frozen: FrozenTrial) -> Trial:
    run, submitted = _run(frozen)
    failed = frozen.state == TrialState.FAIL  # else what is noted is of an earlier time
    return Trial(
        frozen.number,
        _STATES.get(frozen.state, "running"),
        frozen.params,
        tuple(_evaluations(frozen)),
        frozen.value if frozen.state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        str(frozen.user_attrs.get(_CAUSE, "")) if failed else "",
        frozen.user_attrs.get(_EXIT_CODE) if failed else None,
        run,
        tuple(submitted),
    )


def _run(frozen: FrozenTrial) -> tuple[str | None, list[str]]:
    name, submitted = frozen.user_attrs.get(_RUN, (None, []))
    return name, submitted


def _evaluations(frozen: FrozenTrial) -> list[float]:
    return [value for _, value in sorted(frozen.intermediate_values.items())]
