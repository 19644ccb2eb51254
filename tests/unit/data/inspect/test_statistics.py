"""Counts, spreads, histograms, duplicates and tokens, each against a plain way to the same numbers."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankzero.data.cache.encode import Task, chunk_encoder
from rankzero.data.inspect.duplicates import DigestLog, digest
from rankzero.data.inspect.statistics import OTHER, Bin, Counts, Spread, TokenCounts, histogram, share, stepped
from rankzero.data.inspect.token_counts import TokenCounter, Tokens
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.parse import parse
from rankzero.data.tokens.chat import TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import RankzeroError
from tests.support.families import family_tokenizer
from tests.unit.data.support import chat, user_assistant

COUNTERS = st.dictionaries(st.integers(0, 100_000), st.integers(1, 50), min_size=1, max_size=40)


def examples(*rows: dict[str, Any]) -> list[Conversation]:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    parsed = parse(Chunk(0, 1, data), "auto")
    assert not parsed.problems
    return parsed.conversations


@given(COUNTERS)
def test_spread_is_that_of_the_sorted_list(counter: dict[int, int]) -> None:
    values = sorted(value for value, rows in counter.items() for _ in range(rows))
    spread = Spread.of(counter)
    assert (spread.minimum, spread.maximum) == (values[0], values[-1])
    assert spread.mean == pytest.approx(sum(values) / len(values))
    for percent, found in ((50, spread.p50), (90, spread.p90), (95, spread.p95), (99, spread.p99)):
        assert found == np.percentile(values, percent, method="inverted_cdf")


@given(COUNTERS, st.integers(2, 30))
def test_histogram_has_every_row_once(counter: dict[int, int], most: int) -> None:
    bins = histogram(counter, most)
    assert 1 <= len(bins) <= most and sum(bin_.count for bin_ in bins) == sum(counter.values())
    for bin_, behind in zip(bins, bins[1:], strict=False):
        assert bin_.high is not None and behind.low == bin_.high + 1
    for bin_ in bins:
        high = 10**9 if bin_.high is None else bin_.high
        inside = [rows for value, rows in counter.items() if bin_.low <= value <= high]
        assert sum(inside) == bin_.count


def test_a_giant_does_not_squeeze_the_others_into_one_bin() -> None:
    bins = histogram({**{value: 10 for value in range(1000)}, 1_000_000: 1})
    assert len(bins) >= 5 and bins[-1].high is None and bins[-1].label.endswith("+")
    assert max(bin_.count for bin_ in bins) < 3000


def test_labels_of_bins() -> None:
    assert [Bin(0, 499, 1).label, Bin(1000, 1999, 1).label, Bin(3, 3, 1).label] == ["0–499", "1,000–1,999", "3"]


def test_nothing_to_count() -> None:
    assert Spread.of({}) == Spread() and histogram({}) == [] and share(1, 0) == 0.0


@given(st.integers(0, 10**12))
def test_steps_are_small(number: int) -> None:
    assert 0 <= number - stepped(number) <= number / 64
    assert stepped(stepped(number)) == stepped(number)


def test_examples() -> None:
    counts = Counts()
    counts.count_examples(examples(user_assistant("q", "abc", "q", "d"), user_assistant("q", "a"), {"text": "hello"}))
    assert counts.examples == 3 and counts.turns == {4: 1, 2: 1} and counts.roles == {"user": 3, "assistant": 3}
    assert counts.characters == {6: 1, 2: 1, 5: 1}
    counts.count_examples(examples({"text": "good film", "label": 1}, {"text": "bad film", "label": "neg"}))
    assert counts.labels == {"1": 1, "neg": 1}


def test_images_by_source() -> None:
    row = {"messages": [{"role": "user", "content": "<image>q"}, {"role": "assistant", "content": "a"}]}
    counts = Counts()
    counts.count_examples(
        examples(
            {**row, "images": ["coco/train2017/1.jpg"]},
            {**row, "images": ["../x.jpg"]},
            {**row, "images": ["gqa/images/2.jpg"]},
            user_assistant("q", "a"),
        )
    )
    assert (counts.images, counts.image_rows) == (3, 3)
    assert counts.image_sources == {"coco": 1, "(refused)": 1, "gqa": 1}


def test_languages_are_read_from_keys_alone() -> None:
    lines = [
        b'{"lang": "de", "text": "x"}',
        b'{"text": "a \\"lang\\": \\"fr\\" in a text"}',
        b'{"language":"pt-BR","text":"x"}',
        b'{"lang": "de", "broken',
        b'{"text": "none"}',
    ]
    counts = Counts()
    counts.count_languages(Chunk(0, 1, b"\n".join(lines)), {4})
    assert counts.languages == {"de": 1, "pt-BR": 1}


def test_sums_over_chunks_are_those_of_the_whole() -> None:
    rows = examples(*[user_assistant("q" * i, "a" * (i % 7 + 1)) for i in range(1, 60)])
    whole, parts = Counts(rows=59, readable=59), Counts()
    whole.count_examples(rows)
    for start in range(0, 59, 7):
        part = Counts(rows=len(rows[start : start + 7]), readable=len(rows[start : start + 7]))
        part.count_examples(rows[start : start + 7])
        parts.add(part)
    assert parts == whole


def test_sums_keep_what_only_one_side_has() -> None:
    counts = Counts(detected={"messages": "first"})
    counts.add(
        Counts(detected={"messages": "second", "text": "t"}, tokens=TokenCounts(10, Counter({3: 1}), examples=1))
    )
    counts.add(Counts(tokens=TokenCounts(10, Counter({3: 1, 4: 1}), examples=2)))
    counts.add(Counts())
    assert counts.detected == {"messages": "first", "text": "t"}
    assert counts.tokens == TokenCounts(10, Counter({3: 2, 4: 1}), examples=3)


def test_many_names_stay_in_bounds_and_none_is_lost() -> None:
    counts = Counts()
    for start in range(0, 50_000, 500):
        counts.add(Counts(labels=Counter({f"label {i}": 1 for i in range(start, start + 500)})))
    assert len(counts.labels) <= 2001 and counts.labels.total() == 50_000 and counts.labels[OTHER] > 40_000


def test_a_lost_row_is_noticed() -> None:
    Counts(rows=9, readable=3, bad=3, merged=2, dropped=Counter(a=1)).require_whole()
    with pytest.raises(RankzeroError, match="4 rows were read, 3 are accounted for"):
        Counts(rows=4, readable=3).require_whole()


class TestDuplicates:
    @settings(max_examples=60)
    @given(
        st.lists(st.lists(st.integers(0, 20), max_size=30), min_size=1, max_size=4),
        st.sampled_from([2, 5, 1000]),
        st.one_of(st.none(), st.integers(0, 4)),
    )
    def test_as_a_dict_would_find_them(self, files: list[list[int]], held: int, evaluation_from: int | None) -> None:
        log = DigestLog(held)
        first: dict[int, tuple[int, int]] = {}
        copies, leaks = [], []
        for source, contents in enumerate(files):
            for start in range(0, len(contents), 3):
                part = contents[start : start + 3]
                data = b"".join((content * 7919).to_bytes(8, "little") for content in part)
                log.add(source, data, range(start + 1, start + 1 + len(part)))
            for line, content in enumerate(contents, 1):
                known = first.setdefault(content, (source, line))
                if known != (source, line):
                    cut = 99 if evaluation_from is None else evaluation_from
                    leak = source >= cut and known[0] < cut
                    (leaks if leak else copies).append(((source, line), known))
        found = log.find(evaluation_from)
        assert (found.copies, found.leaks) == (len(copies), len(leaks))
        assert found.copy_examples == sorted(copies)[:10] and found.leak_examples == sorted(leaks)[:10]

    def test_what_makes_examples_the_same(self) -> None:
        def of(*messages: Message, **more: Any) -> bytes:
            return digest(Conversation(messages, True, 1, **more))

        user, answer = Message("user", "q"), Message("assistant", "a")
        base = of(user, answer)
        assert of(user, answer, id="7", group="g") == base == digest(Conversation((user, answer), True, 99))
        others = [
            of(user),
            of(answer, user),
            of(Message("user", "q\x1f"), answer),
            of(user, Message("assistant", "a", tool_calls=({"function": {"name": "f"}},))),
            of(user, answer, images=("a.jpg",)),
            of(user, answer, images=("b.jpg",)),
            of(user, answer, tools=({"type": "function"},)),
            of(user, answer, rejected=(Message("assistant", "b"),)),
            of(user, answer, label=1),
            of(user, answer, label="1"),
        ]
        assert len({base, *others}) == 1 + len(others)


class TestTokens:
    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=3), min_size=1, max_size=12),
        st.integers(8, 80),
        st.sampled_from(["truncate", "drop"]),
        st.booleans(),
        st.sampled_from(["smollm2", "qwen3", "empty_thought", "headings"]),
    )
    def test_as_training_counts_them(
        self, shapes: list[list[int]], max_length: int, over_length: Any, answers_alone: bool, family: str
    ) -> None:
        rows = []
        for number, shape in enumerate(shapes):
            turns: list[tuple[str, str, bool]] = []
            for turn, words in enumerate(shape):
                turns += [("user", "Ping " * words, True), ("assistant", "pong " * words, bool((number + turn) % 4))]
            row = chat(*turns)
            for message in row["messages"]:
                if message["role"] == "user":
                    del message["loss"]
            rows.append(row)
        rows.append({"prompt": "Ping", "completion": " pong" * shapes[0][0]})
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        parts, rules = take_apart(family_tokenizer(family)), TokenRules(max_length, over_length, answers_alone)
        counts, problems, _ = TokenCounter(Tokens(parts, rules)).count(parse(Chunk(0, 1, data), "auto").conversations)
        trained = chunk_encoder(parts, rules)(Task(Chunk(0, 1, data), "auto", True))
        assert problems == trained.problems
        if problems:
            return
        assert trained.block is not None
        assert counts.examples == len(rows) and counts.kept == len(trained.block.lines)
        assert counts.tokens == len(trained.block.input_ids)
        assert counts.supervised == int(trained.block.supervised.sum())
        assert (counts.truncated, counts.boundary) == (trained.truncated, trained.straddling)
        assert (counts.dropped, counts.unopened) == (trained.dropped, trained.unopened)

    def test_lengths_are_those_before_the_cut(self) -> None:
        parts = take_apart(family_tokenizer("smollm2"))
        rows = examples(user_assistant("Ping", "pong " * 400), user_assistant("Ping", "pong"))
        long = TokenCounter(Tokens(parts, TokenRules(max_length=4096))).count(rows).counts
        short = TokenCounter(Tokens(parts, TokenRules(max_length=128))).count(rows).counts
        assert short.lengths == long.lengths and max(short.lengths) > 400
        assert short.truncated == 1 and short.cut_tokens == max(short.lengths) - 128
        assert short.as_json()["histogram"] == [[b.low, b.high, b.count] for b in histogram(short.lengths)]

    def test_a_very_long_row_is_counted_up_to_a_bound(self) -> None:
        parts = take_apart(family_tokenizer("smollm2"))
        counts, *_ = TokenCounter(Tokens(parts, TokenRules(max_length=128))).count(
            examples(user_assistant("Ping", "pong " * 30_000))
        )
        assert counts.lengths == {16_384: 1} and counts.truncated == 1 and counts.tokens == 128

    def test_a_row_with_a_refused_example_is_not_counted(self) -> None:
        parts = take_apart(family_tokenizer("mistral"))
        good, bad = examples(user_assistant("q", "a"), chat(("user", "q"), ("user", "r"), ("assistant", "a")))
        counts, problems, _ = TokenCounter(Tokens(parts, TokenRules())).count([good, bad, good])
        assert [problem.line for problem in problems] == [2] and counts.examples == 2
