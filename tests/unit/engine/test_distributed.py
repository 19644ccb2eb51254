"""Which process of how many this one is."""

from __future__ import annotations

import pytest

from rankzero.engine.distributed import World, world_from_env
from rankzero.errors import ConfigError

PLACE = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


def test_a_launcher_says_it() -> None:
    assert world_from_env(PLACE) == World(rank=3, local_rank=1, world_size=4, local_world_size=2)
    for wrong in ({"WORLD_SIZE": "two"}, {"WORLD_SIZE": "3"}):
        with pytest.raises(ConfigError):
            world_from_env(PLACE | wrong)


@pytest.mark.parametrize("left_over", [{}, {"WORLD_SIZE": "4", "LOCAL_RANK": "1"}, {"WORLD_SIZE": ""}])
def test_without_a_rank_a_process_is_alone_whatever_else_is_set(left_over: dict[str, str]) -> None:
    """As in a shell or an image in which another launcher's variables were exported: nobody would come to meet it."""
    assert world_from_env({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", **left_over}) == World()
