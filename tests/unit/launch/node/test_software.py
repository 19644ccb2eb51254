"""What a pod's image and variables lack for a run is said before GPUs compute, with the image that would have it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.node import software
from rankzero.launch.node.settings import Mirror, NodeSettings
from rankzero.spec.run_options import RunOptions, SmokeSettings
from rankzero.spec.run_spec import RunSpec, TrackingSpec
from tests.support.nodes import Pods
from tests.support.runs import small_spec

ROOT = Path(__file__).parents[4]


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image with nothing more than it needs, and no variable of a tracker."""
    monkeypatch.setattr(software, "find_spec", lambda _name: None)
    for name in ("LANGFUSE_HOST", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


def refused(spec: RunSpec, said: list[str] | None = None, **settings: Any) -> list[tuple[str, str]]:
    """What is refused, as fields and hints."""
    knows_copies = settings.pop("knows_copies", True)
    say = (lambda _line: None) if said is None else said.append
    told = NodeSettings(run="r", **settings)
    try:
        software.require_packages(spec, told)
        software.require_trackers(spec, told, say, knows_copies=knows_copies)
    except ConfigError as error:
        return [(problem.where, problem.hint) for problem in error.problems]
    return []


@pytest.mark.parametrize("module", ["rankzero.launch.node.prepare", "rankzero.launch.node"])
def test_a_new_run_whose_tracker_cannot_work_ends_before_anything_is_loaded(tmp_path: Path, module: str) -> None:
    """In the preparation, or in node 0 where none goes first."""
    spec = small_spec(tmp_path, tmp_path / "no-model", tracking__langfuse=True)
    pods = Pods(tmp_path, spec, num_nodes=1)
    assert pods.start(0, module=module).wait(120) == 78
    assert "tracking.langfuse: LANGFUSE_HOST is not set" in pods.log(0)
    assert "no-model" not in pods.log(0).replace(str(tmp_path), "") and not (tmp_path / "runs").exists()


def test_a_run_that_goes_on_is_warned_of_its_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, tmp_path, tracking__langfuse=True)
    assert [where for where, _ in refused(spec)] == ["tracking.langfuse"] * 3
    said: list[str] = []
    monkeypatch.setattr(software, "newest_manifest", lambda _run_dir: {})
    assert refused(spec, said) == []
    assert len(said) == 3 and said[0].startswith("warning: tracking.langfuse: LANGFUSE_HOST is not set")


def test_of_a_run_that_may_be_in_a_store_only_who_has_asked_the_store_can_tell(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, tmp_path, tracking__langfuse=True)
    upload, said = Mirror("s3://bucket/runs", spec.output_dir, "upload"), list[str]()
    assert refused(spec, said, mirrors=(upload,), knows_copies=False) == [] and len(said) == 3
    assert all("goes on without it if its store has it, and is refused else" in line for line in said)
    assert len(refused(spec, mirrors=(upload,), knows_copies=True)) == 3


def test_a_bucket_that_only_data_comes_from_holds_no_run(tmp_path: Path) -> None:
    data = Mirror("s3://bucket/rows", "/data", "download")
    spec = small_spec(tmp_path, tmp_path, tracking__langfuse=True)
    assert len(refused(spec, mirrors=(data,), knows_copies=False)) == 3


LACKING = [
    ({"train__sharding": "zero2"}, "train.sharding", "deepspeed"),
    ({"model__quantization": "nf4"}, "model.quantization", "quantization"),
    ({"train__optimizer": "adamw_8bit"}, "train.optimizer", "quantization"),
    ({"model__kernels": "liger"}, "model.kernels", "liger"),
]


@pytest.mark.parametrize(("changes", "field", "extra"), LACKING)
def test_a_package_that_the_run_needs_is_missed_with_the_image_that_has_it(
    tmp_path: Path, changes: dict[str, Any], field: str, extra: str
) -> None:
    spec = small_spec(tmp_path, tmp_path, **changes)
    extras = ",".join(dict.fromkeys([*software.DEFAULT_EXTRAS, extra]))
    assert refused(spec) == [(field, f"`make image EXTRAS={extras}`, and push it")]
    assert refused(spec, in_image=False) == [(field, f"pip install 'rankzero[{extra}]'")]


def test_one_image_has_all_that_is_missing(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, tmp_path, train__sharding="zero2", model__kernels="liger")
    (image,) = {hint for _, hint in refused(spec)}
    assert "EXTRAS=train,quantization,vision,serve,deepspeed,liger`" in image


def test_an_image_made_for_one_thing_keeps_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows one hint after the other comes to an end."""
    more = {"train__sharding": "zero2", "model__kernels": "liger", "tracking__wandb": True}
    spec = small_spec(tmp_path, tmp_path, **more, output_url="s3://bucket/runs")
    whole = [*software.DEFAULT_EXTRAS, "deepspeed", "liger", "wandb", "s3"]
    for there in ("deepspeed", "liger_kernel"):
        monkeypatch.setattr(software, "find_spec", lambda name, there=there: name if name == there else None)
        extras = [re.search(r"EXTRAS=(\S+)`", hint) for _, hint in refused(spec)]
        assert extras and all(found is not None and found[1].split(",") == whole for found in extras)
    monkeypatch.setattr(software, "find_spec", lambda name: name)
    (hint,) = [hint for _, hint in refused(spec, knows_copies=True) if "EXTRAS" in hint][:1]
    assert f"EXTRAS={','.join(whole)}`" in hint


def test_trackers_extras_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(software.TRACKER_EXTRAS) == set(TrackingSpec.model_fields) & set(extras)


def test_a_package_that_is_no_extra_is_put_on_top(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, tmp_path, model__kernels="hub")
    assert refused(spec) == [("model.kernels", "an image made from this one, with `pip install kernels`")]
    spec = small_spec(tmp_path, tmp_path, output_url="gs://bucket/runs")
    assert refused(spec) == [("output_url", "an image made from this one, with `pip install gcsfs`")]


def test_what_is_there_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "find_spec", lambda name: name)
    for changes, _, _ in LACKING:
        assert refused(small_spec(tmp_path, tmp_path, **changes)) == []


def test_neither_a_finished_run_nor_a_test_of_the_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, tmp_path, train__sharding="zero2", tracking__langfuse=True)
    assert refused(spec, options=RunOptions(smoke=SmokeSettings())) == []
    monkeypatch.setattr(software, "is_finished", lambda _run_dir, _spec: True)
    assert refused(spec) == []


def test_the_extras_of_an_image_are_those_of_its_recipe() -> None:
    (default,) = re.findall(r"^ARG EXTRAS=(\S+)", (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert default.split(",") == list(software.DEFAULT_EXTRAS)
