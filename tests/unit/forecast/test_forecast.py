"""The forecast of a run: the same from files alone, from the engine, and as the run itself says it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from rankzero.api.forecasts import forecast_here
from rankzero.cli import forecasting
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.known_tokenizers import known_tokenizer, remember_tokenizer
from rankzero.data.cache.training_data import TrainingData
from rankzero.engine.forecasting import dry_run
from rankzero.engine.hooks import Hooks
from rankzero.errors import ConfigError, RankzeroError
from rankzero.forecast.conditions import Conditions
from rankzero.forecast.devices import Network
from rankzero.forecast.elsewhere import facts_from_files, forecast_elsewhere, place_of
from rankzero.forecast.forecast import SURELY_FASTER, Forecast, Place, make_forecast, of_equal_rows, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.forecast.text import lines, printed, rows
from rankzero.forecast.without_torch import _lie_end_to_end, forecast_without_torch, place_and_precision
from rankzero.machine import cache_root
from rankzero.model.attention import PROVEN, choose_attention
from rankzero.model.stored_facts import PLAIN_DECODERS
from rankzero.run_dir.paths import RunDir
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from tests.support.architectures import save
from tests.support.memory import make_spec
from tests.support.memory_table import H100, METHODS, facts_of_shape
from tests.support.nvidia_smi import four_gpus
from tests.support.runs import log, run_here, run_root, small_spec
from tests.support.tasks import task_spec


@pytest.fixture(scope="module")
def trained(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunSpec, int]]:
    """A run that has ended, and how many passes its steps had."""
    passes = 0

    def counted(*_seen: Any) -> None:
        nonlocal passes
        passes += 1

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("forecast")
        patch.setenv("RANKZERO_CACHE", str(folder / "cache"))
        spec = small_spec(folder, tiny, lora__dropout=0.0, train__num_train_epochs=1)
        before = forecast_without_torch(spec, 1)
        assert before is None, "rows are not tokenised yet"
        run_here(spec, log_level="INFO", hooks=Hooks(pass_done=counted))
        yield spec, passes


@pytest.fixture(autouse=True)
def its_cache(own_cache: Path, trained: tuple[RunSpec, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the run, instead of the test's own."""
    assert own_cache.name == "cache"
    monkeypatch.setenv("RANKZERO_CACHE", str(Path(trained[0].output_dir).parent / "cache"))


def told(spec: RunSpec) -> Forecast:
    found = forecast_without_torch(spec, 1)
    assert found is not None
    return found


def test_files_and_engine_and_run_say_the_same(trained: tuple[RunSpec, int]) -> None:
    spec, _ = trained
    light, heavy = told(spec), dry_run(spec, 1)
    assert light.place.limit == heavy.place.limit
    disk = replace(light.disk, free=heavy.disk.free)
    assert replace(light, place=heavy.place, disk=disk) == heavy  # but for what is free at the moment
    said = [line.partition("[PLAN] ")[2] for line in log(spec).splitlines() if "[PLAN] " in line]
    fresh = replace(light, done=0, rate=None, place=replace(light.place, free=0))
    changing = ("disk", "time")  # room on the disk, and the timing that this very run has left

    def lasting(found: list[str]) -> str:
        return re.sub(rf"\n({'|'.join(changing)}) .*(\n .*)*", "", "\n".join(found))

    assert lasting(said) == lasting(lines(fresh))
    assert {line[:10].strip() for line in said} == {"model", "data", "steps", "memory", "disk", "time", ""}


