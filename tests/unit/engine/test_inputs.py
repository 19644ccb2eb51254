"""What is checked of a run's inputs before weights are loaded: here, rows beyond the model's context."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rankzero.data.cache.stream.plan import Stream
from rankzero.data.read import locate
from rankzero.engine.distributed import World
from rankzero.engine.goodput import Ledger
from rankzero.engine.inputs import Inputs, read_inputs
from rankzero.errors import ConfigError, DataError, ExitCode, ServiceError
from rankzero.spec.run_spec import RunSpec
from tests.support.tiny import write_jsonl
from tests.unit.data.read.fake_network import NoNetwork


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with a context of 64 tokens."""
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    change_config(model, max_position_embeddings=64)
    return model


def change_config(model: Path, **values: Any) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | values), encoding="utf-8")


TEXTS = ("a b c", "What is the capital of Peru?", "x" * 300)


def read(
    tmp_path: Path, model: Path, *, texts: Sequence[str] = TEXTS, prompts: Sequence[str] = (), **data: Any
) -> Inputs:
    """Three rows, of which one is of 300 letters."""
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "rows.jsonl").write_text(rows, encoding="utf-8")
    spec = {"model": {"name": str(model)}, "data": {"train": str(tmp_path / "rows.jsonl"), **data}, "lora": {}}
    if prompts:
        spec["eval"] = {"prompts": list(prompts)}
    return read_inputs(RunSpec.model_validate(spec), World(), Ledger())


def test_prompts_elsewhere_are_not_asked_for_where_the_network_is_not_to_be_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate, "RealNetwork", lambda: NoNetwork({}))
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path / "cache"))
    rows = str(write_jsonl(tmp_path / "rows.jsonl", [{"text": "a b c"}]))
    value = {"data": {"train": rows}, "lora": {}, "eval": {"prompts": "s3://bucket/asked.jsonl"}}
    spec = RunSpec.model_validate({"model": {"name": str(model), "local_files_only": True}, **value})
    with pytest.raises(ServiceError, match="the network is not to be used") as refused:
        read_inputs(spec, World(), Ledger())
    assert "s3://bucket/asked.jsonl" in refused.value.problems[0].where


def test_rows_beyond_the_context_are_counted_and_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, model, eval=str(tmp_path / "rows.jsonl"))
    train, held_out = refused.value.problems
    assert refused.value.exit_code == ExitCode.CONFIG
    assert (train.where, held_out.where) == ("data.train", "data.eval")
    assert "1 of 3 rows are longer than the model's context of 64 tokens" in train.what
    assert "data.max_length: 64" in train.hint


@pytest.mark.parametrize(("data", "lengths"), [({}, [64]), ({"over_length": "drop"}, [])])
def test_what_the_hint_says_works(data: dict[str, Any], lengths: list[int], model: Path, tmp_path: Path) -> None:
    inputs = read(tmp_path, model, max_length=64, **data)
    assert [length for length in inputs.train.lengths.tolist() if length > 30] == lengths


def test_a_model_that_stretches_its_positions_is_warned_of(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("rankzero"), "propagate", True)
    change_config(model, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
    inputs = read(tmp_path, model)
    assert max(inputs.train.lengths) > 64
    assert "1 of 3 rows are longer than the model's context of 64 tokens" in caplog.text


@pytest.mark.parametrize("rope", ["dynamic", "linear"])
def test_a_prompt_beyond_the_context_is_refused_where_training_would_depend_on_it(
    rope: str, model: Path, tmp_path: Path
) -> None:
    """`dynamic` positions stay as long as the longest row so far, be that an answer, though in use they are asked."""
    change_config(model, rope_parameters={"rope_type": rope, "factor": 2.0, "rope_theta": 10000.0})
    with pytest.raises(DataError, match="the model takes 64") if rope == "dynamic" else nullcontext():
        assert len(read(tmp_path, model, texts=TEXTS[:2], prompts=["x" * 100]).prompts) == 1


def test_a_length_limit_beyond_the_context_is_no_matter_where_all_rows_fit(tiny: Path, tmp_path: Path) -> None:
    assert len(read(tmp_path, tiny, max_length=2048).train) == 3


@pytest.fixture
def without_a_row(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with a token more than its embedding has rows, as Gemma 3 1B."""
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(model)
    return model


def test_an_added_token_without_an_embedding_is_no_matter_where_no_row_has_it(
    without_a_row: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("rankzero"), "propagate", True)
    with caplog.at_level(logging.INFO, "rankzero"):
        assert len(read(tmp_path, without_a_row, prompts=["What is it?"]).train) == 3
    assert "no embedding for 1 added token of its tokenizer (<image>)" in caplog.text


@pytest.mark.parametrize("part", ["train", "eval"])
def test_each_row_with_a_token_without_an_embedding_is_named(part: str, without_a_row: Path, tmp_path: Path) -> None:
    texts = ["a b c", "a <image> b", "d", "<image>"]
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "d"}\n', encoding="utf-8")
    rows = tmp_path / "rows.jsonl"
    data = {"train": str(rows)} if part == "train" else {"train": str(other), "eval": str(rows)}
    for _ in range(2):  # the rows are in the cache for the second one
        with pytest.raises(DataError) as refused:
            read(tmp_path, without_a_row, texts=texts, **data)
        assert [problem.where for problem in refused.value.problems] == [f"{rows}:2", f"{rows}:4"]
        assert refused.value.problems[0].what == "the model has no embedding for token 384, '<image>'"
        assert "leave it out" in refused.value.problems[0].hint


def test_a_stream_is_told_of_tokens_without_an_embedding(without_a_row: Path, tmp_path: Path) -> None:
    inputs = read(tmp_path, without_a_row, streaming=True, max_length=512)
    assert isinstance(inputs.train, Stream) and inputs.train.unembedded == {384: "<image>"}


def test_a_prompt_with_a_token_without_an_embedding_is_refused(without_a_row: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no embedding for token 384, '<image>'") as refused:
        read(tmp_path, without_a_row, prompts=["What is it?", "What is <image>?"])
    assert [problem.where for problem in refused.value.problems] == ["eval.prompts[1]"]


@pytest.mark.parametrize("template", ["raise_exception('System role not supported')", "'' + message"])
def test_prompts_that_the_template_refuses_are_all_named(template: str, model: Path, tmp_path: Path) -> None:
    """As Gemma's and Mistral's refuse a system prompt, or in whatever way a template fails."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for message in messages %}{% if message.role == 'system' %}{{ " + template + " }}"
    tokenizer.chat_template += "{% else %}{{ message.content }}{% endif %}{% endfor %}"
    tokenizer.save_pretrained(model)
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    rows = write_jsonl(tmp_path / "asked.jsonl", [{"messages": m} for m in (told, told[1:], [told[0]] + told)])
    spec = {"model": {"name": str(model)}, "data": {"train": str(write_jsonl(tmp_path / "t", [{"text": "a"}]))}}
    with pytest.raises(DataError) as refused:
        read_inputs(RunSpec.model_validate({**spec, "lora": {}, "eval": {"prompts": str(rows)}}), World(), Ledger())
    assert [problem.where for problem in refused.value.problems] == [f"{rows}:1", f"{rows}:3"]
    assert refused.value.problems[0].what.startswith("the chat template says: ")
    assert ("first user turn" in refused.value.problems[0].hint) is ("System" in template)
