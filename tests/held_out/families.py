"""The families whose templates are held out: their special tokens, and what of each the wire format is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.held_out import wire
from tests.held_out.dialogues import Dialogue
from tests.held_out.wire import Wire
from tests.support.tiny import tiny_tokenizer

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Family:
    """A template, and what its models read and write."""

    write: Callable[[Dialogue], Wire]
    specials: str
    """Apart by spaces; those in angle brackets and bars."""
    eos: str
    bos: str | None = None
    arguments_as_text: bool = False
    """Its template takes the arguments of calls as JSON in a string."""
    named_ids: bool = False
    """Its models have ids of calls that say which function is called."""
    dated: bool = False
    """Its template prints today's date."""


_CHATML = "<|endoftext|> <|im_start|> <|im_end|>"
_LLAMA3 = "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|>"
_LLAMA4 = "<|begin_of_text|> <|end_of_text|> <|header_start|> <|header_end|> <|eot|>"
_INST = "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS]"
_GEMMA = "<bos> <eos> <start_of_turn> <end_of_turn> <start_of_image>"
_PHI = "<|endoftext|> <|system|> <|user|> <|assistant|> <|end|>"
_DEEPSEEK = (
    "<｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜> "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> "
    "<｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁outputs▁begin｜> <｜tool▁outputs▁end｜> "
    "<｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
)
_COHERE = (
    "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|> "
    "<|START_RESPONSE|> <|END_RESPONSE|> <|START_ACTION|> <|END_ACTION|> <|START_TOOL_RESULT|> <|END_TOOL_RESULT|>"
)
_HARMONY = "<|start|> <|message|> <|channel|> <|end|> <|return|> <|call|> <|constrain|> <|endoftext|>"
_GLM = "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|>"
_GRANITE = "<|start_of_role|> <|end_of_role|> <|end_of_text|>"
_KIMI = (
    "[BOS] [EOS] <|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> <|tool_calls_section_begin|> "
    "<|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>"
)

FAMILIES: dict[str, Family] = {
    "chatml": Family(wire.chatml, _CHATML, "<|im_end|>"),
    "hermes": Family(wire.hermes, _CHATML, "<|im_end|>"),
    "llama2": Family(wire.llama2, "<s> </s>", "</s>", "<s>"),
    "llama3_1": Family(wire.llama3_1, _LLAMA3, "<|eot_id|>", "<|begin_of_text|>"),
    "llama4": Family(wire.llama4, _LLAMA4, "<|eot|>", "<|begin_of_text|>"),
    "mistral_v1": Family(wire.mistral_v1, "<s> </s>", "</s>", "<s>"),
    "mistral_v3": Family(wire.mistral_v3, _INST, "</s>", "<s>"),
    "mistral_nemo": Family(wire.mistral_nemo, _INST, "</s>", "<s>"),
    "mistral_v7": Family(wire.mistral_v7, _INST + " [SYSTEM_PROMPT] [/SYSTEM_PROMPT]", "</s>", "<s>"),
    "gemma2": Family(wire.gemma2, _GEMMA, "<eos>", "<bos>"),
    "gemma3": Family(wire.gemma3, _GEMMA, "<eos>", "<bos>"),
    "phi3": Family(wire.phi3, _PHI, "<|endoftext|>"),
    "phi3_generation": Family(wire.phi3, _PHI, "<|endoftext|>"),
    "phi4": Family(wire.phi4, _CHATML + " <|im_sep|>", "<|im_end|>"),
    "qwen2_5": Family(wire.qwen2_5, _CHATML, "<|im_end|>"),
    "qwen3": Family(wire.qwen3, _CHATML, "<|im_end|>"),
    "qwen3_5": Family(wire.qwen3_5, _CHATML, "<|im_end|>"),
    "deepseek_v3": Family(
        wire.deepseek_v3, _DEEPSEEK, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", arguments_as_text=True
    ),
    "deepseek_r1": Family(wire.deepseek_r1, _DEEPSEEK, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "command_r": Family(wire.command_r, _COHERE, "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    "cohere2": Family(wire.cohere2, _COHERE, "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    "gpt_oss": Family(wire.gpt_oss, _HARMONY, "<|return|>", dated=True),
    "glm4_5": Family(wire.glm4_5, _GLM, "<|endoftext|>"),
    "smollm3": Family(wire.smollm3, _CHATML, "<|im_end|>", dated=True),
    "granite3": Family(wire.granite3, _GRANITE, "<|end_of_text|>", "<|end_of_text|>"),
    "olmo2": Family(wire.olmo2, "<|endoftext|>", "<|endoftext|>", "<|endoftext|>"),
    "zephyr": Family(wire.zephyr, "<s> </s>", "</s>", "<s>"),
    "vicuna": Family(wire.vicuna, "<s> </s>", "</s>", "<s>"),
    "kimi_k2": Family(wire.kimi_k2, _KIMI, "<|im_end|>", "[BOS]", named_ids=True),
}
assert FAMILIES.keys() == {file.stem for file in TEMPLATES.glob("*.jinja")}


def template_text(name: str) -> str:
    """A template, without the newline that ends its file."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8").removesuffix("\n")


@cache
def tokenizer(name: str) -> Any:
    """A family's tokenizer; treat as read-only."""
    family = FAMILIES[name]
    specials = tuple(family.specials.split())
    return tiny_tokenizer(chat_template=template_text(name), specials=specials, eos=family.eos, bos=family.bos)
