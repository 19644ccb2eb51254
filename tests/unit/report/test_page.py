"""The pages: whole, in one file, and harmless whatever a run directory says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rankzero.redaction import HIDDEN
from rankzero.report.page import REFRESH_SECONDS, Live, compare_page, index_page, run_page, write_page
from rankzero.report.run import read_run
from rankzero.run_dir.paths import RunDir
from tests.support.run_directory import BEGUN, metrics, run_directory

EVIL = "<script>alert('x')</script><img src=x onerror=\"y\">{{ 7*7 }}&\u202e\x1b[2J\x00"
VOID = frozenset({"meta", "br", "input"})


class Page(HTMLParser):
    """What a browser would make of it; fails on tags that do not close in order."""

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
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def evil_directory(root: Path, words: str) -> Path:
    """A run that says `words` wherever somebody else's words are shown."""
    run_dir = RunDir(run_directory(root))
    row = {"step": 1, "loss": 1.0, words: 3.0}
    run_dir.metrics.write_text(json.dumps(row) + "\n" + json.dumps({**row, "step": 2}) + "\n")
    run_dir.spec.write_text(json.dumps({"name": words, "model": {"name": words}, words: {words: words}}))
    run_dir.environment.write_text(json.dumps({"device": words, "world_size": 1, words: words}))
    run_dir.merge.write_text(json.dumps({"directory": words, "base": words, words: words, "prompts": 10**400}))
    part = {"rows": 1, "dropped": {words: 1}, "notes": {words: 2}, "lengths": [[1, 5, 3]]}
    run_dir.data.write_text(json.dumps({words: part}))
    run_dir.samples.write_text(json.dumps({"step": 1, "prompt": words, "text": words}) + "\n")
    run_dir.restarts.write_text(json.dumps({"where": words, "what": words, "time": words}) + "\n")
    run_dir.report.write_text(json.dumps({"stragglers": [{"rank": words, "host": words, "slowdown": 2}]}))
    run_dir.log(0).write_text(f"10:00:00 WARNING {words}\n")
    return root


def test_curves_that_are_not_drawn_are_named(tmp_path: Path) -> None:
    run = RunDir(run_directory(tmp_path / "made"))
    mine = {f"mine_{number}": float(number) for number in range(30)}
    run.metrics.write_text(json.dumps({"step": 1, "loss": 1.0, **mine}) + "\n")
    page = read_run(run.root, BEGUN)
    for made in (run_page(page), compare_page([page, page])):
        assert made.count('id="chart-') == 24 and "Mine 29" in made
    assert "Not drawn" not in run_page(read_run(run_directory(tmp_path / "few"), BEGUN))


def test_whatever_a_run_says_is_text(tmp_path: Path) -> None:
    run = read_run(evil_directory(tmp_path / "made", EVIL), BEGUN)
    other = read_run(run_directory(tmp_path / "other"), BEGUN)
    live = Live(refresh=REFRESH_SECONDS, home="../../")
    for page in (run_page(run, live), compare_page([run, other], live), index_page(EVIL, [("made", run)], live)):
        parsed = Page(page)
        tags = {tag for tag, _ in parsed.tags}
        assert not tags & {"script", "img", "iframe", "object", "embed", "link", "base"}
        assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
        assert (
            "alert('x')" in parsed.text and "{{ 7*7 }}" in parsed.text and "\x1b" not in page and "\u202e" not in page
        )
        for _, attributes in parsed.tags:
            for name in ("src", "href", "action"):
                target = attributes.get(name)
                assert target is None or re.fullmatch(r"(\.\./)*|compare|run/made/", target), "no page reaches out"
        policies = [found for tag, found in parsed.tags if tag == "meta" and "Content-Security" in str(found)]
        assert policies[0]["content"] == "default-src 'none'; style-src 'unsafe-inline'"
        assert "url(" not in page and "@import" not in page and "http" not in page.replace("http-equiv", "")


def test_secrets_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their shape, and what variables hold; also in attributes."""
    monkeypatch.setenv("MY_API_KEY", "swordfish-17")
    words = "hf_abcdefghijklmnopqrstuv and swordfish-17 at https://me:pass4word@host/"
    run = read_run(evil_directory(tmp_path / "made", words), BEGUN)
    for page in (run_page(run), compare_page([run, read_run(run_directory(tmp_path / "other"), BEGUN)])):
        assert HIDDEN in page
        assert not [secret for secret in ("hf_abc", "swordfish", "pass4word") if secret in page]


def test_what_a_page_shows(tmp_path: Path) -> None:
    page = Page(run_page(read_run(run_directory(tmp_path / "made"), BEGUN)))
    headings = [attributes.get("id") for tag, attributes in page.tags if tag == "h2"]
    assert headings == [
        "warnings",
        "curves",
        "samples",
        "time",
        "cost",
        "data",
        "checkpoints",
        "merged",
        "environment",
        "spec",
    ]
    charts = [attributes["id"] for tag, attributes in page.tags if tag == "figure" and "id" in attributes]
    assert charts == ["chart-loss", "chart-learning_rate", "chart-grad_norm", "chart-tokens_per_second"]
    for words in ("Before training Blue.", "After step 60 Four.", "1 between", "[DATA] 3 rows are odd (2 times)"):
        assert words in page.text
    assert "learning_rate: 1e-4" in page.text or '"learning_rate": 0.0001' in page.text
    assert not [found for tag, found in page.tags if found.get("http-equiv") == "refresh"], "a file is what it is"


def test_a_spec_has_every_field_however_long_it_is(tmp_path: Path) -> None:
    """Hundreds of files of data come before what is trained with."""
    run_dir = RunDir(run_directory(tmp_path / "r"))
    files = "".join(f"  - /data/<{number}>/part.jsonl\n" for number in range(10_000))
    run_dir.spec.write_text(f"name: long\ndata:\n  train:\n{files}train: {{seed: 12345}}\n")
    text = run_dir.spec.read_text()
    assert len(text) > 250_000
    assert " ".join(text.split()) in Page(run_page(read_run(run_dir.root, BEGUN))).text


def test_several_runs_beside_each_other(tmp_path: Path) -> None:
    runs = [read_run(run_directory(tmp_path / place / "x", name="same"), BEGUN) for place in ("a", "b", "c")]
    (tmp_path / "c/x/run.yaml").write_text("name: same\ntrain: {learning_rate: 0.5, seed: 3}\n")
    runs[2] = read_run(tmp_path / "c/x", BEGUN)
    page = Page(compare_page(runs))
    assert "3 runs" in page.text and "same (1), train" in page.text and "same (3), eval" in page.text
    fields = re.findall(r"(model\.name|lora\.r|train\.\w+|name) Qwen", page.text)
    assert "train.learning_rate 0.0001 0.0001 0.5" in page.text and "seed" not in page.text and fields == ["model.name"]
    assert "The specs are the same." in compare_page(runs[:2])


def test_a_long_run_is_a_small_page(tmp_path: Path) -> None:
    root = run_directory(tmp_path / "made")
    metrics(RunDir(root), 20_000)
    page = run_page(read_run(root, BEGUN))
    assert len(page.encode()) < 200_000 and "20,000" in page


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_directory(tmp_path / "made")
    path = write_page(RunDir(root))
    assert path == root / "report.html" and "chart-loss" in path.read_text()
    path.write_text("an older one")
    monkeypatch.setattr("rankzero.report.page.run_page", lambda run: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(RunDir(root))
    assert path.read_text() == "an older one" and not list(root.glob(".tmp-*"))
