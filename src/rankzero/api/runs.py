"""A run of this machine as a value: its numbers, checkpoints, result and page. Reads its directory; trains nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from rankzero.api.places import places_told
from rankzero.errors import ConfigError

if TYPE_CHECKING:
    from rankzero.api.data_sources import DataSource
    from rankzero.api.evaluation import Evaluation, TaskSpec
    from rankzero.engine.chat import Chat
    from rankzero.engine.exporting import Exported
    from rankzero.model.merge import Merged
    from rankzero.run_dir.paths import RunDir
    from rankzero.run_dir.view import RunView
    from rankzero.spec.run_spec import RunSpec
    from rankzero.spec.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A saved state of a run: `path`/model is an adapter as peft has it, or a whole model's weights as training holds
    them, which `rankzero.export` makes a model of."""

    step: int
    path: Path
    best: bool
    """Whether `best` points at it."""
    last: bool


@dataclass(frozen=True, slots=True)
class Page:
    """A run's report.html, which notebooks show in place."""

    path: Path

    def _repr_html_(self) -> str:
        from rankzero.html.frame import framed

        return framed(self.path.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory. Everything is read when it is asked for, so a run that goes on can be looked at again; where the
    directory is gone meanwhile, that raises ConfigError."""

    path: Path
    """Absolute: it is the same run wherever the program goes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @classmethod
    @places_told()
    def open(cls, run: str | os.PathLike[str]) -> Run:
        """The run in a directory, or the one of this name in ./runs. Raises ConfigError where there is none."""
        from rankzero.run_dir.known import is_run
        from rankzero.run_dir.named import DEFAULT_OUTPUT, require_target, untrained
        from rankzero.spec.nearby import near

        given = os.path.expanduser(run)
        if is_run(Path(given)):
            return cls(Path(given))
        if (named := Path(DEFAULT_OUTPUT) / given) != Path(given) and is_run(named):
            return cls(named)
        require_target(str(given))
        if (Path(given) / "run.yaml").is_file():
            raise untrained(Path(given))
        if Path(given).exists():
            raise ConfigError("this is no run directory: run.yaml is missing", where=str(given))
        close = near(Path(DEFAULT_OUTPUT) / given)
        hint = f"did you mean {close}?" if close else "`rankzero list` shows the runs of this machine"
        raise ConfigError("there is no such run here", where=str(given), hint=hint)

    @property
    def name(self) -> str:
        return os.path.basename(os.path.realpath(self.path))

    @property
    @places_told()
    def spec(self) -> RunSpec:
        """What it was given, with absolute paths. Raises ConfigError where run.yaml cannot be read."""
        from rankzero.run_dir.result import spec_of

        return spec_of(self._directory.root)

    @property
    @places_told()
    def status(self) -> RunView:
        """How far it is and how it ended: `phase`, `step`, `total_steps`, `loss`, `eval_loss`, `error` …"""
        from rankzero.run_dir.view import view_run

        return view_run(self._directory.root)

    @property
    @places_told()
    def summary(self) -> dict[str, Any]:
        """report.json: steps, losses, tokens, times. Empty while the run has not ended. Raises ConfigError or
        StorageError where it cannot be read."""
        from rankzero.directories import is_file
        from rankzero.run_dir.unread import read_errors

        report = self._directory.report
        try:
            with read_errors(report):
                value = json.loads(report.read_text(encoding="utf-8")) if is_file(report) else {}
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    @places_told()
    def metrics(self) -> Any:
        """One row a step: a pandas DataFrame where pandas is installed, else a list of dicts.

        A step that was made again after a restart is there once, as it was made last. Raises ConfigError or
        StorageError where they cannot be read.
        """
        rows = self._metrics()
        try:
            from pandas import DataFrame
        except ImportError:
            return rows
        return DataFrame(rows)

    def _metrics(self) -> list[dict[str, Any]]:
        from rankzero.directories import is_file
        from rankzero.run_dir.unread import read_errors
        from rankzero.run_dir.view import row_of

        file, newest = self._directory.metrics, dict[int, dict[str, Any]]()
        with read_errors(file):
            if not is_file(file):
                return []
            with file.open("rb") as lines:
                for line in lines:
                    row = row_of(line)
                    if row is not None and isinstance(row.get("step"), int):
                        newest[row["step"]] = {**newest.get(row["step"], {}), **row}
        return [newest[step] for step in sorted(newest)]

    @property
    @places_told()
    def checkpoints(self) -> list[Checkpoint]:
        """Those that are there, the oldest first. Their bytes are not verified; a resume does that."""
        run_dir = self._directory
        best, last = run_dir.read_link("best"), run_dir.read_link("last")
        return [
            Checkpoint(step, run_dir.checkpoint(step), step == best, step == last)
            for step in reversed(run_dir.committed_steps())
        ]

    @property
    @places_told()
    def result(self) -> Path:
        """final/: the adapter or model that the run is for. Raises ConfigError while it is not there."""
        from rankzero.run_dir.result import FINAL

        final = self._directory.root / FINAL
        if not final.is_dir():
            hint = "train it again; it continues from the newest checkpoint"
            raise ConfigError("this run has no result yet: final/ is missing", where=str(self.path), hint=hint)
        return final

    @overload
    def generate(
        self, prompts: str, *, images: Sequence[str] = ..., max_new_tokens: int = ..., base: bool = ...
    ) -> str: ...
    @overload
    def generate(
        self,
        prompts: list[str] | tuple[str, ...],
        *,
        images: Sequence[str] = ...,
        max_new_tokens: int = ...,
        base: bool = ...,
    ) -> list[str]: ...
    def generate(
        self,
        prompts: str | list[str] | tuple[str, ...],
        *,
        images: Sequence[str] = (),
        max_new_tokens: int = 128,
        base: bool = False,
    ) -> str | list[str]:
        """The result's greedy reply to a prompt, or to each of several. `base`: of the model before training.

        Loads the model each time; one call with many prompts loads it once. Raises as `rankzero.generate`.
        """
        from rankzero.api.results import generate

        asked = [prompts] if isinstance(prompts, str) else prompts
        replies = generate(str(self.path), asked, images=images, max_new_tokens=max_new_tokens, base=base)
        return replies[0] if isinstance(prompts, str) else replies

    def chat(self, sampling: Sampling | None = None, *, system: str | None = None, compare: bool = False) -> Chat:
        """A conversation with the result, loaded once. `compare`: also with the model as it was before training."""
        from rankzero.api.results import chat

        return chat(str(self.path), sampling, system=system, compare=compare)

    @places_told()
    def predict(self, texts: Iterable[str]) -> list[Mapping[str, float]]:
        """Of a classifier: the probability of each class, for each text."""
        from rankzero.api.results import predict

        return [found.probabilities for found in predict(str(self.path), texts)]

    def merge(self, output: str | os.PathLike[str], *, base_weights: Literal["trained", "files"] = "trained") -> Merged:
        """Write the adapter and its base as one plain model to a directory that does not exist yet.

        Of a base that was packed in 4 or 8 bits, `trained` takes its weights as they were trained on, `files` those of
        its files. Raises ConfigError, or StorageError.
        """
        from rankzero.api.results import merge

        return merge(str(self.path), output, base_weights=base_weights)

    def export(self, output: str | os.PathLike[str], *, shard_size: str = "5GB") -> Exported:
        """Write the result as one plain model to `output`, which must not exist. Raises as `rankzero.export`."""
        from rankzero.api.exports import export

        return export(self.path, output, shard_size=shard_size)

    def evaluate(self, data: DataSource | Sequence[DataSource] = (), *, tasks: TaskSpec | None = None) -> Evaluation:
        """The result beside its base, on rows or tasks; `rankzero.evaluate` has a judge and more."""
        from rankzero.api.evaluation import evaluate

        return evaluate(str(self.path), data, tasks=tasks)

    @places_told()
    def report(self) -> Page:
        """Make the run's page, report.html: curves, time, data, samples, cost. A notebook shows it in place."""
        from rankzero.api.installed import require_pages

        require_pages()
        from rankzero.report.page import write_page

        return Page(write_page(self._directory))

    @property
    def _directory(self) -> RunDir:
        """Raises ConfigError where there is none any more."""
        from rankzero.run_dir.paths import RunDir

        run_dir = RunDir(self.path)
        if not run_dir.spec.is_file():
            hint = "was it moved or deleted? rankzero.Run.open finds a run by its path"
            raise ConfigError("there is no run here any more: run.yaml is missing", where=str(self.path), hint=hint)
        return run_dir
