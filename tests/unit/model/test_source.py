"""Finding a model's files: everything that is missing at once, and what to do about a Hub that says no."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankzero.data.read import hashing
from rankzero.errors import ConfigError, ExitCode, StorageError
from rankzero.forecast.without_torch import model_directory
from rankzero.model.files import gguf_place, read_config
from rankzero.model.load import _CLASSES, load_config, load_model, load_tokenizer, unembedded_tokens
from rankzero.model.source import another_base, locate, weights_fingerprint
from rankzero.run_dir.atomic import file_sha256
from rankzero.run_dir.of_weights import TrainedOn
from rankzero.spec.run_spec import DataSpec, ModelSpec, RunSpec
from rankzero.spec.tasks import ModelUse
from tests.support.servers import RefusingHub, serving
from tests.support.unreadable import shut, stale


def local(path: Path, **fields: object) -> ModelSpec:
    return ModelSpec.model_validate({"name": "some/model", "local_dir": str(path), **fields})


def run_of(spec: ModelSpec) -> RunSpec:
    return RunSpec(model=spec, data=DataSpec(train="rows.jsonl"))


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def test_a_local_directory_needs_no_network(copy: Path) -> None:
    found = locate(local(copy))
    assert (found.weights, found.tokenizer, found.name) == (copy, copy, "some/model")
    assert locate(ModelSpec(name=str(copy))).weights == copy


def test_all_missing_files_are_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as missing:
        locate(local(tmp_path))
    assert missing.value.exit_code == ExitCode.CONFIG
    words = str(missing.value)
    assert all(name in words for name in ("config.json", "model.safetensors", "tokenizer.json"))
    assert len(missing.value.problems) == 3 and all(p.hint for p in missing.value.problems)


@pytest.mark.parametrize("name", ["", "config.json", "generation_config.json", "model.safetensors"])
def test_a_model_that_cannot_be_read_now_is_neither_missing_nor_damaged(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart may find it again: ConfigError ends a run for good."""
    (copy / "generation_config.json").write_text("{}")
    source = locate(local(copy))
    stale(monkeypatch, copy / name)
    for spec in (local(copy), ModelSpec(name=str(copy))):
        with pytest.raises(StorageError, match="cannot be read at the moment"):
            locate(spec)
    if name != "generation_config.json":
        with pytest.raises(StorageError, match="cannot be read at the moment"):
            weights_fingerprint(source.weights) if name != "config.json" else read_config(copy)


