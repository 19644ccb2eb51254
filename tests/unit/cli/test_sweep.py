"""`rankzero sweep`: what is said before anything starts, and how a sweep's end is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankzero.api.sweeps import load_sweep, parallel_of, run_sweep
from rankzero.cli.sweep import table_text
from rankzero.errors import ConfigError, DataError, RankzeroError
from rankzero.sweep import run as loop
from rankzero.sweep.place import SweepDir
from tests.support.sweeps import Formula, sweep_of, written
from tests.support.tiny import chat_rows, write_jsonl
from tests.unit.test_recipe_docs import TEXTS, commands
from tests.unit.test_sweep_docs import COMMANDS

RUN = {"model": {"name": "org/model"}, "data": {"train": "train.jsonl", "eval": {"fraction": 0.2}}, "lora": {"r": 8}}


def test_a_dry_run_shows_the_space(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)  # where the model would come from the Hub, nothing is wrong with it
    write_jsonl(tmp_path / "train.jsonl", chat_rows(10))
    done = cli(f"sweep {written(tmp_path, RUN, pruner='median')} --dry-run trials=7")
    assert done.code == 0, done.err
    assert "looks for   the lowest eval_loss" in done.out
    assert "trials      7, by tpe, ended early by median" in done.out
    assert "train.learning_rate  numbers from 1e-05 to 0.01, logarithmic" in done.out
    assert "lora.r               whole numbers from 2 to 64" in done.out
    assert not (tmp_path / "sweeps").exists()


def test_everything_that_is_wrong_is_told_at_once_and_nothing_starts(tmp_path: Path, cli: Any) -> None:
    file = written(tmp_path, RUN, parameters={"lora.r": {"values": [0]}, "lora.rr": {"values": [1]}})
    done = cli(f"sweep {file}")
    assert done.code == 78
    for words in ("lora.r: must be a whole number", "no such field", "train.jsonl"):
        assert words in done.err, done.err
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("sweep", 2, "a sweep file is needed"),
        ("sweep {file} -o DIR", 2, "only --render writes files"),
        ("sweep {file} trails=3", 78, "did you mean trials?"),
        ("sweep {file} run=nope.yaml", 78, "no such file"),
    ],
)
def test_slips_are_answered(tmp_path: Path, cli: Any, line: str, code: int, words: str) -> None:
    done = cli(line.format(file=written(tmp_path, RUN)))
    assert (done.code, words in done.err) == (code, True), done.err


def test_it_renders_an_experiment_with_overrides_of_all_three_files(tmp_path: Path, cli: Any) -> None:
    write_jsonl(tmp_path / "train.jsonl", chat_rows(10))
    file = written(tmp_path, RUN)
    done = cli(f"sweep {file} --cluster rook-ceph-1x2 --render trials=3 cluster.prepare=never cluster.namespace=ns")
    assert done.code == 0, done.err
    assert "kind: Experiment" in done.out and "maxTrialCount: 3" in done.out and "namespace: ns" in done.out


KATIB = [
    words
    for words in (*COMMANDS, *commands(TEXTS["from-kubeflow-manifests.md"]))
    if words[0] == "sweep" and "--render" in words
]


@pytest.mark.parametrize("words", KATIB, ids=" ".join)
def test_the_commands_for_katib_on_pages_render_where_the_cluster_has_a_cache(
    tmp_path: Path, cli: Any, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all profiles do: without a word on it they prepare first, which Katib does not."""
    write_jsonl(tmp_path / "train.jsonl", chat_rows(10))
    written(tmp_path, RUN)
    monkeypatch.chdir(tmp_path)
    profile = "pytorchjob-2x1" if "pytorchjob" in words else "rook-ceph-1x2"
    line = " ".join(words).replace("cluster.yaml", profile)
    done = cli(line)
    assert done.code == 0, done.err
    refused = cli(line.replace("cluster.prepare=never", ""))
    assert refused.code == 78 and "cluster.prepare=never on the command line" in refused.err


PODS = (
    "image: i\nnum_nodes: 1\nnamespace: train\nprepare: never\nstorage: {outputs: {mount: /outputs, claim: outputs}}\n"
)


@pytest.mark.parametrize(
    ("flags", "fields", "words"),
    [
        ("cluster.num_node=2", {}, "did you mean num_nodes?"),
        ("cluster.ttl_seconds_after_finished=5", {}, "is removed before it is asked what it scored"),
        ("--kind nothing", {}, "must be `auto`, `job`"),
        ("", {"pruner": "median"}, "do not end early"),
        ("", {"parameters": {"data.train": {"values": ["o/a", "./train.jsonl"]}}}, "are shipped"),
    ],
)
def test_a_dry_run_on_a_cluster_is_one_of_the_cluster(
    tmp_path: Path, cli: Any, flags: str, fields: dict[str, Any], words: str
) -> None:
    write_jsonl(tmp_path / "train.jsonl", chat_rows(10))
    (tmp_path / "there.yaml").write_text(PODS)
    file = written(tmp_path, {**RUN, "data": {"train": "train.jsonl", "eval": "o/d[test]"}}, **fields)
    done = cli(f"sweep {file} --dry-run --cluster {tmp_path}/there.yaml {flags}")
    assert done.code == 78 and words in done.err, done.err
    assert not done.out


