"""A streamed run over several processes: the same rows in every step, also where the next start has fewer of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.errors import ExitCode
from tests.support.forked import Ordeal, run_forked
from tests.support.runs import metrics, run_here, run_root, small_spec
from tests.support.tiny import chat_rows, write_jsonl

pytestmark = pytest.mark.distributed


def test_two_processes_that_stop_and_one_that_goes_on_see_the_rows_of_one(
    tmp_path: Path, tiny: Path, own_cache: Path
) -> None:
    for number in range(5):
        write_jsonl(tmp_path / f"shards/{number}.jsonl", chat_rows(60)[number * 12 : number * 12 + 12])
    stream = {"data__train": str(tmp_path / "shards"), "data__streaming": True, "data__shuffle_buffer_size": 20}
    whole, moved = (
        small_spec(tmp_path, tiny, eval_rows=0, **stream, data__max_length=256, train__max_steps=9, name=name)
        for name in ("whole", "moved")
    )
    run_here(whole)
    assert run_forked(moved, 2, Ordeal(stop_in_step=5)).codes == [ExitCode.STOPPED] * 2
    run_here(moved)
    for ours, theirs in zip(metrics(moved), metrics(whole), strict=True):
        same = ("tokens", "supervised_tokens", "epoch", "step")
        assert [ours[name] for name in same] == [theirs[name] for name in same]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert (run_root(moved) / "final").is_dir() and not list((own_cache / "streams").iterdir())
