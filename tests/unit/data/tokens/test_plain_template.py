"""The plain chat template: for whom, how it reads, and that what is trained with it is used with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from rankzero.api.tokenizers import TokenizerPlace, load_tokenizer, served_prompt
from rankzero.data.cache.tokenize import prepare
from rankzero.data.inspect.report import Sample
from rankzero.data.inspect.serving import compare
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert
from rankzero.data.tokens.built_in_templates import read_template
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.spec.names import PLAIN_NOTE
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import tiny_tokenizer, write_jsonl
from tests.unit.data.support import chat, user_assistant

CHAT = chat(("system", "Be kind."), ("user", "Ping"), ("assistant", "Pong"), ("user", "And?"), ("assistant", "Pang"))


def base_tokenizer(*, bos: bool = False) -> Any:
    """A base model's: no chat template; with `bos`, one that begins every text with its BOS token."""
    tokenizer = tiny_tokenizer(chat_template=None, specials=("<s>", "</s>"), eos="</s>", bos="<s>")
    if bos:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.backend_tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def rendered(row: dict[str, Any], tokenizer: Any) -> Rendered:
    _, conversation = convert(row, 5)
    assert isinstance(conversation, Conversation)
    result = Renderer(take_apart(tokenizer), TokenRules()).render(conversation)
    assert isinstance(result, Rendered), result
    return result


def test_a_tokenizer_without_a_template() -> None:
    result = rendered(CHAT, base_tokenizer())
    assert result.text == (
        "### System:\nBe kind.\n\n### User:\nPing\n\n### Assistant:\nPong</s>"
        "\n\n### User:\nAnd?\n\n### Assistant:\nPang</s>"
    )
    assert [result.text[start:end] for start, end in result.spans] == ["Pong</s>", "Pang</s>"]
    assert result.notes == (PLAIN_NOTE,) and not result.add_eos and not result.raw


def test_a_text_begins_as_those_that_the_model_was_trained_on() -> None:
    assert rendered(CHAT, base_tokenizer(bos=True)).text.startswith("<s>### System:")
    assert rendered({"text": "t"}, base_tokenizer(bos=True)).notes == (), "raw text needs none"


def test_asked_for_by_name() -> None:
    for bos in (True, False):
        asked = base_tokenizer(bos=bos)
        asked.chat_template = read_template("plain", asked)
        assert rendered(CHAT, asked).text == rendered(CHAT, base_tokenizer(bos=bos)).text
        assert rendered(CHAT, asked).notes == ()
    assert "### User" in rendered(CHAT, with_plain(tiny_tokenizer())).text, "instead of the tokenizer's own"


def with_plain(tokenizer: Any) -> Any:
    tokenizer.chat_template = read_template("plain", tokenizer)
    return tokenizer


def test_it_is_used_as_it_was_trained() -> None:
    tokenizer = with_plain(base_tokenizer(bos=True))
    _, conversation = convert(CHAT, 1)
    assert isinstance(conversation, Conversation)
    rows = [Sample("f.jsonl", conversation, ".")]
    found = compare(rows, take_apart(tokenizer), TokenRules(), partial(served_prompt, tokenizer))
    assert found.answers == 2 and not found.causes, found.first


def test_calls_have_no_place_in_it() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    turns = [*user_assistant("q")["messages"], {"role": "assistant", "content": "", "tool_calls": [call]}]
    _, conversation = convert({"messages": turns}, 1)
    assert isinstance(conversation, Conversation)
    problem = Renderer(take_apart(base_tokenizer()), TokenRules()).render(conversation)
    assert not isinstance(problem, Rendered) and problem.reason == "tool calls left out by the chat template"


def test_rows_are_counted(tmp_path: Path, own_cache: Path) -> None:
    path = str(write_jsonl(tmp_path / "f.jsonl", [CHAT, {"text": "t"}, CHAT]))
    for _made_and_found in range(2):
        found = prepare([SourceSpec(path=path)], base_tokenizer(), TokenRules(), own_cache)
        assert found.stats.notes == {PLAIN_NOTE: 2}


def test_on_the_command_line(tmp_path: Path) -> None:
    base_tokenizer().save_pretrained(tmp_path)
    place = TokenizerPlace(str(tmp_path))
    assert load_tokenizer(place, None).chat_template is None
    assert "### Assistant" in load_tokenizer(place, Path("plain")).chat_template


@pytest.mark.parametrize("template", ["plain", "./plain"])
def test_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain").write_text("of the file")
    assert (read_template(template, base_tokenizer()) == "of the file") == (template == "./plain")
