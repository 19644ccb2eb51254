"""Use a run's result, or any model, on this machine's device. Knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rankzero.engine.console import results_alone_on_stdout
from rankzero.engine.device import pick_device, pick_dtype
from rankzero.errors import Problem, UsageError
from rankzero.model.generate import answer, load_speaker
from rankzero.model.load import settled_libraries
from rankzero.model.predict import Prediction, classify, load_classifier
from rankzero.run_dir.result import Result


@settled_libraries
def ask(result: Result, prompts: Sequence[str], *, images: Sequence[str] = (), max_new_tokens: int) -> list[str]:
    """One greedy reply to each prompt, which is about all of `images` where there are any. Raises ConfigError, and
    UsageError for prompts that are no text."""
    require_unicode(prompts, "prompt")
    device = pick_device(0)
    dtype = pick_dtype(result.model.dtype, device)
    with results_alone_on_stdout():
        speaker = load_speaker(result, dtype, device.torch_device)
        return answer(speaker, prompts, images=images, max_new_tokens=max_new_tokens)


@settled_libraries
def put_into_classes(result: Result, texts: Sequence[str]) -> Iterator[Prediction]:
    """The class of each text, in order. Raises ConfigError, DataError for texts without any token, or UsageError for
    what is no text."""
    require_unicode(texts, "text")
    device = pick_device(0)
    dtype = pick_dtype(result.model.dtype, device)
    with results_alone_on_stdout():
        classifier = load_classifier(result, dtype, device.torch_device)
    return classify(classifier, texts)


def require_unicode(texts: Sequence[str], what: str) -> None:
    """Raise UsageError for what was typed or piped in bytes that are not UTF-8: no tokenizer takes it."""
    wrong = [number for number, text in enumerate(texts, 1) if not _is_unicode(text)]
    if wrong:
        hint = "is the text, or the terminal, in another encoding? iconv -f WINDOWS-1252 -t UTF-8"
        raise UsageError([Problem("it is not UTF-8", f"{what} {n}" if len(texts) > 1 else what, hint) for n in wrong])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
