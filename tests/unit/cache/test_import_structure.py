"""transformers looks through its models' modules once, not twice in each process: what it finds there is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rankzero.cache.contents import entries
from rankzero.cache.import_structure import Structure, _of_models_kept
from rankzero.errors import ConfigError

IMPORTS = """
import json, os, sys
opened = []
def hear(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith(".py"):
        opened.append(arguments[0])
{begin}
sys.addaudithook(hear)
import transformers.models
import transformers
from transformers.utils.import_utils import define_import_structure
folder = os.path.dirname(transformers.models.__file__)
said = {{", ".join(sorted(needed)): {{module: sorted(names) for module, names in modules.items()}}
        for needed, modules in define_import_structure(folder).items()}}
print(json.dumps({{
    "opened": [path for path in opened if path.startswith(folder) and os.path.basename(path) != "__init__.py"],
    "classes": transformers._class_to_module, "models": transformers.models._class_to_module,
    "all": sorted(transformers.__all__), "order": list(said), "said": said,
    "one": transformers.LlamaForCausalLM.__module__,
}}))
"""
KEPT = "from rankzero.cache.import_structure import keep_import_structure; keep_import_structure()"


def imported(begin: str) -> dict[str, object]:
    command = [sys.executable, "-c", IMPORTS.format(begin=begin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_all_that_transformers_defines_is_found_where_it_is_by_one_look_for_all_processes(own_cache: Path) -> None:
    plain, first, second = imported(""), imported(KEPT), imported(KEPT)
    opened = [one.pop("opened") for one in (plain, first, second)]
    assert first == plain and second == plain
    looked = Counter(opened[1])
    assert len(looked) > 1000 and set(looked.values()) == {1} and opened[2] == []
    assert len(opened[0]) > len(looked), "transformers looks once by itself: this is not needed any more"
    (entry,) = (one for one in entries(own_cache) if one.kind == "imports")
    assert entry.bytes < 2_000_000


@pytest.mark.parametrize(
    "body",
    [
        "import sys, rankzero.start as start; sys.argv[1:] = ['transformers.models']; start.main()",
        "import sys, typer; from rankzero.__main__ import main; from rankzero.cli.main import app\n"
        "@app.command('new')\ndef new() -> None: import transformers.models\nsys.argv[1:] = ['new']; main()",
    ],
    ids=["worker", "command"],
)
def test_processes_of_ours_keep_it(body: str, own_cache: Path) -> None:
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=300, check=False)
    assert len(list((own_cache / "imports").glob("*.json"))) == 1, done.stderr


class Models:
    """A folder of modules, what is asked of it, and how often it was looked through."""

    def __init__(self, root: Path) -> None:
        self.folder, self.looked, self.looker = root / "models", 0, root / "looker.py"
        self.folder.mkdir()
        self.looker.write_text("")
        self.define("one", "One")

    def define(self, module: str, name: str) -> None:
        (self.folder / f"{module}.py").write_text(f"{name}\n")

    def look(self, module_path: str | Path, prefix: str | None = None) -> Structure:
        self.looked += 1
        files = sorted(Path(module_path).glob("*.py"))
        return {frozenset({"torch"}): {path.stem: set(path.read_text().split()) for path in files}}

    def of_a_process(self) -> Callable[..., Structure]:
        return _of_models_kept(self.look, str(self.looker))


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path)


def test_a_look_is_kept_until_a_module_changes(models: Models) -> None:
    torch = frozenset({"torch"})
    for _ in range(2):
        define = models.of_a_process()
        assert define(models.folder) == {torch: {"one": {"One"}}}
        assert define(str(models.folder / "one.py"), "models") == {torch: {"models.one": {"One"}}}
    assert models.looked == 1
    models.define("two", "Two")
    assert models.of_a_process()(models.folder) == {torch: {"one": {"One"}, "two": {"Two"}}}
    models.define("two", "Deux")
    assert models.of_a_process()(models.folder)[torch]["two"] == {"Deux"}
    models.looker.write_text("# looks otherwise\n")
    models.of_a_process()(models.folder)
    assert models.looked == 4


def test_who_changes_what_it_got_changes_nobody_else_s(models: Models) -> None:
    """transformers adds its own modules to it."""
    define = models.of_a_process()
    define(models.folder)[frozenset({"torch"})]["one"].add("Two")
    assert define(models.folder) == {frozenset({"torch"}): {"one": {"One"}}}


def test_another_folder_is_none_of_ours(models: Models, own_cache: Path) -> None:
    other = models.folder.rename(models.folder.with_name("decision"))
    assert models.of_a_process()(other) == {frozenset({"torch"}): {"one": {"One"}}}
    assert not own_cache.exists()


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"state": 1, "structure": 2}', "\xff"])
def test_a_damaged_record_is_made_again(models: Models, own_cache: Path, damage: str) -> None:
    models.of_a_process()(models.folder)
    (record,) = (own_cache / "imports").iterdir()
    whole = record.read_text()
    record.write_bytes(damage.encode("latin-1"))
    assert models.of_a_process()(models.folder) == {frozenset({"torch"}): {"one": {"One"}}}
    assert models.looked == 2 and record.read_text() == whole
    record.write_text(json.dumps({**json.loads(whole), "structure": [[["torch"], ["one"]]]}))
    assert models.of_a_process()(models.folder) == {frozenset({"torch"}): {"one": {"One"}}}


def test_without_a_cache_nothing_is_kept(models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RANKZERO_CACHE", str(tmp_path / "file" / "cache"))
    assert models.of_a_process()(models.folder) == {frozenset({"torch"}): {"one": {"One"}}}

    def homeless() -> Path:
        raise ConfigError("no home directory")

    monkeypatch.setattr("rankzero.machine.cache_root", homeless)
    assert models.of_a_process()(models.folder) == {frozenset({"torch"}): {"one": {"One"}}}
    assert models.looked == 2
