"""Greedy answers from a model, about images where it sees them. Knows nothing of runs."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from peft import PeftModel
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.utils import GENERATION_CONFIG_NAME

from rankzero.data.cache.embedded import unembedded_problems
from rankzero.data.images.decode import load_named
from rankzero.data.prompts import Prompt, question
from rankzero.data.rows.conversation import Message, Role
from rankzero.data.rows.formats.images import Slots
from rankzero.data.tokens.image_tokens import misplaced
from rankzero.data.tokens.surroundings import surroundings
from rankzero.data.tokens.thought_marks import ThoughtMarks, opened_by, thought_marks
from rankzero.data.tokens.tokenizer import single_template
from rankzero.directories import is_file
from rankzero.errors import ConfigError, DataError, NonFiniteError, Problem, RankzeroError, UsageError
from rankzero.model.context import beyond_in_use, borders_in_use, computed_alike
from rankzero.model.load import (
    kind_of,
    left_padding_counts,
    load_config,
    load_model,
    load_tokenizer,
    stop_token_ids,
    unembedded_tokens,
)
from rankzero.model.lora import load_adapter
from rankzero.model.out_of_memory import largest_first, out_of_memory_told
from rankzero.model.parts import forget_lengths, position_limit
from rankzero.model.rendering import rendered
from rankzero.model.source import locate, warn_of_another_base, warn_of_another_tokenizer
from rankzero.model.vision import Vision, load_vision
from rankzero.model.while_writing import NO_NUMBERS_HINT, NotNumbers, Poll
from rankzero.run_dir.result import Result
from rankzero.wording import first_line

if TYPE_CHECKING:
    from PIL.Image import Image

_log = logging.getLogger("rankzero.model")


@dataclass(frozen=True, slots=True)
class Turn:
    """What somebody said, and the files of the images that it is about."""

    role: Role
    text: str
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model in evaluation mode with what its prompts become tokens by."""

    model: Any
    tokenizer: Any
    vision: Vision | None
    """Of a model that sees images."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given besides the turns."""
    device: torch.device | None = None
    """What computes, where the weights may lie elsewhere."""
    unembedded: Mapping[int, str] = field(default_factory=dict)
    """Tokens that the model has no row for, by number."""
    dated_as_trained: bool = False
    """Whether chat templates see the date of training, as what is measured has to be the same tomorrow; else today."""


def load_speaker(result: Result, dtype: torch.dtype, device: torch.device) -> Speaker:
    """The model, with its adapter on top where it has one. Raises ConfigError, AccessError, ServiceError."""
    spec = result.model
    source = locate(spec, "writes")
    warn_of_another_base(source, result.trained_on)
    tokenizer = load_tokenizer(source, spec, result.chat_template)
    config = load_config(source, spec)
    if any(kind.endswith("ForSequenceClassification") for kind in config.architectures or ()):
        hint = f"use `rankzero predict {spec.name} --text …`"
        raise ConfigError(f"{spec.name} puts texts into classes; it writes none", where="model", hint=hint)
    kind, vision = kind_of(config, "writes"), None
    unembedded = unembedded_tokens(tokenizer, config, kind, source)
    if kind == "vision":
        trained = result.own_tokenizer and tokenizer.chat_template is not None
        keep = trained or result.chat_template is not None
        vision = load_vision(source, spec, tokenizer, max_tokens=result.image_max_tokens, keep_template=keep)
    warn_of_another_tokenizer(source, tokenizer, result.tokenizer)
    model = load_model(source, spec, config, dtype, device=device)
    if result.adapter is not None:
        model = load_adapter(model, result.adapter)
    stop_as_taught(model, result.adapter, result.stop_ids)
    if spec.quantization == "none":
        model.to(device)
    model.eval()
    return Speaker(model, tokenizer, vision, result.chat_template_kwargs, unembedded=unembedded)


def stop_as_taught(model: Any, adapter: Path | None, stop_ids: Sequence[int]) -> None:
    """Let a base stop at the tokens that were written beside the adapter on it, or at `stop_ids`, where those of a
    checkpoint, or of what was made of the base, are known. Raises ConfigError."""
    if (generation := getattr(model, "generation_config", None)) is None:
        return
    if stop_ids:
        generation.eos_token_id = list(stop_ids)
    if adapter is None or not is_file(file := adapter / GENERATION_CONFIG_NAME):
        return
    try:
        ids = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        hint = "it may be cut off: copy the adapter again"
        raise ConfigError(f"it is no JSON object: {first_line(error)}", where=str(file), hint=hint) from error
    if ids is not None:
        generation.eos_token_id = ids


