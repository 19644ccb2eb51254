"""The sweep file: what is wrong with it is said at once and in its place, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankzero.spec.search_space import Choices, Numbers, chosen_values, grid
from rankzero.spec.sweep_load import read_sweep, trial_spec
from rankzero.sweep.record import Record
from tests.support.sweeps import RUN, reading_of, sweep_of, written


def test_whole_numbers_follow_from_the_field(tmp_path: Path) -> None:
    parameters = {
        "lora.r": {"min": 4, "max": 17, "step": 4},
        "train.learning_rate": {"min": 1e-5, "max": 1e-3, "log": True},
        "lora.target_modules": {"values": ["all-linear", ["q_proj", "v_proj"]]},
    }
    space = sweep_of(tmp_path, parameters=parameters).space
    assert space["lora.r"] == Numbers(4, 16, whole=True, step=4)
    assert space["lora.r"].points == (4, 8, 12, 16)
    assert space["train.learning_rate"] == Numbers(1e-5, 1e-3, whole=False, log=True)
    chosen = {"lora.r": 8, "train.learning_rate": 1e-4, "lora.target_modules": '["q_proj", "v_proj"]'}
    assert chosen_values(space, chosen)["lora.target_modules"] == ["q_proj", "v_proj"]
    assert isinstance(space["lora.target_modules"], Choices)


def test_numbers_are_numbers_however_they_are_written(tmp_path: Path) -> None:
    """As they are in run.yaml: `"${RATE}"` is text that the field makes a number of."""
    parameters = """
  train.learning_rate: {values: [1e-4, 2.e-4, "3e-4", .5, auto]}
  lora.r: {values: ["8", 16]}
  train.global_batch_size: {values: ["4", [2, 4]]}
  train.padding_free: {values: [yes, off, auto]}
  model.revision: {values: ["1e-4", on]}
