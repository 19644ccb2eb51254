"""The loss of a pass from the decoder's last hidden states, some targets at a time.

Logits of all targets are the largest tensor of a pass, and so is their gradient. Here both exist for some targets at
once: their gradients with respect to hidden states and to what is trained behind the decoder are computed in the
forward pass, and the backward pass multiplies them. What makes logits of hidden states is the model's own code, which
is called with a decoder that returns the states it is given: whatever an architecture does there (a bias, a scale, a
softcap, adapters on the head) is done. Knows models by what transformers gives all of them.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from peft import PeftModel
from transformers.utils import ModelOutput

from rankzero.model.memory import targets_at_once

PartLoss = Callable[[torch.Tensor, slice], torch.Tensor]
"""From the logits of some targets, (n, V), and which they are, to the sum of their losses."""


class Tail:
    """What a model does behind its decoder, and what of it is trained."""

    def __init__(self, model: Any, *, called_once: bool = False) -> None:
        """`model` is transformers' own, or one with adapters. `called_once`: the head's weights are there while it is
        called, and for its backward pass; all ranks then call it as often. Raises ValueError where this cannot be done
        apart."""
        self._model = model.get_base_model() if isinstance(model, PeftModel) else model
        self.decoder: torch.nn.Module = self._model.base_model
        head = model.get_output_embeddings()
        if self.decoder is self._model or head is None or any(part is head for part in self.decoder.modules()):
            raise ValueError("there is no head behind a decoder")
        if any("Dropout" in type(part).__name__ for part in head.modules()):
            raise ValueError("what the head drops depends on where all targets stand")
        inside = set(self.decoder.modules())
        owners = [*head.modules(), *(module for module in self._model.modules() if module not in inside)]
        self._places = [(owner, name) for owner in dict.fromkeys(owners) for name in owner._parameters]
        self.head_alone = all(owner is head for owner, _ in self._places)
        """Nothing else behind the decoder has weights."""
        if called_once and not self.head_alone:
            raise ValueError("more than the head has weights behind the decoder")
        self._head, self._called_once = head, called_once
        self._vocabulary = int(self._model.config.get_text_config().vocab_size)
        accepted = inspect.signature(self._model.forward).parameters
        self._options = {"output_router_logits": False} if "output_router_logits" in accepted else {}

    def decoded(self, places_N: torch.Tensor, call: Callable[[], object]) -> tuple[torch.Tensor, type[ModelOutput]]:
        """Hidden states at these places of a `call` of the model, (N, H), and what they were returned in. Raises
        ValueError where that is nothing known."""
        outputs: list[Any] = []
        hook = self.decoder.register_forward_hook(lambda _decoder, _inputs, output: outputs.append(output))
        try:
            call()
        finally:
            hook.remove()
        output = outputs[-1] if outputs else None
        if not isinstance(output, ModelOutput) or output.get("last_hidden_state") is None:
            raise ValueError("the decoder returns no last_hidden_state")
        hidden_BTH: torch.Tensor = output["last_hidden_state"]
        return hidden_BTH.flatten(0, 1).index_select(0, places_N), type(output)

    def without_head(self) -> AbstractContextManager[None]:
        """Within the block the head computes nothing: logits of no target."""
        return _instead(self._head, lambda hidden, *_args, **_kwargs: hidden.new_empty(0, self._vocabulary))

    def logits(self, hidden_NH: torch.Tensor, output: type[ModelOutput]) -> torch.Tensor:
        """Hidden states, (N, H), as the decoder returns them in an `output`, to logits, (N, V)."""
        return self._with_weights(lambda hidden_NH: self._logits(hidden_NH, output), hidden_NH)

    def loss_sum(self, hidden_NH: torch.Tensor, output: type[ModelOutput], part_loss: PartLoss) -> torch.Tensor:
        """The sum of the losses of N targets, of which there may be none: ranks that wait for each other pass through
        the same parts of a model, whatever they have of targets."""
        return self._with_weights(lambda hidden_NH: self._loss_sum(hidden_NH, output, part_loss), hidden_NH)

    def _with_weights(self, compute: Callable[[torch.Tensor], torch.Tensor], hidden_NH: torch.Tensor) -> torch.Tensor:
        """What `compute` makes of hidden states where the weights are there that it needs, here and in its backward
        pass."""
        if not self._called_once:
            return compute(hidden_NH)
        own = self._head.forward

        def forward(hidden_NH: torch.Tensor) -> torch.Tensor:
            with _instead(self._head, own):  # as often as there are parts, past the hooks that bring the weights
                return compute(hidden_NH)

        with _instead(self._head, forward, hooks=True):
            result: torch.Tensor = self._head(hidden_NH)
        return result

    def _logits(self, hidden_NH: torch.Tensor, output: type[ModelOutput]) -> torch.Tensor:
        tokens_1N = torch.zeros(1, len(hidden_NH), dtype=torch.long, device=hidden_NH.device)
        decoded = output(last_hidden_state=hidden_NH[None])
        with _instead(self.decoder, lambda *_args, **_kwargs: decoded):
            # Past the hooks of the whole model, which are for passes of all of it.
            logits_1NV: torch.Tensor = self._model.forward(input_ids=tokens_1N, use_cache=False, **self._options).logits
        return logits_1NV.squeeze(0)  # [0] would fill as much again with zeros for its gradient

    def _loss_sum(self, hidden_NH: torch.Tensor, output: type[ModelOutput], part_loss: PartLoss) -> torch.Tensor:
        trained = self.trained()
        width = hidden_NH.shape[1] if trained else 0
        parts = list(_parts(len(hidden_NH), targets_at_once(hidden_NH.device.type, self._vocabulary, width)))

        def loss_of(hidden_nH: torch.Tensor, part: slice) -> torch.Tensor:
            return part_loss(self._logits(hidden_nH, output), part)

        if len(parts) == 1 or not torch.is_grad_enabled():  # one part needs no gradients of its own
            return torch.stack([loss_of(hidden_NH[part], part) for part in parts]).sum()
        loss: torch.Tensor = _LossSum.apply(hidden_NH, loss_of, parts, *trained)  # type: ignore[no-untyped-call]
        return loss

    def trained(self) -> list[torch.nn.Parameter]:
        """What is trained behind the decoder. Looked up each time: FSDP2 puts whole weights in the place of parts."""
        found = (owner._parameters[name] for owner, name in self._places)
        return list({id(p): p for p in found if p is not None and p.requires_grad}.values())


@contextmanager
def _instead(module: torch.nn.Module, forward: Callable[..., object], *, hooks: bool = False) -> Iterator[None]:
    """Within the block a call of the module does this. `hooks`: those on it run, as in any call."""
    changed = ("_forward_hooks", "_forward_pre_hooks", "forward")
    kept: dict[str, object] = {name: vars(module)[name] for name in changed if name in vars(module)}
    module.forward = forward
    if not hooks:
        module._forward_hooks, module._forward_pre_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        del module.forward
        vars(module).update(kept)


def find_tail(model: Any) -> Tail | None:
    """What a model does behind its decoder, where that can be done by itself as far as its modules tell."""
    try:
        return Tail(model)
    except (ValueError, AttributeError):
        return None


class _LossSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        loss_of: Callable[[torch.Tensor, slice], torch.Tensor],
        parts: list[slice],
        *trained: torch.nn.Parameter,
    ) -> torch.Tensor:
        of_hidden = torch.empty_like(hidden_NH)
        of_trained: list[torch.Tensor | None] = [None] * len(trained)
        losses = []
        for part in parts:
            with torch.enable_grad():
                hidden_nH = hidden_NH[part].detach().requires_grad_()
                loss = loss_of(hidden_nH, part)
            losses.append(loss.detach())
            of_hidden[part], *others = torch.autograd.grad(loss, (hidden_nH, *trained), allow_unused=True)
            for number, gradient in enumerate(others):
                if gradient is not None:  # added up in float32: the parts are many
                    before = of_trained[number]
                    own = torch.promote_types(gradient.dtype, torch.float32)
                    of_trained[number] = gradient.to(own) if before is None else before.add_(gradient)
        ctx.save_for_backward(of_hidden, *of_trained)
        return torch.stack(losses).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        of_hidden, *of_trained = ctx.saved_tensors
        return of_hidden * gradient, None, None, *(None if g is None else g * gradient for g in of_trained)


def _parts(count: int, at_once: int) -> Iterator[slice]:
    for first in range(0, max(count, 1), at_once):
        yield slice(first, first + at_once)
