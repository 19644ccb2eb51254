"""MLflow: settings, numbers, how busy the machine is, answers as tables, files, and the adapter as a logged model.
Knows no engine.

Where it is says MLFLOW_TRACKING_URI: a server, a directory, or a SQLite file (`sqlite:///runs.db`);
MLFLOW_EXPERIMENT_NAME says under which experiment. Names and passwords are MLflow's own variables and stay in the
environment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankzero.errors import ConfigError, Problem
from rankzero.run_dir.atomic import MANIFEST, file_sha256, put_new_file, stage_name
from rankzero.run_dir.goodput import Ending
from rankzero.run_dir.paths import RunDir
from rankzero.track.protocol import plotted_as
from rankzero.track.server import Kind, LostRunError, Row, RunFacts, no_address, numbers, place_of, without_login

WANTS_SYSTEM = True
EXPERIMENT = "rankzero"
URI, EXPERIMENT_VARIABLE = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
KEY_TAG, SAVED_TAG = "rankzero.key", "rankzero.saved"
TABLES_TAG = "mlflow.loggedArtifacts"
RESULT_TAG = "rankzero.result"
"""Of a logged model: the hash of the manifest of final/."""
NO_RUN = "RESOURCE_DOES_NOT_EXIST"
MOST_METRICS, MOST_PARAMS = 1000, 100
"""In one request."""
LONGEST_VALUE = 5000
"""Characters of a param or a tag. MLflow cuts off what is longer, and says nothing."""
CUT_LENGTHS = (500, 250)
"""Of a param on older servers, which refuse what is longer, and, the first, in earlier versions of this package."""
_STATUS: dict[Ending | None, str] = {
    None: "RUNNING",
    "finished": "FINISHED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}
_OWN_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # whoever calls tries again, and asks first what has arrived
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # with the login that it has
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # whoever names a directory means it, though MLflow only maintains those
}


def problems(env: Mapping[str, str]) -> list[Problem]:
    """What is missing here before anything could be sent."""
    found = []
    if importlib.util.find_spec("mlflow") is None:
        found.append(Problem("mlflow is not installed", hint="pip install 'rankzero[mlflow]'"))
    found += unset(env)
    if env.get(URI, "").startswith("sqlite:") and importlib.util.find_spec("sqlalchemy") is None:
        found.append(
            Problem(f"{URI} is a database, which MLflow's client alone cannot write", hint="pip install mlflow")
        )
    return found


def unset(env: Mapping[str, str]) -> list[Problem]:
    """The variables that are missing, or keep it from working."""
    hint = f"export {URI}=http://host:5000, or sqlite:////path/to/runs.db"
    return no_address(URI, env) if env.get(URI) else [Problem(f"{URI} is not set", hint=hint)]


def connect(_run_dir: RunDir) -> MlflowRun:
    """The tracking server of the environment. Raises ConfigError."""
    if missing := problems(os.environ):
        raise ConfigError(missing)
    return MlflowRun(os.environ[URI])


class MlflowRun:
    """One run on a server, or in a database."""

    def __init__(self, uri: str) -> None:
        for name, value in _OWN_SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        _make_database(uri)
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._uri, self._run, self._experiment = uri, "", ""
        self.place = place_of(_experiment_name(), uri)
        self._directory: RunDir | None = None
        self._found: Any = None
        """Params and tags that were there when the run was begun."""
        self._steps: dict[str, set[int]] = {}
        """By name, those that were there when it was first asked for since the run was begun."""
        self.link = ""

    def begin(self, run: RunFacts, key: str, there: str | None) -> str:
        """As in `Server`."""
        found = self._known(there) if there else self._find(run, key)
        self._run, self._experiment = found.info.run_id, found.info.experiment_id
        self._directory, self._steps, self._found = run.directory, {}, found.data
        where = f"/#/experiments/{self._experiment}/runs/{self._run}" if self._uri.startswith("http") else ""
        self.link = without_login(f"{self._uri}{where}" if where else f"run {self._run} in {self._uri}")
        return self._run

    def _known(self, there: str) -> Any:
        """Raises LostRunError where the store itself says that it has none; a way to it that leads nowhere does not."""
        from mlflow.exceptions import MlflowException

        try:
            return self._client.get_run(there)
        except MlflowException as error:
            if error.error_code == NO_RUN:
                raise LostRunError(there) from error
            raise

    def _find(self, run: RunFacts, key: str) -> Any:
        """The run that carries the key, made where there is none."""
        name = _experiment_name()
        known = self._client.get_experiment_by_name(name)
        files = _files_beside(self._uri)
        experiment = (
            known.experiment_id if known is not None else self._client.create_experiment(name, artifact_location=files)
        )
        found = self._client.search_runs([experiment], filter_string=f"tags.`{KEY_TAG}` = '{key}'", max_results=1)
        return found[0] if found else self._client.create_run(experiment, tags={KEY_TAG: key}, run_name=run.name)

    def send_settings(self, run: RunFacts) -> None:
        """As in `Server`: params of a run cannot be changed, so a setting that a resume changed becomes a tag, which
        stays when it is as it was again."""
        from mlflow.entities import Param, RunTag

        settings = {name: str(value) for name, value in run.settings.items()}
        params, tags = self._found.params, self._found.tags
        new = [(name, value) for name, value in settings.items() if name not in params]
        there = {name: tags.get(f"now.{name}", params[name]) for name in settings if name in params}
        changed = [(f"now.{name}", settings[name]) for name in there if not _is_kept_as(there[name], settings[name])]
        for kind, entity, values in (("params", Param, new), ("tags", RunTag, changed)):
            for first in range(0, len(values), MOST_PARAMS):
                self._log(kind, entity, dict(values[first : first + MOST_PARAMS]), LONGEST_VALUE)

    def _log(self, kind: str, entity: Callable[[str, str], Any], values: Mapping[str, str], longest: int) -> None:
        """Params or tags, cut to what the server takes of them: older ones say in many ways that a value is too long.
        Raises what MLflow's client raises of a server that takes none, or is away."""
        from mlflow.exceptions import MlflowException

        cut = {name: _cut(value, longest) for name, value in values.items()}
        try:
            self._client.log_batch(self._run, **{kind: [entity(name, value) for name, value in cut.items()]})
        except MlflowException:
            there = getattr(self._client.get_run(self._run).data, kind)
            lacking = {name: value for name, value in values.items() if there.get(name) != cut[name]}
            most = max((len(cut[name]) for name in lacking), default=0)
            shorter = next((length for length in CUT_LENGTHS if length < most), None)
            if lacking and shorter is None:
                raise
            if shorter is not None:
                self._log(kind, entity, lacking, shorter)

    def known(self, kind: Kind, rows: Sequence[Row]) -> set[tuple[int, str]]:
        """As in `Server`: by the whole history of each name, which is asked for once."""
        if kind in {"saves", "samples"}:
            return set()  # a tag and files, which are written over
        asked = {(row["step"], name) for row in rows for name in numbers(row)}
        return {(step, name) for step, name in asked if step in self._steps_of(_name(kind, name))}

    def _steps_of(self, name: str) -> set[int]:
        if name not in self._steps:
            self._steps[name] = {point.step for point in self._client.get_metric_history(self._run, name)}
        return self._steps[name]

    def send(self, kind: Kind, rows: Sequence[Row]) -> None:
        """As in `Server`."""
        from mlflow.entities import Metric

        if kind == "saves":
            self._client.set_tag(self._run, SAVED_TAG, str(rows[-1]["step"]))
            return
        if kind == "samples":
            self._tables(rows)
            return
        metrics = [
            Metric(_name(kind, name), value, int(row["time"] * 1000), row["step"])
            for row in rows
            for name, value in numbers(row).items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + MOST_METRICS])

    def _tables(self, rows: Sequence[Row]) -> None:
        """A table of answers for each step, where MLflow looks for tables."""
        names = [f"samples/step-{row['step']}.json" for row in rows]
        for name, row in zip(names, rows, strict=True):
            columns = list(dict.fromkeys(column for sample in row["samples"] for column in sample))
            data = [[sample.get(column) for column in columns] for sample in row["samples"]]
            text = json.dumps({"columns": columns, "data": data}, ensure_ascii=False)
            self._client.log_text(self._run, text, name)
        there = _tables_listed(self._client.get_run(self._run).data.tags.get(TABLES_TAG, "[]"))
        there += [entry for name in names if (entry := {"path": name, "type": "table"}) not in there]
        while len(text := json.dumps(there)) > LONGEST_VALUE:  # the oldest ones are not listed, and stay as files
            del there[0]
        self._client.set_tag(self._run, TABLES_TAG, text)

    def end(self, ended: Ending | None) -> None:
        """As in `Server`. Files are written over, so that sending them again changes nothing; what takes them may be
        another server, which is none of how the run ended."""
        status = _STATUS[ended]
        if ended is None:
            self._client.update_run(self._run, status=status)
        else:
            self._client.set_terminated(self._run, status=status)
        if ended == "finished" and self._directory is not None:
            run = self._directory
            for path in (run.spec, run.environment, run.report, run.goodput):
                if path.is_file():
                    self._client.log_artifact(self._run, str(path))
            if (run.final / "adapter_config.json").is_file():
                self._adapter(run.final)

    def close(self, ended: Ending | None) -> None:
        """As in `Server`: what was sent is there."""

    def _adapter(self, final: Path) -> None:
        """The adapter in final/ as a logged model of this run; one that an earlier attempt began is gone on with. A run
        that ends again with another result has a model more."""
        filter_string, result = f"source_run_id = '{self._run}'", file_sha256(final / MANIFEST)
        found = self._client.search_logged_models([self._experiment], filter_string=filter_string)
        model = next((model for model in found if model.tags.get(RESULT_TAG) == result), None)
        model = model or self._client.create_logged_model(
            self._experiment, name="adapter", source_run_id=self._run, tags={RESULT_TAG: result}, model_type="adapter"
        )
        if model.status != "READY":
            self._client.log_model_artifacts(model.model_id, str(final))
            self._client.finalize_logged_model(model.model_id, "READY")


