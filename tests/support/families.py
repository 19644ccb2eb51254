"""Model families as far as their text goes: chat template, special tokens, tokenizer kind. No downloaded files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.tiny import CORPUS, tiny_tokenizer

TEMPLATES = Path(__file__).parents[1] / "fixtures" / "chat_templates"


@dataclass(frozen=True)
class Family:
    """A template with the tokens it needs. `opening` is what a turn's trained text begins with besides its content."""

    template: str
    specials: tuple[str, ...]
    eos: str
    end: str
    bos: str | None = None
    opening: str = ""
    sentencepiece: bool = False
    strips: bool = False
    system: bool = True
    alternates: bool = False


CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
R1_END = "<｜end▁of▁sentence｜>"
R1_TOKENS = ("<｜begin▁of▁sentence｜>", R1_END, "<｜User｜>", "<｜Assistant｜>")
INST_TOKENS = ("<s>", "</s>", "[INST]", "[/INST]")

FAMILIES = {
    "smollm2": Family("smollm2", CHATML_TOKENS, eos="<|im_end|>", end="<|im_end|>"),
    "llama3": Family(
        "llama3",
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        end="<|eot_id|>",
        strips=True,
    ),
    "qwen3": Family("qwen3", CHATML_TOKENS, eos="<|im_end|>", end="<|im_end|>"),
    "gemma": Family(
        "gemma",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        bos="<bos>",
        eos="<eos>",
        end="<end_of_turn>",
        sentencepiece=True,
        strips=True,
        system=False,
        alternates=True,
    ),
    "mistral": Family(
        "mistral",
        INST_TOKENS,
        bos="<s>",
        eos="</s>",
        end="</s>",
        opening=" ",
        sentencepiece=True,
        system=False,
        alternates=True,
    ),
    "generation": Family("chatml_generation", CHATML_TOKENS, eos="<|im_end|>", end="<|im_end|>"),
    "generation_bare": Family("chatml_generation_bare", CHATML_TOKENS, eos="<|im_end|>", end="<|im_end|>"),
    "phi": Family(
        "phi",
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        eos="<|endoftext|>",
        end="<|end|>",
    ),
    "glm": Family(
        "glm",
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"),
        eos="<|endoftext|>",
        end="",
        opening="\n<think></think>\n",
        strips=True,
    ),
    "empty_thought": Family("empty_thought", CHATML_TOKENS, eos="<|im_end|>", end="<|im_end|>", strips=True),
    "deepseek_r1": Family("deepseek_r1", R1_TOKENS, bos="<｜begin▁of▁sentence｜>", eos=R1_END, end=R1_END),
    "cohere2": Family(
        "cohere2",
        (
            *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"),
            *("<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
        opening="<|START_RESPONSE|>",
        end="<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    ),
    "gpt_oss": Family(
        "gpt_oss",
        ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"),
        eos="<|return|>",
        opening="<|channel|>final<|message|>",
        end="<|end|>",
    ),
    "headings": Family("plain_headings", ("<|endoftext|>",), eos="<|endoftext|>", end=""),
}


def template_text(name: str) -> str:
    """A chat template of the fixtures."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def family_tokenizer(name: str) -> Any:
    """The family's tokenizer; treat as read-only."""
    family = FAMILIES[name]
    make = sentencepiece_tokenizer if family.sentencepiece else tiny_tokenizer
    return make(chat_template=template_text(family.template), specials=family.specials, eos=family.eos, bos=family.bos)


def sentencepiece_tokenizer(*, chat_template: str | None, specials: tuple[str, ...], eos: str, bos: str | None) -> Any:
    """BPE over whole text with ▁ for spaces and bytes for what is unknown, as Gemma's and Mistral's are."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    text = [*"".join(sorted({char for line in CORPUS for char in line} | set("\n"))), *CORPUS]
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    backend.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=640, special_tokens=["<unk>", *specials, *bytes_], show_progress=False, max_token_length=8
        ),
    )
    # Bytes have to be in the vocabulary, but are no tokens that a text could name.
    whole = json.loads(backend.to_str())
    whole["added_tokens"] = [token for token in whole["added_tokens"] if token["content"] not in bytes_]
    backend = Tokenizer.from_str(json.dumps(whole))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token=bos, unk_token="<unk>")
    tokenizer.chat_template = chat_template
    return tokenizer
