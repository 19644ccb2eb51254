"""Which runs use a claim: noted on the claim itself, where it outlives all that mounted it. Deletes none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankzero.launch import labels
from rankzero.launch.backend import Say
from rankzero.launch.backends.kubernetes.api import MERGE_PATCH, WRITE, Api, list_each
from rankzero.launch.backends.kubernetes.discover import Discovery
from rankzero.launch.backends.kubernetes.errors import ApiError
from rankzero.launch.backends.kubernetes.resources import (
    CLAIM,
    CONFIG_MAP,
    TEMPLATES,
    TRAINING,
    annotation,
    claims_of,
    label,
    name_of,
)
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import is_smoke_test
from rankzero.launch.pods import parse_pod
from rankzero.launch.resource import POD, Resource
from rankzero.wording import listed

_REFUSALS = (400, 403, 404, 409, 413, 422)
"""Statuses of an answer that asking again would not change."""


def note_user(api: Api, objects: Sequence[Manifest], run: str, say: Say) -> None:
    """Note on the claims that a run's pods mount that it uses them, those alone that rankzero made: no other is ever
    deleted. By a key for each run, so that two who do so at once lose nothing of each other. A run that may not note it
    starts all the same; one that leaves no results notes nothing. That all is noted says its ConfigMap. Raises ApiError
    where the server does not answer."""
    configs = [str(one["metadata"]["name"]) for one in objects if one["kind"] == CONFIG_MAP.kind]
    claims = [] if is_smoke_test(objects) else sorted(claims_of(objects))
    noted = all([_is_noted(api, name, run, say) for name in claims])
    for name in configs:
        there = api.read(CONFIG_MAP, name)
        if there is not None and _has_noted(there) != noted:
            _annotate(api, CONFIG_MAP, name, labels.CLAIMS_NOTED, "" if noted else None)


def _is_noted(api: Api, name: str, run: str, say: Say) -> bool:
    """Note it where it is not and needs to be; False where that is refused."""
    try:
        claim = api.read(CLAIM, name)
        if claim is not None and _is_ours(claim) and run not in _users(claim):
            _note(api, name, run, "")
    except ApiError as error:
        if error.status not in _REFUSALS:
            raise
        cannot = "not permitted to" if error.status == 403 else "could not"
        what = f"{cannot} note on {CLAIM.kind}/{name} that this run uses it"
        say(f"{what}: `delete --claims` of another run may remove it ({error.refusal.message})")
        return False
    return True


def noted_claims(api: Api, run: str) -> list[str] | None:
    """Names of the claims on which it is noted; None where claims may not be listed."""
    try:
        return [str(one["metadata"]["name"]) for one in api.list(CLAIM)[0] if run in _users(one)]
    except ApiError as error:
        if error.status != 403:
            raise
        return None


def deletable_claims(api: Api, discovery: Discovery, run: str, mounted: set[str], say: Say) -> Iterator[Manifest]:
    """Claims that we made, that this run mounted, and that no other run or pod does or did. Of one that others keep,
    this run is noted no longer. Whoever is given one deletes it as it is, if at all: each is judged when its turn
    comes, and once more where it was changed since, for until one is gone others may be put to use. Raises ApiError."""
    for name in sorted(mounted):
        first = ""
        while (claim := _deletable(api, discovery, run, name, say)) is not None:
            uid = str(claim["metadata"]["uid"])
            if uid != (first or uid):
                break  # somebody has made it anew
            first = uid
            yield claim


def _deletable(api: Api, discovery: Discovery, run: str, name: str, say: Say) -> Manifest | None:
    """The claim, where it can go as it is. Read before its users are: what changes from then on changes it too."""
    claim = next((one for one in api.list(CLAIM)[0] if one["metadata"]["name"] == name), None)
    if claim is None:
        return None
    if not _is_ours(claim):
        say(f"{CLAIM.kind}/{name} was not made by rankzero; kept")
    elif other := _Users(api, discovery, run).of(claim):
        all_the_same = f"`{api.place.kubectl} delete pvc {name} -n {api.place.namespace}` removes it all the same"
        say(f"{CLAIM.kind}/{name} {other}; kept ({all_the_same})")
        _forget(api, claim, run)
    else:
        return claim
    return None


class _Users:
    """Who else uses claims: other runs, also such as are over, and whatever pods have not ended."""

    def __init__(self, api: Api, discovery: Discovery, run: str) -> None:
        self._run = run
        self._mounting: dict[str, str] = {}
        known = {run}
        kinds = [one for one in (*TEMPLATES, *TRAINING.values()) if discovery.serves(one)]
        for one in [*api.list(POD)[0], *list_each(api, kinds)]:
            owner = label(one, labels.RUN)
            is_over = owner is None and one["kind"] == POD.kind and parse_pod(one).is_over
            if owner != run and not is_over:
                known |= {owner} if owner else set()
                self._mounting |= dict.fromkeys(claims_of(one), name_of(one))
        unnoted = _runs_that_did_not_note(api)
        self._unknown = None if unnoted is None else sorted(unnoted - known)
        """Runs of which nothing says what they mounted: they might not note it, or were not submitted by `submit`.
        None: whether there are any may not be looked at."""

    def of(self, claim: Manifest) -> str:
        """Who uses it besides the run, in words; nothing where nobody does."""
        name = str(claim["metadata"]["name"])
        if name in self._mounting:
            return f"is also used by {self._mounting[name]}"
        others = [user for user in _users(claim) if user != self._run]
        if others:
            return f"is also used by the {_named(others)}, whose results may be on it"
        if self._unknown is None:
            return f"may be used by other runs, whose {CONFIG_MAP.kind}s you are not permitted to list"
        if self._unknown:
            return f"may be used by the {_named(self._unknown)}, of which only its ConfigMap is left"
        return ""


def _runs_that_did_not_note(api: Api) -> set[str] | None:
    """Those whose ConfigMap does not say that they did; None where ConfigMaps may not be listed."""
    try:
        found = api.list(CONFIG_MAP, {"labelSelector": labels.RUN})[0]
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return {str(label(one, labels.RUN)) for one in found if not _has_noted(one)}


def _has_noted(config: Manifest) -> bool:
    return annotation(config, labels.CLAIMS_NOTED) is not None


def _named(runs: Sequence[str]) -> str:
    return f"run{'s' if len(runs) > 1 else ''} {listed(runs)}"


def _is_ours(claim: Manifest) -> bool:
    return label(claim, labels.MANAGED_BY) == "rankzero"


def _users(claim: Manifest) -> list[str]:
    """Object names of the runs that are noted on it."""
    notes = claim["metadata"].get("annotations") or {}
    return sorted(key.removeprefix(labels.USED_BY) for key in notes if key.startswith(labels.USED_BY))


def _note(api: Api, claim: str, run: str, value: str | None) -> None:
    _annotate(api, CLAIM, claim, f"{labels.USED_BY}{run}", value)


def _annotate(api: Api, resource: Resource, name: str, key: str, value: str | None) -> None:
    body: Manifest = {"metadata": {"annotations": {key: value}}}
    api.write("PATCH", resource, name, body, params=WRITE, content_type=MERGE_PATCH)


def _forget(api: Api, claim: Manifest, run: str) -> None:
    """Its results are given up: they keep the claim no longer."""
    if run not in _users(claim):
        return
    try:
        _note(api, str(claim["metadata"]["name"]), run, None)
    except ApiError as error:
        if error.status not in _REFUSALS:
            raise
