"""Every process has the same base, or none begins: replicas of a frozen one would each train on their own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from rankzero.errors import ExitCode
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import run_root, small_spec

pytestmark = pytest.mark.distributed


def train_on_own_files(_directory: Path, cache: str, models: list[str], text: str) -> None:
    """One rank, whose node has files of its own under the path of the spec."""
    from rankzero.engine import worker

    os.environ["RANKZERO_CACHE"] = cache
    spec = RunSpec.model_validate_json(text)
    model = spec.model.model_copy(update={"local_dir": models[int(os.environ["RANK"])]})
    worker.run(spec.model_copy(update={"model": model}), RunOptions(log_level="WARNING"))


def test_a_node_with_other_weights_is_refused(tmp_path: Path, tiny: Path, own_cache: Path) -> None:
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    spec = small_spec(tmp_path, tiny, eval_rows=0)
    text = json.dumps(spec.model_dump(mode="json"))
    codes = in_ranks(train_on_own_files, 2, tmp_path, str(own_cache), [str(tiny), str(other)], text)
    assert codes == [ExitCode.CONFIG, ExitCode.CONFIG]
    for rank in range(2):
        assert "the processes have different weights" in (tmp_path / f"said-{rank}").read_text()
    assert not (run_root(spec) / "checkpoints").exists(), "nothing was begun"
