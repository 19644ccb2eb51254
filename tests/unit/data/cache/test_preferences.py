"""Preferences as rows of two sequences: their tokens, what leaves them out, how they lie on disk and in passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import MicroBatch, PaddedText
from rankzero.data.batches.loader import Batches
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.joined import JoinedRows, longest_sequences, sequences, sizes_in_passes
from rankzero.data.cache.tokenize import prepare
from rankzero.data.cache.training_data import token_rules
from rankzero.data.tokens.token_rules import TokenRules
from rankzero.errors import DataError
from rankzero.machine import cache_root
from rankzero.spec.run_spec import RunSpec, SourceSpec
from tests.support.tiny import preference_rows, tiny_tokenizer, write_jsonl
from tests.unit.data.support import user_assistant

CPU = torch.device("cpu")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def tokenised(path: Path, rows: list[dict[str, Any]], **rules: Any) -> TokenizedDataset:
    source = SourceSpec(path=str(write_jsonl(path, rows)))
    return prepare([source], tiny_tokenizer(), TokenRules(**rules), cache_root(), workers=1)


def alone(rows: list[dict[str, Any]], answer: str) -> list[dict[str, Any]]:
    """The same as rows of one answer, whose prompts are not trained."""
    found = []
    for row in rows:
        if isinstance(row[answer], str):
            found.append({"prompt": row["prompt"], "completion": row[answer]})
        else:
            *asked, last = row[answer]
            found.append({"messages": [*({**turn, "loss": False} for turn in asked), last]})
    return found


def test_each_sequence_is_that_of_its_answer_alone(tmp_path: Path) -> None:
    rows = preference_rows(7)
    pairs = tokenised(tmp_path / "pairs.jsonl", rows, trains="preferences")
    answers = [tokenised(tmp_path / f"{name}.jsonl", alone(rows, name)) for name in ("chosen", "rejected")]
    assert len(pairs) == 7
    for number in range(7):
        found = sequences(pairs, number)
        for (ids, trained), one in zip(found, answers, strict=True):
            wanted_ids, wanted_trained = one.row(number)
            assert ids.tolist() == wanted_ids.tolist() and trained.tolist() == wanted_trained.tolist()
            assert trained.any() and not trained[0]
    assert pairs.lengths.tolist() == [sum(len(one.row(i)[0]) for one in answers) for i in range(7)]
    assert pairs.supervised.tolist() == [sum(int(one.supervised[i]) for one in answers) for i in range(7)]
    assert pairs.loss_weights.tolist() == [1.0] * 7
    assert longest_sequences(pairs).tolist() == [max(len(one.row(i)[0]) for one in answers) for i in range(7)]


def test_a_row_that_has_its_better_answer_once_more_to_learn_is_still_a_pair(tmp_path: Path) -> None:
    """As UltraFeedback's are, which other tasks read as chats."""
    asked, good, bad = ({"role": "user", "content": "q"}, *({"role": "assistant", "content": c} for c in ("a", "b")))
    row = {"prompt": "q", "messages": [asked, good], "chosen": [asked, good], "rejected": [asked, bad]}
    pair = {"chosen": [asked, good], "rejected": [asked, bad]}
    found, wanted = (
        tokenised(tmp_path / f"{name}.jsonl", [one], trains="preferences")
        for name, one in (("h4", row), ("pair", pair))
    )
    assert found.rejected_from is not None and [r.tolist() for r in found.row(0)] == [r.tolist() for r in wanted.row(0)]
    assert tokenised(tmp_path / "h4.jsonl", [row]).rejected_from is None


def test_rows_of_one_answer_have_one_sequence(tmp_path: Path) -> None:
    rows = tokenised(tmp_path / "one.jsonl", alone(preference_rows(3), "chosen"))
    assert rows.rejected_from is None
    ((ids, trained),) = sequences(rows, 1)
    assert ids.tolist() == rows.row(1)[0].tolist() and trained.any()
    assert longest_sequences(rows) is rows.lengths and sizes_in_passes(rows, packed=False) is rows.lengths