def answer(
    speaker: Speaker, questions: Sequence[str], *, images: Sequence[str] = (), max_new_tokens: int = 64
) -> list[str]:
    """One greedy reply to each question, as a chat where the tokenizer has a template, else as raw text.

    Every question is about all `images`, which stand where it has `<image>`, else before it. Raises ConfigError where
    the model sees none, UsageError where there are more places than images, DataError where one cannot be read, and as
    `batches_of_replies` and `require_numbers` do.
    """
    stop_ids = stop_token_ids(speaker.model, speaker.tokenizer)
    if not stop_ids:
        raise ConfigError("neither the model nor the tokenizer names an end token", where="generation_config.json")
    places = [f"prompt {n}" for n in range(1, len(questions) + 1)]
    if images:
        about = [prompt_of(speaker, [Turn("user", text, tuple(images))]) for text in questions]
        with out_of_memory_told("prompt", NO_MEMORY_HINT):
            replies = [reply(speaker, prompt, stop_ids, max_new_tokens) for prompt in about]
    else:
        prompts = [question(text, place) for text, place in zip(questions, places, strict=True)]
        replies = replies_together(speaker, prompts, stop_ids, max_new_tokens)
    require_numbers(replies, places)
    return [found.text for found in replies]


def require_numbers(replies: Sequence[Reply], places: Sequence[str]) -> None:
    """Raise NonFiniteError for answers, by the `places` of their questions, that a model cannot have meant."""
    what = "its answer is NaN, so that the first token of all is the likeliest"
    broken = [where for found, where in zip(replies, places, strict=True) if found.nan]
    if broken:
        raise NonFiniteError([Problem(what, where, NO_NUMBERS_HINT) for where in broken])


def replies_together(speaker: Speaker, prompts: Sequence[Prompt], stop_ids: Sequence[int], longest: int) -> list[Reply]:
    """The greedy replies to several prompts without images, in their order. Raises as `batches_of_replies` does."""
    found: dict[int, Reply] = {}
    for batch, replies in batches_of_replies(speaker, prompts, stop_ids, longest):
        found |= dict(zip(batch, replies, strict=True))
    return [found[i] for i in range(len(prompts))]


def batches_of_replies(
    speaker: Speaker, prompts: Sequence[Prompt], stop_ids: Sequence[int], longest: int
) -> Iterator[tuple[Sequence[int], list[Reply]]]:
    """The greedy replies to prompts without images, as many at once as memory allows, the longest first; and which they
    are of. Those of a batch have one length where a model is not told of padding; and like lengths where it has no
    positions for the longest answer, or computes those of long rows in another way.

    Raises DataError as `answer_limits` does, before any; RankzeroError where memory runs out for one alone.
    """
    rows = all_ids(speaker, prompts)
    limits = answer_limits(speaker, rows, longest, [prompt.where for prompt in prompts])
    inner = _inner(speaker.model)
    apart, borders = left_padding_counts(inner), borders_in_use(inner.config)
    kinds = [
        (limit, len(ids) if apart else 0, computed_alike(borders, len(ids), limit))
        for limit, ids in zip(limits, rows, strict=True)
    ]
    yield from largest_first(
        [len(ids) + limit for limit, ids in zip(limits, rows, strict=True)],
        kinds,
        BATCH,
        lambda batch: _in_a_batch(speaker, [rows[i] for i in batch], stop_ids, limits[batch[0]]),
        lambda i: RankzeroError("out of memory", where=prompts[i].where or "prompt", hint=NO_MEMORY_HINT),
    )


BATCH = 16
"""Answers that are computed together. To questions of like length, so that little is padding."""
NO_MEMORY_HINT = "lower --max-new-tokens, shorten what is asked, or take the CPU: CUDA_VISIBLE_DEVICES="
"""Where one answer alone is too much."""


