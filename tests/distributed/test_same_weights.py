"""Every process has the same base and data, or none begins: each would train on its own."""

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
from tests.support.tiny import chat_rows, write_jsonl

pytestmark = pytest.mark.distributed


def train_on_own_files(_directory: Path, cache: str, models: list[str], data: list[str], text: str) -> None:
    """One rank, whose node has files of its own under the paths of the spec."""
    from rankzero.engine import worker

    os.environ |= {"RANKZERO_CACHE": cache, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    rank, spec = int(os.environ["RANK"]), RunSpec.model_validate_json(text)
    model = spec.model.model_copy(update={"local_dir": models[rank]})
    rows = spec.data.model_copy(update={"train": data[rank]})
    worker.run(spec.model_copy(update={"model": model, "data": rows}), RunOptions(log_level="WARNING"))


@pytest.mark.parametrize("differs", ["weights", "data"])
def test_a_node_with_other_files_is_refused(differs: str, tmp_path: Path, tiny: Path, own_cache: Path) -> None:
    other = Path(shutil.copytree(tiny, tmp_path / "other"))
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    spec = small_spec(tmp_path, tiny, eval_rows=0)
    text = json.dumps(spec.model_dump(mode="json"))
    data = [str(spec.data.train), str(write_jsonl(tmp_path / "others.jsonl", chat_rows(31)))]
    models, data = ([str(tiny), str(other)], data[:1] * 2) if differs == "weights" else ([str(tiny)] * 2, data)
    codes = in_ranks(train_on_own_files, 2, tmp_path, str(own_cache), models, data, text)
    assert codes == [ExitCode.CONFIG, ExitCode.CONFIG]
    for rank in range(2):
        assert f"the processes have different {differs}" in (tmp_path / f"said-{rank}").read_text()
    assert not (run_root(spec) / "checkpoints").exists(), "nothing was begun"
