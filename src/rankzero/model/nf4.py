"""4-bit NormalFloats of bitsandbytes, packed and read: what is used of the package, with its reading on CPUs put right.

16 numbers, and a scale for each NF4_BLOCK weights; scales are 8-bit floats with a scale for each 256 of them. As in
Dettmers et al., "QLoRA" (2023), section 3.
"""

from __future__ import annotations

import warnings
from functools import cache
from math import prod
from typing import Any

import torch

NF4_BLOCK = 64
"""So many values of a 4-bit weight have a scale."""
_READ = "bitsandbytes::dequantize_4bit"


def require_bitsandbytes() -> None:
    """Raise ImportError where it is missing. From here on all that reads 4-bit weights, bitsandbytes' own layers and
    peft included, reads them rightly."""
    import bitsandbytes  # noqa: F401

    _mended()


def pack_nf4(weight: torch.Tensor, storage: torch.dtype) -> tuple[torch.Tensor, Any]:
    """(packed, state) of a weight of any shape: its numbers, two in a byte, as a column of `storage`, and its scales in
    a `QuantState` of bitsandbytes."""
    _mended()
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(
        weight.contiguous(), blocksize=NF4_BLOCK, compress_statistics=True, quant_type="nf4", quant_storage=storage
    )
    return packed, state


def unpack_nf4(packed: torch.Tensor, state: Any) -> torch.Tensor:
    """The weight that `pack_nf4` was given, in its shape and precision, rounded to what can be kept."""
    _mended()
    from bitsandbytes.functional import dequantize_4bit

    weight: torch.Tensor = dequantize_4bit(packed, state)
    return weight.view(state.shape)


@cache
def _mended() -> torch.library.Library:
    """Blocks go on from one row to the next where they are packed, and where GPUs read them. bitsandbytes 0.50 on CPUs
    begins one anew with each row, so that rows of another width than whole blocks come out with their neighbours'
    scales. It is right of rows that are a block each, and of one row: that is what it is asked for here."""
    import bitsandbytes.functional  # noqa: F401

    theirs = torch.library.get_kernel(_READ, "CPU")

    def read(
        keys: torch._C.DispatchKeySet,
        packed: torch.Tensor,
        scales: torch.Tensor,
        block: int,
        kind: str,
        shape: list[int],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        count = prod(shape)
        rows = [count // block, block] if count % block == 0 else [1, count]
        weight: torch.Tensor = theirs.call_boxed(keys, packed, scales, block, kind, rows, dtype)
        return weight.view(shape)

    library = torch.library.Library("bitsandbytes", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():  # torch says that something is put in the place of theirs, as is meant
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        library.impl(_READ.partition("::")[2], read, "CPU", with_keyset=True, allow_override=True)  # type: ignore[no-untyped-call]
    return library
