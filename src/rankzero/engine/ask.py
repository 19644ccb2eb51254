"""Use a run's result, or any model, on this machine's device. Knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankzero.engine.console import results_alone_on_stdout
from rankzero.engine.device import pick_device, pick_dtype
from rankzero.model.generate import answer, load_speaker
from rankzero.model.load import settle_libraries
from rankzero.model.predict import Prediction, classify, load_classifier
from rankzero.run_dir.result import Result


def ask(result: Result, prompts: Sequence[str], *, images: Sequence[str] = (), max_new_tokens: int) -> list[str]:
    """One greedy reply to each prompt, which is about all of `images` where there are any. Raises ConfigError."""
    settle_libraries()
    device = pick_device(0)
    dtype = pick_dtype(result.model.dtype, device)
    with results_alone_on_stdout():
        speaker = load_speaker(result, dtype, device.torch_device)
        return answer(speaker, prompts, images=images, max_new_tokens=max_new_tokens)


def put_into_classes(result: Result, texts: Sequence[str]) -> Iterator[Prediction]:
    """The class of each text, in order. Raises ConfigError, or DataError for texts without any token."""
    settle_libraries()
    device = pick_device(0)
    dtype = pick_dtype(result.model.dtype, device)
    with results_alone_on_stdout():
        classifier = load_classifier(result, dtype, device.torch_device)
    return classify(classifier, texts)
