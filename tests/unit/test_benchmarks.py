"""The benchmark's reading, sums and tables, on recorded text. Neither TRL nor a model is needed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import peers
import peers_contestants as contestants
import peers_measure as measure
import peers_table as table

TRL_OUTPUT = """\
Tokenizing train dataset: 100%
{'loss': '6.142', 'grad_norm': '0.5012', 'learning_rate': '0.0002', 'num_tokens': '5048', 'epoch': '0.5'}
{'loss': '5.948', 'grad_norm': '0.211', 'learning_rate': '0.0001', 'num_tokens': '1.048e+04', 'epoch': '1'}
{'train_runtime': '4.396', 'train_samples_per_second': '7.28', 'train_loss': '5.95', 'epoch': '1'}
✅ Training completed.
"""
"""What `trl sft` 1.16.0 printed, shortened."""

SETTINGS = contestants.Settings("/models/smol", Path("/w/rows"), 3, "float32", on_cpu=True)


def sample(speed: float, peak: float = 1e9, first: float = 10.0) -> measure.Sample:
    return measure.Sample(speed, peak, first, 60.0, 1000, 2.0, 1.5)


def samples() -> dict[str, list[measure.Sample]]:
    """rankzero three and two times as fast as TRL's defaults, and as fast as its best."""
    ours, best = [sample(300, first=4), sample(200, first=4)], [sample(300), sample(200)]
    return {contestants.OURS: ours, contestants.TRL_DEFAULTS: [sample(100)] * 2, contestants.TRL_BEST: best}


def test_trl_steps_are_read_from_what_it_prints() -> None:
    lines = [(100.0 + number, line) for number, line in enumerate(TRL_OUTPUT.splitlines())]
    steps = contestants.read_trl_log(Path(), lines)
    assert steps == [contestants.Step(101.0, 5048, 6.142), contestants.Step(102.0, 10480 - 5048, 5.948)]


