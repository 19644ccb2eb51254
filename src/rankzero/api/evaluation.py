"""Measure a result beside the model that it was made of: on own held-out rows, and on tasks of lm-eval. Knows no
terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankzero.api.arguments import require_count
from rankzero.api.data_sources import DataSource, sources_of
from rankzero.api.places import place, places_told
from rankzero.api.results import Tell, require_a_base, run_names_told, warn
from rankzero.errors import DataError, Problem, StorageError, UsageError

if TYPE_CHECKING:
    from rankzero.engine.held_out import Row
    from rankzero.run_dir.paths import RunDir
    from rankzero.run_dir.result import Result
    from rankzero.spec.run_spec import SourceSpec
    from rankzero.spec.tasks import ModelUse


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """A model that grades answers, behind OpenAI's routes. Its key is $RANKZERO_JUDGE_API_KEY, where it needs one."""

    url: str
    model: str


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """Tasks of lm-eval."""

    names: Sequence[str]
    directory: str | None = None
    """Has them, as YAML files; None: those that lm-eval brings."""
    limit: int | None = None
    """Rows of each; None: all."""
    batch_size: int = 8


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears of an evaluation while it goes on."""

    tick: Callable[[int, int], None] = lambda _done, _all: None
    """How many answers there are, of how many."""
    answered: Callable[[Mapping[str, Sequence[Row]]], None] = lambda _rows: None
    """After each data set, every question and answer till then: before any is graded, which may fail. Before an error
    those that there are; of a data set that is not done, some have the base's answer alone. And with grades, before any
    task is asked and before an error of the judge. The rows of a set are the same object until they have grades."""
    measured: Callable[[Evaluation], None] = lambda _found: None
    """Scores of own rows, after each set, before they are graded, and with each set's grades: what follows may fail."""
    tell: Tell = warn


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What was measured. A notebook shows it as a table."""

    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By data set: what was asked, and the scores of `base` and `tuned`."""
    tasks: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Metrics by task of lm-eval, and by `base` and `tuned`."""
    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """Every question and answer, by data set."""
    limit: int | None = None
    """Rows of each task that were asked; None: all."""

    def to_json(self) -> dict[str, Any]:
        """Without the answers."""
        how = {} if self.limit is None else {"limit": self.limit}
        return {"sets": dict(self.sets), "tasks": {name: {**how, **one} for name, one in self.tasks.items()}}

    @property
    def table(self) -> list[tuple[str, str, str, str]]:
        """(set or task, measure, base, tuned); empty where there is none."""
        from rankzero.run_dir.evaluation import measured

        return measured(self.to_json())

    def __str__(self) -> str:
        table = self.table
        lines = [("", "", "base", "tuned"), *table]
        shown = [column for column in range(4) if column != 2 or any(line[column] for line in table)]
        widths = {column: max(len(line[column]) for line in lines) for column in shown}
        return "\n".join(
            "  ".join(f"{line[at]:{'<' if at < 2 else '>'}{widths[at]}}" for at in shown).rstrip() for line in lines
        )

    def _repr_html_(self) -> str:
        import html

        cells = ["".join(f"<td>{html.escape(one)}</td>" for one in line) for line in self.table]
        head = "<tr><th></th><th></th><th>base</th><th>tuned</th></tr>"
        return f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


@places_told()
def evaluate(
    target: str | os.PathLike[str],
    data: DataSource | Sequence[DataSource] = (),
    *,
    tasks: TaskSpec | None = None,
    judge: JudgeSpec | None = None,
    max_new_tokens: int = 256,
    base: bool = True,
    model: str | None = None,
    listener: Listener | None = None,
) -> Evaluation:
    """Ask the result of a run, and with `base` its model before training, and compare with what was wanted. `model` is
    that model, where it is not where the run or an adapter says; unless it is known to be the one that was trained on,
    nothing is kept.

    `data` is rows of any format that training reads: their last answers are the references. A run keeps what was
    measured in eval.json, for its page: scores of own rows before they are graded and before tasks are asked, since
    either may fail. `listener` hears of it while it goes on.

    Raises DataError for rows that are no questions, are longer than the model takes, or have nothing to compare with
    and no judge; ConfigError where there is no result, its base is not the one that was trained on, or no such task;
    AccessError or ServiceError where a judge does not answer, which is asked once before all else.
    """
    from rankzero.api.installed import require_engine
    from rankzero.run_dir.result import find_result, run_at

    require_count(max_new_tokens, "max_new_tokens")
    if tasks is not None and tasks.directory is not None:
        tasks = replace(tasks, directory=str(place(tasks.directory)))
    several = [data] if isinstance(data, str | os.PathLike | Mapping) else list(data)
    if not several and tasks is None:
        raise UsageError("there is nothing to measure with", where="eval", hint="--data FILE, or --task NAME")
    result = find_result(os.fspath(target), "writes", model=model)
    run = run_at(place(target))
    has_base = run is not None or result.adapter is not None
    before = find_result(os.fspath(target), "writes", base=True, model=model) if base and has_base else None
    require_a_base(model, result, base=before is not None)
    listener = listener or Listener()
    listener.tell(result.changed)
    require_engine()
    from rankzero.engine.console import logger
    from rankzero.model.source import is_trained_base, locate, require_trained_base
    from rankzero.run_dir.paths import RunDir

    is_known = True
    for one in (result, before):
        if one is None:
            continue
        if not one.base_is_given:
            require_trained_base(one.model, one.trained_on)
        elif not is_trained_base(locate(one.model), one.trained_on):  # another one is said as it is loaded
            is_known = False
    keep = _keeper(None if run is None or not is_known else RunDir(run), before, tasks)
    if run is not None and not is_known:
        words = "the base that was named is not known to be the one that was trained on"
        logger.warning("[RESULT] the run does not keep what was measured: %s", words)

    def so_far(found: Evaluation) -> None:
        keep(found)
        listener.measured(found)

    with run_names_told(target):
        found = _measured(result, before, several, tasks, judge, max_new_tokens, replace(listener, measured=so_far))
    keep(found)
    return found


def _measured(
    result: Result,
    before: Result | None,
    data: Sequence[DataSource],
    tasks: TaskSpec | None,
    judge: JudgeSpec | None,
    max_new_tokens: int,
    listener: Listener,
) -> Evaluation:
    from contextlib import ExitStack

    from rankzero.data.prompts import read_questions
    from rankzero.engine.chat import open_voices
    from rankzero.engine.harness import find_tasks, run_tasks
    from rankzero.engine.held_out import about, ask_all, graded, require_askable, summed_up, to_compare
    from rankzero.engine.judge import Judge
    from rankzero.model.load import settled_libraries
    from rankzero.run_dir.evaluation import unique

    sources = sources_of(data)
    _require_no_weight(sources)
    questions = [(source.path, read_questions(source, seed=0)) for source in sources]
    if judge is None:
        hint = "rows end with the answer that is wanted; or name a judge"
        _require_answers([(path, [one.reference or one.call for one in prompts]) for path, prompts in questions], hint)
    manager = None if tasks is None else find_tasks(tasks.names, tasks.directory)
    rows: dict[str, Sequence[Row]] = {}
    paths: dict[str, str] = {}
    sets: dict[str, Mapping[str, Any]] = {}
    with settled_libraries, ExitStack() as stack:
        judging = None if judge is None else stack.enter_context(Judge(judge.url, judge.model, os.environ))
        if judging is not None and questions:
            judging.require_answer()
        voices = open_voices(result, before, measures=True)
        require_askable(voices, [prompt for _, prompts in questions for prompt in prompts], max_new_tokens)
        wanted = to_compare(voices, [prompts for _, prompts in questions])
        questions = [(path, prompts) for (path, _), prompts in zip(questions, wanted, strict=True)]
        if judge is None:
            hint = "of calls, only those that the model's chat template writes can be compared; or name a judge"
            _require_answers([(path, [one.reference for one in prompts]) for path, prompts in questions], hint)

        def score(name: str) -> None:
            one = rows[name]
            facts = about(one, max_new_tokens=max_new_tokens, judge=judging if one[0].grades else None)
            sets[name] = {"path": paths[name], **facts, **summed_up(one)}
            listener.measured(scores())

        def scores() -> Evaluation:
            return Evaluation(dict(sets), {}, dict(rows))

        done, total = 0, sum(map(len, wanted)) * len(voices)
        for path, prompts in questions:
            name = unique(Path(path).name, rows)
            paths[name] = _whole_path(path)
            rows[name] = ask_all(
                voices,
                prompts,
                max_new_tokens=max_new_tokens,
                tick=lambda count, before=done: listener.tick(before + count, total),  # type: ignore[misc]
                so_far=lambda some, name=name: listener.answered({**rows, name: some}),  # type: ignore[misc]
            )
            done += len(prompts) * len(voices)
            listener.answered(rows)
            score(name)

        if judging is not None and rows:
            for name, asked in rows.items():
                rows[name] = graded(
                    asked,
                    judging,
                    so_far=lambda some, name=name: listener.answered({**rows, name: some}),  # type: ignore[misc]
                )
                score(name)
            listener.answered(rows)
    if tasks is None:
        return scores()
    by_task = run_tasks(voices, tasks.names, manager, limit=tasks.limit, batch_size=tasks.batch_size)
    return replace(scores(), tasks=by_task, limit=tasks.limit)


def _require_answers(sets: Sequence[tuple[str, Sequence[object]]], hint: str) -> None:
    """Raise DataError for the data sets of which no row has an answer to compare with."""
    what = "no row has an answer to compare with"
    without = [Problem(what, path, hint) for path, wanted in sets if all(answer is None for answer in wanted)]
    if without:
        raise DataError(without)


def _require_no_weight(sources: Sequence[SourceSpec]) -> None:
    """Raise UsageError for the weight of a source, which says how often an epoch has it."""
    hint = "leave it out, or take fewer rows with `sample`"
    what = "each row is asked once: only training has epochs"
    weighted = [Problem(what, f"{source.path} weight", hint) for source in sources if source.weight != 1]
    if weighted:
        raise UsageError(weighted)


def _whole_path(path: str) -> str:
    """As the set is known by it, whatever directory the next command is given in."""
    from rankzero.spec.data_paths import parse_data_path

    local = parse_data_path(path, os.path.exists).place == "local"
    return os.path.abspath(path) if local else path


def _keeper(run_dir: RunDir | None, before: Result | None, tasks: TaskSpec | None) -> Callable[[Evaluation], None]:
    """Keeps in eval.json what was measured, beside what was on other sets and tasks before. A run that cannot be
    written, as somebody else's, does not keep it, which is said once."""
    from rankzero.engine.console import logger
    from rankzero.model.source import locate, weights_fingerprint
    from rankzero.run_dir.evaluation import ENDS
    from rankzero.run_dir.intact import weights_of
    from rankzero.run_dir.of_weights import taught_ends_of

    if run_dir is None:
        return lambda _found: None
    ends = list(taught_ends_of(run_dir.final))
    asked: dict[str, Any] = {ENDS: ends} if ends else {}
    if before is not None:
        base_code: ModelUse | None = "writes" if before.model.trust_remote_code else None
        asked["model"] = weights_fingerprint(locate(before.model).weights, own_code=base_code)
    weights, said = weights_of(run_dir.final), set[str]()

    def keep(found: Evaluation) -> None:
        why = _why_not_kept(run_dir, found, tasks, asked, weights)
        if why and why not in said:
            logger.warning("[RESULT] the run does not keep what was measured: %s", why)
        said.add(why)

    return keep


