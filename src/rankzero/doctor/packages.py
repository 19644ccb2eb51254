"""Which packages are installed, beside the versions that the tests ran with."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from rankzero.doctor.finding import Finding, look, ok, wrong
from rankzero.errors import ExitCode
from rankzero.wording import listed

ENGINE = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "peft": "0.21.2",
    "tokenizers": "0.23.3",
    "safetensors": "0.8.0",
    "huggingface_hub": "2.4.0",
    "numpy": "2.4.6",
    "pyarrow": "26.0.1",
    "orjson": "3.13.0",
}
"""What training needs. The versions are those of constraints.txt, which a test sees to."""
EXTRAS = {"bitsandbytes": "0.50.2", "deepspeed": "0.19.8"}
"""What some specs need."""
LAUNCHER = {"pydantic": "2.14.3", "typer": "0.29.2", "lightkube": "1.0.1"}


def packages() -> Iterator[Finding]:
    """rankzero's own, those of the engine, and which versions nobody has tried together."""
    yield ok("rankzero", f"{_installed('rankzero') or 'from source'}, Python {platform.python_version()}")
    there = {name: found for name in (*ENGINE, *EXTRAS, *LAUNCHER) if (found := _installed(name)) is not None}
    missing = [name for name in ENGINE if name not in there]
    if missing:
        what = f"{listed(missing)} not installed: this machine can submit runs, not train"
        yield wrong("packages", what, "pip install 'rankzero[train]'", ExitCode.CONFIG)
        return
    tested = {**ENGINE, **EXTRAS, **LAUNCHER}
    others = [
        f"{name} {found} (tested: {tested[name]})"
        for name, found in there.items()
        if found.partition("+")[0] != tested[name]  # 2.13.0+cpu is a build of 2.13.0
    ]
    known = ", ".join(f"{name} {there[name]}" for name in ("torch", "transformers", "peft"))
    if others:
        yield look("packages", listed(others), "pip install -c constraints.txt, if something behaves oddly")
    else:
        yield ok("packages", f"{known}: as tested")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
