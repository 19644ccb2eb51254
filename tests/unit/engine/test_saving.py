"""Saving beside the steps: the loop waits for a copy in memory only, and what is committed is what was copied."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rankzero.engine import saving
from rankzero.engine.checkpoint import Position, load_checkpoint
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.optim import make_optimizer
from rankzero.engine.parallel.base import OPTIMIZER_FILE
from rankzero.engine.parallel.formats import NothingToWrite, WholeSnapshot
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.saving import Saver, check_space
from rankzero.errors import NonFiniteError, StorageError
from rankzero.model.weights import file_layout
from rankzero.run_dir.atomic import commit_directory, verify_directory
from rankzero.run_dir.lease import Lease
from rankzero.run_dir.paths import RunDir
from tests.support.tiny_configs import CONFIGS
from tests.support.unasked import nothing_asked_of_models
from tests.unit.model.support import spec_of

PATIENCE = 300.0


class Config:
    def save_pretrained(self, directory: str) -> None:
        (Path(directory) / "config.json").write_text("{}")


class Model(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.config = Config()


class Held:
    """A parallel of one model, whose optimizer state is one tensor."""

    def __init__(self) -> None:
        self.module, self.moment = Model(), torch.zeros(3)
        self.layout = file_layout(self.module)

    def snapshot(self) -> WholeSnapshot:
        weights = {name: parameter.detach() for name, parameter in self.module.named_parameters()}
        return WholeSnapshot(self.layout, weights, {"weight/exp_avg": self.moment})

    def trained(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, parameter.detach()) for name, parameter in self.module.named_parameters())

    def step(self) -> None:
        with torch.no_grad():
            self.module.weight.add_(1)
        self.moment.add_(1)


class Running(NamedTuple):
    saver: Saver
    held: Held
    run_dir: RunDir
    writing: threading.Event
    """The other thread is about to commit."""
    go_on: threading.Event
    """It may."""


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A saver on a volume that takes nothing until it is told to."""
    writing, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> None:
        writing.set()
        assert go_on.wait(PATIENCE)
        commit_directory(*arguments, **named)

    monkeypatch.setattr(saving, "commit_directory", slow)
    run_dir, held = RunDir(tmp_path / "run"), Held()
    run_dir.checkpoints.mkdir(parents=True)
    lease = Lease(run_dir.root)
    lease.acquire()
    saver = Saver(run_dir, lease, held, World(), meta={"spec": {}}, keep=2, step=0)  # type: ignore[arg-type]
    yield Running(saver, held, run_dir, writing, go_on)
    go_on.set()
    with saver:
        pass
    lease.release()


def test_steps_go_on_while_a_checkpoint_is_written_and_do_not_change_it(running: Running) -> None:
    saver, held, run_dir, writing, go_on = running
    before = held.module.weight.detach().clone()
    saver.save(Position(step=1))
    assert writing.wait(PATIENCE)
    assert not run_dir.committed_steps() and (saver.taken, saver.committed) == (1, 0)
    held.step()
    go_on.set()
    saver.wait()
    assert (saver.taken, saver.committed) == (1, 1)
    assert verify_directory(run_dir.checkpoint(1))["step"] == 1 and run_dir.read_link("last") == 1
    saved = load_file(run_dir.checkpoint(1) / "model/model.safetensors")
    assert torch.equal(saved["weight"], before) and not torch.equal(held.module.weight, before)
    assert not load_file(run_dir.checkpoint(1) / OPTIMIZER_FILE)["weight/exp_avg"].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_push_out_no_checkpoint(value: float, running: Running) -> None:
    saver, held, run_dir, _, go_on = running
    go_on.set()
    for step in (1, 2):
        saver.save(Position(step=step))
    before = held.module.weight.detach().clone()
    with torch.no_grad():
        held.module.weight[1, 2] = value
    saver.save(Position(step=3))
    with pytest.raises(NonFiniteError, match="weight: after step 3 weights are NaN or Inf.*older ones stay"):
        saver.wait()
    assert run_dir.committed_steps() == [2, 1] and len(list(run_dir.checkpoints.glob("*step-*"))) == 2
    with torch.no_grad():
        held.module.weight.copy_(before)
        held.module.bias.fill_(value)  # no optimizer moves it: it came so
    saver.save(Position(step=4))
    saver.wait()
    assert run_dir.committed_steps() == [4, 2]


