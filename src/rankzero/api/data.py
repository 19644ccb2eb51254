"""Look at data as training would read it: `rankzero.data.check` and `rankzero.data.show`. Knows no terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rankzero.api.arguments import require_count, require_one_of
from rankzero.api.data_sources import DataSource, path_text, sources_of
from rankzero.api.places import place, places_told
from rankzero.api.tokenizers import (
    TokenizerPlace,
    find_tokenizer,
    load_context,
    load_image_rules,
    load_tokenizer,
    served_prompt,
    stop_tokens,
)
from rankzero.errors import UsageError

if TYPE_CHECKING:
    from rankzero.data.inspect.report import CheckReport
    from rankzero.data.inspect.serving import Comparison
    from rankzero.data.inspect.show import ShownRow
    from rankzero.data.inspect.together import Together
    from rankzero.data.tokens.chat import TokenRules
    from rankzero.errors import Problem
    from rankzero.spec.row_formats import Reasoning
    from rankzero.spec.run_spec import RunSpec, SourceSpec

_SAMPLES = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be looked at."""

    train: Sequence[SourceSpec]
    eval: Sequence[SourceSpec] = ()
    tokenizer: TokenizerPlace | None = None
    chat_template: Path | None = None
    rules: TokenRules | None = None
    seed: int = 0
    image_max_tokens: int | None = None
    together: Together | None = None
    """What a run asks of all rows; None where no run spec says it."""
    offline: bool = False
    """Whether a run spec says that nothing is fetched."""


@dataclass(frozen=True, slots=True)
class DataCheck:
    """What was found. A notebook shows it as a page."""

    report: CheckReport
    serving: Comparison | None
    """Whether the trained tokens are those that serving would show the model; None where no model was named."""

    @property
    def ok(self) -> bool:
        """Whether training would take it."""
        return self.report.ok

    @property
    def problems(self) -> list[Problem]:
        """What is wrong, each with its file and line; those beyond the first hundreds are only counted in `report`."""
        return [] if self.ok else list(self.report.error().problems)

    def raise_if_bad(self) -> None:
        """Raise DataError with all problems."""
        self.report.raise_if_bad()

    def __str__(self) -> str:
        from rankzero.data.inspect.report_text import report_lines

        return "\n".join([*report_lines(self.report, self.serving, 100), *map(str, self.problems)])

    def _repr_html_(self) -> str:
        from rankzero.html.frame import framed

        return framed(self.page())

    def page(self) -> str:
        """Everything that was found, with plots, as one HTML page."""
        from rankzero.data.inspect.report_html import report_html

        files = self.report.files
        names = ", ".join(Path(name).name for name in files[:3]) + (" …" if len(files) > 3 else "")
        return report_html(self.report, self.serving, f"Data check: {names}")


@places_told()
def check(
    data: DataSource | Sequence[DataSource],
    *,
    model: str | os.PathLike[str] | None = None,
    max_length: int = 2048,
    chat_template: str | os.PathLike[str] | None = None,
    assistant_only_loss: bool = True,
    reasoning: Reasoning = "keep",
    images: bool = False,
) -> DataCheck:
    """Look at every row as training would read it. `data` is one file or several, or a run.yaml.

    `model` is a directory or a Hub id, whose tokens are counted and whose template is tried; the next four are as in
    run.yaml below `data`, which says them where `data` is one. `images` decodes every image. Bad rows raise nothing:
    see `ok`, `problems` and `raise_if_bad`. Raises ConfigError where the tokenizer or a run.yaml cannot be read,
    UsageError for both `model` and a run.yaml.
    """
    spec_path = _run_yaml(data, model)
    if spec_path is not None:
        from rankzero.api.specs import load_spec

        return look(wanted_by(load_spec(spec_path)), images=images)
    rules = _rules(max_length, assistant_only_loss, reasoning)
    return look(_wanted(data, model, chat_template, rules), images=images)


