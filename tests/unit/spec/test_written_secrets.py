"""No secret goes from a cluster.yaml into manifests and scripts, and what is none is not taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.api.planning import cluster_from
from rankzero.errors import ConfigError
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.redaction import shaped_like_secrets
from rankzero.spec.cluster_load import load_cluster_spec
from rankzero.spec.resolve import resolve
from rankzero.spec.run_spec import RunSpec
from rankzero.spec.written_secrets import is_secret

TOKEN = "hf_canary" + "abcdefghijklmnop0123456789"
OF_LANGFUSE = "sk-lf-" + "3f2a9c1e-7b4d-4e8a-9c0f-1a2b3c4d5e6f"
HEX = "canary" + "0a" * 17
PATCH = "pod_patch={containers: [{name: node, env: [{name: %s, value: %s}]}]}"
SETUP = "slurm.setup=['%s']"
URL = "http://me:%s@mlflow:5000"


def planned(setting: str) -> None:
    """Raises ConfigError as a submit with this setting would."""
    image = [] if setting.startswith("image=") else ["image=i"]
    more = ["kind=slurm", "slurm.runtime=apptainer"] if setting.startswith("slurm") else []
    outputs = [] if setting.startswith("storage.outputs=") else ["storage.outputs={mount: /outputs, claim: runs}"]
    if more:
        outputs = ["storage.outputs={mount: /outputs, host_path: /outputs}"]
    cluster = load_cluster_spec(None, [*image, *more, *outputs, setting], env={}).spec
    run = {"name": "r", "model": {"name": "o/m"}, "data": {"train": "/outputs/t.jsonl"}}
    render(make_plan(resolve(RunSpec.model_validate(run)), cluster))


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        (f"annotations={{example.com/note: {TOKEN}}}", "annotations.example.com/note"),
        (f"annotations={{example.com/note: {OF_LANGFUSE}}}", "annotations.example.com/note"),
        (f"annotations={{note: 'sk-{'abcdefghij0123456789-' * 2}'}}", "annotations.note"),
        (f"annotations={{link: 'https://a.example/?key={HEX}'}}", "annotations.link"),
        (f"storage.outputs.url='s3://me:{'canary'}@bucket/p'", "storage.outputs.url"),
        (f"storage.outputs.url='https://b.example/p?X-Amz-Signature{'=canary'}'", "storage.outputs.url"),
        (f"slurm.image='docker://me:{'canary'}@registry.example/i'", "slurm.image"),
        (PATCH % ("X", TOKEN), "pod_patch.containers[0].env[0].value"),
        (PATCH % ("WANDB_API_KEY", "canary"), "pod_patch.containers[0].env[0].value"),
        (PATCH % ("GOOGLE_APPLICATION_CREDENTIALS", '\'{"key": "canary"}\''), "pod_patch.containers[0].env[0].value"),
        (f"pod_patch={{containers: [{{name: node, args: [--token, {TOKEN}]}}]}}", "pod_patch.containers[0].args[1]"),
        (
            f"pod_patch={{initContainers: [{{name: x, command: [sh, -c, 'WANDB_API_KEY={HEX} fetch']}}]}}",
            "pod_patch.initContainers[0].command[2]",
        ),
        (SETUP % f"export X={TOKEN}", "slurm.setup[0]"),
        (SETUP % f"module load cuda; export WANDB_API_KEY={HEX}", "slurm.setup[0]"),
        (SETUP % f'export A=b WANDB_API_KEY="{HEX}" && true', "slurm.setup[0]"),
    ],
)
def test_a_secret_anywhere_in_it_is_refused_and_not_shown(setting: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(setting)
    (told,) = caught.value.problems
    assert told.where == f"cluster.yaml {where}" and "holds a secret" in told.what
    assert "canary" not in str(caught.value)
    if "GOOGLE" in setting:  # programs show what they cannot open as a file
        assert "mounts" in told.hint and "secrets: {" not in told.hint and "valueFrom" not in told.hint
    else:
        assert "secrets: {" in told.hint and ("valueFrom" in told.hint) == where.startswith("pod_patch")


NO_SECRETS = {
    "GOOGLE_APPLICATION_CREDENTIALS": "/var/secrets/google/key.json",
    "SSH_KEY": "~/.ssh/id_ed25519",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "VAULT_TOKEN_RENEW": "true",
    "KRB_PASSWORD_PROMPT": "no",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "v2-credentials",
    "TOKEN_SERVER": "https://vault.example:8200/v1",
    "OCI_CLI_AUTH_TOKEN_LOCATION": "here",
    "TOKEN_EXPIRATION_SECONDS": "3600000",
    "SECRET_PROVIDER": "vault",
    "MY_TOKEN": "$(HF_TOKEN)",
    "HF_TOKEN": "${OTHER_TOKEN}",
    "WANDB_API_KEY": "",
}


@pytest.mark.parametrize(("name", "value"), NO_SECRETS.items())
def test_a_variable_that_holds_no_secret_though_its_name_speaks_of_one(name: str, value: str) -> None:
    """By one rule in `env` and in `pod_patch`."""
    written = value.replace("${", "$${")
    planned(PATCH % (name, f"'{written}'"))
    planned(f"env={{{name}: '{written}'}}")


@pytest.mark.parametrize(
    "value", [HEX, "hunter2", "12345678", "https://me:canary@vault.example", "https://canary@vault.example", TOKEN]
)
def test_a_variable_that_holds_one(value: str) -> None:
    assert is_secret("MY_PASSWORD", value)
    assert is_secret("AWS_SECRET_ACCESS_KEY", "/" + "canary0aB1" * 4)  # one in 64 begins as a path does
    assert not is_secret("MY_WORD", HEX)


def of_claim(claim: str) -> str:
    return f"storage.outputs={{mount: /outputs, claim: {claim}}}"


SHAPED = {  # as a token is, were it not for where it stands or what follows
    "sk-distributedtrainingcluster-1": of_claim("sk-distributedtrainingcluster-1"),
    f"sk-{'0a' * 12}": of_claim(f"sk-{'0a' * 12}"),
    "sk-learn-environment-2026": SETUP % "source /opt/envs/sk-learn-environment-2026/bin/activate",
    "sk-Team_Large-Language-Models": "slurm.account=sk-Team_Large-Language-Models",
    "pk-Rankzero_2026-11-27-cuda12": "slurm.image=/lustre/images/pk-Rankzero_2026-11-27-cuda12.sif",
    "pk-team_datasets-for-training-2026": PATCH % ("DATA", "/mnt/pk-team_datasets-for-training-2026/"),
    "rk-pool-with-many-large-gpus-1": "node_selector={pool: rk-pool-with-many-large-gpus-1}",
    "sk-a100-spot-us-central1-training": "annotations={pool: sk-a100-spot-us-central1-training}",
    "key=overview": "annotations={link: 'https://dash.example/d/x?orgId=1&key=overview'}",
    "sk-team-experiments-of-2026": "storage.outputs.url='s3://bucket/sk-team-experiments-of-2026/x'",
}


@pytest.mark.parametrize(("shape", "setting"), SHAPED.items())
def test_a_name_is_no_secret(shape: str, setting: str) -> None:
    assert list(shaped_like_secrets(f"https://x.example/{setting}"))[-1:] == [shape] and shape in setting
    planned(setting)


@pytest.mark.parametrize(
    "setting",
    [
        f"slurm.image='docker://python:3.11@sha256:{'0a' * 32}'",
        f"image='registry.example:5000/rk-team/rankzero@sha256:{'0a' * 32}'",
        PATCH % ("MLFLOW_TRACKING_URI", f"'{URL % '$(DB_PASSWORD)'}'"),
        SETUP % f"pip install --index-url {URL % '$${PIP_PASSWORD}'}",
        SETUP % f"pip install --index-url {URL % '$PIP_PASSWORD'}",
        SETUP % "export HF_TOKEN=$(cat ~/.token)",
        SETUP % 'export HF_TOKEN="$(cat ~/.token)" WANDB_API_KEY=$OTHER',
        SETUP % "export SSH_KEY=/home/me/.ssh/id TOKENIZERS_PARALLELISM=false",
        "pod_patch={initContainers: [{name: x, command: [python, -c, 'login(token=read())']}]}",
        PATCH.replace("value: %s", "valueFrom: {secretKeyRef: {name: %s, key: key}}") % ("WANDB_API_KEY", "w"),
    ],
)
def test_a_reference_or_a_digest_is_none(setting: str) -> None:
    planned(setting)


def test_runs_that_are_under_way_are_found_by_the_file_of_an_older_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(
        "image: i\npod_patch: {containers: [{name: node, env: [{name: WANDB_API_KEY, value: canary}]}]}\n"
    )
    assert cluster_from(None).image == "i"