def test_what_a_start_begins_with_is_looked_at_without_a_checkpoint(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which gathers weights and the optimizer's state, hundreds of GB of them. What any rank had lost, all know: one
    may hold another part of a weight than it saves."""
    saver, held, run_dir, _, go_on = running
    go_on.set()
    with torch.no_grad():
        held.module.weight[1, 2] = float("nan")
    with monkeypatch.context() as patch:
        patch.delattr(Held, "snapshot")
        patch.setattr(saving, "gather_objects", lambda value: [value, ["of_another"]])
        saver.take_as_they_are()
    assert saver._lost_before == {"weight", "of_another"}
    saver.save(Position(step=1))
    saver.wait()
    assert run_dir.committed_steps() == [1]


def test_a_checkpoint_that_is_saved_is_not_said_to_be_lost(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, _, run_dir, _, go_on = running
    go_on.set()

    def fails(*_given: object, **_named: object) -> None:
        raise StorageError("Input/output error")

    monkeypatch.setattr(saving, "prune_checkpoints", fails)
    saver.save(Position(step=1))
    with pytest.raises(StorageError, match="^the checkpoint of step 1 is saved; .*\nInput/output error"):
        saver.wait()
    assert run_dir.committed_steps() == [1] and run_dir.read_link("last") == 1


def test_lines_of_the_steps_are_on_the_disk_before_their_checkpoint_is(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut in between would leave a run that goes on behind a hole in metrics.jsonl."""
    saver, _, run_dir, _, go_on = running
    run_dir.metrics.write_text("")
    synced: list[list[int]] = []

    def sync(path: Path) -> None:
        assert path == run_dir.metrics
        synced.append(run_dir.committed_steps())

    monkeypatch.setattr(saving, "fsync_path", sync)
    go_on.set()
    for step in (1, 2):
        saver.save(Position(step=step))
    saver.wait()
    assert synced == [[], [1]]


def test_generators_are_those_of_the_manifest_whatever_a_volume_lists(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may list what was there a while ago; a rank that is not given its own begins anew."""
    saver, _, run_dir, _, go_on = running
    go_on.set()
    saver.save(Position(step=1))
    saver.wait()
    before, directory = torch.get_rng_state(), run_dir.checkpoint(1)
    torch.manual_seed(1234)
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    parallel: Any = SimpleNamespace(load=lambda _directory: None)
    assert load_checkpoint(directory, parallel, World()).step == 1
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1234)
    two = World(rank=1, world_size=2, local_world_size=2)
    load_checkpoint(directory, parallel, two)
    assert not torch.equal(torch.get_rng_state(), before), "those of another number of ranks are left as they are"
    (directory / "rng-rank-0.json").unlink()
    with pytest.raises(StorageError, match="No such file"):
        load_checkpoint(directory, parallel, World())


@pytest.mark.parametrize("trains", ["all", "adapters"])
def test_writing_asks_the_model_for_nothing(trains: str, tmp_path: Path) -> None:
    """It is being computed with: names and values are all taken before."""
    model: Any = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    if trains == "adapters":
        config = LoraConfig(r=2, modules_to_save=["lm_head"], task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
    device, spec = Device("cpu"), spec_of().train
    parallel = Replicated(model, partial(make_optimizer, spec=spec, learning_rate=0.01), world=World(), device=device)
    snapshot = parallel.snapshot().copied()
    with nothing_asked_of_models():
        snapshot.write(tmp_path)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    parallel.load_weights(tmp_path)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_a_save_waits_for_the_one_before(running: Running) -> None:
    saver, _, run_dir, writing, go_on = running
    saver.save(Position(step=1, best_step=1))
    second = threading.Thread(target=saver.save, args=(Position(step=2, best_step=1),))
    assert writing.wait(PATIENCE)
    second.start()
    assert saver.taken == 1 and not run_dir.committed_steps()
    go_on.set()
    second.join(PATIENCE)
    saver.save(Position(step=3, best_step=1))
    saver.save(Position(step=4, best_step=1))
    saver.wait()
    assert run_dir.committed_steps() == [4, 3, 1], "two are kept, and the best"
    assert run_dir.read_link("best") == 1
    assert saver.newly_committed() == [1, 2, 3, 4] and not saver.newly_committed()


def test_what_could_not_be_saved_is_raised_by_the_next_wait(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, _, run_dir, _, go_on = running
    go_on.set()
    saver.save(Position(step=1))
    saver.wait()
    monkeypatch.setattr(saving, "check_space", lambda _directory, needed: check_space(Path("/nowhere"), needed))
    saver.save(Position(step=2))
    with pytest.raises(StorageError, match="the checkpoint was not saved; older ones are intact"):
        saver.wait()
    assert not saver.failed, "it is told once"
    assert run_dir.committed_steps() == [1] and saver.committed == 1
    assert [entry.name for entry in run_dir.checkpoints.iterdir() if entry.name.startswith(".tmp")] == []


def test_what_could_not_be_saved_is_said_where_something_else_ends_the_run(
    running: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    saver, _, _, _, go_on = running
    monkeypatch.setattr(saving, "check_space", lambda _directory, needed: check_space(Path("/nowhere"), needed))
    said: list[str] = []
    monkeypatch.setattr(saving.logger, "warning", lambda words, error: said.append(words % error))
    go_on.set()
    with pytest.raises(ZeroDivisionError), saver:
        saver.save(Position(step=1))
        raise ZeroDivisionError
    assert len(said) == 1 and "while ending: the checkpoint was not saved" in said[0]


def test_a_volume_without_room_is_found_before_anything_is_written(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(StorageError, match=r"takes 1e\+09 GB, and this volume has .* GB left") as error:
        check_space(tmp_path, 10**18)
    assert "checkpoint.keep" in str(error.value)


def test_without_memory_for_a_copy_the_step_waits(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, _, run_dir, _, go_on = running
    monkeypatch.setattr(saving, "available_memory", lambda: 100)
    go_on.set()
    saver.save(Position(step=1))
    assert run_dir.committed_steps() == [1] and saver.committed == 1


@pytest.mark.parametrize(("available", "beside"), [(2.5, False), (20, True)], ids=["tight", "ample"])
def test_a_copy_leaves_the_next_step_what_it_needs(
    available: float, beside: bool, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gradients are held while it is judged: half of what is free then may be what the next step takes."""
    held, run_dir, lease = running.held, running.run_dir, running.saver._lease
    writers: list[threading.Thread] = []

    def commit(*arguments: Any, **named: Any) -> None:
        writers.append(threading.current_thread())
        commit_directory(*arguments, **named)

    monkeypatch.setattr(saving, "commit_directory", commit)
    copy = held.snapshot().held
    monkeypatch.setattr(saving, "available_memory", lambda: int(available * copy))
    parallel: Any = held
    for step, step_bytes in ((1, 0), (2, 2 * copy)):
        with Saver(run_dir, lease, parallel, World(), meta={}, keep=2, step=0, step_bytes=step_bytes) as saver:
            saver.save(Position(step=step))
            saver.wait()
    assert run_dir.committed_steps() == [2, 1]
    assert [writer is not threading.current_thread() for writer in writers] == [True, beside]


def test_the_memory_of_a_copy_is_used_again_where_it_fits() -> None:
    held = Held()
    first = held.snapshot().copied()
    held.step()
    second = held.snapshot().copied(first)
    assert second.weights["weight"].data_ptr() == first.weights["weight"].data_ptr()
    assert torch.equal(second.weights["weight"], held.module.weight) and second.optimizer["weight/exp_avg"].all()
    held.moment = torch.zeros(5)
    assert held.snapshot().copied(second).optimizer["weight/exp_avg"].shape == (5,)


def test_the_rank_beside_the_one_that_writes_has_nothing_to_copy() -> None:
    assert not NothingToWrite().nbytes and not NothingToWrite().copied().nbytes
