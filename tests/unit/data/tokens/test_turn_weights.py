"""From what a turn says of its loss to the weight of every token: through templates, cuts, images and the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.tokenize import prepare
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.row_tokens import Encoder, Row
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.spec.run_spec import SourceSpec
from tests.support.families import family_tokenizer
from tests.support.tiny import tiny_tokenizer, write_jsonl
from tests.unit.data.support import chat, user_assistant


def weighted(*weights: float | None, **rules: Any) -> list[tuple[str, float]]:
    """What is trained, with its weights, of a chat whose answers `a0`, `a1` … have these weights."""
    row = user_assistant(*(text for i in range(len(weights)) for text in (f"q{i}", f"a{i}")))
    for turn, weight in zip(row["messages"][1::2], weights, strict=True):
        turn |= {} if weight is None else {"loss_weight": weight}
    result = rendered(row, **rules)
    pairs = zip(result.spans, result.weights or [1.0] * len(result.spans), strict=True)
    return [(result.text[start:end], weight) for (start, end), weight in pairs]


def rendered(row: dict[str, Any], **rules: Any) -> Rendered:
    _, conversation = convert(row, 1)
    assert isinstance(conversation, Conversation)
    result = Renderer(take_apart(family_tokenizer("smollm2")), TokenRules(**rules)).render(conversation)
    assert isinstance(result, Rendered), result
    return result


def encoded(row: dict[str, Any], **rules: Any) -> Row:
    parts, given = take_apart(family_tokenizer("smollm2")), TokenRules(**rules)
    return next(Encoder(parts, given).encode([rendered(row, **rules)]))


END = "<|im_end|>"


def test_each_answer_has_its_own() -> None:
    assert weighted(0.5, None, 2) == [(f"a0{END}", 0.5), (f"a1{END}", 1.0), (f"a2{END}", 2.0)]
    assert weighted(0.5, 0, None) == [(f"a0{END}", 0.5), (f"a2{END}", 1.0)]
    result = rendered(user_assistant("q", "a"))
    assert result.weights == (), "nothing is kept where all count in full"


def test_every_token_but_the_answers_counts_in_full() -> None:
    (before, one), (answer, half), *_ = weighted(0.5, None, assistant_only_loss=False)
    assert (one, half) == (1.0, 0.5) and answer == f"a0{END}" and before.endswith("<|im_start|>assistant\n")
    parts = weighted(0.5, 0, 2, assistant_only_loss=False)
    assert [weight for _, weight in parts] == [1, 0.5, 1, 1, 2, 1] and parts[-2][0] == f"a2{END}"
    assert not any("a1" in text for text, _ in parts)


class TestLastTurn:
    def test_only_it_is_trained(self) -> None:
        assert weighted(None, None, None, train_on="last_turn") == [(f"a2{END}", 1.0)]

    def test_what_the_row_asks_for_comes_first(self) -> None:
        assert weighted(0.5, None, None, train_on="last_turn") == [(f"a0{END}", 0.5), (f"a2{END}", 1.0)]
        row = chat(("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b", False))
        assert rendered(row, train_on="last_turn").spans == []

    def test_a_row_that_ends_with_a_question(self) -> None:
        result = rendered(user_assistant("q", "a", "r", "b", "s"), train_on="last_turn")
        assert [result.text[start:end] for start, end in result.spans] == [f"b{END}"]

    def test_raw_text_has_no_turns(self) -> None:
        result = rendered({"prompt": "p", "completion": "c"}, train_on="last_turn")
        assert result.spans == [(1, 2)]


class TestTokens:
    ROW = user_assistant("one two", "alpha beta", "three", "gamma delta")
    ROW["messages"][1]["loss_weight"] = 0.3
    ROW["messages"][3]["loss_weight"] = 3

    def test_ranges_and_their_sum(self) -> None:
        row = encoded(self.ROW)
        assert row.weights == (0.3, 3.0) and len(row.ranges) == 2
        first, second = (end - start for start, end in row.ranges)
        assert row.loss_weight == pytest.approx(first * np.float32(0.3) + second * 3)
        assert row.supervised == first + second

    def test_cut(self) -> None:
        whole = encoded(self.ROW)
        length = whole.ranges[1][0] + 1
        cut = encoded(self.ROW, max_length=length)
        assert cut.ranges == [whole.ranges[0], (length - 1, length)] and cut.weights == (0.3, 3.0)
        shorter = encoded(self.ROW, max_length=length - 1)
        assert shorter.ranges == whole.ranges[:1] and shorter.weights == (0.3,)

    def test_an_end_token_that_is_added_weighs_as_its_answer(self) -> None:
        parts = take_apart(family_tokenizer("headings"))
        _, conversation = convert(self.ROW, 1)
        assert isinstance(conversation, Conversation)
        result = Renderer(parts, TokenRules()).render(conversation)
        assert isinstance(result, Rendered) and result.add_eos
        row = next(Encoder(parts, TokenRules()).encode([result]))
        assert row.ranges[-1][1] == len(row.ids) and row.weights == (0.3, 3.0)


def test_through_the_cache(tmp_path: Path, own_cache: Path) -> None:
    plain = user_assistant("one two", "alpha beta", "three", "gamma delta")
    path = str(write_jsonl(tmp_path / "f.jsonl", [plain, TestTokens.ROW, plain]))
    tokenizer = family_tokenizer("smollm2")
    dataset = prepare([SourceSpec(path=path)], tokenizer, TokenRules(), own_cache)
    row = encoded(TestTokens.ROW)
    for opened in (dataset, TokenizedDataset.open(dataset.directory, [path])):
        assert opened.weights(0) is None and opened.weights(2) is None
        weights, (_, mask) = opened.weights(1), opened.row(1)
        assert weights is not None and weights.dtype == np.float32 and (weights > 0).tolist() == mask.tolist()
        expected = [0.3] * (row.ranges[0][1] - row.ranges[0][0]) + [3.0] * (row.ranges[1][1] - row.ranges[1][0])
        assert weights[mask].tolist() == np.array(expected, np.float32).tolist()
        assert opened.loss_weights.tolist() == [row.supervised, row.loss_weight, row.supervised]
    assert len(set(dataset.digests.tolist())) == 2, "the same tokens of other weights are another row"


@pytest.mark.parametrize(
    "rules", [{"train_on": "last_turn"}, {"reasoning": "drop"}, {"template_kwargs": {"enable_thinking": False}}]
)
def test_rows_are_made_anew_under_other_rules(tmp_path: Path, own_cache: Path, rules: dict[str, Any]) -> None:
    path = str(write_jsonl(tmp_path / "f.jsonl", [user_assistant("q", "a")]))
    made = [prepare([SourceSpec(path=path)], tiny_tokenizer(), TokenRules(**r), own_cache) for r in ({}, rules)]
    assert made[0].directory != made[1].directory


def test_a_rule_that_comes_later_changes_no_words_of_those_before() -> None:
    """A stream is known by its rules, across versions."""

    @dataclass(frozen=True)
    class Later(TokenRules):
        another: bool = False

    assert Later().as_json() == TokenRules().as_json() == {}
    assert Later(train_on="last_turn").as_json() == TokenRules(train_on="last_turn").as_json()
    assert Later(another=True).as_json() == {"another": True}
