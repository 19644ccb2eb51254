"""What a model is asked: texts of a spec, or the rows of a file without their last answers. Knows no tokenizer.

A row is one that `data` reads, where the model's answer may also be missing. The last answer that it has is no part of
the question; it is kept to compare what the model writes with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rankzero.data.cache.selection import chosen
from rankzero.data.images.decode import ImageError, locate
from rankzero.data.images.embedded import is_embedded, keep, kept_images
from rankzero.data.read.locate import LocatedSource, expand
from rankzero.data.read.sources import numbering, read_chunks, require_readable
from rankzero.data.rows.chunks import NumberedLine, rows_of
from rankzero.data.rows.conversation import ANSWERING, Conversation, Message
from rankzero.data.rows.formats import Noted
from rankzero.data.rows.parse import read_row
from rankzero.data.rows.problems import ProblemLog, RowProblem
from rankzero.data.rows.unanswered import NO_ANSWER, with_answer
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec

MOST = 200
"""Prompts of a run: each is answered whenever the run is evaluated."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question to a model: the turns before its answer, or a text that it goes on with."""

    messages: tuple[Message, ...]
    templated: bool | None = None
    """Whether a chat template renders it; None: where there is one. Else its texts are joined as they stand."""
    verbatim: bool = False
    """Raw text with its special tokens in it: nothing is put before it."""
    images: tuple[str, ...] = ()
    """Files, as many as the messages have places for."""
    image_names: tuple[str, ...] = ()
    """What the row calls them."""
    tools: tuple[Mapping[str, Any], ...] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given for this question, before what it is given for all."""
    reference: str | None = None
    """The answer that the row has, without its reasoning."""
    call: Message | None = None
    """The answer where it calls tools: as text it is what a model's chat template writes of it."""
    where: str = ""
    label: str = ""
    """By which it is told from other prompts that have the same text."""

    @property
    def text(self) -> str:
        """As people are shown it. Of one turn the text alone; an image is what the row calls it."""
        return f"{self._text} {self.label}" if self.label else self._text

    @property
    def _text(self) -> str:
        names = iter(self.image_names)
        texts = [_with_images(message, [next(names) for _ in message.image_offsets]) for message in self.messages]
        if len(texts) == 1 or not self.templated:
            return "".join(texts)
        return "\n".join(f"{message.role}: {text}" for message, text in zip(self.messages, texts, strict=True))


def _with_images(message: Message, names: Sequence[str]) -> str:
    text = message.content
    for offset, name in reversed(list(zip(message.image_offsets, names, strict=True))):
        text = f"{text[:offset]}<{name}>{text[offset:]}"
    return text


def question(text: str, where: str = "") -> Prompt:
    """A text as it is asked in a chat; the text itself where there is no chat template."""
    return Prompt((Message("user", text),), where=where)


def read_prompts(asked: str | Sequence[str], *, seed: int, offline: bool = False) -> tuple[Prompt, ...]:
    """The prompts of a spec: themselves, or those of a path as in `data.eval`. What is there twice is asked once.

    Raises DataError with every row that is no prompt, and where there are more than MOST; and as `expand` does.
    """
    if not isinstance(asked, str):
        prompts = [question(text, f"eval.prompts[{index}]") for index, text in enumerate(asked)]
    else:
        (located,) = expand([SourceSpec(path=asked)], offline=offline)
        require_readable(located.files)
        prompts = _of_files(located, seed)
    if len(prompts) > MOST:
        hint = f"each is answered at every evaluation; name a sample of the rows: {asked}#20"
        raise DataError(f"more than {MOST} prompts", where="eval.prompts", hint=hint)
    if not prompts:
        raise DataError("there are no prompts in it", where=str(asked) or "eval.prompts")
    different: dict[str, Prompt] = {}
    for prompt in prompts:
        different.setdefault(repr(replace(prompt, where="")), prompt)
    return tuple(_named_apart(different.values()))


def read_questions(source: SourceSpec, *, seed: int) -> list[Prompt]:
    """All rows of a source as questions, with their answers as references where they have some.

    Raises DataError with every row that is no question, or where there are none; and as `expand` does.
    """
    (located,) = expand([source])
    require_readable(located.files)
    prompts = _of_files(located, seed, most=None)
    if not prompts:
        raise DataError("there are no rows in it", where=source.path)
    return prompts


