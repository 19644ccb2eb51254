"""The routers of a mixture of experts: whether a run trains them, what they do in a pass, and the loss that keeps them
from sending all tokens to few experts. Knows models and tensors; nothing of steps or processes.

The loss is that of Switch Transformers (Fedus, Zoph and Shazeer, 2021, equations 4 to 6) as transformers computes it,
over the layers together:

    E · sum_i f_i · P_i

E experts; f_i = how often expert i is among the likeliest ones of a token and layer, which has no gradient; P_i = the
mean of the router's probability for it. Where tokens spread evenly it is the number of experts that a token visits,
which is its least value. transformers takes f and P of one forward pass. Here they are of a whole global batch: since f
is a constant, the passes' shares of P add up, whatever the passes are.

Most routers send a token to its likeliest experts, of the softmax of their logits. One that adds a bias, takes sigmoids
or chooses groups first sends it elsewhere (MiniMax M2, Ernie 4.5): the loss is as said for those too, as transformers
has it, and which experts were visited is what the router itself says.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from peft import PeftModel

from rankzero.errors import ConfigError
from rankzero.model.parts import inside, parameter_parts, wanted_parts
from rankzero.model.targets import Targets
from rankzero.spec.run_spec import Parts

ASKING: Mapping[str, Any] = {"output_router_logits": True}
"""What a model is given besides its inputs, for `Routers` to see something."""
_WHERE = "train.router_aux_loss_coef"


def balance_coefficient(wanted: Literal["auto"] | float, model: Any, *, trained: bool) -> float | None:
    """What the loss of the routers is multiplied by; None where none are trained, or transformers has no such loss.

    `model` is without adapters, and may be without memory. `wanted` is train.router_aux_loss_coef: auto is what the
    model's config has. Raises ConfigError where a number above 0 can have no effect.
    """
    known = trained and has_balance_loss(model)
    if wanted == "auto":
        of_config = getattr(model.config.get_text_config(), "router_aux_loss_coef", None)
        return float(of_config or 0.0) if known else None
    if wanted and not trained:
        if "router" in parameter_parts(model).values():
            what, hint = "the model's routers are not trained", "add router to train.parts, or leave it out"
        else:
            what, hint = "the model has no routers", "leave it out"
        raise ConfigError(what, where=_WHERE, hint=hint)
    if wanted and not known:
        what = f"transformers has no load balancing loss for {model.config.model_type}"
        raise ConfigError(what, where=_WHERE, hint="leave it out: this model's routers are trained without")
    return wanted if known else None


def trains_routers(model: Any, parts: Parts, targets: Targets | None) -> bool:
    """Whether a run trains routers, beside adapters on these `targets` or without any. `model` is without them. Raises
    ConfigError as `wanted_parts` does."""
    if targets is None:
        return "router" in wanted_parts(parts, model, adapters=False)
    return any(part == "router" and inside(name, targets.saved) for name, part in parameter_parts(model).items())


def has_balance_loss(model: Any) -> bool:
    """Whether transformers computes the loss above for this class of model. Some have another, or none."""
    module = sys.modules[type(model).__module__]
    function = getattr(module, "load_balancing_loss_func", None)
    if function is None or not module.__name__.startswith("transformers."):
        return False
    usual = ["gate_logits", "num_experts", "top_k", "attention_mask"]
    return list(inspect.signature(function).parameters) == usual and _visited(model) is not None


def _visited(model: Any) -> int | None:
    """Experts that each token visits."""
    of_class = getattr(model, "num_experts_per_tok", None)
    return of_class or getattr(model.config.get_text_config(), "num_experts_per_tok", None)


@dataclass(frozen=True, slots=True)
class Routing:
    """What the routers did with the tokens of one pass."""

    visits_LE: torch.Tensor
    """Tokens that visited each expert of each layer; no gradient."""
    likeliest_LE: torch.Tensor
    """Tokens among whose likeliest experts each was, which the loss takes for visits."""
    probabilities_E: torch.Tensor
    """The routers' probabilities, summed over tokens and layers, in float32."""


