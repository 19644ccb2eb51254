"""Langfuse: a trace for a run, an observation for each logged step and each checkpoint, a generation for each answer to
a prompt, scores for these and for each measure of an evaluation. Knows no engine.

Sent as OTLP over HTTP in its JSON form to the endpoint that Langfuse documents for it, scores to its public API. Every
id is made from the run's own key, so that what is sent twice is written over. LANGFUSE_HOST says where,
LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY say who; they stay in the environment.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rankzero.errors import ConfigError, Problem, ServiceError
from rankzero.run_dir.goodput import Ending, read_starts
from rankzero.run_dir.paths import RunDir
from rankzero.spec.tasks import MEASURES
from rankzero.track.server import Kind, NoAnswerError, Row, RunFacts, no_address, numbers, place_of, without_login

HOST, PUBLIC_KEY, SECRET_KEY = "LANGFUSE_HOST", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"
TRACES, SCORES = "/api/public/otel/v1/traces", "/api/public/scores"
TIMEOUT_SECONDS = 30.0
_SUMMARY = ("steps", "final_step", "train_loss_last", *MEASURES, "total_tokens", "elapsed_seconds")
"""Of report.json, in the trace's output."""


def problems(env: Mapping[str, str]) -> list[Problem]:
    """What is missing here before anything could be sent."""
    return unset(env)


def unset(env: Mapping[str, str]) -> list[Problem]:
    """The variables that are missing, or keep it from working."""
    hints = {HOST: "https://cloud.langfuse.com, or your own server's address"}
    fallback = "Langfuse shows it under Settings, API keys; it belongs into the environment, never into a spec"
    missing = [name for name in (HOST, PUBLIC_KEY, SECRET_KEY) if not env.get(name)]
    return [
        *(Problem(f"{name} is not set", hint=hints.get(name, fallback)) for name in missing),
        *no_address(HOST, env),
    ]


def connect(_run_dir: RunDir) -> LangfuseTrace:
    """The server of the environment. Raises ConfigError."""
    if missing := problems(os.environ):
        raise ConfigError(missing)
    return LangfuseTrace(os.environ[HOST].rstrip("/"), (os.environ[PUBLIC_KEY], os.environ[SECRET_KEY]))