def answer_limits(speaker: Speaker, rows: Sequence[Sequence[int]], longest: int, places: Sequence[str]) -> list[int]:
    """How long the answer to each prompt of these tokens may be: `longest`, or what is left where the model has learned
    so many positions and no more; of one that computes them, prompts beyond its context are warned of. Raises DataError
    for prompts that leave nothing or are nothing, or have a token that the model cannot look up, by their `places`."""
    inner = _inner(speaker.model)
    limit, tokens = position_limit(inner), list(map(len, rows))
    problems = unembedded_problems(speaker.unembedded, rows, places)
    for count, where in zip(tokens, places, strict=True):
        if count == 0:
            problems.append(Problem("it has no tokens", where, "write something"))
        elif limit is not None and count >= limit:
            what = f"it has {count} tokens, and the model takes {limit} with its answer"
            problems.append(Problem(what, where, "shorten it"))
    if problems:
        raise DataError(problems)
    for problem in beyond_in_use(inner.config, tokens, places):
        _log.warning("[RESULT] %s: %s; what it says is no more than noise", problem.where or "prompt", problem.what)
    return [longest if limit is None else min(longest, limit - count) for count in tokens]


def require_context(speaker: Speaker, rows: Sequence[Sequence[int]], places: Sequence[str]) -> None:
    """Raise DataError for prompts of these tokens that are beyond what the model was made for, as training does."""
    if beyond := beyond_in_use(_inner(speaker.model).config, list(map(len, rows)), places):
        raise DataError(beyond)


def _in_a_batch(speaker: Speaker, rows: Sequence[list[int]], stop_ids: Sequence[int], longest: int) -> list[Reply]:
    width = max(map(len, rows))
    ids_BT = torch.full((len(rows), width), stop_ids[0])
    mask_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for i, ids in enumerate(rows):  # padding on the left: all replies start in the same column
        ids_BT[i, width - len(ids) :] = torch.tensor(ids)
        mask_BT[i, width - len(ids) :] = 1
    return _replies(speaker, {"input_ids": ids_BT, "attention_mask": mask_BT}, stop_ids, longest)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model wrote."""

    text: str
    tokens: int
    """How many it wrote, with its end."""
    ended: bool
    """By itself, not at the limit."""
    nan: bool = False
    """The model's scores of tokens were no numbers, and so this is no answer of it."""


def reply(
    speaker: Speaker,
    prompt: Prompt,
    stop_ids: Sequence[int],
    longest: int,
    *,
    cut_short: Callable[[], bool] | None = None,
    together: bool = False,
) -> Reply:
    """The greedy reply to one prompt. `cut_short` is asked as each token begins, and ends the reply where it is true.

    `together`: weights lie in parts on several processes. A collective then: each calls it for a prompt of its own, all
    with images or all without, and goes on computing until every one of them is done, so `cut_short` is asked equally
    often on all and may be a collective. Raises DataError where an image cannot be read, and as `answer_limits` does.
    """
    inputs = prompt_inputs(speaker, prompt)
    (longest,) = answer_limits(speaker, inputs["input_ids"].tolist(), longest, [prompt.where])
    (found,) = _replies(speaker, inputs, stop_ids, longest, cut_short=cut_short, together=together)
    return found


def prompt_of(speaker: Speaker, turns: Sequence[Turn]) -> Prompt:
    """A conversation up to where the model goes on. Without a chat template, the text of its last turn.

    Images stand where a turn has `<image>`, else before its text. Raises ConfigError where the model sees none,
    UsageError where there are more places than images.
    """
    asked = turns if speaker.tokenizer.chat_template is not None else turns[-1:]
    images = tuple(path for turn in asked for path in turn.images)
    prompt = Prompt(tuple(_placed(turn) for turn in asked), images=images, image_names=images)
    require_sight(speaker, prompt, hint="name a vision-language model, or leave --image out")
    return prompt


def _placed(turn: Turn) -> Message:
    """A turn with its own images in their places."""
    slots = Slots({"images": list(turn.images)} if turn.images else {}, 0)
    placed = slots.place((slots.message(turn.role, turn.text),), 0)
    if placed.problems:
        raise UsageError(placed.problems[0].what, where="prompt", hint="give one --image for each <image>")
    return placed.turns[0]


def require_sight(speaker: Speaker, prompt: Prompt, *, hint: str, where: str = "model") -> None:
    """Raise ConfigError where a prompt has images and the model cannot be shown them."""
    if not prompt.images or (speaker.vision is not None and speaker.tokenizer.chat_template is not None):
        return
    if speaker.vision is None:
        raise ConfigError("the model sees no images", where=where, hint=hint)
    what = "the tokenizer has no chat template that says where images stand"
    raise ConfigError(what, where=where, hint="set data.chat_template")


