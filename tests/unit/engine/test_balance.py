"""Routers: their loss is that of the whole global batch, whatever the passes; it is trained, told, and refused where it
could have no effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import PaddedText
from rankzero.data.batches.loader import Batches
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.engine.balance import Balance
from rankzero.engine.device import Device
from rankzero.engine.distributed import World
from rankzero.engine.heads import SupervisedHead
from rankzero.engine.parallel.replicas import Replicated
from rankzero.engine.step import Stepper, StepResult
from rankzero.engine.tasks import sft
from rankzero.errors import ConfigError
from rankzero.model.dropout import Places, place_dropout
from rankzero.model.load import meta_model
from rankzero.model.parts import freeze_to
from rankzero.model.recomputing import recompute_blocks
from rankzero.model.routers import Routers, balance_coefficient, has_balance_loss
from rankzero.spec.run_spec import ModelSpec
from tests.support import tiny_configs
from tests.support.runs import log, metrics, run_here, run_root
from tests.support.tasks import task_spec
from tests.unit.engine.test_step import Rows, batches

ROWS = Rows(
    [
        ([5, 6, 7, 8, 9], [0, 0, 1, 1, 0]),
        ([4, 3, 2], [0, 1, 1]),
        ([9, 8, 7, 6, 5, 4, 3], [0, 0, 0, 0, 0, 0, 1]),
        ([11, 12, 13, 14], [0, 1, 1, 1]),
    ]
)
COEFFICIENT = 0.3
MIXTURES = ("qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "gpt_oss", "qwen3_vl_moe")


def tiny_mixture(name: str, **changes: Any) -> Any:
    """A model in which every part is trained, routers that choose clearly."""
    torch.manual_seed(3)
    config = tiny_configs.CONFIGS[name]()
    config.get_text_config().update(changes)
    model = AutoModelForCausalLM.from_config(config) if name != "qwen3_vl_moe" else vision_model(config)
    model.config.use_cache = False
    for parameter_name, parameter in model.named_parameters():
        if ".gate." in parameter_name or ".router." in parameter_name:
            torch.nn.init.normal_(parameter.data)
    freeze_to(model, frozenset({"language", "experts", "router"}))
    return model


def vision_model(config: Any) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_config(config)


def reference(model: Any) -> tuple[float, dict[str, torch.Tensor]]:
    """transformers' own loss over all rows at once, and the gradients of it with the tokens' loss."""
    width = max(ROWS.lengths) - 1
    ids, attention = torch.zeros(len(ROWS), width, dtype=torch.long), torch.zeros(len(ROWS), width, dtype=torch.long)
    targets = torch.full((len(ROWS), width), -100)
    for i in range(len(ROWS)):
        row, mask = ROWS.row(i)
        ids[i, : len(row) - 1] = torch.tensor(row[:-1].astype(np.int64))
        attention[i, : len(row) - 1] = 1
        wanted = np.where(mask[1:], row[1:].astype(np.int64), -100)
        targets[i, : len(row) - 1] = torch.tensor(wanted)
    output = model(input_ids=ids, attention_mask=attention, output_router_logits=True)
    tokens = F.cross_entropy(output.logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    (tokens + COEFFICIENT * output.aux_loss).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(output.aux_loss.detach()), found


def step(model: Any, *, max_tokens: int = 1000, collator: Any = None, coefficient: float = COEFFICIENT) -> StepResult:
    places = Places(0)
    place_dropout(model, places)
    stepper = Stepper(
        SupervisedHead(model, model),
        Replicated(model, lambda named: torch.optim.SGD(named.values()), world=World(), device=Device("cpu")),
        sft.TASK,
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_grad_norm=None,
        places=places,
        balance=Balance(Routers(model), coefficient, torch.device("cpu")),
    )
    plan = Batches(
        cast(TokenizedDataset, ROWS),
        collator or PaddedText(),
        rank=0,
        world_size=1,
        max_tokens=max_tokens,
        pass_cost=1000,
        same_passes=False,
    )
    return stepper.gradients(plan, plan.everything(), 0, stop_wanted=False, on_pass=lambda *_: None)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name in found:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", MIXTURES)
def test_the_gradient_is_that_of_the_formula_over_the_whole_batch(name: str) -> None:
    """One pass, a pass a row, and what transformers computes of all rows at once, for each way to hold routers."""
    model = tiny_mixture(name)
    loss, wanted = reference(model)
    whole = step(model)
    assert whole.routers is not None and whole.routers.loss == pytest.approx(loss, rel=1e-6)
    same(gradients(model), wanted)
    model.zero_grad(set_to_none=True)
    cut = step(model, max_tokens=1)
    assert cut.routers is not None and cut.routers.loss == pytest.approx(loss, rel=1e-6)
    assert torch.equal(cut.routers.loads_LE, whole.routers.loads_LE)
    assert cut.loss == pytest.approx(whole.loss, rel=1e-6), "the loss that is told is of tokens alone"
    same(gradients(model), wanted)


def test_a_loss_of_each_pass_would_be_another() -> None:
    """The reason for all of it: the mean of what transformers computes of single rows is not that of the batch."""
    model = tiny_mixture("qwen3_moe")
    whole, _ = reference(model)
    alone = []
    for i in range(len(ROWS)):
        ids = torch.tensor(ROWS.row(i)[0][None, :-1].astype(np.int64))
        alone.append(float(model(input_ids=ids, output_router_logits=True).aux_loss.detach()))
    assert float(np.mean(alone)) != pytest.approx(whole, rel=0.01)


def test_rows_end_to_end_and_recomputed_blocks_have_the_same_gradient() -> None:
    model = tiny_mixture("qwen3_moe", _attn_implementation="eager")
    loss, wanted = reference(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()
    result = step(model, max_tokens=1)
    assert result.routers is not None and result.routers.loss == pytest.approx(loss, rel=1e-6)
    same(gradients(model), wanted)
    model.zero_grad(set_to_none=True)
    result = step(model, max_tokens=1, collator=PackedText())  # a row a pass: nothing has to keep rows apart
    assert result.routers is not None and result.routers.loss == pytest.approx(loss, rel=1e-6)
    same(gradients(model), wanted)


@pytest.mark.parametrize("placed", [True, False])
def test_the_count_sees_the_same_dropout_as_the_passes(placed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted ahead are the experts that the tokens then visit; with dropout out of reach also."""
    model = tiny_mixture("mixtral", attention_dropout=0.0 if placed else 0.5, _attn_implementation="eager")
    if placed:
        for layer in model.model.layers:
            layer.self_attn.o_proj = torch.nn.Sequential(layer.self_attn.o_proj, torch.nn.Dropout(0.5))
    model.train()
    counted: list[torch.Tensor] = []
    routing = Routers.routing

    def noting(self: Routers, own_BT: torch.Tensor) -> Any:
        found = routing(self, own_BT)
        counted.append(found.visits_LE)
        return found

    monkeypatch.setattr(Routers, "routing", noting)
    step(model, max_tokens=1)
    ahead, passes = counted[: len(ROWS)], counted[len(ROWS) :]
    assert len(passes) == len(ROWS)
    assert all(torch.equal(one, other) for one, other in zip(ahead, passes, strict=True))


