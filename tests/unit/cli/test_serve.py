"""`rankzero serve` as it is typed: what it takes away, prints and refuses before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.cli import Cli

NOTE = '{"url": "http://127.0.0.1:8000/v1", "model": "first", "engine": "vllm"}'


def test_an_answer_of_a_start_before_is_gone_before_anything_is_read(cli: Cli, tmp_path: Path) -> None:
    """A container that starts again finds the file of the one before it: nothing of this start has answered yet."""
    ready, kept, nothing = tmp_path / "ready", tmp_path / "kept", tmp_path / "nothing"
    ready.write_text(NOTE)
    assert cli(f"serve {nothing} --ready-file {ready}").code == 78
    assert not ready.exists()
    kept.write_text(NOTE)
    assert cli(f"serve {nothing} --ready-file {kept} --print").code == 78
    assert kept.exists(), "what only prints takes nothing away"


def test_a_link_to_the_answer_and_a_pipe_for_it_stay(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "there").write_text(NOTE)
    (tmp_path / "link").symlink_to("there")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        assert cli(f"serve {tmp_path}/nothing --ready-file {tmp_path}/{name}").code == 78
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "there").exists() and (tmp_path / "pipe").is_fifo()


def test_where_no_answer_can_be_written_is_told_first(cli: Cli, tmp_path: Path) -> None:
    done = cli(f"serve {tmp_path}/nothing --ready-file {tmp_path}")
    assert done.code == 74 and str(tmp_path) in done.err and "--ready-file" in done.err, done.err
