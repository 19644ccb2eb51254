"""A check report as one HTML page that needs nothing else: no script, no network, plots as inline SVG.

Everything that comes from data is escaped, and the page's own policy forbids whatever might get past that. Knows what
was found; how the page looks is in report_page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import chain

from rankzero.data.check.report import CheckReport, column
from rankzero.data.check.report_page import PAGE, bar_chart, share_bar, table, text
from rankzero.data.check.report_text import detected_by, percent
from rankzero.data.check.serving import Comparison
from rankzero.data.check.statistics import Counts, Spread, TokenCounts, by_count, histogram

_MOST_NAMES = 30
_MOST_PROBLEMS = 300


def report_html(report: CheckReport, comparison: Comparison | None = None, title: str = "Data check") -> str:
    """The whole page."""
    counts = report.counts
    sections = chain(
        _summary(report),
        _problems(report),
        _tokens(counts.tokens) if counts.tokens is not None else (),
        _lengths(counts),
        _formats(counts),
        _names(counts),
        _duplicates(report),
        _images(report),
        _serving(comparison) if comparison is not None else (),
        _files(report),
    )
    return PAGE.replace("{{title}}", text(title)).replace("{{body}}", "\n".join(sections))


def _section(name: str, *parts: str) -> list[str]:
    key = name.lower().replace(" ", "-")
    return [f'<section aria-labelledby="{key}"><h2 id="{key}">{escape(name)}</h2>', *parts, "</section>"]


def _summary(report: CheckReport) -> list[str]:
    counts = report.counts
    verdict = "Every row can be read." if report.ok else f"{_plural(report.log.total, 'problem')} found."
    facts = [
        ("Rows", f"{counts.rows:,}"),
        ("Readable", f"{counts.readable:,}"),
        ("Bad", f"{counts.bad:,} ({percent(counts.bad, counts.rows)})"),
        *([("Merged into trees", f"{counts.merged:,}")] if counts.merged else []),
        *((f"Left out: {name.replace('_', ' ')}", f"{rows:,}") for name, rows in by_count(counts.dropped)),
        ("Examples", f"{counts.examples:,}"),
        ("Blank lines", f"{counts.blank:,}"),
        *([("In quarantine", f"{report.quarantined:,}")] if report.quarantined is not None else []),
    ]
    tiles = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)
    state = "good" if report.ok else "bad"
    return [f'<p class="verdict {state}">{escape(verdict)}</p>', f'<dl class="facts">{tiles}</dl>']


def _problems(report: CheckReport) -> list[str]:
    if report.ok:
        return []
    reasons = table("Problems by reason", ("Reason", "Problems"), by_count(report.log.reasons), numbers=frozenset({1}))
    rows = [
        (
            located.path,
            str(located.problem.line or ""),
            str(column(located.problem.what) or ""),
            located.problem.reason,
            located.problem.what,
            located.problem.hint,
        )
        for located in report.problems[:_MOST_PROBLEMS]
    ]
    hidden = report.log.total - len(rows)
    more = f"<p>{_plural(hidden, 'more problem')} in the JSON report and in the quarantine.</p>" if hidden > 0 else ""
    heads = ("File", "Line", "Column", "Reason", "What", "How to mend it")
    return _section("Problems", reasons, table("Where they are", heads, rows, numbers=frozenset({1, 2})), more)


def _tokens(tokens: TokenCounts) -> list[str]:
    dropped = [
        ("Truncated", f"{tokens.truncated:,}", percent(tokens.truncated, tokens.examples)),
        *(
            (f"Dropped: {name.replace('_', ' ')}", f"{rows:,}", percent(rows, tokens.examples))
            for name, rows in by_count(tokens.dropped)
        ),
        *((name.capitalize(), f"{rows:,}", percent(rows, tokens.examples)) for name, rows in by_count(tokens.notes)),
    ]
    opened = [(repr(opening), f"{rows:,}") for opening, rows in by_count(tokens.unopened)[:10]]
    note = (
        f"<p>Examples of {tokens.cap:,} tokens and more are counted as that.</p>" if tokens.lengths[tokens.cap] else ""
    )
    spreads = {"Tokens": tokens.lengths}
    if tokens.supervised:
        spreads["Trained tokens"] = tokens.trained_lengths
    return _section(
        "Tokens",
        share_bar("Trained tokens", tokens.supervised, tokens.tokens) if tokens.supervised else "",
        bar_chart("Tokens an example, before anything is cut", histogram(tokens.lengths, 24), "tokens", "examples"),
        note,
        _spread_table("Percentiles", spreads),
        table("What the rules do", ("Rule", "Examples", "Share"), dropped, numbers=frozenset({1, 2})),
        table("Openings that answers lack", ("In use the template opens with", "Examples"), opened, frozenset({1})),
    )


def _lengths(counts: Counts) -> list[str]:
    if not counts.characters:
        return []
    turns = histogram(counts.turns)
    return _section(
        "Lengths",
        bar_chart("Characters an example", histogram(counts.characters, 24), "characters", "examples"),
        bar_chart("Turns a chat", turns, "turns", "chats") if turns else "",
        _spread_table("Percentiles of lengths", {"Characters": counts.characters, "Turns": counts.turns}),
    )


def _spread_table(caption: str, counters: Mapping[str, Mapping[int, int]]) -> str:
    heads = ("", "Least", "Median", "90%", "95%", "99%", "Most", "Mean")
    rows = []
    for name, counter in counters.items():
        if counter:
            spread = Spread.of(counter)
            whole = (spread.minimum, spread.p50, spread.p90, spread.p95, spread.p99, spread.maximum)
            rows.append((name, *(f"{value:,}" for value in whole), f"{spread.mean:,.1f}"))
    return table(caption, heads, rows, numbers=frozenset(range(1, len(heads))))


def _formats(counts: Counts) -> list[str]:
    rows = [
        (name, f"{number:,}", detected_by(counts, name) or "as stated") for name, number in by_count(counts.formats)
    ]
    formats = table("Formats of rows", ("Format", "Rows", "Detected by"), rows, numbers=frozenset({1}))
    rules = table("Done to rows that are kept", ("Rule", "Rows"), _names_of(counts.rules), frozenset({1}))
    ignored = table("Keys that are not read", ("Key", "Rows"), _names_of(counts.ignored_keys), frozenset({1}))
    return _section("Formats", formats, rules, ignored)


def _names(counts: Counts) -> list[str]:
    tables = [
        table(caption, (head, number), _names_of(counter), frozenset({1}))
        for caption, head, number, counter in (
            ("Roles", "Role", "Turns", counts.roles),
            ("Languages", "Language", "Rows", counts.languages),
            ("Labels", "Label", "Examples", counts.labels),
        )
    ]
    return _section("Roles languages labels", *tables) if any(tables) else []


def _names_of(counter: Mapping[str, int]) -> list[tuple[str, str]]:
    common = by_count(counter)
    rows = [(name, f"{number:,}") for name, number in common[:_MOST_NAMES]]
    rest = common[_MOST_NAMES:]
    return [*rows, (f"{len(rest):,} more", f"{sum(number for _, number in rest):,}")] if rest else rows


def _duplicates(report: CheckReport) -> list[str]:
    found = report.duplicates
    said = f"<p>Copies of an earlier example: {found.copies:,} of {_plural(report.counts.examples, 'example')}"
    said += f"; to evaluate on and also trained on: {found.leaks:,}.</p>" if found.leaks else ".</p>"
    pairs = [
        (kind, report.where(copy), report.where(first))
        for kind, places in (("also trained on", found.leak_examples), ("copy", found.copy_examples))
        for copy, first in places
    ]
    return _section("Duplicates", said, table("The first ones", ("Kind", "Where", "Same as"), pairs))


def _images(report: CheckReport) -> list[str]:
    counts = report.counts
    if not counts.images:
        return []
    rows: Iterable[Sequence[str]] = _names_of(counts.image_sources)
    parts = [table("Images by source", ("Source", "Images"), list(rows), frozenset({1}))]
    if report.images is not None:
        states = [
            (source, reason, f"{number:,}")
            for source, reasons in sorted(report.images.sources.items())
            for reason, number in by_count(reasons)
        ]
        parts.append(table("Different images decoded", ("Source", "Outcome", "Images"), states, frozenset({2})))
    return _section("Images", f"<p>{counts.images:,} in {_plural(counts.image_rows, 'example')}.</p>", *parts)


def _serving(comparison: Comparison) -> list[str]:
    if not comparison.answers:
        return []
    said = f"<p>{_plural(comparison.answers, 'answer')} of {_plural(comparison.rows, 'row')} compared.</p>"
    if not comparison.causes:
        return _section("Serving", said, "<p>The model saw in training what a server gives it.</p>")
    rows = [
        (cause, f"{number:,}", first.meaning, f"{first.where}, turn {first.turn}", f"{first.offset:,}",
         repr(first.training), repr(first.serving))
        for cause, number in comparison.causes.most_common()
        for first in (comparison.first[cause],)
    ]  # fmt: skip
    heads = ("Cause", "Rows", "Meaning", "First in", "Character", "Training", "Serving")
    return _section("Serving", said, table("First differences", heads, rows, frozenset({1, 4})))


def _files(report: CheckReport) -> list[str]:
    return _section("Files", table("Files that were read", ("File",), [(path,) for path in report.files]))


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
