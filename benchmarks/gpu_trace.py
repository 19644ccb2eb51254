"""From a profiler's events to tables: where a step's time goes, when a GPU had nothing to do, what the host waits for.

Pure: knows torch's trace format and markdown, and no torch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STEP, END = "rankzero step", "wait for the end of the step"
"""Marks: around all of a step, and around the wait of who measures, which is no part of it."""
GPU, OPERATION, RUNTIME, MARK, LINE = "gpu", "operation", "runtime", "mark", "line"
CATEGORIES = {
    "kernel": GPU,
    "gpu_memcpy": GPU,
    "gpu_memset": GPU,
    "cpu_op": OPERATION,
    "cuda_runtime": RUNTIME,
    "cuda_driver": RUNTIME,
    "user_annotation": MARK,
    "python_function": LINE,
}
KINDS = (
    ("communication", r"nccl|all_?reduce|all_?gather|reduce_scatter|broadcast_kernel"),
    ("reductions", r"^triton_(red|per)"),
    ("elementwise", r"^triton_poi|^_drop$"),
    ("optimizer", r"^_move$"),
    ("attention", r"flash|fmha|sdpa|attention|attn"),
    ("optimizer", r"adam|multi_tensor_apply|foreach|optimizer"),
    ("unpacking", r"dequant|unpack|kquantize"),
    ("matrix products", r"gemm|gemv|nvjet|cutlass|xmma|wgmma|cublas|splitk|::(add|b|baddb)?mm_?\b|::linear\b|::dot\b"),
    ("norms", r"norm"),
    (
        "copies and casts",
        r"copy|memcpy|memset|catarray|::cat\b|::clone|::contiguous|index|gather|scatter|embedding|fill",
    ),
    ("reductions", r"reduce|softmax|::sum|::mean|logsumexp|cross_entropy|scan|cumsum|argmax|nll_loss"),
    ("elementwise", r"elementwise|triton|silu|::(add|mul|sub|div|neg|sigmoid|exp|where|pow|rsqrt)_?\b|_kernel"),
)
"""In this order: the first that is found in a name, in small letters."""
OTHER = "other"
WAITS = re.compile(r"Synchronize|^cu(da)?Memcpy(2D|DtoH|HtoD)?(_v2)?$")
LAUNCHES = re.compile(r"Launch")
OURS = re.compile(r"(rankzero|transformers)/.*\.py\(\d+\)")
TOP, GAPS, WIDTH = 25, 10, 100


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time. Microseconds."""

    kind: str
    name: str
    start: float
    length: float
    thread: Any = 0
    correlation: int = 0
    """The same for a kernel and the call that launched it."""

    @property
    def end(self) -> float:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Gap:
    """When the GPU had nothing to do."""

    start: float
    length: float
    before: str
    after: str
    operation: str
    """What launched the kernel behind it, and within what."""
    line: str
    """Of ours or of the model; only where lines were recorded."""
    late: bool
    """The host launched that kernel within the gap: the GPU waited for the host."""


def read_events(trace: Mapping[str, Any]) -> list[Event]:
    """Of a trace as torch's profiler exports it, in order of their start."""
    found = []
    for one in trace["traceEvents"]:
        kind = CATEGORIES.get(one.get("cat", ""))
        if one.get("ph") == "X" and kind is not None:
            correlation = int(one.get("args", {}).get("correlation", 0))
            found.append(
                Event(kind, one["name"], float(one["ts"]), float(one["dur"]), (one["pid"], one["tid"]), correlation)
            )
    return sorted(found, key=lambda event: event.start)


def of_the_step(events: Iterable[Event]) -> tuple[list[Event], Event]:
    """What lies in the step, and its mark. Raises ValueError where there is none."""
    events = list(events)
    marks = [event for event in events if event.kind == MARK and event.name == STEP]
    if not marks:
        raise ValueError(f"the trace has no mark {STEP!r}")
    mark = marks[-1]
    return [one for one in events if mark.start <= one.start < mark.end and one is not mark], mark


def kind_of(name: str) -> str:
    """Of a kernel or an operation."""
    small = name.lower()
    return next((kind for kind, pattern in KINDS if re.search(pattern, small)), OTHER)


def short(name: str) -> str:
    """A kernel's name without what all have."""
    cleaned = re.sub(r"^void |at::native::|\(anonymous namespace\)::|std::|c10::", "", name)
    return cleaned if len(cleaned) <= WIDTH else cleaned[: WIDTH - 1] + "…"


def own_times(operations: Iterable[Event]) -> list[Event]:
    """Operations of a CPU less those within them."""
    made, within = [], defaultdict(float)
    stacks: dict[Any, list[Event]] = defaultdict(list)
    ordered = sorted(operations, key=lambda event: (event.start, -event.length))
    for event in ordered:
        stack = stacks[event.thread]
        while stack and stack[-1].end <= event.start:
            stack.pop()
        if stack:
            within[id(stack[-1])] += event.length
        stack.append(event)
    for event in ordered:
        own = max(event.length - within[id(event)], 0.0)
        made.append(Event(event.kind, event.name, event.start, own, event.thread))
    return made


def work_of(events: Sequence[Event]) -> list[Event]:
    """What computes: kernels and copies of a GPU; without one, operations by their own time."""
    on_gpu = [event for event in events if event.kind == GPU]
    return on_gpu or own_times(event for event in events if event.kind == OPERATION)