class Routers:
    """Hears what the routers of a model say in its forward passes, where the model is asked to tell."""

    def __init__(self, module: Any) -> None:
        """`module` is the Hugging Face model or PeftModel, spread over the processes already."""
        model = module.get_base_model() if isinstance(module, PeftModel) else module
        visited = _visited(model)
        if visited is None:
            raise TypeError(f"{type(model).__name__} does not say how many experts a token visits")
        self.visited = visited
        self._heard: tuple[torch.Tensor, ...] = ()
        self._chosen: list[torch.Tensor] = []
        self._listens = False
        decoder = model.get_decoder()
        decoder.register_forward_pre_hook(self._begin)
        decoder.register_forward_hook(self._hear)
        for module in _that_say_logits(decoder):
            module.register_forward_hook(self._hear_chosen)

    def _begin(self, _module: torch.nn.Module, _inputs: Any) -> None:
        self._heard, self._chosen, self._listens = (), [], True

    def _hear(self, _module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        self._heard, self._listens = getattr(output, "router_logits", None) or (), False

    def _hear_chosen(self, _module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        """Of (logits, weights, numbers of experts). A layer that is computed again for its gradients is not heard."""
        if self._listens and isinstance(output, tuple) and len(output) == 3 and not output[2].is_floating_point():
            self._chosen.append(output[2])

    def routing(self, own_BT: torch.Tensor) -> Routing:
        """Of the last pass; tokens where `own_BT` is false are left out. Raises ConfigError where nothing was heard."""
        (logits, self._heard), (chosen, self._chosen) = (self._heard, ()), (self._chosen, [])
        if not logits:
            what = "this model's layers do not say what its routers do"
            hint = "take model.kernels: none, or leave router out of train.parts"
            raise ConfigError(what, where=_WHERE, hint=hint)
        own_T = own_BT.reshape(-1).float()
        likeliest, probabilities = [], []
        for layer in logits:
            shares_TE = torch.softmax(layer.reshape(-1, layer.shape[-1]).float(), dim=-1)
            first_TK = shares_TE.detach().topk(self.visited, dim=-1).indices
            likeliest.append(_counted(first_TK, own_T, shares_TE.shape[-1]))
            probabilities.append((shares_TE * own_T[:, None]).sum(dim=0))
        visits = likeliest
        if len(chosen) == len(logits):  # others do not say it
            visits = [_counted(c, own_T, layer.shape[-1]) for c, layer in zip(chosen, logits, strict=True)]
        return Routing(torch.stack(visits), torch.stack(likeliest), torch.stack(probabilities).sum(dim=0))


def _that_say_logits(decoder: torch.nn.Module) -> list[torch.nn.Module]:
    """Modules whose logits transformers tells of, where it takes them from what a router itself returns."""
    recorders: Mapping[str, Any] = getattr(decoder, "_can_record_outputs", None) or {}
    kind = getattr(recorders.get("router_logits"), "target_class", None)
    return [] if kind is None else [module for module in decoder.modules() if isinstance(module, kind)]


def _counted(experts: torch.Tensor, own_T: torch.Tensor, among: int) -> torch.Tensor:
    """How many tokens name each expert; a number beyond them stands for none."""
    none = torch.zeros(among + 1, device=own_T.device)
    named_TK = experts.reshape(len(own_T), -1).clamp(max=among)
    return none.scatter_add(0, named_TK.reshape(-1), own_T.repeat_interleave(named_TK.shape[1]))[:among]


def balance_loss(likeliest_LE: torch.Tensor, probabilities_E: torch.Tensor, visited: int) -> torch.Tensor:
    """E · sum_i f_i · P_i with f of all tokens that `likeliest_LE` counts, and those tokens' share of P that is in
    `probabilities_E`: the shares of passes add up to the whole."""
    tokens = likeliest_LE.sum() / visited  # times layers
    share_E = (likeliest_LE.sum(dim=0) / tokens / tokens).to(probabilities_E)
    return len(share_E) * (share_E * probabilities_E).sum()


def loads(visits_LE: torch.Tensor) -> torch.Tensor:
    """How much of its layer's visits each expert has, times the number of experts: 1 where they are even."""
    return visits_LE / visits_LE.mean(dim=1, keepdim=True)