def test_what_the_worse_answer_calls_is_rendered_as_the_better_one_is(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "Add."}]
    called = [{"role": "assistant", "content": "", "tool_calls": [CALL]}]
    said = [{"role": "assistant", "content": "I cannot."}]
    template = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    path = write_jsonl(
        tmp_path / "calls.jsonl", [{"prompt": asked, "chosen": said, "rejected": called, "tools": [TOOL]}]
    )
    tokenizer = tiny_tokenizer(chat_template=template)
    found = prepare([SourceSpec(path=str(path))], tokenizer, TokenRules(trains="preferences"), cache_root(), workers=1)
    texts = [tokenizer.decode(ids[trained]) for ids, trained in sequences(found, 0)]
    assert texts == ["I cannot.<|im_end|>", '[add {"a": 1}]<|im_end|>']


def test_an_answer_of_several_turns_is_whole(tmp_path: Path) -> None:
    """Its last turn alone would follow other turns than the last one of the other answer does."""
    said = user_assistant("q", "a", "r", "b")["messages"]
    rows = [
        {"chosen": said, "rejected": user_assistant("q", "c", "r", "d")["messages"]},
        {"chosen": said, "rejected": user_assistant("q", "d")["messages"]},
    ]
    path = write_jsonl(tmp_path / "turns.jsonl", rows)
    data = {"train": str(path), "train_on": "last_turn"}
    rules = token_rules(RunSpec.model_validate({"task": "dpo", "model": {"name": "m"}, "data": data}))
    tokenizer = tiny_tokenizer()
    found = prepare([SourceSpec(path=str(path))], tokenizer, rules, cache_root(), workers=1)
    texts = [[tokenizer.decode(ids[trained]) for ids, trained in sequences(found, number)] for number in range(2)]
    end = "<|im_end|>"
    assert texts == [[f"a{end}b{end}", f"c{end}d{end}"], [f"a{end}b{end}", f"d{end}"]]


def test_a_selection_and_joined_rows_know_where_answers_begin(tmp_path: Path) -> None:
    pairs = tokenised(tmp_path / "pairs.jsonl", preference_rows(6), trains="preferences")
    begins = pairs.rejected_from
    assert begins is not None
    chosen = pairs.select([4, 1])
    assert chosen.rejected_from is not None and chosen.rejected_from.tolist() == begins[[4, 1]].tolist()
    joined = JoinedRows([(pairs, np.array([2])), (chosen, np.array([1, 0]))])
    assert joined.rejected_from is not None and joined.rejected_from.tolist() == begins[[2, 1, 4]].tolist()
    assert sequences(joined, 2)[1][0].tolist() == sequences(pairs, 4)[1][0].tolist()


@pytest.mark.parametrize("over_length", ["truncate", "drop"])
def test_the_length_is_that_of_a_sequence(over_length: str, tmp_path: Path) -> None:
    """One row has both within the limit though not together; of one the worse answer is too long; of the last the
    prompt."""
    short, long = "Short.", "word " * 60
    rows = [
        {"prompt": "Q?", "chosen": short, "rejected": "No."},
        {"prompt": "Q?", "chosen": short, "rejected": long},
        {"prompt": long, "chosen": short, "rejected": "No."},
    ]
    whole = tokenised(tmp_path / "whole.jsonl", rows, trains="preferences")
    limit = int(longest_sequences(whole)[0])
    assert whole.lengths[0] > limit
    cut = tokenised(tmp_path / "cut.jsonl", rows, trains="preferences", max_length=limit, over_length=over_length)
    assert longest_sequences(cut).max() == limit
    if over_length == "drop":
        assert len(cut) == 1 and cut.stats.dropped == {"over_length": 2}
    else:
        assert len(cut) == 2 and cut.stats.dropped == {"truncated_before_trained": 1} and cut.stats.truncated == 1
        assert all(trained.any() for number in range(2) for _, trained in sequences(cut, number))


def test_answers_that_a_cut_leaves_alike_teach_nothing(tmp_path: Path) -> None:
    same = "The same words, " * 60
    rows = [*preference_rows(2), {"prompt": "Q?", "chosen": f"{same}yes", "rejected": f"{same}no"}]
    whole = tokenised(tmp_path / "whole.jsonl", rows, trains="preferences")
    cut = tokenised(tmp_path / "cut.jsonl", rows, trains="preferences", max_length=200)
    assert len(whole) == 3 and len(cut) == 2 and cut.stats.dropped == {"answers_alike": 1}


