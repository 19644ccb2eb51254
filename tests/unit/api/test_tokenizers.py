"""The tokenizer of commands that only look at data, where its files are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.api.tokenizers import TokenizerPlace, load_context, load_tokenizer
from rankzero.errors import ConfigError
from tests.support.tiny import tiny_tokenizer


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", ""),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"model": {"type": "Newest"}}'),
        ("tokenizer_config.json", "{"),
        ("config.json", '{"model_type": "llama", "dtype": "bf16"}'),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_told(name: str, content: str, tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        load_tokenizer(TokenizerPlace(str(tmp_path)), None)
    assert caught.value.problems[0].where == str(tmp_path)


def test_a_config_that_makes_no_model_has_no_context(tmp_path: Path) -> None:
    """What is wrong with it is said where the model is needed; the data can be looked at."""
    (tmp_path / "config.json").write_text('{"model_type": "llama", "dtype": "bf16"}')
    assert load_context(TokenizerPlace(str(tmp_path))) is None
