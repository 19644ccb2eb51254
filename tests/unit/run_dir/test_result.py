"""What commands that use a model are given, and what they say where it is not what they can use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.run_dir.named import named_run, runs_in
from rankzero.run_dir.of_weights import TrainedOn
from rankzero.run_dir.paths import TOKENIZER_FILES
from rankzero.run_dir.result import Rendering, Result, find_adapter, find_files, find_result
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_spec import RunSpec
from tests.support.unreadable import close


def run_of(tmp_path: Path, *, final: bool = True, manifest: dict[str, Any] | None = None, **spec: Any) -> Path:
    run = tmp_path / "run"
    value = {"name": "run", "model": {"name": "base"}, "data": {"train": "t", "chat_template": "t.jinja"}, **spec}
    run.mkdir()
    (run / "run.yaml").write_text(to_yaml(RunSpec.model_validate(value)))
    if final:
        (run / "final").mkdir()
        (run / "final/manifest.json").write_text(json.dumps({"format": 1, "files": {}, **(manifest or {})}))
    return run


@pytest.mark.parametrize("suffix", ["", "final"])
def test_an_adapter_goes_on_the_runs_base(suffix: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, lora={}, model={"name": "base", "quantization": "nf4"})
    result = find_result(str(run / suffix), "writes")
    assert result.adapter == run / "final"
    assert (result.model.name, result.model.quantization) == ("base", "nf4")
    assert result.model.tokenizer_dir == str(run / "final") and result.chat_template is None


def test_full_weights_stand_alone(tmp_path: Path) -> None:
    run = run_of(tmp_path, model={"name": "base", "local_dir": "/gone", "tokenizer_dir": "/gone too"})
    result = find_result(str(run), "writes")
    assert (result.adapter, result.model.local_dir) == (None, str(run / "final"))
    assert result.model.tokenizer_dir is None


def test_the_model_before_training_needs_no_result(tmp_path: Path) -> None:
    run = run_of(tmp_path, final=False, lora={})
    result = find_result(str(run), "writes", base=True)
    assert result.adapter is None and result.model.name == "base"
    assert result.chat_template == str(run / "t.jinja"), "relative to the file that says it"


def test_classes_of_an_adapter(tmp_path: Path) -> None:
    run = run_of(tmp_path, task="classify", lora={}, manifest={"labels": ["a", "b", "c"]})
    assert find_result(str(run), "classifies").labels == ("a", "b", "c")


def test_classes_that_the_spec_names(tmp_path: Path) -> None:
    data = {"train": "t", "labels": ["a", "b"]}
    assert find_result(str(run_of(tmp_path, task="classify", lora={}, data=data)), "classifies").labels == ("a", "b")


@pytest.mark.parametrize("says", [{"spec": {"data": {"max_length": 16}}}, {"max_length": 16}, {}])
@pytest.mark.parametrize("adapter", [True, False])
def test_a_classifier_without_its_run_cuts_texts_as_it_was_trained(
    adapter: bool, says: dict[str, Any], tmp_path: Path
) -> None:
    """A result that was copied alone, and what was merged or exported of one. The directory may have any name."""
    place = adapter_in(tmp_path / "model", base="org/base") if adapter else tmp_path / "model"
    place.mkdir(exist_ok=True)
    (place / "manifest.json").write_text(json.dumps({"format": 1, "files": {}, **says}))
    assert find_result(str(place), "classifies").max_length == (16 if says else 2048)
    assert not adapter or find_adapter(place).max_length == (16 if says else None)


def test_an_adapter_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    result = find_result(str(tmp_path), "writes")
    assert (result.model.name, result.model.tokenizer_dir, result.adapter) == ("org/base", None, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert find_result(str(tmp_path), "writes").model.tokenizer_dir == str(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="base_model_name_or_path"):
        find_result(str(tmp_path), "writes")


def test_what_an_adapter_from_elsewhere_was_made_of(tmp_path: Path) -> None:
    """With its own tokenizer and template, as a run's model before training has them."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    (tmp_path / "tokenizer.json").write_text("{}")
    base = find_result(str(tmp_path), "writes", base=True)
    assert (base.model.name, base.model.tokenizer_dir, base.adapter) == ("org/base", None, None)


