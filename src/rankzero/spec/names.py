"""Run names: what is allowed, and the default made from a spec. Pure."""

from __future__ import annotations

import re

RUN_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$"
"""One path segment, no leading dot: a run name can never leave the output directory."""

RUN_NAME_RULE = "a name of up to 100 letters, digits, '.', '_' and '-' that starts and ends with a letter or digit"
"""The pattern in words."""

ABSOLUTE_PATH_PATTERN = r"^/.+$"

DNS_LABEL_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
"""RFC 1123 label: namespaces, containers, volumes."""
DNS_NAME_PATTERN = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
"""RFC 1123 subdomain: most names of objects."""
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
LABEL_KEY_PATTERN = r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$"
IMAGE_PATTERN = (
    r"^([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[a-f0-9]{64})?$"
)
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|[MGTPE]|[KMGTPE]i)?$"
RESOURCE_NAME_PATTERN = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
SLURM_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.,:+-]*$"
SLURM_OPTION_PATTERN = r"^[a-z][a-z0-9-]*$"
ONE_LINE_PATTERN = r"^[^\r\n]+$"
URL_PATTERN = r"^[a-z][a-z0-9+.-]*://\S+$"

PATTERNS_IN_WORDS = {
    RUN_NAME_PATTERN: RUN_NAME_RULE,
    ABSOLUTE_PATH_PATTERN: "an absolute path",
    DNS_LABEL_PATTERN: "a name of up to 63 small letters, digits and '-' that starts and ends with a letter or digit",
    DNS_NAME_PATTERN: "a name of small letters, digits, '-' and '.' that starts and ends with a letter or digit",
    ENV_NAME_PATTERN: "the name of a variable: letters, digits and '_'",
    LABEL_KEY_PATTERN: "a label's key: up to 63 letters, digits, '-', '_' and '.', maybe after a domain and '/'",
    LABEL_VALUE_PATTERN: "up to 63 letters, digits, '-', '_' and '.' that start and end with a letter or digit",
    IMAGE_PATTERN: "an image such as registry.example/team/rankzero:1.0 (small letters; tag or digest last)",
    QUANTITY_PATTERN: "a quantity such as 500m, 16 or 512Gi",
    RESOURCE_NAME_PATTERN: "the name of a device resource, such as nvidia.com/gpu",
    SLURM_NAME_PATTERN: "a name of letters, digits, '_', '.', ',', ':', '+' and '-'",
    SLURM_OPTION_PATTERN: "the long name of an option of sbatch without its dashes, such as mail-type",
    ONE_LINE_PATTERN: "one line of text",
    URL_PATTERN: "a URL such as s3://bucket/prefix",
}
"""What each pattern asks for, as an error says it."""


def slug(text: str, *, limit: int = 40) -> str:
    """The last path segment of `text` in lower case, with runs of other characters as one dash, cut to `limit`."""
    tail = text.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")
    return re.sub(r"[^a-z0-9]+", "-", tail.lower()).strip("-")[:limit].strip("-") or "model"


def default_run_name(model_name: str, method: str, spec_hash: str) -> str:
    """`qwen3-8b-lora-3f9a1c`: the same spec has the same name, so the same command continues the same run."""
    return f"{slug(model_name)}-{method}-{spec_hash[:6]}"


PLAIN_TEMPLATE = "plain"
"""What data.chat_template is for rankzero's own template instead of a file."""

GIVEN_BY_US = ("messages", "tools", "add_generation_prompt")
"""What a chat template is given of a row's turns and tools, whatever it is given besides."""

PLAIN_NOTE = "chat template: plain, since the tokenizer has none"
"""What is noted of chat rows that were rendered with it though the spec names none, in data.json too."""
