"""The pages under docs/recipes: every name of the setups that recipes replace is there, and what they say exists.

`tests/fixtures/seed_names` has those names, one a line: files, flags, variables, paths, commands.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from rankzero.cli.argv import spread_values
from rankzero.cli.init import RECIPES
from rankzero.cli.main import app
from rankzero.spec.cluster_load import profiles
from rankzero.spec.cluster_spec import ClusterSpec
from rankzero.spec.fields import all_fields
from rankzero.spec.run_spec import RunSpec

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "recipes"
NAMES = ROOT / "tests" / "fixtures" / "seed_names"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
TEXTS = {page: (FOLDER / page).read_text(encoding="utf-8") for page in PAGES}
WHERE = {
    "1-train-framework": ["lora-jsonl.md"],
    "2-pytorchjob": ["llama-pytorchjob.md"],
    "3-ms-swift": [
        "from-ms-swift.md",
        "qwen3-8b-alpaca-2gpu.md",
        "qwen3-vl-32b-fire-4gpu.md",
        "qwen3-vl-32b-volcano-4gpu.md",
    ],
    "4-distilbert": ["distilbert-sst2.md"],
    "5-kubeflow": ["from-kubeflow-manifests.md", "qwen3-30b-qlora-2x8.md", "qwen3-30b-full-2x8.md"],
}
"""Each list of names, and the pages that say where they went."""

_SECTIONS = ("model", "data", "lora", "train", "eval", "checkpoint", "tracking")
_CLUSTER_SECTIONS = ("resources", "storage", "secrets", "env", "spread", "queue", "service_account")
_FILE_NAMES = (".json", ".yaml", ".jsonl", ".safetensors", ".model", ".md", ".txt", ".py", ".zip")


def inline(text: str) -> list[str]:
    """What stands between backticks, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """The words after `rankzero` of each command, in blocks and in running text."""
    return [*typed(text), *in_words(inline(text))]


def typed(text: str) -> list[list[str]]:
    """Those in blocks alone: whole commands."""
    return list(in_words(line for block in blocks(text) for line in re.sub(r"\\\n", " ", block).splitlines()))


def in_words(lines: Iterable[str]) -> Iterator[list[str]]:
    """The words after `rankzero` of each command in the lines, without comments and variables before it."""
    for line in lines:
        for part in re.split(r"&&|;|\||>", re.sub(r"(^|\s)#\s.*", "", line).replace("…", "x")):
            words = shlex.split(part)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words.pop(0)
            if words and words[0] == "rankzero":
                yield words[1:]


@functools.cache
def the_app() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str], *, whole: bool = True) -> dict[str, Any]:
    """What the command line makes of it. Raises what it raises for an unknown command or option; of a `whole` command
    also for what is missing or wrong."""
    command = the_app()
    args = spread_values(words)
    while hasattr(command, "commands"):
        name = args.pop(0)
        assert name in command.commands, f"there is no command {' '.join(words)}"
        command = command.commands[name]
    context = command.make_context("rankzero", args, resilient_parsing=not whole)
    return dict(context.params)


@pytest.mark.parametrize("names", WHERE)
def test_every_name_is_mentioned(names: str) -> None:
    wanted = (NAMES / f"{names}.txt").read_text(encoding="utf-8").splitlines()
    text = "\n".join(TEXTS[page] for page in WHERE[names])
    flat = " ".join(text.split())
    missing = [name for name in wanted if not _mentions(flat, name)]
    assert len(wanted) > 50
    assert missing == []


def _mentions(text: str, name: str) -> bool:
    """The name itself, not a longer one that holds it."""
    start = r"(?<![\w-])" if name[0].isalnum() or name[0] == "-" else r"(?<![\w])" if name[0] == "/" else ""
    end = r"(?![\w-])" if name[-1].isalnum() else ""
    return re.search(start + re.escape(name) + end, text) is not None


def test_every_list_has_its_pages_and_every_page_is_listed() -> None:
    assert {path.stem for path in NAMES.iterdir()} == set(WHERE)
    assert {f"{name}.md" for name in RECIPES} <= set(PAGES)
    for page in PAGES:
        assert page == "README.md" or f"({page})" in TEXTS["README.md"], page


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_has_the_commands_from_nothing_to_a_result(recipe: str) -> None:
    lines = typed(TEXTS[f"{recipe}.md"])
    assert any(words[:3] == ["init", "--recipe", recipe] for words in lines)
    first = {words[0] for words in lines}
    assert {"init", "data", "submit", "status"} <= first
    assert first & {"generate", "predict"}
    assert "## Other hardware" in TEXTS[f"{recipe}.md"]


