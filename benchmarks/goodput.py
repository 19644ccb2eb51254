"""What ten random kills cost a run of 200 steps, beside transformers.Trainer with its just-in-time checkpoints.

    python benchmarks/goodput.py [--kills 10] [--steps 200] [--nproc 1] [--every 2] [--seed 0] [--work DIR]

Both train the same small model on the same rows on this machine's CPU, full weights, with a checkpoint every few steps.
Each contestant runs once undisturbed, then again with kills: after a drawn step (at least one of each start) and a
drawn part of the next one, a drawn process gets SIGTERM and, 30 s later, SIGKILL where it is still there, as a pod that
is evicted; or SIGKILL at once. When all processes are gone, the same command is given again.

Possible is the wall time of the undisturbed run, and for each kill the time that a start takes to the end of its first
step, which is the step that was cut off: what no checkpoint can save. The figure is possible ÷ actual, each contestant
by its own undisturbed run, measured from outside by the same clock; and the same in CPU time, which other work on the
machine hardly changes, and which waiting does not cost. Repeated are the steps done more than once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GRACE_SECONDS = 30.0
HUNG_SECONDS = 120.0
ROWS, WORDS, LENGTH = 800, 400, 64
BATCH = 8


@dataclass(frozen=True)
class Kill:
    """`part` of a step after this many steps."""

    step: int
    part: float
    rank: int
    signal: int


@dataclass
class Contestant:
    """How one is started, and how far it says that it is."""

    name: str
    command: list[str]
    done: Callable[[], list[tuple[int, float]]]
    """Each step that ended, in the order of time, with when (Unix seconds)."""


@dataclass
class Measured:
    """One run, from outside."""

    wall: float = 0.0
    first_step: float = 0.0
    """Wall time from a start to the end of its first step."""
    cpu: float = 0.0
    first_step_cpu: float = 0.0
    starts: int = 0
    codes: list[list[int]] = field(default_factory=list)
    hung: int = 0
    steps_done: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description="What ten random kills cost.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--every", type=int, default=2, help="steps between two checkpoints")
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=["rankzero", "trainer"], help="one contestant")
    parser.add_argument("--work", type=Path, help="keep everything here")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer is not None:
        sys.exit(train_with_trainer(args.peer, args.steps, args.every, args.seed))
    work = args.work or Path(tempfile.mkdtemp(prefix="goodput-"))
    work.mkdir(parents=True, exist_ok=True)
    make_inputs(work, args.hidden)
    kills = drawn(args.kills, args.steps, args.nproc, args.seed)
    print(f"kills after steps {', '.join(f'{k.step} ({signal.Signals(k.signal).name} to {k.rank})' for k in kills)}")
    for name, contestant in (("rankzero", rankzero), ("trainer", trainer)):
        if args.only in (None, name):
            whole = run(contestant(work / f"{name}-whole", args), args.nproc, [])
            cut = run(contestant(work / f"{name}-killed", args), args.nproc, kills)
            print(line(name, whole, cut, args), flush=True)
    print(f"everything is in {work}")


def line(name: str, whole: Measured, cut: Measured, args: argparse.Namespace) -> str:
    """One contestant's result."""
    made = cut.starts - 1
    possible = whole.wall + made * whole.first_step
    possible_cpu = whole.cpu + made * whole.first_step_cpu
    repeated = cut.steps_done - args.steps
    return (
        f"{name}: undisturbed {whole.wall:.1f} s, of it {whole.first_step:.1f} s to the end of the first step; "
        f"with {made} restarts {cut.wall:.1f} s; possible {possible:.1f} s, {100 * possible / cut.wall:.1f} % of that; "
        f"in CPU time {whole.cpu:.1f}, {whole.first_step_cpu:.1f}, {cut.cpu:.1f} and {possible_cpu:.1f} s, "
        f"{100 * possible_cpu / cut.cpu:.1f} %; "
        f"{repeated} steps repeated, {cut.hung} hangs; exit codes {cut.codes}"
    )


def drawn(count: int, steps: int, nproc: int, seed: int) -> list[Kill]:
    """As many kills at different steps; SIGTERM and SIGKILL in turn."""
    draw = random.Random(seed)
    at = sorted(draw.sample(range(3, steps - 3), count))
    kinds = [(signal.SIGTERM, signal.SIGKILL)[number % 2] for number in range(count)]
    return [Kill(step, draw.random(), draw.randrange(nproc), kind) for step, kind in zip(at, kinds, strict=True)]


def run(contestant: Contestant, nproc: int, kills: Sequence[Kill]) -> Measured:
    """Start, kill, start again, to the end."""
    measured, left, began, cpu = Measured(), list(kills), time.time(), cpu_seconds()
    while True:
        measured.starts += 1
        started = time.time()
        before = known = len(contestant.done())
        processes = start(contestant.command, nproc)
        kill = left.pop(0) if left else None
        waited_since, killed_at = time.time(), 0.0
        while any(process.poll() is None for process in processes):
            done = contestant.done()
            if measured.starts == 1 and not measured.first_step and done:
                measured.first_step = done[0][1] - started
                measured.first_step_cpu = sum(cpu_seconds(process.pid) for process in processes)
            if len(done) > known:
                known, waited_since = len(done), time.time()
            if kill is not None and len(done) > before and done[-1][0] >= kill.step:
                time.sleep(kill.part * pace(done))
                processes[kill.rank].send_signal(kill.signal)
                kill, killed_at = None, time.time()
            overdue = (
                time.time() - killed_at > GRACE_SECONDS if killed_at else time.time() - waited_since > HUNG_SECONDS
            )
            if overdue:
                measured.hung += end(processes)
            time.sleep(0.02)
        codes = [process.returncode for process in processes]
        measured.codes.append(codes)
        if codes == [0] * nproc:
            break
        if kill is not None:  # it ended before its time
            left.insert(0, kill)
        if measured.starts > 2 * len(kills) + 1:
            raise SystemExit(f"{contestant.name} does not get on: exit codes {measured.codes}")
    measured.wall, measured.cpu = time.time() - began, cpu_seconds() - cpu
    measured.steps_done = len(contestant.done())
    return measured


