"""Experts of a mixture that lie on several ranks, some of them whole on each: tokens travel to the experts they visit.

In every layer a rank sorts its pairs of token and chosen expert by expert, and says how many of them come to each
expert of each rank. The tokens follow; each rank computes those that it was given with its own experts, by
transformers' own function, and sends back what comes of them. Their own rank weighs and adds it up, as one with all
experts does:

    out_t = sum over chosen k of weight_tk · expert_k(x_t)

Knows modules and tensors; how rows travel it is told, and nothing of processes. As in Lepikhin et al., "GShard" (2020),
section 3.2, but without a capacity: no token is dropped, whatever the routers do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from peft import PeftModel
from peft.tuners.lora.layer import ParamWrapper

from rankzero.errors import ConfigError, Problem
from rankzero.model.low_bits import keep_some
from rankzero.model.nf4 import NF4_BLOCK
from rankzero.model.parts import inside, part_finder
from rankzero.spec.run_spec import Quantization

FIELD = "train.expert_parallel"
_WITHOUT = "leave it out"


Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of experts: tokens (T, H), the experts that each visits (T, K), and their weights (T, K), to (T, H)."""


class Peers(Protocol):
    """The ranks that hold the experts of a model together, as one of them sees them."""

    number: int
    """Its place among them, from 0."""
    size: int

    def counts(self, sent: torch.Tensor) -> torch.Tensor:
        """Of integers (size, n) gives row i to rank i; returns what each rank gives, in rank order. A collective."""
        ...

    def rows(self, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        """Gives the first sent[0] rows to rank 0, the next sent[1] to rank 1, …; returns those of each rank in rank
        order, of which there are as many as `received` says. A collective, and backward another one."""
        ...


@dataclass(frozen=True, slots=True)
class Mixture:
    """A module that holds the experts of one layer as tensors of shape (experts, …, …)."""

    name: str
    module: Any
    tensors: tuple[str, ...]
    """Names of its parameters, packed ones included."""


def mixtures(model: Any) -> list[Mixture]:
    """All of a model without adapters, in its order, by its names."""
    part_of = part_finder(model)
    return [
        Mixture(name, module, tuple(_own_tensors(module)))
        for name, module in model.named_modules()
        if hasattr(module, "_is_expert_parallel") and part_of(name) == "experts"  # transformers' mark of fused experts
    ]


def mixtures_of(model: Any) -> list[Mixture]:
    """All of a model, with or without adapters, by the names that they have there."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    names = {id(module): name for name, module in model.named_modules()}
    return [Mixture(names[id(one.module)], one.module, one.tensors) for one in mixtures(base)]


def exchange_problems(
    model: Any, size: int, *, whole: Sequence[str] = (), quantization: Quantization = "none"
) -> list[Problem]:
    """What keeps the experts of a model, which may be without memory, from lying on `size` ranks. `whole`: modules that
    are trained in full beside adapters. `quantization`: what they will be packed in."""
    found = mixtures(model)
    if not found:
        part_of = part_finder(model)
        has_some = any(part_of(name) == "experts" for name, _ in model.named_parameters())
        what = "the experts of this model are not fused into tensors" if has_some else "the model has no experts"
        return [Problem(what, FIELD, _WITHOUT)]
    problems = []
    counts = {mixture.module.num_experts for mixture in found}
    for count in sorted(count for count in counts if count % size):
        hint = f"take a divisor of {count}"
        problems.append(Problem(f"{count} experts cannot be divided among {size} processes", FIELD, hint))
    shared = next((mixture for mixture in found if _shared(mixture)), None)
    if shared is not None:
        names = ", ".join(_shared(shared))
        what = f"the experts of this model share weights ({names}), which no process would hold alone"
        problems.append(Problem(what, FIELD, _WITHOUT))
    if quantization == "nf4" and any(_breaks_blocks(mixture, size) for mixture in found):
        what = f"the experts of a process would not begin and end with a block of {NF4_BLOCK} packed weights"
        problems.append(Problem(what, FIELD, "take model.quantization: fp8, or a smaller number"))
    if any(inside(mixture.name, whole) for mixture in found):
        hint = "put adapters on them instead: train.parts: [language, experts]"
        what = "experts that are trained in full beside adapters are not divided among processes"
        problems.append(Problem(what, "lora.modules_to_save", hint))
    return problems


def require_exchange(model: Any, size: int, *, whole: Sequence[str] = (), quantization: Quantization = "none") -> None:
    """Raise ConfigError where the experts of a model cannot lie on `size` ranks; the rest as in `exchange_problems`."""
    if size > 1 and (problems := exchange_problems(model, size, whole=whole, quantization=quantization)):
        raise ConfigError(problems)


def place_experts(model: Any, peers: Peers) -> tuple[str, ...]:
    """Let `model`, with or without adapters, keep the experts of this rank alone, and have its tokens travel to the
    others'. Returns the names of the parameters that are cut. `model` is one of which `require_exchange` has nothing to
    say.

    Adapters on experts stay whole: of each rank those of its own experts get gradients, and a sum over ranks has all.
    """
    found = mixtures_of(model)
    for mixture in found:
        place_mixture(mixture, model, peers)
    return tuple(f"{mixture.name}.{tensor}" for mixture in found for tensor in mixture.tensors)


def place_mixture(mixture: Mixture, model: Any, peers: Peers, *, rounded: torch.dtype | None = None) -> None:
    """`place_experts` for one mixture of `model`. `rounded`: in what its experts compute, whatever they are held in."""
    module = mixture.module
    own = module.num_experts // peers.size
    rows = slice(peers.number * own, (peers.number + 1) * own)
    for tensor in mixture.tensors:
        keep_some(module, tensor, rows)
    for adapter in model.modules():
        if isinstance(adapter, ParamWrapper) and adapter.get_base_layer() is module:
            adapter.get_delta_factors = partial(_own_factors, adapter.get_delta_factors, rows)
    module.num_experts = own
    compute = module.forward if rounded is None else _rounding(mixture, rounded)
    module.forward = _exchanged(compute, peers, own)


class _Rounding(torch.nn.Module):
    """The forward pass of experts, for `functional_call` to give them other weights."""

    def __init__(self, mixture: Mixture) -> None:
        super().__init__()
        self.experts = mixture.module
        self._compute = mixture.module.forward

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._compute(*inputs)
        return out


def _rounding(mixture: Mixture, dtype: torch.dtype) -> Forward:
    """The forward pass of experts with copies of their weights in another precision."""
    experts = _Rounding(mixture)

    def compute(*inputs: torch.Tensor) -> torch.Tensor:
        weights = {f"experts.{name}": getattr(mixture.module, name).to(dtype) for name in mixture.tensors}
        out: torch.Tensor = torch.func.functional_call(experts, weights, inputs)
        return out

    return compute


def _own_tensors(module: torch.nn.Module) -> list[str]:
    return [*dict(module.named_parameters(recurse=False)), *getattr(module, "parametrizations", ())]


def _breaks_blocks(mixture: Mixture, size: int) -> bool:
    """Whether a rank's share of a tensor that will be packed is no whole number of blocks."""
    tensors = [getattr(mixture.module, name) for name in mixture.tensors]
    return any(weight.ndim == 3 and weight.numel() % (size * NF4_BLOCK) for weight in tensors)


def _shared(mixture: Mixture) -> list[str]:
    """Its parameters that are not of one expert each."""
    count = mixture.module.num_experts
    return [
        name
        for name, weight in mixture.module.named_parameters()
        if name not in mixture.tensors or not weight.ndim or weight.shape[0] != count
    ]


def _own_factors(
    factors: Callable[[str], tuple[torch.Tensor, torch.Tensor, float]], rows: slice, adapter_name: str
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Of an adapter on experts, (experts, …, rank) and (experts, rank, …): those of some experts."""
    left, right, scaling = factors(adapter_name)
    return left[rows], right[rows], scaling


def _exchanged(forward: Forward, peers: Peers, own: int) -> Forward:
    """The forward pass of all experts, of which this rank has `own`, computed by `forward`."""

    def everywhere(x_TH: torch.Tensor, chosen_TK: torch.Tensor, weights_TK: torch.Tensor) -> torch.Tensor:
        chosen = chosen_TK.reshape(-1)
        order = torch.sort(chosen, stable=True).indices
        counts = torch.bincount(chosen, minlength=peers.size * own).view(peers.size, own)
        theirs = peers.counts(counts)
        sent, received = torch.stack([counts.sum(dim=1), theirs.sum(dim=1)]).tolist()  # where a GPU is waited for
        given = peers.rows(x_TH[order // chosen_TK.shape[1]], sent, received)
        results = peers.rows(_by_own(forward, given, theirs), received, sent)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        results_TKH = results[back].view(*chosen_TK.shape, results.shape[-1])
        return (results_TKH * weights_TK.unsqueeze(-1)).sum(dim=1).to(x_TH.dtype)

    return everywhere


def _by_own(forward: Forward, given_RH: torch.Tensor, counts_NE: torch.Tensor) -> torch.Tensor:
    """What this rank's experts make of rows that came sorted by rank and expert, so many of each.

    Where none came, a row of zeros is computed and dropped: ranks meet again in the backward pass, which has to pass
    through this rank's experts as it does through those of the others.
    """
    experts = torch.arange(counts_NE.shape[1], device=counts_NE.device).repeat(counts_NE.shape[0])
    expert_R = torch.repeat_interleave(experts, counts_NE.reshape(-1), output_size=len(given_RH))
    rows = len(given_RH)
    if not rows:
        given_RH = torch.cat([given_RH, given_RH.new_zeros(1, given_RH.shape[1])])
        expert_R = torch.zeros(1, dtype=experts.dtype, device=experts.device)
    ones_R1 = torch.ones(len(given_RH), 1, dtype=given_RH.dtype, device=given_RH.device)
    return forward(given_RH, expert_R[:, None], ones_R1)[:rows]