def test_the_flags_of_the_smoke_test_are_those_of_the_script_it_replaces() -> None:
    flags = "--epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42"
    assert parse(["smoke", *flags.split()]) == parse(["smoke"])
    text = TEXTS["lora-jsonl.md"].split("### train.py")[1]
    assert all(flag in text for flag in flags.split()[::2]) and "not yet" not in text


ANSWERS = [
    ("lora-jsonl.md", "MLFLOW_TRACKING_URI", "tracking.mlflow=true"),
    ("from-kubeflow-manifests.md", "Langfuse", "tracking.langfuse=true"),
    ("from-kubeflow-manifests.md", "katib/katib-experiment.yaml", "rankzero sweep sweep.yaml --cluster"),
    ("from-ms-swift.md", "k8s/jupyter-2gpu-test.yaml", "rankzero dev up"),
    ("from-ms-swift.md", "jupyter lab --ip=0.0.0.0", "rankzero dev jupyter"),
    ("from-ms-swift.md", "kubectl port-forward vlm-jupyter", "rankzero dev jupyter"),
    ("from-ms-swift.md", "nvidia-smi dmon -s u", "rankzero dev gpu --name"),
    ("distilbert-sst2.md", "xargs -I POD kubectl exec -n finetune POD -- nvidia-smi", "rankzero dev gpu --name"),
    ("distilbert-sst2.md", "nebius mk8s cluster get-credentials", "rankzero cluster credentials -f"),
    ("distilbert-sst2.md", "nebius mk8s node-group delete", "rankzero cluster delete -f"),
    ("lora-jsonl.md", "python k8s-training/k8s/train.py", "rankzero smoke"),
    ("lora-jsonl.md", "torchrun … k8s-training/k8s/train.py", "rankzero smoke --nproc"),
]
"""Rows that ask for a tool, and how the command or field begins that stands beside them."""


@pytest.mark.parametrize(("page", "there", "here"), ANSWERS)
def test_a_row_that_asks_for_a_tool_names_the_command(page: str, there: str, here: str) -> None:
    rows = [line.strip("|").split(" | ") for line in TEXTS[page].splitlines() if line.startswith("|")]
    answers = [row[1] for row in rows if any(name.startswith(there) for name in inline(row[0])) or there in row[0]]
    assert len(answers) >= 1, there
    assert any(name.startswith(here) for name in inline(answers[0])), answers


def test_making_a_cluster_is_one_command() -> None:
    made = TEXTS["distilbert-sst2.md"].partition("### Making the cluster")[2].partition("### ")[0]
    assert "nebius mk8s cluster create" in made and "`rankzero cluster create -f infra.yaml` runs all of it" in made


@pytest.mark.parametrize("page", PAGES)
def test_commands_parse(page: str) -> None:
    whole = typed(TEXTS[page])
    found = commands(TEXTS[page])
    assert found
    for words in found:
        try:
            parsed = parse(words, whole=words in whole)
        except Exception as error:  # the parser's exceptions have moved between its versions
            raise AssertionError(f"rankzero {' '.join(words)}: {error}") from error
        if parsed.get("recipe") is not None:
            assert parsed["recipe"] in RECIPES
        cluster = parsed.get("cluster")
        assert cluster is None or cluster == "cluster.yaml" or cluster in (*profiles(), "NAME"), words


@pytest.mark.parametrize("page", PAGES)
def test_fields_exist(page: str) -> None:
    """Of both specs: `train.sharding`, `data.train: x`, and `key=value` of commands."""
    run, cluster = set(all_fields(RunSpec)), set(all_fields(ClusterSpec))
    named = [name for words in inline(TEXTS[page]) for name in _dotted(words)]
    named += [word.partition("=")[0] for words in commands(TEXTS[page]) for word in words if _is_override(word)]
    for name in named:
        if name.startswith("cluster."):
            assert name.removeprefix("cluster.") in cluster, name
        elif name.split(".")[0] in _CLUSTER_SECTIONS:
            assert _generic(name) in cluster, name
        else:
            assert name in run, name


def _dotted(words: str) -> list[str]:
    """Fields in a piece of code: it begins with one, and is one, a setting or an override."""
    found = re.match(r"([a-z_]+(?:\.[a-z_]+)+)(?=$|[:= ])", words)
    if found is None or words.endswith(_FILE_NAMES):
        return []
    first = found[1].split(".")[0]
    return [found[1]] if first in (*_SECTIONS, *_CLUSTER_SECTIONS, "cluster") else []