def test_what_it_says_is_what_happened(trained: tuple[RunSpec, int]) -> None:
    spec, passes = trained
    found, report = told(spec), json.loads((run_root(spec) / "report.json").read_text(encoding="utf-8"))
    data = json.loads((run_root(spec) / "data.json").read_text(encoding="utf-8"))
    assert (found.rows.rows, found.rows.tokens) == (data["train"]["rows"], data["train"]["tokens"]) and found.schedule
    assert found.rows.trained_tokens == data["train"]["supervised_tokens"]
    assert found.rows.eval_rows == 7
    assert found.schedule.total_steps == report["final_step"] == found.done == 4
    assert found.passes is not None and found.passes * 4 == passes
    run_dir = RunDir(run_root(spec))
    kept = run_dir.committed_steps()
    assert len(kept) <= found.disk.checkpoints
    tensors = sum(map(tensor_bytes, run_dir.checkpoint(kept[0]).rglob("*.safetensors")))
    assert found.disk.checkpoint == pytest.approx(tensors, rel=0.02)
    assert found.disk.result == tensor_bytes(run_dir.final / "adapter_model.safetensors")


def test_a_checkpoint_of_a_full_fine_tune_has_what_is_frozen_too(tmp_path: Path) -> None:
    """Of a mixture whose experts stay as they are: most of its weights."""
    parts = {"lora": None, "train__parts": ["language"], "train__max_steps": 1, "eval_rows": 0}
    spec = small_spec(tmp_path, save("qwen3_moe", tmp_path / "model"), **parts)
    run_here(spec)
    tensors = sum(map(tensor_bytes, RunDir(run_root(spec)).checkpoint(1).rglob("*.safetensors")))
    assert dry_run(spec, 1).disk.checkpoint == pytest.approx(tensors, rel=0.02)


@pytest.mark.parametrize(("stored", "said"), [("bfloat16", True), ("bfloat16", False), ("float32", True)])
def test_the_result_of_a_full_fine_tune_is_as_large_as_its_base(
    stored: str, said: bool, tiny: Path, tmp_path: Path
) -> None:
    """It has the precision of the base's files, whatever it is computed in; by files, by torch and by the run."""
    shutil.copytree(tiny, model := tmp_path / "model")
    weights = {
        name: tensor.to(getattr(torch, stored)) for name, tensor in load_file(tiny / "model.safetensors").items()
    }
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config.pop("dtype", None)
    (model / "config.json").write_text(json.dumps(config | ({"dtype": stored} if said else {})), encoding="utf-8")
    spec = small_spec(tmp_path, model, lora=None, train__max_steps=1)
    run_here(spec)
    written = tensor_bytes(run_root(spec) / "final/model.safetensors")
    assert written == sum(weight.numel() * weight.element_size() for weight in weights.values())
    assert told(spec).disk.result == dry_run(spec, 1).disk.result == written
    auto = spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": "auto"})})
    assert on_an_h100(auto, model).disk.result == written


def test_rows_that_share_no_pass_are_counted_apart(tiny: Path, tmp_path: Path) -> None:
    """Of a model with other positions for longer rows, as longrope has, by files, by torch and by a run itself."""
    shutil.copytree(tiny, model := tmp_path / "model")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config.pop("rope_parameters", None)
    config["rope_scaling"] = {"rope_type": "longrope", "original_max_position_embeddings": 40, **factors}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    passes = 0

    def counted(*_seen: Any) -> None:
        nonlocal passes
        passes += 1

    long = {"train__num_train_epochs": 1, "train__micro_batch_tokens": 1024}
    spec = small_spec(tmp_path, model, lora__dropout=0.0, **long)
    run_here(spec, hooks=Hooks(pass_done=counted))
    assert passes > 4, "all rows of a step have room in one"
    counts = {told(spec).passes, dry_run(spec, 1).passes, on_cpus(spec, model).passes}
    assert counts == {passes / 4}


def on_cpus(spec: RunSpec, model: Path) -> Forecast:
    """The run's forecast on a cluster without GPUs."""
    place, precision = place_of(spec, ClusterSpec.model_validate({"image": "i", "gpu": False}), "", 0)
    facts = facts_from_files(spec, model, precision, "cpu")
    assert facts is not None
    return forecast_elsewhere(spec, model, facts, place, precision)


