"""Submitting: everything is checked by the server before anything is applied, and what was applied is always named."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import SecretStr

from rankzero.errors import ConfigError, Problem, RankzeroError
from rankzero.launch import labels
from rankzero.launch.backend import AlreadyRunsError, Say
from rankzero.launch.backends.kubernetes.api import APPLY_PATCH, Api
from rankzero.launch.backends.kubernetes.claims import note_user
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import NO_ANSWER, ApiError, as_error
from rankzero.launch.backends.kubernetes.kueue import is_queued
from rankzero.launch.backends.kubernetes.leftovers import Leftovers, find_leftovers, remove_beside
from rankzero.launch.backends.kubernetes.needs import needs_of
from rankzero.launch.backends.kubernetes.preflight import Preflight
from rankzero.launch.backends.kubernetes.resources import (
    CLAIM,
    ROLE,
    ROLE_BINDING,
    annotation,
    claims_of,
    ended,
    is_preparation,
    is_suspended,
    is_template,
    is_training,
    label,
    name_of,
    resource_of,
)
from rankzero.launch.backends.kubernetes.secrets import put_secret
from rankzero.launch.backends.kubernetes.steps import Step, Steps, decide, foreign
from rankzero.launch.backends.kubernetes.stop import remove, start_again, submission_secret
from rankzero.launch.backends.kubernetes.wait import wait_until_prepared
from rankzero.launch.backends.preparation import PreparationError
from rankzero.launch.kinds import kind_of
from rankzero.launch.labels import Manifest, submission_name
from rankzero.launch.refusals import Asked, lacks_namespace, reason_in
from rankzero.launch.resource import Resource
from rankzero.launch.secrets import secret_manifest
from rankzero.launch.survey import Doubt
from rankzero.launch.untyped_json import at, text

MANAGER = "rankzero"
TRIES = 4
"""Of one object that something else changes at the same moment."""
_STRICT = {"fieldManager": MANAGER, "fieldValidation": "Strict"}
APPLY = {**_STRICT, "force": "true"}
_DRY = {"dryRun": "All"}
_SAY = {"create": "created", "update": "up to date"}


@dataclass(slots=True)
class Submission:
    """One submit. Raises RankzeroError."""

    api: Api
    discovery: Discovery
    objects: Sequence[Manifest]
    say: Say
    wait: bool = True
    """Whether to wait for the preparation before the training object is applied."""
    replaces: bool = False
    """Whether a run of the same name that is under way with another spec may be ended."""

    doubts: list[Doubt] = field(default_factory=list)
    """What the judging has found that stands in no submit's way."""
    failed: set[Resource] = field(default_factory=set)
    """Kinds that the server failed over while it judged."""

    def run(self) -> None:
        """All of it."""
        plan, left, later = self.judge()
        for doubt in self.doubts:
            self.say(doubt.what)
        for step in plan.steps:
            if step.do == "keep" and step.note:
                self.say(f"{name_of(step.manifest)} {step.note}")
        self._apply_all(self._run, plan, left, later)

    def judge(self) -> tuple[Steps, Leftovers, set[str]]:
        """What would be done, what would be removed for it, and what can be judged only then. Applies nothing. Raises
        one RankzeroError with every reason why it would be refused."""
        try:
            self.objects = [self._as_served(one) for one in self.objects]
            there = self._existing()
            left = find_leftovers(self.api, self.discovery, self._run, list(map(name_of, self.objects)), there)
            plan = decide(self.objects, there, going=[name_of(one) for one in left.owned])
            later = self._check(plan)
            self._ask(plan, left)
        except ApiError as error:
            raise as_error(error, self.api.place) from error
        return plan, left, later

    @property
    def _run(self) -> str:
        return str(label(self.objects[-1], labels.RUN))

    def _as_served(self, manifest: Manifest) -> Manifest:
        """The object without what only newer versions of its controller know, where the cluster has an older one."""
        kind = kind_of(manifest)
        newer = kind.newer if kind is not None else None
        if newer is None or newer.resource.kind != manifest["kind"] or not self.discovery.serves(newer.resource):
            return manifest
        if self.discovery.knows(newer.resource, newer.field):
            return manifest
        self.say(f"{newer.resource.kind} of this cluster has no {newer.field}: {newer.loses}")
        return newer.without(manifest)

    def _ask(self, plan: Steps, left: Leftovers) -> None:
        """Raise AlreadyRunsError where pods would be ended that nobody has said may be."""
        if self.replaces:
            return
        olds = [
            *left.working,
            *(one for one in _replaced(plan) if not is_template(one)),
        ]
        alive = [one for one in olds if self._is_under_way(one)]
        if not alive:
            return
        by = annotation(alive[0], labels.SUBMITTED_BY)
        since = text(alive[0], "metadata", "creationTimestamp")
        whose = f"by {by} " if by else ""
        hint = "give this run another name; or end that one: `rankzero cancel`, or submit with --replace"
        raise AlreadyRunsError(
            f"is under way with another spec (submitted {whose}at {since})", where=name_of(alive[0]), hint=hint
        )

    def _is_under_way(self, manifest: Manifest) -> bool:
        """Whether it has pods or waits for them. One that was cancelled keeps its objects, and waits for nothing."""
        if ended(manifest) is not None or manifest["metadata"].get("deletionTimestamp"):
            return False
        return not is_suspended(manifest) or is_queued(self.api, self.discovery, manifest)

    def _missing(self, plan: Steps) -> list[Problem]:
        """What the run counts on and is not there. A run that is left as it is has it."""
        if plan.training.do == "keep":
            return []
        there = plan.training.existing
        replaces = self._run if there is not None and ended(there) is None else ""
        look = Preflight(self.api, self.discovery, needs_of(self.objects), self.say, replaces=replaces)
        problems = look.run()
        self.doubts += look.doubts
        self.failed |= look.failed
        return problems

    def _existing(self) -> dict[str, Manifest]:
        found = ((name_of(one), self._read(one)) for one in self.objects)
        return {name: there for name, there in found if there is not None}

    def _read(self, manifest: Manifest) -> Manifest | None:
        return self.api.read(resource_of(manifest), str(manifest["metadata"]["name"]))

    def _check(self, plan: Steps) -> set[str]:
        """Let the server judge every object without keeping it, and look for what they count on. Raises one error with
        all refusals and all that is missing.

        Returns the names of what it can judge only once others are applied.
        """
        refused: list[ApiError] = []
        later: set[str] = set()
        for step in plan.steps:
            try:
                self._dry_run(step)
            except ApiError as error:
                if error.status == 0 or error.status in (401, 429):
                    raise
                if _needs_its_template(step, plan, error):
                    later.add(name_of(step.manifest))
                else:
                    refused.append(error)
        nowhere = any(lacks_namespace(error.refusal.message) for error in refused)
        problems = [*plan.problems, *([] if nowhere else [*self._missing(plan), *self._secret_of_another(plan)])]
        if refused:
            together = as_error(refused, self.api.place)
            raise type(together)(_once([*problems, *together.problems])) from refused[0]
        if problems:
            raise ConfigError(problems)
        return later

    def _warned(self, step: Step, words: str) -> None:
        """Of pods the server judges the objects that make them by warnings alone."""
        reason = reason_in(words, Asked(name_of(step.manifest)))
        what = reason.cause if reason is not None else f"{name_of(step.manifest)}: the server warns: {words}"
        doubt = Doubt("rights", what, reason.fix if reason is not None else "change what the message names")
        if doubt not in self.doubts:
            self.doubts.append(doubt)

    def _dry_run(self, step: Step) -> None:
        resource, name = resource_of(step.manifest), str(step.manifest["metadata"]["name"])
        warned = partial(self._warned, step)
        try:
            if step.do in ("create", "update"):
                params = {**APPLY, **_DRY}
                body, kind = step.manifest, APPLY_PATCH
                self.api.write("PATCH", resource, name, body, params=params, content_type=kind, warned=warned)
            elif step.do == "replace":  # judged as new; that one of this name exists is found last of all
                self.api.write("POST", resource, name, step.manifest, params={**_STRICT, **_DRY}, warned=warned)
        except ApiError as error:
            if step.do == "replace" and error.status == 409:
                return
            if error.status == 400 and "does not support dry run" in error.refusal.message:
                self.say(f"{name_of(step.manifest)} cannot be checked beforehand: {error.refusal.message}")
                return
            raise

    def _apply_all(self, run: str, plan: Steps, left: Leftovers, later: set[str]) -> None:
        account = _Account(plan)
        try:
            for old in (*left.working, *_replaced(plan)):
                why = "goes with it" if is_template(old) else "has ended" if ended(old) else "is stopped"
                self.say(f"{name_of(old)} {why}; removing it")
                remove(self.api, old, run=run)
                account.removed.append(name_of(old))
            account.removed += remove_beside(self.api, left, self.say)
            plan = _removed(plan)
            if _is_new(plan):
                self._renew_secret(account)
            first = next(one for one in plan.steps if is_training(one.manifest) or is_preparation(one.manifest))
            for step in plan.steps:
                if name_of(step.manifest) in later:
                    self._check_now(step, account)
                if step is first:  # before there are pods, and so results
                    note_user(self.api, self.objects, run, self.say)
                account.doing = step
                self._apply(step)
                account.done.append(step)
                if is_preparation(step.manifest) and self._must_wait(plan, step):
                    wait_until_prepared(self.api, self.discovery, run, step.manifest, self.say)
        except PreparationError:
            raise
        except ApiError as error:
            unsure = error.status == NO_ANSWER or error.status >= 500
            raise account.added_to(as_error(error, self.api.place), unsure=unsure) from error
        except RankzeroError as error:
            raise account.added_to(error) from error
        except KeyboardInterrupt:
            self.say(account.text(unsure=True))
            raise

    def _new_secret(self) -> Manifest:
        """What the pods of this submission know each other by. It is in no rendering: a rendering is no secret."""
        run, mine = self._run, self.objects[-1]["metadata"]
        secret = secret_manifest(submission_name(run), mine["namespace"], {"token": SecretStr(secrets.token_hex(32))})
        secret["metadata"]["labels"] |= {labels.RUN: run}
        return secret

    def _secret_of_another(self, plan: Steps) -> list[Problem]:
        """Said before anything is removed, where Secrets can be read; else they are looked at as they are written."""
        secret = self._new_secret()
        try:
            problem = foreign(secret, self._read(secret)) if _is_new(plan) else None
        except ApiError as error:
            if error.status != 403 and error.status < 500:
                raise
            return []
        return [problem] if problem is not None else []

    def _renew_secret(self, account: _Account) -> None:
        secret = self._new_secret()
        try:
            account.has_made_secret = put_secret(self.api, secret) == "created"
        except ApiError as error:
            if error.status != 403:
                raise
            self.say("not permitted to make a Secret: nodes cannot tell pods of this run from others that ask to join")
            return
        account.secret = name_of(secret)

    def _must_wait(self, plan: Steps, step: Step) -> bool:
        if plan.training.do == "keep" or (step.do == "keep" and step.existing is None):
            return False
        if self.wait:
            return True
        alone = self._on_one_node_at_a_time(step.manifest)
        if alone:
            self.say(
                f"{CLAIM.kind}/{alone} can be on one host at a time, so the preparation is waited for all the same"
            )
        return bool(alone)

    def _on_one_node_at_a_time(self, preparation: Manifest) -> str:
        """A claim that preparation and training would take from each other, each waiting for the other; or nothing."""
        for name in sorted(claims_of(preparation)):
            claim = self.api.read(CLAIM, name) or {}
            modes = at(claim, "spec").get("accessModes") or ()
            if modes and all(mode in ("ReadWriteOnce", "ReadWriteOncePod") for mode in modes):
                return name
        return ""

    def _check_now(self, step: Step, account: _Account) -> None:
        """Judge what could not be judged before; where it is refused, take back what was made for it."""
        try:
            self._dry_run(step)
        except ApiError as error:
            if error.status == 0 or error.status in (401, 429):
                raise
            made = [self._read(one.manifest) for one in reversed(account.done) if one.do == "create"]
            secret = submission_secret(self.api, self._run, self.say) if account.has_made_secret else ()
            for there in (*made, *secret):
                if there is not None:
                    remove(self.api, there, run=None)
                    account.secret = "" if name_of(there) == account.secret else account.secret
            account.done = [one for one in account.done if one.do != "create"]
            account.doing = None
            raise

    def _apply(self, step: Step) -> None:
        for attempt in range(1, TRIES + 1):
            try:
                self._do(step)
                return
            except ApiError as error:
                if error.status != 409 or attempt == TRIES:
                    raise
                step = self._again(step)

    def _again(self, step: Step) -> Step:
        """Something else changed the object meanwhile: look at it once more."""
        there = self._read(step.manifest)
        if there is None:
            return replace(step, do="create", existing=None)
        if step.do in ("create", "replace") and (is_training(step.manifest) or is_preparation(step.manifest)):
            again = decide([step.manifest], {name_of(step.manifest): there})
            if again.problems:
                raise ConfigError(again.problems)
            return again.steps[0]
        return replace(step, existing=there)

    def _do(self, step: Step) -> None:
        name, there = name_of(step.manifest), step.existing
        if step.do == "keep":
            return
        if step.do == "resume" and there is not None:
            words = start_again(self.api, self.discovery, there, step.manifest)
            if words:
                self.say(f"{name} {words}")
                return
        if there is not None and step.do in ("replace", "resume"):  # it came back in between, or is not ours to resume
            remove(self.api, there, run=None)
        resource, title = resource_of(step.manifest), str(step.manifest["metadata"]["name"])
        self.api.write("PATCH", resource, title, step.manifest, params=APPLY, content_type=APPLY_PATCH)
        self.say(f"{name} {_SAY.get(step.do, 'created again')}")


