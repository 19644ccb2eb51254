"""Tiny models of families whose images are more than copies of one token: real classes made from config, with a
tokenizer of their special tokens, a chat template of that family's form, and processor files. Nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.tiny import CORPUS

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = [
    *CORPUS[:4],
    "Which colour is it? Tell me. It is red. It is green. It is blue. It is yellow.",
    "There is no picture, so I cannot say.",
    *("user\n\n\nWhich? \n\nmodel\n\nAssistant: one\n\n\n\ntwo\n\n\nthree\n\n" for _ in range(8)),
]
CHATML_PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ IMAGE if p.type == 'image' else p.text }}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for p in m.content %}"
    "{{ '<start_of_image>' if p.type == 'image' else p.text | trim }}{% endfor %}{% endif %}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
IDEFICS = (
    "{% if bos %}<|im_start|>{% endif %}{% for m in messages %}{{ m.role | capitalize }}:"
    "{% if m.content is string %} {{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% else %}[INST]"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ '[IMG]' if p.type == 'image' else p.text }}{% endfor %}{% endif %}[/INST]{% endif %}{% endfor %}"
)
NEXT = (
    "{% for m in messages %}{{ m.role | upper }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ '<image>\n' if p.type == 'image' else p.text }}{% endfor %}{% endif %}"
    "{{ eos_token if m.role == 'assistant' else ' ' }}{% endfor %}{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
TILES = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))


def save(name: str, directory: Path, **changes: Any) -> Path:
    """The family `name` with random weights, in Hugging Face format; `changes` are of its image processor's file."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        FAMILIES[name](directory)
    if changes:
        file = directory / "preprocessor_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    return directory


def gemma3(directory: Path) -> None:
    """Gemma 3 from 4B on: line ends and tags around 256 (here 4) soft tokens, which see each other both ways."""
    from tokenizers import AddedToken
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    images = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = tokenizer_with(("<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>"), images, bos="<bos>")
    tokenizer.add_tokens([AddedToken("\n" * lines, normalized=False) for lines in (1, 2, 3)])
    tokenizer.chat_template = GEMMA
    tower = {**TOWER, "image_size": 28, "patch_size": 7, "vision_use_head": False}
    config = Gemma3Config(
        text_config={**TEXT, **_ids(tokenizer), "sliding_window": 16, "query_pre_attn_scalar": 16},
        vision_config=tower,
        mm_tokens_per_image=4,
        image_token_index=tokenizer.convert_tokens_to_ids("<image_soft_token>"),
        boi_token_index=tokenizer.convert_tokens_to_ids("<start_of_image>"),
        eoi_token_index=tokenizer.convert_tokens_to_ids("<end_of_image>"),
    )
    _save(directory, Gemma3ForConditionalGeneration(config), tokenizer, stop="<end_of_turn>")
    image = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 28, "width": 28}}
    _write(directory, image, {"processor_class": "Gemma3Processor", "image_seq_length": 4})


def idefics3(directory: Path) -> None:
    """Idefics3: tiles in rows, each with a tag of its place, line ends, and the whole image behind them."""
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    tokenizer = _idefics_tokenizer()
    config = Idefics3Config(**_idefics(tokenizer))
    _save(directory, Idefics3ForConditionalGeneration(config), tokenizer, stop="<end_of_utterance>")
    _write(
        directory,
        _idefics_images("Idefics3ImageProcessor"),
        {"processor_class": "Idefics3Processor", "image_seq_len": 4},
    )


def smolvlm(directory: Path) -> None:
    """SmolVLM: as Idefics3, with a processor that knows videos."""
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    tokenizer = _idefics_tokenizer()
    config = SmolVLMConfig(**_idefics(tokenizer))
    _save(directory, SmolVLMForConditionalGeneration(config), tokenizer, stop="<end_of_utterance>")
    _write(
        directory, _idefics_images("SmolVLMImageProcessor"), {"processor_class": "SmolVLMProcessor", "image_seq_len": 4}
    )


