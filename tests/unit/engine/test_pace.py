"""Which rank is named as slow, and which is not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankzero.engine.distributed import World
from rankzero.engine.pace import Pace, PassClock, Passes
from rankzero.engine.worker import open_pace
from rankzero.spec.run_spec import RunSpec

SPEC = {"model": {"name": "m"}, "data": {"train": "t"}}


def after(pace: Pace, steps: int, *ranks: Passes) -> dict[str, object]:
    facts: dict[str, object] = {}
    for _ in range(steps):
        facts = pace.add(ranks)
    return facts


def test_a_slow_rank_is_named_with_its_host(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("rankzero").propagate = True
    caplog.set_level(logging.INFO, logger="rankzero")  # whatever a run in this process has left there
    pace = Pace(["a", "a", "b"])
    assert after(pace, 4, *[Passes(1.0, 100)] * 3) == {}, "too few to say anything"
    facts = after(pace, 20, Passes(1.0, 100), Passes(1.1, 100), Passes(3.0, 100))
    assert facts["straggler"] == "rank 2 on b" and facts["slowest_rank"] == 2
    assert facts["slowest_rank_slowdown"] == pytest.approx(3 / 1.05)
    (found,) = pace.report()
    assert (found["rank"], found["host"]) == (2, "b") and found["slowdown"] > 2.8 and found["steps"] > 10
    told = {id(record) for record in caplog.records if "rank 2 on b takes" in record.getMessage()}
    assert len(told) == 1


def test_even_ranks_are_not() -> None:
    pace = Pace(["a", "b"])
    facts = after(pace, 30, Passes(1.0, 100), Passes(1.3, 100))
    assert facts == {"slowest_rank": 1, "slowest_rank_slowdown": pytest.approx(1.3)}
    assert pace.report() == []


def test_a_rank_with_more_to_do_or_less_is_not_slow() -> None:
    pace = Pace(["a", "b"])
    assert "straggler" not in after(pace, 30, Passes(4.0, 400), Passes(1.0, 100))
    pace = Pace(["a", "b"])
    assert "straggler" not in after(pace, 30, Passes(1.0, 400), Passes(0.5, 20))


def test_one_process_and_unknown_times_say_nothing() -> None:
    assert after(Pace(["a"]), 30, Passes(1.0, 100)) == {}
    assert after(Pace(["a", "b"]), 30, Passes(0.0, 100), Passes(1.0, 100)) == {}


def test_who_has_recovered_is_no_longer_named() -> None:
    pace = Pace(["a", "b"])
    after(pace, 20, Passes(1.0, 100), Passes(3.0, 100))
    assert "straggler" not in after(pace, 30, Passes(1.0, 100), Passes(1.0, 100))
    assert [found["rank"] for found in pace.report()] == [1]


def steps(pace: Pace, count: int, saving: list[bool], beside: float) -> list[dict[str, object]]:
    """Steps in which rank 0 takes `beside` seconds while it saves, else 1, as rank 1; the times of each are known in
    the next. `saving` goes round."""
    said, ranks = [], (Passes(0.0, 0.0), Passes(0.0, 0.0))
    for step in range(count):
        saves = saving[step % len(saving)]
        pace.begin_step(saving=saves)
        said.append(pace.add(ranks))
        ranks = (Passes(beside if saves else 1.0, 100), Passes(1.0, 100))
    return said


@pytest.mark.parametrize("saving", [[True, False], [True, True, True, False], [True]])
def test_a_rank_is_not_slow_by_what_it_saves(saving: list[bool]) -> None:
    pace = Pace(["a", "a"])
    said = steps(pace, 40, saving, beside=3.0)
    assert any(said) and pace.report() == [] and all("straggler" not in facts for facts in said)


def test_another_rank_is_named_while_the_main_one_saves_all_the_time() -> None:
    pace = Pace(["a", "b"])
    for _ in range(20):
        pace.begin_step(saving=True)
        facts = pace.add((Passes(1.0, 100), Passes(3.0, 100)))
    assert facts["straggler"] == "rank 1 on b"


def test_a_clock_times_what_lies_between_and_says_so_when_it_is_read() -> None:
    clock = PassClock(torch.device("cpu"))
    clock.start()
    busy = sum(range(200_000))
    clock.stop()
    assert clock.seconds == 0.0 and busy
    clock.read()
    first = clock.seconds
    clock.read()
    assert 0 < first == clock.seconds


@pytest.mark.parametrize("field", ["context_parallel", "expert_parallel"])
def test_ranks_that_meet_within_passes_are_not_compared(field: str) -> None:
    """They wait for each other in each layer, so the time of one is that of all."""
    session: Any = SimpleNamespace(parallel=SimpleNamespace(name="ddp"))
    found = [
        open_pace(RunSpec.model_validate({**SPEC, "train": {field: each}}), session, World(world_size=4))
        for each in (1, 2)
    ]
    assert isinstance(found[0], Pace) and found[1] is None