class LangfuseTrace:
    """One run's trace."""

    def __init__(self, host: str, keys: tuple[str, str]) -> None:
        self._host = host
        project = hashlib.sha256(keys[0].encode()).hexdigest()[:12]  # it is known by its keys alone
        self.place = place_of(project, host)
        import httpx2

        headers = {"x-langfuse-ingestion-version": "4"}
        self._failures = httpx2.HTTPError
        self._http = httpx2.Client(auth=keys, timeout=TIMEOUT_SECONDS, headers=headers)
        self._run: RunFacts | None = None
        self._trace = ""
        self.link = ""

    def begin(self, run: RunFacts, key: str, there: str | None) -> str:
        """As in `Server`; the trace's id is made from the key."""
        self._run, self._trace = run, there or _id(key, length=32)
        self.link = without_login(f"{self._host}/trace/{self._trace}")
        if there is None:
            self._put_root(None)
        return self._trace

    def send_settings(self, run: RunFacts) -> None:
        """As in `Server`: they are the input of its trace."""

    def known(self, _kind: Kind, _rows: Sequence[Row]) -> set[tuple[int, str]]:
        """As in `Server`: whatever is there is written over."""
        return set()

    def send(self, kind: Kind, rows: Sequence[Row]) -> None:
        """As in `Server`."""
        if kind == "metrics":
            self._put([self._step(row) for row in rows])
            for row in rows:
                self._score(row)
        elif kind == "saves":
            self._put([self._save(row) for row in rows])
        elif kind == "samples":
            for row in rows:
                self._put([self._generation(sample) for sample in row["samples"]])
                for sample in row["samples"]:
                    self._judge(sample)

    def end(self, ended: Ending | None) -> None:
        """As in `Server`."""
        self._put_root(ended)

    def close(self, ended: Ending | None) -> None:
        """As in `Server`: what was sent is there."""

    def _step(self, row: Row) -> dict[str, Any]:
        """An observation of a step: what was measured is its output."""
        name = "evaluation" if any(measure in row for measure in MEASURES) else "step"
        return self._event(f"{name} {row['step']}", _of_step(self._trace, row), row, numbers(row))

    def _save(self, row: Row) -> dict[str, Any]:
        output = {"checkpoint": row.get("checkpoint")}
        return self._event(f"checkpoint {row['step']}", _id(self._trace, "save", row["step"], length=16), row, output)

    def _generation(self, sample: Row) -> dict[str, Any]:
        """What the model wrote when it was asked."""
        attributes: dict[str, Any] = {
            "langfuse.observation.type": "generation",
            "langfuse.observation.input": sample["prompt"],
            "langfuse.observation.output": sample["text"],
            "langfuse.observation.metadata.step": sample["step"],
        }
        if self._run is not None:
            attributes["langfuse.observation.model.name"] = str(self._run.settings.get("model.name", ""))
        if "tokens" in sample:
            attributes["langfuse.observation.usage_details"] = _json({"output": sample["tokens"]})
        if "reference" in sample:
            attributes["langfuse.observation.metadata.reference"] = sample["reference"]
        begun, until = sample["time"] - sample.get("seconds", 0.0), sample["time"]
        span = self._span(f"sample {sample['step']}", _of_sample(self._trace, sample), begun, until, attributes)
        return span | {"parentSpanId": self._root}

    def _judge(self, sample: Row) -> None:
        """Whether the answer ended by itself, and whether it is the one that its row has."""
        for name in ("ended", "exact_match"):
            if name in sample:
                score = {
                    "id": _id(self._trace, "score", name, sample["step"], sample["prompt"], length=32),
                    "traceId": self._trace,
                    "observationId": _of_sample(self._trace, sample),
                    "name": name,
                    "value": int(sample[name]),
                    "dataType": "BOOLEAN",
                }
                self._post(SCORES, score)

    def _event(self, name: str, span: str, row: Row, output: dict[str, Any]) -> dict[str, Any]:
        attributes = {
            "langfuse.observation.type": "event",
            "langfuse.observation.output": _json(output),
            "langfuse.observation.metadata.step": row["step"],
        }
        return self._span(name, span, row["time"], row["time"], attributes) | {"parentSpanId": self._root}

    @property
    def _root(self) -> str:
        return _id(self._trace, "run", length=16)

    def _put_root(self, ended: Ending | None) -> None:
        """The span that the others are in; its id is always the same, so that the last one counts."""
        if self._run is None:
            return
        directory = self._run.directory
        starts = read_starts(directory.starts)
        begun, until = (starts[0].begun, starts[-1].updated) if starts else (0.0, 0.0)
        settings = _json(dict(self._run.settings))
        attributes: dict[str, Any] = {
            "langfuse.trace.name": self._run.name,
            "langfuse.trace.input": settings,
            "langfuse.observation.type": "span",
            "langfuse.observation.input": settings,
            "langfuse.trace.metadata.state": ended or "running",
            "langfuse.observation.level": "ERROR" if ended == "failed" else "DEFAULT",
        }
        if ended == "finished" and directory.report.is_file():
            report = json.loads(directory.report.read_text(encoding="utf-8"))
            output = _json({name: report.get(name) for name in _SUMMARY})
            attributes |= {"langfuse.trace.output": output, "langfuse.observation.output": output}
        self._put([self._span(self._run.name, self._root, begun, until, attributes)])

    def _span(self, name: str, span: str, begun: float, until: float, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "traceId": self._trace,
            "spanId": span,
            "name": name,
            "kind": 1,
            "startTimeUnixNano": str(int(begun * 1e9)),
            "endTimeUnixNano": str(int(max(begun, until) * 1e9)),
            "attributes": [{"key": key, "value": _value(value)} for key, value in attributes.items()],
        }

    def _put(self, spans: list[dict[str, Any]]) -> None:
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "rankzero"}}]}
        scope = {"scope": {"name": "rankzero"}, "spans": spans}
        answer = self._post(TRACES, {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})
        refused = answer.get("partialSuccess") or {}
        if int(refused.get("rejectedSpans") or 0):
            what = f"{refused['rejectedSpans']} of {len(spans)} spans were rejected"
            raise ServiceError(what, where=without_login(self._host))

    def _score(self, row: Row) -> None:
        for name in MEASURES:
            value = row.get(name)
            if value is not None:
                score = {
                    "id": _id(self._trace, "score", name, row["step"], length=32),
                    "traceId": self._trace,
                    "observationId": _of_step(self._trace, row),
                    "name": name,
                    "value": value,
                    "dataType": "NUMERIC",
                }
                self._post(SCORES, score)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer's object. Raises ServiceError where it is no answer of such a server."""
        try:
            response = self._http.post(self._host + path, json=body)
        except self._failures as error:
            raise NoAnswerError(
                f"no answer: {error or type(error).__name__}", where=without_login(self._host)
            ) from error
        where = without_login(self._host + path)
        if not response.is_success:
            raise ServiceError(f"answered {response.status_code}: {response.text[:100]}", where=where)
        try:
            answer = json.loads(response.text or "{}")
        except ValueError:
            raise ServiceError("answered with what is no JSON", where=where) from None
        if not isinstance(answer, dict):
            raise ServiceError("answered with what is no object", where=where)
        return answer


def _of_step(trace: str, row: Row) -> str:
    """An evaluation that follows a step's row later has an id of its own, so that it does not stand for the step."""
    later = () if "loss" in row else sorted(numbers(row))
    return _id(trace, "step", row["step"], *later, length=16)


def _of_sample(trace: str, sample: Row) -> str:
    return _id(trace, "sample", sample["step"], sample["prompt"], length=16)


def _id(*parts: object, length: int) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:length]


def _json(value: Mapping[str, Any]) -> str:
    kept = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in value.items()}
    return json.dumps(kept, ensure_ascii=False)


def _value(value: object) -> dict[str, Any]:
    """As OTLP's JSON form has it: whole numbers of 64 bits are texts there."""
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}
