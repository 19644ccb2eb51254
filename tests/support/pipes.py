"""A pipe with a name, and somebody who reads it: what may be where a command is to write."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def read_pipe(path: Path) -> Iterator[list[bytes]]:
    """Made at `path`; when the block ends, the list has all that came out of it, and the pipe is still one."""
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as elsewhere:
        pipe = Path(elsewhere) / "pipe"
        os.mkfifo(pipe)
        os.link(pipe, path)
        found: list[bytes] = []
        reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
        reader.start()
        try:
            yield found
            assert stat.S_ISFIFO(path.stat().st_mode), "something else has its name"
            reader.join(60)
        finally:
            if reader.is_alive():  # nobody has written: let it go
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                reader.join(60)