@places_told()
def show(
    data: DataSource,
    model: str | os.PathLike[str] | None = None,
    *,
    rows: int = 3,
    line: int | None = None,
    max_length: int = 2048,
    chat_template: str | os.PathLike[str] | None = None,
    assistant_only_loss: bool = True,
    reasoning: Reasoning = "keep",
) -> list[ShownRow]:
    """The first `rows` rows, or the one at `line`, token by token as `model` gets them; `print(row)` marks the trained
    tokens with ⟦brackets⟧. A run.yaml brings its model and rules, and rows of its first source are shown.

    Raises DataError at a row that cannot be read, ConfigError for a tokenizer that cannot, UsageError where there is no
    model, or both `model` and a run.yaml.
    """
    require_count(rows, "rows")
    if line is not None:
        require_count(line, "line")
    spec_path = _run_yaml(data, model)
    if spec_path is not None:
        from rankzero.api.specs import load_spec

        return shown(wanted_by(load_spec(spec_path)), line=line, rows=rows)
    if model is None:
        raise UsageError("it takes a model to say what its tokens are", where="model", hint="a directory, or a Hub id")
    rules = _rules(max_length, assistant_only_loss, reasoning)
    return shown(_wanted(data, model, chat_template, rules), line=line, rows=rows)


def _run_yaml(data: object, model: object) -> str | None:
    """The path of a run.yaml that was given as data. Raises UsageError where a model was given too."""
    if not isinstance(data, str | os.PathLike) or not os.fspath(data).endswith((".yaml", ".yml")):
        return None
    if model is not None:
        raise UsageError("a run.yaml names its model", where="model", hint="leave it out, or name the data file")
    return os.fspath(data)


def _rules(max_length: int, assistant_only_loss: bool, reasoning: Reasoning) -> TokenRules:
    from rankzero.api.installed import require_data

    require_data()
    from rankzero.data.tokens.chat import TokenRules
    from rankzero.spec.row_formats import Reasoning

    require_count(max_length, "max_length", least=8)  # as data.max_length
    require_one_of(reasoning, get_args(Reasoning), "reasoning")
    return TokenRules(max_length=max_length, assistant_only_loss=assistant_only_loss, reasoning=reasoning)


def _wanted(
    data: DataSource | Sequence[DataSource],
    model: str | os.PathLike[str] | None,
    chat_template: str | os.PathLike[str] | None,
    rules: TokenRules,
) -> Wanted:
    from rankzero.spec.run_spec import ModelSpec

    sources = sources_of(data)
    if not sources:
        raise UsageError("there is no data", where="data", hint="name a file, or several")
    tokenizer = None if model is None else find_tokenizer(ModelSpec(name=path_text(model, "model")), "model")
    return Wanted(sources, (), tokenizer, None if chat_template is None else place(chat_template), rules)


def wanted_by(spec: RunSpec) -> Wanted:
    """All that a run spec reads. Raises UsageError for a stream, or ConfigError for its tokenizer."""
    from rankzero.api.installed import require_data

    require_data()
    from rankzero.data.cache.training_data import parts_of, token_rules
    from rankzero.data.inspect.together import Together

    if spec.data.streaming:
        hint = "name one of its files and --model; or add data.streaming=false, which fetches and looks at all of them"
        raise UsageError("rows of a stream are looked at as they are trained", where="data.streaming", hint=hint)
    parts = parts_of(spec.data)
    template = None if spec.data.chat_template is None else Path(spec.data.chat_template)
    place = find_tokenizer(spec.model)
    return Wanted(
        [_as_read(source) for source in parts["train"]],
        [_as_read(source) for source in parts.get("eval", ())],
        place,
        template,
        token_rules(spec),
        spec.train.seed,
        spec.data.image_max_tokens,
        Together.of(spec),
        offline=spec.model.local_files_only,
    )


def _as_read(source: SourceSpec) -> SourceSpec:
    """With its path as a person reads it, since reports name its files; it is looked at from here alone."""
    from rankzero.spec.nearby import shown

    return source.model_copy(update={"path": shown(source.path)})


