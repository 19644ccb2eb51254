"""The tables of docs/scale.md, from the cost model: known shapes, each by every method, on 8, 64 and 1,024 H100.

`python -m tests.support.scale` prints them. No weights: shapes are of tensors without memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankzero.forecast.cost import StepCost, Work, breaks, step_cost
from rankzero.forecast.devices import BANDWIDTH_SHARE, HOP_SECONDS, Device, Network, assumed_network, find_device
from rankzero.forecast.forecast import MemoryOutlook, Place, outlook
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


def place_of(gpu: str, ranks: int, network: Network) -> Place:
    """So many GPUs with the memory of an H100."""
    return Place("cuda", gpu, H100, 0, ranks, network)


def device(name: str) -> Device:
    found = find_device(name)
    assert found is not None
    return found


def scaled(
    name: str,
    method: str,
    ranks: int,
    *,
    rdma: bool = True,
    efficiency: float | None = None,
    train: Mapping[str, Any] | None = None,
) -> tuple[MemoryOutlook, StepCost]:
    """A step of BATCH rows on as many H100 as `ranks`, eight in a node, with these fields of `train`."""
    spec = make_spec(**METHODS[method], train={"global_batch_size": BATCH, **(train or {})})
    rows = facts_of_rows(None, None, ROW)
    network = assumed_network(A_NODE, rdma=rdma)
    planned = outlook(spec, facts_of_shape(name, method), rows, place_of("H100", ranks, network))
    busiest = -(-BATCH // ranks)
    passes = -(-busiest // max(1, planned.plan.micro_batch_tokens // ROW))
    work = Work(busiest * ROW, passes, ROW, useful=BATCH * ROW)
    return planned, step_cost(planned.need, device("H100"), network, work, efficiency=efficiency)


def table() -> str:
    """In Markdown."""
    lines = [
        "| model | method | GPUs | spread | s a step | tokens/s | waiting | what breaks | on Ethernet | s | waiting |",
        "|---|---|--:|---|--:|--:|--:|---|---|--:|--:|",
    ]
    for name in NAMES:
        for method in METHODS:
            for ranks in COUNTS:
                planned, cost = scaled(name, method, ranks)
                again, slow = scaled(name, method, ranks, rdma=False)
                cells = [name, method, f"{ranks:,}", planned.sharding, _seconds(cost.seconds)]
                cells += [f"{float(f'{cost.tokens_per_second:.3g}'):,.0f}", _share(cost)]
                cells += [", ".join(breaks(planned.need, cost, BATCH, H100)) or "–"]
                cells += ["", "", ""] if ranks == A_NODE else [again.sharding, _seconds(slow.seconds), _share(slow)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(cost: StepCost) -> str:
    return f"{100 * cost.waiting_share:.0f} %"


def swift_spec(**changes: Any) -> RunSpec:
    train = {"global_batch_size": 16, "sharding": "zero3", "gradient_checkpointing": True}
    return make_spec(train={**train, "micro_batch_tokens": SWIFT["row"], **changes})


def swift(gpu: str, efficiency: float | None = None, **changes: Any) -> StepCost:
    """ms-swift's run, spread by zero3 as the recipe of 16 GPUs is; on A800, or on H100 with RDMA."""
    row, rows, ranks = int(SWIFT["row"]), int(SWIFT["rows"]), int(SWIFT["ranks"])
    network = SWIFT_NETWORK if gpu == "A800" else assumed_network(A_NODE, rdma=True)
    facts = facts_of_shape("Qwen3 30B-A3B", "full")
    found = outlook(swift_spec(**changes), facts, facts_of_rows(None, None, row), place_of(gpu, ranks, network))
    work = Work(rows / ranks * row, 1, row, useful=rows * row)
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


EXPERTS = (
    *(("full", "fsdp", together) for together in (1, 8, 16)),
    *(("LoRA", spread, together) for spread, together in (("fsdp", 1), ("ddp", 1), ("ddp", 2), ("ddp", 8))),
    *(("QLoRA", "ddp", together) for together in (1, 2, 8)),
)
"""How the 30B with experts lies on 16 GPUs: method, sharding, expert_parallel."""


def experts_on_sixteen(method: str, sharding: str, together: int, share: float) -> tuple[MemoryOutlook, StepCost]:
    train = {"sharding": sharding, "expert_parallel": together}
    return scaled("Qwen3 30B-A3B", method, 16, efficiency=share, train=train)


def experts_table() -> str:
    """In Markdown."""
    lines = [
        "| method | `sharding` | `expert_parallel` | memory each | at 10 %: s | waiting | at 40 %: s | waiting |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for method, sharding, together in EXPERTS:
        low, high = (experts_on_sixteen(method, sharding, together, share) for share in (0.10, 0.40))
        cells = [method, sharding, str(together), f"{low[0].need.bytes / 1e9:.0f} GB"]
        cells += [cell for _, cost in (low, high) for cell in (_seconds(cost.seconds), _share(cost))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


TENSOR = (
    *(("Qwen3 8B", method, 8) for method in ("LoRA", "full")),
    ("Qwen3 30B-A3B", "full", 16),
    *(("Llama 3.1 70B", method, ranks) for method in ("LoRA", "full") for ranks in (16, 32)),
)
"""Where products could be split: model, method, GPUs."""


def tensor_parallel(name: str, method: str, ranks: int, ways: int, share: float) -> tuple[float, float]:
    """(seconds of a step without, with every product split over `ways` GPUs of a node). Each layer then sums what two
    of its products give, forward, backward and for recomputing, and waits for it (Shoeybi et al. 2019, 3); of weights
    and gradients a process sends a part as large, and a packed weight is unpacked by parts."""
    planned, cost = scaled(name, method, ranks, efficiency=share)
    need, gpu = planned.need, device("H100")
    tokens = -(-BATCH // ranks) * ROW * ways  # of all rows that these GPUs have together
    size = tokens * need.facts.text.hidden * need.facts.compute_bytes
    passes = -(-tokens // max(1, planned.plan.micro_batch_tokens * ways))
    sums = need.facts.text.count * (6 if need.recomputing else 4)
    each = 2 * (ways - 1) * (size / ways / (gpu.link * BANDWIDTH_SHARE) + passes * HOP_SECONDS)
    hidden = cost.communication - cost.waiting
    waiting = max(0.0, cost.communication / ways - hidden) + sums * each
    products = cost.compute + cost.recompute + cost.between + cost.optimizer + cost.unpack / ways
    return cost.seconds, products + waiting


def tensor_table() -> str:
    """In Markdown."""
    lines = [
        "| model | method | GPUs | as above: s | over 2 GPUs | over 8 GPUs | at 60 %: s | over 2 | over 8 |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, method, ranks in TENSOR:
        cells = [name, method, str(ranks)]
        assumed = scaled(name, method, ranks)[1].efficiency
        for share in (assumed, 0.60):
            two, eight = (tensor_parallel(name, method, ranks, ways, share) for ways in (2, 8))
            cells += [_seconds(two[0]), _seconds(two[1]), _seconds(eight[1])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _seconds(number: float) -> str:
    return f"{number:.1f}" if number >= 1 else f"{number:.2f}"


if __name__ == "__main__":
    print(table(), swift_table(), experts_table(), tensor_table(), sep="\n\n")
