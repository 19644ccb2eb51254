"""What ranks hold of a model while it is spread: the main one its share and a block, never all float32 masters; the
others nothing that they loaded."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rankzero.machine import CPU_FEATURES_VARIABLE
from rankzero.run_dir.handover import read_payload
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import in_ranks
from tests.support.runs import final_weights, run_here, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import tiny_model
from tests.support.zero import NEEDS_DEEPSPEED

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


@pytest.mark.usefixtures("bfloat16_computed")
@pytest.mark.parametrize("sharding", [pytest.param(name, marks=NEEDS_DEEPSPEED) for name in ("zero2", "zero3")])
def test_the_main_rank_alone_loads_in_float32_what_deepspeed_rounds(sharding: str, tmp_path: Path) -> None:
    """A head that is drawn, beside files in bfloat16. A step that moves nothing shows what the weights began with."""
    still: dict[str, Any] = {"train__learning_rate": 1e-30, "train__weight_decay": 0.0, "train__max_steps": 1}
    still |= {"rows": 8, "model__dtype": "bfloat16"}
    replica, spec = (
        task_spec("classify", tmp_path / name, **still, train__sharding=name) for name in ("ddp", sharding)
    )
    for file in (Path(one.model.name) / "model.safetensors" for one in (replica, spec)):
        save_file({name: value.bfloat16() for name, value in load_file(file).items()}, file, {"format": "pt"})
    run_here(replica)
    env = {name: os.environ[name] for name in ("RANKZERO_CACHE", CPU_FEATURES_VARIABLE)}
    codes = in_ranks(note_precisions, 2, tmp_path, env, payload(spec))
    assert codes == [0, 0], (tmp_path / "said-0").read_text()
    loads = [(tmp_path / f"loads-{rank}").read_text() for rank in range(2)]
    assert loads == ["torch.float32", "torch.bfloat16" if sharding == "zero2" else ""]
    found, wanted = final_weights(spec), final_weights(replica)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=0, atol=1e-20) for name in wanted)
    assert any(not torch.equal(value, value.bfloat16().float()) for value in found.values())


def note_precisions(directory: Path, env: dict[str, str], text: str) -> None:
    """One rank of a run, which writes in which precisions it loaded models."""
    from rankzero.engine import setup, worker

    os.environ.update(env)
    found: list[str] = []
    load = setup.load_model

    def loaded(source: object, model: object, config: object, dtype: torch.dtype, **options: object) -> object:
        found.append(str(dtype))
        return load(source, model, config, dtype, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "load_model", loaded)
        worker.run(*read_payload(text))
    (directory / f"loads-{os.environ['RANK']}").write_text(" ".join(found))


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
