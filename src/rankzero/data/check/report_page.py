"""The parts of a page: its frame, tables, bars, charts. Takes plain text and escapes it; knows nothing of data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

from rankzero.data.check.statistics import Bin, share

_WIDTH, _HEIGHT = 720, 240
_LEFT, _BOTTOM, _TOP = 56, 44, 12
_LABEL_EVERY = 64
_LONGEST = 2000

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{{title}}</title>
<style>
:root { --text: #1b1f24; --quiet: #57606a; --ground: #fff; --raised: #f4f6f8; --line: #d5dae0; --bar: #0a6ebd;
  --good: #116329; --bad: #a40e26; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ed; --quiet: #a2acb8; --ground: #101418; --raised: #1a2027; --line: #333c46; --bar: #59aef0;
    --good: #5fcf80; --bad: #ff8a93; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; color: var(--text); background: var(--ground);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .25rem; }
.verdict { font-weight: 600; } .good { color: var(--good); } .bad { color: var(--bad); }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .5rem; margin: 1rem 0; }
.facts div { background: var(--raised); border-radius: 6px; padding: .5rem .75rem; }
dt { color: var(--quiet); font-size: .85rem; } dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; min-width: 4rem; }
th { color: var(--quiet); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--quiet); font: 12px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .axis { stroke: var(--line); }
.share { height: .75rem; border-radius: 4px; background: var(--raised); border: 1px solid var(--line); }
</style>
</head>
<body>
<main>
<h1>{{title}}</h1>
{{body}}
</main>
</body>
</html>
"""


def text(value: object) -> str:
    """A value as it stands, and only as text: what a browser does not show is shown as a box, long text is cut."""
    shown = "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in str(value)[:_LONGEST])
    more = "…" if len(str(value)) > _LONGEST else ""
    return escape(shown + more)


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]], numbers: Collection[int] = frozenset()
) -> str:
    """A table; nothing without rows. `numbers` are the columns that are aligned right."""
    if not rows:
        return ""
    kinds = ['class="number"' if i in numbers else 'dir="auto"' for i in range(len(heads))]
    head = "".join(f'<th scope="col" {kind}>{text(name)}</th>' for name, kind in zip(heads, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>\n"
        for row in rows
    )
    # A region that scrolls has to be reachable by keyboard.
    frame = f'<div class="wide" role="region" tabindex="0" aria-label="{text(caption)}">'
    top = f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>"
    return f"{frame}<table>{top}<tbody>\n{body}</tbody></table></div>"


def share_bar(caption: str, part: int, whole: int) -> str:
    """`12,000 of 48,000 (25.0%)` with a bar."""
    percent = 100 * share(part, whole)
    words = f"{part:,} of {whole:,} ({percent:.1f}%)"
    style = f"background: linear-gradient(to right, var(--bar) {percent:.2f}%, transparent {percent:.2f}%)"
    bar = f'<div class="share" role="img" aria-label="{text(words)}" style="{style}"></div>'
    return f"<figure><figcaption>{text(caption)}: {text(words)}</figcaption>{bar}</figure>"


def bar_chart(caption: str, bins: Sequence[Bin], what: str, of: str) -> str:
    """A histogram, and under it the same as a table for those who do not see it."""
    if not bins:
        return ""
    highest = max(bin_.count for bin_ in bins)
    step = (_WIDTH - _LEFT) / len(bins)
    room = _HEIGHT - _TOP - _BOTTOM
    base = _TOP + room
    every = max(1, -(-int(_LABEL_EVERY * len(bins)) // (_WIDTH - _LEFT)))
    drawn = []
    for i, bin_ in enumerate(bins):
        height = max(room * bin_.count / highest, 1.0 if bin_.count else 0.0)
        x = _LEFT + i * step
        tip = text(f"{bin_.label} {what}: {bin_.count:,} {of}")
        drawn.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{base - height:.1f}" width="{max(step - 2, 1):.1f}" '
            f'height="{height:.1f}"><title>{tip}</title></rect>'
        )
        if i % every == 0:
            label = f"{bin_.low:,}" + ("+" if bin_.high is None else "")
            drawn.append(f'<text x="{x + 1:.1f}" y="{base + 16}">{label}</text>')
    for part in (0.5, 1.0):
        y = base - room * part
        drawn.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{round(highest * part):,}</text>')
    drawn.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{base}" y2="{base}"/>')
    drawn.append(f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{text(what)}</text>')
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" aria-label="{text(caption)}">'
        + "".join(drawn)
        + "</svg>"
    )
    rows = [(bin_.label, f"{bin_.count:,}") for bin_ in bins]
    figures = table(caption, (what.capitalize(), of.capitalize()), rows, frozenset({1}))
    details = f"<details><summary>As a table</summary>{figures}</details>"
    return f"<figure><figcaption>{text(caption)}</figcaption>{svg}{details}</figure>"
