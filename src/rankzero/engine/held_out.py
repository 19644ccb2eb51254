"""A result, and the model before it, on questions that have answers: asked, scored, judged. Writes no file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rankzero.data.prompts import Prompt
from rankzero.engine.chat import Voice
from rankzero.engine.console import logger
from rankzero.engine.judge import BEST, Judge
from rankzero.engine.references import References
from rankzero.engine.text_scores import exact_match, mean, token_f1, without_reasoning
from rankzero.errors import ConfigError
from rankzero.model.generate import (
    NO_MEMORY_HINT,
    Reply,
    Speaker,
    all_ids,
    answer_limits,
    batches_of_replies,
    reply,
    require_context,
    require_numbers,
    require_sight,
)
from rankzero.model.load import stop_token_ids
from rankzero.model.out_of_memory import out_of_memory_told
from rankzero.run_dir.atomic import file_sha256
from rankzero.wording import counted, first_line


@dataclass(frozen=True, slots=True)
class Row:
    """One question and what was made of it, by the name of who answered."""

    prompt: Prompt
    replies: dict[str, Reply]
    grades: dict[str, float | None]
    """Of a judge, from 0 to 10; None where its answer had no grade."""

    def to_json(self) -> dict[str, Any]:
        """For a file of answers."""
        reference = self.prompt.reference
        found: dict[str, Any] = {"where": self.prompt.where, "prompt": self.prompt.text, "reference": reference}
        for name, written in self.replies.items():
            entry: dict[str, Any] = {"text": written.text, "ended": written.ended}
            if reference is not None:
                said = without_reasoning(written.text)
                entry |= {"exact_match": exact_match(said, reference), "token_f1": token_f1(said, reference)}
            if name in self.grades:
                entry["judge"] = self.grades[name]
            found[name] = entry
        return found


def require_askable(voices: Sequence[Voice], prompts: Sequence[Prompt], max_new_tokens: int) -> None:
    """Before anything is asked. Raises ConfigError where a prompt has images and the model sees none, or nothing would
    end an answer, DataError for prompts whose images cannot be read, or which the chat template refuses, for
    those that are beyond the model's context, and as `answer_limits` does."""
    for speaker in _speakers(voices) if prompts else ():
        if not stop_token_ids(speaker.model, speaker.tokenizer):
            what = "neither the model nor the tokenizer names an end token"
            raise ConfigError(what, where="generation_config.json")
        for prompt in prompts:
            require_sight(speaker, prompt, hint="take rows without images", where=prompt.where)
        rows, places = all_ids(speaker, prompts), [prompt.where for prompt in prompts]
        require_context(speaker, rows, places)
        answer_limits(speaker, rows, max_new_tokens, places)


def to_compare(voices: Sequence[Voice], sets: Sequence[Sequence[Prompt]]) -> list[list[Prompt]]:
    """The prompts with references as these models would write them; None where they write none. Before anything is
    asked: it may raise ConfigError, and answers are dear."""
    found = [list(prompts) for prompts in sets]
    for speaker in _speakers(voices):
        references = References(speaker)
        found = [[references.comparable(prompt) for prompt in prompts] for prompts in found]
    return found


def ask_all(
    voices: Sequence[Voice],
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    tick: Callable[[int], None] = lambda _done: None,
    so_far: Callable[[Sequence[Row]], None] = lambda _rows: None,
) -> list[Row]:
    """Every voice's greedy answers, in the order of the prompts, without grades; of what `to_compare` made, where they
    are to be scored. `tick` hears how many there are; `so_far` gets those that there are before an error. Raises
    NonFiniteError for answers that are none, RankzeroError where memory runs out; where `so_far` fails then, it is
    warned of."""
    said: dict[str, dict[int, Reply]] = {}
    done = 0

    def rows() -> list[Row]:
        by_prompt = [{name: found[i] for name, found in said.items() if i in found} for i in range(len(prompts))]
        return [Row(prompt, found, {}) for prompt, found in zip(prompts, by_prompt, strict=True) if found]

    try:
        for voice in voices:
            answers = said[voice.name or "tuned"] = {}

            def more(found: Mapping[int, Reply], answers: dict[int, Reply] = answers) -> None:
                nonlocal done
                answers.update(found)
                done += len(found)
                tick(done)

            with voice.muted():
                _answers(voice.speaker, prompts, max_new_tokens, more)
    except BaseException:  # an interrupt too: answers are dear
        if done:
            _keep(rows(), so_far)
        raise
    return rows()


