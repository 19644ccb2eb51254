"""`rankzero report`: which page goes where, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.report import live
from tests.support.cli import Cli
from tests.support.run_directory import run_directory


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_directory(tmp_path / "runs/first")
    run_directory(tmp_path / "runs/second", name="second", ended=None)


def test_pages_go_into_their_runs(cli: Cli) -> None:
    done = cli("report runs/first runs/second")
    assert (done.code, done.out.split()) == (0, ["runs/first/report.html", "runs/second/report.html"])
    assert "Finished" in Path("runs/first/report.html").read_text()
    assert "Killed" in Path("runs/second/report.html").read_text(), "a run that made none itself"
    done = cli("report first --output page.html")
    assert (done.code, done.out.split()) == (0, ["page.html"]) and "chart-loss" in Path("page.html").read_text()


def test_several_beside_each_other(cli: Cli) -> None:
    done = cli("report runs/first runs/second --compare")
    assert (done.code, done.out.split()) == (0, ["compare.html"])
    assert "second, train" in Path("compare.html").read_text()
    assert cli("report runs/first runs/second --compare --output both.html").code == 0
    assert Path("both.html").read_text().count("<h1>") == 1


@pytest.mark.parametrize("line", ["report first --output mine.html", "report first second --compare"])
def test_no_file_of_somebody_else_is_replaced(line: str, cli: Cli) -> None:
    """A page that was made before is: by the same command, mostly."""
    place = Path("mine.html" if "mine" in line else "compare.html")
    assert [cli(line).code for _ in range(2)] == [0, 0]
    place.write_text("<!doctype html>\n<p>what I have found</p>\n")
    done = cli(line)
    assert done.code == 78 and f"{place}: there is a file" in done.err and "--output" in done.err
    assert "what I have found" in place.read_text()
    place.write_text("")
    assert cli(line).code == 0 and "chart-loss" in place.read_text(), "as mktemp makes it"


def test_a_page_for_another_program(cli: Cli) -> None:
    done = cli("report first --output -")
    assert done.code == 0 and done.out.startswith("<!doctype html>") and done.out.endswith("</html>")
    assert not Path("-").exists()
    assert cli("report first --output ./-").code == 0
    assert "chart-loss" in Path("-").read_text(), "that is the name of a file"


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("report", 2, "name a run directory"),
        ("report runs/first --compare", 2, "two runs or more"),
        ("report runs/first runs/second --output x.html", 2, "--compare"),
        ("report --live --output x.html", 2, "--output"),
        ("report runs/frist", 78, "did you mean runs/first?"),
        ("report runs", 78, "this holds runs"),
        ("report . --compare runs/first", 78, "run.yaml is missing"),
        ("report --live nowhere", 78, "no such directory"),
        ("report runs/first --output /dev/null/x.html", 74, "--output"),
    ],
)
def test_what_is_said_instead(line: str, code: int, words: str, cli: Cli) -> None:
    done = cli(line)
    assert done.code == code and words in done.err and not Path("compare.html").exists()


def test_it_serves_until_ctrl_c(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    sites: list[live.Site] = []
    real = live.served

    def served(places: list[Path]) -> object:
        opened = real(places)
        sites.append(opened.__enter__()[1])
        opened.__exit__(None, None, None)
        return real(places)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live, "served", served)
    monkeypatch.setattr("rankzero.cli.report.time.sleep", interrupted)
    done = cli("report --live")
    assert done.code == 0 and done.out.startswith("http://127.0.0.1:") and set(sites[0].runs()) == {"first", "second"}
    done = cli("report --live --compare runs/second runs/first")
    assert done.out.strip().endswith("/compare?run=second&run=first")
    assert cli("report --live --compare second first").out.strip().endswith("/compare?run=second&run=first")
    run_directory(Path("runs/größe 1&2"), name="third")
    query = cli("report --live --compare first 'runs/größe 1&2'").out.strip().partition("?")[2]
    page = live.Site([Path("runs")], "token").get(f"/token/compare?{query}").body
    assert "third, train" in page, "of a name that a URL has in other characters"
    assert cli("report --live first").code == 0 and set(sites[-1].runs()) == {"first"}
    monkeypatch.chdir("..")
    Path("empty").mkdir()
    monkeypatch.chdir("empty")
    assert cli("report --live").code == 0 and sites[-1].runs() == {}
    run_directory(Path("runs/begun-later"))
    assert set(sites[-1].runs()) == {"begun-later"}
