"""How images stand in the text of a model, as plain data for data workers. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankzero.data.tokens.image_tokens import DecidedBy, Layout


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
    image_token_id: int
    image_token: str
    """What the model puts an image's features in the place of; the placeholder itself, mostly."""
    reserved: tuple[str, ...]
    """Further tokens that stand for what is no text, such as videos."""
    around: tuple[str, str]
    """Special tokens that the chat template prints directly before and behind a placeholder."""
    decided_by: DecidedBy
    fingerprint: str
    """Changes when the same image could become other tokens."""

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that one image may become."""
        return self.place.max_tokens

    def layouts(self) -> Callable[[int, int], Layout]:
        """How an image of (width, height) stands; ValueError where the processor takes no image of this size."""
        from rankzero.model.layouts import Layouts

        return Layouts(self.place.load(), self.placeholder, self.image_token, self.decided_by)