def _experiment_name() -> str:
    return os.environ.get(EXPERIMENT_VARIABLE) or EXPERIMENT


def _database(uri: str) -> Path | None:
    """The SQLite file of an address; None where it is none."""
    file = uri.removeprefix("sqlite:///")
    return Path(file).absolute() if file != uri else None


def _make_database(uri: str) -> None:
    """A SQLite file that is not there yet, whole or not at all: this process may be ended at any moment, and MLflow
    neither reads a file that has some of its tables nor makes the others."""
    from mlflow import MlflowClient

    place = _database(uri)
    if place is None or "?" in uri or place.exists() or not place.parent.is_dir():
        return
    staged = place.with_name(stage_name(place.name))
    try:
        MlflowClient(tracking_uri=f"sqlite:///{staged}").search_experiments(max_results=1)
        with suppress(ConfigError):  # another one has made it meanwhile
            put_new_file(staged, place)
    finally:
        staged.unlink(missing_ok=True)


def _files_beside(uri: str) -> str | None:
    """Where files go of runs in a SQLite file: MLflow would take the working directory. None: the server decides."""
    database = _database(uri)
    return (database.parent / "mlflow-files").as_uri() if database is not None else None


def _tables_listed(tag: str) -> list[Any]:
    """What the tag has; nothing of one that was cut off, whoever wrote it."""
    try:
        found = json.loads(tag)
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _cut(value: str, longest: int) -> str:
    """A setting as MLflow keeps it whole: one that is cut ends in the hash of all of it, so that each change shows."""
    if len(value) <= longest:
        return value
    mark = f"… sha256:{hashlib.sha256(value.encode()).hexdigest()}"
    return value[: longest - len(mark)] + mark


def _is_kept_as(there: str, value: str) -> bool:
    """Whether MLflow has this setting: whole, or what a version or a server has left of it."""
    is_cut_without_mark = len(there) in CUT_LENGTHS and value.startswith(there)
    return is_cut_without_mark or there in {_cut(value, longest) for longest in (LONGEST_VALUE, *CUT_LENGTHS)}


def _name(kind: Kind, name: str) -> str:
    return f"system/{name}" if kind == "system" else plotted_as(name)
