"""A status for a terminal: the verdict, what to do, how far it is, and the nodes that need a look. Pure."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankzero.launch.diagnose.finding import Finding, span
from rankzero.launch.status.model import NodeState, Phase, RunStatus
from rankzero.wording import counted, printable

NARROWEST = 40
MOST_NODES = 8
"""Up to this many nodes are all listed; of more, only those that are not well, and so many of them."""
MOST_FINDINGS = 3
_WELL, DOUBTFUL, _BAD, _ASIDE, _SMALL = "bold green", "bold yellow", "bold red", "bold cyan", "bold dim"
STYLES: dict[Phase, str] = {
    "Running": _WELL,
    "Succeeded": _WELL,
    "Failed": _BAD,
    "Stopped": _ASIDE,
    "Gone": _ASIDE,
    "Unknown": _BAD,
}
_MARGIN = 10
_GAP = 2
"""Columns between two of a table."""
_SHORTEST = 12
"""Columns that the last column of a table has at least; where a pod's name leaves fewer, its host is left out."""


def as_text(status: RunStatus, width: int = 80, colour: bool = False) -> str:
    """Lines of at most `width` columns, where names allow it."""
    width = max(width, NARROWEST)
    lines = _wrapped(status.phase, status.verdict, width, STYLES.get(status.phase, DOUBTFUL))
    lines += _findings(status, width)
    lines += [Text(), *_facts(status, width)]
    parts: list[Text | Padding] = [*lines]
    if status.nodes:
        parts += [Text(), *_nodes(status.nodes, width)]
    return drawn(parts, width, colour)


def drawn(parts: Sequence[Text | Padding | Table], width: int, colour: bool) -> str:
    """As rich draws it: with colours or without, whatever this process writes to."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=False,
        highlight=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text), markup=False)  # texts are wrapped already, between words
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def plain_table(*, header: bool) -> Table:
    """Without lines, two columns between two of its own."""
    return Table(box=None, show_header=header, header_style="", padding=(0, _GAP, 0, 0), pad_edge=False)


def cut(words: str) -> Text:
    """In one line, as far as there is room, whatever words they are."""
    return Text(" ".join(printable(words).split()), no_wrap=True, overflow="ellipsis")


def _findings(status: RunStatus, width: int) -> list[Text]:
    """The first one's cause is the verdict already, unless the run is well or has ended well."""
    lines: list[Text] = []
    shown = [one for one in status.findings if not (one.code == "stopped" and status.phase == "Stopped")]
    for index, finding in enumerate(shown[:MOST_FINDINGS]):
        if not (index == 0 and finding.cause.rstrip(".") == status.verdict):
            label = "note" if finding.severity == "info" else "also" if index else "cause"
            lines += [Text(), *labelled(label, finding.cause, width, _style_of(finding))]
        lines += labelled("fix", finding.fix, width, _ASIDE)
        if index == 0:
            lines += [line for seen in finding.evidence[:1] for line in labelled("seen", seen, width)]
    hidden = len(shown) - MOST_FINDINGS
    if hidden > 0:
        lines += [Text(), Text(f"{'':{_MARGIN}}and {counted(hidden, 'finding')} more (--json shows all)")]
    return lines


def _style_of(finding: Finding) -> str:
    return {"failed": _BAD, "broken": _BAD, "waiting": DOUBTFUL}.get(finding.severity, _SMALL)


def _facts(status: RunStatus, width: int) -> list[Text]:
    age = f", {span(status.age_seconds)} old" if status.age_seconds is not None else ""
    restarts = f", {counted(status.restarts, 'restart')}" if status.restarts else ""
    facts = f"{status.name}{f' ({status.kind})' if status.kind else ''}{age}{restarts}"
    lines = labelled("run", facts, width)
    if status.step is not None:
        lines += labelled("step", _progress(status), width)
    if status.goodput:
        lines += labelled("goodput", status.goodput, width)
    if status.run_dir:
        lines += labelled("results", status.run_dir, width)
    if status.exit_code:
        lines += labelled("exit", str(status.exit_code), width)
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


def _nodes(nodes: Sequence[NodeState], width: int) -> list[Text | Padding]:
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.state] = counts.get(node.state, 0) + 1
    summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: -item[1]))
    parts: list[Text | Padding] = [*labelled("nodes", summary, width)]
    shown = list(nodes) if len(nodes) <= MOST_NODES else [node for node in nodes if not node.is_healthy][:MOST_NODES]
    hidden = sum(not node.is_healthy for node in nodes) - MOST_NODES if len(nodes) > MOST_NODES else 0
    if shown:
        parts.append(_rows(shown, width))
    if hidden > 0:
        parts.append(Text(f"{'':{_MARGIN}}and {hidden} more that are not running"))
    return parts


def _rows(nodes: Sequence[NodeState], width: int) -> Padding:
    """Index, state, age and restarts always; the pod's and the host's name as far as there is room."""
    indent, digits = _MARGIN - 4, max(3, *(len(str(node.node)) for node in nodes))
    cells = [
        (
            Text.assemble(f"{node.node:>{digits}} ", (node.state, _WELL if node.is_healthy else DOUBTFUL)),
            Text(age_in_words(node.age_seconds)),
            Text(f"{node.restarts} restarted" if node.restarts else ""),
            cut(node.pod),
            cut(node.host),
        )
        for node in nodes
    ]
    table, used, kept = plain_table(header=False), indent, []
    for column, of_column in enumerate(zip(*cells, strict=True)):
        widest = max(text.cell_len for text in of_column)
        is_name = column > 2
        if not widest or (is_name and width - used < min(widest, _SHORTEST)):
            continue
        kept.append(column)
        table.add_column(no_wrap=not is_name)
        used += widest + _GAP
    for row in cells:
        table.add_row(*(row[column] for column in kept))
    return Padding(table, (0, 0, 0, indent), expand=False)


def labelled(label: str, words: str, width: int, style: str = "") -> list[Text]:
    """Words beside a label, wrapped between words; the label alone has the style."""
    return _wrapped(label.ljust(_MARGIN - 1), words, width, style)


def _wrapped(label: str, words: str, width: int, style: str = "") -> list[Text]:
    """The label, and the words wrapped beside it, between words alone: commands and paths are there to be copied. Only
    the label has a colour; the words are somebody else's, and drive no terminal."""
    indent = " " * max(_MARGIN, min(len(label) + 1, _MARGIN))
    first = f"{label} " if len(label) + 1 >= _MARGIN else label.ljust(_MARGIN)
    lines = textwrap.wrap(
        printable(words),
        width,
        initial_indent=first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
    found = [Text(line) for line in lines]
    found[0].stylize(style, 0, len(label.rstrip()))
    return found


def age_in_words(seconds: float | None) -> str:
    return "" if seconds is None else span(seconds)
