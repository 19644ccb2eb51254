"""What a command warns of, Python's functions say as Python's warnings, of the line that called them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import rankzero
from tests.support.paper_model import paper_model
from tests.unit.cli.conftest import CLUSTER
from tests.unit.run_dir.test_setting import save

RUN = "model: {name: m}\ndata: {train: train.jsonl}\neval: {every: 7}\n"
ON_CLUSTER = "model: {name: o/m}\ndata: {train: o/d}\neval: {every: 7}\n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Specs with something doubtful, and nothing that trains or answers."""
    monkeypatch.chdir(tmp_path)
    paper_model(tmp_path / "m")
    for name, text in (
        ("train.jsonl", '{"text": "a"}\n'),
        ("run.yaml", RUN),
        ("far.yaml", ON_CLUSTER),
        ("cluster.yaml", f"{CLUSTER}resources: {{rdma_devices: 2}}\n"),
    ):
        Path(name).write_text(text, encoding="utf-8")
    for name in ("training.run_to_end", "forecasts.forecast_here", "forecasts.forecast_of"):
        monkeypatch.setattr(f"rankzero.api.{name}", lambda *_, **__: None)
    for name in ("open_backend", "submitted"):
        monkeypatch.setattr(f"rankzero.api.clusters.{name}", lambda *_, **__: None)


OF_RUN = ":3 eval.every: nothing is evaluated without data.eval"
DEVICES = {"resources.rdma_devices": 3}
OF_CLUSTER = "cluster.yaml:8 resources.rdma_devices: no devices are asked for"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rankzero.train("run.yaml"), [f"run.yaml{OF_RUN}"]),
        (lambda: rankzero.train(rankzero.load_spec("run.yaml")), ["spec eval.every: nothing is evaluated"]),
        (lambda: rankzero.dry_run("run.yaml"), [f"run.yaml{OF_RUN}"]),
        (lambda: rankzero.submit("far.yaml", "cluster.yaml"), [f"far.yaml{OF_RUN}", OF_CLUSTER]),
        (lambda: rankzero.plan("far.yaml", "cluster.yaml"), [f"far.yaml{OF_RUN}", OF_CLUSTER]),
        (
            lambda: rankzero.plan("far.yaml", "cluster.yaml", {"eval.every": 8}, cluster_overrides=DEVICES),
            ["overrides eval.every: nothing", "cluster_overrides resources.rdma_devices: no devices"],
        ),
    ],
    ids=["train", "train a loaded spec", "dry_run", "submit", "plan", "plan with settings"],
)
def test_what_is_doubtful_is_a_warning(call: Callable[[], object], words: list[str]) -> None:
    with pytest.warns(UserWarning) as caught:
        call()
    assert [one.filename for one in caught] == [__file__] * len(words)
    for one, word in zip(caught, words, strict=True):
        assert word in str(one.message)


@pytest.mark.parametrize("as_errors", [True, False])
@pytest.mark.parametrize("call", [rankzero.train, rankzero.dry_run])
def test_a_doubt_hides_no_error(call: Callable[..., object], as_errors: bool) -> None:
    wrong = {"data.train": "none.jsonl", "lora.target_modules": ["no_such"]}
    with warnings.catch_warnings(record=True, action="error" if as_errors else "always") as caught:
        with pytest.raises(rankzero.RankzeroError) as raised:
            call("run.yaml", wrong)
        assert [problem.where.split()[-1] for problem in raised.value.problems] == list(wrong)
        doubts = [(str(one.message).split()[1], one.filename) for one in caught]
        assert doubts == ([] if as_errors else [("eval.every:", __file__)])
        if as_errors:
            with pytest.raises(UserWarning, match=r"eval\.every"):
                call("run.yaml")


@pytest.mark.parametrize("call", [rankzero.train, rankzero.dry_run])
@pytest.mark.parametrize(("field", "value"), [("train.context_parallel", 3), ("train.learning_rate", 0.5)])
def test_a_doubt_hides_no_error_of_the_run(call: Callable[..., object], field: str, value: float) -> None:
    """Which is found once the spec is whole: of its processes, and of the run directory."""
    given = {"name": "r", "resume": "refuse"}
    if field == "train.learning_rate":
        save(rankzero.load_spec("run.yaml", given))
    with warnings.catch_warnings(action="error"), pytest.raises(rankzero.ConfigError, match=field):
        call("run.yaml", {**given, field: value}, nproc_per_node=4)


def test_a_secret_of_the_environment_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api.python_warnings import warn

    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")
    with pytest.warns(UserWarning) as caught:
        warn("of hf_abcdefghijklmnop")
    assert "hf_abc" not in str(caught[0].message)


def test_what_is_wrong_with_a_setting_is_told_by_its_argument() -> None:
    with pytest.raises(rankzero.ConfigError) as caught:
        rankzero.plan("far.yaml", "cluster.yaml", cluster_overrides={"num_nodes": 0, "nodez": "4"})
    assert {one.where for one in caught.value.problems} == {"cluster_overrides num_nodes", "cluster_overrides nodez"}


def test_a_variable_in_a_setting_of_a_cluster_is_read_as_where_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api.planning import cluster_from, plan_of

    monkeypatch.setenv("REG", "r.io/é")
    given = {"env": {"A": "${REG}/x", "B": "$${REG}", "C": "7"}, "labels": {}, "num_nodes": 2, "timeout_seconds": None}
    plan = plan_of("far.yaml", "cluster.yaml", cluster_overrides=given)
    assert plan.cluster.env == {"A": "r.io/é/x", "B": "${REG}", "C": "7"}
    typed = [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items()]
    assert plan.cluster == cluster_from("cluster.yaml", typed)
    given = {"env.A": "${HF_TOKEN}", "pod_patch": {"tolerations": [{"key": "${NOPE}"}]}}
    with pytest.raises(rankzero.ConfigError, match="HF_TOKEN holds a secret") as caught:
        rankzero.plan("far.yaml", "cluster.yaml", cluster_overrides=given)
    places = ("cluster_overrides env.A", "cluster_overrides pod_patch.tolerations[0].key")
    assert tuple(one.where for one in caught.value.problems) == places
