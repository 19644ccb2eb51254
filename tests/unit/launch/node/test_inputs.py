"""What a pod is given that another rankzero has made: it says which one reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero import __version__
from rankzero.errors import ConfigError
from rankzero.launch.node.code import digest_of, this_code
from rankzero.launch.node.inputs import read_inputs
from rankzero.launch.node.settings import NodeSettings

RUN = "name: r\nmodel: {name: o/m}\ndata: {train: o/d}\n"
BUILD = "build the image from that version (make image)"


def given(directory: Path, run: str = RUN, node: str = NodeSettings(run="r").to_json()) -> Path:
    (directory / "run.yaml").write_text(run)
    (directory / "node.json").write_text(node)
    return directory


def test_a_key_of_another_version_is_said_to_be_one(tmp_path: Path) -> None:
    place = given(tmp_path, f"{RUN}train: {{max_step: 3, of_tomorrow: 1}}\n")
    with pytest.raises(ConfigError) as caught:
        read_inputs(place, {})
    first, second = caught.value.problems
    assert first.what == "unknown key" and "max_steps" in first.hint, "and what it may have meant"
    assert str(this_code()) in first.hint and BUILD in first.hint
    assert BUILD not in second.hint, "once is enough"


def test_settings_of_another_version_are_too(tmp_path: Path) -> None:
    place = given(tmp_path, node=NodeSettings(run="r").to_json().replace('"run"', '"of_tomorrow": 1, "run"'))
    with pytest.raises(ConfigError, match="the node settings cannot be read") as caught:
        read_inputs(place, {})
    assert BUILD in caught.value.problems[0].hint


def test_what_the_environment_sets_wrong_is_no_matter_of_versions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_inputs(given(tmp_path), {"RANKZERO_SET_0": "train.max_step=3"})
    assert BUILD not in str(caught.value)


def test_code_is_told_by_what_is_in_it(tmp_path: Path) -> None:
    def tree(name: str, **modules: str) -> str:
        for module, text in modules.items():
            path = tmp_path / name / f"{module}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return digest_of(tmp_path / name)

    found = tree("one", a="x = 1", b="")
    assert tree("same", b="", a="x = 1") == found
    assert (
        len({found, tree("changed", a="x = 2", b=""), tree("renamed", a="x = 1", c=""), tree("less", a="x = 1")}) == 4
    )
    assert this_code().version == __version__ and len(this_code().digest) == 64
