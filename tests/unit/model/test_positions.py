"""How long a row may be: the table of learned positions, and the context of computed ones."""

from __future__ import annotations

import pytest
import torch
import transformers

from rankzero.model.context import Context, computed_context, stored_context
from rankzero.model.parts import position_limit

SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=40), 40),
        (transformers.OPTConfig(**SMALL, ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=40), 40),
        (transformers.LlamaConfig(**SMALL, max_position_embeddings=40), None),
    ],
)
def test_of_language_models(config: transformers.PretrainedConfig, limit: int | None) -> None:
    with torch.device("meta"):
        assert position_limit(transformers.AutoModelForCausalLM.from_config(config)) == limit


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (transformers.BertConfig(**SMALL, max_position_embeddings=40), 40),
        (transformers.RobertaConfig(**SMALL, max_position_embeddings=42, pad_token_id=1), 40),
        (transformers.DistilBertConfig(vocab_size=64, dim=16, n_layers=1, n_heads=2, max_position_embeddings=40), 40),
    ],
)
def test_of_encoders(config: transformers.PretrainedConfig, limit: int) -> None:
    with torch.device("meta"):
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    assert position_limit(model) == limit


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (transformers.LlamaConfig(**SMALL, max_position_embeddings=40), Context(40, extended=False)),
        (transformers.Qwen3Config(**SMALL, max_position_embeddings=40), Context(40, extended=False)),
        (transformers.Gemma3TextConfig(**SMALL, max_position_embeddings=40), Context(40, extended=False)),
        (
            transformers.LlamaConfig(**SMALL, max_position_embeddings=40, rope_parameters=YARN),
            Context(40, extended=True),
        ),
        (transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=40), None),
        (transformers.BertConfig(**SMALL, max_position_embeddings=40), None),
        (transformers.BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2), None),
    ],
)
def test_the_context_of_computed_positions(config: transformers.PretrainedConfig, context: Context | None) -> None:
    assert computed_context(config) == context
    assert stored_context(config.to_dict()) == context


@pytest.mark.parametrize(
    ("scaling", "extended"),
    [
        (None, False),
        ({"type": "mrope"}, False),
        ({"type": "yarn", "factor": 4.0}, True),
        ({"rope_type": "llama3"}, True),
    ],
)
def test_the_context_in_an_older_config(scaling: dict[str, object] | None, extended: bool) -> None:
    """As config.json was before transformers 5, and with the text model's part in a section of its own."""
    config = {"max_position_embeddings": 40, "rope_theta": 1e4, "rope_scaling": scaling}
    assert stored_context(config) == stored_context({"text_config": config}) == Context(40, extended)
    assert stored_context({"max_position_embeddings": 40}) is None
