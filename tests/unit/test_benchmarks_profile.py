"""The profile of a step: made-up events whose kinds, gaps and waits are known, and one real step of a tiny model."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import gpu_profile
import gpu_trace as trace

GEMM, SILU, COPY = "nvjet_hsh_256x128_64x4", "at::native::silu_kernel<bfloat16>", "Memcpy DtoH (Device -> Pageable)"
LINE = "rankzero/engine/step.py(231): sums_of_step"


def raw(cat: str, name: str, start: float, length: float, correlation: int = 0, thread: int = 1) -> dict[str, Any]:
    args = {"correlation": correlation} if correlation else {}
    return {"ph": "X", "cat": cat, "name": name, "ts": start, "dur": length, "pid": 1, "tid": thread, "args": args}


def made_up() -> dict[str, Any]:
    """A step from 1000 to 2000 µs. The GPU works from 1100 to 1400 (two streams) and from 1700 to 1900: 500 µs nothing,
    300 of them since the host launched too late."""
    return {
        "traceEvents": [
            {"ph": "M", "name": "process_name"},
            raw("kernel", GEMM, 900, 50, 1),  # before the step
            raw("user_annotation", trace.STEP, 1000, 1000),
            raw("cpu_op", "aten::mm", 1010, 30),
            raw("cuda_runtime", "cudaLaunchKernel", 1020, 5, 2),
            raw("kernel", GEMM, 1100, 200, 2, thread=7),
            raw("cuda_runtime", "cuLaunchKernelEx", 1060, 5, 3),
            raw("kernel", SILU, 1200, 200, 3, thread=8),
            raw("cuda_runtime", "cudaStreamSynchronize", 1080, 320),
            raw("python_function", LINE, 1500, 250),
            raw("python_function", "<built-in method mm>", 1600, 80),
            raw("cpu_op", "aten::linear", 1640, 60),
            raw("cpu_op", "aten::mm", 1645, 50),
            raw("cuda_runtime", "cudaLaunchKernel", 1650, 5, 4),
            raw("kernel", GEMM, 1700, 100, 4, thread=7),
            raw("gpu_memcpy", COPY, 1800, 100, 5, thread=7),
            raw("user_annotation", trace.END, 1850, 150),
            raw("cuda_runtime", "cudaDeviceSynchronize", 1860, 100),
        ]
    }


def test_what_lies_in_a_step_is_told_by_kind_and_by_name() -> None:
    events, mark = trace.of_the_step(trace.read_events(made_up()))
    work = trace.work_of(events)
    assert trace.totals(work, trace.kind_of) == [
        ("matrix products", 300.0, 2),
        ("elementwise", 200.0, 1),
        ("copies and casts", 100.0, 1),
    ]
    assert trace.busy(work) == [(1100, 1400), (1700, 1900)] and mark.length == 1000
    assert trace.launches(events) == 3
    with pytest.raises(ValueError, match="no mark"):
        trace.of_the_step([])


def test_gaps_name_what_stood_before_and_who_was_late() -> None:
    events, mark = trace.of_the_step(trace.read_events(made_up()))
    gaps = trace.find_gaps(events, mark)
    assert [(gap.start, gap.length) for gap in gaps] == [(1400, 300), (1000, 100), (1900, 100)]
    assert sum(gap.length for gap in gaps) == mark.length - 500
    longest, first, last = gaps
    assert (longest.before, longest.after, longest.late) == (SILU, GEMM, True)
    assert (longest.operation, longest.line) == ("aten::mm < aten::linear", LINE)
    assert (first.before, first.operation, first.line) == ("the step begins", "aten::mm", "")
    assert (last.before, last.after, last.late) == (COPY, "the step ends", False)
    assert trace.find_gaps(events, mark, most=1) == [longest]


def test_the_wait_of_who_measures_is_none_of_the_products() -> None:
    events, _ = trace.of_the_step(trace.read_events(made_up()))
    assert trace.waits(events) == [("cudaStreamSynchronize", 320.0, 1)]


def test_the_report_has_it_all() -> None:
    events, mark = trace.of_the_step(trace.read_events(made_up()))
    told = trace.report(events, mark, passes=1)
    assert "4 kernels in 1 passes, 0.6 ms in all; 3 launches of the host, 3 a pass." in told
    assert (
        "| matrix products | 0.30 | 50.0% | 2 |" in told and f"| {GEMM} | 0.30 | 50.0% | 2 | matrix products |" in told
    )
    assert "The GPU had nothing to do for 0.5 ms, 50.0% of 1.0 ms." in told
    assert "| cudaStreamSynchronize | 0.32 | 1 |" in told and "Attention: no kernel of that name." in told


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "attention"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>", "matrix products"),
        ("kgemm_4bit_inference_naive", "matrix products"),
        ("kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", "unpacking"),
        ("void at::native::vectorized_layer_norm_kernel<float, float>", "norms"),
        ("triton_per_fused__to_copy_mean_mul_pow_rsqrt_0", "reductions"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "copies and casts"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>", "reductions"),
        ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<8, silu_kernel>", "elementwise"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("aten::addmm_", "matrix products"),
        ("aten::view", "other"),
    ],
)
def test_kinds_of_kernels(name: str, kind: str) -> None:
    assert trace.kind_of(name) == kind


def test_operations_within_others_do_not_count_twice() -> None:
    """Without a GPU operations are told, each without those within it; another thread's lie beside."""
    operations = [
        trace.Event(trace.OPERATION, "aten::linear", 0, 100, 1),
        trace.Event(trace.OPERATION, "aten::mm", 10, 60, 1),
        trace.Event(trace.OPERATION, "aten::empty", 20, 10, 1),
        trace.Event(trace.OPERATION, "aten::sum", 100, 5, 1),
        trace.Event(trace.OPERATION, "aten::mul", 50, 30, 2),
    ]
    assert {event.name: event.length for event in trace.work_of(operations)} == {
        "aten::linear": 40,
        "aten::mm": 50,
        "aten::empty": 10,
        "aten::sum": 5,
        "aten::mul": 30,
    }


