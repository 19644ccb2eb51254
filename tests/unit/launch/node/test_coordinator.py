"""What node 0 tells the others: events in, messages out."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rankzero.launch.node.coordinator import ELASTIC_SECONDS, PEER_LOST_SECONDS, SETTLE_SECONDS, Coordinator


def told(orders: Any, key: str) -> dict[int, Any]:
    return {order.node: order.message[key] for order in orders if key in order.message}


def running(nodes: int = 3, least: int | None = None) -> Coordinator:
    coordinator = Coordinator(nodes, least or nodes)
    for node in range(nodes):
        orders = coordinator.joined(node, 0.0)
    assert told(orders, "start") == dict.fromkeys(range(nodes), 1)
    return coordinator


def test_it_starts_when_all_are_there() -> None:
    coordinator = Coordinator(2, 2)
    assert coordinator.joined(1, 0.0) == []
    assert coordinator.missing() == [0]
    assert told(coordinator.joined(0, 5.0), "nodes") == {0: [0, 1], 1: [0, 1]}


def test_done_when_all_are_done() -> None:
    coordinator = running()
    assert coordinator.node_ended(0, 0, 1.0) == []
    assert coordinator.lost(0, 1.5) == []  # it had done its work
    assert coordinator.node_ended(2, 0, 2.0) == []
    assert told(coordinator.node_ended(1, 0, 3.0), "end") == {1: 0, 2: 0}


def test_a_lost_node_makes_the_others_gather_and_its_replacement_starts_them() -> None:
    coordinator = running()
    orders = coordinator.lost(1, 1.0)
    assert told(orders, "again") == dict.fromkeys((0, 2), "node 1 is gone")
    assert told(orders, "gentle") == {0: False, 2: False}
    assert coordinator.joined(1, 2.0) == []  # the others are not ready yet
    coordinator.joined(0, 3.0)
    assert told(coordinator.joined(2, 3.0), "start") == dict.fromkeys(range(3), 2)


def test_a_replacement_that_comes_before_the_loss_is_noticed() -> None:
    coordinator = running()
    assert set(told(coordinator.joined(1, 1.0), "again")) == {0, 2}


def test_codes_that_are_never_retried_end_all() -> None:
    assert told(running().node_ended(2, 65, 1.0), "end") == {0: 65, 1: 65}


def test_codes_that_are_never_retried_end_those_too_that_gather() -> None:
    """Two nodes fail at once, and the others hear of the second one when they have begun to gather for the first."""
    coordinator = running(4)
    coordinator.node_ended(1, 70, 1.0)
    coordinator.joined(0, 1.5)
    orders = coordinator.node_ended(2, 65, 2.0, why={"because": "node 2: a row is bad"})
    assert told(orders, "end").keys() >= {0, 3}, "one is back already, one still ends its processes"
    assert set(told(orders, "because").values()) == {"node 2: a row is bad"}


def test_other_failures_are_the_failing_nodes_alone() -> None:
    orders = running().node_ended(2, 70, 1.0)
    assert set(told(orders, "again")) == {0, 1}


def test_a_stopped_node_leaves_and_the_others_save() -> None:
    coordinator = running()
    coordinator.node_ended(1, 75, 1.0)
    orders = coordinator.lost(1, 1.1)
    assert told(orders, "gentle") == {0: True, 2: True}


def test_all_stopped_and_nobody_leaves() -> None:
    coordinator = running()
    for node in range(3):
        assert coordinator.node_ended(node, 75, 1.0) == []
    assert coordinator.tick(1.0 + SETTLE_SECONDS / 2) == []
    assert told(coordinator.tick(1.1 + SETTLE_SECONDS), "end") == dict.fromkeys(range(3), 75)


def test_blame_without_anybody_lost_is_ones_own_failure() -> None:
    coordinator = running()
    assert coordinator.node_ended(1, 69, 1.0, peer_lost=True) == []
    assert coordinator.tick(2.0) == []
    assert set(told(coordinator.tick(1.1 + PEER_LOST_SECONDS), "again")) == {0, 2}


def test_elastic_waits_for_the_rest_and_takes_late_ones_in_gently() -> None:
    coordinator = Coordinator(3, 2)
    coordinator.joined(0, 0.0)
    assert coordinator.joined(2, 1.0) == []
    assert told(coordinator.tick(2.0 + ELASTIC_SECONDS), "nodes") == {0: [0, 2], 2: [0, 2]}
    orders = coordinator.joined(1, 99.0)
    assert told(orders, "gentle") == {0: True, 2: True}


def test_the_others_hear_of_a_node_whose_loop_is_over() -> None:
    coordinator = running()
    assert told(coordinator.loop_over(1), "over") == {0: 1, 2: 1}
    coordinator.node_ended(1, 0, 1.0)
    coordinator.lost(2, 2.0)
    assert coordinator.loop_over(0) == [], "no start is under way"


EVENTS = st.tuples(st.sampled_from(["join", "lose", "done", "stop", "fail", "blame", "tick"]), st.integers(0, 3))


@given(st.lists(EVENTS, max_size=60))
def test_whatever_happens_orders_go_to_nodes_that_exist_and_starts_are_complete(events: list[tuple[str, int]]) -> None:
    coordinator = Coordinator(4, 4)
    connected: set[int] = set()
    for now, (what, node) in enumerate(events):
        if what == "join":
            connected.add(node)
            orders = coordinator.joined(node, now)
        elif what == "lose":
            connected.discard(node)
            orders = coordinator.lost(node, now)
        elif what == "tick":
            orders = coordinator.tick(now)
        else:
            code = {"done": 0, "stop": 75, "fail": 70, "blame": 69}[what]
            orders = coordinator.node_ended(node, code, now, peer_lost=what == "blame")
        assert {order.node for order in orders} <= set(range(4))
        for order in orders:
            if "start" in order.message:
                assert order.message["nodes"] == [0, 1, 2, 3]
                assert connected == {0, 1, 2, 3}
