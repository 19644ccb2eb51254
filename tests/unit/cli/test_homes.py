"""`~` is the home of who types, behind every flag that takes a place: no shell sees to it in `--model=~/m`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from rankzero.cli.main import app
from rankzero.doctor.places import caches
from rankzero.track.wandb import logged_in
from tests.support.cli import Cli
from tests.support.paper_model import paper_model

NO_PLACES = """--recipe --nproc-per-node --max-restarts --allow-change --target-modules --kind --system --name --engine
--host --columns --task --judge --judge-model --text --shard-size --repo --since --max-bad --as --shard --splits --split
--older-than --keep"""
LATER = {
    "train": ["--model", "--data", "--output", "--model-local-dir", "--tokenizer-local-dir"],  # fields of a run spec
    "data fire": ["--input", "--images"],  # SPLIT=PLACE
    "data volcano": ["--input", "--images"],
    "init": ["--cluster"],  # a profile's name
    "serve": ["--image"],  # of a container
}


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(words), command
        return
    for name, below in command.commands.items():
        yield from _commands(below, (*words, name))


def test_every_flag_that_takes_a_place_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    missed, known = [], 0
    for name, command in _commands(typer.main.get_command(app)):
        for parameter in command.params:
            flag = max(parameter.opts, key=len)
            if parameter.param_type_name != "option" or flag in [*NO_PLACES.split(), *LATER.get(name, ())]:
                continue
            values = command.make_context(name, [f"{flag}=~/x"], resilient_parsing=True).params
            missed += [f"{name} {flag}"] if "~/x" in str(values[parameter.name]) else []
            known += "/home/me/x" in str(values[parameter.name])
    assert not missed, "a place, or one that is none"
    assert known > 50


@pytest.mark.parametrize(
    "line",
    [
        "generate '{}/none' hello",
        "chat '{}/none'",
        "merge '{}/none' -o out",
        "export '{}/m' --to safetensors --output='{}/m'",
        "eval m --model={}/m --data=none.jsonl",
        "status '{}/none'",
        "report '{}/none'",
        "compare '{}/none' '{}/none'",
        "track sync '{}/none'",
        "pull '{}/none.yaml' file:///none",
        "train '{}/none.yaml'",
        "sweep '{}/none.yaml'",
        "serve --cluster=docker '{}/none.yaml'",
        "data check '{}/none.jsonl'",
        "data check '{}/t.jsonl'",
        "data volcano --output-dir={}/out --image-dir={}/i --input=train={}/none.jsonl",
    ],
)
def test_a_home_is_told_as_where_it_is(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path, line: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    paper_model(tmp_path / "me/m")
    (tmp_path / "me/t.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    told = [cli(line.replace("{}", home)) for home in ("~", str(tmp_path / "me"))]
    assert (told[0].code, told[0].out, told[0].err) == (told[1].code, told[1].out, told[1].err)
    assert not (tmp_path / "~").exists()


def test_a_home_of_nobody_is_a_name_like_any_other(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    """pathlib would raise for it, and that would be an internal error."""
    monkeypatch.chdir(tmp_path)
    text = "run: ~no-such-user/run.yaml\nparameters: {lora.r: {values: [2, 4]}}\n"
    Path("sweep.yaml").write_text(text, encoding="utf-8")
    for line in ("sweep sweep.yaml --dry-run", "generate ~no-such-user/r hello", "train ~no-such-user/run.yaml"):
        done = cli(line)
        assert done.code in (2, 78) and "no-such-user" in done.err, done.err
    for variable, line in (("RANKZERO_CACHE", "cache list"), ("KUBECONFIG", "list --cluster nebius-2x1")):
        monkeypatch.setenv(variable, "~no-such-user/there")
        assert "internal error" not in cli(line).err


def test_who_has_no_home_is_told_to_name_one(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    """As in a container that is started with a number that has no entry in passwd."""

    def nobody(_number: int) -> None:
        raise KeyError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in (
        "HOME",
        "XDG_CACHE_HOME",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "NETRC",
        "WANDB_API_KEY",
    ):
        monkeypatch.delenv(name, raising=False)
    for own in (None, "~", "~/cache"):
        monkeypatch.setenv("RANKZERO_CACHE", own) if own else monkeypatch.delenv("RANKZERO_CACHE")
        done = cli("cache list")
        assert done.code == 78 and "no home directory" in done.err and "RANKZERO_CACHE" in done.err, done.err
        (cache, hub) = caches({})
        assert (cache.name, cache.state, cache.what) == ("cache", "wrong", "no home directory")
        assert hub.name == "Hub's cache"
    assert not logged_in({})
    assert not (tmp_path / "~").exists()
