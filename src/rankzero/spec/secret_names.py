"""Which names speak of secrets. Pure; never sees a value."""

from __future__ import annotations

import re

_SECRET_WORDS = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY", "PAT"}
_NOT_THE_VALUE = {"PATH", "FILE", "DIR", "NAME", "URL", "ID", "ENDPOINT", "HOST", "NUM", "COUNT"}
_KEYS = re.compile(r"(^|_)(API|ACCESS|PRIVATE|SECRET|ACCOUNT|AUTH|ENCRYPTION|SIGNING|SSH|WANDB|LANGFUSE|OPENAI)_KEY$")


def looks_secret(name: str) -> bool:
    """Whether a variable or field of this name holds a secret: HF_TOKEN does, TOKENIZERS_PARALLELISM does not."""
    upper = re.sub(r"[^A-Z0-9]+", "_", name.upper())
    words = upper.strip("_").split("_")
    if words[-1] in _NOT_THE_VALUE:
        return False
    return bool(_SECRET_WORDS & set(words)) or _KEYS.search(upper) is not None
