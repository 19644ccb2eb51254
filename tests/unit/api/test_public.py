"""What `import rankzero` gives, and what it costs."""

from __future__ import annotations

import doctest
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import rankzero
from rankzero import errors
from tests.support.paper_model import paper_model
from tests.support.run_directory import run_directory
from tests.support.unreadable import close

HEAVY = ("torch", "transformers", "peft", "numpy", "pandas", "pydantic", "lightkube", "typer", "rich", "yaml")
IMPORTED = """
import json, sys
import rankzero
first = sorted(sys.modules)
names = rankzero.__all__
for name in names:
    getattr(rankzero, name)
rankzero.data.check, rankzero.data.show
print(json.dumps([first, sorted(sys.modules), names]))
"""


def test_importing_is_light_and_so_is_every_name() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, timeout=300)
    first, later, names = json.loads(done.stdout)
    assert not {name for name in first if name.split(".")[0] in HEAVY}
    assert [name for name in first if name.startswith("rankzero")] == ["rankzero"]
    assert not {"torch", "transformers", "peft", "numpy", "pandas"} & set(later), "a name alone computes nothing"
    assert {"train", "submit", "status", "load_spec", "Run", "RunSpec", "data", "StoppedError"} <= set(names)


def test_no_name_is_that_of_a_module() -> None:
    """Which would take its place as soon as somebody imports it. `data` is meant to be one."""
    modules = {module.name for module in pkgutil.iter_modules(rankzero.__path__)}
    assert {"forecast", "engine"} <= modules
    assert modules & set(rankzero.__all__) == {"data"}


def test_every_error_is_public() -> None:
    tree = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert tree and all(getattr(rankzero, one.__name__) is one for one in tree)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = rankzero.tarin
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = rankzero.data.chekc
    assert {name for name in dir(rankzero) if not name.startswith("__")} == set(rankzero.__all__) - {"__version__"}
    assert {"train", "data"} <= set(dir(rankzero)) and {"check", "show"} <= set(dir(rankzero.data))


def test_examples_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api import specs

    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestFinder().find(inspect.unwrap(specs.load_spec), globs=vars(specs).copy())
    results = [doctest.DocTestRunner().run(one) for one in examples]
    assert sum(result.attempted for result in results) >= 2
    assert sum(result.failed for result in results) == 0


CALLS: dict[str, Callable[[str], object]] = {
    "chat": lambda place: rankzero.chat(place),
    "dry_run": lambda place: rankzero.dry_run(place),
    "evaluate": lambda place: rankzero.evaluate(place, place),
    "export": lambda place: rankzero.export(place, "out"),
    "export_gguf": lambda place: rankzero.export_gguf(place, "out"),
    "generate": lambda place: rankzero.generate(place, ["hello"]),
    "load_spec": lambda place: rankzero.load_spec(place),
    "plan": lambda place: rankzero.plan(place, "docker"),
    "push": lambda place: rankzero.push(place, "owner/name"),
    "status": lambda place: rankzero.status(place),
    "submit": lambda place: rankzero.submit(place, "docker"),
    "train": lambda place: rankzero.train(place),
    "Run.open": lambda place: rankzero.Run.open(place),
    "data.check": lambda place: rankzero.data.check(place).raise_if_bad(),
    "data.show": lambda place: list(rankzero.data.show(place)),
}
"""What is called from Python with a name, by what it is called with."""


def test_every_function_is_called() -> None:
    functions = {name for name in rankzero.__all__ if inspect.isfunction(getattr(rankzero, name))}
    assert functions | {"Run.open", "data.check", "data.show"} == set(CALLS)


