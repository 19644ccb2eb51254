"""Environments of templates: each has its own rules, and none compiles what another has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment

from rankzero.html import page


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a template of its own beside the shared ones."""
    directory = tmp_path / f"pages_of_{tmp_path.name}"  # a name that no other test has imported
    directory.mkdir()
    (directory / "__init__.py").touch()
    (directory / "one.html.jinja").write_text("{{ value }}: {{ number | count('row') }}")
    monkeypatch.syspath_prepend(tmp_path)
    return directory.name


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The names of templates that are compiled."""
    names: list[Any] = []
    compile_ = Environment.compile

    def note(self: Environment, source: Any, name: str | None = None, *rest: Any, **more: Any) -> Any:
        names.append(name)
        return compile_(self, source, name, *rest, **more)

    monkeypatch.setattr(Environment, "compile", note)
    return names


def test_a_template_is_compiled_once_in_a_process(package: str, compiled: list[Any], tmp_path: Path) -> None:
    for _ in range(3):
        text = page.environment(package).get_template("one.html.jinja").render(value="<b>", number=2)
        assert text == "&lt;b&gt;: 2 rows"
    assert compiled == ["one.html.jinja"]
    (tmp_path / package / "one.html.jinja").write_text("another: {{ value }}")
    assert page.environment(package).get_template("one.html.jinja").render(value=1) == "another: 1"
    assert len(compiled) == 2


def test_what_it_is_compiled_with_shows_values_by_its_own_rules(package: str) -> None:
    def shown(**rules: Any) -> str:
        return page.environment(package, **rules).get_template("one.html.jinja").render(value="secret", number=1)

    assert shown() == "secret: 1 row"
    assert shown(redact=lambda text: text.replace("secret", "[hidden]")) == "[hidden]: 1 row"
    assert shown(longest=3) == "sec…: 1 r…"
