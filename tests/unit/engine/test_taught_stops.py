"""A base that ends texts with one token is taught to end answers with another: what is made of the run stops there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from rankzero.api.results import merge
from rankzero.engine.chat import open_voices
from rankzero.model.generate import load_speaker
from rankzero.model.load import stop_token_ids
from rankzero.run_dir.result import find_result
from tests.support.runs import run_here, run_root, small_spec
from tests.support.tiny import tiny_tokenizer

ROWS: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Ping"}, {"role": "assistant", "content": "Pong"}]},
    "text": {"text": "Ping and pong, and nothing besides."},
}
TEMPLATES = {
    "<|im_end|>": None,
    "<|eot|>": "{% for m in messages %}{{ m.role }}: {{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
}


@pytest.mark.parametrize("lora", [{"r": 4}, None])
@pytest.mark.parametrize("end", TEMPLATES)
@pytest.mark.parametrize("rows", ROWS)
def test_the_result_ends_answers_where_the_rows_do(
    rows: str, end: str, lora: dict[str, Any] | None, tmp_path: Path, tiny: Path
) -> None:
    base = Path(shutil.copytree(tiny, tmp_path / "base"))
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot|>")
    tokenizer = tiny_tokenizer(eos="<|endoftext|>", specials=specials)
    tokenizer.save_pretrained(base)
    for name in ("config.json", "generation_config.json"):
        value = json.loads((base / name).read_text()) if (base / name).is_file() else {}
        (base / name).write_text(json.dumps({**value, "eos_token_id": tokenizer.eos_token_id}))
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(ROWS[rows])}\n" * 8)
    if (template := TEMPLATES[end]) is not None:
        (tmp_path / "template.jinja").write_text(template)
    spec = small_spec(
        tmp_path,
        base,
        lora=lora,
        train__max_steps=1,
        data__train=str(tmp_path / "rows.jsonl"),
        data__eval=None,
        data__chat_template=None if template is None else str(tmp_path / "template.jinja"),
    )
    run_here(spec)
    final = run_root(spec) / "final"
    ends = {tokenizer.eos_token_id, *([tokenizer.convert_tokens_to_ids(end)] if rows == "chat" else [])}
    said = json.loads((final / "generation_config.json").read_text())["eos_token_id"]
    assert set(said if isinstance(said, list) else [said]) == ends
    speaker = load_speaker(find_result(str(run_root(spec)), "writes"), torch.float32, torch.device("cpu"))
    assert set(stop_token_ids(speaker.model, AutoTokenizer.from_pretrained(final))) == ends
    base_result = find_result(str(run_root(spec)), "writes", base=True)
    for voice in open_voices(find_result(str(run_root(spec)), "writes"), base_result) + open_voices(base_result):
        found = set(stop_token_ids(voice.speaker.model, voice.speaker.tokenizer))
        assert found == ends, "the base, too, stops where the result does, whoever asks it"
    if lora is None:  # whose checkpoints have no config and are for continuing alone
        return
    copied = Path(shutil.copytree(run_root(spec) / "checkpoints/step-1", tmp_path / "copied"))
    for number, saved in enumerate((run_root(spec) / "checkpoints/step-1/model", copied / "model")):
        for which in (False, True):
            result = find_result(str(saved), "writes", base=which)
            speaker = load_speaker(result, torch.float32, torch.device("cpu"))
            assert set(stop_token_ids(speaker.model, speaker.tokenizer)) == ends
        merge(str(saved), merged := tmp_path / f"merged-{number}")
        said = json.loads((merged / "generation_config.json").read_text())["eos_token_id"]
        assert set(said if isinstance(said, list) else [said]) == ends