def tensor_bytes(file: Path) -> int:
    """Of a safetensors file, what is behind its header."""
    return file.stat().st_size - 8 - int.from_bytes(file.read_bytes()[:8], "little")


def test_the_timing_of_a_run_serves_the_next_of_its_shape(trained: tuple[RunSpec, int]) -> None:
    spec, _ = trained
    again = told(spec.model_copy(update={"name": "another"}))
    assert again.done == 0 and again.rate is not None and again.rate > 0 and again.rows.tokens is not None
    assert again.seconds == pytest.approx(again.rows.tokens / again.rate)
    other = spec.model_copy(update={"name": "other", "train": spec.train.model_copy(update={"global_batch_size": 4})})
    assert told(other).rate is None and told(other).seconds is None


def on_an_h100(spec: RunSpec, tiny: Path, **cluster: Any) -> Forecast:
    """The run's forecast on a cluster of H100, from files."""
    wanted = ClusterSpec.model_validate({"image": "i", **cluster})
    place, precision = place_of(spec, wanted, "NVIDIA-H100-80GB-HBM3", 80 * 10**9)
    facts = facts_from_files(spec, tiny, precision, "cpu")
    assert facts is not None and precision == "bfloat16"
    return forecast_elsewhere(spec, tiny, facts, place, precision)


def test_what_was_not_timed_is_estimated_by_shapes(trained: tuple[RunSpec, int], tiny: Path) -> None:
    """For a GPU whose figures are known; the words say that nothing was timed."""
    auto = trained[0].model_copy(update={"model": trained[0].model.model_copy(update={"dtype": "auto"})})
    found = on_an_h100(auto, tiny)
    assert found.rate is None and found.estimate is not None and found.rows.tokens is not None and found.schedule
    assert found.seconds == pytest.approx(found.rows.tokens / found.estimate.tokens_per_second)
    assert found.estimate.useful == pytest.approx(8 * found.rows.tokens / 30), "a step's rows"
    (said,) = [text for name, text in rows(found) if name == "time"]
    assert "by shapes" in said and "H100, products at an assumed 53 %" in said and "nothing was timed" in said
    value = found.to_json()
    assert value["tokens_per_second"] is None and value["step_by_shapes"]["seconds"] == found.estimate.seconds
    timed = replace(found, rate=100.0)
    assert timed.seconds == found.rows.tokens / 100, "what was measured counts more"
    assert "last run of this shape" in dict(rows(timed))["time"] and "by shapes" not in dict(rows(timed))["time"]


def test_a_cluster_of_many_nodes_waits_for_its_network(trained: tuple[RunSpec, int], tiny: Path) -> None:
    auto = trained[0].model_copy(update={"model": trained[0].model.model_copy(update={"dtype": "auto"})})
    slow = on_an_h100(auto, tiny, num_nodes=2, nproc_per_node=2)
    fast = on_an_h100(auto, tiny, num_nodes=2, nproc_per_node=2, resources={"rdma": "rdma/ib"})
    assert slow.estimate is not None and fast.estimate is not None
    assert slow.estimate.waiting > fast.estimate.waiting > 0
    assert "waiting for the network" in dict(rows(slow))["time"]


def test_an_unknown_device_has_no_estimate(trained: tuple[RunSpec, int], tiny: Path) -> None:
    found = told(trained[0].model_copy(update={"name": "nobody-timed-it", "output_dir": "/nowhere"}))
    assert found.estimate is None, "of a CPU nobody says what it can do"
    assert "known after the first steps" in dict(rows(replace(found, rate=None)))["time"]


def test_it_fits_80_columns(trained: tuple[RunSpec, int]) -> None:
    found = replace(told(trained[0]), model="organisation/" + "long-name-" * 5 + "7B")
    plain, box = (list(printed(found, terminal=terminal, width=80)) for terminal in (False, True))
    assert max(map(len, plain)) <= 80 and not {"│", "┌"} & set("".join(plain))
    assert {len(line) for line in box} <= set(range(81)) and len({len(line) for line in box}) == 1
    assert all(9 + len("[PLAN] ") + len(line) <= 80 for line in lines(found))


