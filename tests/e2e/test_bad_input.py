"""Whatever is wrong is refused before a model is loaded: exit code, place, way out, no traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import chat_rows, tiny_model, tiny_tokenizer, write_jsonl

pytestmark = pytest.mark.e2e

GOOD = [json.dumps(row, ensure_ascii=False).encode() for row in chat_rows(4)]


def row(*messages: dict[str, Any]) -> bytes:
    return json.dumps({"messages": list(messages)}).encode()


USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}

BAD_DATA: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "train.jsonl"),
    "blank lines only": (b"\n\n\n", "train.jsonl"),
    "bad JSON": (b"\n".join([*GOOD, b'{"messages": [', *GOOD]), "train.jsonl:5"),
    "BOM in the middle": (b"\n".join([*GOOD, b"\xef\xbb\xbf" + GOOD[0]]), "train.jsonl:5"),
    "UTF-32": (b"\n".join(GOOD).decode().encode("utf-32"), "train.jsonl"),
    "Latin-1 byte": (b"\n".join([GOOD[0], '{"text": "caf\xe9"}'.encode("latin-1")]), "train.jsonl:2"),
    "NUL byte": (b"\n".join([GOOD[0], GOOD[1], b'{"text": "a\x00b"}']), "train.jsonl:3"),
    "null content": (row(USER, {"role": "assistant", "content": None}), "train.jsonl:1"),
    "empty messages": (b"\n".join([GOOD[0], b'{"messages": []}']), "train.jsonl:2"),
    "only a system message": (row({"role": "system", "content": "Be kind."}), "train.jsonl:1"),
    "unknown role": (row(USER, {"role": "teacher", "content": "Hello"}), "train.jsonl:1"),
    "all tokens masked": (row(USER, {**ASSISTANT, "loss": False}), "train.jsonl"),
    "unknown shape": (b'{"frage": "Hallo", "antwort": "Welt"}', "train.jsonl:1"),
    "not an object": (b'"just text"', "train.jsonl:1"),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data_exits_65_and_leaves_nothing(case: str, tmp_path: Path, tiny: Path, cli: Any) -> None:
    content, where = BAD_DATA[case]
    (tmp_path / "train.jsonl").write_bytes(content)
    done = cli(f"train --model {tiny} --data {tmp_path / 'train.jsonl'} --output {tmp_path / 'runs/a'}")
    assert done.code == 65, done.err
    assert where in done.err and "hint:" in done.err and "Traceback" not in done.err
    assert "load the model" not in done.err
    assert not (tmp_path / "runs").exists(), "nothing half-written"
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    leftovers = [path for path in files if path.suffix != ".lock" and path.parent.name != ".uses"]
    assert not leftovers


def test_all_bad_lines_are_reported_at_once(tmp_path: Path, tiny: Path, cli: Any) -> None:
    lines = [GOOD[0], b"{", GOOD[1], row(USER), b'{"messages": []}']
    (tmp_path / "train.jsonl").write_bytes(b"\n".join(lines))
    done = cli(f"train --model {tiny} --data {tmp_path / 'train.jsonl'} --output {tmp_path / 'runs/a'}")
    assert done.code == 65
    assert [f"train.jsonl:{n}:" in done.err for n in (1, 2, 3, 4, 5)] == [False, True, False, True, True]
    checked = cli(f"data check {tmp_path / 'train.jsonl'}")
    assert checked.code == 65
    assert [f"train.jsonl:{n}:" in checked.err for n in (1, 2, 3, 4, 5)] == [False, True, False, True, True]


@pytest.mark.parametrize("ending", ["BOM", "CRLF", "no newline at the end", "U+2028 in a string"])
def test_harmless_oddities_train(ending: str, tmp_path: Path, tiny: Path, cli: Any) -> None:
    content = {
        "BOM": b"\xef\xbb\xbf" + b"\n".join(GOOD) + b"\n",
        "CRLF": b"\r\n".join(GOOD) + b"\r\n",
        "no newline at the end": b"\n".join(GOOD),
        "U+2028 in a string": b"\n".join([*GOOD[:3], '{"text": "one\u2028line"}'.encode()]),
    }[ending]
    (tmp_path / "train.jsonl").write_bytes(content)
    done = cli(f"train --model {tiny} --data {tmp_path / 'train.jsonl'} --output {tmp_path / 'a'} --lora")
    assert done.code == 0, done.err
    assert "train: 4 rows" in done.err


def test_rows_longer_than_max_length_are_cut_or_dropped_and_counted(tmp_path: Path, tiny: Path, cli: Any) -> None:
    write_jsonl(tmp_path / "train.jsonl", [*chat_rows(6), {"text": "word " * 500}])
    base = f"train --model {tiny} --data {tmp_path / 'train.jsonl'} --seq-len 128 --lora"
    cut = cli(f"{base} --output {tmp_path / 'cut'}")
    assert cut.code == 0 and "train: 7 rows" in cut.err and "1 truncated, 0 dropped" in cut.err
    dropped = cli(f"{base} --output {tmp_path / 'dropped'} data.over_length=drop")
    assert dropped.code == 0 and "train: 6 rows" in dropped.err and "0 truncated, 1 dropped" in dropped.err


def spec_file(tmp_path: Path, tiny: Path, **lines: str) -> Path:
    write_jsonl(tmp_path / "train.jsonl", chat_rows(8))
    defaults = {
        "model": f"{{name: {tiny}}}",
        "data": f"{{train: {tmp_path / 'train.jsonl'}}}",
        "lora": "{r: 2}",
        "name": "a",
        "output_dir": str(tmp_path / "runs"),
    }
    path = tmp_path / "run.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (defaults | lines).items()))
    return path


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        (
            {"train": "{learning_rat: 0.1}"},
            78,
            ("run.yaml:6", "train.learning_rat", "did you mean train.learning_rate?"),
        ),
        ({"train": "{max_steps: many}"}, 78, ("run.yaml:6", "train.max_steps", "many")),
        ({"lora": "{target_modules: [q_prj]}"}, 78, ("lora.target_modules", "q_prj", "did you mean q_proj?")),
        ({"data": "{train: no-such.jsonl}"}, 65, ("no-such.jsonl", "hint:")),
        ({"model": "{name: ./no-such-model}"}, 78, ("model.name", "no-such-model")),
        ({"output_dir": "/proc/nowhere"}, 74, ("/proc/nowhere", "output_dir")),
    ],
)
def test_a_bad_spec(
    lines: dict[str, str], code: int, words: tuple[str, ...], tmp_path: Path, tiny: Path, cli: Any
) -> None:
    done = cli(f"train {spec_file(tmp_path, tiny, **lines)}")
    assert done.code == code, done.err
    assert all(word in done.err for word in words), done.err
    assert "load the model" not in done.err
    assert not (tmp_path / "runs").exists()


def test_an_output_directory_that_is_a_file(tmp_path: Path, tiny: Path, cli: Any) -> None:
    (tmp_path / "taken").write_text("")
    done = cli(f"train {spec_file(tmp_path, tiny, output_dir=str(tmp_path / 'taken'))}")
    assert done.code == 74 and "output_dir" in done.err and (tmp_path / "taken").read_text() == ""


def test_the_output_directory_of_another_run(tmp_path: Path, tiny: Path, cli: Any) -> None:
    path = spec_file(tmp_path, tiny)
    assert cli(f"train {path}").code == 0
    done = cli(f"train {path} train.learning_rate=0.5 lora.alpha=3")
    assert done.code == 78
    assert all(
        w in done.err for w in ("another run", "--allow-change train.learning_rate", "--allow-change lora.alpha")
    )


def test_a_model_directory_without_weights(tmp_path: Path, tiny: Path, cli: Any) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    done = cli(f"train {spec_file(tmp_path, tiny, model=f'{{name: {empty}}}')}")
    assert done.code == 78
    assert all(word in done.err for word in ("config.json", "model.safetensors", "tokenizer.json"))


FIELDS: dict[str, dict[str, Any]] = {
    "a number that is none": {"hidden_size": 32.5},
    "heads that do not divide the width": {"num_attention_heads": 3},
    "no vocabulary": {"vocab_size": None},
    "a precision that there is not": {"dtype": "bf16"},
    "an older name of it": {"torch_dtype": "auto"},
    "an unknown activation": {"hidden_act": "swoosh"},
    "unknown layers": {"layer_types": ["full_attention", "circular"]},
    "an unknown architecture": {"model_type": "newest"},
}


@pytest.mark.parametrize("case", FIELDS)
def test_a_config_that_makes_no_model_is_told(case: str, tmp_path: Path, tiny: Path, cli: Any) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    for name in ("dtype", "torch_dtype") if {"dtype", "torch_dtype"} & FIELDS[case].keys() else ():
        config.pop(name, None)
    (model / "config.json").write_text(json.dumps(config | FIELDS[case]))
    refused(model, tmp_path, cli)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Newest"}}'])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_of_the_model_that_is_damaged_is_told(
    name: str, content: str, tmp_path: Path, tiny: Path, cli: Any
) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    if name in ("tokenizer_config.json", "generation_config.json") and content.startswith('{"'):
        return  # harmless there
    (model / name).write_text(content)
    refused(model, tmp_path, cli)


def refused(model: Path, tmp_path: Path, cli: Any) -> None:
    """As a mistake in the model's directory, before anything is written."""
    write_jsonl(tmp_path / "train.jsonl", chat_rows(4))
    done = cli(f"train --model {model} --data {tmp_path / 'train.jsonl'} --output {tmp_path / 'runs/a'}")
    assert done.code == 78 and "Traceback" not in done.err and "internal error" not in done.err, done.err
    assert str(model) in done.err and "hint:" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_model_s_own_code_that_lacks_a_package(tmp_path: Path, tiny: Path, cli: Any) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (model / "config.json").write_text(json.dumps(config))
    (model / "mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\nimport package_that_is_not_there\n"
        "class Config(LlamaConfig):\n    model_type = 'mine'\n"
        "class Model(LlamaForCausalLM):\n    config_class = Config\n"
    )
    write_jsonl(tmp_path / "train.jsonl", chat_rows(4))
    line = f"train --model {model} --data {tmp_path / 'train.jsonl'} --output {tmp_path / 'runs/a'}"
    done = cli(f"{line} model.trust_remote_code=true")
    assert done.code == 78 and "package_that_is_not_there" in done.err and "install it" in done.err, done.err


def test_a_vocabulary_larger_than_the_embedding(tmp_path: Path, tiny: Path, cli: Any) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    tiny_tokenizer(vocab_size=500).save_pretrained(model)
    done = cli(f"train {spec_file(tmp_path, tiny, model=f'{{name: {model}}}')}")
    assert done.code == 78 and "embedding only 384 rows" in done.err and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("pad", [None, "<|im_end|>"])
def test_a_tokenizer_without_its_own_pad_token_still_learns_to_stop(pad: str | None, tmp_path: Path, cli: Any) -> None:
    """The mask comes from the text, never from ids: pad = eos would otherwise hide the end token from the loss."""
    from transformers import AutoTokenizer

    model = tiny_model(tmp_path / "model", tokenizer=tiny_tokenizer(pad=pad))
    assert AutoTokenizer.from_pretrained(model).pad_token == pad
    done = cli(f"train {spec_file(tmp_path, model)}")
    assert done.code == 0, done.err
    shown = cli(f"data show {tmp_path / 'train.jsonl'} --model {model} --rows 1")
    assert "⟦<|im_end|>⟧" in shown.out or "<|im_end|>⟧" in shown.out, shown.out