def graded(
    rows: Sequence[Row], judge: Judge, *, so_far: Callable[[Sequence[Row]], None] = lambda _rows: None
) -> list[Row]:
    """The same with a judge's grades; what it refuses has none, which is said. Raises what the judge raises; `so_far`
    gets the rows with what grades there are before; where it fails then, it is warned of."""
    refused: list[str] = []

    def grade(prompt: Prompt, found: Reply) -> float | None:
        question = "\n".join([prompt.text, *(f"{name}: {text}" for name, text in _beyond_text(prompt).items())])
        given = judge.grade(question, without_reasoning(found.text), _wanted(prompt))
        if given.refused:
            refused.append(f"{prompt.where}: {given.words}")
        return given.score

    done: list[Row] = []
    try:
        for row in rows:
            done.append(replace(row, grades={name: grade(row.prompt, found) for name, found in row.replies.items()}))
    except BaseException:  # an interrupt too: grades are paid for
        _keep([*done, *rows[len(done) :]], so_far)
        raise
    if refused:
        logger.warning("[RESULT] the judge refused %s: %s", counted(len(refused), "answer"), refused[0])
    return done


def _keep(rows: Sequence[Row], so_far: Callable[[Sequence[Row]], None]) -> None:
    """After an error, which stays the one to tell."""
    try:
        so_far(rows)
    except Exception as error:
        logger.warning("[RESULT] the answers so far could not be kept: %s", first_line(error))


def summed_up(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Scores by the name of who answered: means over the rows that have what they are measured by."""
    found: dict[str, dict[str, Any]] = {}
    for name in rows[0].replies:
        pairs = [(without_reasoning(row.replies[name].text), row.prompt.reference) for row in rows]
        scored = [(text, wanted) for text, wanted in pairs if wanted is not None]
        scores: dict[str, Any] = {
            "exact_match": mean([float(exact_match(text, wanted)) for text, wanted in scored]),
            "token_f1": mean([token_f1(text, wanted) for text, wanted in scored]),
            "cut_off": sum(not row.replies[name].ended for row in rows),
        }
        if rows[0].grades:
            grades = [row.grades[name] for row in rows]
            given = [grade for grade in grades if grade is not None]
            scores |= {"judge": mean(given), "judged": len(given), "without_grade": len(grades) - len(given)}
        found[name] = scores
    return found


def about(rows: Sequence[Row], *, max_new_tokens: int, judge: Judge | None) -> dict[str, Any]:
    """What the scores are of."""
    asked = hashlib.sha256()
    for row in rows:
        facts = (row.prompt.text, _wanted(row.prompt), *_beyond_text(row.prompt).items())
        asked.update(repr(facts).encode("utf-8", "surrogatepass"))
        for image in row.prompt.images:
            asked.update(file_sha256(Path(image)).encode())
    found: dict[str, Any] = {
        "asked": asked.hexdigest()[:16],
        "rows": len(rows),
        "with_reference": sum(row.prompt.reference is not None for row in rows),
        "max_new_tokens": max_new_tokens,
        "time": time.time(),
    }
    return found if judge is None else {**found, "judge_model": judge.model, "judge_best": BEST}


def _beyond_text(prompt: Prompt) -> dict[str, str]:
    """What a question has besides its text, as JSON: the tools that there are, what its chat template is
    given, and the calls of its turns. {} of one without, which is known by its text alone, as older versions kept it.
    """
    found = {}
    if prompt.tools:
        found["tools"] = _as_json(prompt.tools)
    if prompt.template_kwargs:
        found["chat_template_kwargs"] = _as_json(prompt.template_kwargs)
    if any(message.tool_calls for message in prompt.messages):
        found["calls"] = _as_json([message.tool_calls for message in prompt.messages if message.tool_calls])
    return found


def _wanted(prompt: Prompt) -> str | None:
    """The reference; of a call that the template does not write, the call."""
    return _as_json(prompt.call.tool_calls) if prompt.reference is None and prompt.call else prompt.reference


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _speakers(voices: Sequence[Voice]) -> list[Speaker]:
    """Each once: a base may be what its adapter is on."""
    return list({id(voice.speaker): voice.speaker for voice in voices}.values())


def _answers(
    speaker: Speaker, prompts: Sequence[Prompt], longest: int, more: Callable[[Mapping[int, Reply]], None]
) -> None:
    """`more` hears the answers to some prompts, by their numbers, as soon as they are there."""
    stop_ids = stop_token_ids(speaker.model, speaker.tokenizer)
    with_images = [i for i, prompt in enumerate(prompts) if prompt.images]
    rest = [i for i, prompt in enumerate(prompts) if not prompt.images]
    for i in with_images:
        with out_of_memory_told(prompts[i].where, NO_MEMORY_HINT):
            found = reply(speaker, prompts[i], stop_ids, longest)
        require_numbers([found], [prompts[i].where])
        more({i: found})
    for batch, answers in batches_of_replies(speaker, [prompts[i] for i in rest], stop_ids, longest):
        numbers = [rest[i] for i in batch]
        require_numbers(answers, [prompts[i].where for i in numbers])
        more(dict(zip(numbers, answers, strict=True)))
