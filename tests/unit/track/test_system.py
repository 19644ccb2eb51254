"""How busy the machine is, as it is kept for trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankzero.track.spool import Spool
from rankzero.track.system import Sampler


@pytest.mark.parametrize("left", ['{"step": 1, "time": 5.0, "load_1_m', '{"step": 1, "time": 5.0}'])
def test_a_line_that_a_kill_has_cut_off_costs_no_other(left: str, tmp_path: Path) -> None:
    """Nor does any sample get the number of another, whether that line is whole after all or is not."""
    path = tmp_path / "system.jsonl"
    path.write_text(f'{{"step": 0, "time": 4.0}}\n{left}')
    spool = Spool(path)
    assert [row["step"] for row in spool.after(-1)] == [0]
    for _ in range(2):
        Sampler(path, tmp_path).sample()
    assert [row["step"] for row in spool.after(0)] == [*([1] if left.endswith("}") else []), 2, 3]
