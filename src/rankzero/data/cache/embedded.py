"""Rows with tokens that a model cannot look up. Knows nothing of models: it is told the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.read.download import origin
from rankzero.data.rows.problems import ProblemLog, RowProblem
from rankzero.errors import Problem

EMBEDDING_HINT = "leave it out, or resize the model's embeddings (resize_token_embeddings) and save it"


def require_embedded(dataset: TokenizedDataset, unembedded: Mapping[int, str]) -> None:
    """Raise DataError with the rows that have one of these tokens, which are the tokenizer's last ones."""
    if not unembedded:
        return
    found = {dataset.place(row): row for row in dataset.rows_with(min(unembedded)).tolist()}  # weights repeat rows
    log = ProblemLog()
    for path, line in sorted(found):
        what = without_embedding(unembedded, int(dataset.row(found[path, line])[0].max()))
        log.add(origin(path), [RowProblem(line, "a token without an embedding", what, EMBEDDING_HINT)])
    if log.total:
        raise log.error()


def unembedded_problems(
    unembedded: Mapping[int, str], rows: Sequence[Sequence[int]], places: Sequence[str]
) -> list[Problem]:
    """One for each such token of each of these rows, which are at these places."""
    return [
        Problem(without_embedding(unembedded, token), where, EMBEDDING_HINT)
        for row, where in zip(rows, places, strict=True)
        for token in sorted(unembedded.keys() & set(row))
    ]


def without_embedding(unembedded: Mapping[int, str], token: int) -> str:
    """What to say of one of them."""
    return f"the model has no embedding for token {token}, {unembedded[token]!r}"
