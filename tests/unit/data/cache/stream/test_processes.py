"""The process that reads ahead: it serves, ends with whoever started it, and leaves nothing on disk."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from rankzero.data.cache.stream.plan import make_stream
from rankzero.data.cache.stream.rows import Feeder, RowStream, StreamPosition, new_directory, remove_abandoned
from rankzero.data.cache.tokenize import TokenRules
from rankzero.data.read.network import RealNetwork
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec
from tests.support.tiny import tiny_tokenizer, write_jsonl

BEGIN = """
import os, signal, sys
from pathlib import Path
from rankzero.data.cache.stream.order import Cursor
from rankzero.data.cache.stream.plan import Stream
from rankzero.data.cache.stream.rows import Feeder
from rankzero.data.cache.tokenize import TokenRules
from rankzero.data.tokens.tokenizer import TokenizerParts

parts = TokenizerParts("", None, {}, "", -1, ())
stream = Stream((), (), parts, TokenRules(), 0, 5, 10**9)
feeder = Feeder(stream, Cursor(), Path(sys.argv[1]), workers=1)
print(feeder._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def begun(tmp_path: Path, workers: int) -> RowStream:
    for number in range(3):
        write_jsonl(tmp_path / f"d/{number}.jsonl", [{"text": f"row {number} {row}"} for row in range(80)])
    stream = make_stream(
        [SourceSpec(path=str(tmp_path / "d"))],
        tiny_tokenizer(),
        TokenRules(),
        seed=1,
        window_rows=60,
        cache_bytes=10**9,
        network=RealNetwork(),
    )
    directory, position = new_directory(tmp_path / "cache"), StreamPosition().under(stream)
    return RowStream(stream, position, directory, Feeder(stream, position.cursor, directory, workers=workers))


def until_ready(rows: RowStream, count: int) -> None:
    while not rows.ready(count):
        threading.Event().wait(0.01)


def test_it_serves_rows_and_says_why_there_are_no_more(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = begun(tmp_path, workers=2)
    until_ready(rows, 100)
    taken = rows.take(100)
    assert len({taken.rows.where(i) for i in range(100)}) == 100
    for path in (tmp_path / "d").iterdir():
        path.write_text("another\n")
    with pytest.raises(DataError, match="changed since it was listed"):
        while True:  # what it has open it reads to the end
            until_ready(rows, 100)
            rows.take(100)
    rows.close()
    assert not list((tmp_path / "cache/streams").iterdir())
    assert capfd.readouterr().err == "", "its workers end without a word"


def test_it_ends_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    directory = tmp_path / "streams/mine"
    done = subprocess.run([sys.executable, "-c", BEGIN, str(directory)], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    while Path(f"/proc/{int(done.stdout)}").exists() and _is_alive(int(done.stdout)):
        threading.Event().wait(0.01)
    assert not directory.exists()
    assert Path(f"{directory}.lock").exists(), "which the next one removes"
    remove_abandoned(directory.parent)
    assert not list(directory.parent.iterdir())


def _is_alive(pid: int) -> bool:
    """Nobody may be there to collect it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_only_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    for name in ("held", "left"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.lock").touch()
    with FileLock(tmp_path / "held.lock"):
        remove_abandoned(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "held.lock"]