def _named_apart(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    """What is asked in another way under the same words, such as with and without a chat template, gets a number."""
    seen: Counter[str] = Counter()
    for prompt in prompts:
        seen[prompt.text] += 1
        number = seen[prompt.text]
        yield prompt if number == 1 else replace(prompt, label=f"({number})")


def _of_files(located: LocatedSource, seed: int, most: int | None = MOST) -> list[Prompt]:
    """One after the other; of all rows, no more than show that there are too many."""
    source = located.source
    chunks = ((file, chunk) for file in located.files for chunk in read_chunks(file, header=source.header))
    rows = ((file, row) for file, chunk in chunks for row in rows_of(chunk))
    found = list(islice(rows, most + 1)) if located.is_whole and most is not None else list(rows)
    try:
        taken = chosen(len(found), located.rows, located.sample, seed=seed, source=0)
    except ValueError as error:
        raise DataError(located.too_few(len(found))) from error
    log, prompts = ProblemLog(), []
    for file, row in (found[index] for index in taken):
        prompt = _of_row(file, row, source)
        if isinstance(prompt, Prompt):
            prompts.append(prompt)
        else:
            log.add(file, prompt)
    if log.total:
        raise log.error()
    return prompts


def _of_row(file: str, line: NumberedLine, source: SourceSpec) -> Prompt | list[RowProblem]:
    number, content, about = line
    if isinstance(about, RowProblem):
        return [about]
    found = read_row(content, number, source.format, source.columns or None, with_answer)
    if isinstance(found, list):
        return found
    conversations = found.result.conversations if isinstance(found.result, Noted) else found.result
    if isinstance(conversations, Conversation):
        conversations = (conversations,)
    if len(conversations) != 1:
        what = f"the row is {len(conversations)} conversations, not one question"
        return [RowProblem(number, "not one question", what, "write one question a row")]
    try:
        where = f"{file}:{number}" if numbering(file) == "line" else file
        prompt = _asked(conversations[0], file, where, source.image_root)
    except ImageError as error:
        return [RowProblem(number, error.reason, error.what, error.hint)]
    if prompt is not None:
        return prompt
    what, hint = "nothing is asked: the row is an answer alone", "write what is asked before it, or remove the row"
    return [RowProblem(number, "no question", what, hint)]


def _asked(row: Conversation, file: str, where: str, image_root: str | None) -> Prompt | None:
    """None where nothing is asked: an answer stands alone. Raises ImageError."""
    before, last = _parted(row)
    answer = None if last is None or NO_ANSWER in last.content else last
    if not row.templated and not row.verbatim and answer is None:  # a text that nobody has put a form on
        return question("".join(message.content for message in before), where)
    if not before:
        return None
    images = row.images[: sum(len(message.image_offsets) for message in before)]
    root = Path(file).parent if image_root is None else Path(image_root)
    files = [kept_images() / keep(image) if is_embedded(image) else locate(image, root) for image in images]
    return Prompt(
        messages=before,
        templated=row.templated,
        verbatim=row.verbatim,
        images=tuple(map(str, files)),
        image_names=tuple(
            path.name[:12] if is_embedded(image) else image for path, image in zip(files, images, strict=True)
        ),
        tools=row.tools,
        template_kwargs=row.template_kwargs,
        reference=_reference(answer),
        call=answer.without_thought() if answer is not None and answer.tool_calls else None,
        where=where,
    )


def _parted(row: Conversation) -> tuple[tuple[Message, ...], Message | None]:
    """What is asked, and the last answer. None where the row ends with a question, or is a text without parts."""
    messages = row.messages
    if row.templated:
        return (messages[:-1], messages[-1]) if messages[-1].role in ANSWERING else (messages, None)
    if not row.completion_only:
        return messages, None
    # What raw text has behind its answer, such as an end that is not to be learnt, is no question.
    end = 1 + max(i for i, message in enumerate(messages) if message.role in ANSWERING and message.content.strip())
    start = end
    while start and messages[start - 1].role in ANSWERING:
        start -= 1
    if not start and row.verbatim:  # all of it is trained, as a plain text is
        return messages, None
    if _says_something("".join(message.content for message in messages[end:])):  # it ends with a question
        return messages, None
    return messages[:start], Message("completion", "".join(message.content for message in messages[start:end]))


def _says_something(text: str) -> bool:
    """Whether there are words in it besides marks such as `</s>` and `[/INST]`."""
    return any(one.isalnum() for one in _MARKS.sub("", text))


_MARKS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")


def _reference(answer: Message | None) -> str | None:
    """The text that an answer is compared with; None where it is a call, or says nothing."""
    if answer is None or answer.tool_calls:
        return None
    return answer.answer.strip() or None
