"""model.local_files_only keeps whoever reads a spec's rows from the network, too: data, evaluation and streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rankzero.data.cache import training_data as module
from rankzero.data.cache.tokenize import Shard
from rankzero.data.cache.training_data import prepare_part, training_data
from rankzero.data.inspect.show import rows_to_show
from rankzero.data.inspect.validate import CheckOptions, check
from rankzero.data.progress import no_progress
from rankzero.data.read import locate, shards
from rankzero.data.tokens.token_rules import TokenRules
from rankzero.errors import ServiceError
from rankzero.spec.run_spec import RunSpec, SourceSpec
from tests.support.tiny import chat_rows, tiny_tokenizer, write_jsonl
from tests.unit.data.read.fake_network import NoNetwork, own_cache

__all__ = ["own_cache"]
pytestmark = pytest.mark.usefixtures("own_cache")
ELSEWHERE = ["org/rows[train]", "s3://bucket/rows.jsonl", "https://example.org/rows.jsonl"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks it fails the test."""
    for place in (locate, shards, module):
        monkeypatch.setattr(place, "RealNetwork", lambda: NoNetwork({}))


def read(spec: RunSpec, cache: Path) -> Any:
    tokenizer = tiny_tokenizer()
    return training_data(
        *(spec, tokenizer, cache), workers=1, show=lambda _l, _s: nullcontext(no_progress), say=print, warn=print
    )


def prepare(spec: RunSpec, cache: Path) -> Any:
    return prepare_part(
        *(spec, tiny_tokenizer(), cache, Shard(0, 1)), workers=1, show=lambda _l, _s: nullcontext(no_progress)
    )


@pytest.mark.parametrize("path", ELSEWHERE)
@pytest.mark.parametrize(
    ("reader", "sections"),
    [
        (read, {"data": {"train": "PATH"}}),
        (read, {"data": {"train": "HERE", "eval": "PATH"}}),
        (read, {"data": {"train": "PATH", "streaming": True}, "train": {"max_steps": 1}}),
        (prepare, {"data": {"train": "PATH"}}),
        (prepare, {"data": {"train": "PATH", "streaming": True}, "train": {"max_steps": 1}}),
    ],
)
def test_rows_elsewhere_are_not_asked_for(
    tmp_path: Path, path: str, reader: Callable[[RunSpec, Path], Any], sections: dict[str, Any]
) -> None:
    here = str(write_jsonl(tmp_path / "here.jsonl", chat_rows(3)))
    data = {key: {"PATH": path, "HERE": here}.get(value, value) for key, value in sections["data"].items()}
    value = {"model": {"name": "m"}, **sections, "data": data}
    with pytest.raises(ServiceError, match="the network is not to be used") as caught:
        reader(RunSpec.model_validate({**value, "model": {"name": "m", "local_files_only": True}}), tmp_path / "cache")
    (problem,) = caught.value.problems
    assert problem.where == path and "model.local_files_only" in problem.hint
    with pytest.raises(AssertionError):
        reader(RunSpec.model_validate(value), tmp_path / "cache")


@pytest.mark.parametrize("path", ELSEWHERE)
def test_who_only_looks_at_rows_does_not_ask_for_them_either(path: str) -> None:
    source = SourceSpec(path=path)
    with pytest.raises(ServiceError, match="the network is not to be used"):
        check([source], CheckOptions(offline=True), workers=1)
    with pytest.raises(ServiceError, match="the network is not to be used"):
        list(rows_to_show(source, tiny_tokenizer(), TokenRules(trains="answers"), offline=True))
