"""Which rankzero this is: its version, and what its code comes to, since two builds of one version need not be alike.

`python -m rankzero.launch.node.code` prints both, as a machine that looks into a pod asks for them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import rankzero


@dataclass(frozen=True, slots=True)
class Code:
    """Equal where the same code runs."""

    version: str
    digest: str
    """Of the names and contents of all modules."""

    def __str__(self) -> str:
        return f"rankzero {self.version} (code {self.digest[:8]})"


@cache
def this_code() -> Code:
    """What runs here; a tenth of a second when it is first asked for."""
    return Code(rankzero.__version__, digest_of(Path(rankzero.__file__).parent))


def digest_of(root: Path) -> str:
    """Of the names and contents of all modules below a directory, in hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


if __name__ == "__main__":
    print(json.dumps(asdict(this_code())))
