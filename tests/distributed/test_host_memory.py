"""What ranks hold of a model while it is spread: the main one its share and a block, never all float32 masters; the
others nothing that they loaded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from rankzero.run_dir.handover import read_payload
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import small_spec
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.distributed

LAYERS, HIDDEN = 8, 512


@pytest.fixture(scope="module")
def stored_in_bfloat16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of which a float32 copy is much larger than what a process takes besides."""
    from transformers import AutoModelForCausalLM

    directory = tiny_model(tmp_path_factory.mktemp("large"), layers=LAYERS, hidden=HIDDEN)
    AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).save_pretrained(directory)
    return directory


def test_the_main_rank_holds_its_share_and_one_block(tmp_path: Path, stored_in_bfloat16: Path) -> None:
    spec = small_spec(
        tmp_path, stored_in_bfloat16, rows=8, eval_rows=0, lora=None, train__sharding="fsdp", train__max_steps=1
    )
    codes = in_ranks(measure, 2, tmp_path, os.environ["RANKZERO_CACHE"], payload(spec))
    assert codes == [0, 0], (tmp_path / "said-0").read_text()
    grown, whole, largest = map(int, (tmp_path / "grown").read_text().split())
    assert whole > 80e6, "too small a model to see anything"
    assert grown < whole / 2 + 3 * largest  # of a block: as it is placed, as it is cut, and what malloc keeps


@pytest.mark.parametrize("quantization", ["nf4", "fp8"])
def test_a_packed_base_is_packed_once_and_sent(quantization: str, tmp_path: Path, tiny: Path) -> None:
    spec = small_spec(
        tmp_path,
        tiny,
        rows=8,
        eval_rows=0,
        model__quantization=quantization,
        train__sharding="fsdp",
        train__max_steps=1,
    )
    codes = in_ranks(count_loads, 2, tmp_path, os.environ["RANKZERO_CACHE"], payload(spec))
    assert codes == [0, 0], (tmp_path / "said-0").read_text()
    assert [(tmp_path / f"loads-{rank}").read_text() for rank in range(2)] == ["cpu", ""]


def count_loads(directory: Path, cache: str, text: str) -> None:
    """One rank of a run, which writes onto which devices it loaded models."""
    from rankzero.engine import setup, worker

    os.environ["RANKZERO_CACHE"] = cache
    devices: list[str] = []
    load = setup.load_model

    def loaded(*arguments: object, device: torch.device, **options: object) -> object:
        devices.append(device.type)
        return load(*arguments, device=device, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "load_model", loaded)
        worker.run(*read_payload(text))
    (directory / f"loads-{os.environ['RANK']}").write_text(" ".join(devices))


def payload(spec: RunSpec) -> str:
    return json.dumps({"spec": spec.model_dump(mode="json"), "options": asdict(RunOptions(log_level="INFO"))})


def measure(directory: Path, cache: str, text: str) -> None:
    """One rank of a run, which writes how much memory of its own it took at most from loading until it is spread."""
    from rankzero.engine import setup, worker
    from rankzero.engine.parallel import fsdp

    os.environ["RANKZERO_CACHE"] = cache
    seen: list[int] = []
    load, take = setup.load_model, fsdp.take_from_main

    def loaded(*arguments: object, **options: object) -> object:
        seen.append(own_bytes())
        model = load(*arguments, **options)  # type: ignore[arg-type]
        seen.append(own_bytes())
        return model

    def taken(unit: torch.nn.Module, *rest: object, **options: object) -> None:
        take(unit, *rest, **options)  # type: ignore[arg-type]
        seen.append(own_bytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "load_model", loaded)
        patch.setattr(fsdp, "take_from_main", taken)
        worker.run(*read_payload(text))
    if os.environ["RANK"] == "0":
        block = 4 * HIDDEN * HIDDEN * 4 + 3 * HIDDEN * 2 * HIDDEN * 4
        (directory / "grown").write_text(f"{max(seen) - seen[0]} {LAYERS * block} {block}")


def own_bytes() -> int:
    """Resident memory of this process that is no file's."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
