"""`rankzero eval`: a result beside the model that it was made of, in a table."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote, urlsplit

import typer

from rankzero.cli.data.inputs import ColumnsOption, FormatOption, HeaderOption, column_map
from rankzero.cli.target import BaseOption, TargetArgument
from rankzero.cli.typed import refuse_typed
from rankzero.errors import UsageError

if TYPE_CHECKING:
    from rankzero.api.evaluation import Evaluation
    from rankzero.engine.held_out import Row


_OF_ROWS = ("row_format", "columns", "header", "judge", "judge_model", "max_new_tokens", "answers")
_OF_TASKS = ("task_dir", "limit", "batch_size")


def evaluate(
    context: typer.Context,
    target: TargetArgument,
    data: Annotated[
        list[str] | None, typer.Option("--data", metavar="FILE", help="Rows as in data.eval; repeatable.")
    ] = None,
    row_format: FormatOption = "auto",
    columns: ColumnsOption = None,
    header: HeaderOption = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="A task of lm-eval; repeatable.")
    ] = None,
    task_dir: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the tasks are, as YAML files of lm-eval.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows of each task.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a task that are computed together.")] = 8,
    judge: Annotated[
        str | None, typer.Option(metavar="URL", help="Have a model there grade answers: https://host/v1.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(metavar="NAME", help="Which model there.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 256,
    base: Annotated[
        bool, typer.Option("--base/--no-base", help="Also the run's model as it was before training.")
    ] = True,
    model: BaseOption = None,
    answers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every question and answer here, an object a line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as an object.")] = False,
) -> None:
    """Measure a run's result beside the model that it was made of.

    On own rows by exact match and token F1, and by a judge behind any OpenAI-compatible URL, to which questions and
    answers are then sent (its key: $RANKZERO_JUDGE_API_KEY); on tasks of lm-eval. Kept in eval.json of the run.
    """
    from rankzero.api.evaluation import JudgeSpec, Listener, TaskSpec
    from rankzero.api.evaluation import evaluate as measure
    from rankzero.cli.output import warn_of_changes
    from rankzero.cli.own_file import require_rows

    if (judge is None) != (judge_model is None):
        raise UsageError("a judge is a URL and the name of a model there", where="--judge, --judge-model")
    if not task:
        refuse_typed(context, _OF_TASKS, "this is for tasks of lm-eval", "name one: --task NAME; or leave it out")
    elif not data:
        refuse_typed(context, _OF_ROWS, "this is for own rows", "give a file of them: --data FILE; or leave it out")
    kept = None if answers is None else _Answers(answers)
    for path in () if kept is None else kept.places:
        _require_other_files(path, data or ())
        require_rows(path, "--answers", "answers", ("set", "where", "prompt"))
        _require_place(path)
    listener = Listener(_progress, tell=warn_of_changes)
    if kept is not None:
        listener = replace(listener, answered=kept.so_far)
    shape = {"format": row_format, "columns": column_map(columns), "header": "auto" if header is None else header}
    so_far: list[Evaluation] = []
    listener = replace(listener, measured=so_far.append)
    try:
        found = measure(
            target,
            [{"path": path, **shape} for path in data or ()],
            tasks=TaskSpec(task, task_dir, limit, batch_size) if task else None,
            judge=JudgeSpec(judge, judge_model) if judge and judge_model else None,
            max_new_tokens=max_new_tokens,
            base=base,
            model=model,
            listener=listener,
        )
    except BaseException:  # what was measured before it is told, too
        if so_far:
            _tell(so_far[-1], as_json=as_json)
        if kept is not None:
            kept.tell_of_part()
        raise
    if kept is not None:
        kept.whole(found.rows)
    _tell(found, as_json=as_json)


def _tell(found: Evaluation, *, as_json: bool) -> None:
    typer.echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if as_json else str(found))
    _tell_what_is_missing(found)


def _progress(done: int, total: int) -> None:
    """On a terminal alone, in one line."""
    if sys.stderr.isatty():
        typer.echo(f"\r{done} of {total} answers" + ("\n" if done == total else ""), nl=False, err=True)


def _require_other_files(answers: Path, data: Sequence[str]) -> None:
    """Raise UsageError where the answers would be written over what is asked, or among it."""
    from rankzero.spec.data_paths import parse_data_path

    written = Path(os.path.realpath(answers))
    for path in data:
        text = parse_data_path(path, os.path.exists).path
        read = Path(os.path.realpath(unquote(urlsplit(text).path) if text.startswith("file://") else text))
        among = read.is_dir() and read in written.parents
        if written == read or among or written.match(str(read)):
            raise UsageError("it is read and would be written", where=f"--answers {answers}", hint="another name")


def _require_place(path: Path) -> None:
    """Raise StorageError where answers could not be written in the end; what is there is left as it is."""
    from rankzero.run_dir.atomic import place_given_by, storage_errors, takes_as_it_comes

    if takes_as_it_comes(path):
        return
    path = Path(os.path.realpath(path))
    with place_given_by("--answers"), storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=path.parent).close()
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "a directory stands there")


class _Answers:
    """The file of answers: what stands there is replaced once the command has all that it is to measure. Until then
    they are beside it, in FILE.partial, whatever ends the command. A pipe gets them once, in the end."""

    def __init__(self, path: Path) -> None:
        from rankzero.run_dir.atomic import takes_as_it_comes

        self._path = path
        real = Path(os.path.realpath(path))
        self._part = None if takes_as_it_comes(path) else real.with_name(f"{real.name}.partial")
        self._texts: dict[str, tuple[Sequence[Row], str]] = {}
        """Of each data set: the rows, and their lines. Scores of a row take longer than all else of it."""
        self._has_part = False

    @property
    def places(self) -> Sequence[Path]:
        """What is written."""
        return [self._path] if self._part is None else [self._path, self._part]

    def so_far(self, sets: Mapping[str, Sequence[Row]]) -> None:
        """Those of the data sets that were asked, or of as much of them as was."""
        if self._part is not None:
            self._write(self._part, sets)
            self._has_part = True

    def whole(self, sets: Mapping[str, Sequence[Row]]) -> None:
        """All of them, with their grades."""
        from rankzero.run_dir.atomic import storage_errors

        self._write(self._path, sets)
        if self._part is not None:
            with storage_errors(self._part):
                self._part.unlink(missing_ok=True)

    def tell_of_part(self) -> None:
        """Where answers are that did not become the file."""
        if self._has_part:
            typer.echo(f"note: the answers so far are in {self._part}", err=True)

    def _write(self, path: Path, sets: Mapping[str, Sequence[Row]]) -> None:
        from rankzero.run_dir.atomic import place_given_by, write_text

        with place_given_by("--answers"):
            write_text(path, "".join(self._lines(name, rows) for name, rows in sets.items()))

    def _lines(self, name: str, rows: Sequence[Row]) -> str:
        kept = self._texts.get(name)
        if kept is None or kept[0] is not rows:
            each = [json.dumps({"set": name, **row.to_json()}, ensure_ascii=False) for row in rows]
            kept = self._texts[name] = (rows, "".join(f"{line}\n" for line in each))
        return kept[1]


def _tell_what_is_missing(found: Evaluation) -> None:
    """What the scores do not say of themselves."""
    for name, one in found.sets.items():
        if one["with_reference"] < one["rows"]:
            lacking = one["rows"] - one["with_reference"]
            typer.echo(f"note: {name}: {lacking:,} rows have no answer to compare with", err=True)
        for who in ("base", "tuned"):
            scores = one.get(who, {})
            if scores.get("without_grade"):
                typer.echo(f"note: {name}: the judge gave no grade to {scores['without_grade']:,} of {who}", err=True)
            if scores.get("cut_off"):
                words = f"{scores['cut_off']:,} answers of {who} were cut off at {one['max_new_tokens']} tokens"
                typer.echo(f"note: {name}: {words}; --max-new-tokens allows more", err=True)
