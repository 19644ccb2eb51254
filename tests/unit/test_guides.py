"""The guides for users: every error has its row, every command, flag and field exists, every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

from rankzero import errors
from rankzero.cli.main import app
from rankzero.errors import INTERRUPTED, NEVER_RETRIED, ExitCode, RankzeroError
from rankzero.spec.fields import all_fields
from rankzero.spec.run_spec import RunSpec

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = (
    "troubleshooting.md",
    "using.md",
    "python.md",
    "doctor.md",
    "storage.md",
    "provision.md",
    "slurm.md",
    "scale.md",
    "dev.md",
    "getting-started.md",
    "preferences.md",
)
TROUBLE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
SEEDS_ENTRIES = (
    "401 Gated repo",
    "CUDA OOM",
    "DDP hangs",
    "Missing local files",
    "NCCL init failure",
    "Rank/GPU mismatch",
    "DDP hangs at initialization",
    "Model/Dataset Download Fails",
    "Slow Training",
    "Checklist",
    "Pending pods",
    "verify IB drivers",
    "Slow startup",
    "served-model-name",
)
"""What the guides of the setups that recipes replace have under troubleshooting, common issues and the like."""


def rows() -> list[list[str]]:
    """Of the table of exit codes: its cells."""
    section = TROUBLE.split("## By exit code")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (\d+ \|.*)\|$", section, flags=re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_every_error_has_its_code_cause_and_fix() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, RankzeroError)]
    table = {cells[1].strip("`"): cells for cells in rows() if cells[1]}
    assert {one.__name__ for one in classes} | {"KeyboardInterrupt"} == set(table)
    for one in classes:
        code, _, meaning, causes, fix, again = table[one.__name__]
        assert int(code) == one.exit_code and meaning and causes and fix
        assert again.startswith("never") == (one.exit_code in NEVER_RETRIED)
    assert {int(cells[0]) for cells in rows()} == {*map(int, ExitCode), INTERRUPTED}


@pytest.mark.parametrize("entry", SEEDS_ENTRIES)
def test_what_other_setups_say_is_answered(entry: str) -> None:
    section = TROUBLE.split("## What other setups' guides say")[1]
    lines = [line.split("|") for line in section.splitlines() if line.startswith("|")]
    answers = [cells[2].strip() for cells in lines if entry in cells[1]]
    assert answers and all(answers)


@pytest.mark.parametrize("page", GUIDES)
def test_commands_and_flags_exist(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    group = typer.main.get_command(app)
    shown = [found for line in re.findall(r"[^`\n]*rankzero [a-z][^`\n]*", text) for found in re.split(r"[|;&]", line)]
    typed = [words for found in shown if (words := re.findall(r"rankzero ([a-z]+)(.*)", found.split(" -- ")[0]))]
    for [(name, rest), *_] in typed:
        command = group.commands.get(name)  # type: ignore[attr-defined]
        if command is None:
            continue
        if hasattr(command, "commands") and (inner := re.match(r" ([a-z]+)", rest)):
            command = command.commands.get(inner[1], command)
        flags = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for flag in re.findall(r"(?<=\s)--[a-z-]+", rest):
            assert flag in {*flags, "--help"}, f"{page}: rankzero {name} {flag}"
    if page == "using.md":
        assert {"chat", "serve", "eval"} <= {name for [(name, _), *_] in typed}


@pytest.mark.parametrize(
    ("page", "typed", "ours"),
    [
        ("llama-pytorchjob.md", "kubectl cp trainer/model_train_lora.py ftjb-master-0", "rankzero dev sync"),
        ("llama-pytorchjob.md", "pkill -f torchrun", "rankzero dev run"),
        ("llama-pytorchjob.md", "nohup torchrun --nnodes=2 --node_rank=0", "rankzero dev run -- torchrun"),
        ("from-ms-swift.md", "kubectl apply -f k8s/jupyter-2gpu-test.yaml", "rankzero dev up"),
        ("from-ms-swift.md", "kubectl exec -it vlm-jupyter -- bash", "rankzero dev shell"),
        ("from-ms-swift.md", "jupyter lab --ip=0.0.0.0 --port=8888 --no-browser --allow-root", "rankzero dev jupyter"),
        ("from-ms-swift.md", "kubectl port-forward vlm-jupyter 8888:8888", "rankzero dev jupyter"),
        ("from-ms-swift.md", "jupyter lab notebooks/dataset_analysis.ipynb", "rankzero dev jupyter"),
        ("from-ms-swift.md", "nvidia-smi dmon -s u", "rankzero dev gpu --name"),
        ("distilbert-sst2.md", "kubectl exec -n finetune POD -- nvidia-smi", "rankzero dev gpu --name"),
    ],
)
def test_what_was_done_by_hand_in_pods_names_its_command(page: str, typed: str, ours: str) -> None:
    lines = (DOCS / "recipes" / page).read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ", 1) for line in lines if line.startswith("| ") and " | " in line]
    assert [ours in right for left, right in rows if typed in left] == [True]
    group = typer.main.get_command(app).commands["dev"]  # type: ignore[attr-defined]
    assert ours.split()[2] in group.commands


@pytest.mark.parametrize("page", GUIDES)
def test_fields_exist(page: str) -> None:
    sections = r"`((?:model|data|lora|train|eval|checkpoint)\.(?!jsonl?\b|yaml)[a-z_]+)"
    named = set(re.findall(sections, (DOCS / page).read_text(encoding="utf-8")))
    fields = {re.sub(r"\[.*?\]", "", name) for name in all_fields(RunSpec)}
    assert named <= fields, named - fields


@pytest.mark.parametrize("page", GUIDES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]*)(?:#[^)]*)?\)", (DOCS / page).read_text(encoding="utf-8")):
        assert not target or (DOCS / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", GUIDES)
def test_anchors_are_headings(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", (DOCS / page).read_text(encoding="utf-8")):
        text = (DOCS / (target or page)).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in slugs, f"{page}: {target}#{anchor}"
