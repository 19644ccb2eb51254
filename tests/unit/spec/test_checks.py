"""Rules between fields."""

from __future__ import annotations

from typing import Any

import pytest

from rankzero.spec.checks import check
from rankzero.spec.fields import all_fields
from rankzero.spec.run_spec import RunSpec

HALF = {"name": "m", "dtype": "float16"}
SHARED = {"context_parallel": 2}
OWN = {"expert_parallel": 2}
DPO: dict[str, Any] = {"task": "dpo", "lora": {}}


def spec(**sections: Any) -> RunSpec:
    data = {"train": "t", **sections.pop("data", {})}
    return RunSpec.model_validate({"model": {"name": "m"}, "data": data, **sections})


@pytest.mark.parametrize(
    ("sections", "field", "what"),
    [
        *(
            ({"model": {"name": f"hf://{rest}"}}, "model.name", "is not a model of the Hub")
            for rest in ("gpt2", "../x", "o/..", "./m", "o/m/sub", "o/m@main", "")
        ),
        ({"train": {"warmup_steps": 1.5}}, "train.warmup_steps", "neither a share nor a whole number"),
        ({"train": {"learning_rate": 7e-46}}, "train.learning_rate", "every learning rate is 0"),
        ({"train": {"learning_rate": 1e300}}, "train.learning_rate", "1e+300 is infinite in float32"),
        ({"train": {"max_grad_norm": 1e-300}}, "train.max_grad_norm", "1e-300 is 0 in float32"),
        ({"lora": {"alpha": 1e300}}, "lora.alpha", "1e+300 is infinite in float32"),
        ({"lora": {"alpha": 1e-300}}, "lora.alpha", "1e-300 is 0 in float32"),
        ({"task": "dpo", "dpo": {"beta": 1e-300}}, "dpo.beta", "1e-300 is 0 in float32"),
        ({"train": {"max_steps": 2**63}}, "train.max_steps", "more steps than can be counted"),
        ({"train": {"num_train_epochs": 1e300}}, "train.num_train_epochs", "more steps than can be counted"),
        ({"train": {"warmup_steps": 10, "max_steps": 10}}, "train.warmup_steps", "never ends in a run of 10"),
        ({"eval": {"early_stopping_patience": 2}}, "eval.early_stopping_patience", "needs data.eval"),
        ({"eval": {"on_start": True}}, "eval.on_start", "nothing to evaluate"),
        ({"lora": {"target_modules": ["all-linear"]}}, "lora.target_modules", "not the name of a module"),
        ({"model": HALF, "train": {"sharding": "zero2"}}, "model.dtype", "not trained in with DeepSpeed"),
        ({"model": HALF, "train": {"sharding": "zero3"}}, "model.dtype", "not trained in with DeepSpeed"),
        ({"model": HALF, "train": {"master_weights": "kahan"}}, "train.master_weights", "holds weights in bfloat16"),
        (
            {"data": {"train_on": "last_turn", "assistant_only_loss": False}},
            "data.train_on",
            "cannot be trained while every token is",
        ),
        ({"data": {"chat_template_kwargs": {"tools": []}}}, "data.chat_template_kwargs", "comes from the rows"),
        ({"train": {**SHARED, "padding_free": False}}, "train.padding_free", "lie end to end"),
        ({"train": {**SHARED, "torch_compile": True}}, "train.torch_compile", "are not compiled"),
        ({"train": SHARED, "model": {"name": "m", "attention": "eager"}}, "model.attention", "does not attend"),
        ({"train": SHARED, "task": "classify"}, "train.context_parallel", "is for task sft"),
        ({"train": SHARED, **DPO}, "train.context_parallel", "is for task sft"),
        ({"train": OWN, **DPO}, "train.expert_parallel", "is for task sft"),
        ({"task": "dpo", "train": {"sharding": "zero3"}}, "train.sharding", "a reference beside its weights"),
        ({"task": "dpo", "train": {"sharding": "fsdp", "offload": "all"}}, "train.offload", "offloads nothing"),
        ({"task": "dpo", "train": {"offload": "optimizer"}}, "train.offload", "offloads nothing"),
        ({"task": "dpo", "train": {"deepspeed": "d.json"}}, "train.deepspeed", "is not used by auto"),
        ({"task": "dpo", "train": {"sharding": "zero2"}}, "train.sharding", "a reference beside its weights"),
        ({"train": {"parts": ["language", "router"]}, **DPO}, "train.parts", "trains no routers"),
        ({"train": {"parts": ["language", "vision_tower"]}, **DPO}, "train.parts", "trains no vision towers"),
        ({"dpo": {"beta": 0.2}}, "dpo", "this is for task dpo"),
        ({"train": {**OWN, "sharding": "zero3"}}, "train.sharding", "zero3 spreads experts with everything else"),
        ({"train": {**OWN, "sharding": "fsdp", "offload": "all"}}, "train.offload", "are not offloaded"),
        ({"train": {**OWN, **SHARED}}, "train.context_parallel", "do not share experts as well"),
        ({"train": {**OWN, "torch_compile": True}}, "train.torch_compile", "are not compiled"),
        ({"train": {**OWN, "optimizer": "adamw_8bit"}}, "train.optimizer", "works on whole weights only"),
        ({"train": OWN, "model": {"name": "m", "kernels": "liger"}}, "model.kernels", "tokens do not travel"),
    ],
)
def test_contradictions(sections: dict[str, Any], field: str, what: str) -> None:
    (problem,) = check(spec(**sections))
    assert problem.where == field
    assert what in problem.what
    assert problem.hint
    assert field in set(all_fields(RunSpec))
    assert check(spec(**sections), {field}) == []


