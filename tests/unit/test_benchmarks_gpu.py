"""The GPU benchmark on a CPU: rows, sums, tables and the order of runs; and one real pair of runs of tiny models."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_bench
import gpu_cells as cells
import gpu_peer as peer
import gpu_results as kept_results
import gpu_run as runs
import gpu_shapes as shapes
import gpu_table as table
import gpu_tests

import gpu
from rankzero.spec.run_spec import RunSpec

LORA = cells.Cell("qwen3-8b", "LoRA", unsloth=True)
FULL_TUNE = cells.Cell("llama-3.2-1b", "full, float32 masters")
QLORA = next(cell for cell in cells.CELLS if "QLoRA" in cell.name)


def sample(speed: float, peak: float = 2**30, seconds: float = 30.0) -> runs.Sample:
    return runs.Sample(speed, peak, 12.0, seconds, 2.0, 1.5, "as it comes")


def bench(tmp_path: Path, **changes: Any) -> gpu_bench.Bench:
    given: dict[str, Any] = {
        "kept": kept_results.Kept(),
        "work": tmp_path,
        "sizes": cells.QUICK,
        "cpu": True,
        "quick": False,
        "peer_python": sys.executable,
        "unsloth": None,
        "ends": float("inf"),
        "peers": {"accelerate": "1", "trl": "1", "pillow": "1"},
    }
    return gpu_bench.Bench(**{**given, **changes})


def test_rows_follow_from_the_seed_and_have_the_lengths_that_are_stated() -> None:
    rows = cells.make_rows(cells.FULL, 1000)
    assert rows == cells.make_rows(cells.FULL, 1000) != cells.make_rows(cells.FULL, 1000, seed=2)
    assert len(rows) == cells.FULL.steps * cells.FULL.batch
    parts = [[len(message["content"].split()) for message in row["messages"]] for row in rows]
    lengths = sorted(sum(part) + cells.TEMPLATE_TOKENS for part in parts)
    assert lengths[0] >= cells.LEAST_LENGTH and lengths[-1] == cells.FULL.max_length
    assert 800 < lengths[len(lengths) // 2] < 1000
    trained = [part[1] / sum(part) for part in parts]
    assert all(0.19 < share < 0.61 for share in trained) and 0.38 < sum(trained) / len(trained) < 0.42


def test_a_row_of_n_words_has_n_tokens_and_answers_are_what_is_trained() -> None:
    tokenizer = shapes.make_tokenizer(512, images=False)
    assert len(tokenizer) == 512
    row = cells.make_rows(cells.QUICK, 500)[0]
    asked, answer = (len(message["content"].split()) for message in row["messages"])
    ids = tokenizer.apply_chat_template(row["messages"], tokenize=True)["input_ids"]
    assert len(ids) == asked + answer + cells.TEMPLATE_TOKENS
    assert tokenizer.unk_token_id not in ids and len(set(ids)) > 5


def test_the_peer_reads_the_same_tokens(tmp_path: Path) -> None:
    rows = cells.make_rows(cells.QUICK, 500)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = shapes.make_tokenizer(512, images=False)
    read = peer.text_rows({"rows": str(tmp_path / "rows.jsonl"), "max_length": 96}, tokenizer)
    for row, tokens in zip(rows, read, strict=True):
        answer = [label for label in tokens["labels"] if label != peer.IGNORED]
        assert answer[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(answer[:-1]) == row["messages"][1]["content"]
        assert tokens["input_ids"][-len(answer) :] == answer
    batch = peer.Padded(0)([read[0], read[1]])
    lengths = [len(tokens["input_ids"]) for tokens in read[:2]]
    assert batch["attention_mask"].sum(1).tolist() == lengths and batch["input_ids"].shape == (2, max(lengths))
    assert (batch["labels"][batch["attention_mask"] == 0] == peer.IGNORED).all()


@pytest.mark.parametrize("cell", cells.CELLS, ids=lambda cell: cell.name)
def test_every_cell_is_a_run_spec(cell: cells.Cell, tmp_path: Path) -> None:
    for entrant in cell.ours:
        given = cells.run_spec(
            cell, entrant, cells.FULL, model=tmp_path, rows=tmp_path / "r", output=tmp_path, cpu=False
        )
        spec = RunSpec.model_validate(given)
        assert (spec.train.max_steps, spec.train.global_batch_size, spec.data.max_length) == (16, 16, 4096)
        assert (spec.lora is None) is cell.method.startswith("full") is (cell.flops_per_parameter == 6)
        assert spec.train.torch_compile is (entrant == cells.OURS_COMPILED)
        assert spec.model.quantization == ("nf4" if "nf4" in cell.method else "none")
        assert spec.train.micro_batch_tokens == spec.train.gradient_checkpointing == spec.model.attention == "auto"


def test_shapes_are_those_of_the_models_that_they_are_named_after() -> None:
    """Parameters of the published models: 1,235,814,400 and 8,190,735,360."""
    import torch

    for shape, wanted in (("llama-3.2-1b", 1_235_814_400), ("qwen3-8b", 8_190_735_360)):
        tokenizer = shapes.make_tokenizer(shapes.vocabulary(shape, quick=False), images=False)
        with torch.device("meta"):
            model = shapes.model_class(shape)._from_config(shapes.make_config(shape, tokenizer, quick=False))
        assert sum(parameter.numel() for parameter in model.parameters()) == wanted


def test_the_vision_shape_is_a_2b_model() -> None:
    import torch

    tokenizer = shapes.make_tokenizer(shapes.vocabulary("qwen3-vl-2b", quick=False), images=True)
    config = shapes.make_config("qwen3-vl-2b", tokenizer, quick=False)
    with torch.device("meta"):
        model = shapes.model_class("qwen3-vl-2b")._from_config(config)
    assert 2.1e9 < sum(parameter.numel() for parameter in model.parameters()) < 2.2e9
    assert sum(config.text_config.rope_parameters["mrope_section"]) == config.text_config.head_dim // 2
    assert tokenizer.convert_ids_to_tokens(config.image_token_id) == "<|image_pad|>"


def test_the_peer_gets_what_our_plan_has_room_for(tmp_path: Path) -> None:
    def told(tokens: int, peer: str = cells.TRL) -> cells.PeerTask:
        plan = {"micro_batch_tokens": tokens, "gradient_checkpointing": False}
        where = {"model": tmp_path, "rows": tmp_path, "output": tmp_path}
        return cells.peer_task(LORA, peer, cells.FULL, plan, **where, cpu=False)

    most = [told(tokens).rows_per_pass for tokens in (1024, 4096, 12288, 16384, 65536, 131072)]
    assert most == [1, 1, 2, 4, 16, 16]
    assert told(1024, cells.TRL + cells.WITH_LIGER).liger and not told(1024).liger
    # Rows end to end are as long as they are: some 1,240 tokens each, not 4,096.
    assert [told(tokens, cells.UNSLOTH).rows_per_pass for tokens in (1024, 4096, 12288, 16384)] == [1, 2, 8, 8]
    assert told(1024, cells.UNSLOTH).unsloth and not told(1024).unsloth


def test_peak_and_utilisation() -> None:
    assert table.peak_flops("NVIDIA H200") == 989e12 and table.peak_flops("NVIDIA H100 PCIe") == 756e12
    assert table.peak_flops("NVIDIA A100-SXM4-80GB") == 312e12 and table.peak_flops("NVIDIA L40S") == 362e12
    assert table.peak_flops("A card of tomorrow") is None
    # 12,473 tokens/s of an 8.03B model under adapters are 402 TFLOP/s, 41 % of an H100.
    assert table.utilisation(LORA, 8_030_261_248, 12_473, 989e12) == pytest.approx(0.405, abs=0.001)
    assert table.utilisation(FULL_TUNE, 10**9, 1000, 60e12) == pytest.approx(0.1)
    assert table.utilisation(LORA, 10**9, 1000, None) is None


def test_the_table_has_medians_and_ratios() -> None:
    compiled = cells.Cell(LORA.shape, LORA.method, ours=(cells.OURS_COMPILED,), peer=False)
    results = {
        (LORA, cells.OURS): [sample(300), sample(100), sample(200)],
        (LORA, cells.TRL): [sample(100)],
        (FULL_TUNE, cells.OURS): [sample(50)],
        (compiled, cells.OURS_COMPILED): [sample(400)],
    }
    rows = table.figures_table(results, {LORA.shape: 8 * 10**9, FULL_TUNE.shape: 10**9}, 64e12).splitlines()[2:]
    read = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert [row[3:6] for row in read] == [
        ["200", "2.00", "10.0%"],
        ["100", "", "5.0%"],
        ["50", "", "0.5%"],
        ["400", "4.00", "20.0%"],
    ]
    assert read[0][:2] == ["qwen3-8b (8.00B)", "LoRA"] and read[0][6:] == ["1.0 GiB", "12.0 s", "2.00 → 1.50"]
    unknown = table.figures_table(results, {LORA.shape: 1, FULL_TUNE.shape: 1}, None)
    assert "%" not in unknown


def test_contestants_take_turns(tmp_path: Path) -> None:
    """A B, B A; then B A, A B: neither always comes first. What has no peer is not repeated."""
    both, other, alone = LORA, FULL_TUNE, QLORA
    order = [(cell.shape, name) for cell, name in bench(tmp_path).turns([both, other, alone])]
    ours, trl = cells.OURS, cells.TRL
    assert order == [
        *[(both.shape, ours), (both.shape, trl), (other.shape, trl), (other.shape, ours), (alone.shape, ours)],
        *[(both.shape, trl), (both.shape, ours), (other.shape, ours), (other.shape, trl)],
    ]
    assert len(list(bench(tmp_path, quick=True).turns([both, alone]))) == 3


def test_peers_are_what_is_installed(tmp_path: Path) -> None:
    vision = next(cell for cell in cells.CELLS if cell.images)
    assert bench(tmp_path).peer(LORA) == cells.TRL and bench(tmp_path).peer(vision) == cells.TRANSFORMERS
    assert bench(tmp_path, peers={"accelerate": "1"}).peer(LORA) == cells.TRANSFORMERS
    assert bench(tmp_path, peers={}).peer(LORA) is None
    with_liger = {"accelerate": "1", "pillow": "1", "trl": "1", "liger-kernel": "1"}
    found = [bench(tmp_path, peers=with_liger, cpu=cpu).peer(cell) for cpu in (False, True) for cell in (LORA, vision)]
    assert found == ["TRL with Liger", "transformers Trainer", "TRL", "transformers Trainer"]
    assert bench(tmp_path, peers={"accelerate": "1", "trl": "1"}).peer(vision) is None


def test_unsloth_stands_beside_the_other_peer_where_it_is_there(tmp_path: Path) -> None:
    """By a Python of its own, or with a directory in the place of ours on the path."""
    there = bench(tmp_path, quick=True, unsloth=tmp_path)
    order = [(cell.shape, name) for cell, name in there.turns([LORA, FULL_TUNE, QLORA])]
    assert order == [
        *[(LORA.shape, name) for name in (cells.OURS, cells.TRL, cells.UNSLOTH)],
        *[(FULL_TUNE.shape, name) for name in (cells.TRL, cells.OURS)],
        *[(QLORA.shape, name) for name in (cells.OURS, cells.UNSLOTH)],
    ]
    assert there.apart(cells.UNSLOTH) == {"PYTHONPATH": str(tmp_path)} and there.apart(cells.TRL) == {}
    assert there.python(cells.UNSLOTH) == sys.executable
    python = tmp_path / "python"
    elsewhere = bench(tmp_path, unsloth=python, peer_python="trl's")
    assert elsewhere.apart(cells.UNSLOTH) == {"PYTHONPATH": ""}
    assert [elsewhere.python(name) for name in (cells.UNSLOTH, cells.TRL)] == [str(python), "trl's"]
    assert kept_results.find_turn(QLORA.name, cells.UNSLOTH) == (QLORA, cells.UNSLOTH)
    with pytest.raises(ValueError, match="no cell"):
        kept_results.find_turn(FULL_TUNE.name, cells.UNSLOTH)
    with pytest.raises(SystemExit, match="has no unsloth"):
        gpu.unsloth_versions(tmp_path)


def test_what_fails_or_has_no_time_is_left_out_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench(tmp_path)

    def measure(cell: cells.Cell, entrant: str, _number: int) -> runs.Sample:
        if entrant == cells.TRL:
            raise runs.RunFailedError("torch.OutOfMemoryError: CUDA out of memory")
        return sample(100)

    monkeypatch.setattr(made, "measure", measure)
    made.run([LORA])
    assert [(cell.name, name, len(found)) for (cell, name), found in made.kept.samples.items()] == [
        (LORA.name, cells.OURS, 2)
    ]
    assert made.skipped == ["qwen3-8b LoRA, TRL: torch.OutOfMemoryError: CUDA out of memory"]
    late = bench(tmp_path, ends=0.0, peers={})
    late.run([LORA])
    assert not late.kept.samples and not late.kept.failed
    assert [reason.partition(": ")[2] for reason in late.skipped][1:] == ["out of time"]
    assert "needs trl, or transformers and accelerate" in late.skipped[0]


def test_a_process_is_stopped_when_its_time_is_over(tmp_path: Path) -> None:
    endless = [sys.executable, "-c", "while True: pass"]
    with pytest.raises(runs.RunFailedError, match="stopped after 1 s"):
        runs.run_process(endless, runs.environment(tmp_path, cpu=True), tmp_path, 1)
    fails = [sys.executable, "-c", "raise ValueError('no such flag')"]
    with pytest.raises(runs.RunFailedError, match="^ValueError: no such flag$"):
        runs.run_process(fails, runs.environment(tmp_path, cpu=True), tmp_path, 60)


def test_only_steps_after_the_warm_up_count() -> None:
    times = [(10.0, 999), (12.0, 100), (14.0, 300), (16.0, 200)]
    steps = [{"time": at, "tokens": tokens, "loss": 1.0} for at, tokens in times]
    found = runs.summarise(4.0, 20.0, cells.QUICK, (steps, 5.0, ""))
    assert (found.tokens_per_second, found.first_step_seconds, found.peak_bytes) == (100.0, 6.0, 5.0)
    with pytest.raises(runs.RunFailedError, match="expected 4 steps, found 3"):
        runs.summarise(4.0, 20.0, cells.QUICK, (steps[1:], 5.0, ""))


def test_the_readme_has_the_markers_and_says_what_is_measured() -> None:
    text = gpu.README.read_text(encoding="utf-8")
    assert table.START in text and table.END in text
    assert table.write_between_markers(text, "new").count("new") >= 1
    with pytest.raises(SystemExit, match="lacks"):
        table.write_between_markers("no markers", "new")


def test_a_quick_look_is_never_written_as_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.parse_arguments(["--quick", "--write"])
    assert "a quick look is no result" in capsys.readouterr().err


MACHINE = {"device": "NVIDIA H100", "torch": "2.13", "cuda": "13.0", "rankzero": "0.1.0", "sizes": "full"}


def test_a_later_piece_adds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two samples of what has a peer, one of what has none; what there was no time for is left out of one piece only,
    what failed is not tried again until it is asked for."""
    file, asked = tmp_path / "out" / "results.json", []

    def piece(*choice: cells.Cell, seconds: float, again: tuple[str, ...] = ()) -> gpu_bench.Bench:
        kept = kept_results.load(file, MACHINE, {"trl": "1"})
        kept.forget(again)
        made = bench(tmp_path, kept=kept, ends=seconds)

        def measure(cell: cells.Cell, entrant: str, _number: int) -> runs.Sample:
            made.ends -= 100
            asked.append((cell.shape, cell.method, entrant))
            if cell.method == QLORA.method:
                raise runs.RunFailedError("CUDA out of memory", "the whole traceback")
            return sample(100, seconds=100)

        monkeypatch.setattr(gpu_bench.time, "monotonic", lambda: 0.0)
        monkeypatch.setattr(made, "measure", measure)
        made.run(choice)
        return made

    ours, trl = (LORA.shape, LORA.method, cells.OURS), (LORA.shape, LORA.method, cells.TRL)
    nf4 = (QLORA.shape, QLORA.method, cells.OURS)
    first = piece(LORA, QLORA, seconds=150.0)
    assert asked == [ours] and first.skipped == [
        "qwen3-8b LoRA, TRL: out of time",
        "qwen3-8b QLoRA (nf4), rankzero: out of time",
    ]
    del asked[:]
    second = piece(LORA, QLORA, seconds=460.0)
    assert asked == [trl, nf4, trl, ours]
    assert second.skipped == ["qwen3-8b QLoRA (nf4), rankzero: CUDA out of memory"]
    assert "the whole traceback" in (tmp_path / "out" / "results.failures.txt").read_text()
    del asked[:]
    third = piece(LORA, QLORA, seconds=900.0)
    assert not asked and third.skipped == second.skipped
    piece(LORA, QLORA, seconds=900.0, again=("QLoRA",))
    assert asked == [nf4]
    kept = kept_results.load(file, MACHINE, {"trl": "1"})
    assert {turn[1]: len(found) for turn, found in kept.samples.items()} == {cells.OURS: 2, cells.TRL: 2}
    assert kept.samples[LORA, cells.TRL][0] == sample(100, seconds=100)


