"""Data on one machine: checking, tokenising, memory and shards, each beside what bounds it.

    python benchmarks/data.py rows                            check, beside bare JSON parsing of the same file
    python benchmarks/data.py containers [--megabytes 20]     check of other kinds of file, beside JSON lines
    python benchmarks/data.py tokenise MODEL [--megabytes 20] prepare, beside the bare template and tokenizer
    python benchmarks/data.py agents MODEL [--calls 100]      rendering agent traces, beside bare apply_chat_template
    python benchmarks/data.py shards MODEL [--megabytes 64]   two shards as two processes, beside one
    python benchmarks/data.py whole MODEL [--megabytes 1000]  check and prepare with all cores, and their peak memory

MODEL is a directory with a tokenizer. The rows are chats of one to three exchanges cut out of the Python standard
library's sources, so that the text is neither random nor repeated. Nothing is downloaded; files live in a temporary
directory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from rankzero.data.cache.tokenize import Shard, TokenRules, prepare, prepare_shard
from rankzero.data.inspect.validate import check
from rankzero.data.progress import show_progress
from rankzero.spec.run_spec import SourceSpec


class PeakMemory:
    """Samples the resident memory of this process and its children. Shared pages count once (PSS)."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            own = psutil.Process()
            self.peak = max(self.peak, sum(_pss(process) for process in [own, *own.children(recursive=True)]))


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # ended meanwhile
        return 0


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for: what the work costs, however busy the machine is."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def write_rows(path: Path, size: int) -> int:
    """Chats of about 1 KB until the file has `size` bytes; returns their number."""
    text = "\n".join(
        source.read_text(encoding="utf-8", errors="ignore")
        for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    )
    rng = random.Random(0)
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            lines = []
            for _ in range(500):
                turns = []
                for i in range(2 * rng.choice((1, 1, 2, 3))):
                    start = rng.randrange(len(text) - 4000)
                    length = int(rng.lognormvariate(4.5 if i % 2 == 0 else 6.0, 0.7))
                    content = text[start : start + min(length, 4000)].strip() or "empty"
                    turns.append({"role": ("user", "assistant")[i % 2], "content": content})
                lines.append(json.dumps({"messages": turns}, ensure_ascii=False) + "\n")
            file.writelines(lines)
            rows += len(lines)
    return rows


def measure(label: str, size: int, rows: int, work: Callable[[Callable[[int], None]], Any]) -> Any:
    """Run and print what it took."""
    with PeakMemory() as memory, show_progress(label, size) as advance:
        begun, cpu_begun = time.perf_counter(), _cpu_seconds()
        result = work(advance)
        seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds() - cpu_begun
    numbers = {
        "step": label,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "rows_per_second": round(rows / seconds),
        "megabytes_per_second": round(size / seconds / 1e6, 1),
        "peak_memory_megabytes": round(memory.peak / 1e6),
    }
    if hasattr(result, "stats"):
        numbers["tokens_per_second"] = round(result.stats.tokens / seconds)
        numbers |= {"tokens": result.stats.tokens, "trained_tokens": result.stats.supervised_tokens}
    print(json.dumps(numbers), flush=True)
    return result


def beside(facts: dict[str, Any]) -> None:
    """One line of results."""
    print(json.dumps(facts), flush=True)