"""
    file = written(tmp_path)
    file.write_text(f"run: run.yaml\nsampler: grid\nparameters:{parameters}")
    sweep = read_sweep(file, env={}).sweep
    assert sweep is not None
    values = [dimension.values for dimension in sweep.space.values() if isinstance(dimension, Choices)]
    assert values == [
        *((1e-4, 2e-4, 3e-4, 0.5, "auto"), (8, 16), (4, [2, 4])),
        *((True, False, "auto"), ("1e-4", "on")),
    ]
    last = list(grid(sweep.space))[-1]
    spec = trial_spec(sweep, chosen_values(sweep.space, {**last, "train.learning_rate": "3e-4"}), "t", "out")
    assert (spec.train.learning_rate, spec.train.global_batch_size) == (3e-4, 8)
    assert (spec.train.padding_free, spec.model.revision) == ("auto", "on")


def test_text_that_is_written_as_a_whole_number_or_a_truth_value_is_what_it_was(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, sampler="grid", parameters={"model.revision": {"values": [1234567, True, "main"]}})
    assert sweep.space["model.revision"] == Choices((1234567, True, "main"), (1234567, True, "main"))
    specs = [trial_spec(sweep, chosen_values(sweep.space, labels), "t", "out") for labels in grid(sweep.space)]
    assert [spec.model.revision for spec in specs] == ["1234567", "true", "main"]


@pytest.mark.parametrize(
    ("parameter", "where", "what"),
    [
        ("train.learning_rate: {values: [1e-4, .inf]}", "train.learning_rate.values[1]", "finite number, but is inf"),
        ("train.learning_rate: {values: [.NAN]}", "train.learning_rate.values[0]", "finite number, but is nan"),
        ("train.learning_rate: {min: 1, max: .inf}", "train.learning_rate.max", "a number, but is inf"),
        ('train.learning_rate: {values: [1e-4, "0.0001"]}', "train.learning_rate", "given twice: 0.0001"),
        ("train.padding_free: {values: [yes, true]}", "train.padding_free", "given twice: true"),
        ("model.revision: {values: [12e4567, 1e-4, main]}", "model.revision.values[0]", "finite number, but is inf"),
        ("model.revision: {values: [1e4, main]}", "model.revision", "10000: this field takes text"),
    ],
)
def test_a_number_that_is_none_and_one_that_is_another(tmp_path: Path, parameter: str, where: str, what: str) -> None:
    file = written(tmp_path)
    file.write_text(f"run: run.yaml\nparameters:\n  {parameter}\n")
    (problem,) = read_sweep(file, env={}).problems
    assert problem.where == f"{file}:3 parameters.{where}" and what in problem.what


def test_every_problem_of_both_files_is_told_with_its_line(tmp_path: Path) -> None:
    run = {**RUN, "train": {"max_step": 3}}
    reading = reading_of(
        tmp_path,
        run,
        trials=0,
        parameters={
            "lora.r": {"values": [4, 0]},
            "lora.rank": {"values": [1]},
            "data.eval.fraction": {"min": 0.1, "max": 0.2},
            "model.dtype": {"min": 1, "max": 2},
            "train.global_batch_size": {"min": 4, "max": 2},
            "lora.dropout": {"min": 0, "max": 1.5},
            "train.warmup_steps": {"values": [0, 0.1], "log": True},
            "train.weight_decay": {"min": 0, "max": 1, "log": True},
            "train.max_steps": {"min": 1.5, "max": 3},
            "train.seed": {"min": 1},
        },
    )
    told = [(problem.where.removeprefix(f"{tmp_path}/"), problem.what) for problem in reading.problems]
    lines = (tmp_path / "sweep.yaml").read_text().splitlines()

    def line(key: str) -> str:
        return f"sweep.yaml:{next(at for at, text in enumerate(lines, start=1) if text.strip().startswith(key))}"

    expected: list[tuple[str, str]] = [
        ("run.yaml:", "unknown key"),
        (line("trials:"), "must be a whole number of at least 1"),
        (line("lora.r:"), "must be a whole number of at least 1, but is 0"),
        (line("lora.rank:"), "the run spec has no such field"),
        (line("data.eval.fraction:"), "data.eval is the same for all trials"),
        (line("model.dtype:"), "this field takes no numbers"),
        (line("train.global_batch_size:"), "min (4) is not below max (2)"),
        (line("lora.dropout:"), "must be a number of at least 0 and below 1, but is 1.5"),
        (line("train.warmup_steps:"), "values and log do not go together"),
        (line("train.weight_decay:"), "log needs a min above 0, not 0"),
        (line("train.max_steps:"), "this field takes whole numbers, and min is none"),
        (line("train.seed:"), "it needs values, or min and max"),
    ]
    for place, what in expected:
        assert any(where.startswith(place) and words.startswith(what) for where, words in told), (place, what, told)
    assert len(told) == len(expected), told
    assert reading.sweep is None


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"sampler": "grid"}, "a grid needs fields with an end of values"),
        ({"sampler": "cmaes", "parameters": {"lora.r": {"values": [1, 2]}}}, "cmaes searches numbers"),
        ({"sampler": "cmaes", "parameters": {"lora.r": {"min": 1, "max": 2}}}, "cmaes needs two fields or more"),
        (
            {"parameters": {"lora": {"values": [None, {"r": 4}]}, "lora.r": {"values": [1]}}},
            "lora.r is a field of lora, which is searched too",
        ),
        ({"parameters": {"data.train[0].weight": {"values": [1]}}}, "entries of lists are not searched"),
        ({"n_trials": 3}, "unknown key"),
        ({"parameters": {}}, "must be"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    told = [problem.what for problem in reading_of(tmp_path, **fields).problems]
    assert any(words.startswith(what) for words in told), told


FILES: dict[str, Any] = {"train": "org/rows", "eval": "org/rows[test]"}


@pytest.mark.parametrize(
    ("data", "parameters", "what"),
    [
        # sections that hold what must be the same
        (
            RUN["data"],
            {"checkpoint": {"values": [{"best_metric": "eval_loss"}, {"best_metric": "perplexity"}]}},
            "checkpoint.best_metric is the same for all trials",
        ),
        (RUN["data"], {"checkpoint": {"values": [{"best_metric": "perplexity"}]}}, "checkpoint.best_metric is the"),
        (FILES, {"data": {"values": [FILES, {"train": "org/b"}]}}, "data.eval is the same for all trials"),
        (FILES, {"data": {"values": [{"train": "o/b", "eval": "o/b[test]"}]}}, "data.eval is the same for all trials"),
        # what decides which rows are held out, or drawn
        (RUN["data"], {"train.seed": {"values": [1, 2]}}, "train.seed decides which rows trials are compared by"),
        (RUN["data"], {"train.seed": {"min": 1, "max": 9}}, "train.seed decides"),
        (RUN["data"], {"train": {"values": [{"seed": 1}, {"seed": 2}]}}, "train.seed decides"),
        (RUN["data"], {"data.train": {"values": ["org/a", "org/b"]}}, "data.train decides"),
        (RUN["data"], {"data.deduplicate": {"values": [True, False]}}, "data.deduplicate decides"),
        (RUN["data"], {"data.over_length": {"values": ["drop", "truncate"]}}, "data.over_length decides"),
        ({**RUN["data"], "over_length": "drop"}, {"data.max_length": {"values": [64, 128]}}, "data.max_length decides"),
        # an eval file is read by the same rules
        (FILES, {"data.deduplicate": {"values": [True, False]}}, "data.deduplicate decides"),
        (FILES, {"data.over_length": {"values": ["drop", "truncate"]}}, "data.over_length decides"),
        ({**FILES, "over_length": "drop"}, {"data.max_length": {"values": [64, 128]}}, "data.max_length decides"),
        ({**FILES, "over_length": "drop"}, {"data.reasoning": {"values": ["keep", "drop"]}}, "data.reasoning decides"),
        ({**FILES, "over_length": "drop"}, {"model.name": {"values": ["o/a", "o/b"]}}, "model.name decides"),
        ({**FILES, "eval": "org/rows[test]#50"}, {"train.seed": {"values": [1, 2]}}, "train.seed decides"),
        (
            {**FILES, "eval": [{"path": "e.jsonl", "sample": 9}]},
            {"train.seed": {"values": [1, 2]}},
            "train.seed decides",
        ),
        # whoever says that longer rows are dropped
        (
            FILES,
            {"data.over_length": {"values": ["drop"]}, "data.max_length": {"values": [64, 128]}},
            "data.max_length decides",
        ),
        (
            FILES,
            {"data": {"values": [{**FILES, "over_length": "drop", "max_length": length} for length in (64, 128)]}},
            "data.max_length decides",
        ),
    ],
)
def test_trials_that_could_not_be_compared_are_refused(
    tmp_path: Path, data: dict[str, Any], parameters: dict[str, Any], what: str
) -> None:
    (problem,) = reading_of(tmp_path, {**RUN, "data": data}, parameters=parameters).problems
    assert problem.what.startswith(what) and problem.hint
    assert problem.where.startswith(f"{tmp_path}/sweep.yaml:"), problem.where


@pytest.mark.parametrize(
    ("data", "parameters"),
    [
        (FILES, {"train.seed": {"values": [1, 2]}}),
        (FILES, {"data.train": {"values": ["org/a", "org/b"]}}),
        (FILES, {"data.max_length": {"values": [64, 128]}}),
        (FILES, {"data": {"values": [FILES, {**FILES, "train": "org/b"}]}}),
        (RUN["data"], {"train.seed": {"values": [7]}}),
        (RUN["data"], {"data.train": {"values": ["org/b"]}}),
        (RUN["data"], {"data.max_length": {"values": [64, 128]}}),
        (RUN["data"], {"checkpoint": {"values": [{"keep": 1}, {"keep": 2}]}}),
        ({**FILES, "eval": "e.jsonl"}, {"data": {"values": [{**FILES, "eval": "./e.jsonl"}]}}),
        (
            {**FILES, "over_length": "drop"},
            {"data.over_length": {"values": ["truncate"]}, "data.max_length": {"values": [64, 128]}},
        ),
    ],
)
def test_trials_that_can_be_compared_are_not(tmp_path: Path, data: dict[str, Any], parameters: dict[str, Any]) -> None:
    assert not reading_of(tmp_path, {**RUN, "data": data}, parameters=parameters).problems


@pytest.mark.parametrize(
    ("values", "twice"),
    [
        ([0.00010001, 0.00010002], None),
        ([1e-4, 2e-4, 0.0001], "0.0001"),
        ([0.00010001, 0.00010001], "0.00010001"),
    ],
)
def test_values_that_differ_at_all_are_not_given_twice(tmp_path: Path, values: list[float], twice: str | None) -> None:
    problems = reading_of(tmp_path, parameters={"train.learning_rate": {"values": values}}).problems
    assert [one.what for one in problems] == ([] if twice is None else [f"given twice: {twice}"])


@pytest.mark.parametrize(
    ("name", "values", "twice"),
    [
        ("train.gradient_checkpointing", [True, "auto", True], "true"),
        ("lora", [{"r": 8, "alpha": 4}, {"alpha": 4, "r": 8}], '{"alpha": 4, "r": 8}'),
        ("lora.target_modules", ["all-linear", ["q_proj"], ["q_proj"]], '["q_proj"]'),
        ("train.warmup_steps", [1, 1.0], "1"),
        ("lora.alpha", [8, 16], None),
        ("model.revision", [8, "8"], "8"),
        ("data.chat_template_kwargs", [{"a": 1}, {"a": True}], None),
    ],
)
def test_what_is_given_twice_is_told_once(tmp_path: Path, name: str, values: list[Any], twice: str | None) -> None:
    problems = [one.what for one in reading_of(tmp_path, parameters={name: {"values": values}}).problems]
    assert [one for one in problems if one.startswith("given")] == ([] if twice is None else [f"given twice: {twice}"])


def test_a_run_without_evaluations_has_nothing_to_compare(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, {**RUN, "data": {"train": "org/rows"}})
    assert [problem.what for problem in reading.problems] == [
        "trials are compared by their evaluations, and the run has none"
    ]


def test_a_grid_is_every_combination_in_order(tmp_path: Path) -> None:
    parameters = {"lora.r": {"values": [8, 4]}, "train.warmup_steps": {"min": 0, "max": 0.2, "step": 0.1}}
    sweep = sweep_of(tmp_path, sampler="grid", parameters=parameters)
    points = [(point["lora.r"], point["train.warmup_steps"]) for point in grid(sweep.space)]
    assert points == [(8, 0.0), (8, 0.1), (8, 0.2), (4, 0.0), (4, 0.1), (4, 0.2)]
    assert sweep.trials == 6


@pytest.mark.parametrize(
    ("low", "high", "step", "points"),
    [
        (0.01, 0.1, 0.03, (0.01, 0.04, 0.07, 0.1)),
        (0.0, 0.3, 0.1, (0.0, 0.1, 0.2, 0.3)),
        (0.01, 0.11, 0.03, (0.01, 0.04, 0.07, 0.1)),
        (1e-14, 3e-14, 1e-14, (1e-14, 2e-14, 3e-14)),
    ],
)
def test_the_last_of_stepped_numbers_is_tried(
    tmp_path: Path, low: float, high: float, step: float, points: tuple[float, ...]
) -> None:
    """By a grid, and by samplers, whose library has its own idea of where such a range ends."""
    fields: dict[str, Any] = {"parameters": {"train.weight_decay": {"min": low, "max": high, "step": step}}}
    sweeps = {name: sweep_of(tmp_path / name, sampler=name, trials=40, **fields) for name in ("grid", "random")}
    record = Record(sweeps["grid"], tmp_path / "grid.db")
    drawn = [trial.labels["train.weight_decay"] for trial in iter(record.draw, None)]
    assert tuple(drawn) == points
    record = Record(sweeps["random"], tmp_path / "random.db")
    found = {trial.labels["train.weight_decay"] for _ in range(40) if (trial := record.draw()) is not None}
    assert sorted(map(float, found)) == pytest.approx(points, rel=1e-9)


def test_a_trials_spec_is_complete_and_its_paths_are_absolute(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    run = {**RUN, "model": {"name": "./model"}}
    sweep = sweep_of(tmp_path, run, parameters={"data.train": {"values": ["./rows.jsonl"]}, "lora.r": {"values": [4]}})
    spec = trial_spec(sweep, {"data.train": "./rows.jsonl", "lora.r": 4}, "trial-000", "/trials")
    assert (spec.data.train, spec.model.name) == (str(tmp_path / "rows.jsonl"), str(tmp_path / "model"))
    assert (spec.name, spec.output_dir, spec.train.learning_rate) == ("trial-000", "/trials", 2e-4)


def test_what_other_tools_call_its_fields_is_understood(tmp_path: Path) -> None:
    reading = reading_of(tmp_path, n_trials=3)
    assert [problem.hint for problem in reading.problems] == ["this is trials here"]


def test_fields_of_the_sweep_are_set_on_the_command_line(tmp_path: Path) -> None:
    file = sweep_of(tmp_path).base / "sweep.yaml"
    reading = read_sweep(file, ["trials=3", "sampler=random"], env={})
    assert reading.sweep is not None
    assert (reading.sweep.trials, reading.sweep.spec.sampler) == (3, "random")


def test_paths_that_are_typed_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a run are; what the file says is relative to it."""
    file = sweep_of(tmp_path / "there", output_dir="kept").base / "sweep.yaml"
    other = sweep_of(tmp_path / "here/inner", {**RUN, "lora": {"r": 3}}).run_base
    monkeypatch.chdir(tmp_path / "here")
    sweep = read_sweep(file, env={}).sweep
    assert sweep is not None and sweep.directory == tmp_path / "there/kept/sweep"
    typed = read_sweep(file, ["run=inner/run.yaml", "output_dir=out"], env={}).sweep
    assert typed is not None and typed.run.lora is not None
    assert (typed.directory, typed.run_base, typed.run.lora.r) == (tmp_path / "here/out/sweep", other, 3)
    assert typed.run_file == other / "run.yaml"


