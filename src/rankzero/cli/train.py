"""`rankzero train`: a spec file, overrides and flags into one resolved spec, and a run of it on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankzero.errors import StopNow, StoppedError, UsageError
from rankzero.spec.row_formats import RowFormat
from rankzero.spec.run_options import RunOptions
from rankzero.spec.tasks import MEASURES, TASKS
from rankzero.wording import loss_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankzero.cli.seed_flags import SeedFlags
    from rankzero.preflight import Part
    from rankzero.spec.run_spec import RunSpec


RESTARTS_IN_A_POD = 3
"""Where nobody is there to give the command again."""

seed_flag = partial(typer.Option, rich_help_panel="Instead of a spec, or on top of it")

ProcessesOption = Annotated[
    str, typer.Option("--nproc-per-node", "--nproc", metavar="N|auto", help="Processes; auto: one for each GPU.")
]


def train(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="RUN.yaml|key=value", help="Spec file, dotted overrides.")
    ] = None,
    nproc_per_node: ProcessesOption = "auto",
    max_restarts: Annotated[
        str, typer.Option(metavar="N|auto", help="Start again after failures that may pass; auto: 3 in a pod, else 0.")
    ] = "auto",
    allow_change: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Resume although this field changed; repeatable.")
    ] = None,
    report_json: Annotated[str | None, typer.Option(metavar="FILE", help="Also write report.json here.")] = None,
    log_level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], typer.Option(help="Console and log.")] = "INFO",
    log_batches: Annotated[
        Literal["all", "first-last", "none"], typer.Option(help="Batches to log at DEBUG, by step of the epoch.")
    ] = "first-last",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print what the run would take, and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON on stdout.")] = False,
    model: Annotated[str | None, seed_flag(help="model.name")] = None,
    data: Annotated[str | None, seed_flag(help="data.train")] = None,
    row_format: Annotated[
        RowFormat | None, seed_flag("--format", metavar="SHAPE", help="Row shape of --data, as of data check.")
    ] = None,
    output: Annotated[str | None, seed_flag(help="The run directory: output_dir and name.")] = None,
    epochs: Annotated[float | None, seed_flag(help="train.num_train_epochs")] = None,
    seq_len: Annotated[int | None, seed_flag(help="data.max_length")] = None,
    batch: Annotated[int | None, seed_flag(min=1, help="Rows per pass; × grad-accum × processes.")] = None,
    grad_accum: Annotated[int | None, seed_flag(min=1, help="Passes per step; see --batch.")] = None,
    bf16: Annotated[bool, seed_flag("--bf16", help="model.dtype=bfloat16")] = False,
    lora: Annotated[bool, seed_flag("--lora", help="Train adapters.")] = False,
    lora_r: Annotated[int | None, seed_flag(help="lora.r")] = None,
    lora_alpha: Annotated[float | None, seed_flag(help="lora.alpha")] = None,
    lora_dropout: Annotated[float | None, seed_flag(help="lora.dropout")] = None,
    target_modules: Annotated[list[str] | None, seed_flag(help="lora.target_modules: names, or all-linear.")] = None,
    model_local_dir: Annotated[str | None, seed_flag(help="model.local_dir")] = None,
    tokenizer_local_dir: Annotated[str | None, seed_flag(help="model.tokenizer_dir")] = None,
    local_files_only: Annotated[bool, seed_flag("--local-files-only", help="Never use the network.")] = False,
) -> None:
    """Train a run on this machine, or continue where it stopped.

    Every local GPU is used, or else the CPU. What stands in RUN.yaml can be changed for once: train.max_steps=100.
    """
    from rankzero.api.training import require_same_run, settled_elsewhere, start
    from rankzero.cli.first_line import say_step
    from rankzero.cli.own_file import require_object
    from rankzero.cli.seed_flags import SeedFlags
    from rankzero.machine import process_started
    from rankzero.preflight import EVERYTHING
    from rankzero.spec.nearby import shown

    flags = SeedFlags(
        model=model,
        data=data,
        row_format=row_format,
        output=output,
        epochs=epochs,
        seq_len=seq_len,
        batch=batch,
        grad_accum=grad_accum,
        bf16=bf16,
        lora=lora,
        lora_r=lora_r,
        lora_alpha=lora_alpha,
        lora_dropout=lora_dropout,
        target_modules=target_modules or (),
        model_local_dir=model_local_dir,
        tokenizer_local_dir=tokenizer_local_dir,
        local_files_only=local_files_only,
    )
    with stopped_by_sigterm():
        nproc, restarts = process_count(nproc_per_node), restart_count(max_restarts)
        options = RunOptions(log_level, log_batches, report_json, tuple(allow_change or ()))
        if options.report_json is not None and is_first_here():
            require_object(Path(options.report_json), "--report-json", "report", ("steps", "versions"))
        # One process of a machine says what is wrong there.
        parts = EVERYTHING if is_first_here() else ()
        spec = read_spec(arguments or [], flags, parts, world_size=world_size(nproc))
        require_same_run(spec, options)
        in_process = nproc == 1 and not restarts  # this one was started for the run
        if dry_run:
            from rankzero.cli import forecasting

            forecasting.dry_run(spec, processes_asked_for(nproc), options, as_json=as_json)
            return
        if in_process and os.environ.get("RANK", "0") == "0":
            say_step("nothing is wrong so far; import torch and transformers")
        spec = settled_elsewhere(spec)
        report = start(spec, options, nproc, restarts, in_process=in_process, begun=process_started())
    if os.environ.get("RANK", "0") == "0":
        directory = shown(os.path.join(spec.output_dir, str(spec.name)))
        typer.echo(json.dumps(report, indent=2) if as_json else summary(report, directory))


@contextmanager
def stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM raises StoppedError, before and after whoever trains minds it: death by it is a failure to a cluster. So
    do SIGHUP, of a terminal that is closed, and Ctrl-C."""
    from rankzero.stop_signals import signals_to, stop_signals

    name = ""

    def stop(number: int) -> None:
        nonlocal name
        name = signal.Signals(number).name
        raise StopNow

    try:
        with signals_to(stop, stop_signals()):
            yield
    except StopNow:
        raise StoppedError(f"stopped by {name}", hint="give the same command again") from None


