"""The card of a result: valid for the Hub, honest about the base, harmless whatever others have written."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankzero.redaction import HIDDEN
from rankzero.run_dir.card import NOT_STATED, Card, DataFile, Licence, card_text, hub_id, licence_of, read_samples
from rankzero.run_dir.load_snippets import Form, Kind, Loading, python

CARD = Card(
    name="my-run",
    base="org/base",
    base_id="org/base",
    licence=Licence("apache-2.0", "", "README.md"),
    kind="causal",
    form="adapter",
    rank=12,
    is_chat=True,
    datasets=("org/rows",),
    data=(DataFile("train", "rows.jsonl", 1234, "ab" * 32), DataFile("eval", "eval.jsonl", None, None)),
    fingerprint="cd" * 32,
    settings=(("learning_rate", "0.0002"),),
    scores=(("train loss", 2.5, 0.5), ("eval_loss", None, 0.75), ("accuracy", None, None)),
    samples=(("Why?", "No.", "Yes."),),
    version="1.2",
)


def front_matter(text: str) -> dict[str, Any]:
    value = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(value, dict)
    return value


def test_the_hub_reads_its_head() -> None:
    from huggingface_hub import ModelCard

    text = card_text(CARD)
    assert front_matter(text) == {
        "base_model": "org/base",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["rankzero", "lora", "my-run"],
        "license": "apache-2.0",
        "datasets": ["org/rows"],
    }
    read = ModelCard(text)
    assert read.data.base_model == "org/base" and read.data.license == "apache-2.0"
    assert "| train | rows.jsonl | 1,234 | `" + "ab" * 32 in text and "| eval | eval.jsonl |  |  |" in text
    assert "| train loss | 2.5 | 0.5 |" in text and "accuracy" not in text
    assert "Licence of the base: apache-2.0 (README.md of the base)." in text
    own = "--tokenizer . --generation-config ."
    assert f"vllm serve org/base {own} --enable-lora --max-lora-rank 16 --lora-modules my-run=." in text


def test_a_card_comes_back_from_its_json() -> None:
    assert Card.from_json(json.loads(json.dumps(CARD.to_json()))) == CARD


def test_the_words_of_others_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in them ends a table, a block or the head, and no secret is on the card or in what is kept of it."""
    monkeypatch.setenv("MY_TOKEN", "very-secret-value")
    evil = "a | b\n---\n```\n<img src=x> very-secret-value hf_abcdefghijklmnopqrstuvwx"
    card = replace(
        CARD,
        base=evil,
        base_id=None,
        licence=Licence("other", evil, "LICENSE"),
        data=(DataFile("train", evil, 1, None),),
        settings=(("x", evil),),
        samples=((evil, evil, evil),),
    )
    text = card_text(card)
    assert front_matter(text)["license_name"].startswith("a | b") and "base_model" not in front_matter(text)
    body = text.split("---\n", 2)[2]
    for kept in (text, json.dumps(card.to_json())):
        assert "very-secret-value" not in kept and "hf_abc" not in kept and HIDDEN in kept
    outside = re.sub(r"^    .*$", "", body, flags=re.MULTILINE)  # samples are blocks by their indent
    assert "<img" not in outside.replace("\\<img", "") and outside.count("```") == 4
    rows = [line for line in outside.splitlines() if line.startswith("| train |")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [5]


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, Licence()),
        ({"README.md": "---\nlicense: mit\n---\n# x"}, Licence("mit", "", "README.md")),
        ({"README.md": "---\nlicense: [gemma, mit]\n---"}, Licence("gemma", "", "README.md")),
        (
            {"README.md": "---\nlicense: other\nlicense_name: qwen-research\n---\n"},
            Licence("other", "qwen-research", "README.md"),
        ),
        ({"README.md": "---\nlicense: unknown\n---\n", "LICENSE": "Apache License\n"}, "apache-2.0"),
        ({"README.md": "---\n: : [\n---\n", "config.json": '{"license": "bsd-3-clause"}'}, "bsd-3-clause"),
        (
            {"LICENSE.md": "# The Own Terms of Someone\nYou may.\n"},
            Licence("other", "The Own Terms of Someone", "LICENSE.md"),
        ),
        ({"LICENSE": "MIT\n\nPermission is hereby granted, free of charge, to"}, "mit"),
    ],
)
def test_the_licence_is_what_the_bases_own_files_say(files: dict[str, str], found: Any, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    licence = licence_of(tmp_path)
    assert licence == found if isinstance(found, Licence) else licence.name == found
    assert (licence.in_words == NOT_STATED) is (not files)


def test_only_names_of_the_hub_are_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org/here").mkdir(parents=True)
    assert hub_id("org/there", elsewhere=False) == "org/there" == hub_id("org/there", elsewhere=True)
    assert hub_id("org/here", elsewhere=False) is None and hub_id("org/here", elsewhere=True) == "org/here"
    for local in ("/models/base", "./base/x", "base", "a/b/c", "x/model.gguf"):
        assert hub_id(local, elsewhere=False) is None, local


@pytest.mark.parametrize("kind", ["causal", "vision", "classifier"])
@pytest.mark.parametrize("form", ["adapter", "merged", "whole"])
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_scripts_are_python(kind: Kind, form: Form, quantization: str) -> None:
    code = python(Loading(kind, form, quantization, labels=("a", "b")))
    compile(code, "card", "exec")
    assert ("PeftModel" in code) is (form == "adapter")
    assert ("four_bits" in code) is (form == "adapter" and quantization == "nf4")


@pytest.mark.parametrize("kind", ["causal", "vision", "classifier"])
@pytest.mark.parametrize("form", ["adapter", "merged", "whole"])
def test_code_of_the_models_own_is_trusted_wherever_it_is_needed(kind: Kind, form: Form) -> None:
    own = dataclasses.replace(CARD, kind=kind, form=form, own_code=True, rank=8, labels=("a", "b"))
    text = card_text(own)
    loads = [line for line in text.splitlines() if ".from_pretrained(" in line and "Auto" in line]
    assert len(loads) == 2 and all("trust_remote_code=True" in line for line in loads)
    assert ("--trust-remote-code" in text) is ("vllm serve" in text) is (kind != "classifier")
    assert (f"rankzero {'predict' if kind == 'classifier' else 'generate'} ." in text) is (form != "merged")
    assert "```\n\n```\n" not in text and "trust" not in card_text(dataclasses.replace(own, own_code=False))


def test_samples_are_on_the_card(tmp_path: Path) -> None:
    """Of the weights that the card is about, and from before the first step."""
    lines = [
        {"step": 0, "prompt": "Why?", "text": "No."},
        {"step": 4, "prompt": "Why?", "text": "Maybe."},
        {"step": 8, "prompt": "Why?", "text": "Because\n```\nof <that>."},
        {"step": 4, "prompt": "Begun late", "text": "once"},
        {"step": 8, "prompt": "Begun late", "text": "twice"},
        {"step": 0, "prompt": "Left out", "text": "once"},
        {"step": 4, "prompt": "Left out", "text": "twice"},
    ]
    path = tmp_path / "samples.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 9, "prom')
    assert read_samples(path, 8) == (("Why?", "No.", "Because\n```\nof <that>."),)
    assert read_samples(path, 4) == (("Why?", "No.", "Maybe."), ("Left out", "once", "twice"))
    assert read_samples(path, 0) == read_samples(path, 6) == ()
    assert read_samples(tmp_path / "none.jsonl", 8) == ()


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_a_sample_may_hold_what_ends_a_line_elsewhere(end: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    rows = [{"step": step, "prompt": "Why?", "text": f"{step}{end}."} for step in (0, 8)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert read_samples(path, 8) == (("Why?", f"0{end}.", f"8{end}."),)


def test_the_base_is_named_with_its_revision() -> None:
    pinned = dataclasses.replace(CARD, revision="v1.5", rank=8)
    assert "vllm serve org/base --revision v1.5 --tokenizer ." in card_text(pinned)
    assert "revision='v1.5'" in card_text(pinned)
    for other in (dataclasses.replace(pinned, base_id=None), dataclasses.replace(pinned, form="merged"), CARD):
        assert "revision" not in card_text(other)


def test_no_command_of_a_card_writes_into_the_result() -> None:
    """Which is replaced whole where its run goes on, and pushed whole."""
    text = card_text(replace(CARD, served_apart=False))
    assert re.findall(r"rankzero merge \. -o (\S+?)[`\n]", text) == ["../merged", "../merged"]
