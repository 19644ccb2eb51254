"""Which node this is, on every platform."""

from __future__ import annotations

import pytest

from rankzero.errors import ConfigError
from rankzero.launch.node.platform import Place, find_place
from rankzero.launch.node.settings import NodeSettings

SETTINGS = NodeSettings(run="run", num_nodes=4, nproc_per_node=2)


@pytest.mark.parametrize(
    ("env", "hostname", "expected"),
    [
        ({"JOB_COMPLETION_INDEX": "2", "RANKZERO_MASTER": "run-0.run"}, "run-2", Place(2, 4, 2, "run-0.run")),
        (
            {
                "JOB_COMPLETION_INDEX": "1",
                "PET_NODE_RANK": "1",
                "PET_MASTER_ADDR": "run-node-0-0.run",
                "PET_MASTER_PORT": "29501",
            },
            "run-node-0-1",
            Place(1, 4, 2, "run-node-0-0.run", 29501),
        ),
        (
            {
                "RANK": "3",
                "WORLD_SIZE": "8",
                "PET_NODE_RANK": "3",
                "MASTER_ADDR": "run-master-0",
                "MASTER_PORT": "23456",
            },
            "run-worker-2",
            Place(3, 4, 2, "run-master-0", 23456),
        ),
        ({"POD_NAME": "run-3", "RANKZERO_MASTER": "run-0.run"}, "x", Place(3, 4, 2, "run-0.run")),
        ({"RANKZERO_MASTER": "run-0.run"}, "run-0", Place(0, 4, 2, "run-0.run")),
        ({"RANKZERO_MASTER": "run-worker-0", "PET_NNODES": "2:4"}, "run-worker-1", Place(1, 4, 2, "run-worker-0")),
        (
            {"RANKZERO_NODE": "2", "RANKZERO_MASTER": "run-0", "RANKZERO_CONTROL_PORT": "5"},
            "run-2",
            Place(2, 4, 2, "run-0", control_port=5),
        ),
        ({"NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}, "host", Place(1, 4, 2, "10.0.0.1")),
        ({"GROUP_RANK": "1", "MASTER_ADDR": "10.0.0.1"}, "host", Place(1, 4, 2, "10.0.0.1")),
    ],
)
def test_places(env: dict[str, str], hostname: str, expected: Place) -> None:
    assert find_place(SETTINGS, env, hostname) == expected


def test_one_node_needs_nothing() -> None:
    assert find_place(NodeSettings(run="run"), {}, "anything-7") == Place(0, 1, 1, "127.0.0.1")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, ["which node this is", "JOB_COMPLETION_INDEX", "where node 0 is"]),
        ({"JOB_COMPLETION_INDEX": "x", "MASTER_ADDR": "a"}, ["'x' is not the number of a node"]),
        ({"JOB_COMPLETION_INDEX": "1", "NODE_RANK": "2", "MASTER_ADDR": "a"}, ["JOB_COMPLETION_INDEX=1, NODE_RANK=2"]),
        ({"JOB_COMPLETION_INDEX": "4", "MASTER_ADDR": "a"}, ["this is node 4, but the run has 4"]),
        ({"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a", "PET_NNODES": "1:2"}, ["started 2 nodes, but the run has 4"]),
        ({"NODE_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "70000"}, ["'70000' is not a port"]),
    ],
)
def test_all_that_is_missing_or_contradicts_itself(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        find_place(SETTINGS, env, "elsewhere-run-1x")
    assert all(word in str(caught.value) for word in words)
