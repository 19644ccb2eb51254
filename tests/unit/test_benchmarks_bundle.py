"""The bundle for a machine without a network, of made-up wheels: what is taken along, and what of it."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.unit.engine.test_rounded_gradients import NAMES, model_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import bundle

LINUX = bundle.target_environment("3.12", "manylinux_2_28_x86_64")
PUBLISHED: dict[str, tuple[str, list[str]]] = {
    "trainer": ("1.0", ["datasets>=4", "torch>=2", "extra-only; extra == 'docs'", "old; python_version < '3.12'"]),
    "datasets": ("5.0", ["dill<0.5", "numpy"]),
    "dill": ("0.4.1", []),
    "transformers": ("5.23.0", ["tokenizers<0.24,>=0.23"]),
    "tokenizers": ("0.23.3", []),
}


def wheel(directory: Path, name: str, version: str, needs: list[str], files: dict[str, str] | None = None) -> Path:
    path = directory / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Name: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        for inner, text in (files or {f"{name}/__init__.py": "x = 1\n"}).items():
            archive.writestr(inner, text)
    return path


def collected(tmp_path: Path, wanted: list[str], have: dict[str, str]) -> set[str]:
    def fetch(name: str, bounds: SpecifierSet) -> Path:
        version, needs = PUBLISHED[name]
        assert bounds.contains(version)
        return wheel(tmp_path, name, version, needs)

    return set(bundle.collect([Requirement(one) for one in wanted], have, fetch, LINUX))


def test_what_is_missing_comes_with_what_it_needs(tmp_path: Path) -> None:
    """Not what is only for other Pythons or extras, and never torch."""
    assert collected(tmp_path, ["trainer", "torch>=2.11", "nvidia-nccl-cu13"], {}) == {"trainer", "datasets", "dill"}


def test_what_the_machine_has_stays_out_where_it_meets_the_bounds(tmp_path: Path) -> None:
    assert collected(tmp_path, ["trainer"], {"datasets": "4.7"}) == {"trainer"}
    assert collected(tmp_path, ["transformers>=5.23,<6"], {"transformers": "5.23.1"}) == set()
    older = {"transformers": "5.17.0", "tokenizers": "0.23.2"}
    assert collected(tmp_path, ["transformers>=5.23,<6"], older) == {"transformers"}
    too_old = {"transformers": "5.17.0", "tokenizers": "0.22.0"}
    assert collected(tmp_path, ["transformers>=5.23,<6"], too_old) == {"transformers", "tokenizers"}
    # A bound that comes later, and only then is not met.
    assert collected(tmp_path, ["datasets", "trainer"], {"datasets": "3.0"}) == {"datasets", "dill", "trainer"}


def test_lists_of_what_there_is_are_read() -> None:
    lines = "Torch==2.11.0+cu130\nruamel_yaml==0.18\n# c==1\n-e git+https://there\npeft @ file:///w/peft-0.21.2-py3-none-any.whl\n"
    assert bundle.read_versions(lines) == {"torch": "2.11.0+cu130", "ruamel-yaml": "0.18", "peft": "0.21.2"}


def test_rankzeros_own_needs_are_those_of_its_extras() -> None:
    names = {requirement.name for requirement in bundle.needed(bundle.ROOT / "pyproject.toml")}
    assert {"transformers", "peft", "pillow", "bitsandbytes", "liger-kernel", "lightkube", "trl", "pytest"} <= names
    assert "deepspeed" not in names and "ruff" not in names


def test_wheels_of_older_systems_are_taken_too() -> None:
    names = bundle.pip_platforms("manylinux_2_28_x86_64")
    assert names[:2] == ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64"] and "manylinux2014_x86_64" in names
    assert bundle.pip_platforms("macosx_11_0_arm64") == ["macosx_11_0_arm64"]


def test_dead_weight_is_left_out(tmp_path: Path) -> None:
    files = {
        "bitsandbytes/libbitsandbytes_cuda130.so": "own",
        "bitsandbytes/libbitsandbytes_cuda118.so": "other",
        "bitsandbytes/libbitsandbytes_rocm72.so": "other",
        "bitsandbytes/libbitsandbytes_cpu.so": "cpu",
        "transformers/models/llama/modeling_llama.py": "x",
        "transformers/models/llama/modular_llama.py": "x",
        "transformers/models/sam/modeling_sam.py": "x",
        "transformers/models/sam/configuration_sam.py": "x",
        "transformers/models/sam/image_processing_sam.py": "x",
        "a/tests/test_a.py": "x",
        "a-1.0.data/purelib/a/pure.py": "x",
        "a-1.0.data/scripts/run": "x",
        "../outside.py": "x",
    }
    made = wheel(tmp_path, "a", "1.0", [], files)
    sizes = bundle.unpack([made], tmp_path / "out", "13.0")
    found = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {
        "bitsandbytes/libbitsandbytes_cuda130.so",
        "bitsandbytes/libbitsandbytes_cpu.so",
        "transformers/models/llama/modeling_llama.py",
        "transformers/models/sam/configuration_sam.py",
        "a/pure.py",
        "outside.py",
        "a-1.0.dist-info/METADATA",
    }
    assert sizes["a"] == sum((tmp_path / "out" / name).stat().st_size for name in found)
    assert not (tmp_path / "outside.py").exists()


def test_what_tests_on_gpus_and_liger_import_is_taken_along() -> None:
    tested = {type(model_of(name)).__module__.split(".")[2] for name in NAMES}
    liger = {"llava", "paligemma", "qwen2_5_vl", "mistral"}  # its patches of all models are one module
    assert len(tested) == len(NAMES) and tested | liger <= set(bundle.MODELS)
    assert all((Path(transformers.__file__).parent / "models" / name).is_dir() for name in bundle.MODELS)


def test_a_peer_with_bounds_of_its_own_is_a_bundle_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of ours, and nothing that it does not import for text."""
    needs = {"unsloth": ["trl", "diffusers"], "unsloth-zoo": ["torchao"], "trl": []}
    monkeypatch.setattr(
        bundle, "pip_download", lambda *_: lambda name, bounds: wheel(tmp_path, name, "1.0", needs[name])
    )
    monkeypatch.setattr(bundle, "BUNDLE", tmp_path / ".gpu-bundle")
    bundle.main(["--peer", "unsloth"])
    assert ".gpu-bundle-unsloth: 0.0 MiB of 3 packages" in capsys.readouterr().out
    assert (tmp_path / ".gpu-bundle-unsloth" / "trl" / "__init__.py").is_file()


def test_too_large_a_bundle_fails_and_names_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def downloads(*_: Any) -> Any:
        return lambda name, bounds: wheel(tmp_path, "big", "9.0", [], {"big/data": "x" * 3 * 2**20})

    monkeypatch.setattr(bundle, "pip_download", downloads)
    monkeypatch.setattr(bundle, "needed", lambda _: [Requirement("big")])
    out = ["--out", str(tmp_path / "out")]
    bundle.main([*out, "--most-mib", "4"])
    assert "3.0 MiB of 1 packages for Python 3.12: big 3.0" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="more than 2 MiB"):
        bundle.main([*out, "--most-mib", "2"])
    assert "big 3.0" in capsys.readouterr().out
