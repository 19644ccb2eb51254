"""How long a row may be: the table of learned positions, and the context of computed ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText
from rankzero.data.batches.loader import Batches
from rankzero.model.context import Context, computed_context, position_borders, stored_borders, stored_context
from rankzero.model.parts import position_limit
from tests.unit.model.packed import CPU, Rows, losses, tiny

SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}

WIDTHS = {"vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 4}


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=40), 40),
        (transformers.OPTConfig(**SMALL, ffn_dim=16, word_embed_proj_dim=16, max_position_embeddings=40), 40),
        (transformers.OpenAIGPTConfig(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=40), 40),
        (transformers.GPTJConfig(**WIDTHS, rotary_dim=4, n_positions=40), 40),
        (transformers.CodeGenConfig(**WIDTHS, rotary_dim=4, n_positions=40), 40),
        (transformers.CTRLConfig(**WIDTHS, dff=16, n_positions=40), 40),
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
        (transformers.IBertConfig(**SMALL, max_position_embeddings=42, pad_token_id=1), 40),
        (transformers.CanineConfig(**SMALL, max_position_embeddings=40), 40),
    ],
)
def test_of_encoders(config: transformers.PretrainedConfig, limit: int) -> None:
    with torch.device("meta"):
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    assert position_limit(model) == limit


def test_of_a_table_that_lies_in_parts_on_several_processes() -> None:
    """DeepSpeed leaves an empty weight in its place."""
    config = transformers.GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=40)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.transformer.wpe.weight.data = torch.empty(0)
    assert position_limit(model) == 40


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
        ({"type": "dynamic", "factor": 2.0}, False),
    ],
)
def test_the_context_in_an_older_config(scaling: dict[str, object] | None, extended: bool) -> None:
    """As config.json was before transformers 5, and with the text model's part in a section of its own."""
    config = {"max_position_embeddings": 40, "rope_theta": 1e4, "rope_scaling": scaling}
    assert stored_context(config) == stored_context({"text_config": config}) == Context(40, extended)
    assert stored_context({"max_position_embeddings": 40}) is None


FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("model_type", "rope", "borders"),
    [
        ("phi3", {"rope_scaling": {"type": "longrope", **FACTORS}, "original_max_position_embeddings": 9}, (9,)),
        ("phi3", {"rope_scaling": {"rope_type": "longrope", **FACTORS}, "original_max_position_embeddings": 9}, (9,)),
        (
            "llama",
            {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 9, **FACTORS}},
            (9,),
        ),
        ("llama", {"rope_scaling": {"rope_type": "longrope", **FACTORS}}, (64,)),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ()),
        ("llama", {}, ()),
    ],
)
def test_the_borders_of_a_file_are_those_of_its_config(
    model_type: str, rope: dict[str, Any], borders: tuple[int, ...], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 64, "rope_theta": 1e4}
    config = {"model_type": model_type, **sizes, **rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert stored_borders(config) == stored_borders({"text_config": config}) == borders
    assert position_borders(transformers.AutoConfig.from_pretrained(tmp_path)) == borders


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 9}
LONGROPE |= {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0], "short_mscale": 1.0, "long_mscale": 1.3}


class Data(Rows):
    """Rows as a plan sees them, too."""

    def __init__(self) -> None:
        super().__init__((7, 12, 4, 9, 10, 15))
        self.lengths = np.array([len(ids) for ids in self.ids], np.int32)
        self.supervised = self.lengths // 2
        self.loss_weights = self.supervised.astype(np.float64)
        self.rejected_from = None

    def __len__(self) -> int:
        return len(self.ids)


@pytest.mark.parametrize("model_type", ["phi3", "phimoe"])
@pytest.mark.parametrize("collator", [PaddedText(), PackedText()], ids=["padded", "end to end"])
def test_rows_with_other_positions_have_other_passes(model_type: str, collator: PaddedText | PackedText) -> None:
    """Each row is computed as if it were alone, whatever else is in its pass; without borders it is not."""
    model = tiny(model_type, rope_parameters=LONGROPE, original_max_position_embeddings=9)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    assert position_borders(model.config) == (9,)
    data = Data()
    alone = {row: losses(model, collator(data, np.array([row]), CPU)) for row in range(len(data))}

    def furthest(borders: Sequence[int]) -> float:
        plan = Batches(
            data,  # type: ignore[arg-type]
            collator,
            rank=0,
            world_size=1,
            max_tokens=100,
            pass_cost=1000,
            same_passes=False,
        )
        plan.cut_by(borders)
        passes = plan.everything().passes
        assert sorted(np.concatenate(passes).tolist()) == list(range(len(data)))
        return max(
            float((found - alone[int(row)]).abs().max())
            for rows in passes
            for row, found in zip(
                rows,
                losses(model, collator(data, rows, CPU)).split([int(data.row(row)[1].sum()) for row in rows]),
                strict=True,
            )
        )

    with torch.no_grad():
        assert furthest([border + 1 for border in position_borders(model.config)]) < 1e-4 < furthest([]) / 100


def test_most_models_have_no_borders_between_rows() -> None:
    config = transformers.LlamaConfig(**SMALL, max_position_embeddings=40, rope_parameters=YARN)
    assert position_borders(config) == position_borders(transformers.BertConfig(**SMALL)) == ()