def timed(work: Callable[[], Any]) -> float:
    """CPU seconds of this process: what one core has to do, however busy the machine is."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def rows(_given: argparse.Namespace, folder: Path) -> None:
    """Small rows: the limit is the JSON parser."""
    import orjson

    path = folder / "small.jsonl"
    count = 400_000
    with path.open("w", encoding="utf-8") as file:
        for i in range(count):
            turns = [
                {"role": "user", "content": f"What is {i} plus {i % 97}?"},
                {"role": "assistant", "content": str(i + i % 97)},
            ]
            file.write(json.dumps({"messages": turns}) + "\n")
    sources = [SourceSpec(path=str(path))]

    def parse() -> None:
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)

    for _ in range(3):
        bare, ours = timed(parse), timed(lambda: check(sources, workers=1).raise_if_bad())
        beside(
            {
                "step": "check, small rows, one core",
                "bytes_per_row": round(path.stat().st_size / count),
                "orjson_rows_per_second": round(count / bare),
                "check_rows_per_second": round(count / ours),
            }
        )


def containers(given: argparse.Namespace, folder: Path) -> None:
    """Other files are to be checked at no less than half the speed of JSON lines of the same rows."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = folder / "train.jsonl"
    count = write_rows(plain, given.megabytes * 1_000_000)
    made = [json.loads(line) for line in plain.read_text(encoding="utf-8").split("\n") if line]
    (folder / "train.json").write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    (folder / "indented.json").write_text(json.dumps(made, ensure_ascii=False, indent=1), encoding="utf-8")
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes(), 6))
    pq.write_table(pa.Table.from_pylist(made), folder / "train.parquet", row_group_size=count)
    del made
    for _ in range(2):
        seconds: dict[str, float] = {}
        for name in ("train.jsonl", "train.json", "indented.json", "train.jsonl.gz", "train.parquet"):
            sources = [SourceSpec(path=str(folder / name))]
            seconds[name] = timed(lambda: check(sources, workers=1).raise_if_bad())  # noqa: B023
            beside(
                {
                    "step": f"check {name}, one core",
                    "rows": count,
                    "rows_per_second": round(count / seconds[name]),
                    "speed_of_json_lines": round(seconds["train.jsonl"] / seconds[name], 2),
                }
            )


def tokenise(given: argparse.Namespace, folder: Path) -> None:
    """The limit is the tokenizer's own batch call on the same text."""
    from tokenizers import Tokenizer as Backend
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    path = folder / "train.jsonl"
    write_rows(path, given.megabytes * 1_000_000)
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line]
    texts: list[str] = []

    def render() -> None:
        texts[:] = [tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False) for line in lines]

    backend = Backend.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()

    def encode() -> None:
        """Nothing is kept: all tokens of a large file as objects fit no memory, and keeping them is faster."""
        for i in range(0, len(texts), 256):
            for encoding in backend.encode_batch(texts[i : i + 256]):
                encoding.ids  # noqa: B018

    for turn in range(2):
        template = timed(render)
        bare = timed(encode)
        rules = TokenRules(max_length=10**6)
        cache = folder / f"cache-{turn}"
        ours = timed(lambda: prepare([SourceSpec(path=str(path))], tokenizer, rules, cache, workers=1))  # noqa: B023
        again = timed(lambda: prepare([SourceSpec(path=str(path))], tokenizer, rules, cache, workers=1))  # noqa: B023
        beside(
            {
                "step": "prepare, one core",
                "rows": len(texts),
                "template_seconds": round(template, 1),
                "tokenizer_seconds": round(bare, 1),
                "prepare_seconds": round(ours, 1),
                "ratio": round(ours / (template + bare), 2),
                "nothing_to_do_seconds": round(again, 2),
            }
        )


AGENT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' else '' }}

# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- elif message.role != 'system' or not tools %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Tools, calls and answers in the manner of Qwen's templates, written for this benchmark."""