@pytest.mark.parametrize(
    ("override", "space"),
    [
        ("parameters.lora.r={values: [2, 8]}", Choices((2, 8), (2, 8))),
        ("parameters.lora.r.max=32", Numbers(2, 32, whole=True)),
        ("parameters={lora.r: {values: [3]}}", Choices((3,), (3,))),
    ],
)
def test_a_parameter_is_set_on_the_command_line(tmp_path: Path, override: str, space: Choices | Numbers) -> None:
    file = sweep_of(tmp_path).base / "sweep.yaml"
    sweep = read_sweep(file, [override], env={}).sweep
    assert sweep is not None and sweep.space["lora.r"] == space
    assert ("train.learning_rate" in sweep.space) == ("={lora" not in override)


def test_what_is_wrong_with_a_typed_parameter_is_told_of_it(tmp_path: Path) -> None:
    file = sweep_of(tmp_path).base / "sweep.yaml"
    problems = read_sweep(
        file, ["parameters.lora.rr={values: [2]}", "parameters.lora.r={values: [0]}"], env={}
    ).problems
    assert {(one.where, one.what) for one in problems} == {
        ("command line parameters.lora.rr", "the run spec has no such field"),
        ("command line lora.r", "must be a whole number of at least 1, but is 0"),
    }


@pytest.mark.parametrize(
    ("parameters", "metric", "refused"),
    [
        ({"dpo.beta": {"values": [0.1, 0.5]}}, "eval_loss", True),
        ({"dpo.beta": {"min": 0.1, "max": 0.5}}, "reward_margin", True),
        ({"dpo": {"values": [{"beta": 0.1}, {"beta": 0.5}]}}, "eval_loss", True),
        ({"dpo": {"values": [{}, {"beta": 0.1}]}}, "eval_loss", False),
        ({"dpo.beta": {"values": [0.1, 0.5]}}, "reward_accuracy", False),
    ],
)
def test_rewards_of_other_units_are_not_compared(
    tmp_path: Path, parameters: dict[str, Any], metric: str, refused: bool
) -> None:
    run = {**RUN, "task": "dpo", "lora": {}, "checkpoint": {"best_metric": metric}}
    found = [problem.what for problem in reading_of(tmp_path, run, parameters=parameters).problems]
    assert found == ([f"{metric} is measured in units of dpo.beta"] if refused else []), found