def test_what_a_checkpoint_of_a_run_was_made_of(tmp_path: Path) -> None:
    run = run_of(tmp_path, lora={})
    (run / "environment.json").write_text("{}")
    weights = adapter_in(run / "checkpoints/step-4/model", base="org/base")
    base, adapter = (find_result(str(weights), "writes", base=base) for base in (True, False))
    assert (base.model, base.adapter) == (adapter.model, None) and adapter.adapter == weights


def test_weights_of_a_full_fine_tune_s_checkpoint_are_no_model_yet(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (run / "environment.json").write_text("{}")
    weights = run / "checkpoints/step-4/model"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"without their tokenizer\n  hint: `rankzero export {weights} -o DIR` makes"):
        find_result(str(weights), "writes")


@pytest.mark.parametrize("text", ['{"base_model_name', "[]", ""])
def test_an_adapter_that_cannot_be_read_is_said_by_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    for look in (lambda: find_result(str(tmp_path), "writes"), lambda: find_adapter(tmp_path)):
        with pytest.raises(ConfigError, match=r"adapter_config\.json: (it cannot be read|the adapter does not say)"):
            look()


def test_any_model(tmp_path: Path) -> None:
    result = find_result("org/model", "classifies")
    assert (result.model.name, result.adapter) == ("org/model", None)
    with pytest.raises(ConfigError, match="nothing says what it was before training"):
        find_result("org/model", "writes", base=True)


def test_the_wrong_command_is_told_the_right_one(tmp_path: Path) -> None:
    run = run_of(tmp_path, task="classify")
    with pytest.raises(ConfigError, match=f"classifier\n  hint: use `rankzero predict {run} "):
        find_result(str(run), "writes")