@dataclass(slots=True)
class _Account:
    """What a submit has done so far, for the case that it ends there."""

    plan: Steps
    done: list[Step] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    doing: Step | None = None
    secret: str = ""
    has_made_secret: bool = False
    """Not only given that of an earlier submit another value."""

    def added_to(self, error: RankzeroError, *, unsure: bool = False) -> RankzeroError:
        """The error, and what to know besides."""
        problem = Problem(self.text(unsure=unsure), hint="the same command continues where this one stopped")
        return type(error)([*error.problems, problem])

    def text(self, *, unsure: bool) -> str:
        """`applied: …; not applied: …`; with `unsure`, what was under way may or may not have been applied."""
        finished = [name_of(step.manifest) for step in self.done]
        told = [name_of(step.manifest) for step in self.done if step.do != "keep"]
        told = [self.secret, *told] if self.secret else told
        waiting = [name_of(step.manifest) for step in self.plan.steps if step.do != "keep"]
        under_way = name_of(self.doing.manifest) if self.doing is not None else ""
        perhaps = [under_way] if unsure and under_way in waiting and under_way not in finished else []
        missing = [name for name in waiting if name not in finished and name not in perhaps]
        parts = [
            ("removed", self.removed),
            ("applied", told),
            ("perhaps applied", perhaps),
            ("not applied", missing),
        ]
        return "; ".join(f"{word}: {', '.join(names)}" for word, names in parts if names) or "nothing was applied"


