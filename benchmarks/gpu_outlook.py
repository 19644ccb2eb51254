"""What a step on a GPU would take, without one: every operation's bytes and products, by the line that asks for it.

    python benchmarks/gpu_outlook.py --shape qwen3-8b --method LoRA [--set train.micro_batch_tokens=4096]

The product's own session and step run over tensors without memory on a simulated H100 (gpu_simulated.py), on the rows
of benchmarks/gpu.py. The memory at most is that of all tensors, without the room that kernels take for themselves. The
seconds are a model: each operation takes what its products or its bytes take at assumed rates, whichever is more, one
after the other; so they say where time goes and what a change is worth, not what a GPU does. Needs a C++ compiler once;
no images.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from gpu_cells import CELLS, FULL, make_rows
from gpu_session import METHODS, find_cell, prepare, run_step
from gpu_simulated import load_device, pretend

SHOWN = 25


def write_model(shape: str, directory: Path) -> None:
    """A model of these shapes whose weights are a hole in a file, and rows."""
    import gpu_shapes
    import torch

    if (directory / "train.jsonl").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = gpu_shapes.make_tokenizer(gpu_shapes.vocabulary(shape, quick=False), images=False)
    config = gpu_shapes.make_config(shape, tokenizer, quick=False)
    with torch.device("meta"):
        model = gpu_shapes.model_class(shape)._from_config(config, dtype=torch.bfloat16)
    config.architectures, config.dtype = [type(model).__name__], "bfloat16"
    config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in model.state_dict().items():
        if not (config.tie_word_embeddings and name == "lm_head.weight"):
            offsets = [end, end + 2 * tensor.numel()]
            header[name], end = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": offsets}, offsets[1]
    written = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        file.truncate(8 + len(written) + end)
    words = len(tokenizer) - len(gpu_shapes.SPECIALS) - len(gpu_shapes.ROLES)
    lines = [json.dumps(row) + "\n" for row in make_rows(FULL, words)]
    (directory / "train.jsonl").write_text("".join(lines), encoding="utf-8")


def fake_weights(model: Any) -> Any:
    """The model on meta with tensors of the mode that is on; what hangs on a packed weight stays on it."""
    import torch

    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
                    if isinstance(tensor, torch.nn.Parameter):
                        new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
                    vars(new).update(vars(tensor))
                    made[id(tensor)] = new
                tensors[name] = made[id(tensor)]
    return model


def without_swapping(module: Any, change: Any, recurse: bool = True) -> Any:
    """`Module._apply` for tensors that cannot change places with others."""
    import torch

    for child in module.children() if recurse else ():
        child._apply(change)
    for name, tensor in module._parameters.items():
        if tensor is not None:
            with torch.no_grad():
                changed = change(tensor)
            if changed is not tensor:
                module._parameters[name] = torch.nn.Parameter(changed, requires_grad=tensor.requires_grad)
    for name, tensor in module._buffers.items():
        module._buffers[name] = tensor if tensor is None else change(tensor)
    return module


def one_step(shape: str, method: str, directory: Path, changes: list[str]) -> tuple[Any, Any, Any]:
    """The session, the global batch, and counts of its step: the second one, since the first looks at the model."""
    import torch
    from gpu_counts import Counts
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _disable_current_modes

    from rankzero.data.batches.loader import Batches
    from rankzero.engine import setup
    from rankzero.model import norms

    rows = directory / "train.jsonl"
    prepared = prepare(find_cell(shape, method), FULL, model=directory, rows=rows, changes=changes, cpu=False)
    counts = Counts()
    computes_one, norms.rms_norm = norms._computes_one, torch.nn.functional.rms_norm

    def load(source: Any, model: Any, config: Any, held: Any, **options: Any) -> Any:
        packed = model.quantization != "none"
        with _disable_current_modes():
            empty = setup.empty_model(
                model, config, held, attention=options["attention"], head=options["head"], packed=packed
            )
        return fake_weights(empty)

    def asked_of_real_tensors(*asked: Any) -> bool:
        with _disable_current_modes():
            return computes_one(*asked)

    def collated(batches: Any, passes: Any, on: Any, then: Any = None) -> Any:
        for taken in passes:  # in this thread, where the modes are on
            lengths = batches.dataset.lengths[taken].astype(float)
            counts.rows, counts.squares = len(taken), float((lengths**2).sum())
            yield batches.collate(taken, on)

    setup.load_model, Batches.collated = load, collated  # type: ignore[method-assign,assignment]
    norms._computes_one = asked_of_real_tensors  # type: ignore[assignment]
    torch.nn.Module._apply = without_swapping  # type: ignore[method-assign]
    with FakeTensorMode(allow_non_fake_inputs=True), counts:
        session = prepared.session()
        for step in range(2):
            counts.begin()
            work = run_step(session, step)
    return session, work, counts


def moved_by_shapes(session: Any, work: Any) -> float:
    """The same bytes as the forecast's cost model has them."""
    from rankzero.forecast.cost import Work, step_cost
    from rankzero.forecast.devices import BANDWIDTH_SHARE, Network, find_device

    device = find_device("H100")
    assert device is not None
    step = Work(work.tokens, len(work.passes), row=FULL.max_length / 2, useful=work.tokens)
    cost = step_cost(session.planned.need, device, Network(1, 0.0), step)
    return (cost.between + cost.unpack + cost.optimizer) * device.memory * BANDWIDTH_SHARE


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", default="qwen3-8b", choices=sorted({c.shape for c in CELLS if not c.images}))
    parser.add_argument("--method", default="LoRA", choices=METHODS)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=JSON")
    parser.add_argument("--json", action="store_true", help="print figures as a line of JSON")
    parser.add_argument("--work", type=Path, default=Path("~/.cache/rankzero-outlook").expanduser())
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "RANKZERO_CACHE": str(given.work / "cache")}
    load_device(given.work)
    write_model(given.shape, given.work / given.shape)
    pretend()
    import gpu_counts

    session, work, counts = one_step(given.shape, given.method, given.work / given.shape, given.set)
    if given.json:
        waits = {f"{name} {where}": count for (name, where), count in counts.waits.items()}
        found = {"most": counts.most, "expected": session.memory.expected_bytes, "waits": waits}
        found |= {"moved": counts.moved, "moved_by_shapes": moved_by_shapes(session, work)}
        found |= {"shape": given.shape, "method": given.method, "set": given.set, "operations": counts.operations}
        print(json.dumps(found | {"passes": len(work.passes), "seconds": counts.seconds}))
        return
    print(f"{given.shape} {given.method}: {work.tokens} tokens in {len(work.passes)} passes; {session.memory}")
    print(f"at most {counts.most / 2**30:.1f} GiB, {session.memory.expected_bytes / 2**30:.1f} GiB were expected")
    per_parameter = next(cell for cell in CELLS if cell.method == given.method).flops_per_parameter
    share = per_parameter * session.planned.need.facts.total * work.tokens / counts.seconds / gpu_counts.PEAK
    print(f"{counts.seconds * 1e3:.0f} ms by the model, MFU {share:.3f}; {counts.operations} operations")
    print(f"the host waits {sum(counts.waits.values())} times: {dict(counts.waits)}")
    places = sorted(counts.by_place.items(), key=lambda one: -one[1][0])
    for (name, where), (seconds, count, moved) in places[:SHOWN]:
        in_all = f"{seconds * 1e3:8.1f} ms {seconds / counts.seconds:6.1%}"
        print(f"{in_all} {count:7.0f} {moved / 2**30:7.1f} GiB  {name} {where}")


if __name__ == "__main__":
    main()
