"""The directories of the cache, one a kind. A test holds every place in the package that writes there to this list."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A directory of the cache."""

    what: str
    """In words, for a person who decides whether it can go."""
    again: str
    """What it costs to have it again."""
    whole: bool = False
    """It goes as a whole or not at all."""
    after: str | None = None
    """The kind that has to be gone before: its entries name files of this one."""
    prunable: bool = True


KINDS = {
    "tokenized": Kind("tokenised rows", "tokenised again"),
    "images": Kind("images that rows brought", "with the rows", whole=True, after="tokenized"),
    "downloads": Kind("data files from URLs and stores", "downloaded again"),
    "models": Kind("models made of GGUF files, which adapters on them name", "converted again"),
    "served": Kind("merged models for servers", "merged again"),
    "compiled": Kind("what torch.compile made", "compiled again"),
    "streams": Kind("windows of streamed rows", "read again"),
    "digests": Kind("hashes of files", "read again"),
    "tokenizers": Kind("fingerprints of tokenizers", "a forecast without torch, until the next start"),
    "imports": Kind("which module of transformers defines what", "read again"),
    "timings": Kind("measured speeds", "a guess, until the next run"),
    "prepared": Kind("marks of a cluster's preparations", "the run that waits for one", prunable=False),
}
