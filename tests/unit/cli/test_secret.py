"""`rankzero secret set`: values reach the cluster, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_cluster import as_text, plain
from tests.unit.cli.conftest import Place

CANARY = "canary-5d41402abc4b2a76"
OTHER = "canary-b9719d911017c592"


SECRETS = "secrets: {HF_TOKEN: {name: hf-token, key: token}, WANDB_API_KEY: {name: keys, key: wandb}}\n"


@pytest.fixture(autouse=True)
def secrets(place: Place) -> None:
    with Path("cluster.yaml").open("a", encoding="utf-8") as file:
        file.write(SECRETS)


@pytest.fixture
def env_file() -> None:
    Path(".env").write_text(f"HF_TOKEN={CANARY}\nexport WANDB_API_KEY='{OTHER}'\nUNUSED=1\n", encoding="utf-8")


def nothing_shows(place: Place) -> bool:
    """No canary in anything printed, nor in any file here besides the env file."""
    printed = "".join(done.out + done.err for done in place.done)
    files = "".join(path.read_text() for path in place.directory.iterdir() if path.is_file() and path.name != ".env")
    return not any(value in printed + files for value in (CANARY, OTHER))


def test_what_cluster_yaml_refers_to(place: Place, env_file: None) -> None:
    done = place("secret set --from-env-file .env")
    assert done.code == 0, done.err
    assert done.out == "created Secret/hf-token in train: token\ncreated Secret/keys in train: wandb\n"
    assert plain(place.cluster.get("secrets", "hf-token")) == {"token": CANARY}
    assert plain(place.cluster.get("secrets", "keys")) == {"wandb": OTHER}
    labels = place.cluster.get("secrets", "keys")["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "rankzero"
    assert nothing_shows(place)


def test_again_and_beside_other_keys(place: Place, env_file: None) -> None:
    place("secret set --from-env-file .env --name all")
    Path(".env").write_text("HF_TOKEN=new\n", encoding="utf-8")
    done = place("secret set --from-env-file .env --name all --json")
    assert json.loads(done.out) == {"all": {"outcome": "updated", "keys": ["HF_TOKEN"]}}
    kept = plain(place.cluster.get("secrets", "all"))
    assert kept == {"HF_TOKEN": "new", "WANDB_API_KEY": OTHER, "UNUSED": "1"}
    assert nothing_shows(place)


def test_from_the_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    done = place("secret set HF_TOKEN --from-env")
    assert done.code == 0, done.err
    assert plain(place.cluster.get("secrets", "hf-token")) == {"token": CANARY}
    assert nothing_shows(place)


@pytest.mark.parametrize("variable", ["HF_TOKEN", "hf_token"])
@pytest.mark.parametrize("arguments", ["", "HF_TOKEN ", "hf_token "])
def test_small_letters_mean_the_same_variable(
    place: Place, monkeypatch: pytest.MonkeyPatch, arguments: str, variable: str
) -> None:
    text = Path("cluster.yaml").read_text(encoding="utf-8")
    Path("cluster.yaml").write_text(text.replace("{HF_TOKEN:", "{hf_token:"), encoding="utf-8")
    Path(".env").write_text(f"{variable}={CANARY}\n", encoding="utf-8")
    assert place(f"secret set {arguments}--from-env-file .env").code == 0
    assert plain(place.cluster.get("secrets", "hf-token")) == {"token": CANARY}
    monkeypatch.setenv(variable, OTHER)
    done = place(f"secret set {arguments}--from-env")
    assert done.code == 0 and "HF_TOKEN" not in done.err, done.err
    assert plain(place.cluster.get("secrets", "hf-token")) == {"token": OTHER}
    assert nothing_shows(place)


@pytest.mark.parametrize("old", ["HUGGINGFACE_HUB_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
@pytest.mark.parametrize("arguments", ["", "HF_TOKEN "])
def test_a_token_under_another_of_its_names_is_the_one_that_cluster_yaml_refers_to(
    place: Place, monkeypatch: pytest.MonkeyPatch, arguments: str, old: str
) -> None:
    Path(".env").write_text(f"{old}={CANARY}\n", encoding="utf-8")
    done = place(f"secret set {arguments}--from-env-file .env")
    assert done.code == 0, done.err
    assert plain(place.cluster.get("secrets", "hf-token")) == {"token": CANARY}
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv(old, OTHER)
    assert place(f"secret set {arguments}--from-env").code == 0
    assert plain(place.cluster.get("secrets", "hf-token")) == {"token": OTHER}
    Path(".env").write_text(f"{old}=stale\nHF_TOKEN={CANARY}\n", encoding="utf-8")
    assert place(f"secret set {arguments}--from-env-file .env").code == 0
    assert plain(place.cluster.get("secrets", "hf-token")) == {"token": CANARY}
    assert nothing_shows(place)


@pytest.mark.parametrize(
    "arguments",
    [
        f"HF_TOKEN={CANARY} --from-env",
        f"{CANARY} --from-env",
        f"{CANARY} --from-env-file .env",
        f"{CANARY} --from-env --name all",
        f"{CANARY} --from-env-file .env --name all",
    ],
)
def test_a_value_on_the_command_line_is_refused_in_silence(place: Place, env_file: None, arguments: str) -> None:
    done = place(f"secret set {arguments}")
    assert done.code == 2
    assert place.cluster.requests == []
    assert nothing_shows(place)


@pytest.mark.parametrize("arguments", ["", "--from-env --from-env-file .env", "--from-env --name all"])
def test_it_is_said_what_is_missing(place: Place, env_file: None, arguments: str) -> None:
    assert place(f"secret set {arguments}").code == 2


def test_a_bad_file_names_lines_only(place: Place) -> None:
    Path(".env").write_text(f"HF_TOKEN = {CANARY}\n", encoding="utf-8")
    done = place("secret set --from-env-file .env")
    assert done.code == 78
    assert ".env:1" in done.err
    assert nothing_shows(place)


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("status", [403, 422, 500])
def test_a_server_that_quotes_what_it_refuses(
    place: Place, env_file: None, monkeypatch: pytest.MonkeyPatch, status: int, debug: str
) -> None:
    import base64

    monkeypatch.setenv("RANKZERO_DEBUG", debug)
    message = f"denied: {CANARY} {base64.b64encode(CANARY.encode()).decode()} is weak"
    place.cluster.fail("*", "/secrets", status=status, reason="Invalid", message=message, times=99)
    done = place("secret set HF_TOKEN --from-env-file .env")
    assert done.code != 0
    assert "is weak" in done.err
    assert nothing_shows(place)
    assert base64.b64encode(CANARY.encode()).decode() not in done.err


def test_403_says_what_to_ask_for(place: Place, env_file: None) -> None:
    place.cluster.forbidden.add(("patch", "secrets"))
    done = place("secret set --from-env-file .env")
    assert done.code == 77
    assert "not permitted to patch secrets in namespace train" in done.err


def test_docker_has_no_secrets_to_set(place: Place, env_file: None) -> None:
    Path("cluster.yaml").write_text("image: i\nkind: docker\n", encoding="utf-8")
    done = place("secret set --from-env-file .env")
    assert done.code == 2 and "environment" in done.err


def test_a_secret_goes_into_its_own_requests_only(
    place: Place, env_file: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set, submit, look and delete: the value is in the Secret's requests, encoded, and in no other."""
    monkeypatch.setenv("HF_TOKEN", CANARY)
    for line in ("secret set --from-env-file .env", "submit run.yaml", "status r", "describe r --json", "logs r"):
        assert place(line).code == 0, place.done[-1].err
    assert place("delete r --yes").code == 0
    others = [request for request in place.cluster.requests if "/secrets" not in request.path]
    assert CANARY not in as_text(place.cluster.requests)
    assert len(others) > 10 and "Y2FuYXJ5" not in as_text(others)
    assert nothing_shows(place)


def test_help_answers_without_a_client() -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom rankzero.cli import main\n"
        "heavy = {'lightkube', 'httpx2', 'torch', 'rankzero.launch.backends.kubernetes.backend'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
