"""What a function was called with: said in words, before a model is looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import rankzero
from rankzero.api import arguments
from rankzero.api.results import predict
from rankzero.errors import UsageError

ONE: Any = "Ping"


@pytest.mark.parametrize(
    ("call", "where", "words"),
    [
        (lambda: rankzero.generate("none", ONE), "prompts", r"it is one text\n  hint: give a list.*\['Ping'\]"),
        (lambda: rankzero.generate("none", cast(Any, None)), "prompts", "of type NoneType"),
        (lambda: rankzero.generate("none", ["a", cast(Any, {})]), "prompts 2", "of type dict, and no text"),
        (lambda: predict("none", ONE), "texts", "it is one text"),
        (lambda: rankzero.generate("none", ["a"], max_new_tokens=0), "max_new_tokens", "it is 0"),
        (lambda: rankzero.generate("none", ["a"], max_new_tokens=cast(Any, 1.5)), "max_new_tokens", "it is 1.5"),
        (lambda: rankzero.load_spec("r.yaml", cast(Any, ["lora.r=4"])), "overrides", "of type list.*give a mapping"),
        (lambda: rankzero.plan(cast(Any, 3), "docker"), "spec", "of type int.*give a run.yaml"),
        (lambda: rankzero.train("none.yaml", nproc_per_node=0), "nproc_per_node", "it is 0"),
        (lambda: rankzero.train("none.yaml", nproc_per_node=cast(Any, "2")), "nproc_per_node", "it is '2'"),
        (lambda: rankzero.dry_run("none.yaml", nproc_per_node=0), "nproc_per_node", "it is 0"),
        (
            lambda: rankzero.data.check("r.jsonl", reasoning=cast(Any, "no")),
            "reasoning",
            "there is no 'no'.*keep",
        ),
        (lambda: rankzero.data.check("r.jsonl", max_length=0), "max_length", "at least 8"),
        (lambda: rankzero.data.show("r.jsonl", "m", rows=0), "rows", "it is 0"),
        (lambda: rankzero.data.show("r.jsonl", "m", line=-1), "line", "it is -1"),
        (lambda: rankzero.evaluate("none", "rows.jsonl", max_new_tokens=-1), "max_new_tokens", "it is -1"),
    ],
)
def test_what_no_call_can_mean_is_said(call: Callable[[], object], where: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){words}") as caught:
        call()
    assert caught.value.problems[0].where == where


def test_all_texts_of_an_iterator_are_taken() -> None:
    assert arguments.texts((text for text in ("a", "b")), "prompts") == ["a", "b"]


def test_what_is_handed_on_is_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.engine import ask

    asked: list[object] = []
    monkeypatch.setattr("rankzero.run_dir.result.find_result", lambda *_, **__: cast(Any, _Result))
    monkeypatch.setattr(ask, "ask", lambda _result, prompts, **_: asked.append(prompts) or [])
    monkeypatch.setattr(ask, "put_into_classes", lambda _result, texts: asked.append(texts))
    rankzero.generate("r", iter(["a", "b"]))
    predict("r", iter(["c"]))
    assert asked == [["a", "b"], ["c"]]


class _Result:
    adapter, changed = "there", ()