def test_padding_and_idle_passes_count_for_nothing() -> None:
    model = tiny_mixture("olmoe")
    result = step(model)
    assert result.routers is not None
    tokens = sum(len(ROWS.row(i)[0]) - 1 for i in range(len(ROWS)))
    routers = Routers(model)
    idle = PaddedText().idle(torch.device("cpu"))
    model(**idle.inputs, output_router_logits=True)
    nothing = routers.routing(idle.own_BT)
    assert not nothing.visits_LE.any() and not nothing.probabilities_E.any()
    batch = batches(ROWS).collate(np.arange(len(ROWS)), torch.device("cpu"))
    model(**batch.inputs, output_router_logits=True)
    visits_LE = routers.routing(batch.own_BT).visits_LE
    assert visits_LE.sum(dim=1).tolist() == [2 * tokens] * 2
    assert batch.computed > tokens, "there is padding"
    torch.testing.assert_close(result.routers.loads_LE, visits_LE / (2 * tokens / 4))


def minimax_m2() -> Any:
    """Whose routers take sigmoids and add a bias to choose, which sends all tokens to the last two experts."""
    from transformers import MiniMaxM2Config, MiniMaxM2ForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 16, "max_position_embeddings": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    config = MiniMaxM2Config(**sizes, **heads, num_local_experts=4, num_experts_per_tok=2, use_cache=False)
    torch.manual_seed(0)
    model = MiniMaxM2ForCausalLM(config)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.tensor([0.0, 0.0, 5.0, 5.0]))
    freeze_to(model, frozenset({"language", "experts", "router"}))
    return model


@pytest.mark.parametrize("recomputing", [False, True])
def test_visits_are_those_that_happened(recomputing: bool) -> None:
    """The loss is the one that transformers computes, which knows nothing of a bias."""
    model = minimax_m2()
    wanted, expected = reference(model)
    if recomputing:
        recompute_blocks(model)
    for coefficient in (COEFFICIENT, 0.0):
        result = step(model, max_tokens=8, coefficient=coefficient).routers
        assert result is not None and result.loads_LE.tolist() == [[0.0, 0.0, 2.0, 2.0]] * 2
        if coefficient:
            assert result.loss == pytest.approx(wanted, rel=1e-5)
            same(gradients(model), expected)


@pytest.mark.parametrize("name", MIXTURES)
def test_most_routers_send_a_token_to_its_likeliest_experts(name: str) -> None:
    model = tiny_mixture(name)
    routers, batch = Routers(model), batches(ROWS).collate(np.arange(len(ROWS)), torch.device("cpu"))
    model(**batch.inputs, output_router_logits=True)
    assert len(routers._chosen) == 2, "each layer has said whom it chose"
    routing = routers.routing(batch.own_BT)
    assert torch.equal(routing.visits_LE, routing.likeliest_LE)


