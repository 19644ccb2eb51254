"""Greedy answers from a model, a batch of prompts at once. Knows nothing of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rankzero.errors import ConfigError
from rankzero.model.load import load_config, load_model, load_tokenizer, stop_token_ids
from rankzero.model.source import locate
from rankzero.spec.run_spec import ModelSpec


def load_for_generation(spec: ModelSpec, chat_template: str | None, adapter: Path | None, dtype: torch.dtype) -> Any:
    """(model, tokenizer) of a base model, with an adapter on top where given. Raises ConfigError, AccessError."""
    source = locate(spec)
    tokenizer = load_tokenizer(source, spec, chat_template)
    model = load_model(source, spec, load_config(source, spec), dtype)
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter), local_files_only=True)
    model.eval()
    return model, tokenizer


def answer(model: Any, tokenizer: Any, questions: Sequence[str], *, max_new_tokens: int = 64) -> list[str]:
    """One greedy reply to each question, as a chat where the tokenizer has a template, else as raw text."""
    stop_ids = stop_token_ids(model, tokenizer)
    if not stop_ids:
        raise ConfigError("neither the model nor the tokenizer names an end token", where="generation_config.json")
    prompts = [_prompt_ids(tokenizer, question) for question in questions]
    width = max(map(len, prompts))
    ids_BT = torch.full((len(prompts), width), stop_ids[0])
    mask_BT = torch.zeros((len(prompts), width), dtype=torch.long)
    for i, prompt in enumerate(prompts):  # padding on the left: all replies start in the same column
        ids_BT[i, width - len(prompt) :] = torch.tensor(prompt)
        mask_BT[i, width - len(prompt) :] = 1
    device = next(model.parameters()).device
    with torch.inference_mode():
        replies_BT = model.generate(
            input_ids=ids_BT.to(device),
            attention_mask=mask_BT.to(device),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            use_cache=True,
            eos_token_id=stop_ids,
            pad_token_id=stop_ids[0],
        )
    texts = tokenizer.batch_decode(replies_BT[:, width:], skip_special_tokens=True)
    return [text.strip() for text in texts]


def _prompt_ids(tokenizer: Any, question: str) -> list[int]:
    if tokenizer.chat_template is None:
        ids: list[int] = tokenizer(question)["input_ids"]
        return ids
    chat = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
