"""eval.json: as rows of a table, and with more in it. Pure; what may have been edited is read, so nothing is required.

{"base_model": {"model", "tokenizer", "stop_ids"},
 "sets": {name: {"path", "rows", "with_reference", …, "base": {"exact_match", "token_f1", "judge", …}, "tuned": {…}}},
 "tasks": {name: {"limit", "directory", "base": {metric: value}, "tuned": {…}}}}

A task is there as `name (limit 200)`, too, where its first rows were asked beside all of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rankzero.run_dir.atomic import not_read_errors

WHO = ("base", "tuned")
BASE_MODEL = "base_model"
"""Which model `base` is: its identities, as manifests of results and checkpoints have them; null where unknown."""
ENDS = "stop_ids"
"""Among them, the tokens that its answers ended with, those of the result; missing where unknown."""
MEASURES = {"exact_match": "exact match", "token_f1": "token F1", "judge": "judge, of 10"}
"""Of an own set, in the order of the table."""


_OF_ONE_TIME = frozenset({*WHO, "path", "time"})
"""What of a set or task does not say how it was measured."""
_JUDGE = ("judge_model", "judge_best")
_GRADES = frozenset({"judge", "judged", "without_grade"})
"""Of who answered: what a judge has said. The other scores come of the answers alone."""


def kept_scores(path: Path) -> dict[str, Any]:
    """What is in an eval.json; {} where there is none, or nothing that is one. Raises NotReadError where it cannot be
    read now: whoever writes it anew would drop what is in it."""
    with not_read_errors(path):
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
    return kept if isinstance(kept, dict) else {}


def measured(found: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(set or task, measure, base, tuned); empty where there is none."""
    rows = []
    for name, one in _maps(found, "sets"):
        count = one.get("rows")
        label = f"{name} ({count:,} rows)" if isinstance(count, int) else name
        for key, words in MEASURES.items():
            values = [_number(one, who, key) for who in WHO]
            if any(value is not None for value in values):
                base, tuned = (_shown(value, share=key != "judge") for value in values)
                rows.append((label, words, base, tuned))
    for name, one in _maps(found, "tasks"):
        metrics = dict.fromkeys(metric for who in WHO for metric in _inner(one, who))
        for metric in metrics:
            base, tuned = (_shown(_number(one, who, metric), share=False) for who in WHO)
            rows.append((_task_label(name, one), metric, base, tuned))
    return rows


def _task_label(name: str, one: Mapping[str, Any]) -> str:
    """With how many rows it was asked, where these were not all."""
    limit = one.get("limit")
    return name if limit is None else f"{name.removesuffix(_limited(limit))}{_limited(limit)}"


def _limited(limit: object) -> str:
    return f" (limit {limit})"