def _is_override(word: str) -> bool:
    return re.match(r"[a-z_.]+=", word) is not None and "/" not in word.partition("=")[0] and word[:5] != "coco="


def _generic(name: str) -> str:
    """`storage.cache.size` as `storage.*.size`."""
    first, *rest = name.split(".")
    if first not in ("storage", "secrets", "env") or not rest:
        return name
    return ".".join([first, "*", *rest[1:]]) if len(rest) > 1 else first


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXTS[page]):
        assert target.startswith("https://") or (FOLDER / target).exists(), target


def test_the_common_sequence_can_be_typed_as_it_stands(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing beside what `init` writes: rows of one's own are another recipe's."""
    monkeypatch.chdir(tmp_path)
    inits = {tuple(words) for words in typed(TEXTS["README.md"]) if words[0] == "init" and "-o" in words}
    (init,) = inits  # the same wherever the page has it
    assert cli(shlex.join(init)).code == 0
    monkeypatch.chdir(init[init.index("-o") + 1])
    sent = [words for words in commands(TEXTS["README.md"]) if words[0] in ("render", "submit")]
    assert len(sent) == 3
    for words in sent:
        done = cli(shlex.join([*words, *(["--dry-run"] if words[0] == "submit" else [])]))
        assert done.code == 0, done.err
    name = re.findall(r"^name: (\S+)", Path("run.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    asked = ("status", "logs", "cancel", "delete", "pull")
    of_a_run = [words[1] for words in typed(TEXTS["README.md"]) if words[0] in asked]
    assert len(of_a_run) == 6 and set(of_a_run) == set(name)


def test_without_storage_that_many_hosts_mount_claims_ask_for_none(cli: Any, tmp_path: Path) -> None:
    """Of the bullet's changes alone: nothing else of cluster.yaml is touched."""
    (line,) = re.findall(r"^- No ReadWriteMany storage: .*?`(.*?)`", TEXTS["llama-pytorchjob.md"], re.MULTILINE)
    assert cli(f"init --recipe llama-pytorchjob -o {tmp_path / 'l'}").code == 0
    done = cli(f"render {tmp_path / 'l/run.yaml'} {line}")
    assert done.code == 0, done.err
    made = list(yaml.safe_load_all(done.out))
    claims = [one["spec"]["accessModes"] for one in made if one["kind"] == "PersistentVolumeClaim"]
    assert claims == [["ReadWriteOnce"], ["ReadWriteOnce"]]
    (job,) = [one for one in made if one["kind"] == "PyTorchJob"]
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Master"]


@pytest.mark.parametrize("profile", [name for name in profiles() if name not in ("slurm", "docker")])
def test_a_shell_where_results_are_takes_no_gpus_and_no_whole_node(cli: Any, profile: str) -> None:
    (words,) = [words for words in typed(TEXTS["README.md"]) if words[:2] == ["dev", "up"]]
    done = cli(f"{shlex.join(words)} --cluster {profile} --dry-run")
    assert done.code == 0, done.err
    (made,) = [one for one in yaml.safe_load_all(done.out) if one["kind"] == "StatefulSet"]
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert made["spec"]["replicas"] == 1
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "4Gi"}
    assert set(container["resources"]["limits"]) == {"memory"}
    assert "outputs" in [mount["name"] for mount in container["volumeMounts"]]


def test_files_that_pages_name_are_shipped() -> None:
    for page in ("qwen3-vl-32b-fire-4gpu.md", "qwen3-vl-32b-volcano-4gpu.md"):
        lines = [line for block in blocks(TEXTS[page]) for line in block.splitlines() if line.startswith("kubectl")]
        of_job = [line for line in lines if "job" in line]  # its file names no namespace, and the rendered ones do
        assert len(of_job) == 2 and all(" -n default " in line for line in of_job)
        (job,) = set(re.findall(r"job/([a-z-]+)", TEXTS[page]))
        text = (ROOT / "src/rankzero/recipes" / page.removesuffix(".md") / "data-job.yaml").read_text()
        assert yaml.safe_load(text)["metadata"]["name"] == job
        script = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["args"][0]
        (line,) = re.findall(r"^rankzero (.*)", script.replace("\\\n", " "), flags=re.MULTILINE)
        assert parse(shlex.split(line))["skip_images"] is False
