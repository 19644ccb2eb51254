"""`python -m rankzero.start MODULE …`: as `python -m MODULE …`, in a process of ours from its first import on."""

from __future__ import annotations

import runpy
import sys

from rankzero.cache.import_structure import keep_import_structure
from rankzero.collector import look_seldom
from rankzero.stderr import outlive_readers


def main() -> None:
    """Run the module."""
    look_seldom()
    keep_import_structure()
    outlive_readers()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
