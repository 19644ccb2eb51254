"""Every process sees what the others write into the run directory, or none begins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankzero.errors import ExitCode
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import run_root, small_spec

pytestmark = pytest.mark.distributed


def train_in_own_directory(directory: Path, cache: str, text: str, looked_for: bool) -> None:
    """One rank, on whose node the run directory is its own, as where a volume is not mounted."""
    from rankzero.engine import worker

    os.environ["RANKZERO_CACHE"] = cache
    spec = RunSpec.model_validate_json(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "SEEN_SECONDS", 0.0)
        if not looked_for:
            patch.setattr(worker, "require_one_volume", lambda *_: None)
        own = str(directory / f"node-{os.environ['RANK']}")
        worker.run(spec.model_copy(update={"output_dir": own}), RunOptions(log_level="WARNING"))


@pytest.mark.parametrize("trains", ["adapters", "all"])
@pytest.mark.parametrize("looked_for", [True, False])
def test_a_node_with_a_directory_of_its_own(
    looked_for: bool, trains: str, tmp_path: Path, tiny: Path, own_cache: Path
) -> None:
    """It is noticed before the first step; and were it not, no checkpoint would be counted that lacks files."""
    whole = {"lora": None, "train__sharding": "fsdp"} if trains == "all" else {}
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=2, checkpoint__every=1, **whole)
    text = json.dumps(spec.model_dump(mode="json"))
    codes = in_ranks(train_in_own_directory, 2, tmp_path, str(own_cache), text, looked_for)
    assert codes == [ExitCode.STORAGE, ExitCode.STORAGE]
    for rank in range(2):
        said = (tmp_path / f"said-{rank}").read_text()
        assert "one volume that all nodes mount" in said
        assert ("does not see what rank 0 writes" if looked_for else "is not seen here") in said
        assert not RunDir(tmp_path / f"node-{rank}" / "small").committed_steps()
        assert not list((tmp_path / f"node-{rank}" / "small").glob(".tmp-*"))


def train_where_a_listing_is_old(_directory: Path, cache: str, text: str) -> None:
    """The last rank's volume does not list new directories yet."""
    from rankzero.engine import worker

    os.environ["RANKZERO_CACHE"] = cache
    with pytest.MonkeyPatch.context() as patch:
        if os.environ["RANK"] == "1":
            patch.setattr(RunDir, "committed_steps", lambda _: [])
        worker.run(RunSpec.model_validate_json(text), RunOptions(log_level="WARNING"))


def test_whether_the_end_is_saved_is_rank_0s_to_say(tmp_path: Path, tiny: Path, own_cache: Path) -> None:
    spec = small_spec(tmp_path, tiny, eval_rows=0, train__max_steps=2)
    text = json.dumps(spec.model_dump(mode="json"))
    assert in_ranks(train_where_a_listing_is_old, 2, tmp_path, str(own_cache), text) == [0, 0]
    assert (run_root(spec) / "report.json").is_file()


def test_a_file_that_takes_a_moment_to_appear_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.engine import worker

    naps = iter((lambda: None, lambda: None, (tmp_path / "mark").touch))
    monkeypatch.setattr(worker.time, "sleep", lambda _seconds: next(naps)())
    assert worker.appears(tmp_path / "mark")
