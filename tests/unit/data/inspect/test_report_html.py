"""The report as a page and as lines: whole, self-contained, and safe whatever the data says."""

from __future__ import annotations

import json
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from rankzero.api.tokenizers import served_prompt
from rankzero.data.inspect.report import CheckReport
from rankzero.data.inspect.report_html import report_html
from rankzero.data.inspect.report_text import _Page, bars, percent, report_lines
from rankzero.data.inspect.serving import Comparison, compare
from rankzero.data.inspect.statistics import Bin, Counts, histogram
from rankzero.data.inspect.token_counts import Tokens
from rankzero.data.inspect.validate import CheckOptions, check
from rankzero.data.rows.problems import ProblemLog, RowProblem
from rankzero.data.tokens.chat import TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.html.page import shown
from rankzero.spec.run_spec import SourceSpec
from tests.support.families import family_tokenizer
from tests.unit.data.support import GOOD, GOOD_TEXT, user_assistant, write

EVIL = "<script>alert('x')</script><img src=x onerror=\"y\">&\u202e\x1b[2J\x00"


class Page(HTMLParser):
    """What a browser would make of it; fails on tags that do not close in order."""

    VOID = frozenset({"meta", "line", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def everything(tmp_path: Path) -> tuple[CheckReport, Comparison]:
    """A report with something in every part."""
    tokenizer = family_tokenizer("empty_thought")
    parts, rules = take_apart(tokenizer), TokenRules(max_length=64)
    rows = [json.dumps(user_assistant("q" * i, "pong " * i) | {"lang": "en"}).encode() for i in range(1, 60)]
    evil = {"text": "t", EVIL: 1, "lang": "e<b>"}
    train = write(tmp_path / "train.jsonl", *rows, rows[3], b"", json.dumps(evil).encode(), b'{"role":"<b>oops</b>"')
    held_out = write(tmp_path / "eval.jsonl", rows[7], GOOD, GOOD_TEXT)
    report = check(
        [SourceSpec(path=train)],
        CheckOptions(Tokens(parts, rules), quarantine=tmp_path / "q.jsonl", samples=50),
        evaluation=[SourceSpec(path=held_out)],
    )
    return report, compare(report.samples, parts, rules, partial(served_prompt, tokenizer))


class TestPage:
    def test_it_needs_nothing_else(self, everything: tuple[CheckReport, Comparison]) -> None:
        html = report_html(*everything)
        page = Page(html)
        assert not page.named("script") and not page.named("link") and not page.named("img") and "url(" not in html
        assert "http:" not in html and "https:" not in html
        assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
        policy = [meta for meta in page.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
        assert policy[0]["content"] == "default-src 'none'; style-src 'unsafe-inline'"
        assert "prefers-color-scheme: dark" in html and html.isprintable() is False  # newlines, and nothing else
        assert all(character.isprintable() or character == "\n" for character in html)

    def test_what_a_reader_who_does_not_see_it_needs(self, everything: tuple[CheckReport, Comparison]) -> None:
        page = Page(report_html(*everything))
        assert page.named("html")[0]["lang"] == "en" and len(page.named("h1")) == len(page.named("main")) == 1
        assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.named("svg"))
        assert all(head.get("scope") == "col" for head in page.named("th"))
        assert len(page.named("caption")) == len(page.named("table"))
        assert len(page.named("details")) == len(page.named("svg"))
        ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
        labelled = [attributes["aria-labelledby"] for _, attributes in page.tags if "aria-labelledby" in attributes]
        assert len(ids) == len(set(ids)) and set(labelled) == set(ids)

    def test_on_a_phone_each_cell_says_what_it_is_of(self, everything: tuple[CheckReport, Comparison]) -> None:
        html = report_html(*everything)
        page = Page(html)
        heads = set(re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', html))
        assert page.named("td") and {cell["data-head"] for cell in page.named("td")} <= heads
        narrow = html.partition("@media (max-width: 40rem)")[2].partition("\n}")[0]
        assert "table, caption, tbody, tr, td { display: block; }" in narrow and "attr(data-head)" in narrow

    def test_every_finding_is_in_it(self, everything: tuple[CheckReport, Comparison]) -> None:
        report, comparison = everything
        assert report.counts.tokens is not None
        report.counts.tokens.notes["rendered with qwen3"] = 1
        page = Page(report_html(report, comparison, "My data"))
        for found in (
            "My data",
            "1 problem found.",
            "not valid JSON",
            report.files[0],
            "messages",
            "keys messages",
            "Copies of an earlier example: 1 of 64 examples; to evaluate on and also trained on: 1.",
            "also trained on",
            "Tokens an example, before anything is cut",
            "Truncated",
            "Rendered with qwen3",
            "think block in serving",
            "In quarantine",
            "In use the template opens with",
        ):
            assert found in page.text, found
        bars_drawn = [rect for rect in page.named("rect") if rect["class"] == "bar"]
        assert len(bars_drawn) == sum(
            len(histogram(counter, most))
            for counter, most in (
                (report.counts.tokens.lengths if report.counts.tokens else {}, 24),
                (report.counts.characters, 24),
                (report.counts.turns, 12),
            )
        )

    def test_nothing_of_the_data_is_markup(self, everything: tuple[CheckReport, Comparison]) -> None:
        report, comparison = everything
        html = report_html(report, comparison, EVIL)
        page = Page(html)
        assert "<script>alert('x')</script>" in page.text and "<b>oops" not in html
        assert page.text.count('<img src=x onerror="y">') >= 2  # the title, and a key that is not read
        assert "\u202e" not in html and "\x1b" not in html and "\x00" not in html

    @settings(max_examples=50, deadline=None)  # the first page compiles the template
    @given(st.text(max_size=80))
    def test_any_text(self, value: str) -> None:
        log = ProblemLog()
        log.add(value, [RowProblem(1, value, value, value)])
        counts = Counts(rows=1, bad=1)
        for counter in (counts.formats, counts.roles, counts.labels, counts.languages, counts.ignored_keys):
            counter[value] += 1
        html = report_html(CheckReport((value,), counts, log), None, value)
        html.encode()
        page = Page(html)
        assert not page.named("script") and not page.named("img")

    def test_many_problems_and_names(self) -> None:
        log = ProblemLog()
        log.add("f.jsonl", (RowProblem(line, f"reason {line % 3}", "what") for line in range(1, 1000)))
        counts = Counts(rows=999, bad=999)
        counts.labels.update({f"label {i}": i + 1 for i in range(50)})
        page = Page(report_html(CheckReport(("f.jsonl",), counts, log)))
        assert "699 more problems" in page.text and "20 more" in page.text and "label 49" in page.text

    def test_empty_report(self) -> None:
        page = Page(report_html(CheckReport((), Counts(), ProblemLog())))
        assert "Every row can be read." in page.text and not page.named("svg")
        assert not page.named("table") and not page.named("figure")  # none of them without rows

    def test_text_is_cut_and_has_nothing_that_cannot_be_seen(self) -> None:
        assert str(shown("a" * 5000)).endswith("…") and len(str(shown("a" * 5000))) == 2001
        assert shown("<\ud800\u200f\n>") == "<\ufffd\ufffd\n>"
        html = report_html(CheckReport(("<\ud800\u200f\n>",), Counts(), ProblemLog()))
        assert "&lt;\ufffd\ufffd\n&gt;" in html


class TestLines:
    @pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
    def test_they_fit(self, everything: tuple[CheckReport, Comparison], width: int) -> None:
        lines = report_lines(*everything, width)
        assert max(map(cell_len, lines)) <= max(40, width)
        assert not [character for line in lines for character in line if not character.isprintable()]
        assert [line for line in lines if line != line.rstrip()] == []

    @pytest.mark.parametrize("length", range(20, 60))
    def test_a_path_of_any_length_leaves_no_spaces_behind_it(self, length: int) -> None:
        page = _Page(40)
        page.say("in both", [f"{'/' * length}:60, the same as {'/' * 40}:1"])
        assert [line for line in page.lines if line != line.rstrip() or len(line) > 40] == []

    def test_every_finding_is_in_them(self, everything: tuple[CheckReport, Comparison]) -> None:
        report, comparison = everything
        lines = report_lines(report, comparison, 200)
        labels = [line[:13].strip() for line in lines if line[:1].strip()]
        assert labels == [
            "rows", "readable", "bad", "blank lines", "formats", "turns", "roles", "languages", "not read",
            "duplicates", "in both", "tokens", "truncated", "dropped", "unopened", "tokens an exa", "serving",
        ]  # fmt: skip
        page = "\n".join(lines)
        assert "rows         65 in 2 files" in page and "bad          1 (1.5%), 1 of them written to quarantine" in page
        assert "train.jsonl:60, the same as" in page and "eval.jsonl:1, the same as" in page
        assert "think block in serving: " in page and "turn 2, character" in page

    def test_without_anything_to_say(self) -> None:
        assert report_lines(CheckReport((), Counts(), ProblemLog())) == ["rows         0 in 0 files", "readable     0"]

    @settings(max_examples=100)
    @given(st.dictionaries(st.integers(0, 10**7), st.integers(1, 10**7), min_size=1, max_size=20), st.integers(30, 200))
    def test_bars(self, counter: dict[int, int], width: int) -> None:
        bins = histogram(counter)
        drawn = bars(bins, width)
        lengths = [sum(character in "█▉▊▋▌▍▎▏" for character in line) for line in drawn]
        assert max(map(len, drawn)) <= min(60, max(width, 48))
        for bin_, length in zip(bins, lengths, strict=True):
            assert (length > 0) == (bin_.count > 0)
        assert lengths[max(range(len(bins)), key=lambda i: bins[i].count)] == max(lengths)

    def test_one_bar(self) -> None:
        assert bars([Bin(1, 1, 5)], 60) == ["  1 5 " + "█" * 53]

    def test_percent(self) -> None:
        shown: list[Any] = [percent(*parts) for parts in ((0, 0), (0, 5), (1, 100_000), (1, 8), (5, 5), (999, 1000))]
        assert shown == ["0%", "0%", "<0.1%", "12.5%", "100%", "99.9%"]
