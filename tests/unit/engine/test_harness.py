"""What lm-eval is given of a result: a stand-in for its model class does what HFLM does as it is made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from httpx2 import ConnectError

from rankzero.engine.chat import Voice
from rankzero.engine.harness import run_tasks
from rankzero.engine.setup import to_train
from rankzero.errors import ServiceError
from rankzero.model.generate import Speaker
from rankzero.model.lora import load_adapter
from rankzero.model.weights import export_final
from tests.support.tiny import tiny_tokenizer
from tests.support.tiny_configs import CONFIGS
from tests.unit.model.support import loaded, logits, saved, shaken, spec_of


class TyingModel:
    """As lm-eval's HFLM is made of a loaded model (0.4.9)."""

    def __init__(self, *, pretrained: Any, tokenizer: Any, batch_size: int) -> None:
        del tokenizer, batch_size
        self.model, self.chat_template_args = pretrained, {}
        self.model.eval()
        self.model.tie_weights()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TyingModel]:
    """The models that were asked."""
    found: list[TyingModel] = []

    def simple_evaluate(*, model: TyingModel, **_asked: Any) -> dict[str, Any]:
        found.append(model)
        return {"results": {"own": {"acc,none": 0.5}}}

    for name, content in {
        "lm_eval": {"simple_evaluate": simple_evaluate},
        "lm_eval.models": {},
        "lm_eval.models.huggingface": {"HFLM": TyingModel},
    }.items():
        monkeypatch.setitem(sys.modules, name, cast(ModuleType, SimpleNamespace(**content)))
    return found


PLAIN = CONFIGS["llama"]


def tied() -> Any:
    config = PLAIN()
    config.tie_word_embeddings = True
    return config


@pytest.mark.parametrize("config", [PLAIN, tied])
@pytest.mark.parametrize(
    "lora",
    [
        {},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"trainable_token_indices": [5, 6]},
    ],
)
def test_every_adapter_is_asked_as_it_is(
    lora: dict[str, Any],
    config: Callable[[], Any],
    asked: list[TyingModel],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CONFIGS, "llama", config)
    source = saved("llama", tmp_path / "base")
    spec = spec_of(lora={"dropout": 0, **lora})
    adapted = shaken(
        to_train(loaded(source, spec), spec, base_name="base", tokens=lora.get("trainable_token_indices", ()))
    )
    (tmp_path / "final").mkdir()
    export_final(adapted, tiny_tokenizer(), tmp_path / "final", dtype=torch.float32, stop_ids=[2])
    model = load_adapter(loaded(source, spec), tmp_path / "final").eval()
    before = logits(model)
    speaker = Speaker(model, tiny_tokenizer(), None, {"enable_thinking": False})
    voice = cast(Voice, SimpleNamespace(speaker=speaker, name="tuned", muted=nullcontext))
    assert run_tasks([voice], ["own"], None, limit=None, batch_size=1) == {"own": {"tuned": {"acc,none": 0.5}}}
    assert asked[0].model is model and torch.equal(logits(model), before)
    assert asked[0].chat_template_args == {"enable_thinking": False}


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach 'allenai/ai2_arc' on the Hub"), ConnectError("no")])
def test_a_place_that_cannot_be_reached_is_no_fault_of_the_task(
    error: Exception, asked: list[TyingModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_asked: Any) -> None:
        raise error

    monkeypatch.setattr(sys.modules["lm_eval"], "simple_evaluate", fail)
    model = loaded(saved("llama", tmp_path / "base"), spec_of())
    speaker = Speaker(model, tiny_tokenizer(), None)
    voice = cast(Voice, SimpleNamespace(speaker=speaker, name="tuned", muted=nullcontext))
    with pytest.raises(ServiceError, match="the harness cannot fetch"):
        run_tasks([voice], ["own"], None, limit=None, batch_size=1)
    assert asked == []
