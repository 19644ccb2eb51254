"""Compiled blocks: the same losses under the same names, and a second process that does not compile again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch._dynamo.testing import CompileCounter
from transformers import LlamaConfig, LlamaForCausalLM

from rankzero.errors import ConfigError
from rankzero.model import compiling
from rankzero.model.compiling import artifact_key, compile_blocks, load_artifacts, save_artifacts
from rankzero.model.dropout import Places, Share, drop, place_dropout

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "c++", "clang++")), reason="torch compiles for CPUs through C++"
)


PLACES = Places(0)


def tiny(*, layers: int = 2, adapters: bool = False, **sizes: Any) -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, **sizes}
    model = LlamaForCausalLM(LlamaConfig(**shape, num_hidden_layers=layers, vocab_size=96))
    if adapters:
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, lora_dropout=0.2)
        model = get_peft_model(model, config)
        place_dropout(model, PLACES)
    return model.train()


def losses(model: Any) -> list[float]:
    """Steps over batches of other shapes."""
    drawn = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    found = []
    for rows, length in ((3, 12), (2, 9), (4, 17)):
        ids = torch.randint(0, 96, (rows, length), generator=drawn)
        PLACES.begin_pass(len(found), torch.arange(rows)[:, None], torch.arange(length)[None], torch.ones(1))
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


SECOND_PROCESS = """
import json
import torch._dynamo.utils
from rankzero.model.compiling import compile_blocks, save_artifacts
from tests.unit.model.test_compiling import losses, tiny

model = tiny(layers=1)
names = list(model.state_dict())
key = compile_blocks(model)
found = losses(model)
counts = torch._dynamo.utils.counters["inductor"]
saved = save_artifacts(key)
hits, misses = counts["fxgraph_cache_hit"], counts["fxgraph_cache_miss"]
same_names = names == list(model.state_dict())
print(json.dumps({"losses": found, "hits": hits, "misses": misses, "saved": saved, "same_names": same_names}))
"""


@needs_compiler
@pytest.mark.slow
def test_losses_and_names_stay_and_a_second_process_does_not_compile_again(tmp_path: Path) -> None:
    """On another machine, as far as torch's own cache goes: that one is empty each time, ours is kept."""
    runs = []
    for number in range(2):
        own = {"RANKZERO_CACHE": str(tmp_path / "ours"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / f"torch{number}")}
        own["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # starting helpers takes longer than they save here
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SECOND_PROCESS],
            env={**os.environ, **own},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    eager = losses(tiny(layers=1))
    for run in runs:
        assert run["losses"] == pytest.approx(eager, abs=1e-5)
        assert run["saved"] and run["same_names"]
    assert runs[0]["misses"] > 0 and runs[0]["hits"] == 0
    assert runs[1]["misses"] == 0 and runs[1]["hits"] == runs[0]["misses"]
    (kept,) = (tmp_path / "ours").rglob("artifacts.bin")
    assert kept.stat().st_mode & 0o777 == 0o600


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_compiled_dropout_drops_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its integers overflow on purpose, also where a compiler could think that they do not."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    keys, share = torch.arange(-(2**31), 2**31, 2**29 + 12345, dtype=torch.int32), Share.of(0.3)
    values = torch.randn(len(keys), 77, dtype=dtype, requires_grad=True)
    found = torch.compile(drop, dynamic=True)(values, keys, share)
    expected = drop(values, keys, share)
    assert torch.equal(found, expected)
    (ours,), (theirs,) = (torch.autograd.grad(outcome.sum(), values) for outcome in (found, expected))
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_how_much_is_compiled_does_not_depend_on_the_number_of_blocks(
    checkpointing: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path))
    counts = []
    for layers in (2, 7):
        torch._dynamo.reset()
        counter = CompileCounter()
        original = torch.nn.Module.compile

        def counted(self: Any, counter: Any = counter, original: Any = original, **options: Any) -> None:
            original(self, backend=counter, **options)

        model, plain = (tiny(layers=layers, adapters=True) for _ in range(2))
        if checkpointing:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": False})
        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.Module, "compile", counted)
            compile_blocks(model)
        assert losses(model) == pytest.approx(losses(plain), abs=1e-5)
        counts.append(counter.frame_count)
    assert counts[0] == counts[1] > 0


def test_a_key_is_of_the_model_its_form_and_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        artifact_key(tiny()),
        artifact_key(tiny(layers=3)),
        artifact_key(tiny(adapters=True)),
        artifact_key(tiny(hidden_size=64)),
        artifact_key(tiny().to(torch.bfloat16)),
    ]
    assert len(set(keys)) == len(keys)
    assert artifact_key(tiny()) == keys[0]
    elsewhere = tiny()
    elsewhere.config._name_or_path = "/another/place"
    assert artifact_key(elsewhere) == keys[0]
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", "avx2 fma")
    keys.append(artifact_key(tiny()))
    monkeypatch.setenv("RANKZERO_CPU_FEATURES", "avx2 avx512_bf16 fma")
    assert torch.cuda.is_available() or artifact_key(tiny()) not in keys, "machine code of another CPU"
    monkeypatch.setattr(compiling, "version", lambda package: "0")
    assert artifact_key(tiny()) not in keys


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path))
    return tmp_path


def test_what_others_could_have_written_is_not_loaded(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be unpickled."""
    read: list[bytes] = []
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda content: read.append(content) or object())
    file = cache / "compiled" / "key" / "artifacts.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"mine")
    for mode in (0o666, 0o620, 0o602):
        file.chmod(mode)
        assert not load_artifacts("key")
    assert not read and "others than you" in caplog.text
    file.chmod(0o644)
    assert load_artifacts("key") and read == [b"mine"]
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    assert not load_artifacts("key") and read == [b"mine"]


def test_a_damaged_or_missing_cache_is_no_error(cache: Path) -> None:
    assert not load_artifacts("key")
    file = cache / "compiled" / "key" / "artifacts.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"cut off")
    file.chmod(0o600)
    assert not load_artifacts("key")
    assert not file.exists()


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"compiled", None))
    assert save_artifacts("key")
    assert [path.name for path in (cache / "compiled" / "key").iterdir()] == ["artifacts.bin"]
    (cache / "compiled" / "file").write_text("in the way")
    assert not save_artifacts("file")
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: None)
    assert not save_artifacts("nothing")
    assert not (cache / "compiled" / "nothing").exists()


def test_without_a_compiler_it_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match="there is no compiler") as caught:
        compile_blocks(tiny())
    assert caught.value.problems[0].where == "train.torch_compile"


@needs_compiler
def test_a_model_without_blocks_is_refused() -> None:
    model = tiny()
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ConfigError, match="no blocks that could be compiled") as caught:
        compile_blocks(model)
    assert caught.value.problems[0].where == "train.torch_compile"
