"""How many tokens go through the model at once, and whether activations are recomputed: an estimate from shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rankzero.spec.run_spec import RunSpec

CPU_TOKENS = 1024
"""On a CPU longer passes win nothing more, and memory is shared with everything else."""
GPU_TOKENS = (65536, 32768, 16384, 8192, 4096, 2048, 1024)
CPU_PASS_COST, GPU_PASS_COST = 32, 512
"""What starting a forward and backward pass costs, in tokens: reading all weights, launching all kernels."""
USABLE = 0.85
"""Share of the memory that is planned with; the rest is for the context, fragmentation and what this leaves out."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Decisions that change speed and memory, never the maths."""

    micro_batch_tokens: int
    pass_cost_tokens: int
    gradient_checkpointing: bool


def plan_memory(
    spec: RunSpec,
    config: Any,
    dtype: torch.dtype,
    limit: int,
    device_kind: str,
    trainable: int,
    total: int,
) -> MemoryPlan:
    """Fill in what the spec leaves to `auto`, for `limit` bytes of memory.

    Fixed: weights, and for trained ones float32 gradient and two moments. Activations of one token, kept for backward:
    per layer 10 hidden-sized and 4 intermediate-sized tensors in the compute precision, or one hidden-sized one when
    recomputed; and 12 bytes per vocabulary entry for logits of trained tokens (here: of all tokens, the worst case).
    """
    text = config.get_text_config()
    hidden, layers = text.hidden_size, text.num_hidden_layers
    intermediate = getattr(text, "intermediate_size", None) or 4 * hidden
    bytes_per_value = dtype.itemsize
    fixed = (total - trainable) * bytes_per_value + trainable * 16
    kept = layers * (10 * hidden + 4 * intermediate) * bytes_per_value + 12 * text.vocab_size
    recomputed = (
        layers * hidden * bytes_per_value + (10 * hidden + 4 * intermediate) * bytes_per_value + 12 * text.vocab_size
    )
    room = limit * USABLE - fixed
    wanted = spec.train.micro_batch_tokens
    largest_row = spec.data.max_length

    def fits(tokens: int, per_token: int) -> bool:
        return max(tokens, largest_row) * per_token <= room

    choice = spec.train.gradient_checkpointing
    candidates = GPU_TOKENS if device_kind != "cpu" else (CPU_TOKENS,)
    smallest = wanted if wanted != "auto" else candidates[-1]
    checkpointing = choice if choice != "auto" else not fits(smallest, kept)
    per_token = recomputed if checkpointing else kept
    tokens = wanted if wanted != "auto" else next((t for t in candidates if fits(t, per_token)), candidates[-1])
    return MemoryPlan(
        micro_batch_tokens=max(tokens, 1),
        pass_cost_tokens=CPU_PASS_COST if device_kind == "cpu" else GPU_PASS_COST,
        gradient_checkpointing=checkpointing,
    )
