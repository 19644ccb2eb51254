"""Ranks that are sent their weights have an outline of the model, which has to be that of what the main one loads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM

from rankzero.engine.parallel import placing
from rankzero.engine.parallel.placing import check_same_model, keep_as_stored
from tests.support.tiny_configs import CONFIGS


@pytest.mark.parametrize(("stored", "held"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_model_is_loaded_as_stored_and_described_as_it_will_be_held(
    stored: torch.dtype, held: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma 3 has a buffer in the precision that it is loaded in."""
    config = CONFIGS["gemma3"]().get_text_config()
    loaded = Gemma3ForCausalLM._from_config(config, dtype=stored)
    with torch.device("meta"):
        outline = Gemma3ForCausalLM._from_config(config, dtype=held)
    assert {b.dtype for b in loaded.buffers()} != {b.dtype for b in outline.buffers()}
    keep_as_stored(loaded, outline)
    digests: list[Any] = []
    monkeypatch.setattr(placing, "gather_objects", lambda digest: digests.append(digest) or digests)
    check_same_model(outline)
    check_same_model(loaded)
    assert {p.dtype for p in loaded.parameters()} == {stored}
