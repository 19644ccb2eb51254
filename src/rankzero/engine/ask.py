"""Ask a run's result, or its base model, on this machine's device. Knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankzero.engine.device import pick_device, pick_dtype
from rankzero.model.generate import answer, load_for_generation
from rankzero.model.load import quiet_libraries
from rankzero.spec.run_spec import RunSpec


def ask_run(spec: RunSpec, run: Path, prompts: Sequence[str], *, max_new_tokens: int, base: bool) -> list[str]:
    """Greedy replies of final/ (adapter on its base, or full weights), or of the untrained base."""
    quiet_libraries()
    device = pick_device(0)
    model_spec, adapter = spec.model, None
    if not base and spec.lora is not None:
        adapter = run / "final"
    elif not base:
        model_spec = model_spec.model_copy(update={"local_dir": str(run / "final"), "tokenizer_dir": None})
    template = spec.data.chat_template
    model, tokenizer = load_for_generation(model_spec, template, adapter, pick_dtype(spec.model.dtype, device))
    model.to(device.torch_device)
    return answer(model, tokenizer, prompts, max_new_tokens=max_new_tokens)
