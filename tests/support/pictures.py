"""Vision-language models without weights, and images drawn for them: processors made in-process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from rankzero.model.vision import Vision
from rankzero.model.vision_rules import ProcessorPlace
from tests.support.families import template_text
from tests.support.tiny import tiny_tokenizer

QWEN_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
COLOURS = ("red", "green", "blue", "yellow", "white", "black")


@cache
def qwen_vl_tokenizer() -> Any:
    """A tokenizer with Qwen's tokens for images; treat as read-only."""
    return tiny_tokenizer(chat_template=template_text("qwen3_vl"), specials=QWEN_TOKENS, eos="<|im_end|>")


def qwen_vl_files(directory: Path, *, smallest: int = 4, model_type: str = "qwen3_vl") -> Path:
    """Config, tokenizer and processor of a Qwen-VL whose images take at least `smallest` tokens of 32 x 32 pixels."""
    tokenizer = qwen_vl_tokenizer()
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>") for name in ("image", "video")}
    (directory / "config.json").write_text(json.dumps({"model_type": model_type, **ids}))
    image = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
        "size": {"longest_edge": 16_777_216, "shortest_edge": smallest * 32 * 32},
        **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2},
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": image["size"]}
    (directory / "video_preprocessor_config.json").write_text(json.dumps(video))
    return directory


def llava_files(directory: Path) -> Path:
    """Config, tokenizer and processor of a LLaVA whose images always take 16 tokens."""
    tokenizer = tiny_tokenizer(chat_template=None, specials=("<s>", "</s>", "<image>"), eos="</s>", bos="<s>")
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    config = {"model_type": "llava", "image_token_index": tokenizer.convert_tokens_to_ids("<image>")}
    (directory / "config.json").write_text(json.dumps(config))
    size = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    image = {"image_processor_type": "CLIPImageProcessor", **size}
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    layout = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    whole = {"processor_class": "LlavaProcessor", "image_token": "<image>", **layout}
    (directory / "processor_config.json").write_text(json.dumps(whole))
    (directory / "chat_template.json").write_text(json.dumps({"chat_template": template_text("llava")}))
    return directory


def vision_of(directory: Path, max_tokens: int | None = None) -> Vision:
    """The processor in a directory."""
    return Vision(ProcessorPlace(str(directory), str(directory), max_tokens=max_tokens))


def draw(directory: Path, sizes: Sequence[tuple[int, int]]) -> list[str]:
    """An image of each size, as names below the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.png" for number in range(len(sizes))]
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        image = Image.new("RGB", size, COLOURS[number % len(COLOURS)])
        image.paste("grey", (0, 0, size[0] // 2, size[1] // 3))
        image.save(directory / name)
    return names
