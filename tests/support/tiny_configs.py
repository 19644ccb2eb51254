"""Configs of tiny models of many architectures, for their real classes to make models from. No tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "max_position_embeddings": 64,
}
TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
QWEN_TOWER = {"depth": 2, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 16}
QWEN_TOKENS = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
PICTURES = {"image_size": 28, "patch_size": 14}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2}


def llama() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**TEXT)


def gpt2() -> Any:
    from transformers import GPT2Config

    return GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=64, bos_token_id=1, eos_token_id=2)


def distilbert() -> Any:
    from transformers import DistilBertConfig

    return DistilBertConfig(dim=16, hidden_dim=32, n_layers=2, n_heads=2, vocab_size=64, max_position_embeddings=64)


def bert() -> Any:
    from transformers import BertConfig

    return BertConfig(**{key: value for key, value in TEXT.items() if key != "num_key_value_heads"})


def qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(**TEXT, **MIXTURE, head_dim=8, moe_intermediate_size=8)


def qwen2_moe() -> Any:
    from transformers import Qwen2MoeConfig

    return Qwen2MoeConfig(**TEXT, **MIXTURE, moe_intermediate_size=8, shared_expert_intermediate_size=8)


def deepseek_v3() -> Any:
    """Its first layer is dense, its second has experts and one that every token visits."""
    from transformers import DeepseekV3Config

    heads = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    groups = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    return DeepseekV3Config(**TEXT, **heads, **groups, moe_intermediate_size=8, first_k_dense_replace=1)


def mixtral() -> Any:
    from transformers import MixtralConfig

    return MixtralConfig(**TEXT, num_local_experts=4, num_experts_per_tok=2)


def olmoe() -> Any:
    from transformers import OlmoeConfig

    return OlmoeConfig(**TEXT, **MIXTURE)


def gpt_oss() -> Any:
    from transformers import GptOssConfig

    return GptOssConfig(**TEXT, head_dim=8, num_local_experts=4, num_experts_per_tok=2)


def qwen3_vl() -> Any:
    from transformers import Qwen3VLConfig

    tower = {**QWEN_TOWER, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    text = {**TEXT, "head_dim": 8, "rope_parameters": {**MROPE, "mrope_interleaved": True}}
    return Qwen3VLConfig(text_config=text, vision_config=tower, **QWEN_TOKENS)


def qwen3_vl_moe() -> Any:
    from transformers import Qwen3VLMoeConfig

    tower = {**QWEN_TOWER, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    rope = {**MROPE, "mrope_interleaved": True}
    text = {**TEXT, **MIXTURE, "head_dim": 8, "rope_parameters": rope, "moe_intermediate_size": 8}
    return Qwen3VLMoeConfig(text_config=text, vision_config=tower, **QWEN_TOKENS)


def qwen2_vl() -> Any:
    from transformers import Qwen2VLConfig

    tower = {"depth": 2, "embed_dim": 16, "num_heads": 2, "mlp_ratio": 2, "hidden_size": 16}
    return Qwen2VLConfig(text_config={**TEXT, "rope_parameters": MROPE}, vision_config=tower, **QWEN_TOKENS)


def qwen2_5_vl() -> Any:
    from transformers import Qwen2_5_VLConfig

    tower = {**QWEN_TOWER, "fullatt_block_indexes": [0]}
    return Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": MROPE}, vision_config=tower, **QWEN_TOKENS)


def llava() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

    tower = CLIPVisionConfig(**TOWER, **PICTURES)
    return LlavaConfig(text_config=LlamaConfig(**TEXT), vision_config=tower, image_token_id=60)


def gemma3() -> Any:
    from transformers import Gemma3Config

    tower = {**TOWER, **PICTURES, "vision_use_head": False}
    text = {**TEXT, "head_dim": 8}
    return Gemma3Config(text_config=text, vision_config=tower, mm_tokens_per_image=4, image_token_index=60)


def idefics3() -> Any:
    from transformers import Idefics3Config

    text, tower = {"model_type": "llama", **TEXT}, {**TOWER, **PICTURES}
    return Idefics3Config(text_config=text, vision_config=tower, image_token_id=60, scale_factor=2, pad_token_id=0)


def internvl() -> Any:
    from transformers import InternVLConfig

    tower = {**TOWER, "image_size": [28, 28], "patch_size": [14, 14]}
    text = {"model_type": "qwen2", **TEXT}
    return InternVLConfig(text_config=text, vision_config=tower, image_token_id=60, downsample_ratio=0.5)


def phi() -> Any:
    from transformers import PhiConfig

    return PhiConfig(**TEXT)


def gptj() -> Any:
    from transformers import GPTJConfig

    return GPTJConfig(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=64, rotary_dim=4)


def codegen() -> Any:
    from transformers import CodeGenConfig

    return CodeGenConfig(n_layer=2, n_embd=32, n_head=4, vocab_size=64, n_positions=64, rotary_dim=4)


CONFIGS: dict[str, Callable[[], Any]] = {
    make.__name__: make
    for make in (
        *(llama, gpt2, distilbert, bert, qwen3_moe, qwen2_moe, deepseek_v3, mixtral, olmoe, gpt_oss),
        *(qwen3_vl, qwen3_vl_moe, qwen2_5_vl, llava, gemma3, idefics3, internvl),
    )
}

HEADS_WITH_BIAS: dict[str, Callable[[], Any]] = {"phi": phi, "gptj": gptj, "codegen": codegen}