def test_our_steps_are_read_from_metrics(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    values = {"step": 1, "loss": 2.5, "tokens": 2400, "tokens_per_second": 300.0, "time": 1234.5}
    (tmp_path / "bench" / "metrics.jsonl").write_text(json.dumps(values) + "\n")
    assert contestants.read_metrics(tmp_path, []) == [contestants.Step(1234.5, 2400, 2.5)]


def test_the_first_step_counts_for_its_own_time_only() -> None:
    process = measure.Process(started=100.0, seconds=50.0, peak_bytes=7, lines=[])
    steps = [contestants.Step(120.0, 9999, 3.0), contestants.Step(125.0, 400, 2.0), contestants.Step(130.0, 600, 1.0)]
    result = measure.summarise(process, steps, expected=3)
    assert result == measure.Sample(100.0, 7, 20.0, 50.0, 1000, 3.0, 1.0)


def test_missing_steps_are_an_error() -> None:
    with pytest.raises(SystemExit, match="expected 3 steps, found 0"):
        measure.summarise(measure.Process(0.0, 1.0, 1, []), [], expected=3)


def test_ratios_are_taken_turn_by_turn() -> None:
    assert table.ratios(samples(), "tokens_per_second", contestants.TRL_DEFAULTS) == [3.0, 2.0]
    assert table.ratios(samples(), "tokens_per_second", contestants.TRL_BEST) == [1.0, 1.0]


def test_targets_say_what_was_met_and_missed() -> None:
    rows = table.targets_table(samples(), SETTINGS).splitlines()[2:]
    verdicts = {tuple(cell.strip() for cell in row.split("|")[1:3]): row.split("|")[-2].strip() for row in rows}
    assert verdicts == {
        ("useful tokens/s", contestants.TRL_DEFAULTS): "met",
        ("useful tokens/s", contestants.TRL_BEST): "**missed**",
        ("peak memory", contestants.TRL_DEFAULTS): "met",
        ("peak memory", contestants.TRL_BEST): "met",
        ("time to first step", contestants.TRL_DEFAULTS): "met",
        ("time to first step", contestants.TRL_BEST): "met",
    }
    assert "| ≥ 2.5 | 2.50 | 3.00, 2.00 | met |" in rows[0]


def test_more_is_promised_for_bfloat16_on_a_cpu() -> None:
    in_bfloat16 = contestants.Settings("m", Path("r"), 3, "bfloat16", on_cpu=True)
    rows = table.targets_table(samples(), in_bfloat16)
    assert f"| useful tokens/s | {contestants.TRL_BEST} | ≥ 2 | 1.00 | 1.00, 1.00 | **missed** |" in rows
    assert f"| peak memory | {contestants.TRL_BEST} | ≤ 0.8 |" in rows
    assert f"| time to first step | {contestants.TRL_BEST} | ≤ 0.35 |" in rows
    assert f"| useful tokens/s | {contestants.TRL_DEFAULTS} | ≥ 2.5 | 2.50 |" in rows


def test_memory_is_not_judged_on_a_gpu() -> None:
    on_gpu = contestants.Settings("m", Path("r"), 3, "bfloat16", on_cpu=False)
    assert "peak memory" not in table.targets_table(samples(), on_gpu)
    assert "peak memory of the host" in table.figures_table(samples(), on_gpu)


def test_figures_are_medians() -> None:
    assert "| rankzero | 250.0 | 0.93 GiB | 4.0 s | 60 s | 1,000 | 2.00 → 1.50 |" in table.figures_table(
        samples(), SETTINGS
    )


@pytest.mark.parametrize(
    ("precision", "defaults", "best"),
    [
        ("float32", ["--bf16", "false"], ["--bf16", "false", "--dtype", "float32"]),
        ("bfloat16", [], ["--bf16", "true", "--dtype", "bfloat16"]),
    ],
)
def test_precision_is_the_same_for_all(precision: str, defaults: list[str], best: list[str], tmp_path: Path) -> None:
    settings = contestants.Settings("m", tmp_path, 3, precision, on_cpu=True)
    ours, *theirs = (c.command(settings, tmp_path) for c in contestants.make_contestants("/venv/bin/python"))
    assert ours[1:] == ["-m", "rankzero", "train", str(tmp_path / "run.yaml")]
    assert f"dtype: {precision}" in (tmp_path / "run.yaml").read_text()
    assert [command[:2] for command in theirs] == [["/venv/bin/trl", "sft"]] * 2
    assert theirs[0][theirs[0].index("--gradient_accumulation_steps") + 2 :] == defaults
    assert theirs[1][-4:] == best


def test_run_yaml_is_a_run_spec(tmp_path: Path) -> None:
    import yaml

    from rankzero.spec.run_spec import RunSpec

    contestants.rankzero_command(SETTINGS, tmp_path)
    spec = RunSpec.model_validate(yaml.safe_load((tmp_path / "run.yaml").read_text()))
    assert (spec.train.global_batch_size, spec.train.max_steps, spec.data.max_length) == (16, 3, 512)
    assert spec.lora is not None and (spec.lora.r, spec.lora.target_modules[0]) == (8, "q_proj")


def test_commands_name_paths_instead_of_showing_them(tmp_path: Path) -> None:
    text = table.commands_text(contestants.make_contestants("/venv/bin/python"), SETTINGS, tmp_path)
    assert "python -m rankzero train WORK/run.yaml" in text
    assert text.count("\ntrl sft --model_name_or_path MODEL --dataset_name ROWS --output_dir WORK/trl ") == 2
    assert not any(path in text for path in (str(tmp_path), "/models/smol", "/venv", sys.executable))


def test_rows_depend_on_the_seed_alone() -> None:
    rows = contestants.make_rows(200, seed=1)
    assert rows == contestants.make_rows(200, seed=1) != contestants.make_rows(200, seed=2)
    assert [set(row) for row in rows] == [{"prompt", "completion"}] * 200
    words = sorted(len(row["completion"][0]["content"].split()) for row in rows)
    assert words[0] < 15 and 55 < words[100] < 95 and words[-1] > 250


def test_results_replace_what_stands_between_the_markers_of_their_precision() -> None:
    (start, end), others = table.markers("float32"), "\n".join(table.markers("bfloat16"))
    old = f"before\n{others}\n{start}\nold\n{end}\nafter\n"
    text = table.write_between_markers(old, "new", "float32")
    assert text == f"before\n{others}\n{start}\n\nnew\n\n{end}\nafter\n"
    assert table.write_between_markers(text, "new", "float32") == text
    with pytest.raises(SystemExit, match="lacks"):
        table.write_between_markers(others, "new", "float32")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_readme_has_the_markers(precision: str) -> None:
    text = peers.README.read_text(encoding="utf-8")
    assert all(text.count(marker) == 1 for marker in table.markers(precision))


def test_a_process_is_measured_with_its_children(tmp_path: Path) -> None:
    child = "x = bytearray(150_000_000); print('child')"
    code = f"import subprocess, sys; print('parent', flush=True); subprocess.run([sys.executable, '-c', {child!r}])"
    process = measure.run_process([sys.executable, "-c", code], dict(os.environ), tmp_path / "stderr.txt")
    assert [line for _, line in process.lines] == ["parent\n", "child\n"]
    assert process.started < process.lines[0][0] < process.lines[1][0] < process.started + process.seconds + 0.1
    assert process.peak_bytes > 150_000_000


def test_a_failing_process_shows_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such flag')"]
    with pytest.raises(SystemExit, match="ended with 1:\nno such flag"):
        measure.run_process(command, dict(os.environ), tmp_path / "stderr.txt")


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.parse_arguments(["--trl-python", "p", "--steps", "1"])
    assert "--steps must be at least 2" in capsys.readouterr().err