def test_a_dry_run_on_a_cluster_shows_the_space(tmp_path: Path, cli: Any) -> None:
    """Whose model need not be here, as it has to be without a cluster."""
    write_jsonl(tmp_path / "train.jsonl", chat_rows(10))
    (tmp_path / "there.yaml").write_text(PODS)
    done = cli(f"sweep {written(tmp_path, RUN)} --dry-run --cluster {tmp_path}/there.yaml --kind job")
    assert done.code == 0 and "looks for   the lowest eval_loss" in done.out, done.err
    done = cli(f"sweep {written(tmp_path, RUN)} --dry-run cluster.num_nodes=2")
    assert done.code == 78 and "cluster: unknown key" in done.err


def test_a_sweep_ends_with_a_table_a_page_and_the_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "POLL_SECONDS", 0.0)
    sweep = sweep_of(tmp_path, trials=3)
    result = run_sweep(sweep, say=lambda _: None, trainer=lambda _: Formula(evaluations=0))
    text = table_text(result)
    first = text.splitlines()[1].split()
    assert result.best is not None and first[0] == str(result.best.number) and first[-1] == "done"
    assert "next        rankzero train" in text and (sweep.directory / "report.html").is_file()
    assert [one["state"] for one in result.to_json()["trials"]] == ["complete"] * 3
    again = run_sweep(sweep, say=lambda _: None, trainer=lambda _: Formula())
    assert again.trials == result.trials


def test_gpus_are_room_for_trials(tmp_path: Path) -> None:
    def room(gpus: int, **fields: Any) -> int:
        return parallel_of(sweep_of(tmp_path, **fields), gpus)

    assert [room(0), room(8), room(8, nproc_per_node=3), room(4, parallel=2, nproc_per_node=2)] == [1, 8, 2, 2]
    with pytest.raises(ConfigError, match="3 trials of 2 GPUs at a time need 6 GPUs, and there are 4"):
        room(4, parallel=3, nproc_per_node=2)
    with pytest.raises(ConfigError, match="a trial of 8 GPUs has no room, and there are 4") as caught:
        room(4, nproc_per_node=8)
    assert caught.value.problems[0].where == "nproc_per_node"


def test_without_its_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api import installed

    monkeypatch.setattr(installed, "_is_there", lambda name: name != "optuna")
    with pytest.raises(ConfigError) as caught:
        run_sweep(sweep_of(tmp_path), say=lambda _: None)
    assert caught.value.problems[0].hint == "pip install 'rankzero[sweep]'"
    assert not (tmp_path / "sweeps").exists()


def test_what_the_run_names_is_looked_at_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.jsonl"):
        load_sweep(written(tmp_path, RUN))


def test_a_dry_run_looks_for_room_too(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("rankzero.machine.local_gpu_count", lambda _env: 4)
    write_jsonl(tmp_path / "train.jsonl", chat_rows(10))
    done = cli(f"sweep {written(tmp_path, RUN)} --dry-run nproc_per_node=8")
    assert done.code == 78 and "nproc_per_node: a trial of 8 GPUs has no room" in done.err, done.err


def test_a_package_that_copies_need_is_looked_for_before_the_first_trial(tmp_path: Path, cli: Any) -> None:
    write_jsonl(tmp_path / "train.jsonl", chat_rows(10))
    done = cli(f"sweep {written(tmp_path, {**RUN, 'output_url': 'nope://bucket/runs'})} --dry-run")
    assert done.code == 78 and "nope:// is no kind of object store" in done.err, done.err


@pytest.mark.parametrize("held_out", [True, False])
def test_trials_are_not_compared_across_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_out: bool
) -> None:
    monkeypatch.setattr(loop, "POLL_SECONDS", 0.0)
    file = write_jsonl(tmp_path / "rows.jsonl", chat_rows(10))
    data = {"train": "rows.jsonl", "eval": {"fraction": 0.2}} if held_out else {"train": "o/d", "eval": "rows.jsonl#5"}
    sweep = sweep_of(tmp_path, {**RUN, "data": data}, trials=2)

    def go_on(trials: int, **failures: Any) -> list[str]:
        more = sweep_of(tmp_path, {**RUN, "data": data}, trials=trials)
        result = run_sweep(more, say=lambda _: None, trainer=lambda _: Formula(**failures))
        return [trial.state for trial in result.trials]

    bad = {f"trial-00{number}": [DataError("row 3 has no messages")] for number in range(2)}
    with pytest.raises(RankzeroError, match="no trial has a result"):
        go_on(2, failures=bad)
    write_jsonl(file, chat_rows(11))
    assert go_on(2) == ["complete"] * 2, "mended before anything was scored"
    write_jsonl(file, chat_rows(12))
    with pytest.raises(ConfigError, match="hold something else than when trial 0 was evaluated") as caught:
        go_on(3)
    (problem,) = caught.value.problems
    assert problem.where.endswith("sweeps/sweep: data.eval") and "another name" in problem.hint
    write_jsonl(file, chat_rows(11))
    assert go_on(3) == ["complete"] * 3
    record = json.loads(SweepDir(sweep.directory).setting.read_text())
    del record["eval_files"]  # as an earlier version has left it
    SweepDir(sweep.directory).setting.write_text(json.dumps(record))
    assert go_on(4) == ["complete"] * 4