def test_a_run_that_this_pieces_end_has_stopped_has_not_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, failed in ((gpu_bench.MOST_SECONDS - 1, False), (gpu_bench.MOST_SECONDS + 1, True)):
        made = bench(tmp_path, ends=seconds)

        def measure(*_: Any) -> runs.Sample:
            raise runs.RunStoppedError("stopped")

        monkeypatch.setattr(gpu_bench.time, "monotonic", lambda: 0.0)
        monkeypatch.setattr(made, "measure", measure)
        made.attempt((LORA, cells.OURS), 0, usual=60.0)
        assert bool(made.kept.failed) is failed


def test_results_of_another_machine_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    made = kept_results.load(file, MACHINE, {"trl": "1.16"})
    made.samples[LORA, cells.OURS] = [sample(1)]
    made.save()
    assert kept_results.load(file, MACHINE, {}).samples == made.samples
    for name, other in (("device", "NVIDIA H200"), ("torch", "2.11"), ("rankzero", "0.2.0"), ("sizes", "quick")):
        with pytest.raises(kept_results.OtherMachineError, match=f"{name}: '{MACHINE[name]}' there, '{other}' here"):
            kept_results.load(file, {**MACHINE, name: other}, {})
    with pytest.raises(kept_results.OtherMachineError, match="trl: 1.16 there, 1.17 here, beside the peer"):
        kept_results.load(file, MACHINE, {"trl": "1.17"})
    file.write_text(file.read_text().replace("qwen3-8b", "qwen9"))
    with pytest.raises(kept_results.OtherMachineError, match="no cell 'qwen9 LoRA'"):
        kept_results.load(file, MACHINE, {})
    file.write_text("{")
    with pytest.raises(kept_results.OtherMachineError, match="is no file of results"):
        kept_results.load(file, MACHINE, {})


