"""How images stand in the text of a model, as plain data for data workers. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessorPlace:
    """Where a processor's files are, and how they are loaded."""

    name: str
    """A directory."""
    tokenizer: str
    trust_remote_code: bool = False
    max_tokens: int | None = None
    """Most tokens that one image may become."""

    def load(self) -> Any:
        """The processor; the same one for the same place. Raises ConfigError."""
        from rankzero.model.processor import load_processor

        return load_processor(self.name, self.tokenizer, self.trust_remote_code, self.max_tokens)


@dataclass(frozen=True, slots=True)
class VisionRules:
    """How images stand in the text of a model. A data worker that counts loads the processor; others are spared it."""

    place: ProcessorPlace
    placeholder: str
    placeholder_id: int
    reserved: tuple[str, ...]
    """Further tokens that stand for what is no text, such as videos."""
    fingerprint: str
    """Changes when the same image could become another number of tokens."""

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that one image may become."""
        return self.place.max_tokens

    def counter(self) -> Callable[[int, int], int]:
        """Tokens of an image of (width, height); ValueError where the processor takes no image of this size."""
        from rankzero.model.processor import image_tokens

        processor = self.place.load()

        def count(width: int, height: int) -> int:
            return image_tokens(processor, [(width, height)])[0]

        return count
