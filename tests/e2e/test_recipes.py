"""Every recipe, through its own files, from `rankzero init` to an answer of its result: only the model is tiny.

The result is loaded once more by transformers and peft alone, and has to have the evaluation loss that the run's report
says: what is saved is what was measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rankzero.data.cache.joined import sequences
from rankzero.engine.distributed import World
from rankzero.engine.goodput import Ledger
from rankzero.engine.inputs import Inputs as RunInputs
from rankzero.engine.inputs import read_inputs
from rankzero.model.load import load_model
from rankzero.spec.load import load_run_spec
from rankzero.spec.run_spec import RunSpec
from tests.support.forked import fork_workers
from tests.support.recipes import CASES, ON_THE_CLUSTER, Case, Inputs, model_of

QUESTION = "Please tell me: prime?"
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@dataclass(frozen=True, slots=True)
class Finished:
    """A recipe's run, and what it was made of."""

    case: Case
    inputs: Inputs
    root: Path
    spec: RunSpec
    report: dict[str, Any]


TAKE_LONG = {"qwen3-vl-32b-fire-4gpu", "qwen3-30b-full-2x8"}
"""The volcano recipe is the fire recipe with other data, which have tests of their own, and QLoRA on 2×8 takes the
longer way of both."""


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.slow] if name in TAKE_LONG else []) for name in CASES], ids=str
)
def finished(request: pytest.FixtureRequest, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """init → data → data check → train, in the directory that init made."""
    name: str = request.param
    case, files = CASES[name], tmp_path / "recipe"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = cli(f"init --recipe {name} -o {files}")
    assert done.code == 0, done.err
    monkeypatch.chdir(files)
    model = model_of(case, tmp_path / "model")
    inputs = case.write(tmp_path, cli)
    for variable, value in {"MODEL_ID": str(model), "MODEL_URI": str(model), **inputs.env}.items():
        monkeypatch.setenv(variable, value)
    named = [] if "${MODEL_" in Path("run.yaml").read_text() else [f"model.name={model}"]
    root = [] if "CKPT_ROOT" in inputs.env else [f"output_dir={tmp_path / 'runs'}"]
    line = " ".join(f"'{word}'" for word in (*case.overrides(), *named, *root, *inputs.overrides))
    done = cli(f"data check run.yaml {line}" + (" --images" if inputs.image else ""))
    assert done.code == 0, done.err
    fork_workers(monkeypatch)
    done = cli(f"train run.yaml {line} --nproc-per-node {case.nproc} --json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    run = tmp_path / "runs" / report["name"]
    spec = load_run_spec(run / "run.yaml", env={}).spec
    return Finished(case, inputs, run, spec, report)


def test_recipe(finished: Finished, cli: Any) -> None:
    learned(finished)
    left_behind(finished)
    inputs = read_inputs(finished.spec, World(), Ledger())
    model = reloaded(finished, inputs)
    has_the_loss_it_says(finished, inputs, model)
    answers(finished, model, cli)


@pytest.mark.parametrize("name", CASES)
def test_cluster_file_renders(name: str, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, with nothing changed but the two variables that its first lines name."""
    for variable, value in ON_THE_CLUSTER.get(name, {}).items():
        monkeypatch.setenv(variable, value)
    assert cli(f"init --recipe {name} -o {tmp_path}").code == 0
    monkeypatch.chdir(tmp_path)
    for file in ("run.yaml", "cluster.yaml"):
        assert len(Path(file).read_text().splitlines()) < 60, file
    done = cli("render run.yaml --cluster cluster.yaml")
    assert done.code == 0, done.err
    objects = list(yaml.safe_load_all(done.out))
    name_of_run = yaml.safe_load(Path("run.yaml").read_text())["name"]
    assert any(one["metadata"]["name"].startswith(name_of_run) for one in objects if one)


def test_every_recipe_is_run_here(cli: Any) -> None:
    done = cli("init --list")
    assert done.code == 0, done.err
    assert all(name in done.out for name in CASES)
    folder = Path(__file__).parents[2] / "src/rankzero/recipes"
    shipped = {path.parent.name for path in folder.glob("*/run.yaml")} - {"default"}
    assert shipped == set(CASES)


def learned(finished: Finished) -> None:
    """The losses fall, in the report and in the curve."""
    report = finished.report
    assert report["world_size"] == finished.case.nproc
    assert report["train_loss_last"] < 0.9 * report["train_loss_first"]
    assert report["eval_loss"] < 0.95 * report["eval_loss_first"]
    assert [row["step"] for row in curve(finished)] == list(range(report["steps"] + 1)), "0 is before training"
    if finished.spec.task == "classify":
        assert report["accuracy"] > 0.8 and report["macro_f1"] > 0.8
    if finished.spec.task == "dpo":
        assert report["reward_accuracy"] == 1 and report["reward_margin"] > 0.5
        assert curve(finished)[0]["eval_loss"] == pytest.approx(math.log(2), rel=1e-3), "before it prefers anything"


def curve(finished: Finished) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (finished.root / "metrics.jsonl").read_text().splitlines()]


def left_behind(finished: Finished) -> None:
    """best, last and final/, each whole."""
    from rankzero.run_dir.atomic import verify_directory

    report, root = finished.report, finished.root
    for link, step in (("last", report["steps"]), ("best", report["best_step"])):
        assert verify_directory(root / link)["step"] == step
    assert verify_directory(root / "final")["step"] == report["final_step"] == report["best_step"]
    assert json.loads((root / "report.json").read_text()) == report


def has_the_loss_it_says(finished: Finished, inputs: RunInputs, model: Any) -> None:
    """By the libraries alone, the evaluation loss is that of the report's best step."""
    total, count = 0.0, 0
    with torch.no_grad():
        if finished.spec.task == "dpo":
            losses = pair_losses(finished, inputs, model)
            total, count = sum(losses), len(losses)
        else:
            for logits_NV, targets_N in eval_rows(finished, inputs, model):
                loss = torch.nn.functional.cross_entropy(logits_NV.float(), targets_N, reduction="sum")
                total, count = total + float(loss), count + len(targets_N)
    said = curve(finished)[finished.report["best_step"]]["eval_loss"]
    assert total / count == pytest.approx(said, rel=1e-3)


def reloaded(finished: Finished, inputs: RunInputs) -> Any:
    """final/ through transformers and peft, as its user would load it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSequenceClassification

    spec, final = finished.spec, finished.root / "final"
    kind: Any = AutoModelForCausalLM
    if spec.task == "classify":
        kind = AutoModelForSequenceClassification
    elif finished.case.architecture == "qwen3_vl":
        kind = AutoModelForImageTextToText
    if spec.lora is None:
        return kind.from_pretrained(final).eval()
    if spec.model.quantization != "none":  # bitsandbytes alone would leave experts in full precision
        base = load_model(inputs.source, spec.model, inputs.config, torch.float32)
    else:
        base = kind.from_pretrained(spec.model.name, dtype=torch.float32)
    return PeftModel.from_pretrained(base, final).eval()


def eval_rows(finished: Finished, inputs: RunInputs, model: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits and targets of each evaluation row by itself."""
    assert inputs.eval is not None
    for number in range(len(inputs.eval)):
        ids, mask = inputs.eval.row(number)
        ids_1T = torch.tensor(ids, dtype=torch.long)[None]
        if finished.spec.task == "classify":
            name = inputs.eval.label_names[number]
            names = model.config.label2id
            yield model(input_ids=ids_1T).logits, torch.tensor([names[name] if name in names else int(str(name))])
            continue
        logits_TV = model(input_ids=ids_1T, **pixels(finished, inputs.eval.images(number), ids_1T)).logits[0]
        trained = torch.tensor(mask, dtype=torch.bool)[1:]
        yield logits_TV[:-1][trained], ids_1T[0, 1:][trained]


def pair_losses(finished: Finished, inputs: RunInputs, model: Any) -> list[float]:
    """DPO's loss of each pair, with the model as peft turns its adapters off for the reference."""
    assert inputs.eval is not None and finished.spec.dpo is not None
    losses = []
    for number in range(len(inputs.eval)):
        gained = []
        for ids, mask in sequences(inputs.eval, number):
            ids_1T, trained = torch.tensor(ids, dtype=torch.long)[None], torch.tensor(mask, dtype=torch.bool)[1:]
            tuned = log_prob(model, ids_1T, trained)
            with model.disable_adapter():
                gained.append(tuned - log_prob(model, ids_1T, trained))
        margin = torch.tensor(finished.spec.dpo.beta * (gained[0] - gained[1]))
        losses.append(-float(torch.nn.functional.logsigmoid(margin)))
    return losses


def log_prob(model: Any, ids_1T: torch.Tensor, trained: torch.Tensor) -> float:
    """Of the trained tokens of a sequence, summed up."""
    logits_TV = model(input_ids=ids_1T).logits[0, :-1].float().log_softmax(-1)
    return float(logits_TV.gather(1, ids_1T[0, 1:, None])[trained].sum())


def pixels(finished: Finished, images: tuple[str, ...], ids_1T: torch.Tensor) -> dict[str, Any]:
    """What the model's own image processor makes of a row's images."""
    if finished.case.architecture != "qwen3_vl":
        return {}
    from PIL import Image
    from transformers import AutoConfig, AutoImageProcessor

    final, token = finished.root / "final", AutoConfig.from_pretrained(finished.spec.model.name).image_token_id
    marked = {"mm_token_type_ids": (ids_1T == token).int()}
    if not images:
        return marked
    opened = [Image.open(path).convert("RGB") for path in images]
    return {**AutoImageProcessor.from_pretrained(final)(opened, return_tensors="pt"), **marked}


def answers(finished: Finished, model: Any, cli: Any) -> None:
    """The result is of use by the command line, and says what it says to the libraries."""
    run = finished.root
    if finished.spec.task == "classify":
        done = cli(f"predict {run} --text 'the film is superb .' --text 'the plot is awful .' --json")
        assert done.code == 0, done.err
        assert [json.loads(line)["label"] for line in done.out.splitlines()] == ["positive", "negative"]
        return
    image = f"--image {finished.inputs.image}" if finished.inputs.image else ""
    done = cli(f"generate {run} '{QUESTION}' {image} --max-new-tokens 8 --json")
    assert done.code == 0, done.err
    reply = json.loads(done.out)[0]["reply"]
    assert reply if image else reply == reply_of(model, run / "final")


def reply_of(model: Any, final: Path) -> str:
    """Greedy, through the tokenizer's own template."""
    from transformers import AutoTokenizer

    tokenizer, turns = AutoTokenizer.from_pretrained(final), [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        reply = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    return str(tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)).strip()
