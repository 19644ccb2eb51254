"""What adding up the gradients of replicas costs a step, beside its last backward pass and behind it.

    python benchmarks/gradient_sum.py [--ranks 2] [--steps 12] [--hidden 512] [--layers 8]

A Llama is trained in full by processes of one thread each, joined by gloo. Steps in turns: buckets go out as they are
ready, or all of them when the pass is over. Printed are medians over the steps of rank 0, the first turn left out: the
whole step, and how long it waits for sums behind its last backward pass.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections import defaultdict
from multiprocessing import get_context
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
ROWS, LENGTH, VOCABULARY = 2, 256, 4096


def one_rank(rank: int, ranks: int, port: int, options: argparse.Namespace) -> None:
    """Steps on random rows."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rankzero.engine.device import Device
    from rankzero.engine.distributed import World, process_group
    from rankzero.engine.gradient_sum import GradientSum

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=options.hidden,
            intermediate_size=3 * options.hidden,
            num_hidden_layers=options.layers,
            num_attention_heads=8,
            num_key_value_heads=8,
        )
    )
    ids = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(rank))
    whole: dict[bool, list[float]] = defaultdict(list)
    waited: dict[bool, list[float]] = defaultdict(list)
    with process_group(World(rank, rank, ranks, ranks), Device("cpu"), dict(os.environ)):
        sums = GradientSum(model.parameters())
        for step in range(2 * options.steps):
            beside = step % 2 == 0
            model.zero_grad(set_to_none=True)
            torch.distributed.barrier()
            began = time.perf_counter()
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            sums.begin_pass(last=beside)
            loss.backward()
            behind = time.perf_counter()
            sums.finish()
            done = time.perf_counter()
            if step > 1:
                whole[beside].append(done - began)
                waited[beside].append(done - behind)
    if rank == 0:
        size = sum(p.nbytes for p in model.parameters()) / 1e6
        print(f"{ranks} ranks, {size:.0f} MB of gradients, {ROWS} rows of {LENGTH} tokens a rank")
        print(f"{'buckets go out':<16}{'step s':>9}{'waits s':>9}{'share':>8}")
        for beside in (True, False):
            step_s, wait_s = median(whole[beside]), median(waited[beside])
            words = "beside the pass" if beside else "behind it"
            print(f"{words:<16}{step_s:>9.3f}{wait_s:>9.3f}{wait_s / step_s:>8.1%}")
        ratios = [one / other for one, other in zip(whole[True], whole[False], strict=True)]
        print(f"beside ÷ behind, step by step: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12, help="of each kind")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = get_context("spawn")
    processes = [
        context.Process(target=one_rank, args=(rank, options.ranks, port, options)) for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main()
