"""A run about images goes on with these images, wherever they lie now, and with no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rankzero.errors import ConfigError, StoppedError
from rankzero.spec.run_spec import RunSpec
from tests.support.images import picture_rows
from tests.support.runs import run_here, stop_in
from tests.support.tasks import task_spec
from tests.support.tiny import write_jsonl


def stopped(root: Path, pictures: Path) -> RunSpec:
    """A run that has three steps and stopped in its second, whose rows and images lie in this directory."""
    files = write_jsonl(pictures / "rows.jsonl", picture_rows(pictures, 24, every=3))
    spec = task_spec("vision", root, rows=24, data__train=str(files), data__eval=None, train__max_steps=3)
    with pytest.raises(StoppedError):
        run_here(spec, hooks=stop_in(2))
    return spec


def moved(spec: RunSpec, pictures: Path) -> RunSpec:
    """The same run with its rows and images there."""
    data = spec.data.model_copy(update={"train": str(pictures / "rows.jsonl")})
    return spec.model_copy(update={"data": data})


def test_images_on_another_mount_are_the_same_data(tmp_path: Path) -> None:
    spec = stopped(tmp_path / "run", tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert run_here(moved(spec, tmp_path / "there"))["steps"] == 3


def test_other_images_under_the_same_names_are_other_data(tmp_path: Path) -> None:
    spec = stopped(tmp_path / "run", tmp_path / "here")
    image = tmp_path / "here" / "0.png"
    Image.new("RGB", Image.open(image).size, "black").save(image)
    with pytest.raises(ConfigError, match="--allow-change data"):
        run_here(spec)
    assert run_here(spec, allow_changes=("data",))["steps"] == 3