@pytest.mark.parametrize("name", ["x" * 300, "loop", "theirs/run", "theirs/run.yaml", "theirs/rows.jsonl"])
@pytest.mark.parametrize("call", CALLS)
def test_a_name_that_can_be_no_place_is_an_error_of_ours(
    call: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANKZERO_CLUSTER", raising=False)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    close(monkeypatch, tmp_path / "theirs")
    with pytest.raises(errors.RankzeroError) as caught:
        CALLS[call](name)
    assert type(caught.value) is not errors.RankzeroError, "an internal error has no other class"


class _Closed:
    """Of a cluster whose runs are directories, such as Slurm's, which may not be looked at."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied", "/shared/theirs")

        return refuse


@pytest.mark.parametrize("method", ["status", "cancel"])
def test_a_submitted_run_whose_place_is_closed_is_an_error_of_ours(method: str) -> None:
    run = rankzero.ClusterRun("r", "slurm", "default", "/shared/theirs/r", cast(Any, _Closed()))
    with pytest.raises(errors.StorageError, match="Permission denied"):
        getattr(run, method)()


def test_a_home_in_a_path_is_who_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell has seen to `~` in a program."""
    monkeypatch.setenv("HOME", str(tmp_path))
    paper_model(tmp_path / "m")
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (tmp_path / "run.yaml").write_text("model: {name: ~/m}\ndata: {train: ~/t.jsonl}\n", encoding="utf-8")
    assert rankzero.load_spec("~/run.yaml").data.train == str(tmp_path / "t.jsonl")
    assert rankzero.data.check("~/t.jsonl").ok
    with pytest.raises(rankzero.ConfigError, match="something already") as caught:
        rankzero.export("~/m", "~/m")
    assert caught.value.problems[0].where == str(tmp_path / "m")


def test_every_place_that_a_function_is_given_may_be_in_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankzero.api.data_sources import sources_of
    from rankzero.api.planning import cluster_from
    from rankzero.api.pulling import pull
    from rankzero.api.serving import plan_serving
    from rankzero.model.source import locate
    from rankzero.run_dir.result import find_adapter, find_result
    from rankzero.spec.run_spec import ModelSpec

    monkeypatch.setenv("HOME", str(tmp_path))
    paper_model(tmp_path / "m")
    run = run_directory(tmp_path / "runs/r")
    spec = {"name": "r", "output_dir": str(tmp_path / "runs"), "model": {"name": "org/m"}, "data": {"train": "org/d"}}
    (run / "run.yaml").write_text(json.dumps(spec), encoding="utf-8")
    for adapter in (run / "final", tmp_path / "a"):
        adapter.mkdir(exist_ok=True)
        (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/m"}), encoding="utf-8")
    (tmp_path / "c.yaml").write_text("kind: job\nimage: i\nnamespace: n\n", encoding="utf-8")
    given: list[Callable[[str], object]] = [
        lambda home: find_result(f"{home}/runs/r", "writes", model="org/m"),
        lambda home: find_result(f"{home}/runs/r", "writes", base=True, model=f"{home}/m"),
        lambda home: find_result(f"{home}/a", "writes", model=f"{home}/m"),
        lambda home: find_result(f"{home}/m", "writes"),
        lambda home: find_adapter(tmp_path / "a", f"{home}/m"),
        lambda home: find_adapter(run, f"{home}/m"),
        lambda home: locate(ModelSpec(name=f"{home}/m")),
        lambda home: locate(ModelSpec(name="m", local_dir=f"{home}/m")),
        lambda home: plan_serving(f"{home}/m", engine="transformers"),
        lambda home: sources_of([f"{home}/t.jsonl", {"path": f"{home}/t.jsonl#3", "image_root": f"{home}/m"}]),
        lambda home: cluster_from(f"{home}/c.yaml"),
        lambda home: rankzero.status(f"{home}/runs/r").root,
        lambda home: rankzero.status(f"{home}/runs/r/run.yaml").root,
        lambda home: rankzero.status(Path(f"{home}/runs/r")).root,
        lambda home: rankzero.Run.open(f"{home}/runs/r"),
        lambda home: pull(f"{home}/none.yaml", f"file://{tmp_path}/store"),
        lambda home: rankzero.generate(f"{home}/none", ["a"]),
        lambda home: rankzero.evaluate(f"{home}/none", f"{home}/t.jsonl"),
        lambda home: rankzero.data.check(f"{home}/none.jsonl").problems,
        lambda home: rankzero.plan(spec, f"{home}/none.yaml"),
        lambda home: rankzero.submit(spec, f"{home}/none.yaml"),
    ]

    def answer(asked: Callable[[str], object], home: str) -> str:
        try:
            return repr(asked(home))
        except errors.RankzeroError as error:
            return str(error)

    for number, asked in enumerate(given):
        assert answer(asked, "~") == answer(asked, str(tmp_path)), number
    assert "no-user-of-this-name" in answer(given[-5], "~no-user-of-this-name"), "a name as any other"
