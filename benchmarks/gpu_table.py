"""From samples to markdown: what a GPU can do at most, utilisation, the table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from gpu_cells import Cell
from gpu_run import Sample

from rankzero.forecast.devices import find_device

START, END = "<!-- gpu results: start -->", "<!-- gpu results: end -->"

Results = Mapping[tuple[Cell, str], Sequence[Sample]]


def peak_flops(device: str) -> float | None:
    """Most that a device can do in a second, dense in bfloat16; None where it is not known."""
    found = find_device(device)
    return None if found is None else found.matrix


def utilisation(cell: Cell, parameters: int, tokens_per_second: float, peak: float | None) -> float | None:
    """Model FLOPs utilisation: 4N a token under adapters, 6N in full fine-tuning, N all parameters. Recomputed
    activations, attention's own products and padding do not count."""
    return None if peak is None else cell.flops_per_parameter * parameters * tokens_per_second / peak


def median(samples: Sequence[Sample], field: str) -> float:
    return float(statistics.median(getattr(sample, field) for sample in samples))


def figures_table(results: Results, parameters: Mapping[str, int], peak: float | None) -> str:
    """Medians, one contestant of a cell in a line; `÷ peer` is ours by the peer's."""
    lines = [
        "| model | method | contestant | useful tokens/s | ÷ peer | MFU | peak memory | time to first step | loss |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for (cell, entrant), samples in results.items():
        speed = median(samples, "tokens_per_second")
        share = utilisation(cell, parameters[cell.shape], speed, peak)
        lines.append(
            f"| {cell.shape} ({parameters[cell.shape] / 1e9:.2f}B) | {cell.method} | {entrant} | {speed:,.0f} "
            f"| {_ratio(results, cell, entrant)} | {'' if share is None else f'{share:.1%}'} "
            f"| {median(samples, 'peak_bytes') / 2**30:.1f} GiB | {median(samples, 'first_step_seconds'):.1f} s "
            f"| {median(samples, 'loss_first'):.2f} → {median(samples, 'loss_last'):.2f} |"
        )
    return "\n".join(lines)


def _ratio(results: Results, cell: Cell, entrant: str) -> str:
    """By the fastest peer of the same cell, or of another cell of the same model and method."""
    if not entrant.startswith("rankzero"):
        return ""
    peers = [
        samples
        for (other, name), samples in results.items()
        if other.name == cell.name and not name.startswith("rankzero")
    ]
    if not peers:
        return ""
    own, *others = (median(samples, "tokens_per_second") for samples in (results[cell, entrant], *peers))
    return f"{own / max(others):.2f}"


def choices_list(results: Results) -> str:
    """What each contestant ran with."""
    return "\n".join(
        f"- {cell.name}, {entrant}: {samples[-1].choices}; {len(samples)} run{'' if len(samples) == 1 else 's'}"
        for (cell, entrant), samples in results.items()
    )


def render(head: str, table: str, choices: str, skipped: Sequence[str], tests: str) -> str:
    """The whole results section."""
    parts = [head, table, choices]
    if skipped:
        parts.append("Left out:\n" + "\n".join(f"- {reason}" for reason in skipped))
    return "\n\n".join([*parts, f"`tests/gpu`: {tests}"])


def write_between_markers(text: str, results: str) -> str:
    """`text` with everything between the markers replaced."""
    before, found, rest = text.partition(START)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"benchmarks/README.md lacks the lines {START} and {END}")
    return f"{before}{START}\n\n{results}\n\n{END}{after}"