def is_first_here() -> bool:
    """Whether this process is the first of a run on this machine. Without RANK it is the only one, whatever else is
    left over in the environment."""
    return "RANK" not in os.environ or os.environ.get("LOCAL_RANK", "0") == "0"


def process_count(wanted: str) -> int:
    """How many processes this command runs: one of several under torchrun, else as asked for. Raises UsageError."""
    if "RANK" in os.environ:
        if wanted != "auto":
            hint = "leave it out here: whoever set RANK (torchrun, a cluster) decides how many processes there are"
            raise UsageError(
                "RANK is set, so this is already one process of several", where="--nproc-per-node", hint=hint
            )
        return 1
    if wanted == "auto":
        from rankzero.machine import local_gpu_count

        return max(1, local_gpu_count(os.environ))
    if not wanted.isdigit() or int(wanted) < 1:
        raise UsageError(f"{wanted!r} is not a number of processes", where="--nproc-per-node", hint="auto, or 1, 2 …")
    return int(wanted)


def processes_asked_for(nproc: int) -> int:
    """Of a run that nobody has started yet. Raises UsageError where somebody has."""
    if "RANK" in os.environ:
        hint = "give it without torchrun: rankzero train RUN.yaml --nproc-per-node N --dry-run"
        raise UsageError("RANK is set, so this is one process of several already", where="--dry-run", hint=hint)
    return nproc