def test_without_a_coefficient_nothing_is_added_and_loads_are_told() -> None:
    model = tiny_mixture("qwen3_moe")
    balanced = step(model)
    with_loss = {name: gradient.clone() for name, gradient in gradients(model).items()}
    model.zero_grad(set_to_none=True)
    plain = step(model, coefficient=0.0, max_tokens=1)
    assert plain.routers is not None and balanced.routers is not None
    assert plain.routers.loss is None and torch.equal(plain.routers.loads_LE, balanced.routers.loads_LE)
    facts = plain.routers.facts(each=True)
    assert facts.keys() == {"expert_load_max", "expert_load_min", "expert_load"}
    assert np.mean(facts["expert_load"]) == pytest.approx(1, abs=1e-3)
    router = next(name for name in with_loss if ".gate." in name)
    assert not torch.allclose(with_loss[router], gradients(model)[router], rtol=0.01)


def test_classifiers_have_routers_too() -> None:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(tiny_configs.qwen3_moe())
    assert has_balance_loss(model)
    routers = Routers(model)
    model(torch.tensor([[1, 2, 3]]), output_router_logits=True)
    assert routers.routing(torch.ones(1, 3, dtype=torch.bool)).visits_LE.sum() == 2 * 2 * 3


def outline(name: str) -> Any:
    return meta_model(tiny_configs.CONFIGS[name](), ModelSpec(name="tiny"), "writes")


@pytest.mark.parametrize(
    ("name", "trained", "wanted", "coefficient"),
    [
        ("qwen3_moe", True, "auto", 0.001),
        ("qwen3_moe", True, 0.0, 0.0),
        ("qwen3_moe", True, 0.5, 0.5),
        ("qwen3_moe", False, "auto", None),
        ("llama", False, "auto", None),
        ("llama", False, 0.0, None),
        ("deepseek_v3", True, "auto", None),
    ],
)
def test_the_coefficient(name: str, trained: bool, wanted: Any, coefficient: float | None) -> None:
    assert balance_coefficient(wanted, outline(name), trained=trained) == coefficient


@pytest.mark.parametrize(
    ("name", "trained", "words"),
    [
        ("llama", False, "no routers"),
        ("qwen3_moe", False, "add router to train.parts"),
        ("deepseek_v3", True, "no load balancing loss for deepseek_v3"),
    ],
)
def test_a_coefficient_without_effect_is_refused(name: str, trained: bool, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        balance_coefficient(0.01, outline(name), trained=trained)
    assert refused.value.problems[0].where == "train.router_aux_loss_coef"


def test_a_run_tells_its_experts_loads(tmp_path: Path) -> None:
    """Routers beside adapters; each step has the extremes, an evaluated one all of them."""
    spec = task_spec("moe", tmp_path, train__max_steps=4, eval__every=2)
    run_here(spec, log_level="INFO")
    rows = metrics(spec)
    assert [("expert_load" in row) for row in rows] == [False, True, False, True]
    assert np.array(rows[1]["expert_load"]).shape == (2, 8)
    assert max(map(max, rows[1]["expert_load"])) == pytest.approx(rows[1]["expert_load_max"], abs=1e-3)
    assert all(row["expert_load_min"] <= 1 <= row["expert_load_max"] and row["router_aux_loss"] >= 1.9 for row in rows)
    assert "load balancing loss times 0.5" in log(spec)


def test_a_run_with_frozen_routers_has_nothing_to_tell(tmp_path: Path, forward_passes: Callable[[], int]) -> None:
    spec = task_spec("moe", tmp_path, train__max_steps=1, eval_rows=0, **FROZEN)
    run_here(spec, log_level="INFO")
    assert not [name for name in metrics(spec)[0] if "expert" in name or "router" in name]
    assert "load balancing" not in log(spec)
    assert forward_passes() == 0


FROZEN = {"train__parts": "auto", "train__router_aux_loss_coef": "auto"}


@pytest.fixture
def forward_passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many passes a Balance was given."""
    seen: list[int] = []
    begin = Balance.begin

    def noting(self: Balance, *arguments: Any) -> None:
        seen.append(1)
        begin(self, *arguments)

    monkeypatch.setattr(Balance, "begin", noting)
    return lambda: len(seen)


def test_preferences_are_learnt_by_no_routers(tmp_path: Path) -> None:
    """Also where they are named as what is saved whole."""
    changes: dict[str, Any] = {"train__parts": "auto", "lora__modules_to_save": ["gate"]}
    of_answers = task_spec("moe", tmp_path, **changes, data__train=str(tmp_path / "nowhere.jsonl"))
    spec = of_answers.model_copy(update={"task": "dpo"})
    with pytest.raises(ConfigError, match="task dpo trains no routers"):
        run_here(spec)
    assert not run_root(spec).exists()


def test_a_refusal_comes_before_data_and_run_directory(tmp_path: Path) -> None:
    changes = {**FROZEN, "train__router_aux_loss_coef": 0.1}
    spec = task_spec("moe", tmp_path, **changes, data__train=str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ConfigError, match="routers are not trained"):
        run_here(spec)
    assert not run_root(spec).exists()