def internvl(directory: Path) -> None:
    """InternVL 3: tags around the tokens of all tiles, of which the shape of the image decides how many there are."""
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    images = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    specials = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = tokenizer_with(specials, {**images, "video_token": "<video>"}, eos="<|im_end|>", pad="<|endoftext|>")
    tokenizer.chat_template = CHATML_PARTS.replace("IMAGE", "'<IMG_CONTEXT>\\n'")
    text = {key: value for key, value in TEXT.items() if key != "head_dim"}
    config = InternVLConfig(
        text_config={"model_type": "qwen2", **text, **_ids(tokenizer)},
        vision_config={**TOWER, "image_size": [28, 28], "patch_size": [7, 7]},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    _save(directory, InternVLForConditionalGeneration(config), tokenizer, stop="<|im_end|>")
    tiles = {"crop_to_patches": True, "min_patches": 1, "max_patches": 6, "size": {"height": 28, "width": 28}}
    image = {"image_processor_type": "GotOcr2ImageProcessor", **tiles}
    _write(directory, image, {"processor_class": "InternVLProcessor", "image_seq_length": 4})


PIXTRAL_TOWER = {**TOWER, "model_type": "pixtral", "head_dim": 16, "image_size": 56, "patch_size": 7}


def pixtral(directory: Path) -> None:
    """Pixtral: LLaVA's config, with a processor of its own that its files name: rows of tokens, a tag behind each."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    tokenizer = _pixtral_tokenizer()
    config = LlavaConfig(
        text_config={"model_type": "mistral", **TEXT, **_ids(tokenizer)},
        vision_config=PIXTRAL_TOWER,
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=1,
    )
    _save(directory, LlavaForConditionalGeneration(config), tokenizer, stop="</s>")
    _write(directory, *_pixtral_images(merge=1))


def mistral3(directory: Path) -> None:
    """Mistral Small 3.1 and later: as Pixtral, with four patches to a token."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    tokenizer = _pixtral_tokenizer()
    config = Mistral3Config(
        text_config={"model_type": "mistral", **TEXT, **_ids(tokenizer)},
        vision_config=PIXTRAL_TOWER,
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    _save(directory, Mistral3ForConditionalGeneration(config), tokenizer, stop="</s>")
    _write(directory, *_pixtral_images(merge=2))


def llava_next(directory: Path) -> None:
    """LLaVA-NeXT: the whole image and the tiles of the shape that fits it best, without what pads them."""
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

    tokenizer = tokenizer_with(("<s>", "</s>", "<pad>"), {"image_token": "<image>"}, bos="<s>", eos="</s>")
    tokenizer.chat_template = NEXT
    shapes = [[28, 56], [56, 28], [56, 56]]
    tower = {**TOWER, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 7, "projection_dim": 32}
    config = LlavaNextConfig(
        text_config={"model_type": "llama", **TEXT, **_ids(tokenizer)},
        vision_config=tower,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=shapes,
    )
    _save(directory, LlavaNextForConditionalGeneration(config), tokenizer, stop="</s>")
    sizes = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}, "image_grid_pinpoints": shapes}
    text = {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    whole = {"processor_class": "LlavaNextProcessor", "image_token": "<image>", **text}
    _write(directory, {"image_processor_type": "LlavaNextImageProcessor", **sizes}, whole)


FAMILIES: dict[str, Callable[[Path], None]] = {
    "gemma3": gemma3,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "internvl": internvl,
    "llava_next": llava_next,
    "pixtral": pixtral,
    "mistral3": mistral3,
}


def tokenizer_with(
    specials: tuple[str, ...],
    named: dict[str, str],
    *,
    bos: str | None = None,
    eos: str = "<eos>",
    pad: str = "<pad>",
) -> Any:
    """A byte-level tokenizer that joins line ends, as those of these families do. `named`: special tokens by the names
    that processors ask for."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    lines = pre_tokenizers.Split(Regex(r"\n+|[^\S\n]?[^\s]+|[^\S\n]+"), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([lines, byte_level])
    backend.decoder = decoders.ByteLevel()
    added = list(dict.fromkeys([*specials, *named.values(), eos, pad]))
    trainer = trainers.BpeTrainer(
        vocab_size=len(added) + 400,
        special_tokens=added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(WORDS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token=pad, bos_token=bos, extra_special_tokens=named
    )


@cache
def _idefics_tokens() -> tuple[str, ...]:
    return ("<|im_start|>", "<|endoftext|>", "<fake_token_around_image>", "<image>", "<global-img>", *TILES)


def _idefics_tokenizer() -> Any:
    tokenizer = tokenizer_with(_idefics_tokens(), {}, eos="<end_of_utterance>", pad="<|endoftext|>")
    tokenizer.chat_template = IDEFICS
    return tokenizer


def _idefics(tokenizer: Any) -> dict[str, Any]:
    text = {key: value for key, value in TEXT.items() if key != "head_dim"}
    return {
        "text_config": {"model_type": "llama", **text, **_ids(tokenizer)},
        "vision_config": {**TOWER, "image_size": 28, "patch_size": 7},
        "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "scale_factor": 2,
        **_ids(tokenizer),
    }


def _idefics_images(kind: str) -> dict[str, Any]:
    sizes = {"size": {"longest_edge": 84}, "max_image_size": {"longest_edge": 28}}
    return {"image_processor_type": kind, **sizes, "do_image_splitting": True}


def _pixtral_tokenizer() -> Any:
    tags = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    tokenizer = tokenizer_with(("<s>", "</s>", "<pad>", "[INST]", "[/INST]"), tags, bos="<s>", eos="</s>")
    tokenizer.chat_template = MISTRAL
    return tokenizer


def _pixtral_images(merge: int) -> tuple[dict[str, Any], dict[str, Any]]:
    image = {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 56}}
    tags = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    whole = {"processor_class": "PixtralProcessor", "patch_size": 7, "spatial_merge_size": merge, **tags}
    return {**image, "patch_size": {"height": 7, "width": 7}}, whole


def _ids(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _save(directory: Path, model: Any, tokenizer: Any, *, stop: str) -> None:
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(stop)]
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _write(directory: Path, image: dict[str, Any], whole: dict[str, Any]) -> None:
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    (directory / "processor_config.json").write_text(json.dumps(whole))
