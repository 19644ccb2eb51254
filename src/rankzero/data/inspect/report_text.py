"""A check report as lines for a terminal: aligned, at most 60 columns of bars, the same without colour.

Knows what was found and how to say it; decides nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping

from rankzero.data.inspect.report import CheckReport
from rankzero.data.inspect.serving import Comparison
from rankzero.data.inspect.statistics import Bin, Counts, Spread, TokenCounts, by_count, histogram, share
from rankzero.wording import counted, named_counts, named_keys

_LABEL = 13
_BAR_COLUMNS = 60
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NARROWEST = 40


def report_lines(report: CheckReport, comparison: Comparison | None = None, width: int = 80) -> list[str]:
    """Everything worth a line, for a terminal of `width` columns."""
    page = _Page(width)
    counts = report.counts
    _rows(page, report)
    page.say("formats", (f"{name} {rows:,}{_by(counts, name)}" for name, rows in by_count(counts.formats)))
    if counts.turns:
        turns = Spread.of(counts.turns)
        page.say("turns", [f"{turns.mean:.1f} a chat on average, {turns.minimum} to {turns.maximum}"])
    if counts.preferences:
        page.say("pairs", [f"{counts.preferences:,} of a chosen and a rejected answer, for task dpo"])
    page.say("roles", named_counts(counts.roles))
    page.say("languages", named_counts(counts.languages))
    page.say("labels", named_counts(counts.labels))
    page.say("done to rows", (f"{rule} ({rows:,})" for rule, rows in by_count(counts.rules)), separator="; ")
    page.say("not read", named_keys(counts.ignored_keys))
    _duplicates(page, report)
    _images(page, report)
    if counts.tokens is None:
        _histogram(page, "characters", counts.characters, an=counts.an_example)
    else:
        _tokens(page, counts.tokens, counts.an_example)
    if comparison is not None and comparison.answers:
        _serving(page, comparison)
    return page.lines


class _Page:
    def __init__(self, width: int) -> None:
        self.width = max(_NARROWEST, width)
        self.lines: list[str] = []

    def say(self, label: str, parts: Iterable[str], separator: str = ", ") -> None:
        """`label        text`, the text broken where the terminal ends; nothing where there is nothing to say."""
        if text := visible(separator.join(parts)):
            room = self.width - _LABEL
            broken = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=True)
            for number, line in enumerate(broken):
                self.lines.append(f"{'' if number else label:<{_LABEL}}{line}".rstrip())


def visible(text: str) -> str:
    """Without control characters, which could move a terminal's cursor or hide text: data comes from strangers."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _rows(page: _Page, report: CheckReport) -> None:
    counts = report.counts
    page.say("rows", [f"{counts.rows:,} in {counted(len(report.files), 'file')}"])
    page.say("readable", [f"{counts.readable:,}"])
    if counts.bad:
        kept_aside = "" if report.quarantined is None else f", {report.quarantined:,} of them written to quarantine"
        page.say("bad", [f"{counts.bad:,} ({percent(counts.bad, counts.rows)}){kept_aside}"])
    if counts.merged:
        page.say("merged", [f"{counted(counts.merged, 'message')} became part of a tree"])
    page.say("left out", (f"{rows:,} by {name.replace('_', ' ')}" for name, rows in by_count(counts.dropped)))
    if counts.blank:
        page.say("blank lines", [f"{counts.blank:,}"])
    if counts.examples != counts.readable:
        page.say("examples", [f"{counts.examples:,}"])


def _by(counts: Counts, name: str) -> str:
    by = detected_by(counts, name)
    return f" (by {by})" if by else ""


def detected_by(counts: Counts, name: str) -> str:
    """`keys messages`; empty where the format was stated."""
    return counts.detected.get(name, "").removeprefix(f"{name}: ")


def _duplicates(page: _Page, report: CheckReport) -> None:
    found = report.duplicates
    for label, number, pairs in (
        ("duplicates", found.copies, found.copy_examples),
        ("in both", found.leaks, found.leak_examples),
    ):
        if number:
            copy, first = pairs[0]
            trained = " to evaluate on are also trained on" if label == "in both" else ""
            page.say(label, [f"{number:,}{trained}, such as {report.where(copy)}, the same as {report.where(first)}"])