def together(kept: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was measured before, with what was measured now. A set takes the place of that of its path (sets of one path
    in their order), whatever others of its name there are, or of one of its file's name that was asked the same
    elsewhere; scores of the model before training stay where the same was asked without it. Some rows of a task do not
    take the place of all of them."""
    sets, tasks = dict(_maps(kept, "sets")), dict(_maps(kept, "tasks"))
    placed: set[str] = set()
    for name, one in _maps(new, "sets"):
        of_path = (other for other, before in sets.items() if before.get("path") == one.get("path"))
        moved = (other for other, before in sets.items() if _is_moved(before, one))
        same = next((other for other in (*of_path, *moved) if other not in placed), None)
        if same is None and name in sets and "path" not in sets[name]:  # kept by an older version, which knew no other
            same = name
        place = unique(name, sets) if same is None else same
        sets[place] = _with_what_stays(one, sets.get(place, {}))
        placed.add(place)
    for name, one in _maps(new, "tasks"):
        place = _place_of(name, one.get("limit"), tasks)
        tasks[place] = _with_base(one, tasks.get(place, {}))
    return {"sets": sets, "tasks": tasks}


def _is_moved(before: Mapping[str, Any], one: Mapping[str, Any]) -> bool:
    """Whether two sets are of one file that lies elsewhere now: of its name, with the same questions and answers."""
    names = [os.path.basename(str(each.get("path", ""))) for each in (before, one)]
    return names[0] == names[1] and before.get("asked") == one.get("asked") is not None


def _with_base(one: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    if "base" in one or "base" not in before or _how(one) != _how(before):
        return one
    return {**one, "base": before["base"]}


def _with_what_stays(one: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    """A set with what it has from before where it was asked the same: scores of the base that was not asked now, and
    grades of this judge, or of any where none has graded yet, of answers that score the same."""
    if _how(one) != _how(before):
        return one
    is_same_judge = _JUDGE[0] not in one or all(one.get(key) == before.get(key) for key in _JUDGE)
    whose = {}
    for who in WHO:
        was = _inner(before, who)
        if who in one or (who == "base" and who in before):
            now = _inner(one, who) if who in one else _ungraded(was)
            whose[who] = {**was, **now} if is_same_judge and _ungraded(now) == _ungraded(was) else now
    is_graded = any(scores.keys() & _GRADES for scores in whose.values())
    return {**({key: before[key] for key in _JUDGE if key in before} if is_graded else {}), **one, **whose}


def _ungraded(scores: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in scores.items() if key not in _GRADES}


def _place_of(name: str, limit: object, tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """Of a task: where it stands, and of some rows beside all of them."""
    if limit is None:
        return name
    beside = f"{name}{_limited(limit)}"
    is_all = name in tasks and tasks[name].get("limit") is None
    return beside if beside in tasks or is_all else name


def _how(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in measured.items() if key not in _OF_ONE_TIME and key not in _JUDGE}


def unique(name: str, taken: Collection[str]) -> str:
    """The name, or with a number where it is taken, as of files of one name in several directories."""
    if name not in taken:
        return name
    return next(f"{name} ({n})" for n in range(2, len(taken) + 3) if f"{name} ({n})" not in taken)


def _maps(found: Mapping[str, Any], part: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(str(name), one) for name, one in _inner(found, part).items() if isinstance(one, Mapping)]


def _inner(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _number(one: Mapping[str, Any], who: str, key: str) -> float | None:
    value = _inner(one, who).get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shown(value: float | None, *, share: bool) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if share else f"{value:.4g}"


def of_this_base(found: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What stays where the base is that of a result's or a checkpoint's manifest: scores of another one, which the run
    began from before a change was accepted, are left out. What does not say its base may be of this one."""
    known = _inner(found, BASE_MODEL)
    base = {name: manifest.get(name) or known.get(name) for name in ("model", "tokenizer")}
    ends, ends_now = known.get(ENDS), manifest.get(ENDS)
    stopped_elsewhere = ends is not None and ends_now is not None and ends != ends_now
    is_another = stopped_elsewhere or any(known.get(name) not in (None, value) for name, value in base.items())
    if (ends := ends_now if is_another else ends) is not None:  # of scores that do not say it, it stays unknown
        base[ENDS] = ends
    return {**_without(found, (WHO[0],) if is_another else ()), BASE_MODEL: base}


def may_have_gone_on(found: Mapping[str, Any]) -> bool:
    """Whether there are scores of a base of which nothing says that it stopped where the result does."""
    has_base = any(WHO[0] in one for part in ("sets", "tasks") for _, one in _maps(found, part))
    return has_base and not _inner(found, BASE_MODEL).get(ENDS)


def of_the_base(found: Mapping[str, Any]) -> dict[str, Any]:
    """What stays where the result is another one: what the model before training scored."""
    kept = _without(found, (WHO[1],))
    measured = {part: {name: one for name, one in ones.items() if WHO[0] in one} for part, ones in kept.items()}
    return {**measured, BASE_MODEL: found.get(BASE_MODEL)}


def _without(found: Mapping[str, Any], who: Collection[str]) -> dict[str, dict[str, dict[str, Any]]]:
    return {
        part: {name: {key: value for key, value in one.items() if key not in who} for name, one in _maps(found, part)}
        for part in ("sets", "tasks")
    }
