"""The hardware never changes the maths: processes and pass sizes move work around, the loss curve stays, dropout on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rankzero.spec.run_spec import RunSpec
from tests.support.forked import run_forked
from tests.support.runs import metrics, run_here, run_root, small_spec
from tests.support.tiny import chat_rows, write_jsonl

pytestmark = pytest.mark.distributed

LOSS_TOLERANCE = 1e-6
ADAPTER_TOLERANCE = 1e-5


def spec_in(tmp_path: Path, tiny: Path, **changes: object) -> RunSpec:
    """Rows of which some count less or more than others, so that the weights are the same in every layout too."""
    spec = small_spec(tmp_path, tiny, rows=37, eval_rows=11, lora__dropout=0.1, **changes)
    for path, count in ((spec.data.train, 37), (spec.data.eval, 11)):
        rows = chat_rows(count)
        for row in rows[::3]:
            row["messages"][1]["loss_weight"] = 0.25 if len(row["messages"][1]["content"]) % 2 else 2
        write_jsonl(Path(str(path)), rows)
    return spec


def adapter(spec: RunSpec) -> torch.Tensor:
    tensors = load_file(run_root(spec) / "final/adapter_model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def assert_same_curve(a: RunSpec, b: RunSpec) -> None:
    for x, y in zip(metrics(a), metrics(b), strict=True):
        assert x["loss"] == pytest.approx(y["loss"], rel=LOSS_TOLERANCE), f"step {x['step']}"
        assert x["tokens"] == y["tokens"] and x["supervised_tokens"] == y["supervised_tokens"]
        if "eval_loss" in x:
            assert x["eval_loss"] == pytest.approx(y["eval_loss"], rel=LOSS_TOLERANCE)
    difference = (adapter(a) - adapter(b)).norm() / adapter(a).norm()
    print(f"relative Frobenius distance of the adapters: {difference:.2e}")
    assert difference < ADAPTER_TOLERANCE


@pytest.fixture(scope="module")
def one_process(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("one")
        patch.setenv("RANKZERO_CACHE", str(root / "cache"))
        spec = spec_in(root, tiny)
        run_here(spec)
    return spec


@pytest.mark.parametrize("tokens", [32, 300, 100_000])
def test_pass_size(tokens: int, tmp_path: Path, tiny: Path, one_process: RunSpec) -> None:
    spec = spec_in(tmp_path, tiny, train__micro_batch_tokens=tokens)
    run_here(spec)
    assert_same_curve(spec, one_process)


@pytest.mark.parametrize("nproc", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_process_count(nproc: int, tmp_path: Path, tiny: Path, one_process: RunSpec) -> None:
    spec = spec_in(tmp_path, tiny)
    ranks = run_forked(spec, nproc)
    assert ranks.report is not None and ranks.report["world_size"] == nproc, ranks.said
    assert_same_curve(spec, one_process)


def test_gradient_checkpointing(tmp_path: Path, tiny: Path, one_process: RunSpec) -> None:
    spec = spec_in(tmp_path, tiny, train__gradient_checkpointing=True)
    run_here(spec)
    assert_same_curve(spec, one_process)


def test_more_ranks_than_rows_in_the_last_batch(tmp_path: Path, tiny: Path) -> None:
    """17 rows in batches of 8 leave a batch of one row for three ranks."""
    curves = []
    for name, nproc in (("a", 1), ("b", 3)):
        spec = small_spec(tmp_path / name, tiny, rows=17, eval_rows=2, lora__dropout=0.1, train__num_train_epochs=1)
        ranks = run_forked(spec, nproc)
        assert ranks.report is not None and ranks.report["world_size"] == nproc, ranks.said
        curves.append([row["loss"] for row in metrics(spec)])
    assert curves[0] == pytest.approx(curves[1], rel=LOSS_TOLERANCE)
