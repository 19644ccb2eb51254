"""Models of known shapes with random weights, as directories in Hugging Face format. Nothing is downloaded.

    python benchmarks/gpu_shapes.py SHAPE DIRECTORY [--quick] [--device cuda]

makes one and prints its facts as a line of JSON: parameters, and what rankzero's memory plan says for this device. A
process of its own, so that nothing of it stays on the GPU. The tokenizer has a whole word for each id, so that a row of
N words has N tokens and uses all of the vocabulary.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from gpu_cells import CELLS, FULL, OURS, QUICK, run_spec

MAX_PIXELS = 1024 * 1024

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
IMAGE_SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|> ' + message['role'] + ' ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|> ' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ ' <|im_end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|> assistant ' }}{% endif %}"
)


def make(shape: str, directory: Path, device: str, *, quick: bool) -> dict[str, Any]:
    """Write the model, its tokenizer and, where it sees images, its processor.

    Returns how many parameters and words it has, and rankzero's plan for each method.
    """
    import torch

    tokenizer = make_tokenizer(vocabulary(shape, quick=quick), images="vl" in shape)
    config = make_config(shape, tokenizer, quick=quick)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    with torch.device(device):
        model = model_class(shape)._from_config(config, dtype=dtype)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    if "vl" in shape:
        write_processor(directory)
    words = len(tokenizer) - len(SPECIALS) - len(ROLES) - (len(IMAGE_SPECIALS) if "vl" in shape else 0)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": parameters, "words": words, "plans": plans(shape, config, directory, quick=quick)}


def plans(shape: str, config: Any, directory: Path, *, quick: bool) -> dict[str, Any]:
    """Tokens a pass and whether activations are recomputed, for each method, as a run on this machine plans them."""
    from rankzero.engine.device import memory_limit, pick_device, pick_dtype
    from rankzero.engine.setup import to_train, weights_dtype
    from rankzero.model.facts import fused_of
    from rankzero.model.load import empty_model
    from rankzero.model.memory import plan_memory
    from rankzero.model.shapes import model_facts
    from rankzero.spec.run_spec import RunSpec

    device, found = pick_device(0), {}
    for cell in CELLS:
        if cell.shape != shape:
            continue
        given = run_spec(
            cell,
            OURS,
            QUICK if quick else FULL,
            model=directory,
            rows=directory,
            output=directory,
            cpu=device.kind == "cpu",
        )
        spec = RunSpec.model_validate(given)
        dtype = pick_dtype(spec.model.dtype, device)
        model = to_train(empty_model(spec.model, config, weights_dtype(spec, dtype)), spec, base_name=shape)
        quantization, fused = spec.model.quantization, fused_of(spec, device.kind)
        facts = model_facts(model, config, dtype, quantization=quantization, use="writes", fused=fused)
        limit, longest = memory_limit(device, 1), spec.data.max_length
        plan = plan_memory(spec.train, longest, facts, limit, device.kind, sharding="ddp", world_size=1)
        found[cell.method] = {
            "micro_batch_tokens": plan.micro_batch_tokens,
            "gradient_checkpointing": plan.gradient_checkpointing,
            "expected_bytes": plan.expected_bytes,
        }
    return found


def vocabulary(shape: str, *, quick: bool) -> int:
    """Rows of the embedding."""
    return 512 if quick else 128256 if shape.startswith("llama") else 151936


def model_class(shape: str) -> Any:
    """The class that a checkpoint of this shape has."""
    import transformers

    names = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3-vl": "Qwen3VLForConditionalGeneration"}
    return getattr(transformers, names["qwen3-vl" if "vl" in shape else shape.partition("-")[0]])


def make_config(shape: str, tokenizer: Any, *, quick: bool) -> Any:
    """Llama-3.2-1B's, Qwen3-8B's or Qwen3-VL-2B's; quick ones have 2 layers of 64."""
    from transformers import LlamaConfig, Qwen3Config, Qwen3VLConfig

    common = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "max_position_embeddings": 8192,
    }
    if shape == "llama-3.2-1b":
        sizes = _text(2048, 8192, 16, 32, 8, 64, quick=quick)
        return LlamaConfig(**common, **sizes, tie_word_embeddings=True)
    if shape == "qwen3-8b":
        return Qwen3Config(**common, **_text(4096, 12288, 36, 32, 8, 128, quick=quick), tie_word_embeddings=False)
    sizes = _text(2048, 6144, 28, 16, 8, 128, quick=quick)
    tower: dict[str, Any] = {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "patch_size": 16,
    }
    tower |= {"deepstack_visual_indexes": [5, 11, 17], "num_position_embeddings": 2304}
    if quick:
        tower |= {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
        tower |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    half = sizes["head_dim"] // 2
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True}
    rope["mrope_section"] = [half - 2 * (half * 5 // 16), half * 5 // 16, half * 5 // 16]
    ids = tokenizer.convert_tokens_to_ids(list(IMAGE_SPECIALS))
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return Qwen3VLConfig(
        text_config={**common, **sizes, "rope_parameters": rope},
        vision_config={**tower, "out_hidden_size": sizes["hidden_size"]},
        tie_word_embeddings=True,
        **dict(zip(names, ids, strict=True)),
    )


def _text(*sizes: int, quick: bool) -> dict[str, int]:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return dict(zip((*names, "head_dim"), (64, 128, 2, 4, 2, 16) if quick else sizes, strict=True))


def make_tokenizer(size: int, *, images: bool) -> Any:
    """`size` ids: specials, roles, and words w0, w1, …, each of them one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    specials = [*SPECIALS, *(IMAGE_SPECIALS if images else ())]
    words = [*specials, *ROLES]
    words += [f"w{number}" for number in range(size - len(words))]
    backend = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token=SPECIALS[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(specials)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def write_processor(directory: Path) -> None:
    """Qwen3-VL's: patches of 16, merged by twos, images as they are up to MAX_PIXELS."""
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    sizes = {"longest_edge": MAX_PIXELS, "shortest_edge": 4 * 32 * 32}
    common = {**patches, "size": sizes, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    common["processor_class"] = "Qwen3VLProcessor"
    image = {**common, "image_processor_type": "Qwen2VLImageProcessor"}
    video = {**common, "video_processor_type": "Qwen3VLVideoProcessor"}
    (directory / "preprocessor_config.json").write_text(json.dumps(image), encoding="utf-8")
    (directory / "video_preprocessor_config.json").write_text(json.dumps(video), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("shape", choices=sorted({cell.shape for cell in CELLS}))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    print(json.dumps(make(given.shape, given.directory, given.device, quick=given.quick)))


if __name__ == "__main__":
    main()