def test_all_files_of_gpu_tests_have_a_place() -> None:
    assert {path.stem for path in gpu_tests.files()} == {f"test_{name}" for name in gpu_tests.ORDER}
    assert gpu_tests.files()[-1].stem == "test_compile"


def test_gpu_tests_go_on_behind_one_that_takes_the_device_or_the_process_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    lines = ("raise RuntimeError('CUDA error: an illegal memory access was encountered')", "os._exit(9)", "pass")
    body = "import os\n" + "".join(f"def test_{at}():\n    {line}\n" for at, line in enumerate(lines))
    (folder / "test_few.py").write_text(body)
    monkeypatch.setattr(gpu_tests, "FOLDER", folder)
    log = tmp_path / "results.tests.txt"
    found = gpu_tests.run(300.0, {}, cpu=True, log=log, show=lambda _: None)
    assert list(found.tests.values()) == [gpu_tests.LOST, gpu_tests.UNENDED, "passed"] and found.left == 0
    told = gpu_tests.summary(found.tests, 0, found.ended)
    assert told.splitlines()[0] == "1 did not end, 1 failed, 1 passed (exit code 0)" and "device with it" in told
    said = log.read_text()
    assert "illegal memory access" in said and len(list(tmp_path.glob("*.jsonl"))) == 0
    assert said.index("test_few.py:3: in test_0") < said.index("::test_1"), "told as it fails: the next one ends pytest"


