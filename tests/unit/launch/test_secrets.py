"""Env files and Secrets: what is read, what is refused, and that no value ever shows."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankzero.errors import ConfigError
from rankzero.hub_variables import adopt_hub_variables
from rankzero.launch.secrets import Values, choose, from_environment, parse_env, read_env_file, secret_manifest
from rankzero.spec.cluster_spec import SecretRef

CANARY = "canary-5d41402abc4b2a76"
REFS = {"HF_TOKEN": SecretRef(name="hf-token"), "WANDB_API_KEY": SecretRef(name="keys", key="wandb")}


def plain(values: Values) -> dict[str, str]:
    return {name: value.get_secret_value() for name, value in values.items()}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=b", "b"),
        ("  A=b  ", "b"),
        ("export A=b", "b"),
        ("A=b # a comment", "b"),
        ("A=b#not-a-comment", "b#not-a-comment"),
        ("A=", ""),
        ("A= # nothing", ""),
        ("A='b c'", "b c"),
        ("A='$b' # comment", "$b"),
        ('A="b c"', "b c"),
        (r'A="a\n\"b\" \\ \$"', 'a\n"b" \\ $'),
        ("A=a=b==", "a=b=="),
        ("\ufeffA=b\r\n", "b"),
        ("# comment\n\nA=b\n", "b"),
    ],
)
def test_what_is_read(tmp_path: Path, text: str, value: str) -> None:
    path = tmp_path / ".env"
    path.write_bytes(text.encode())
    assert plain(read_env_file(path)) == {"A": value}


@pytest.mark.parametrize(
    "line",
    [
        f"{CANARY}",
        f"A {CANARY}",
        f"A = {CANARY}",
        f"1A={CANARY}",
        f"A-B={CANARY}",
        f"A='{CANARY}",
        f'A="{CANARY}',
        f"A='{CANARY}' {CANARY}",
        f"A={CANARY} {CANARY}",
        f"A=${CANARY}",
        f'A="${CANARY}"',
        f"A={CANARY}'x'",
        f'A="\\x{CANARY}"',
        f"A=`{CANARY}`",
        f"A={CANARY}\nA={CANARY}",
    ],
)
def test_what_is_refused_names_its_line_and_no_value(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_env(f"OK=1\n{line}\n", ".env")
    assert caught.value.problems[0].where in (".env:2", ".env:3")
    assert CANARY not in repr(caught.value) + str(caught.value)


def test_all_bad_lines_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_env("a b\nA=1\nc d\n", ".env")
    assert [problem.where for problem in caught.value.problems] == [".env:1", ".env:3"]


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b"A=b\nB=" + CANARY.encode() + b"\xff\n")
    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        read_env_file(path)
    assert caught.value.problems[0].where.endswith(":2")
    assert caught.value.__cause__ is None


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_env_file(tmp_path / ".env")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=40))
def test_single_quotes_keep_anything(value: str) -> None:
    value = value.replace("'", "")
    assert plain(parse_env(f"A='{value}'", ".env")) == {"A": value}


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        values = parse_env(f"A={text}", ".env")
    except ConfigError as error:
        assert error.problems
    else:
        assert "A" in values


def test_values_do_not_show_in_a_repr() -> None:
    values = parse_env(f"A={CANARY}", ".env")
    assert CANARY not in repr(values) + str(values)


def test_values_go_where_cluster_yaml_refers_to() -> None:
    values = parse_env("HF_TOKEN=t\nWANDB_API_KEY=w\nOTHER=o", ".env")
    choice = choose(REFS, values, None, ".env")
    assert {name: plain(each) for name, each in choice.secrets.items()} == {
        "hf-token": {"token": "t"},
        "keys": {"wandb": "w"},
    }
    assert choice.unused == ("OTHER",)


def test_only_what_is_asked_for() -> None:
    choice = choose(REFS, parse_env("HF_TOKEN=t\nWANDB_API_KEY=w", ".env"), ["HF_TOKEN"], ".env")
    assert list(choice.secrets) == ["hf-token"]


def test_what_has_no_value() -> None:
    values = parse_env("HF_TOKEN=t", ".env")
    assert choose(REFS, values, None, ".env").missing == ("WANDB_API_KEY",)
    with pytest.raises(ConfigError, match="WANDB_API_KEY is not set"):
        choose(REFS, values, ["WANDB_API_KEY"], ".env")
    with pytest.raises(ConfigError, match="HF_TOKEN is empty"):
        choose(REFS, parse_env("HF_TOKEN=", ".env"), None, ".env")
    with pytest.raises(ConfigError, match="nothing in it that cluster.yaml refers to"):
        choose(REFS, parse_env("X=1", ".env"), None, ".env")


OLD = {"HUGGINGFACE_HUB_TOKEN": "b", "HUGGINGFACE_TOKEN": "c"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"HF_TOKEN": "a", **OLD}, "HF_TOKEN"),
        ({"HF_TOKEN": "", **OLD}, "HUGGINGFACE_HUB_TOKEN"),
        ({"HF_TOKEN": " ", "hf_token": "d"}, "hf_token"),
        (OLD, "HUGGINGFACE_HUB_TOKEN"),
        ({**OLD, "HUGGINGFACE_HUB_TOKEN": ""}, "HUGGINGFACE_TOKEN"),
        ({**OLD, "HUGGING_FACE_HUB_TOKEN": "e"}, "HUGGING_FACE_HUB_TOKEN"),
    ],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_of_a_tokens_names_the_one_counts_that_the_hubs_client_would_read(
    given: dict[str, str], name: str, reverse: bool
) -> None:
    """In a file and in the environment alike, and in any order."""
    given = dict(sorted(given.items(), reverse=reverse))
    refs, in_pod = {"HF_TOKEN": SecretRef(name="t")}, {**given}
    choice = choose(
        refs, parse_env("".join(f"{one}='{value}'\n" for one, value in given.items()), ".env"), None, ".env"
    )
    assert plain(choice.secrets["t"]) == {"token": given[name]}
    assert choice.unused == tuple(sorted(one for one in given if one not in ("HF_TOKEN", "hf_token", name)))
    assert plain(from_environment(refs, given)) == {"HF_TOKEN": given[name]}
    if name != "hf_token" and given.get("HF_TOKEN") != " ":
        adopt_hub_variables(in_pod)
        assert given[name] == (in_pod.get("HF_TOKEN") or in_pod["HUGGING_FACE_HUB_TOKEN"]), "as in a pod"


def test_the_environment() -> None:
    assert plain(from_environment(REFS, {"HF_TOKEN": "t", "PATH": "/bin"})) == {"HF_TOKEN": "t"}


def test_the_secret() -> None:
    manifest = secret_manifest("hf-token", "train", parse_env("token=t", ".env"))
    assert manifest["data"] == {"token": base64.b64encode(b"t").decode()}
    assert manifest["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rankzero"
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        secret_manifest("s", "train", parse_env(f"A={'x' * (1024 * 1024 + 1)}", ".env"))