def restart_count(wanted: str) -> int:
    """How often the run is started again here. Raises UsageError."""
    where = "--max-restarts"
    if wanted == "auto":
        return RESTARTS_IN_A_POD if "KUBERNETES_SERVICE_HOST" in os.environ and "RANK" not in os.environ else 0
    if not wanted.isdigit():
        raise UsageError(f"{wanted!r} is not a number of restarts", where=where, hint="auto, or 0, 1, 2 …")
    if int(wanted) and "RANK" in os.environ:
        hint = "leave it out here: whoever set RANK (torchrun, a cluster) starts processes again"
        raise UsageError("RANK is set, so this is already one process of several", where=where, hint=hint)
    return int(wanted)


def world_size(nproc: int) -> int:
    """Processes of the whole run. Raises UsageError."""
    if "RANK" not in os.environ:
        return nproc
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"{text!r} is not a number of processes", where="environment WORLD_SIZE")
    return int(text)


def read_spec(
    arguments: list[str], flags: SeedFlags, parts: Sequence[Part] = ("paths",), *, world_size: int
) -> RunSpec:
    """The resolved spec of a command line, all paths in it absolute; `parts` is what preflight looks at.

    Raises UsageError, or the error of preflight's worst finding with all problems.
    """
    from rankzero.api.specs import checked
    from rankzero.cli.argv import no_spec, spec_arguments
    from rankzero.cli.output import print_warning
    from rankzero.cli.seed_flags import as_settings, require_lora
    from rankzero.spec.load import read_run_spec

    given = spec_arguments(arguments)
    if given.file is None and not any((flags.model, flags.data, *arguments)):
        raise no_spec("nothing to train")
    settings = as_settings(flags, world_size=world_size)
    reading = read_run_spec(given.file, [*given.overrides, *settings], env=os.environ)
    if reading.found is not None:
        require_lora(flags, reading.found.source("lora"))
    return checked(reading, parts, warn=print_warning)


def summary(report: dict[str, Any], run_dir: str) -> str:
    """What a person wants to know first, and what to type next."""
    from rankzero.run_dir.goodput import Goodput

    lines = [
        f"run directory  {run_dir}",
        f"train loss     {loss_in_words(report['train_loss_first'])} -> {loss_in_words(report['train_loss_last'])}",
    ]
    last = report["last_evaluation"]
    same = last is None or last["step"] == report["final_step"]
    if report["eval_loss"] is not None:
        first = report["eval_loss_first"]
        before = f"{first:.4f} -> " if first not in (None, report["eval_loss"]) else ""
        of = "" if same else f", of final/ (step {report['final_step']})"
        lines.append(f"eval loss      {before}{_scores(report)}{of}")
    if not same:
        lines.append(f"               {_scores(last)}, of the last step ({last['step']})")
    if "starts" in report.get("goodput", {}):  # else an earlier version has written the report
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        lines += in_columns("goodput        ", str(Goodput(**report["goodput"])), columns)
    spec = report["spec"]
    command, others = TASKS[spec["task"]].next_commands(run_dir, adapters=spec.get("lora") is not None)
    lines += [f"next           {command}", f"               {others}"]
    page = os.path.join(run_dir, "report.html")
    if os.path.isfile(page):
        lines.append(f"report         {page}")
    return "\n".join(lines)


def in_columns(label: str, words: str, columns: int | None) -> list[str]:
    """Words beside a label, in lines that end between words on a terminal of so many columns; one elsewhere."""
    if columns is None:
        return [label + words]
    return textwrap.wrap(words, columns, initial_indent=label, subsequent_indent=" " * len(label))


def _scores(evaluation: dict[str, Any]) -> str:
    """`0.0281 (perplexity 1.03)`, from a report or from one evaluation in it."""
    shown = [name for name in MEASURES if name != "eval_loss" and evaluation.get(name) is not None]
    more = ", ".join(f"{name} {evaluation[name]:.4g}" for name in shown)
    return loss_in_words(evaluation["eval_loss"]) + (f" ({more})" if more else "")