def test_the_wrong_command_the_other_way_round(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with pytest.raises(ConfigError, match=f"writes text\n  hint: use `rankzero generate {run} "):
        find_result(str(run), "classifies")


def test_a_checkpoint_s_weights_are_named(tmp_path: Path) -> None:
    """By its directory, or the link that leads there, which people name first."""
    step = tmp_path / "r" / "checkpoints" / "step-4"
    (step / "model").mkdir(parents=True)
    (step / "trainer.json").write_text("{}")
    (tmp_path / "r" / "best").symlink_to("checkpoints/step-4")
    for target in (step, tmp_path / "r" / "best"):
        looks = partial(find_result, str(target), "writes"), partial(find_adapter, target), partial(find_files, target)
        for look in looks:
            with pytest.raises(ConfigError, match="this is the whole of a checkpoint") as refused:
                look()
            assert refused.value.problems[0].hint.startswith(f"its weights are in {target}/model;")


def test_no_result_yet(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="final/ is missing"):
        find_result(str(run_of(tmp_path, final=False)), "writes")


class TestNoSuchRun:
    """What was meant to be here is not asked of the Hub."""

    @pytest.fixture(autouse=True)
    def runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("alpaca-3", "oasst"):
            (tmp_path / "runs" / name).mkdir(parents=True)
            (tmp_path / "runs" / name / "run.yaml").touch()
        (tmp_path / "rows.jsonl").touch()

    @pytest.mark.parametrize(
        ("target", "what", "hint"),
        [
            ("runs/alpaca", "there is no such run", "did you mean runs/alpaca-3?"),
            ("runs/xyz", "there is no such run", "runs/oasst"),
            ("./nope", "there is no such run", "runs/oasst"),
            ("nowhere/a/b", "there is no such run", "runs/oasst"),
            ("oasst", "there is no such directory", "did you mean runs/oasst?"),
            ("rows.jsonl", "this is a file", "runs/oasst"),
            ("runs", "this holds runs", "runs/oasst"),
        ],
    )
    def test_it_is_said_with_the_nearest_name(self, target: str, what: str, hint: str) -> None:
        with pytest.raises(ConfigError) as refused:
            find_result(target, "writes")
        (problem,) = refused.value.problems
        assert what in problem.what and hint in problem.hint and problem.where == target

    @pytest.mark.parametrize("find", [find_adapter, find_files])
    def test_what_can_be_no_model_of_the_hub_is_looked_for_here(self, find: Callable[[Path], Any]) -> None:
        for name, hint in (("alpaca3", "did you mean runs/alpaca-3?"), ("gpt2", "there are runs/")):
            with pytest.raises(ConfigError, match=f"{name}: there is no such directory\n  hint: {re.escape(hint)}"):
                find(Path(name))

    def test_a_run_has_a_name_unless_something_here_is_called_so(self, tmp_path: Path) -> None:
        assert [named_run(name) for name in ("oasst", "gpt2", "org/oasst")] == ["runs/oasst", "gpt2", "org/oasst"]
        (tmp_path / "oasst").mkdir()
        assert named_run("oasst") == "oasst"

    @pytest.mark.parametrize("target", ["org/model", "gpt2", "Qwen/Qwen3-0.6B"])
    def test_what_the_hub_may_have_is_left_to_it(self, target: str) -> None:
        assert find_result(target, "writes").model.name == target


def test_entries_that_may_not_be_looked_into_or_are_gone_hide_no_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lost+found", "deleted", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.yaml").touch()
    close(monkeypatch, tmp_path / "lost+found")
    look = os.stat

    def stat(path: Any, **named: Any) -> os.stat_result:
        if path == tmp_path / "deleted":  # since its run.yaml was seen
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return look(path, **named)

    monkeypatch.setattr(os, "stat", stat)
    assert runs_in(tmp_path) == [str(tmp_path / "mine")]


