"""A chat: what the model is shown of what was said, streamed, by one voice and by two; typed and piped."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import rankzero
from rankzero.cli.chat import Talk, lines
from rankzero.engine.chat import Chat, Voice, open_chat
from rankzero.errors import ConfigError, DataError
from rankzero.model.generate import load_speaker
from rankzero.run_dir.result import find_result
from rankzero.spec.sampling import Sampling
from tests.support.adapters import tiny_adapter
from tests.support.cli import Cli
from tests.support.tiny import tiny_gpt2
from tests.support.too_little_memory import out_of_memory_beyond

SHORT = Sampling(max_new_tokens=6)


@pytest.fixture(scope="module")
def adapter(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that changes what is said."""
    return tiny_adapter(tiny, tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def speaker(tiny: Path) -> Any:
    return load_speaker(find_result(str(tiny), "writes"), torch.float32, torch.device("cpu"))


def greedy(speaker: Any, turns: list[dict[str, str]]) -> str:
    ids = speaker.tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    made = speaker.model.generate(**ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    return str(speaker.tokenizer.decode(made[0, ids["input_ids"].shape[1] :], skip_special_tokens=True).strip())


def test_each_answer_knows_what_was_said(speaker: Any) -> None:
    chat = Chat([Voice("", speaker)], SHORT, "Be kind.")
    turns = [{"role": "system", "content": "Be kind."}]
    for text in ("Hello World", "What is the capital of Peru?"):
        pieces: list[str] = []
        turns.append({"role": "user", "content": text})
        [answer] = chat.ask(text, on_piece=lambda voice, piece: pieces.append(piece))  # noqa: B023
        assert answer.text == greedy(speaker, turns) == "".join(pieces).strip()
        turns.append({"role": "assistant", "content": answer.text})
    chat.reset()
    [again] = chat.ask("Hello World")
    assert again.text == greedy(speaker, [turns[0], {"role": "user", "content": "Hello World"}])


def test_a_seed_is_of_the_chat_alone(speaker: Any) -> None:
    before = torch.get_rng_state()
    Chat([Voice("", speaker)], Sampling(max_new_tokens=2, temperature=1.0, seed=3)).ask("Ping")
    assert torch.equal(torch.get_rng_state(), before), "what its caller draws next does not follow from it"


def test_a_chat_leaves_the_libraries_of_its_caller_as_they_were(tiny: Path) -> None:
    """A notebook's own use of transformers says what it says without us."""
    from transformers.utils import logging

    def settings() -> tuple[object, ...]:
        of_ours = [one for one in warnings.filters if one[2] is FutureWarning and "transformers" in str(one[3])]
        return logging.get_verbosity(), logging.is_progress_bar_enabled(), of_ours, os.environ.get("DS_ACCELERATOR")

    logging.set_verbosity_info()
    logging.enable_progress_bar()
    before = settings()
    chat = open_chat(find_result(str(tiny), "writes"), SHORT)
    assert settings() == before
    heard: list[tuple[object, ...]] = []
    chat.ask("Ping", on_piece=lambda *_: heard.append(settings()))
    assert heard[-1][:2] == (logging.ERROR, False)
    assert settings() == before
    logging.set_verbosity_warning()


def test_answers_are_drawn_by_seed_and_temperature(speaker: Any) -> None:
    def said(seed: int | None, temperature: float) -> str:
        chat = Chat([Voice("", speaker)], Sampling(max_new_tokens=8, temperature=temperature, seed=seed))
        return chat.ask("Hello")[0].text

    assert said(1, 2.0) == said(1, 2.0) != said(2, 2.0)
    assert said(None, 0.0) == said(None, 0.0)


def test_base_and_tuned_each_go_on_from_their_own_answers(adapter: Path, tiny: Path, speaker: Any) -> None:
    result = find_result(str(adapter), "writes")
    chat = open_chat(result, SHORT, base=find_result(str(tiny), "writes"))
    assert chat.voices[0].speaker.model is chat.voices[1].speaker.model, "an adapter's base is there already"
    base, tuned = chat.ask("Hello World")
    assert (base.voice, tuned.voice) == ("base", "tuned") and base.text != tuned.text
    assert base.text == greedy(speaker, [{"role": "user", "content": "Hello World"}])
    second = chat.ask("Ping")[0]
    said = [("user", "Hello World"), ("assistant", base.text), ("user", "Ping")]
    assert second.text == greedy(speaker, [{"role": role, "content": text} for role, text in said])


def test_what_fails_is_not_remembered(speaker: Any, tmp_path: Path) -> None:
    chat = Chat([Voice("", speaker)], SHORT)
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="sees no images"):
        chat.ask("Which colour?", images=[str(tmp_path / "a.png")])
    assert chat.ask("Hello")[0].text == greedy(speaker, [{"role": "user", "content": "Hello"}])


def test_piped_a_line_in_an_answer_out(
    adapter: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello World\n\n/reset\nHello World\n/exit\nnever\n"))
    done = Cli(capfd, monkeypatch)(f"chat {adapter} --max-new-tokens 6 --json")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert len(rows) == 2 and rows[0] == rows[1], "forgotten in between"
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello World\n"))
    done = Cli(capfd, monkeypatch)(f"chat {adapter} --max-new-tokens 6")
    assert done.out.strip() == rows[0]["replies"]["reply"]


def test_a_message_may_begin_as_a_command_does(speaker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone on its line it is one; from a pipe anything else is said to the model."""
    messages = ["/exit strategies for startups?", "/reset the password how?", "/help me", "/summarise", "/etc/hosts?"]
    piped = Talk(Chat([Voice("", speaker)], SHORT), as_json=True, attended=False)
    assert all(piped.hear(line) for line in messages)
    said = [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()]
    assert said == messages
    talk = Talk(Chat([Voice("", speaker)], SHORT), as_json=True, attended=True)
    assert talk.hear("/exit strategies for startups?") and talk.hear("/reset it")
    told = capsys.readouterr()
    assert not told.out and "/exit stands alone" in told.err and "/reset stands alone" in told.err


def test_a_mistake_ends_a_pipe_and_not_a_talk(speaker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    piped = Talk(Chat([Voice("", speaker)], SHORT), as_json=False, attended=False)
    with pytest.raises(DataError, match="no such image"):
        piped.hear("/image nowhere.png")
    talk = Talk(Chat([Voice("", speaker)], SHORT), as_json=False, attended=True)
    assert talk.hear("/image nowhere.png") and talk.hear("/rest") and talk.hear("/help")
    said = capsys.readouterr().err
    assert "there is no such image" in said and "/rest is no command" in said and "/reset" in said
    assert not talk.hear("/exit")


def test_a_talk_goes_on_where_memory_has_run_out(speaker: Any, capsys: pytest.CaptureFixture[str]) -> None:
    talk = Talk(Chat([Voice("", speaker)], SHORT), as_json=False, attended=True)
    with out_of_memory_beyond(speaker.model, rows=0):
        assert talk.hear("Ping")
    assert "the message: out of memory" in capsys.readouterr().err
    assert talk.hear("Ping") and not capsys.readouterr().err


def test_a_system_prompt_that_nobody_reads_is_said(
    tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without a chat template goes on with the last message alone."""
    monkeypatch.setattr(logging.getLogger("rankzero"), "propagate", True)
    for target, told in ((tiny_gpt2(tmp_path), True), (tiny, False)):
        caplog.clear()
        open_chat(find_result(str(target), "writes"), SHORT)
        assert not caplog.text
        open_chat(find_result(str(target), "writes"), SHORT, system="Be brief.")
        assert ("no chat template" in caplog.text and "system prompt" in caplog.text) is told


def test_two_voices_have_their_names(adapter: Path, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = open_chat(find_result(str(adapter), "writes"), SHORT, base=find_result(str(tiny), "writes"))
    Talk(chat, as_json=False, attended=True).hear("Hello World")
    first, second = capsys.readouterr().out.strip().split("\ntuned: ")
    assert first.startswith("base:  ") and second
    chat.reset()
    one, other = chat.ask("Hello World")
    assert first.removeprefix("base:").split() == one.text.split() and second.split() == other.text.split()


def test_a_terminal_is_left_by_its_end_and_not_by_an_interrupt() -> None:
    typed = iter(["one", KeyboardInterrupt(), "two", EOFError()])

    def ask(_prompt: str) -> str:
        value = next(typed)
        if isinstance(value, BaseException):
            raise value
        return value

    assert list(lines(True, ask)) == ["one", "two"]


BYTES = b"caf\xe9"
"""Of Latin-1, as a terminal or a file may have them."""


@pytest.mark.parametrize("errors", ["surrogateescape", "strict"])
def test_bytes_that_are_no_text_are_said_of_what_is_piped(
    adapter: Path, errors: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the locale has stdin read."""
    stdin = io.TextIOWrapper(io.BytesIO(BYTES + b"\n"), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", stdin)
    done = Cli(capfd, monkeypatch)(f"chat {adapter} --max-new-tokens 2")
    assert done.code == 2 and "the message: it is not UTF-8" in done.err and not done.out.strip()


def test_bytes_that_are_no_text_are_said_of_what_is_given(adapter: Path, cli: Cli) -> None:
    typed = BYTES.decode(errors="surrogateescape")
    done = cli(f"generate {adapter} fine '{typed}'")
    assert done.code == 2 and "prompt 2: it is not UTF-8" in done.err
    done = cli(f"chat {adapter} --system '{typed}'")
    assert done.code == 2 and "the system prompt: it is not UTF-8" in done.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--seed 18446744073709551616", "seed: it is 18446744073709551616"),
        ("--temperature inf", "--temperature: must be a finite number, but is inf"),
    ],
)
def test_draws_that_there_are_none_of(flags: str, said: str, adapter: Path, cli: Cli) -> None:
    done = cli(f"chat {adapter} {flags}")
    assert done.code == 2 and said in done.err
    with pytest.raises(rankzero.UsageError) as raised:
        rankzero.Sampling(0, -1.0, float("nan"), -1, 2**64)
    assert [problem.where for problem in raised.value.problems] == [
        *("max_new_tokens", "temperature", "top_p", "top_k", "seed")
    ]
    for seed in (2**64 - 1, -(2**63)):
        assert rankzero.Sampling(temperature=1.0, seed=seed).seed == seed


@pytest.mark.parametrize("flags", ["--top-p 0.5", "--top-k 1", "--seed 7", "--temperature 0 --top-k 5"])
def test_what_narrows_a_draw_needs_one(flags: str, adapter: Path, cli: Cli) -> None:
    """Each would do nothing beside the likeliest token."""
    done = cli(f"chat {adapter} {flags}")
    name = flags.split()[-2].removeprefix("--").replace("-", "_")
    assert done.code == 2 and f"error: {name}: nothing is drawn at temperature 0\n" in done.err, done.err


def test_from_python(adapter: Path) -> None:
    chat = rankzero.chat(str(adapter), rankzero.Sampling(max_new_tokens=4))
    assert [answer.voice for answer in chat.ask("Hello")] == [""]
    beside = rankzero.chat(str(adapter), rankzero.Sampling(max_new_tokens=4), compare=True)
    assert [answer.voice for answer in beside.ask("Hello")] == ["base", "tuned"]
    with pytest.raises(rankzero.UsageError, match="leave base out"):
        rankzero.chat(str(adapter), base=True, compare=True)
