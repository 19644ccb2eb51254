"""Finding, loading, adapting and exporting models. Nothing of data, steps or processes."""

import logging


def _is_about_us(record: logging.LogRecord) -> bool:
    """False for what bitsandbytes says when it is imported on a CPU with avx512_bf16, as peft does wherever it is
    installed: that it lacks kernels for a layout which no layer takes here (`quantize.keep_layout`)."""
    return "gemm_4bit_forward" not in record.getMessage()


logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_about_us)