def cpu_seconds(pid: int | None = None) -> float:
    """Of a process that runs, or of all children that have ended."""
    if pid is None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pace(done: list[tuple[int, float]]) -> float:
    """Seconds of a step, the newest that are known."""
    newest = [at for _, at in done[-6:]]
    return (newest[-1] - newest[0]) / max(1, len(newest) - 1)


def start(command: list[str], nproc: int) -> list[subprocess.Popen[bytes]]:
    """The same command in each process, each with its place."""
    place: dict[str, str] = {}
    if nproc > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"WORLD_SIZE": str(nproc), "LOCAL_WORLD_SIZE": str(nproc), "MASTER_ADDR": "127.0.0.1"}
        place |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", **place}
    return [
        subprocess.Popen(
            command,
            env={**env, **({"RANK": str(rank), "LOCAL_RANK": str(rank)} if nproc > 1 else {})},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(nproc)
    ]


def end(processes: list[subprocess.Popen[bytes]]) -> int:
    """Kill what is left. Returns 1: something was."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    return 1


def make_inputs(work: Path, hidden: int) -> None:
    """A random Llama of four layers, a tokenizer with one word for each id, and rows of random words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"</s>": 0, "<unk>": 1, **{f"w{number}": number + 2 for number in range(WORDS)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="</s>")
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(work / "model")
    tokenizer.save_pretrained(work / "model")
    draw = random.Random(0)
    rows = [" ".join(f"w{draw.randrange(WORDS)}" for _ in range(LENGTH - 2)) for _ in range(ROWS)]
    (work / "train.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))


def rankzero(directory: Path, args: argparse.Namespace) -> Contestant:
    """`rankzero train`, everything else at its default."""
    inputs = directory.parent
    spec = {
        "name": directory.name,
        "model": {"name": str(inputs / "model"), "dtype": "float32"},
        "data": {"train": str(inputs / "train.jsonl"), "max_length": LENGTH},
        "train": {"max_steps": args.steps, "global_batch_size": BATCH, "learning_rate": 1e-4, "seed": args.seed},
        "checkpoint": {"every": args.every},
        "tracking": {"tensorboard": False},
        "output_dir": str(inputs),
    }
    path = inputs / f"{directory.name}.yaml"
    path.write_text(json.dumps(spec))
    log = inputs / f"{directory.name}.steps"

    seen: list[tuple[int, float]] = []

    def done() -> list[tuple[int, float]]:
        """metrics.jsonl is cut back at a resume, so what it said is kept here; `time` tells a repeated step."""
        metrics = directory / "metrics.jsonl"
        for text in metrics.read_text().splitlines() if metrics.is_file() else ():
            try:
                row = json.loads(text)
            except ValueError:
                continue
            if not seen or row["time"] > seen[-1][1]:
                seen.append((row["step"], row["time"]))
        log.write_text(json.dumps(seen))
        return seen

    return Contestant("rankzero", [sys.executable, "-m", "rankzero", "train", str(path)], done)


def trainer(directory: Path, args: argparse.Namespace) -> Contestant:
    """This file, as the script that a user of transformers.Trainer would write."""
    command = [sys.executable, str(Path(__file__).resolve()), "--peer", str(directory), "--steps", str(args.steps)]
    command += ["--every", str(args.every), "--seed", str(args.seed)]
    directory.mkdir()

    def done() -> list[tuple[int, float]]:
        steps = directory / "steps.txt"
        lines = steps.read_text().splitlines() if steps.is_file() else []
        return [(int(text.split()[0]), float(text.split()[1])) for text in lines if len(text.split()) == 2]

    return Contestant("trainer", command, done)


def train_with_trainer(directory: Path, steps: int, every: int, seed: int) -> int:
    """One process of the peer. Exit code 75 where it has stopped before its last step."""
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )
    from transformers.trainer_utils import get_last_checkpoint

    inputs = directory.parent

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.is_world_process_zero:
                with (directory / "steps.txt").open("a") as file:
                    file.write(f"{state.global_step} {time.time()}\n")

    tokenizer = AutoTokenizer.from_pretrained(inputs / "model")
    rows = [json.loads(text)["text"] for text in (inputs / "train.jsonl").read_text().splitlines()]
    dataset: Any = [{"input_ids": tokenizer(row)["input_ids"]} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(directory / "out"),
        max_steps=steps,
        per_device_train_batch_size=BATCH // int(os.environ.get("WORLD_SIZE", "1")),
        learning_rate=1e-4,
        save_steps=every,
        save_total_limit=3,
        enable_jit_checkpoint=True,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
    model = AutoModelForCausalLM.from_pretrained(inputs / "model")
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    made = Trainer(model, arguments, train_dataset=dataset, data_collator=collator, callbacks=[Steps()])
    made.train(resume_from_checkpoint=get_last_checkpoint(directory / "out") if (directory / "out").is_dir() else None)
    if made.state.global_step < steps:
        return 75
    made.save_model(str(directory / "final"))
    return 0


if __name__ == "__main__":
    main()