@pytest.mark.parametrize(
    "parameters",
    [
        {"data.reasoning": {"values": ["keep", "drop"]}},
        {"data.max_length": {"values": [32, 64]}},
        {"data.chat_template_kwargs": {"values": [{}, {"enable_thinking": False}]}},
        {"data": {"values": [{**FILES, "max_length": length} for length in (32, 64)]}},
    ],
)
@pytest.mark.parametrize("metric", ["eval_loss", "reward_accuracy"])
def test_other_pairs_are_not_compared(tmp_path: Path, parameters: dict[str, Any], metric: str) -> None:
    """A pair of which one answer is cut away, or both are the same without their reasoning, is in no mean."""
    run = {**RUN, "data": FILES, "task": "dpo", "lora": {}, "checkpoint": {"best_metric": metric}}
    (problem,) = reading_of(tmp_path, run, parameters=parameters).problems
    assert problem.what.endswith(" decides which rows trials are compared by")
    assert "truncate" not in problem.hint, "that is what they are"


@pytest.mark.parametrize(
    ("parameters", "pruner", "refused"),
    [
        ({"eval.every": {"values": [10, 1000]}}, "median", True),
        ({"eval.every": {"values": ["epoch", 10]}}, "hyperband", True),
        ({"eval.every": {"min": 10, "max": 20}}, "median", True),
        ({"eval": {"values": [{"every": 10}, {"every": 20}]}}, "median", True),
        ({"eval": {"values": [{"every": 10, "on_start": on} for on in (True, False)]}}, "median", False),
        ({"eval.every": {"values": [10]}, "lora.r": {"values": [4, 8]}}, "median", False),
        ({"eval.every": {"values": [10, 1000]}}, "none", False),
    ],
)
def test_evaluations_at_unlike_steps_end_no_trial_early(
    tmp_path: Path, parameters: dict[str, Any], pruner: str, refused: bool
) -> None:
    problems = reading_of(tmp_path, parameters=parameters, pruner=pruner).problems
    expected = [f"pruner: {pruner} compares the first, second, … evaluation of trials, whose steps eval.every decides"]
    assert [one.what for one in problems] == (expected if refused else [])
    assert all(one.where.startswith(f"{tmp_path}/sweep.yaml:") and one.hint for one in problems)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"data.assistant_only_loss": {"values": [True, False]}}, "data.assistant_only_loss"),
        ({"data.train_on": {"values": ["all_turns", "last_turn"]}}, "data.train_on"),
        ({"data.reasoning": {"values": ["keep", "drop"]}}, "data.reasoning"),
        ({"data.chat_template": {"values": [None, "plain"]}}, "data.chat_template"),
        ({"data.chat_template_kwargs": {"values": [{}, {"enable_thinking": False}]}}, "data.chat_template_kwargs"),
        ({"data": {"values": [{**FILES, "train_on": turns} for turns in ("all_turns", "last_turn")]}}, "data.train_on"),
        ({"data.train_on": {"values": ["last_turn"]}}, None),
        ({"data.image_max_tokens": {"values": [64, 128]}}, None),
    ],
)
@pytest.mark.parametrize("metric", ["eval_loss", "perplexity"])
def test_means_over_other_tokens_are_not_compared(
    tmp_path: Path, parameters: dict[str, Any], name: str | None, metric: str
) -> None:
    """On every token a loss is lower than on answers alone, and no model is better for it."""
    run = {**RUN, "data": FILES, "checkpoint": {"best_metric": metric}}
    problems = reading_of(tmp_path, run, parameters=parameters).problems
    assert [one.what for one in problems] == ([f"{name} decides which tokens {metric} is a mean over"] if name else [])
    assert all("rankzero eval" in one.hint for one in problems)


def test_what_does_not_read_a_field_is_compared_over_the_same(tmp_path: Path) -> None:
    run = {**RUN, "data": FILES, "task": "dpo", "checkpoint": {"best_metric": "reward_accuracy"}}
    assert not reading_of(tmp_path, run, parameters={"data.train_on": {"values": ["all_turns", "last_turn"]}}).problems
