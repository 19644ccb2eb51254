"""All that was seen of a run as text: objects with their conditions, pods, nodes, events, what was refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rankzero.launch.diagnose import redact
from rankzero.launch.evidence import Evidence
from rankzero.launch.labels import Manifest
from rankzero.launch.untyped_json import amount, at, maps, moment, text
from rankzero.redaction import looks_secret

MOST_EVENTS = 40


def described(evidence: Evidence) -> str:
    """Section by section; empty ones are left out."""
    sections = {
        "Objects": [line for one in evidence.objects for line in _object(one)],
        "Queue": [line for one in evidence.workloads for line in _object(one)],
        "Pods": [_pod(one) for one in evidence.pods],
        "Hosts": [_node(one) for one in evidence.nodes or () if _is_used(one, evidence)],
        "Events": [_event(one) for one in _newest(evidence.events)],
        "Not permitted to see": [f"{one.verb}: {one.message}" for one in evidence.refused],
    }
    parts = [
        f"{title}\n" + "\n".join(f"  {redact(line)}" for line in lines) for title, lines in sections.items() if lines
    ]
    return "\n\n".join(parts) + "\n"


def described_json(evidence: Evidence) -> dict[str, Any]:
    """The same as plain JSON, objects as the API has them."""
    return {
        "objects": [_redacted(_bare(one)) for one in evidence.objects],
        "pods": [_redacted(_bare(one)) for one in evidence.pods],
        "workloads": [_redacted(_bare(one)) for one in evidence.workloads],
        "events": [redact(_event(one)) for one in _newest(evidence.events)],
        "logs": {name: redact(log) for name, log in evidence.logs.items()},
    }


def _bare(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "managedFields"}
    return {**manifest, "metadata": metadata}


def _redacted(value: Any) -> Any:
    """Every text in it without secrets; of variables whose names speak of secrets, no value."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [_redacted(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: _redacted(inner) for key, inner in value.items()}
    if isinstance(found.get("value"), str) and looks_secret(str(found.get("name", ""))):
        found["value"] = "[hidden]"
    return found


def _object(manifest: Manifest) -> Iterator[str]:
    phase = text(manifest, "status", "phase")
    yield f"{text(manifest, 'kind')}/{text(manifest, 'metadata', 'name')}" + (f"  {phase}" if phase else "")
    for condition in maps(manifest, "status", "conditions"):
        words = ": ".join(part for part in (text(condition, "reason"), text(condition, "message")) if part)
        yield f"  {text(condition, 'type')}={text(condition, 'status')}" + (f"  {words}" if words else "")


def _pod(pod: Manifest) -> str:
    host = text(pod, "spec", "nodeName") or "no host yet"
    states = []
    for container in maps(pod, "status", "containerStatuses"):
        name, state = text(container, "name"), at(container, "state")
        word = next((key for key in state), "unknown")
        reason = text(state, word, "reason")
        code = text(state, word, "exitCode")
        states.append(f"{name} {word}" + (f" {reason}" if reason else "") + (f" (exit code {code})" if code else ""))
    name, phase = text(pod, "metadata", "name"), text(pod, "status", "phase")
    return f"{name}  {phase}  {host}" + (f"  {', '.join(states)}" if states else "")


def _is_used(node: Manifest, evidence: Evidence) -> bool:
    return text(node, "metadata", "name") in {text(pod, "spec", "nodeName") for pod in evidence.pods}


def _node(node: Manifest) -> str:
    ready = next(
        (text(one, "status") for one in maps(node, "status", "conditions") if text(one, "type") == "Ready"), "?"
    )
    has = at(node, "status", "allocatable")
    parts = [
        f"{key} {has[key]}" for key in sorted(has) if key in ("cpu", "memory") or ("/" in key and amount(has[key]))
    ]
    return f"{text(node, 'metadata', 'name')}  Ready={ready}  {', '.join(parts)}"


def _event(event: Manifest) -> str:
    about = at(event, "involvedObject") or at(event, "regarding")
    count = text(event, "count")
    times = f" (×{count})" if count not in ("", "0", "1") else ""
    message = text(event, "message") or text(event, "note")
    subject = f"{text(about, 'kind')}/{text(about, 'name')}"
    return f"{_time(event)}  {text(event, 'type')}  {text(event, 'reason')}  {subject}: {message}{times}"


def _newest(events: Iterable[Manifest]) -> list[Manifest]:
    return sorted(events, key=_time)[-MOST_EVENTS:]


def _time(event: Manifest) -> str:
    """When it happened last; events of some controllers have only eventTime."""
    series = text(event, "series", "lastObservedTime")
    fields = (series, *(text(event, name) for name in ("lastTimestamp", "eventTime", "firstTimestamp")))
    found = next(
        (one for value in fields if (one := moment(value)) is not None),
        moment(text(event, "metadata", "creationTimestamp")),
    )
    return "" if found is None else found.strftime("%Y-%m-%d %H:%M:%S")