def _why_not_kept(
    run_dir: RunDir, found: Evaluation, tasks: TaskSpec | None, asked: Mapping[str, Any], weights: Mapping[str, Any]
) -> str:
    """Keep it, or what it says of the base alone where the result has other `weights` by now; says so then. `asked`:
    which base was."""
    from rankzero.run_dir.evaluation import of_the_base
    from rankzero.run_dir.intact import weights_of
    from rankzero.run_dir.lease import exclusive

    new = found.to_json()
    if tasks is not None:
        directory = None if tasks.directory is None else os.path.abspath(tasks.directory)
        how = {"limit": tasks.limit, "directory": directory}
        new["tasks"] = {name: {**how, **scores} for name, scores in found.tasks.items()}
    try:
        with exclusive(run_dir.evaluation_lock):
            is_another = weights_of(run_dir.final) != weights
            _keep(run_dir, of_the_base(new) if is_another else new, asked)
    except StorageError as error:
        return f"{run_dir.evaluation}: {error.problems[0].what}"
    return f"{run_dir.final} is another result by now; scores of the base stay" if is_another else ""


def _keep(run_dir: RunDir, new: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises StorageError."""
    from rankzero.engine.console import logger
    from rankzero.run_dir.atomic import write_json
    from rankzero.run_dir.evaluation import BASE_MODEL, ENDS, kept_scores, may_have_gone_on, of_this_base, together
    from rankzero.run_dir.result import ADAPTER_CONFIG
    from rankzero.run_dir.setting import about_result

    before = kept_scores(run_dir.evaluation)
    ends = {ENDS: asked[ENDS]} if ENDS in asked else {}
    if ends and may_have_gone_on(before) and not (run_dir.final / ADAPTER_CONFIG).is_file():
        words = "[RESULT] %s: scores of the base from before may be of one that went on where the result stops"
        logger.warning(f"{words}; measure those sets again", run_dir.evaluation)
    kept = of_this_base(before, {**about_result(run_dir), **asked})
    write_json(run_dir.evaluation, {**together(kept, new), BASE_MODEL: {**kept[BASE_MODEL], **ends}})