def _is_new(plan: Steps) -> bool:
    """Whether all pods of the run will be new ones. A preparation that is kept has the secret of its own submit."""
    kept = [one for one in plan.steps if one.do == "keep" and one.existing is not None]
    return not any(is_training(one.manifest) or is_preparation(one.manifest) for one in kept)


def _replaced(plan: Steps) -> list[Manifest]:
    """What is to be replaced; what trains before its template, which its controller keeps as long as that is there."""
    found = (one.existing for one in plan.steps if one.do == "replace" and one.existing is not None)
    return sorted(found, key=is_template)


def _removed(plan: Steps) -> Steps:
    """The same, now that what is to be replaced has gone."""
    return replace(plan, steps=tuple(replace(one, existing=None) if one.do == "replace" else one for one in plan.steps))


def _needs_its_template(step: Step, plan: Steps, error: ApiError) -> bool:
    """An object is refused while its template is missing, which it is until it has been applied.

    So is a RoleBinding while its Role is: whoever may not bind any Role is asked for what this one grants.
    """
    kind = kind_of(step.manifest) if is_training(step.manifest) else None
    if step.manifest["kind"] == ROLE_BINDING.kind and error.status == 404:
        needed = ROLE.kind
    elif kind is not None and kind.template is not None and kind.template.missing in error.refusal.message:
        needed = kind.template.resource.kind
    else:
        return False
    return any(one.manifest["kind"] == needed and one.do == "create" for one in plan.steps)


def _once(problems: Sequence[Problem]) -> list[Problem]:
    """A missing namespace is one problem, not one for each object."""
    seen: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        seen.setdefault((problem.what, problem.hint), problem)
    return list(seen.values())
