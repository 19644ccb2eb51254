"""What a machine without a network lacks to run the GPU benchmark and its tests, as one directory to carry there.

    python benchmarks/bundle.py --have FILE       FILE: `pip list --format=freeze` of that machine
    python benchmarks/bundle.py --have FILE --peer unsloth      a peer with bounds of its own, in .gpu-bundle-unsloth/

makes .gpu-bundle/, and there `PYTHONPATH=.gpu-bundle:src python3 benchmarks/gpu.py` works without an installation.
Wheels come from pip, for that machine's Python and platform; what it has in a version that meets the bounds stays out,
and so does what no benchmark reads. torch and CUDA are never taken along.
"""

from __future__ import annotations

import argparse
import email
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / ".gpu-bundle"
EXTRAS = ("train", "vision", "quantization", "liger")
BESIDE = ("trl", "pytest", "pytest-timeout", "hypothesis")
"""The peer, and what tests/gpu need."""
APART = {"unsloth": ("unsloth", "unsloth_zoo")}
"""Peers that do not go together with the versions that rankzero takes, and what each of them is made of."""
UNUSED = {"unsloth": ("diffusers", "hf-transfer", "torchao")}
"""What they ask for and do not import where nothing but a text model is trained."""
NEVER = ("torch", "triton", "numpy", "nvidia-*", "cuda-*")
"""A machine with a GPU has its own."""
DEAD = (
    "*/tests/*",
    "*/__pycache__/*",
    "*.pyi",
    "*.dist-info/RECORD",
    "*.dist-info/licenses/*",
    "bitsandbytes/libbitsandbytes_rocm*",
    "bitsandbytes/libbitsandbytes_xpu*",
    "transformers/models/*/modular_*.py",
    "transformers/models/*/convert_*.py",
    "studio/*",
    "unsloth_cli/*",
)
"""Files that nothing here reads: of other devices, and what transformers' own files are generated from."""
MODELS = (
    *("auto", "bert", "bloom", "distilbert", "falcon_mamba", "gemma3", "gpt2", "gpt_oss", "llama", "mamba", "mixtral"),
    *("opt", "qwen2", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_vl", "siglip"),
    # liger-kernel imports these, whatever model it is used for
    *("deepseek_v2", "deepseek_v3", "deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2", "gemma4", "glm4"),
    *("glm4v", "glm4v_moe", "granite", "hunyuan_v1_dense", "hunyuan_v1_moe", "internvl", "llama4", "llava"),
    *("ministral", "mistral", "mllama", "muse_glimmer", "nemotron", "olmo2", "olmo3", "paligemma", "phi3", "pixtral"),
    *("qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_vl_moe", "smollm3", "smolvlm"),
)
"""Whose code stays: what the benchmark, tests/gpu, peft and liger-kernel import. Half of transformers is code of
others."""
OF_A_MODEL = ("modeling_*.py", "processing_*.py", "*_processing_*.py", "feature_extraction_*.py")
BY_CUDA = "bitsandbytes/libbitsandbytes_cuda*"
OLDEST_GLIBC = 5
LARGEST = 8


def needed(pyproject: Path) -> list[Requirement]:
    """Of rankzero with EXTRAS, and BESIDE."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in (*project["dependencies"], *extras, *BESIDE)]


def read_versions(text: str) -> dict[str, str]:
    """Name and version of each line `name==version`, or `name @ file://…/name-version-….whl`; others are left out."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, version = line.partition("==")
        if not version and " @ " in line and line.endswith(".whl"):
            _, parsed, *_ = parse_wheel_filename(line.rpartition("/")[2])
            name, version = line.partition(" @ ")[0], str(parsed)
        if version and not line.startswith("#"):
            found[canonicalize_name(name.strip())] = version.partition(";")[0].strip()
    return found


def target_environment(python: str, platform: str) -> dict[str, str]:
    """What markers of requirements are asked of."""
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64" if platform.endswith("x86_64") else platform.rpartition("_")[2],
    }