def test_a_tokenizer_or_a_gguf_file_that_cannot_be_read_now_is_not_missing(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    for path, spec in ((copy / "tokenizer.json", local(copy)), (file, ModelSpec(name=str(file)))):
        with monkeypatch.context() as patch:
            stale(patch, path)
            with pytest.raises(StorageError, match="cannot be read at the moment"):
                locate(spec)


def test_weights_that_access_cannot_ask_for_are_not_said_to_be_another_users(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """access(2) says no of a stale handle, too, and to root."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert locate(local(copy)).weights == copy
    shut(monkeypatch, copy / "model.safetensors")
    with pytest.raises(ConfigError, match="it may not be read"):
        locate(local(copy))


def test_missing_shards_are_named(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "model-00001-of-00003.safetensors")
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConfigError) as missing:
        locate(local(copy))
    assert [p.what for p in missing.value.problems] == [f"{name} is missing" for name in names[1:]]


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "..", "a/b.safetensors"])
def test_an_index_that_names_files_elsewhere(name: str, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(ConfigError, match="outside of the model"):
        locate(local(copy))


def test_pickled_weights_are_refused_unless_trusted(copy: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    state = AutoModelForCausalLM.from_pretrained(copy).state_dict()
    (copy / "model.safetensors").unlink()
    torch.save(state, copy / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="trust_pickle"):
        locate(local(copy))
    spec = local(copy, trust_pickle=True)
    source = locate(spec)
    model = load_model(source, spec, load_config(source, spec), torch.float32)
    assert torch.equal(model.state_dict()["model.norm.weight"], state["model.norm.weight"])


def test_a_cut_off_weights_file_is_named(copy: Path) -> None:
    import torch

    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    spec = local(copy)
    source = locate(spec)
    with pytest.raises(ConfigError, match="cut off"):
        load_model(source, spec, load_config(source, spec), torch.float32)


def test_added_tokens_that_the_embedding_has_no_row_for_are_named(copy: Path) -> None:
    """As the image token of Gemma 3 1B, whose larger siblings see images."""
    spec = local(copy)
    source = locate(spec)
    tokenizer, config = load_tokenizer(source, spec, None), load_config(source, spec)
    assert unembedded_tokens(tokenizer, config, "causal", source) == {}
    tokenizer.add_tokens(["<|one-too-many|>"])
    assert unembedded_tokens(tokenizer, config, "causal", source) == {384: "<|one-too-many|>"}


@pytest.mark.parametrize("change", ["vocabulary", "end", "padding"])
def test_a_tokenizer_of_another_model(change: str, copy: Path) -> None:
    """Words of the vocabulary itself have no row, or what each row has."""
    spec = local(copy)
    source = locate(spec)
    tokenizer, config = load_tokenizer(source, spec, None), load_config(source, spec)
    if change == "vocabulary":
        config.vocab_size = 380
    elif change == "end":
        tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    else:
        tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
        assert unembedded_tokens(tokenizer, config, "causal", source) == {384: "<|pad|>"}
    with pytest.raises(ConfigError, match=r"ids up to 38[34], the model's embedding only 38[04] rows"):
        unembedded_tokens(tokenizer, config, "classifier", source)


def test_an_unknown_architecture(copy: Path) -> None:
    (copy / "config.json").write_text('{"model_type": "no-such-model"}')
    spec = local(copy)
    with pytest.raises(ConfigError, match="config.json cannot be used"):
        load_config(locate(spec), spec)


def test_what_is_of_another_kind_in_a_config_is_named(copy: Path) -> None:
    """Of what is read before transformers looks at it, or is not looked at there; all of it at once."""
    config = json.loads((copy / "config.json").read_text())
    for wrong, right in (
        ({"architectures": "LlamaForCausalLM"}, {"architectures": ["LlamaForCausalLM"]}),
        ({"architectures": [3], "sliding_window": "x"}, {"architectures": None, "sliding_window": 8}),
        ({"text_config": "x"}, {}),
        ({"text_config": {"num_hidden_layers": -1}}, {}),
        ({"quantization_config": "fp8", "num_hidden_layers": -1}, {"quantization_config": None}),
        ({"quantization_config": {"weight_block_size": 128}}, {}),
        ({"quantization_config": {"weight_block_size": [128]}}, {}),
        ({"auto_map": "mine.Model", "is_causal": "no", "vision_config": [1]}, {"auto_map": {}, "is_causal": True}),
    ):
        (copy / "config.json").write_text(json.dumps(config | wrong))
        with pytest.raises(ConfigError) as caught:
            locate(local(copy))
        assert len(caught.value.problems) == len(wrong) and all(name in str(caught.value) for name in wrong)
        (copy / "config.json").write_text(json.dumps(config | right))
        assert locate(local(copy)).weights == copy


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/dir", "a/b/c"])
def test_a_path_that_is_no_directory(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no directory"):
        locate(ModelSpec(name=name))


def test_a_name_that_is_no_hub_id() -> None:
    with pytest.raises(ConfigError, match="neither a directory nor a Hub id"):
        locate(ModelSpec(name="not a hub id!"))


@pytest.mark.parametrize("how", ["local_files_only", "TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_and_not_cached(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if how != "local_files_only":
        monkeypatch.setenv(how, "1")
    with pytest.raises(ConfigError, match="not in the local cache") as refused:
        locate(ModelSpec(name="org/model", local_files_only=how == "local_files_only"))
    assert "local_dir" in str(refused.value)


def test_a_slip_in_a_path_that_looks_like_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/tiny").mkdir(parents=True)
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(ConfigError, match="did you mean models/tiny, which is here"):
        locate(ModelSpec(name="models/tinny"))
    with pytest.raises(ConfigError, match=r"rows\.jsonl is a file, not a model"):
        locate(ModelSpec(name="rows.jsonl"))


def test_an_id_of_modelscope() -> None:
    with pytest.raises(ConfigError, match="modelscope download --model LLM-Research/Llama-3 --local_dir Llama-3"):
        locate(ModelSpec(name="LLM-Research/Llama-3", local_files_only=True))


def flip(file: Path, place: int) -> None:
    """One bit of the byte at `place`, counted from the end where negative."""
    with file.open("r+b") as opened:
        opened.seek(place, 2 if place < 0 else 0)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 1]))


def sharded(directory: Path) -> list[Path]:
    """A directory of two shards, of more megabytes than anyone would read to look at a header. No model."""
    names = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in names:
        (directory / name).write_bytes(bytes(6 << 20))
    (directory / "config.json").write_text("{}")
    index = {"weight_map": {"a": names[0], "b": names[1]}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return [directory / name for name in names]


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("place", [0, 1 << 20, (4 << 20) - 1, 4 << 20, (5 << 20) + 7, -1])
def test_any_byte_counts(shard: int, place: int, tmp_path: Path) -> None:
    files = sharded(tmp_path)
    before = weights_fingerprint(tmp_path)
    assert weights_fingerprint(tmp_path) == before
    flip(files[shard], place)
    assert weights_fingerprint(tmp_path) != before
    flip(files[shard], place)
    assert weights_fingerprint(tmp_path) == before


def test_a_model_s_own_code_counts_where_it_is_run(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "modeling_mine.py").write_text("SCALE = 1")
    without, before = weights_fingerprint(tmp_path), weights_fingerprint(tmp_path, own_code="writes")
    assert before != without
    (tmp_path / "modeling_mine.py").write_text("SCALE = 2")
    assert weights_fingerprint(tmp_path, own_code="writes") != before and weights_fingerprint(tmp_path) == without


def cached_code(cache: Path, repo: str, **modules: str) -> Path:
    """A repository in the Hub's cache, with these modules."""
    place = cache / f"models--{repo.replace('/', '--')}"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text("0" * 40)
    (place / "snapshots" / ("0" * 40)).mkdir(parents=True)
    for name, code in modules.items():
        (place / "snapshots" / ("0" * 40) / f"{name}.py").write_text(code)
    return place / "snapshots" / ("0" * 40)


def test_code_of_another_repository_is_of_the_model(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `auto_map` names it, as models do that were made of one with its own code."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    config = json.loads((copy / "config.json").read_text())
    names = {"AutoConfig": "me/code--mine.Config", "AutoModelForCausalLM": "me/code--mine.Model"}
    (copy / "config.json").write_text(json.dumps({**config, "auto_map": names}))
    without, spec = weights_fingerprint(copy), local(copy, trust_remote_code=True)
    assert locate(local(copy)).weights == copy, "whose code is not run"
    with pytest.raises(ConfigError, match="the model's code is mine.py of me/code, which is not in") as caught:
        locate(spec, "writes")
    assert "hf download me/code" in caught.value.problems[0].hint
    modules = {"mine": "from .parts import scale", "parts": "scale = 1", "other": "nothing imports it"}
    code = cached_code(tmp_path / "hub", "me/code", **modules)
    assert locate(spec, "writes").weights == copy
    before = weights_fingerprint(copy, own_code="writes")
    for name, counts in (("mine", True), ("parts", True), ("other", False)):
        (code / f"{name}.py").write_text(f"{modules[name]}\n\nAND_MORE = True\n")
        assert (weights_fingerprint(copy, own_code="writes") != before) is counts, name
        (code / f"{name}.py").write_text(modules[name])
    assert weights_fingerprint(copy, own_code="writes") == before != without == weights_fingerprint(copy)
    source, trained_on = locate(local(copy)), TrainedOn(before, own_code="writes")
    assert another_base(source, trained_on) is None
    earlier = TrainedOn(hashlib.sha256().hexdigest(), own_code="writes")  # by a version that left such code out
    assert before.startswith("code:") and another_base(source, earlier) is None
    flip(copy / "model.safetensors", -1)
    assert another_base(source, trained_on) is not None
    flip(copy / "model.safetensors", -1)
    (code / "parts.py").unlink()
    with pytest.raises(ConfigError, match="parts.py of me/code"):
        weights_fingerprint(copy, own_code="writes")
    assert another_base(source, trained_on) is None, "it is not run, and need not be here"


AUTO = {
    "AutoConfig": "me/code--config.Config",
    "AutoModel": "me/code--whole.Model",
    "AutoModelForCausalLM": "me/code--writes.Model",
    "AutoModelForImageTextToText": "me/code--sees.Model",
    "AutoModelForSequenceClassification": "me/code--classifies.Model",
}


@pytest.mark.parametrize(
    ("use", "sees", "runs"),
    [
        ("writes", False, {"config", "writes"}),
        ("writes", True, {"config", "sees"}),
        ("classifies", False, {"config", "classifies"}),
        (None, False, {"config"}),
    ],
)
def test_code_that_a_use_never_runs_is_neither_wanted_nor_a_part(
    use: ModelUse | None, sees: bool, runs: set[str], copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert {one.__name__ for one in _CLASSES.values()} < AUTO.keys(), "all that is ever loaded"
    config = json.loads((copy / "config.json").read_text()) | {"auto_map": AUTO}
    (copy / "config.json").write_text(json.dumps({**config, **({"vision_config": {}} if sees else {})}))
    with pytest.raises(ConfigError) as caught:
        locate(local(copy, trust_remote_code=True), use)
    named = {problem.what.split()[4].removesuffix(".py") for problem in caught.value.problems}
    assert named == runs
    code = cached_code(tmp_path / "hub", "me/code", **dict.fromkeys(runs, "SCALE = 1"))
    assert locate(local(copy, trust_remote_code=True), use).weights == copy
    if use is not None:
        before = weights_fingerprint(copy, own_code=use)
        (code / "whole.py").write_text("SCALE = 2")
        assert weights_fingerprint(copy, own_code=use) == before
        (code / f"{max(runs)}.py").write_text("SCALE = 2")
        assert weights_fingerprint(copy, own_code=use) != before


def test_large_files_are_read_once_and_again_when_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "REMEMBERED_BYTES", 0)
    monkeypatch.setattr(hashing, "_SETTLED_NS", -1)
    read: list[str] = []
    monkeypatch.setattr(hashing, "file_sha256", lambda path: read.append(path.name) or file_sha256(path))
    first, second = sharded(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(b"not loaded")
    before = [weights_fingerprint(tmp_path) for _ in range(3)]
    assert len(set(before)) == 1 and sorted(read) == [first.name, second.name]
    stamps = second.stat()
    flip(second, 5 << 20)
    os.utime(second, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))  # as some copying tools do
    assert weights_fingerprint(tmp_path) != before[0] and sorted(read[2:]) == [second.name]


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "REMEMBERED_BYTES", 0)
    monkeypatch.setattr(hashing, "_SETTLED_NS", -1)
    sharded(tmp_path)
    own_cache.write_text("a file stands where a directory is needed")
    assert weights_fingerprint(tmp_path) == weights_fingerprint(tmp_path)


def test_pickles_are_hashed_where_there_is_nothing_else(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    before = weights_fingerprint(copy)
    flip(copy / "pytorch_model.bin", -1)
    assert weights_fingerprint(copy) != before


LOCATE = """
import sys
from rankzero.errors import RankzeroError
from rankzero.model.source import locate
from rankzero.spec.run_spec import DataSpec, ModelSpec, RunSpec
from rankzero.spec.tasks import ModelUse
try:
    locate(ModelSpec(name="org/model"))
except RankzeroError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def locate_at(endpoint: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "hf_canary",
    }
    return subprocess.run([sys.executable, "-c", LOCATE], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("status", "code"), [(403, "GatedRepo"), (401, "RepoNotFound"), (404, "RepoNotFound")])
def test_a_gated_model_exits_77_with_three_ways_out(status: int, code: str, tmp_path: Path) -> None:
    hub = type("Hub", (RefusingHub,), {"status": status, "code": code})
    with serving(hub) as endpoint:
        done = locate_at(endpoint, tmp_path)
    assert done.returncode == ExitCode.ACCESS, done.stderr
    assert all(way in done.stdout for way in ("(1)", "HF_TOKEN", "local_dir"))
    assert "hf_canary" not in done.stdout + done.stderr


def test_a_hub_that_does_not_answer_exits_69(tmp_path: Path) -> None:
    done = locate_at("http://127.0.0.1:9", tmp_path)
    assert done.returncode == ExitCode.SERVICE, done.stdout + done.stderr
    assert "did not answer" in done.stdout


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_weights_of_somebody_else(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    (model / "model.safetensors").chmod(0)
    with pytest.raises(ConfigError, match="may not be read"):
        locate(ModelSpec(name=str(model)))


def test_a_gguf_file_that_was_converted_is_found_by_its_content(tmp_path: Path) -> None:
    """Without converting anything, and without torch: `rankzero train --dry-run` asks."""
    file = tmp_path / "m.gguf"
    assert model_directory(ModelSpec(name=str(file))) is None
    file.write_bytes(b"GGUF")
    assert model_directory(ModelSpec(name=str(file))) is None
    place = gguf_place(file)
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}", encoding="utf-8")
    assert model_directory(ModelSpec(name=str(file))) == place
    file.write_bytes(b"GGUF, another")
    assert model_directory(ModelSpec(name=str(file))) is None