def agent_row(rng: random.Random, calls: int) -> dict[str, Any]:
    """One question, and about that many calls of tools until it is answered."""
    names = ["search", "read_file", "run_tests", "edit"]
    functions = [{"name": name, "description": f"Does {name}.", "parameters": {"type": "object"}} for name in names]
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "You work in a repository."},
        {"role": "user", "content": "Please find out why the test fails, and mend it."},
    ]
    for i in range(rng.randint(calls * 9 // 10, calls * 11 // 10)):
        arguments = {"path": f"src/module_{rng.randrange(100)}.py", "line": i}
        call = {"id": f"call{i:05}", "function": {"name": rng.choice(names), "arguments": arguments}}
        says = "" if rng.random() < 0.7 else f"Step {i}: let me look further."
        turns.append({"role": "assistant", "content": says, "tool_calls": [{"type": "function", **call}]})
        output = " ".join(f"line {rng.randrange(1000)}: value = {rng.randrange(1000)}" for _ in range(8))
        turns.append({"role": "tool", "tool_call_id": f"call{i:05}", "content": output})
    turns.append({"role": "assistant", "content": "It was an index that began at one. All tests pass now."})
    return {"messages": turns, "tools": [{"type": "function", "function": one} for one in functions]}


def agents(given: argparse.Namespace, _folder: Path) -> None:
    """The limit is transformers' own rendering of the same rows; ours also finds what is trained."""
    from transformers import AutoTokenizer

    from rankzero.data.rows.formats import convert
    from rankzero.data.tokens.chat import Renderer
    from rankzero.data.tokens.tokenizer import take_apart

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    tokenizer.chat_template = AGENT_TEMPLATE
    for calls in (given.calls // 10, given.calls, given.calls * 4):
        rng = random.Random(0)
        made = [agent_row(rng, calls) for _ in range(max(2, 1000 // calls))]
        conversations: list[Any] = [convert(row, 1)[1] for row in made]
        renderer = Renderer(take_apart(tokenizer), TokenRules())
        for turn in ("first", "again"):  # the first time what is learnt of the template is learnt
            bare = timed(
                lambda: [
                    tokenizer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False)
                    for row in made  # noqa: B023
                ]
            )
            ours = timed(lambda: [renderer.render(conversation) for conversation in conversations])  # noqa: B023
            beside(
                {
                    "step": f"render agent traces, {turn}",
                    "calls_per_row": calls,
                    "rows": len(made),
                    "apply_chat_template_milliseconds": round(1000 * bare / len(made), 2),
                    "render_milliseconds": round(1000 * ours / len(made), 2),
                    "ratio": round(ours / bare, 2),
                }
            )


def shards(given: argparse.Namespace, folder: Path) -> None:
    """Wall-clock seconds of one process, and of two that share the work."""
    path = folder / "train.jsonl"
    write_rows(path, given.megabytes * 1_000_000)
    for turn in range(2):
        seconds = {}
        for count in (1, 2):
            begun = time.perf_counter()
            command = [sys.executable, __file__, "shard", given.model, "--of", str(count)]
            running = [
                subprocess.Popen([*command, "--index", str(i), "--work", str(folder), "--turn", f"{turn}-{count}"])
                for i in range(count)
            ]
            if any(process.wait() for process in running):
                raise SystemExit("a shard failed")
            seconds[count] = time.perf_counter() - begun
        beside(
            {
                "step": "shards",
                "one_seconds": round(seconds[1], 1),
                "two_seconds": round(seconds[2], 1),
                "speed-up": round(seconds[1] / seconds[2], 2),
            }
        )


def shard(given: argparse.Namespace, _folder: Path) -> None:
    """What `shards` starts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    sources = [SourceSpec(path=str(Path(given.work) / "train.jsonl"))]
    cache = Path(given.work) / f"cache-{given.turn}"
    prepare_shard(sources, tokenizer, TokenRules(), cache, Shard(given.index, given.of), workers=1)


def whole(given: argparse.Namespace, folder: Path) -> None:
    """Everything with all cores."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(given.model)
    path = folder / "train.jsonl"
    count = write_rows(path, given.megabytes * 1_000_000)
    size = os.path.getsize(path)
    beside({"rows": count, "megabytes": round(size / 1e6), "cores": os.cpu_count()})
    sources = [SourceSpec(path=str(path))]
    report = measure("check", size, count, lambda p: check(sources, workers=given.workers, progress=p))
    report.raise_if_bad()
    if given.only_check:
        return

    def work(advance: Callable[[int], None]) -> Any:
        return prepare(sources, tokenizer, TokenRules(), folder / "cache", workers=given.workers, progress=advance)

    dataset = measure("tokenise", size, count, work)
    measure("tokenise again", size, count, work)
    measure("read all rows", size, len(dataset), lambda _: [dataset.row(i) for i in range(len(dataset))] and None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {
        "rows": rows,
        "containers": containers,
        "tokenise": tokenise,
        "agents": agents,
        "shards": shards,
        "shard": shard,
        "whole": whole,
    }
    parser.add_argument("command", choices=commands)
    parser.add_argument("model", nargs="?", help="directory with a tokenizer")
    parser.add_argument("--megabytes", type=int, default=None)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--only-check", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.model is None and given.command not in ("rows", "containers"):
        parser.error("name a directory with a tokenizer")
    given.megabytes = given.megabytes or {"tokenise": 20, "containers": 20, "shards": 64}.get(given.command, 1000)
    with tempfile.TemporaryDirectory(prefix="rankzero-data-bench-") as folder:
        commands[given.command](given, Path(folder))


if __name__ == "__main__":
    main()
