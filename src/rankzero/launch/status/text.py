"""A status for a terminal: the verdict, what to do, how far it is, and the nodes that need a look. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.status.model import NodeState, Phase, RunRow, RunStatus
from rankzero.wording import counted

NARROWEST = 40
MOST_NODES = 8
"""Up to this many nodes are all listed; of more, only those that are not well, and so many of them."""
MOST_FINDINGS = 3
_GREEN, _YELLOW, _RED, _CYAN, _DIM = "32", "33", "31", "36", "2"
_COLOURS: dict[Phase, str] = {
    "Running": _GREEN,
    "Succeeded": _GREEN,
    "Failed": _RED,
    "Stopped": _CYAN,
    "Unknown": _RED,
}
_MARGIN = 10


def as_text(status: RunStatus, width: int = 80, colour: bool = False) -> str:
    """Lines of at most `width` columns, where names allow it."""
    width = max(width, NARROWEST)
    lines = _wrapped(status.phase, status.verdict, width, _COLOURS.get(status.phase, _YELLOW) if colour else None)
    lines += _findings(status, width, colour)
    lines += ["", *_facts(status, width, colour)]
    if status.nodes:
        lines += ["", *_nodes(status.nodes, width, colour)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def as_table(rows: Sequence[RunRow], width: int = 80, colour: bool = False) -> str:
    """Runs as a table; the verdict gets what is left of the width."""
    if not rows:
        return "no runs\n"
    cells = [("RUN", "PHASE", "NODES", "AGE", "VERDICT")]
    cells += [
        (row.run, row.phase, f"{row.running}/{row.num_nodes}", _age(row.age_seconds), row.verdict) for row in rows
    ]
    widths = [max(len(cell[column]) for cell in cells) for column in range(4)]
    left = max(12, width - sum(widths) - 8)
    lines = []
    for index, (run, phase, nodes, age, verdict) in enumerate(cells):
        shown = phase.ljust(widths[1])
        if colour and index:
            shown = _paint(shown, _COLOURS.get(rows[index - 1].phase, _YELLOW))
        short = verdict if len(verdict) <= left else verdict[: left - 1] + "…"
        lines.append(f"{run.ljust(widths[0])}  {shown}  {nodes.rjust(widths[2])}  {age.rjust(widths[3])}  {short}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _findings(status: RunStatus, width: int, colour: bool) -> list[str]:
    """The first one's cause is the verdict already, unless the run is well or has ended well."""
    lines: list[str] = []
    shown = [one for one in status.findings if not (one.code == "stopped" and status.phase == "Stopped")]
    for index, finding in enumerate(shown[:MOST_FINDINGS]):
        if not (index == 0 and finding.cause.rstrip(".") == status.verdict):
            label = "note" if finding.severity == "info" else "also" if index else "cause"
            lines += ["", *_labelled(label, finding.cause, width, _colour_of(finding) if colour else None)]
        lines += _labelled("fix", finding.fix, width, _CYAN if colour else None)
        if index == 0:
            lines += [line for seen in finding.evidence[:1] for line in _labelled("seen", seen, width, None)]
    hidden = len(shown) - MOST_FINDINGS
    if hidden > 0:
        lines += ["", f"{'':{_MARGIN}}and {counted(hidden, 'finding')} more (--json shows all)"]
    return lines


def _colour_of(finding: Finding) -> str:
    return {"failed": _RED, "broken": _RED, "waiting": _YELLOW}.get(finding.severity, _DIM)


def _facts(status: RunStatus, width: int, colour: bool) -> list[str]:
    age = f", {span(status.age_seconds)} old" if status.age_seconds is not None else ""
    restarts = f", {counted(status.restarts, 'restart')}" if status.restarts else ""
    facts = f"{status.name}{f' ({status.kind})' if status.kind else ''}{age}{restarts}"
    lines = _labelled("run", facts, width, None)
    if status.step is not None:
        lines += _labelled("step", _progress(status), width, None)
    if status.run_dir:
        lines += _labelled("results", status.run_dir, width, None)
    if status.exit_code:
        lines += _labelled("exit", str(status.exit_code), width, None)
    return lines


def _progress(status: RunStatus) -> str:
    done = f"{status.step:,}"
    if status.total_steps:
        done += f" of {status.total_steps:,} ({(status.step or 0) / status.total_steps:.0%})"
    parts = [done]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.4f}")
    if status.tokens_per_second is not None:
        parts.append(f"{status.tokens_per_second:,} tok/s")
    if status.eta_seconds is not None:
        parts.append(f"{span(status.eta_seconds)} left")
    return ", ".join(parts)


def _nodes(nodes: Sequence[NodeState], width: int, colour: bool) -> list[str]:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.state] = counts.get(node.state, 0) + 1
    summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: -item[1]))
    lines = _labelled("nodes", summary, width, None)
    shown = list(nodes) if len(nodes) <= MOST_NODES else [node for node in nodes if not node.is_healthy][:MOST_NODES]
    hidden = sum(not node.is_healthy for node in nodes) - MOST_NODES if len(nodes) > MOST_NODES else 0
    lines += _rows(shown, width, colour)
    if hidden > 0:
        lines.append(f"{'':{_MARGIN}}and {hidden} more that are not running")
    return lines


def _rows(nodes: Sequence[NodeState], width: int, colour: bool) -> list[str]:
    """Index, state, age and restarts always; the pod's and the node's name as far as there is room."""
    cells = [
        (
            str(node.node),
            node.state,
            _age(node.age_seconds),
            f"{node.restarts} restarted" if node.restarts else "",
            node.pod,
            node.host,
        )
        for node in nodes
    ]
    lines = []
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(6)]
    for row, node in zip(cells, nodes, strict=True):
        line = f"{'':{_MARGIN - 4}}{row[0].rjust(max(3, widths[0]))} "
        used = len(line)
        for column in (1, 2, 3, 4, 5):
            if not widths[column]:
                continue
            room = width - used
            if column > 3 and room < min(widths[column], 12):
                break
            text = row[column] if len(row[column]) <= room or column <= 3 else row[column][: room - 1] + "…"
            padded = text.ljust(min(widths[column], max(room, len(text)))) + "  "
            used += len(padded)
            if colour and column == 1:
                padded = _paint(padded, _GREEN if node.is_healthy else _YELLOW)
            line += padded
        lines.append(line.rstrip())
    return lines


def _labelled(label: str, words: str, width: int, colour: str | None) -> list[str]:
    return _wrapped(label.ljust(_MARGIN - 1), words, width, colour)


def _wrapped(label: str, words: str, width: int, colour: str | None) -> list[str]:
    """The label, and the words wrapped beside it; only the label has a colour."""
    indent = " " * max(_MARGIN, min(len(label) + 1, _MARGIN))
    first = f"{label} " if len(label) + 1 >= _MARGIN else label.ljust(_MARGIN)
    lines = textwrap.wrap(
        words, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [first.rstrip()]
    if colour is not None:
        lines[0] = _paint(label, colour) + lines[0][len(label) :]
    return lines


def _age(seconds: float | None) -> str:
    return "" if seconds is None else span(seconds)


def _paint(words: str, colour: str) -> str:
    return f"\x1b[1;{colour}m{words}\x1b[0m"