def totals(work: Iterable[Event], key: Callable[[str], str]) -> list[tuple[str, float, int]]:
    """(name, microseconds, how often), most time first."""
    seconds: dict[str, float] = defaultdict(float)
    counts: Counter[str] = Counter()
    for event in work:
        seconds[key(event.name)] += event.length
        counts[key(event.name)] += 1
    return sorted(((name, time, counts[name]) for name, time in seconds.items()), key=lambda one: -one[1])


def busy(work: Iterable[Event]) -> list[tuple[float, float]]:
    """The union of their intervals."""
    merged: list[tuple[float, float]] = []
    for event in sorted(work, key=lambda event: event.start):
        if merged and event.start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], event.end)
        else:
            merged.append((event.start, event.end))
    return merged


def find_gaps(events: Sequence[Event], mark: Event, most: int = GAPS) -> list[Gap]:
    """The longest of a step, with what stood before and behind. None without a GPU."""
    work = sorted((event for event in events if event.kind == GPU), key=lambda event: event.start)
    if not work:
        return []
    found: list[tuple[float, Event | None, Event | None]] = []
    before: Event | None = None
    for event in work:
        if event.start > (reached := mark.start if before is None else before.end):
            found.append((event.start - reached, before, event))
        if before is None or event.end > before.end:
            before = event
    if before is not None and mark.end > before.end:
        found.append((mark.end - before.end, before, None))
    longest = sorted(found, key=lambda one: -one[0])[:most]
    launches = {event.correlation: event for event in events if event.kind == RUNTIME and event.correlation}
    return [_gap(length, before, after, events, launches, mark) for length, before, after in longest]


def _gap(
    length: float,
    before: Event | None,
    after: Event | None,
    events: Sequence[Event],
    launches: Mapping[int, Event],
    mark: Event,
) -> Gap:
    start = mark.start if before is None else before.end
    names = ("the step begins" if before is None else before.name, "the step ends" if after is None else after.name)
    launch = None if after is None else launches.get(after.correlation)
    if launch is None:
        return Gap(start, length, *names, "", "", False)
    inside = [one for one in events if one.thread == launch.thread and one.start <= launch.start < one.end]
    operations = [one.name for one in inside if one.kind == OPERATION]
    lines = [one.name for one in inside if one.kind == LINE and OURS.search(one.name)]
    return Gap(start, length, *names, " < ".join(operations[::-1][:3]), (lines or [""])[-1], launch.start > start)


def waits(events: Sequence[Event]) -> list[tuple[str, float, int]]:
    """Calls in which the host waits for the GPU: (name, microseconds, how often). Not that of who measures."""
    ends = [event for event in events if event.kind == MARK and event.name == END]
    asked = [event for event in events if event.kind == RUNTIME and WAITS.search(event.name)]
    return totals((one for one in asked if not any(end.start <= one.start < end.end for end in ends)), str)


def launches(events: Iterable[Event]) -> int:
    """Kernels that the host has started; operations where there is no GPU."""
    events = list(events)
    started = sum(event.kind == RUNTIME and LAUNCHES.search(event.name) is not None for event in events)
    return started or sum(event.kind == OPERATION for event in events)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """In markdown; all but the first column to the right."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows])


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def report(events: Sequence[Event], mark: Event, passes: int) -> str:
    """The tables of one step without lines."""
    work = work_of(events)
    whole = sum(event.length for event in work) or 1.0
    union = sum(end - start for start, end in busy(work))
    on_gpu = any(event.kind == GPU for event in events)
    what = "kernel" if on_gpu else "operation, by its own time"
    named, kinds = totals(work, short), totals(work, kind_of)
    count = launches(events)
    parts = [
        f"{len(work):,} {'kernels' if on_gpu else 'operations'} in {passes} passes, {whole / 1e3:,.1f} ms in all; "
        f"{count:,} {'launches' if on_gpu else 'operations'} of the host, {count / max(passes, 1):,.0f} a pass.",
        table(("kind", "ms", "share", "count"), [_row(row, whole) for row in kinds]),
        table((what, "ms", "share", "count", "kind"), [(*_row(row, whole), kind_of(row[0])) for row in named[:TOP]]),
    ]
    attention = [name for name, _, _ in named if kind_of(name) == "attention"]
    parts.append("Attention: " + ("; ".join(f"`{name}`" for name in attention) or "no kernel of that name") + ".")
    if on_gpu:
        idle = mark.length - union
        of_all = f"{idle / mark.length:.1%} of {mark.length / 1e3:,.1f} ms"
        parts.append(f"The GPU had nothing to do for {idle / 1e3:,.1f} ms, {of_all}.")
        parts.append(gaps_table(find_gaps(events, mark), mark))
        rows = [(name, f"{time / 1e3:,.2f}", times) for name, time, times in waits(events)]
        parts.append(table(("the host waits in", "ms", "count"), rows) if rows else "The host waits for nothing.")
    return "\n\n".join(parts)


def _row(row: tuple[str, float, int], whole: float) -> tuple[str, str, str, int]:
    name, time, count = row
    return name, f"{time / 1e3:,.2f}", f"{time / whole:.1%}", count


def gaps_table(gaps: Iterable[Gap], mark: Event) -> str:
    """The longest ones: `late` where the host launched what follows only then."""
    head = ("gap at ms", "µs", "late", "before", "behind", "launched by", "line")
    return table(
        head,
        [
            (
                f"{(gap.start - mark.start) / 1e3:,.1f}",
                f"{gap.length:,.0f}",
                "yes" if gap.late else "",
                short(gap.before)[:60],
                short(gap.after)[:60],
                gap.operation,
                gap.line,
            )
            for gap in gaps
        ],
    )
