"""Answers of every kind of model that writes: the library's own, one at a time or many at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rankzero.data.prompts import question as asked_of
from rankzero.errors import ConfigError, DataError, UsageError
from rankzero.model.converse import reply
from rankzero.model.generate import Speaker, Turn, answer, load_speaker, prompt_ids
from rankzero.run_dir.result import as_it_was
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.sampling import Sampling
from tests.support.architectures import save
from tests.support.families import family_tokenizer
from tests.support.images import draw
from tests.support.tiny import tiny_gpt2

CPU = torch.device("cpu")
QUESTIONS = ["Which colour is it?", "What is the capital of Peru? " * 3, "Hi"]


def speaker_of(directory: Path, **changes: Any) -> Speaker:
    value = {"model": {"name": str(directory), **changes.pop("model", {})}, "data": {"train": "t"}, **changes}
    return load_speaker(as_it_was(RunSpec.model_validate(value)), torch.float32, CPU)


def loud(speaker: Speaker) -> Speaker:
    """Weights so large that random numbers have clear favourites: rounding decides nothing."""
    for parameter in speaker.model.parameters():
        parameter.data *= 3
    return speaker


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen3_vl", tmp_path_factory.mktemp("sighted"))


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "qwen3", "qwen3_moe", "qwen3_vl"])
def test_a_batch_answers_as_the_library_does_one_by_one(architecture: str, tmp_path: Path) -> None:
    speaker = loud(speaker_of(save(architecture, tmp_path)))
    tokenizer, expected = speaker.tokenizer, []
    for question in QUESTIONS:
        turns = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        reply = speaker.model.generate(**ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
        expected.append(tokenizer.decode(reply[0, ids["input_ids"].shape[1] :], skip_special_tokens=True).strip())
    assert answer(speaker, QUESTIONS, max_new_tokens=8) == expected
    assert len(set(expected)) == 3


@pytest.mark.parametrize("adapted", [False, True])
def test_the_likeliest_token_is_taken_whatever_the_model_comes_with(adapted: bool, tmp_path: Path) -> None:
    """As Qwen2.5's generation_config.json, which has a penalty for what was said before."""
    speaker = loud(speaker_of(save("qwen2", tmp_path)))
    own = speaker.model.generation_config
    own.repetition_penalty, own.no_repeat_ngram_size, own.top_k, own.do_sample = 30.0, 1, 5, True
    if adapted:
        config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        speaker = replace(speaker, model=get_peft_model(speaker.model, config).eval())
    ids = prompt_ids(speaker, asked_of("Hi"))
    prompt = len(ids)
    for _ in range(8):
        with torch.no_grad():
            ids.append(int(speaker.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    expected = speaker.tokenizer.decode(ids[prompt:], skip_special_tokens=True).strip()
    assert answer(speaker, ["Hi"], max_new_tokens=8) == [expected]
    told: list[str] = []
    assert reply(speaker, [Turn("user", "Hi")], Sampling(max_new_tokens=8), told.append) == expected
    assert (own.repetition_penalty, speaker.model.generation_config.no_repeat_ngram_size) == (30.0, 1), "as it was"


def test_the_chat_template_gets_what_the_spec_gives_it() -> None:
    tokenizer = family_tokenizer("qwen3")
    asked = asked_of("Hi")
    plain, told = (
        prompt_ids(Speaker(None, tokenizer, None, kwargs), asked) for kwargs in ({}, {"enable_thinking": False})
    )
    assert tokenizer.decode(told) == tokenizer.decode(plain) + "<think>\n\n</think>\n\n"


def test_images_are_seen_where_they_stand(sighted: Path, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    speaker = loud(speaker_of(sighted))
    paths = [str(draw(tmp_path / f"{colour}.png", colour, size=(64, 96))) for colour in ("red", "blue")]
    (before,) = answer(speaker, ["Which is it?"], images=paths, max_new_tokens=8)
    (named,) = answer(speaker, ["<image><image>Which is it?"], images=paths, max_new_tokens=8)
    (apart,) = answer(speaker, ["<image>Which is it? <image>"], images=paths, max_new_tokens=8)
    assert before == named != apart

    from PIL import Image

    made = AutoImageProcessor.from_pretrained(sighted)([Image.open(path) for path in paths], return_tensors="pt")
    pads = ["<|image_pad|>" * int(grid.prod() // 4) for grid in made["image_grid_thw"]]
    seen = "".join(f"<|vision_start|>{pad}<|vision_end|>" for pad in pads)
    text = f"<|im_start|>user\n{seen}Which is it?<|im_end|>\n<|im_start|>assistant\n"
    ids = speaker.tokenizer(text, return_tensors="pt")
    marks = (ids["input_ids"] == speaker.model.config.image_token_id).long()
    reply = speaker.model.generate(**ids, **made, mm_token_type_ids=marks, max_new_tokens=8, do_sample=False)
    written = speaker.tokenizer.decode(reply[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert before == written.strip()


def test_other_pixels_are_another_prompt(sighted: Path, tmp_path: Path) -> None:
    """What the model computes for the first token, not only which token wins."""
    speaker = speaker_of(sighted)
    seen: list[torch.Tensor] = []
    speaker.model.get_output_embeddings().register_forward_hook(lambda _m, _i, out: seen.append(out[0, -1]))
    for colour in ("red", "green"):
        answer(speaker, ["Which?"], images=[str(draw(tmp_path / f"{colour}.png", colour))], max_new_tokens=1)
    assert not torch.allclose(seen[0], seen[1], atol=1e-6)


def test_faults_with_images(sighted: Path, tmp_path: Path) -> None:
    picture = str(draw(tmp_path / "red.png", "red"))
    with pytest.raises(UsageError, match=r"2 places for images and 1 image\n  hint: give one --image"):
        answer(speaker_of(sighted), ["<image> or <image>?"], images=[picture])
    with pytest.raises(DataError, match="no such image"):
        answer(speaker_of(sighted), ["Which?"], images=[str(tmp_path / "none.png")])
    blind = speaker_of(save("qwen3", tmp_path / "blind"))
    with pytest.raises(ConfigError, match="sees no images"):
        answer(blind, ["Which?"], images=[picture])


def test_a_model_without_a_template_goes_on_writing(tmp_path: Path) -> None:
    speaker = speaker_of(tiny_gpt2(tmp_path))
    assert len(answer(speaker, QUESTIONS, max_new_tokens=4)) == 3


def test_four_bits(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    speaker = speaker_of(save("qwen3", tmp_path), model={"quantization": "nf4"}, lora={})
    assert type(speaker.model.model.layers[0].self_attn.q_proj).__name__ == "Linear4bit"
    assert len(answer(speaker, QUESTIONS, max_new_tokens=4)) == 3


def test_what_puts_texts_into_classes_is_told_the_other_command(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = save("qwen3", tmp_path)
    AutoModelForSequenceClassification.from_pretrained(model).save_pretrained(model)
    with pytest.raises(ConfigError, match="rankzero predict"):
        speaker_of(model)
    encoder = save("distilbert", tmp_path / "encoder")
    with pytest.raises(ConfigError, match="no model that writes text"):
        speaker_of(encoder)
