"""The tables of docs/scale.md, from the cost model: known shapes, each by every method, on 8, 64 and 1,024 H100.

`python -m tests.support.scale` prints them. No weights: shapes are of tensors without memory.
"""

from __future__ import annotations

from rankzero.forecast.cost import StepCost, Work, breaks, step_cost
from rankzero.forecast.devices import Device, Network, assumed_network, find_device
from rankzero.forecast.forecast import MemoryOutlook, outlook
from rankzero.forecast.rows import facts_of_rows
from rankzero.spec.run_spec import RunSpec
from tests.support.memory import make_spec
from tests.support.memory_table import H100, METHODS, facts_of_shape

ROW, BATCH, A_NODE = 4096, 128, 8
COUNTS = (8, 64, 1024)
NAMES = ("Qwen3 8B", "Qwen3 30B-A3B", "Llama 3.1 70B")
SWIFT = {"row": 8192, "rows": 16, "ranks": 16, "megatron": 9.6, "zero3": 91.2}
"""ms-swift's published comparison: Qwen3-30B-A3B in full, two nodes of eight A800, one packed row of 8,192 tokens each,
all recomputed; seconds a step. examples/train/megatron/qwen3_moe.sh of modelscope/ms-swift has the settings."""
SWIFT_NETWORK = Network(A_NODE, 100e9)
"""What their nodes had is not said; 800 Gbit/s a node is assumed."""


def device(name: str) -> Device:
    found = find_device(name)
    assert found is not None
    return found


def scaled(name: str, method: str, ranks: int, *, rdma: bool = True) -> tuple[MemoryOutlook, StepCost]:
    """A step of BATCH rows on as many H100 as `ranks`, eight in a node."""
    spec = make_spec(**METHODS[method], train={"global_batch_size": BATCH})
    rows = facts_of_rows(None, None, ROW)
    planned = outlook(spec, facts_of_shape(name, method), rows, H100, "cuda", ranks)
    busiest = -(-BATCH // ranks)
    passes = -(-busiest // max(1, planned.plan.micro_batch_tokens // ROW))
    work = Work(busiest * ROW, passes, ROW, useful=BATCH * ROW)
    return planned, step_cost(planned.need, device("H100"), assumed_network(A_NODE, rdma=rdma), work)


def table() -> str:
    """In Markdown."""
    lines = [
        "| model | method | GPUs | spread | s a step | tokens/s | waiting | what breaks | on Ethernet: s | waiting |",
        "|---|---|--:|---|--:|--:|--:|---|--:|--:|",
    ]
    for name in NAMES:
        for method in METHODS:
            for ranks in COUNTS:
                planned, cost = scaled(name, method, ranks)
                slow = scaled(name, method, ranks, rdma=False)[1]
                cells = [name, method, f"{ranks:,}", planned.sharding, _seconds(cost.seconds)]
                cells += [f"{float(f'{cost.tokens_per_second:.3g}'):,.0f}", _share(cost)]
                cells += [", ".join(breaks(planned.need, cost, BATCH, H100)) or "–"]
                cells += ["", ""] if ranks == A_NODE else [_seconds(slow.seconds), _share(slow)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(cost: StepCost) -> str:
    return f"{100 * cost.waiting_share:.0f} %"


def swift_spec() -> RunSpec:
    train = {"global_batch_size": 16, "sharding": "zero3", "gradient_checkpointing": True}
    return make_spec(train={**train, "micro_batch_tokens": SWIFT["row"]})


def swift(gpu: str, efficiency: float | None = None) -> StepCost:
    """ms-swift's run, spread by zero3 as the recipe of 16 GPUs is; on A800, or on H100 with RDMA."""
    row, rows, ranks = int(SWIFT["row"]), int(SWIFT["rows"]), int(SWIFT["ranks"])
    found = outlook(
        swift_spec(), facts_of_shape("Qwen3 30B-A3B", "full"), facts_of_rows(None, None, row), H100, "cuda", ranks
    )
    work = Work(rows / ranks * row, 1, row, useful=rows * row)
    network = SWIFT_NETWORK if gpu == "A800" else assumed_network(A_NODE, rdma=True)
    return step_cost(found.need, device(gpu), network, work, efficiency=efficiency)


def swift_table() -> str:
    """In Markdown."""
    lines = [
        "| 16 GPUs | products reach | computing | recomputing | optimizer | on its way | waited for | a step |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for gpu in ("A800", "H100"):
        for share in (0.40, 0.20, None):
            cost = swift(gpu, share)
            parts = (cost.compute, cost.recompute, cost.optimizer, cost.communication, cost.waiting, cost.seconds)
            cells = [gpu, f"{100 * cost.efficiency:.0f} %", *(f"{_seconds(part)} s" for part in parts)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(number: float) -> str:
    return f"{number:.1f}" if number >= 1 else f"{number:.2f}"


if __name__ == "__main__":
    print(table(), swift_table(), sep="\n\n")
