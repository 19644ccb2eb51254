"""A token that joins the end of a template's head with the start of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import tiny_tokenizer, write_jsonl

MARKED = (
    "{% for m in messages %}{{ m.role.upper() + ': ' }}{% if m.role != 'assistant' %}{{ m.content + ' ' }}{% else %}"
    "{% generation %}{{ m.content + ' ' }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""As LLaVA's."""
OPENED = (
    "{% for m in messages %}{{ m.role.upper() + ': ' + m.content + (eos_token if m.role == 'assistant' else '\n') }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)
"""What is given in use ends with a space."""
ROWS = [("Ping", "Pong"), ("What is the capital of Peru?", "Lima is the capital"), ("And?", "  Indented, as code is")]


def tokenizer(template: str) -> Any:
    return tiny_tokenizer(chat_template=template, specials=("</s>",), eos="</s>", vocab_size=600)


def conversation(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def trained(template: str, tmp_path: Any, *, turns: int = 1) -> list[tuple[list[int], list[bool]]]:
    rows = [{"messages": conversation(*row) * turns} for row in ROWS]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    data = prepare([SourceSpec(path=str(path))], tokenizer(template), TokenRules(), tmp_path / "cache", workers=1)
    return [tuple(part.tolist() for part in data.row(number)) for number in range(len(data))]


@pytest.mark.parametrize("turns", [1, 2])
def test_it_is_trained_as_transformers_own_mask_has_it(turns: int, tmp_path: Any) -> None:
    own = tokenizer(MARKED)
    for row, (ids, mask) in zip(ROWS, trained(MARKED, tmp_path, turns=turns), strict=True):
        theirs = own.apply_chat_template(
            conversation(*row) * turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        # But for the space behind an answer, which has the end of the text in its place, or is none of its words.
        last = len(theirs["input_ids"]) - 1
        assert ids[:last] == theirs["input_ids"][:last]
        words = [at for at in range(last) if own.decode([ids[at]]).strip()]
        ours = [at for at in words if mask[at]]
        assert ours == [at for at in words if theirs["assistant_masks"][at]] and len(ours) >= turns


def test_the_words_of_an_answer_are_trained_where_the_head_ends_with_a_space(tmp_path: Any) -> None:
    own = tokenizer(OPENED)
    for (_, answer), (ids, mask) in zip(ROWS, trained(OPENED, tmp_path), strict=True):
        said = own.decode([token for token, learn in zip(ids, mask, strict=True) if learn])
        assert said.strip(" ") == f"{answer.strip(' ')}</s>"


def test_a_line_break_of_the_head_stays_what_the_model_is_given(tmp_path: Any) -> None:
    """Where an answer begins with one, both may be one token, which stands for more than the answer."""
    template = OPENED.replace("': '", "':\n'").replace("'ASSISTANT: '", "'ASSISTANT:\n'")
    for (_, answer), (ids, mask) in zip(ROWS, trained(template, tmp_path), strict=True):
        own = tokenizer(template)
        said = own.decode([token for token, learn in zip(ids, mask, strict=True) if learn])
        assert said == f"{answer}</s>"