def look(
    wanted: Wanted,
    *,
    images: bool = False,
    quarantine: Path | None = None,
    keep: int | None = None,
    compare: bool = True,
) -> DataCheck:
    """Read everything that is wanted. `quarantine`: where bad rows are written as they stand; `keep`: how many problems
    are kept; `compare`: look also at how it would be served. Raises StorageError where rows cannot be set aside."""
    from rankzero.data.inspect.validate import CheckOptions
    from rankzero.data.inspect.validate import check as check_rows
    from rankzero.data.progress import show_progress
    from rankzero.data.rows.problems import KEPT

    tokens, tokenizer = None, None
    if wanted.tokenizer is not None and wanted.rules is not None:
        from rankzero.data.inspect.token_counts import Tokens
        from rankzero.data.tokens.tokenizer import take_apart

        tokenizer = load_tokenizer(wanted.tokenizer, wanted.chat_template)
        rules = _with_images(wanted.rules, wanted, tokenizer)
        tokens = Tokens(take_apart(tokenizer, rules.trains), rules)
    options = CheckOptions(
        tokens=tokens,
        images=images,
        quarantine=quarantine,
        offline=wanted.offline,
        seed=wanted.seed,
        samples=_SAMPLES if tokens and compare else 0,
        keep=KEPT if keep is None else keep,
        together=wanted.together if tokens and compare else None,
    )
    report = check_rows(wanted.train, options, evaluation=wanted.eval, show=partial(show_progress, "checking"))
    serving = None
    if tokens is not None and compare and wanted.tokenizer is not None:
        from rankzero.data.inspect.serving import compare as compare_rows

        serve = partial(served_prompt, tokenizer)
        stops = stop_tokens(tokenizer, wanted.tokenizer)
        serving = compare_rows(report.samples, tokens.parts, tokens.rules, serve, stops)
    if not report.untrainable and (too_long := _too_long(report, wanted)):
        report = replace(report, untrainable=(too_long,))
    return DataCheck(report, serving)


def shown(wanted: Wanted, *, line: int | None, rows: int) -> list[ShownRow]:
    """Rows of the first source, token by token."""
    from rankzero.api.installed import require_tokenizer

    require_tokenizer()
    from rankzero.data.inspect.show import rows_to_show

    assert wanted.tokenizer is not None and wanted.rules is not None
    tokenizer = load_tokenizer(wanted.tokenizer, wanted.chat_template)
    rules = _with_images(wanted.rules, wanted, tokenizer)
    seed, offline = wanted.seed, wanted.offline
    return list(rows_to_show(wanted.train[0], tokenizer, rules, line=line, count=rows, seed=seed, offline=offline))


def _with_images(rules: TokenRules, wanted: Wanted, tokenizer: Any) -> TokenRules:
    """Rules that know how images stand in the text, where the model that is meant sees any."""
    if wanted.tokenizer is None or rules.trains == "label":
        return rules
    vision = load_image_rules(wanted.tokenizer, tokenizer, wanted.chat_template, wanted.image_max_tokens)
    return replace(rules, vision=vision)


def _too_long(report: CheckReport, wanted: Wanted) -> Problem | None:
    """Rows beyond the model's context, which training refuses."""
    tokens, rules = report.counts.tokens, wanted.rules
    if tokens is None or rules is None or wanted.tokenizer is None:
        return None
    context = load_context(wanted.tokenizer)
    if context is None or context.extended or rules.max_length <= context.length:
        return None
    from rankzero.model.context import beyond_context

    longest = {length: count for length, count in tokens.lengths.items() if length > context.length}
    if rules.over_length == "drop":
        longest = {length: count for length, count in longest.items() if length <= rules.max_length}
    if not longest:
        return None
    where = ", ".join(source.path for source in (*wanted.train, *wanted.eval))
    kept = min(max(longest), rules.max_length)
    return beyond_context(context, sum(longest.values()), tokens.examples, kept, where)