def _images(page: _Page, report: CheckReport) -> None:
    counts = report.counts
    if not counts.images:
        return
    sources = ", ".join(named_counts(counts.image_sources))
    page.say("images", [f"{counts.images:,} in {counted(counts.image_rows, 'example')}: {sources}"])
    if report.images is None:
        page.say("decoded", ["none of them: --images does that"])
        return
    bad = len(report.images.problems)
    page.say(
        "decoded",
        [
            f"{report.images.checked:,} different ones, {bad:,} cannot be used"
            if bad
            else f"{report.images.checked:,} different ones, all of them well"
        ],
    )
    for source, reasons in sorted(report.images.sources.items()):
        lost = [f"{number:,} × {reason}" for reason, number in by_count(reasons) if reason != "ok"]
        if lost:
            page.say(f"  {source}"[: _LABEL - 1], [f"{reasons['ok']:,} well", *lost])


def _tokens(page: _Page, tokens: TokenCounts, an: str) -> None:
    trained = f", {percent(tokens.supervised, tokens.tokens)} of them trained" if tokens.supervised else ""
    page.say("tokens", [f"{tokens.tokens:,} in {counted(tokens.kept, 'example')}{trained}"])
    if tokens.truncated:
        cut = f"{counted(tokens.truncated, 'example')} ({percent(tokens.truncated, tokens.examples)})"
        page.say("truncated", [f"{cut}, at least {counted(tokens.cut_tokens, 'token')} cut off"])
    page.say("dropped", (f"{rows:,} by {name.replace('_', ' ')}" for name, rows in by_count(tokens.dropped)))
    for opening, rows in by_count(tokens.unopened)[:2]:
        page.say("unopened", [f"{rows:,} answers lack the {opening!r} that opens them in use"])
    page.say("rendered", (f"{note} ({rows:,})" for note, rows in by_count(tokens.notes)), separator="; ")
    _histogram(page, "tokens", tokens.lengths, tokens.cap, an=an)


def _histogram(page: _Page, what: str, counter: Mapping[int, int], cap: int = 0, *, an: str) -> None:
    if not counter:
        return
    spread = Spread.of(counter)
    most = f"{cap:,} or more" if cap and spread.maximum >= cap else f"{spread.maximum:,}"
    page.lines.append("")
    page.lines.append(f"{what} {an}")
    page.say("  median", [f"{spread.p50:,}; 90% up to {spread.p90:,}, 99% up to {spread.p99:,}, most {most}"])
    page.lines += bars(histogram(counter), page.width)


def bars(bins: list[Bin], width: int = 80) -> list[str]:
    """One line a bin, each at most 60 columns and `width`."""
    labels = max(len(bin_.label) for bin_ in bins)
    numbers = max(len(f"{bin_.count:,}") for bin_ in bins)
    room = max(4, min(_BAR_COLUMNS, width) - labels - numbers - 5)
    highest = max(bin_.count for bin_ in bins)
    return [
        f"  {bin_.label:>{labels}} {bin_.count:>{numbers},} {_bar(bin_.count / highest, room)}".rstrip()
        for bin_ in bins
    ]


def _bar(part: float, room: int) -> str:
    eighths = round(part * room * 8)
    whole, rest = divmod(max(eighths, 1) if part else 0, 8)
    return "█" * whole + _EIGHTHS[rest].strip()


def _serving(page: _Page, comparison: Comparison) -> None:
    page.lines.append("")
    if not comparison.causes:
        page.say("serving", [f"the same text as in training, in {counted(comparison.answers, 'answer')} looked at"])
        return
    for cause, rows in comparison.causes.most_common():
        first = comparison.first[cause]
        page.say("serving", [f"{cause}: {rows:,} of {comparison.rows:,} rows looked at. {first.meaning}"])
        page.say("  first", [f"{first.where}, turn {first.turn}, character {first.offset:,}"])
        page.say("  training", [repr(first.training)])
        page.say("  serving", [repr(first.serving)])


def percent(part: int, whole: int) -> str:
    """`12.5%`; `<0.1%` where it would look like nothing."""
    value = 100 * share(part, whole)
    return "<0.1%" if 0 < value < 0.1 else f"{value:.1f}%".replace(".0%", "%")