def test_what_was_asked_is_rendered_alike_before_both_answers(tmp_path: Path) -> None:
    """A template that prints earlier turns by what comes later would tell the answers apart by it."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.first and messages[-1].content|length < 9 %}Hm. "
        "{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    asked = [{"role": "user", "content": "Q"}]
    row = {"prompt": asked, "chosen": "Short.", "rejected": "A longer answer."}
    path = write_jsonl(tmp_path / "rows.jsonl", [row])
    with pytest.raises(DataError, match="two prompts|renders what was asked|rewrites") as raised:
        prepare(
            [SourceSpec(path=str(path))],
            tiny_tokenizer(chat_template=template),
            TokenRules(trains="preferences"),
            cache_root(),
            workers=1,
        )
    assert raised.value.problems[0].where.endswith("rows.jsonl:1")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "one answer": ({"prompt": "a", "completion": "b"}, "the row has one answer"),
    "a label": ({"text": "a", "label": "b"}, "the row has one answer"),
    "images": (
        {"question": "<image>a", "chosen": "b", "rejected": "c", "images": ["a.png"]},
        "the row has 1 image(s)",
    ),
    "weights": (
        {
            "prompt": [{"role": "user", "content": "a"}],
            "chosen": [{"role": "assistant", "content": "b", "weight": 0.5}],
            "rejected": [{"role": "assistant", "content": "c"}],
        },
        "the row's turns have weights",
    ),
    "turns that do not count": (
        {
            "prompt": [{"role": "user", "content": "a"}],
            "chosen": [{"role": "assistant", "content": "b", "loss": False}, *user_assistant("r", "c")["messages"]],
            "rejected": [{"role": "assistant", "content": "d", "loss": False}, *user_assistant("r", "e")["messages"]],
        },
        "its answers begin with turns that do not count",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_preference_is_refused_by_its_line(case: str, tmp_path: Path) -> None:
    row, said = REFUSED[case]
    with pytest.raises(DataError) as raised:
        tokenised(tmp_path / "bad.jsonl", [*preference_rows(2), row], trains="preferences")
    (problem,) = raised.value.problems
    assert problem.what.startswith(said) and problem.where.endswith("bad.jsonl:3"), problem


def test_passes_are_no_larger_than_they_may_be(tmp_path: Path) -> None:
    """Padded to the longest answer, whichever of its row it is."""
    pairs = tokenised(tmp_path / "pairs.jsonl", preference_rows(40), trains="preferences")
    limit = int(2 * longest_sequences(pairs).max()) + 40
    for collator in (PaddedText(), PackedText()):
        batches = Batches(pairs, collator, rank=0, world_size=1, max_tokens=limit, pass_cost=8, same_passes=False)
        work = batches.everything()
        made = [batches.collate(rows, CPU) for rows in work.passes]
        assert work.loss_weight == 40 == sum(float(batch.losses) for batch in made)
        assert sum(len(batch.targets_N) for batch in made) == work.supervised == pairs.supervised.sum()
        assert all(batch.computed <= limit for batch in made) and 2 <= len(made) < 40
        half = batches.half_of_the_largest(work)
        assert half is not None and half <= limit // 2


def test_no_two_tokens_of_a_row_have_one_place(tmp_path: Path) -> None:
    """Dropout is by row and place: answers that had the same would drop the same."""
    pairs = tokenised(tmp_path / "pairs.jsonl", preference_rows(5), trains="preferences")
    for collator in (PaddedText(), PackedText()):
        batch: MicroBatch = collator(pairs, np.arange(5), CPU)
        shape = batch.own_BT.shape
        rows, places = (values.expand(shape)[batch.own_BT] for values in (batch.row_of_BT, batch.position_BT))
        found = set(zip(rows.tolist(), places.tolist(), strict=True))
        assert len(found) == int(batch.own_BT.sum()) == int(pairs.lengths.sum()) - 2 * 5