def typed(spec: RunSpec, folder: Path, *words: str) -> tuple[int, str, str, list[str]]:
    """`rankzero train RUN.yaml --dry-run` as a process: exit code, output, errors, and what was imported of torch."""
    (folder / "run.yaml").write_text(to_yaml(spec), encoding="utf-8")
    code = (
        "import sys; from rankzero.__main__ import main\n"
        f"sys.argv[1:] = ['train', 'run.yaml', '--dry-run', *{words!r}]\n"
        "code = 0\ntry: main()\nexcept SystemExit as end: code = end.code or 0\n"
        "print('END', code, *sorted({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )
    out, _, end = done.stdout.rpartition("END ")
    return int(end.split()[0]), out, done.stderr, end.split()[1:]


def test_a_forecast_is_of_the_gpus_that_the_environment_shows(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of others beside them are taken, and another kind."""
    monkeypatch.setattr("rankzero.forecast.without_torch.version", lambda _: "2.13.0")
    monkeypatch.setenv("PATH", str(four_gpus(tmp_path)), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec = small_spec(tmp_path, tiny)
    assert place_and_precision(spec, 1) is None, "two kinds"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert place_and_precision(spec, 1) is None, "CUDA numbers the fastest first, and which that is it alone knows"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    found = place_and_precision(spec, 1)
    assert found is not None
    assert (found[0].name, found[0].limit, found[0].free) == ("NVIDIA H100", 81559 << 20, 80000 << 20)
    assert place_and_precision(spec, 2) is None


def test_a_dry_run_prints_the_box_without_torch(trained: tuple[RunSpec, int], tmp_path: Path) -> None:
    spec = trained[0].model_copy(update={"name": "dry"})
    code, out, err, imported = typed(spec, tmp_path)
    assert (code, imported) == (0, []), err
    assert out.splitlines()[0] == "dry" and "30 rows, " in out and "4 (1 epoch of 4), 8 rows a step" in out
    assert "import torch" not in err
    assert not run_root(spec).exists(), "there is nothing of it"
    code, out, err, imported = typed(spec, tmp_path, "--json")
    value = json.loads(out)
    assert (code, imported, err) == (0, [], "")
    assert value["steps"] == 4 and value["trainable_parameters"] == told(spec).facts.trainable
    assert value["memory_needed"] == sum(value["memory"].values()) > 0


def test_a_dry_run_ends_as_the_run_would(trained: tuple[RunSpec, int], tiny: Path, tmp_path: Path) -> None:
    """What is wrong in the spec, rows beyond the context, and memory that does not suffice."""
    spec = trained[0]
    wrong = spec.model_copy(update={"data": spec.data.model_copy(update={"train": "gone.jsonl"})})
    code, out, err, imported = typed(wrong, tmp_path)
    assert (code, out, imported) == (65, "", []), err
    assert "gone.jsonl: no such file" in err


def test_rows_beyond_the_context_are_counted_without_torch(
    trained: tuple[RunSpec, int], tiny: Path, tmp_path: Path
) -> None:
    model = tmp_path / "short"
    shutil.copytree(tiny, model)
    config = json.loads((model / "config.json").read_text(encoding="utf-8")) | {"max_position_embeddings": 20}
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = trained[0].model_copy(update={"model": trained[0].model.model_copy(update={"name": str(model)})})
    assert forecast_without_torch(spec, 1) is None, "nobody has loaded this tokenizer"
    fingerprint = known_tokenizer(tiny, None, cache_root())
    assert fingerprint is not None
    remember_tokenizer(model, None, fingerprint, cache_root())
    with pytest.raises(ConfigError, match=r"of 30 rows are longer than the model's context of 20 tokens"):
        forecast_without_torch(spec, 1)


def changed(spec: RunSpec, **sections: dict[str, Any]) -> RunSpec:
    """The spec with other values in some of its sections."""
    found = {name: getattr(spec, name).model_copy(update=values) for name, values in sections.items()}
    return spec.model_copy(update=found)


def test_other_data_than_the_checkpoint_has_is_refused_as_the_run_would(
    trained: tuple[RunSpec, int], tmp_path: Path
) -> None:
    """The same spec whose file of rows has grown, and whose base is another."""
    model = Path(shutil.copytree(trained[0].model.name, tmp_path / "model"))
    spec = small_spec(tmp_path, model, train__max_steps=1)
    run_here(spec)
    assert dry_run(spec, 1).done == told(spec).done == 1
    file = Path(str(spec.data.train))
    file.write_text(file.read_text(encoding="utf-8") * 2, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        forecast_here(spec, 1, lambda _: None)
    assert {problem.where for problem in caught.value.problems[1:]} == {"data"}
    allowed = RunOptions(allow_changes=("data",))
    assert forecast_here(spec, 1, lambda _: None, allowed).rows.rows > told(trained[0]).rows.rows
    weights = load_file(model / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, model / "model.safetensors")
    with pytest.raises(ConfigError, match="the base model's weights changed"):
        forecast_here(spec, 1, lambda _: None, allowed)


def test_what_only_the_engine_knows_is_asked_of_it(trained: tuple[RunSpec, int], tmp_path: Path) -> None:
    """Each of these ends a run before it loads weights."""
    new, many = trained[0].model_copy(update={"name": "new"}), tmp_path / "many.txt"
    many.write_text("\n".join(f"question {number}" for number in range(201)), encoding="utf-8")
    refused = {
        "eval.prompts": changed(new, eval={"prompts": str(many)}),
        "train.router_aux_loss_coef": changed(new, train={"router_aux_loss_coef": 0.1}),
    }
    if not torch.cuda.is_available():
        refused["model.kernels"] = changed(new, model={"kernels": "liger"})
    for field, spec in refused.items():
        assert forecast_without_torch(spec, 1) is None, field
        with pytest.raises(RankzeroError, match=re.escape(field)):
            forecast_here(spec, 1, lambda _: None)


def test_packages_that_are_not_here_are_asked_for(
    trained: tuple[RunSpec, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankzero.api.installed._is_there", lambda module: module != "deepspeed")
    new = changed(trained[0], train={"sharding": "zero2"}).model_copy(update={"name": "new"})
    with pytest.raises(ConfigError, match="deepspeed is not installed"):
        forecast_here(new, 1, lambda _: None)


def test_what_does_not_fit_is_an_error_with_the_box(
    trained: tuple[RunSpec, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rankzero.forecast.without_torch.usable_memory", lambda: 100_000)
    with pytest.raises(ConfigError, match="the run is expected to need"):
        forecasting.dry_run(trained[0], 1, as_json=False)
    assert "IT DOES NOT FIT" in capsys.readouterr().out.replace("\n          ", " ")


def test_decoders_that_are_told_of_lie_end_to_end() -> None:
    """`without_torch` takes it for granted that on GPUs their rows do."""
    assert PLAIN_DECODERS <= PROVEN


def test_a_step_has_no_more_rows_than_there_are(trained: tuple[RunSpec, int]) -> None:
    many = changed(trained[0], train={"global_batch_size": 1000})
    found = told(many.model_copy(update={"name": "many"}))
    assert found.rows_a_step == dry_run(many.model_copy(update={"name": "many"}), 1).rows_a_step == 30
    assert "30 rows a step" in " ".join(lines(found))


@pytest.mark.parametrize("free", ["auto", False])
@pytest.mark.parametrize("wanted", ["auto", "sdpa", "eager"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_files_and_engine_lay_rows_alike(
    trained: tuple[RunSpec, int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    kind: str,
    precision: str,
    wanted: str,
    free: Literal["auto"] | bool,
) -> None:
    """Or a dry run would ask for the timing of another run."""
    monkeypatch.setattr("rankzero.model.varlen.has_kernel", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    spec = changed(trained[0], train={"padding_free": free}, model={"attention": wanted})
    config = AutoConfig.from_pretrained(trained[0].model.name)
    dtype = getattr(torch, precision)
    chosen = choose_attention("causal", config, kind, dtype, wanted=wanted, free=free)
    assert _lie_end_to_end(spec, config.to_dict(), kind, precision) is chosen.padding_free


@pytest.mark.usefixtures("bfloat16_computed")
def test_a_dry_run_finds_the_timing_of_its_run_on_a_cpu_in_bfloat16(
    trained: tuple[RunSpec, int], tmp_path: Path
) -> None:
    spec = small_spec(tmp_path, Path(trained[0].model.name), model__dtype="bfloat16", train__max_steps=4)
    run_here(spec)
    assert told(spec).rate == dry_run(spec, 1).rate is not None


def test_another_process_count_divides_the_machine(trained: tuple[RunSpec, int]) -> None:
    one, two = told(trained[0]), forecast_without_torch(trained[0], 2)
    assert two is not None and two.place.limit == one.place.limit // 2 and two.place.world_size == 2
    assert "on 2 processes (ddp)" in " ".join(line.strip() for line in lines(two))


def test_processes_that_hold_experts_together_have_less_of_them_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path / "cache"))
    alone = small_spec(tmp_path, save("qwen3_moe", tmp_path / "model"))
    shared = alone.model_copy(update={"train": alone.train.model_copy(update={"expert_parallel": 2})})
    assert forecast_without_torch(shared, 2) is None
    whole, half = (dry_run(spec, 2) for spec in (alone, shared))
    experts = whole.facts.experts
    assert experts is not None and whole.facts == half.facts
    weights = [found.memory.need.parts["weights"] for found in (whole, half)]
    assert weights[0] - weights[1] == experts.bytes / 2
    assert "on 2 processes (ddp, experts over 2 of them)" in " ".join(line.strip() for line in lines(half))
    three = alone.model_copy(update={"train": alone.train.model_copy(update={"expert_parallel": 3})})
    with pytest.raises(ConfigError, match="8 experts cannot be divided among 3 processes"):
        dry_run(three, 3)


def test_processes_that_share_passes_have_longer_ones_and_half_of_a_row_each(trained: tuple[RunSpec, int]) -> None:
    train = trained[0].train.model_copy(update={"context_parallel": 2})
    spec = trained[0].model_copy(update={"train": train})
    assert forecast_without_torch(spec, 2) is None, "whether its rows can be cut, the engine knows"
    alone, shared = dry_run(trained[0], 1), dry_run(spec, 2)
    assert shared.memory.need.longest == -(-alone.rows.longest // 2)
    assert shared.passes is not None and alone.passes is not None and shared.passes < alone.passes
    said = " ".join(line.strip() for line in lines(shared))
    assert "of up to 256 tokens" in said and "on 2 processes (ddp, each pass on 2 of them)" in said


def test_the_longest_of_preferences_is_a_sequence(tmp_path: Path) -> None:
    """data.max_length is of each, while a pass has both."""
    spec = task_spec("dpo", tmp_path, data__max_length=96)
    found = dry_run(spec, 1)
    assert found.rows.longest == found.memory.need.longest == 2 * 96
    said = dict(rows(found))["data"]
    assert "the longest sequence 96 tokens" in said
    uncounted = replace(found, rows=facts_of_rows(None, None, spec.row_length))
    assert dict(rows(uncounted))["data"] == "rows of sequences of up to 96 tokens, not counted yet"


class LongRows(TokenizedDataset):
    """Rows of 4,096 tokens, all of them trained; nothing on disk."""

    rejected_from = None

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    @property
    def lengths(self) -> Any:
        return np.full(self.count, 4096, dtype=np.int32)

    @property
    def supervised(self) -> Any:
        return self.lengths


def thirty_billion(between: float, **train: Any) -> Forecast:
    """Full fine-tuning of Qwen3 30B-A3B on 8 nodes of 8 H100, 512 rows a step; `between` bytes a second of a node."""
    fields = {"global_batch_size": 512, "sharding": "fsdp", **train}
    spec = make_spec(**METHODS["full"], train=fields)
    place = Place("cuda", "NVIDIA H100 80GB HBM3", H100, 0, 64, Network(8, between))
    data = TrainingData(LongRows(1024), None)
    facts, counted = facts_of_shape("Qwen3 30B-A3B", "full"), facts_of_rows(data.train, None, 4096)
    planned = outlook(spec, facts, counted, place)
    return make_forecast(spec, data, planned, place, Conditions("bfloat16", packed=True))


def test_activations_are_recomputed_where_larger_passes_over_a_slow_network_are_faster() -> None:
    slow, fast = thirty_billion(12.5e9), thirty_billion(400e9)
    kept = thirty_billion(12.5e9, gradient_checkpointing=False)
    assert slow.memory.for_speed and slow.memory.need.recomputing
    assert not fast.memory.for_speed and not fast.memory.need.recomputing
    assert slow.estimate is not None and kept.estimate is not None
    assert slow.estimate.seconds <= (1 - SURELY_FASTER) * kept.estimate.seconds
    assert slow.passes is not None and kept.passes is not None and slow.passes < kept.passes
    said = dict(rows(slow))["memory"]
    assert "activations are recomputed, for larger passes that gather weights less often" in said
    assert "recomputed" not in dict(rows(fast))["memory"]
    assert slow.to_json()["recomputing_for_speed"] is True
    asked = thirty_billion(400e9, gradient_checkpointing=True)
    assert asked.memory.need.recomputing and not asked.memory.for_speed


def test_the_cost_that_decides_is_that_of_counted_rows() -> None:
    found = thirty_billion(12.5e9)
    assert of_equal_rows(found.memory.need, found.place, found.rows, 512) == found.estimate


def seventy_billion(between: float, limit: int = H100, nodes: int = 8, **train: Any) -> Forecast:
    """Adapters on Llama 3.1 70B, which no GPU holds, on nodes of 8 H100."""
    fields = {"global_batch_size": 128, **train}
    spec = make_spec(**METHODS["LoRA"], train=fields)
    place = Place("cuda", "NVIDIA H100 80GB HBM3", limit, 0, 8 * nodes, Network(8, between))
    data = TrainingData(LongRows(1024), None)
    facts, counted = facts_of_shape("Llama 3.1 70B", "LoRA"), facts_of_rows(data.train, None, 4096)
    planned = outlook(spec, facts, counted, place)
    return make_forecast(spec, data, planned, place, Conditions("bfloat16", packed=True))


def test_each_node_has_a_copy_where_one_fits_and_the_network_is_slow() -> None:
    slow, fast = seventy_billion(12.5e9), seventy_billion(400e9)
    divided = seventy_billion(12.5e9, sharding="fsdp")
    assert slow.memory.sharding == "hsdp" and fast.memory.sharding == divided.memory.sharding == "fsdp"
    assert slow.estimate is not None and divided.estimate is not None
    assert slow.estimate.seconds <= (1 - SURELY_FASTER) * divided.estimate.seconds
    assert "on 64 processes (hsdp: each node of 8 has all of the model)" in dict(rows(slow))["steps"]
    assert seventy_billion(12.5e9, nodes=1).memory.sharding == "fsdp"
    assert seventy_billion(12.5e9, limit=H100 // 4).memory.sharding == "fsdp", "on no node there is room for a copy"


def test_a_sharding_over_nodes_is_what_it_is_within_one_where_there_is_no_other() -> None:
    assert seventy_billion(12.5e9, nodes=1, sharding="hsdp").memory.sharding == "fsdp"
    assert seventy_billion(400e9, sharding="hsdp").memory.sharding == "hsdp"