def requirements_of(wheel: Path) -> list[str]:
    """Its Requires-Dist."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(
            name for name in archive.namelist() if fnmatch(name, "*.dist-info/METADATA") and name.count("/") == 1
        )
        return email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []


def collect(
    wanted: Iterable[Requirement],
    have: Mapping[str, str],
    fetch: Callable[[str, SpecifierSet], Path],
    environment: Mapping[str, str],
    never: Iterable[str] = NEVER,
) -> dict[str, Path]:
    """The wheel of each package that is missing there or does not meet its bounds, with all that those need.

    `fetch` gets a name and its bounds. What the machine has is taken to have what it needs itself.
    """
    wheels: dict[str, Path] = {}
    bounds: dict[str, SpecifierSet] = {}
    waiting = list(wanted)
    while waiting:
        asked = waiting.pop(0)
        name = canonicalize_name(asked.name)
        if asked.marker is not None and not asked.marker.evaluate({**environment, "extra": ""}):
            continue
        if any(fnmatch(name, pattern) for pattern in never):
            continue
        bounds[name] = before = bounds.get(name, SpecifierSet()) & asked.specifier
        if name in wheels:
            _, version, *_ = parse_wheel_filename(wheels[name].name)
            if before.contains(version, prereleases=True):
                continue
        elif name in have and before.contains(have[name], prereleases=True):
            continue
        wheels[name] = fetch(name, bounds[name])
        for line in requirements_of(wheels[name]):
            inner = Requirement(line)
            if inner.marker is None or any(
                inner.marker.evaluate({**environment, "extra": extra}) for extra in ("", *asked.extras)
            ):
                inner.marker = None
                waiting.append(inner)
    return wheels


def pip_platforms(platform: str) -> list[str]:
    """`platform` and the older ones whose wheels run there: pip matches each name exactly."""
    head, _, machine = platform.removeprefix("manylinux_2_").partition("_")
    if not platform.startswith("manylinux_2_") or not head.isdigit():
        return [platform]
    names = [f"manylinux_2_{minor}_{machine}" for minor in range(int(head), OLDEST_GLIBC - 1, -1)]
    return [
        *names,
        *(f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1")),
        f"linux_{machine}",
    ]


def pip_download(directory: Path, python: str, platform: str) -> Callable[[str, SpecifierSet], Path]:
    """What fetches one wheel by pip: of our pinned version where that meets the bounds."""
    pins = read_versions((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    pins |= read_versions((ROOT / "benchmarks/constraints.txt").read_text(encoding="utf-8"))

    def fetch(name: str, bounds: SpecifierSet) -> Path:
        pinned = name in pins and bounds.contains(pins[name], prereleases=True)
        asked = f"{name}=={pins[name]}" if pinned else f"{name}{bounds}"
        print(asked, file=sys.stderr)
        into = directory / name
        shutil.rmtree(into, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp", "--dest", str(into)]
        command += [part for one in pip_platforms(platform) for part in ("--platform", one)]
        done = subprocess.run([*command, asked], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"pip has no wheel of {asked} for Python {python} on {platform}:\n{done.stderr[-2000:]}")
        return next(into.glob("*.whl"))

    return fetch


def is_dead(name: str, cuda: str) -> bool:
    """Whether nothing here reads a wheel's file where torch is of this CUDA version, as 13.0."""
    own = f"bitsandbytes/libbitsandbytes_cuda{cuda.replace('.', '')}.so"
    if fnmatch(name, "transformers/models/*/*"):
        model, file = name.split("/")[2:4]
        if model not in MODELS and any(fnmatch(file, pattern) for pattern in OF_A_MODEL):
            return True
    return any(fnmatch(name, pattern) for pattern in DEAD) or (fnmatch(name, BY_CUDA) and name != own)


def unpack(wheels: Iterable[Path], directory: Path, cuda: str) -> Counter[str]:
    """All files of the wheels but dead ones, in one directory. Returns bytes by package."""
    sizes = Counter[str]()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                place = _place(info.filename)
                if info.is_dir() or place is None or is_dead(info.filename, cuda):
                    continue
                info.filename = place
                archive.extract(info, directory)
                sizes[wheel.name.partition("-")[0]] += info.file_size
    return sizes


def _place(name: str) -> str | None:
    """Where a wheel's file goes; None for scripts and headers."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    kind, _, inner = rest.partition("/")
    return inner if kind in ("purelib", "platlib") else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--have", type=Path, help="what the machine has: its `pip list --format=freeze`")
    parser.add_argument("--never", nargs="*", default=NEVER, help=f"not taken along; default: {' '.join(NEVER)}")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--platform", default="manylinux_2_28_x86_64")
    parser.add_argument("--cuda", default="13.0", help="the CUDA of that machine's torch (bitsandbytes)")
    parser.add_argument("--most-mib", type=float, default=60.0)
    parser.add_argument(
        "--peer", choices=sorted(APART), help="only this peer, by its own bounds; default: rankzero and TRL"
    )
    parser.add_argument("--out", type=Path, help=f"default: {BUNDLE.name}, or {BUNDLE.name}-PEER")
    given = parser.parse_args(arguments)
    out = given.out or (BUNDLE.with_name(f"{BUNDLE.name}-{given.peer}") if given.peer else BUNDLE)
    wanted = [Requirement(name) for name in APART[given.peer]] if given.peer else needed(ROOT / "pyproject.toml")
    have = read_versions(given.have.read_text(encoding="utf-8")) if given.have is not None else {}
    environment = target_environment(given.python, given.platform)
    with tempfile.TemporaryDirectory(prefix="rankzero-bundle-") as work:
        fetch = pip_download(Path(work), given.python, given.platform)
        never = (*given.never, *UNUSED.get(given.peer, ()))
        wheels = collect(wanted, have, fetch, environment, never)
        shutil.rmtree(out, ignore_errors=True)
        sizes = unpack(wheels.values(), out, given.cuda)
    mib = sum(sizes.values()) / 2**20
    print(f"{out}: {mib:.1f} MiB of {len(wheels)} packages for Python {given.python}: {told(sizes)}")
    if mib > given.most_mib:
        raise SystemExit(
            f"that is more than {given.most_mib:g} MiB: say what the machine has (--have), or leave some out"
        )


def told(sizes: Counter[str]) -> str:
    """The largest packages in words."""
    words = [f"{name} {size / 2**20:.1f}" for name, size in sizes.most_common(LARGEST)]
    return ", ".join(words) + (f" and {len(sizes) - LARGEST} more" if len(sizes) > LARGEST else "")


if __name__ == "__main__":
    main()