def test_only_training_has_weights_of_sources() -> None:
    """1 says what is so anyway: manifests are written with it."""
    sources = [{"path": "a", "weight": 1.0}, {"path": "b", "weight": 0.5}]
    (problem,) = check(spec(data={"train": sources, "eval": sources}))
    assert problem.where == "data.eval[1].weight" and "each row is evaluated once" in problem.what
    assert "`sample`" in problem.hint


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"name": "hf://o/m"}},
        {"model": {"name": "hf://o/m/sub", "local_dir": "/m"}},
        {"train": {"warmup_steps": 0}},
        {"train": {"learning_rate": 8e-46}},
        {"train": {"warmup_steps": 0.999, "max_steps": 1}},
        {"train": {"warmup_steps": 9, "max_steps": 10}},
        {"train": {"warmup_steps": 100}},
        {"train": {**SHARED, "sharding": "fsdp", "padding_free": True}},
        {"train": {**SHARED, "sharding": "zero3"}, "model": {"name": "m", "attention": "varlen"}},
        {"train": {"context_parallel": 1, "torch_compile": True, "padding_free": False}},
        {"train": {**OWN, "sharding": "ddp"}},
        {"train": {**OWN, "sharding": "fsdp"}},
        {"train": {**OWN, "optimizer": "adamw_8bit"}, "lora": {}},
        {"data": {"eval": "e"}, "eval": {"early_stopping_patience": 2, "on_start": True}},
        {"checkpoint": {"final": "best"}},
        {"model": HALF, "train": {"sharding": "fsdp"}},
        {"model": HALF, "lora": {}, "train": {"optimizer": "adamw_8bit"}},
        {"data": {"train_on": "last_turn", "chat_template_kwargs": {"enable_thinking": False, "documents": [{}]}}},
        {"task": "dpo"},
        {"task": "dpo", "train": {"sharding": "fsdp"}},
        {"lora": {"target_modules": ["q_proj"]}},
        {"lora": {"target_modules": "all-linear", "use_dora": True, "dropout": 0.1}},
    ],
)
def test_no_contradictions(sections: dict[str, Any]) -> None:
    assert check(spec(**sections)) == []


@pytest.mark.parametrize("train", [{"sharding": "zero3"}, {"offload": "all"}, {"deepspeed": "d.json"}], ids=str)
def test_no_hint_for_preferences_in_full_names_what_is_refused_next(train: dict[str, Any]) -> None:
    problems = check(spec(task="dpo", train=train))
    assert problems and not any("zero" in problem.hint or "DeepSpeed" in problem.hint for problem in problems)


@pytest.mark.parametrize("doubtful", ["data.eval", "data.eval.fraction", "data", "data.eval[0].path", "eval"])
def test_a_rule_that_looks_at_a_doubtful_field_is_left_out(doubtful: str) -> None:
    assert check(spec(eval={"on_start": True}), {doubtful}) == []


def test_names_that_only_begin_alike_are_different_fields() -> None:
    assert len(check(spec(eval={"on_start": True}), {"data.evaluation", "evals"})) == 1


def test_what_a_task_does_without_contradicts_nothing() -> None:
    found = spec(**DPO, data={"train_on": "last_turn", "assistant_only_loss": False})
    assert not check(found)