def prompt_inputs(speaker: Speaker, prompt: Prompt) -> dict[str, torch.Tensor]:
    """What the model is given of one prompt: `input_ids` (1, T), its mask, and what it gets of images. Raises
    DataError where one cannot be read."""
    images = [load_named(path) for path in prompt.images]
    ids_1T = torch.tensor([prompt_ids(speaker, prompt, images)])
    inputs = {"input_ids": ids_1T, "attention_mask": torch.ones_like(ids_1T)}
    if images and speaker.vision is not None:
        extra = speaker.vision.token_inputs(ids_1T.numpy())
        inputs |= {name: torch.from_numpy(value) for name, value in extra.items()}
        inputs |= speaker.vision.inputs(images)
    return inputs


def all_ids(speaker: Speaker, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The tokens of prompts, with those that stand for their images. Raises DataError with all that is wrong."""
    rows: list[list[int]] = []
    problems: list[Problem] = []
    for prompt in prompts:
        try:
            rows.append(prompt_inputs(speaker, prompt)["input_ids"][0].tolist())
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return rows


def _replies(
    speaker: Speaker,
    inputs: Mapping[str, torch.Tensor],
    stop_ids: Sequence[int],
    longest: int,
    *,
    cut_short: Callable[[], bool] | None = None,
    together: bool = False,
) -> list[Reply]:
    """What the model writes behind `input_ids` (B, T)."""
    device = speaker.device or next(speaker.model.parameters()).device
    forget_lengths(speaker.model)
    poll, not_numbers = Poll(cut_short or (lambda: False)), NotNumbers()
    # No inference mode: tensors of it must not meet the backward pass of a model that is in training. What blocks were
    # compiled for are the lengths of training; here each token has another one.
    eager = torch.compiler.set_stance("force_eager")
    with torch.no_grad(), eager, as_asked(speaker.model), poll.asked_by(_inner(speaker.model)):
        replies_BT = speaker.model.generate(
            **{name: value.to(device) for name, value in inputs.items()},
            max_new_tokens=longest,
            do_sample=False,
            use_cache=True,
            eos_token_id=list(stop_ids) or None,
            pad_token_id=stop_ids[0] if stop_ids else 0,
            stopping_criteria=StoppingCriteriaList([poll]),
            logits_processor=LogitsProcessorList([not_numbers]),
            synced_gpus=together,
        )
    start = inputs["input_ids"].shape[1]
    ends = set(stop_ids)
    found = []
    for row, written in enumerate(replies_BT[:, start:].tolist()):
        length = next((i + 1 for i, token in enumerate(written) if token in ends), len(written))
        ended = bool(length) and written[length - 1] in ends
        prompt = () if ended else inputs["input_ids"][row].tolist()
        text = text_of(speaker.tokenizer, written[:length], prompt)
        found.append(Reply(text, length, ended=ended, nan=not_numbers.within(row, length)))
    return found


@contextmanager
def as_asked(model: Any) -> Iterator[None]:
    """Within, `generate` chooses tokens by what it is told alone. A model's generation_config.json may hold penalties
    for what was said before, or other ways to change what is likely, which transformers adds to what it is told."""
    inner = _inner(model)
    own = inner.generation_config
    tokens = {name: getattr(own, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    inner.generation_config = GenerationConfig(**tokens)
    try:
        yield
    finally:
        inner.generation_config = own


def text_of(tokenizer: Any, ids: Sequence[int], prompt: Sequence[int] = ()) -> str:
    """What a model wrote, as text without special tokens. Where these part reasoning from the answer, they become tags,
    as rows have them: `<think>…</think>` and the answer behind it. `prompt`: what stands before an answer that was cut
    off, which is reasoning where the prompt has begun that and nothing has ended it."""
    opened = opened_by(str(tokenizer.decode(prompt)), marks_of(tokenizer)) if prompt else ""
    if (said := _with_tags(tokenizer, opened + str(tokenizer.decode(ids)))) is not None:
        return said
    said = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
    return _tagged(said, None) if opened and "</think>" not in said else said


def without_special_tokens(tokenizer: Any, text: str) -> str:
    """A text that has special tokens in it, as `text_of` would read their ids."""
    said = _with_tags(tokenizer, text)
    return _unmarked(text, _specials(tokenizer)) if said is None else said


_SPECIALS: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()


def _specials(tokenizer: Any) -> frozenset[str]:
    if tokenizer not in _SPECIALS:  # some have thousands, which are made anew whenever they are asked for
        added = tokenizer.added_tokens_decoder.values()
        _SPECIALS[tokenizer] = frozenset({token.content for token in added if token.special} - {""})
    return _SPECIALS[tokenizer]


def _unmarked(text: str, specials: Iterable[str]) -> str:
    longest_first = sorted(map(re.escape, specials), key=len, reverse=True)
    return (re.sub("|".join(longest_first), "", text) if longest_first else text).strip()


def _with_tags(tokenizer: Any, text: str) -> str | None:
    """Of text with special tokens that part reasoning from the answer; None of any other."""
    if (of_channels := _of_channels(text)) is not None:
        return of_channels
    marks, specials = marks_of(tokenizer), _specials(tokenizer)
    if marks is None or (parted := marks.parted(text)) is None:
        return None
    (thought, said), ended = (_unmarked(part, specials) for part in parted[:2]), parted[2]
    return _tagged(thought, said if ended else None)


def marks_of(tokenizer: Any) -> ThoughtMarks | None:
    """The special tokens that its chat template puts around reasoning; None where it has none."""
    if tokenizer.chat_template is None:
        return None
    try:
        return thought_marks(str(single_template(tokenizer.chat_template)), _specials(tokenizer))
    except ConfigError:  # the template is none: what was asked was raw text
        return None


def _tagged(thought: str, said: str | None) -> str:
    """`said`: None where the reasoning never ended."""
    if said is None or not thought:
        return f"<think>\n{thought}" if said is None else said
    return f"<think>\n{thought}\n</think>\n\n{said}"


def _of_channels(text: str) -> str | None:
    """As `_with_tags`, of GPT-OSS, whose template has its reasoning in a message of its own."""
    parted = list(_CHANNEL.finditer(text))
    if {part[1] for part in parted} - {THOUGHT, ANSWER} or not parted:
        return None
    thought = "\n".join(part[2] for part in parted if part[1] == THOUGHT)
    answers = [part[2] for part in parted if part[1] == ANSWER]
    return _tagged(thought, "".join(answers).strip() if answers or not thought else None)


_CHANNEL = re.compile(r"<\|channel\|>(\w+)[^<]*<\|message\|>(.*?)(?=<\|(?:end|return|call|start)\|>|\Z)", re.DOTALL)
"""Of GPT-OSS: what a message is, and its text."""
THOUGHT, ANSWER = "analysis", "final"


def _inner(model: Any) -> Any:
    """What `generate` calls for each token: of a model with adapters, the one that they are in."""
    inner: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    return inner


def prompt_ids(speaker: Speaker, prompt: Prompt, images: Sequence[Image] = ()) -> list[int]:
    """The tokens of a prompt: rendered by the chat template where there is one and the prompt is no raw text.

    Raw text is asked as it was trained: behind what the tokenizer itself puts before a text, without what it puts
    behind one. Raises DataError where the template refuses it, or it has tokens that stand for images, besides those of
    `images`.
    """
    tokenizer = speaker.tokenizer
    ids: list[int]
    if tokenizer.chat_template is None or prompt.templated is False:
        text = "".join(message.content for message in prompt.messages)
        _require_places(speaker, prompt, text, images)
        if not tokenizer.is_fast:  # nothing was trained with it, and it does not say what it adds
            ids = tokenizer(text, add_special_tokens=not prompt.verbatim)["input_ids"]
            return ids
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        before, _, _ = surroundings(tokenizer.backend_tokenizer).around(ids)
        return ids if prompt.verbatim else [*before, *ids]
    sees, dated = speaker.vision is not None, speaker.dated_as_trained
    text = rendered(tokenizer, prompt, speaker.template_kwargs, sees=sees, dated_as_trained=dated)
    _require_places(speaker, prompt, text, images)
    if images and speaker.vision is not None:
        return speaker.vision.prompt_ids(text, images, tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _require_places(speaker: Speaker, prompt: Prompt, text: str, images: Sequence[Image]) -> None:
    """As rows are judged for training."""
    problem = None if speaker.vision is None else misplaced(text, len(images), speaker.vision.rules)
    if problem is not None:
        raise DataError(problem.what, where=prompt.where or "prompt", hint=problem.hint)
