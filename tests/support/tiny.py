"""Tiny models and tokenizers made in-process from real classes: no network, no downloaded files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog while the rain falls on the quiet harbour town.",
    "What is the capital of Peru? The capital of Peru is Lima. How many legs has a spider? Eight legs.",
    "Hello World Ping Pong. Name a prime number: seven. Translate good day to French: bonjour.",
    "system user assistant tool message content train loss step epoch rank zero gradient token batch",
] * 4


def tiny_tokenizer(
    *,
    chat_template: str | None = CHATML,
    specials: tuple[str, ...] = (),
    eos: str = "<|im_end|>",
    pad: str | None = None,
    bos: str | None = None,
    vocab_size: int = 384,
) -> Any:
    """A byte-level BPE tokenizer trained on CORPUS, wrapped as transformers' fast tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    added = list(
        dict.fromkeys(
            [
                *(specials or ["<|im_start|>", "<|im_end|>"]),
                eos,
                *([pad] if pad else []),
                *([bos] if bos else []),
            ]
        )
    )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=added,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, pad_token=pad, bos_token=bos)
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_model(
    directory: Path, *, tokenizer: Any = None, layers: int = 2, hidden: int = 32, seed: int = 0, context: int = 512
) -> Path:
    """A random 2-layer Llama with its tokenizer, saved to `directory` in Hugging Face format."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer if tokenizer is not None else tiny_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def chat_rows(n: int) -> list[dict[str, Any]]:
    """`n` short chats of varied length."""
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
    return [
        {
            "messages": [
                {"role": "user", "content": f"Say {words[i % 10]} {i} " + "please " * (i % 5)},
                {"role": "assistant", "content": " ".join(words[(i + k) % 10] for k in range(1 + (i * 7) % 9))},
            ]
        }
        for i in range(n)
    ]


def preference_rows(n: int) -> list[dict[str, Any]]:
    """Pairs of answers whose lengths differ much, the better one the longer in every other row; every third is a chat
    of several turns."""
    short, long = "Short.", "A much longer answer of many words, number {} of them all, about the quick brown fox."
    rows: list[dict[str, Any]] = []
    for i in range(n):
        better, worse = (short, long.format(i)) if i % 2 else (long.format(i), f"No, {i}.")
        if i % 3:
            rows.append({"prompt": f"Question {i}?", "chosen": better, "rejected": worse})
        else:
            asked = [
                {"role": "user", "content": f"Question {i}?"},
                {"role": "assistant", "content": "Which one?"},
                {"role": "user", "content": "The last."},
            ]
            answers = [[*asked, {"role": "assistant", "content": text}] for text in (better, worse)]
            rows.append({"chosen": answers[0], "rejected": answers[1]})
    return rows


def tiny_gpt2(directory: Path) -> Path:
    """A random GPT-2 whose tokenizer has neither a chat template nor a pad token, like distilgpt2's."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = tiny_tokenizer(chat_template=None, specials=("<|endoftext|>",), eos="<|endoftext|>")
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=2048)
    GPT2LMHeadModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
