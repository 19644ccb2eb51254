"""What writes a checkpoint beside the steps must not ask the model for anything: it is being computed with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


@contextmanager
def nothing_asked_of_models() -> Iterator[None]:
    """Within, whoever lists a model's parameters, buffers or state fails."""

    def asked(module: torch.nn.Module, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"a {type(module).__name__} was asked for its tensors while it may be computed with")

    with pytest.MonkeyPatch.context() as patch:
        for method in ("_named_members", "state_dict"):
            patch.setattr(torch.nn.Module, method, asked)
        yield
