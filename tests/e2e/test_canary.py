"""A secret goes through every door there is, and comes out nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

CANARY = "canary-5up3r-s3cr3t"
pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment of every command, and in an env file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANKZERO_DEBUG", "1")  # tracebacks too
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, CANARY)
    (tmp_path / ".env").write_text(f'HF_TOKEN="{CANARY}"\n')


def everything(folder: Path, but: str = ".env") -> str:
    return "\n".join(
        path.read_bytes().decode("utf-8", "replace")
        for path in folder.rglob("*")
        if path.is_file() and path.name != but
    )


def run_yaml(tiny: Path, text: str = "") -> None:
    rows = '{"prompt": "2+2", "completion": "4"}\n' * 8
    Path("train.jsonl").write_text(rows)
    Path("run.yaml").write_text(
        f"name: r\nmodel: {{name: '{tiny}', dtype: float32}}\ndata: {{train: train.jsonl}}\nlora: {{}}\n"
        f"train: {{max_steps: 2, global_batch_size: 4}}\n{text}"
    )


def test_a_run_keeps_nothing_of_the_environments_secrets(tmp_path: Path, tiny: Path, cli: Any) -> None:
    run_yaml(tiny)
    done = cli("train run.yaml --nproc-per-node 1 --log-level DEBUG --report-json report.json --json")
    assert done.code == 0, done.err
    assert CANARY not in done.out + done.err + everything(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "render run.yaml --cluster docker",
        "render run.yaml --cluster infiniband-2x8 data.train=/mnt/datasets/x.jsonl model.name=org/m -o out",
        f"render run.yaml --cluster docker cluster.env.HF_TOKEN={CANARY}",
        f"render run.yaml --cluster docker cluster.secrets.HF_TOKEN={CANARY}",
        "render run.yaml --cluster docker 'name=${HF_TOKEN}'",
        "render run.yaml --cluster docker 'cluster.env.X=${WANDB_API_KEY}'",
        "train run.yaml 'output_dir=${AWS_SECRET_ACCESS_KEY}'",
        f"secret set HF_TOKEN={CANARY} --cluster docker",
        "secret set --cluster docker --from-env-file .env",
        "data check run.yaml",
    ],
)
def test_no_command_shows_one(line: str, tmp_path: Path, tiny: Path, cli: Any) -> None:
    run_yaml(tiny)
    Path("model").symlink_to(tiny)
    done = cli(line.replace("render run.yaml --cluster docker", "render run.yaml --cluster docker model.name=org/m"))
    assert CANARY not in done.out + done.err + everything(tmp_path)
    expects_refusal = CANARY in line or "${" in line or "secret set" in line
    assert (done.code != 0) == expects_refusal or line.startswith("data check"), done


def test_a_spec_that_asks_for_one_is_refused(tmp_path: Path, tiny: Path, cli: Any) -> None:
    run_yaml(tiny, "output_dir: runs-${HF_TOKEN}\n")
    done = cli("train run.yaml")
    assert done.code == 78
    assert "HF_TOKEN holds a secret" in done.err
    assert CANARY not in done.out + done.err + everything(tmp_path)
