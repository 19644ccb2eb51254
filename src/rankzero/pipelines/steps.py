"""What the steps of a data-preparation pipeline do, as plain functions. Knows nothing of pipelines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.tokenize import Shard
from rankzero.data.cache.training_data import prepare_part
from rankzero.data.inspect.report_html import report_html
from rankzero.data.inspect.validate import check as check_rows
from rankzero.data.progress import no_progress
from rankzero.data.read.locate import LocatedSource
from rankzero.run_dir.atomic import write_text
from rankzero.spec.data_paths import parse_data_path
from rankzero.spec.run_spec import DataSpec, ModelSpec, RunSpec, SourceSpec


def data_path(dataset: str, split: str) -> str:
    """A Hub data set gets its split, unless it names one; a file or URL stays as it is."""
    meant = parse_data_path(dataset, os.path.exists)
    if meant.place != "hub" or meant.split is not None or not split:
        return dataset
    return str(replace(meant, split=split))


def check(dataset: str, split: str, page: str) -> dict[str, Any]:
    """Look at every row, and write what was found as a page. Returns the counts, with `rows_in` as preparing counts
    them, and `refused`: in words, every problem that keeps rows from being trained on; "" where there is none. That is
    for the next step to raise: Kubeflow keeps no page of a step that failed."""
    report = check_rows([SourceSpec(path=data_path(dataset, split))])
    write_text(Path(page), report_html(report, title=f"Data check: {dataset}"))
    refused = "" if report.ok else str(report.error())
    return {**report.as_json(), "rows_in": report.counts.rows - report.counts.merged, "refused": refused}


def prepare(dataset: str, split: str, model: str, max_length: int, cache: str) -> dict[str, Any]:
    """Tokenise into `cache`, where training with the same model, data and length finds it. Returns what was made."""
    from rankzero.model.load import load_tokenizer
    from rankzero.model.source import locate

    spec = RunSpec(model=ModelSpec(name=model), data=DataSpec(train=data_path(dataset, split), max_length=max_length))
    tokenizer = load_tokenizer(locate(spec.model), spec.model, None)

    def show(_label: str, _sources: Sequence[LocatedSource]) -> Any:
        return nullcontext(no_progress)

    made = prepare_part(spec, tokenizer, Path(cache), Shard(), workers=None, show=show)["train"]
    if not isinstance(made, TokenizedDataset):
        raise RuntimeError("one shard of one left work undone")
    return {"directory": str(made.directory), "fingerprint": made.fingerprint, **made.stats.as_json()}
