"""What a tokenizer's files came to, remembered: so that rows in the cache are found without loading the tokenizer.

Loading one takes transformers, and with it torch: seconds, where the rows are there already.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rankzero.data.read.hashing import file_digest
from rankzero.errors import StorageError
from rankzero.run_dir.atomic import write_text
from rankzero.spec.names import PLAIN_TEMPLATE

_FILES = ("*.json", "*.model", "*.txt", "*.jinja", "*/*.jinja")
"""What a tokenizer is made of; a config.json that says which class it is lies beside."""
_DECIDE = ("transformers", "tokenizers", "rankzero")
"""Whose version decides what becomes of the files."""


def remember_tokenizer(directory: Path, chat_template: str | None, fingerprint: str, cache_dir: Path) -> None:
    """Note that the tokenizer of a directory, with this chat template (a Jinja file, or `plain`), has a fingerprint. A
    convenience: that it cannot be written is said where the cache matters."""
    with suppress(OSError, StorageError):
        write_text(_record(directory, chat_template, cache_dir), fingerprint)


def known_tokenizer(directory: Path, chat_template: str | None, cache_dir: Path) -> str | None:
    """Its fingerprint; None where it has not been loaded here with these files and libraries."""
    with suppress(OSError, UnicodeDecodeError):
        return _record(directory, chat_template, cache_dir).read_text(encoding="utf-8")
    return None


def tokenizer_files(directory: Path, cache_dir: Path) -> list[list[str]]:
    """Name and sha256 of each file that a tokenizer may be made of. Raises OSError."""
    names = sorted({path for pattern in _FILES for path in directory.glob(pattern) if path.is_file()})
    return [[str(path.relative_to(directory)), file_digest(str(path), cache_dir)] for path in names]


def _record(directory: Path, chat_template: str | None, cache_dir: Path) -> Path:
    files, template = tokenizer_files(directory, cache_dir), chat_template
    if chat_template is not None and chat_template != PLAIN_TEMPLATE:
        template = file_digest(chat_template, cache_dir)
    decides = json.dumps([files, template, list(_versions())])
    return cache_dir / "tokenizers" / hashlib.sha256(decides.encode()).hexdigest()[:32]


def _versions() -> Iterator[str]:
    for package in _DECIDE:
        try:
            yield version(package)
        except PackageNotFoundError:
            yield ""