def test_a_test_that_the_pieces_end_cuts_off_is_left_for_the_next() -> None:
    """But one that had all the time that a test has did not end."""
    lines = [
        {"collected": ["a", "b", "c"]},
        {"test": "a", "outcome": gpu_tests.UNENDED, "begun": 100.0},
        {"test": "a", "outcome": "passed"},
        {"test": "b", "outcome": gpu_tests.UNENDED, "begun": 200.0},
    ]
    cut = gpu_tests.read_told(lines, "killed after 140 s", now=200.0 + gpu_tests.MOST_SECONDS - 1)
    assert cut.tests == {"a": "passed"} and cut.left == 2 and not cut.lost
    for ended, now in (("killed after 140 s", 200.0 + gpu_tests.MOST_SECONDS + 1), ("exit code -11", 201.0)):
        found = gpu_tests.read_told(lines, ended, now=now)
        assert found.tests == {"a": "passed", "b": gpu_tests.UNENDED} and found.left == 1 and found.lost


def test_gpu_tests_go_on_where_an_earlier_piece_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is begun when the time is up; what has passed or failed is not run again; a summary names what failed."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    body = "import pytest\n"
    for name, line in (("a", "pass"), ("b", "assert 2 * 2 == 5"), ("c", "pytest.skip('needs nothing')"), ("d", "pass")):
        body += f"def test_{name}():\n    print('test {name} was here')\n    {line}\n"
    (folder / "test_few.py").write_text(body)
    (folder / "test_none.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.setattr(gpu_tests, "FOLDER", folder)
    log, shown = tmp_path / "results.tests.txt", []
    none = gpu_tests.run(10.0, {}, cpu=True, log=log, show=shown.append)
    assert none.ended == "not run: no time was left" and none.left is None
    with monkeypatch.context() as patch:
        patch.setattr(gpu_tests.time, "time", lambda: 0.0)  # so that time is up when the first test has ended
        one = gpu_tests.run(300.0, {}, cpu=True, log=log, show=shown.append)
    assert list(one.tests.values()) == ["failed", "passed"] and one.left == 3 and "no time was left" in log.read_text()
    rest = gpu_tests.run(300.0, one.tests, cpu=True, log=log, show=shown.append)
    names = {test.rpartition("::")[2]: outcome for test, outcome in (one.tests | rest.tests).items()}
    assert names.pop(next(name for name in names if "test_none" in name)) == "failed"  # not even imported
    assert names == {"test_a": "passed", "test_b": "failed", "test_c": "skipped: needs nothing", "test_d": "passed"}
    assert rest.left == 0 and "assert (2 * 2) == 5" in log.read_text() and "(2 * 2) == 5" in shown[-1]
    told = gpu_tests.summary(one.tests | rest.tests, rest.left or 0, rest.ended)
    assert told.splitlines()[0] == "2 failed, 2 passed, 1 skipped (exit code 1)"
    assert "- failed: `" in told and "- skipped: needs nothing (1)" in told


@pytest.mark.slow
def test_one_pair_of_tiny_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole benchmark of one cell on a CPU: a model is made, rankzero and a peer train on it, a table comes out."""
    pytest.importorskip("accelerate")
    results = tmp_path / "results.json"
    quick = ["--device", "cpu", "--quick", "--no-tests", "--peer-python", sys.executable, "--results", str(results)]
    gpu.main([*quick, "--only", "llama-3.2-1b LoRA", "--work", str(tmp_path / "work")])
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("| llama-3.2-1b")]
    contestants = [line.split("|")[3].strip() for line in lines]
    assert "rankzero" in contestants
    assert len(lines) == 2 and all("→" in line for line in lines)
    assert "out of time" not in printed and "Traceback" not in printed
    kept = json.loads(results.read_text())["samples"]
    assert len(kept) == 2 and all(one["runs"][0]["tokens_per_second"] > 0 for one in kept)
    assert not list((tmp_path / "work").glob("run-*/runs"))
    gpu.main([*quick, "--only", "llama-3.2-1b LoRA", "--work", str(tmp_path / "again")])
    assert lines == [line for line in capsys.readouterr().out.splitlines() if line.startswith("| llama-3.2-1b")]
    assert not list((tmp_path / "again").iterdir())