def adapter_in(directory: Path, base: str = "org/own", spec: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    if spec is not None:
        (directory / "manifest.json").write_text(json.dumps({"format": 1, "files": {}, "spec": spec}))
    return directory


class TestBesideASpec:
    """An adapter is of a run only where a run writes one, and where the run.yaml there is that run's."""

    @pytest.mark.parametrize("place", ["adapters/foo", "model", "a/b/model", "checkpoints/best/model", "final"])
    def test_an_adapter_that_lies_near_a_spec_goes_on_its_own_base(self, place: str, tmp_path: Path) -> None:
        project = run_of(tmp_path, final=False, lora={})
        adapter = adapter_in(project / place)
        assert (find_adapter(adapter).base.name, find_adapter(adapter).run) == ("org/own", None)
        result = find_result(str(adapter), "writes")
        assert (result.model.name, result.adapter) == ("org/own", adapter)

    @pytest.mark.parametrize(
        "by", [{"name": "other", "model": {"name": "base"}}, {"name": "run", "model": {"name": "b"}}]
    )
    def test_a_result_that_was_copied_beside_another_spec(self, by: dict[str, Any], tmp_path: Path) -> None:
        project = run_of(tmp_path, final=False, lora={})
        adapter = adapter_in(project / "final", spec=by)
        assert find_adapter(adapter).base.name == find_result(str(adapter), "writes").model.name == "org/own"

    @pytest.mark.parametrize("place", ["final", "checkpoints/step-5/model", "last/model"])
    @pytest.mark.parametrize("manifest", [True, False])
    def test_what_a_run_wrote_is_the_runs(self, manifest: bool, place: str, tmp_path: Path) -> None:
        (base := tmp_path / "base").mkdir()
        run = run_of(tmp_path, final=False, lora={}, model={"name": str(base), "quantization": "nf4"})
        adapter = adapter_in(run / place, base=str(base))
        if manifest:
            saved = adapter if place == "final" else adapter.parent
            adapter_in(saved, base=str(base), spec={"name": "run", "model": {"name": str(base)}})
        copied = tmp_path / "copied elsewhere"
        run.rename(copied)
        found = find_adapter(copied / place)
        assert (found.run, found.base.quantization) == (copied, "nf4")
        assert find_result(str(copied / place), "writes").model.quantization == "nf4"

    @pytest.mark.parametrize("place", ["checkpoints/step-5/model", "final"])
    def test_what_a_run_saved_before_it_was_renamed_or_its_base_moved(self, place: str, tmp_path: Path) -> None:
        """Both may change where a run goes on, and what is in its directory is still its own."""
        (base := tmp_path / "base").mkdir()
        run = run_of(tmp_path, final=False, lora={}, model={"name": str(base), "quantization": "nf4"})
        (run / "environment.json").write_text("{}")
        adapter = adapter_in(run / place, base="/models/base")
        saved = adapter if place == "final" else adapter.parent
        adapter_in(saved, base="/models/base", spec={"name": "before", "model": {"name": "/models/base"}})
        found = find_adapter(adapter)
        assert (found.run, found.base.name, found.base.quantization) == (run, str(base), "nf4")

    def test_from_within(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = run_of(tmp_path, lora={}, model={"name": "base", "quantization": "nf4"})
        adapter_in(run / "final", base="base")
        monkeypatch.chdir(run / "final")
        assert find_result(".", "writes").model.quantization == find_adapter(Path()).base.quantization == "nf4"


class TestARunThatWentOn:
    """With settings that were accepted: what it had saved before is used as its own manifest says, not as run.yaml."""

    @staticmethod
    def gone_on(root: Path, place: str, before: dict[str, Any]) -> Path:
        data = {"train": "t", "chat_template": "later.jinja", "chat_template_kwargs": {"later": True}}
        data |= {"image_max_tokens": 64, "max_length": 64}
        model = {"name": "base", "quantization": "nf4", "trust_pickle": True, "dtype": "bfloat16"}
        run = run_of(root, final=False, lora={}, model=model, data=data)
        (run / "environment.json").write_text("{}")
        was = {"name": "run", "model": {"name": "base"}, "data": {"train": "t", "max_length": 16}, "lora": {}, **before}
        adapter = adapter_in(run / place, base="base")
        return adapter_in(adapter if place == "final" else adapter.parent, base="base", spec=was)

    @pytest.mark.parametrize("place", ["final", "checkpoints/step-5/model"])
    def test_weights_are_used_as_they_were_trained(self, place: str, tmp_path: Path) -> None:
        self.gone_on(tmp_path, place, {})
        found, adapter = (find(tmp_path / "run" / place) for find in (as_writer, find_adapter))
        assert found.model.quantization == adapter.base.quantization == "none"
        assert (found.max_length, found.chat_template, found.image_max_tokens) == (16, None, None)
        assert found.chat_template_kwargs == {}
        rendering = adapter.rendering or Rendering(None, None, {})
        assert (rendering.chat_template, rendering.image_max_tokens, rendering.chat_template_kwargs) == (None, None, {})
        assert found.model.trust_pickle, "what is asked of this machine is said in run.yaml"
        assert (found.model.name, found.model.dtype) == ("base", "bfloat16")

    def test_the_model_before_training_is_asked_as_the_result_is(self, tmp_path: Path) -> None:
        self.gone_on(tmp_path, "final", {})
        found = find_result(str(tmp_path / "run"), "writes", base=True)
        assert (found.model.quantization, found.chat_template, found.chat_template_kwargs) == ("none", None, {})

    def test_a_template_is_where_run_yaml_says_that_it_is_now(self, tmp_path: Path) -> None:
        was = {"train": "t", "chat_template": "/then/chat.jinja"}
        self.gone_on(tmp_path, "checkpoints/step-5/model", {"data": was})
        found = as_writer(tmp_path / "run/checkpoints/step-5/model")
        assert found.chat_template == str(tmp_path / "run/later.jinja")

    def test_a_template_that_run_yaml_no_longer_names(self, tmp_path: Path) -> None:
        was = {"train": "t", "chat_template": str(tmp_path / "chat.jinja")}
        run = run_of(tmp_path, final=False, lora={}, data={"train": "t", "chat_template": "plain"})
        spec = {"name": "run", "model": {"name": "base"}, "data": was, "lora": {}}
        adapter_in(run / "checkpoints/step-5", base="base", spec=spec)
        adapter = adapter_in(run / "checkpoints/step-5/model", base="base")
        assert as_writer(adapter).chat_template == str(tmp_path / "chat.jinja")

    @pytest.mark.parametrize(
        ("said", "wanted"),
        [
            ({}, ("none", 16)),
            ({"model": {"name": "base", "quantization": 4}}, ("nf4", 64)),
            ({"model": "base"}, ("nf4", 64)),
        ],
        ids=["other fields", "another kind", "another shape"],
    )
    def test_of_a_version_with_other_fields_what_is_used_is_read(
        self, said: dict[str, Any], wanted: tuple[str, int], tmp_path: Path
    ) -> None:
        """What these settings are in another version cannot be known where they have other kinds: run.yaml's then."""
        whole = {"model": {"name": "base", "quantization": "none"}, "of another version": 1}
        self.gone_on(tmp_path, "final", {**whole, **said})
        found = as_writer(tmp_path / "run")
        assert (found.model.quantization, found.max_length) == wanted


def as_writer(place: Path) -> Result:
    return find_result(str(place), "writes")


def test_an_adapter_alone_says_which_weights_it_belongs_to(tmp_path: Path) -> None:
    config = {"base_model_name_or_path": "org/base", "revision": "v1.5"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    found = [find_result(str(tmp_path), "writes").model, find_adapter(tmp_path).base]
    assert [(model.name, model.revision) for model in found] == [("org/base", "v1.5")] * 2
    other = find_adapter(tmp_path, "org/other").base
    assert (other.name, other.revision) == ("org/other", None)


def test_another_base_has_not_the_revision_of_the_run_s(tmp_path: Path) -> None:
    spec = {"name": "r", "model": {"name": "org/base", "revision": "v1.5"}, "data": {"train": "rows.jsonl"}, "lora": {}}
    (tmp_path / "run.yaml").write_text(json.dumps(spec))
    (tmp_path / "final").mkdir()
    (tmp_path / "final/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    assert find_adapter(tmp_path).base.revision == "v1.5"
    assert find_adapter(tmp_path, "org/other").base.revision is None


@pytest.mark.parametrize("file", TOKENIZER_FILES)
def test_any_tokenizer_beside_an_adapter_is_its_own(file: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    before = find_result(str(tmp_path), "writes")
    assert not before.own_tokenizer and before.model.tokenizer_dir is None
    (tmp_path / file).touch()
    found = find_result(str(tmp_path), "writes")
    assert found.own_tokenizer and found.model.tokenizer_dir == str(tmp_path)


@pytest.mark.parametrize(
    ("task", "trusted", "known"),
    [
        ("sft", True, TrainedOn("f", "writes")),
        ("classify", True, TrainedOn("f", "classifies")),
        ("sft", False, TrainedOn("f", None)),
        ("of another version", True, None),
    ],
)
def test_what_code_of_its_own_a_base_was_known_by(
    task: str, trusted: bool, known: TrainedOn | None, tmp_path: Path
) -> None:
    """That of the use that it was trained for; nothing is known of a use that is unknown."""
    spec = {"task": task, "model": {"name": "org/base", "trust_remote_code": trusted}}
    manifest = {"format": 1, "files": {}, "model": "f", "spec": spec}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    assert find_adapter(tmp_path).trained_on == known
