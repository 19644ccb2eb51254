"""Whether passes of a model may be computed in any order. Knows modules; nothing of rows and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from rankzero.engine.checkpoint import generator_states, generators_kept

_PLAIN = (bool, int, float, str, type(None))


def why_in_order(model: torch.nn.Module, compute: Callable[[], object]) -> str:
    """Why passes of a model have to be computed one after the other: in whatever another one would meet, they leave
    something behind. "" where they do not. `compute` computes one, without gradients: here once as in training, once as
    in an evaluation, and once more, since weights that are changed for the one are put right in the other. What that
    leaves behind in modules stays there."""
    training = model.training
    generators, weights, modules = generator_states(), _versions(model), dict(_modules(model))
    try:
        with generators_kept(), torch.no_grad():
            for mode in (True, False, True):
                model.train(mode)
                compute()
            if generator_states() != generators:
                return "the model draws random numbers, whose order would be left to chance"
    finally:
        model.train(training)
    if _versions(model) != weights:
        return "a pass changes weights of the model"
    changed = next((name for name, now in _modules(model) if modules.get(name) != now), None)
    return "" if changed is None else f"a pass changes what the next one does in {changed}"


def _versions(model: torch.nn.Module) -> list[int]:
    return [parameter._version for parameter in model.parameters()]


def _modules(model: torch.nn.Module) -> Iterator[tuple[str, tuple[type, dict[str, object]]]]:
    """What each module is, and the plain values in it."""
    for name, module in model.named_modules():
        yield name, (type(module), {key: value for key, value in vars(module).items() if isinstance(value, _PLAIN)})