def test_measured_figures_stand_beside_those_foretold(tmp_path: Path) -> None:
    line = {"shape": "qwen3-8b", "method": "LoRA", "set": [], "seconds": 1.428, "most": 2**34, "operations": 30500}
    (tmp_path / "expected.jsonl").write_text(json.dumps(line | {"waits": {"equal here": 5, "item there": 8}}) + "\n")
    given = gpu_profile.parse_arguments(["--expected", str(tmp_path / "expected.jsonl")])
    told = gpu_profile.beside(gpu_profile.expected(given), 1.9, "17.00", 31000, 14)
    assert "| seconds of the step | 1.428 | 1.900 |" in told and "| operations, kernels | 30,500 | 31,000 |" in told
    assert "GiB | 16.00 | 17.00 |" in told and "| waits of the host | 13 | 14 |" in told
    other = gpu_profile.parse_arguments(["--expected", str(tmp_path / "expected.jsonl"), "--method", "QLoRA (nf4)"])
    assert "has no line of this cell" in gpu_profile.beside(gpu_profile.expected(other), 1.9, "17.00", 31000, 14)


def test_one_step_of_a_tiny_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole profile on a CPU: its tables are of operations."""
    for name in ("CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "RANKZERO_CACHE"):
        monkeypatch.setenv(name, "")  # main() sets them: put back after this test
    files = {
        "--out": tmp_path / "out" / "profile.md",
        "--trace": tmp_path / "trace.json.gz",
        "--work": tmp_path / "work",
    }
    named = [part for flag, path in files.items() for part in (flag, str(path))]
    gpu_profile.main(["--device", "cpu", "--quick", "--set", "lora.r=2", *named])
    printed = capsys.readouterr().out
    assert files["--out"].read_text() in printed
    assert "qwen3-8b LoRA, lora.r=2" in printed and "tokens/s" in printed
    assert "| matrix products |" in printed and "| aten::mm |" in printed and "| planned |" in printed
    assert "not foretold" in printed and "| _local_scalar_dense |" in printed
    events, mark = trace.of_the_step(trace.read_events(json.loads(gzip.decompress(files["--trace"].read_bytes()))))
    assert sum(event.length for event in trace.work_of(events)) < 2 * mark.length
