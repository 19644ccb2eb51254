"""The pages in a browser, on a phone and on a desktop, light, dark and printed: what must be seen has a place there."""

from __future__ import annotations

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rankzero.report.page import compare_page, run_page
from rankzero.report.run import read_run
from tests.support.run_directory import BEGUN, run_directory

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

MEASURE = """
<script>
const box = element => {
  const one = element.getBoundingClientRect();
  return [one.left, one.top, one.width, one.height];
};
const framed = width => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  frame.onload = () => {
    const inside = frame.contentDocument, view = frame.contentWindow;
    const boxes = selector => [...inside.querySelectorAll(selector)].map(box);
    done({
      width: inside.documentElement.scrollWidth,
      headings: boxes("h1, h2"),
      plots: boxes(".plot svg"),
      lines: [...inside.querySelectorAll("path.line")].map(one => one.getTotalLength()),
      marks: boxes(".plot span"),
      facts: boxes(".facts > div"),
      samples: boxes(".samples h4"),
      texts: [...inside.querySelectorAll(".plot span, p, td, dd")].map(
        one => parseFloat(view.getComputedStyle(one).fontSize)),
      ground: view.getComputedStyle(inside.body).backgroundColor,
      ink: view.getComputedStyle(inside.body).color,
    });
  };
  frame.src = "page.html";
  document.body.append(frame);
});
(async () => {
  const found = [];
  for (const width of [390, 1280]) found.push(await framed(width));
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
})();
</script>
"""


class Found(HTMLParser):
    """The text of #found."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self._inside = "", False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = self._inside or dict(attrs).get("id") == "found"

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "pre"

    def handle_data(self, data: str) -> None:
        self.text += data if self._inside else ""


def browse(folder: Path, *arguments: str) -> str:
    """Chromium's standard output."""
    fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
    profile = f"--user-data-dir={folder / 'profile'}"
    words = [str(CHROMIUM), *fixed, profile, "--virtual-time-budget=20000", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout


def measured(folder: Path, page: str, *, dark: bool) -> list[dict[str, Any]]:
    """What a browser makes of a page, on a phone and on a desktop."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    (folder / "frames.html").write_text(f"<!doctype html><body>{MEASURE}", encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    shown = browse(folder, "--allow-file-access-from-files", scheme, "--dump-dom", (folder / "frames.html").as_uri())
    found: list[dict[str, Any]] = json.loads(Found(shown).text)
    return found


@pytest.mark.parametrize("dark", [False, True])
def test_a_run_on_a_phone_and_on_a_desktop(dark: bool, tmp_path: Path) -> None:
    words = "a-name-that-goes-on-" * 5
    run = read_run(run_directory(tmp_path / "made", name=words), BEGUN)
    phone, desktop = measured(tmp_path, run_page(run), dark=dark)
    for width, page in ((390, phone), (1280, desktop)):
        assert page["width"] <= width, "nothing is wider than the screen"
        assert len(page["headings"]) == 11 and all(w > 50 and h > 15 for _, _, w, h in page["headings"])
        assert len(page["plots"]) == 6 and all(w > 200 and h > 100 for _, _, w, h in page["plots"])
        assert len(page["lines"]) == 5 and min(page["lines"]) > 300, "curves are drawn"
        assert len(page["marks"]) > 30 and all(x >= 0 and x + w <= width for x, _, w, _ in page["marks"])
        assert len(page["facts"]) >= 8 and len(page["samples"]) == 3
        assert min(page["texts"]) >= 12, "legible without zooming"
        light, ink = (sum(int(one) for one in page[what][4:-1].split(",")) for what in ("ground", "ink"))
        assert light + 300 < ink if dark else ink + 300 < light
    lefts = {round(x) for x, _, _, _ in desktop["plots"]}
    assert (len({round(x) for x, _, _, _ in phone["plots"]}), len(lefts)) == (1, 2), "one column, or two"


def test_several_runs_on_a_phone_and_on_a_desktop(tmp_path: Path) -> None:
    runs = [read_run(run_directory(tmp_path / name, name=f"{name}-with-a-long-name" * 3), BEGUN) for name in "abc"]
    for width, page in zip((390, 1280), measured(tmp_path, compare_page(runs), dark=False), strict=True):
        assert page["width"] <= width and len(page["lines"]) == 3 * 5 and min(page["lines"]) > 300


def test_printed(tmp_path: Path) -> None:
    """Some pages of paper, whatever the screen's colours."""
    (tmp_path / "page.html").write_text(run_page(read_run(run_directory(tmp_path / "made"), BEGUN)), encoding="utf-8")
    paper = f"--print-to-pdf={tmp_path / 'page.pdf'}"
    browse(
        tmp_path,
        paper,
        "--no-pdf-header-footer",
        "--blink-settings=preferredColorScheme=0",
        (tmp_path / "page.html").as_uri(),
    )
    pdf = (tmp_path / "page.pdf").read_bytes()
    sheets = pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ")
    assert pdf.startswith(b"%PDF") and 2 <= sheets <= 6
