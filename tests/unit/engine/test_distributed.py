"""Which process of how many this one is."""

from __future__ import annotations

import ast
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import rankzero
from rankzero.engine import context_group
from rankzero.engine.context_group import _gather
from rankzero.engine.device import pick_device
from rankzero.engine.distributed import World, lost_a_peer, process_group, world_from_env
from rankzero.errors import ConfigError, PeerLostError, ServiceError
from tests.support.forked import in_ranks

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


def test_a_port_that_is_taken_is_no_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other nodes would wait for whoever was lost, and nobody was."""
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", port)
        with (
            pytest.raises(ServiceError, match=f"MASTER_PORT {port}: this port is taken") as caught,
            process_group(World(0, 0, 2, 1), pick_device(0), dict(os.environ)),
        ):
            pass
    assert not isinstance(caught.value, PeerLostError) and not lost_a_peer(caught.value)


SINCE_TORCH_2_11 = {
    *("barrier", "destroy_process_group", "get_rank", "get_world_size", "new_group"),
    *("init_process_group", "is_initialized", "all_gather_into_tensor", "all_gather_object", "all_reduce"),
    *("all_to_all_single", "broadcast", "broadcast_object_list", "recv", "reduce_scatter_tensor", "send"),
    *("DistError", "HashStore", "ProcessGroup", "Work"),
}


def test_no_collective_is_newer_than_the_oldest_torch() -> None:
    """pyproject.toml takes torch from 2.11 on. What is asked for by getattr may be missing."""
    used = set()
    for path in Path(rankzero.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
            if alias.name == "torch.distributed" and alias.asname
        }
        used |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
        }
    assert "all_reduce" in used and used <= SINCE_TORCH_2_11


@pytest.mark.distributed
def test_slices_are_gathered_by_the_names_of_older_versions_too(tmp_path: Path) -> None:
    assert in_ranks(gathered_by_older_names, 2, tmp_path) == [0, 0]


def gathered_by_older_names(_directory: Path) -> None:
    """Each rank gives its number; backward it gets what all say of its own."""
    context_group.all_gather_into = dist.all_gather_into_tensor
    context_group.reduce_scatter_into = dist.reduce_scatter_tensor
    env = dict(os.environ)
    world = world_from_env(env)
    with process_group(world, pick_device(world.local_rank), env):
        own = torch.full((2, 3), float(world.rank), requires_grad=True)
        gathered = _gather(own, group=dist.group.WORLD, size=2)
        assert gathered.shape == (2, 2, 3) and [float(part.mean()) for part in gathered] == [0.0, 1.0]
        (gathered * torch.tensor([1.0, 10.0])[:, None, None]).sum().backward()
        assert own.grad is not None and torch.equal(own.grad, torch.full((2, 3), 2.0 * 10.0**world.rank))
