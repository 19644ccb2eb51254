"""Tiny models of the recipes' architectures: real classes made from config, two layers, with that family's tokenizer,
special tokens, chat template and processor files. Nothing is downloaded; each takes well under a second."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.families import template_text
from tests.support.tiny import CORPUS, tiny_tokenizer

WORDS = [
    "this film is dull , awful and boring , the plot is a mess , negative , positive , from start to end i must say",
    "honestly , the story is warm , superb and moving , every scene and the cast and the ending is a delight .",
    "What is shown? The picture shows a red square, a blue circle, a green square. Which colour is it? It is yellow.",
    "Thought: I look at the picture. Answer: red. Score: 8. Feedback: look again. Below is an instruction.",
]
HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 16

QWEN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISION_SPECIALS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
LLAMA_SPECIALS = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"),
)


def save(name: str, directory: Path, *, seed: int = 0) -> Path:
    """The architecture `name` with random weights, in Hugging Face format."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        ARCHITECTURES[name](directory)
    return directory


def qwen2(directory: Path) -> None:
    """Qwen2.5-3B-Instruct: biases on q, k and v, tied embeddings, a system turn that is always there."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    tokenizer = qwen_tokenizer("qwen2_5", QWEN_SPECIALS)
    config = Qwen2Config(**_decoder(tokenizer), tie_word_embeddings=True, rope_parameters=_rope(1e6))
    _save(directory, Qwen2ForCausalLM(config), tokenizer, stops=("<|im_end|>", "<|endoftext|>"))


def llama(directory: Path) -> None:
    """Llama-3.2-1B-Instruct: scaled rope, tied embeddings, a BOS token, no pad token, three tokens that end a turn."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = llama_tokenizer()
    scaled = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        **_decoder(tokenizer),
        head_dim=HEAD_DIM,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        rope_parameters={**_rope(5e5), **scaled, "original_max_position_embeddings": 256},
    )
    _save(directory, LlamaForCausalLM(config), tokenizer, stops=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"))


def smollm2(directory: Path) -> None:
    """SmolLM2-135M-Instruct: a Llama with ChatML and tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(
        chat_template=template_text("smollm2"), specials=QWEN_SPECIALS, pad="<|im_end|>", vocab_size=512
    )
    config = LlamaConfig(**_decoder(tokenizer), tie_word_embeddings=True, rope_parameters=_rope(1e5))
    _save(directory, LlamaForCausalLM(config), tokenizer, stops=("<|im_end|>",))


def qwen3(directory: Path) -> None:
    """Qwen3-8B: norms on q and k, a head of its own, thinking in the template."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = qwen_tokenizer("qwen3", QWEN_SPECIALS)
    config = Qwen3Config(**_decoder(tokenizer), head_dim=HEAD_DIM, rope_parameters=_rope(1e6))
    _save(directory, Qwen3ForCausalLM(config), tokenizer, stops=("<|im_end|>", "<|endoftext|>"))


def qwen3_moe(directory: Path) -> None:
    """Qwen3-30B-A3B: every layer a mixture of experts, of which each token visits two."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = qwen_tokenizer("qwen3", QWEN_SPECIALS)
    config = Qwen3MoeConfig(
        **_decoder(tokenizer),
        head_dim=HEAD_DIM,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=HIDDEN // 2,
        norm_topk_prob=True,
        rope_parameters=_rope(1e6),
    )
    _save(directory, Qwen3MoeForCausalLM(config), tokenizer, stops=("<|im_end|>", "<|endoftext|>"))


def ernie4_5_moe(directory: Path) -> None:
    """ERNIE-4.5-21B-A3B: routers in float32 whatever the rest is in, which choose by a bias beside their scores. Those
    are so close together here that rounding would change what is chosen."""
    from transformers import Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM

    tokenizer = qwen_tokenizer("qwen3", QWEN_SPECIALS)
    config = Ernie4_5_MoeConfig(
        **_decoder(tokenizer),
        moe_intermediate_size=HIDDEN // 2,
        moe_num_experts=8,
        moe_k=2,
        moe_layer_start_index=1,
        moe_num_shared_experts=1,
        tie_word_embeddings=False,
        rope_parameters=_rope(5e5),
    )
    model = Ernie4_5_MoeForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "moe_statics" in name:
            parameter.data.uniform_(8, 8.05)
        elif "mlp.gate" in name:
            parameter.data.mul_(10)
    _save(directory, model, tokenizer, stops=("<|im_end|>", "<|endoftext|>"))


def qwen3_vl(directory: Path) -> None:
    """Qwen3-VL-32B-Instruct: a vision tower whose layers reach into the text model (deepstack), and its processor."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    tokenizer = qwen_tokenizer("qwen3_vl", (*QWEN_SPECIALS, *VISION_SPECIALS))
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": HIDDEN}
    vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64, "patch_size": 16}
    rope = {**_rope(5e6), "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config={**_decoder(tokenizer), "head_dim": HEAD_DIM, "rope_parameters": rope},
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    )
    _save(directory, Qwen3VLForConditionalGeneration(config), tokenizer, stops=("<|im_end|>", "<|endoftext|>"))
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    common = {**patches, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "processor_class": "Qwen3VLProcessor"}
    sizes = {"longest_edge": 16_777_216, "shortest_edge": 4 * 32 * 32}
    image = {**common, "size": sizes, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {**common, "size": sizes, "video_processor_type": "Qwen3VLVideoProcessor"}
    (directory / "preprocessor_config.json").write_text(json.dumps(image))
    (directory / "video_preprocessor_config.json").write_text(json.dumps(video))


def distilbert(directory: Path) -> None:
    """distilbert-base-uncased: an encoder with the head of its pre-training, and WordPiece without a chat template."""
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    tokenizer = wordpiece_tokenizer()
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        dim=HIDDEN,
        hidden_dim=2 * HIDDEN,
        n_layers=2,
        n_heads=HEADS,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    DistilBertForMaskedLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


ARCHITECTURES: dict[str, Callable[[Path], None]] = {
    "qwen2": qwen2,
    "llama": llama,
    "smollm2": smollm2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "ernie4_5_moe": ernie4_5_moe,
    "qwen3_vl": qwen3_vl,
    "distilbert": distilbert,
}


@cache
def qwen_tokenizer(template: str, specials: tuple[str, ...]) -> Any:
    """Qwen's byte-level BPE with this chat template; treat as read-only."""
    from transformers import Qwen2Tokenizer

    untrained = Qwen2Tokenizer(vocab={"<|endoftext|>": 0})
    untrained.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    tokenizer = untrained.train_new_from_iterator(
        [*CORPUS, *WORDS * 4], 512, new_special_tokens=list(specials), show_progress=False
    )
    tokenizer.chat_template = template_text(template)
    return tokenizer


@cache
def llama_tokenizer() -> Any:
    """Llama 3.2's: the BOS is put before raw text by the tokenizer and before chats by the template."""
    from tokenizers import processors

    tokenizer = tiny_tokenizer(
        chat_template=template_text("llama3_2"),
        specials=LLAMA_SPECIALS,
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        vocab_size=512,
    )
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]} $B", special_tokens=[bos]
    )
    return tokenizer


@cache
def wordpiece_tokenizer() -> Any:
    """BERT's WordPiece in lower case: [CLS] text [SEP]; treat as read-only.

    The library's trainer makes other pieces in each process. Here the words of the corpus are pieces, and so is every
    character, at the beginning of a word and inside.
    """
    from transformers import BertTokenizer

    words = set(re.findall(r"\w+|[^\w\s]", " ".join([*CORPUS, *WORDS]).lower()))
    characters = set("abcdefghijklmnopqrstuvwxyz0123456789.,!?'-").union(*words)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(characters), *sorted(f"##{c}" for c in characters)]
    pieces += sorted(words - characters)
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def _decoder(tokenizer: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 32768,
        "eos_token_id": tokenizer.eos_token_id,
        "initializer_range": 0.1,  # with less, logits of so few dimensions could not tell tokens apart
    }


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _save(directory: Path, model: Any, tokenizer: Any, *, stops: tuple[str, ...]) -> None:
    model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(stops))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
