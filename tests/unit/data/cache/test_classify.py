"""Texts with a label: token ids as the tokenizer makes them, cuts that keep what closes a text, classes, batches."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankzero.data.batches.collators.text import LabelledText
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.labels import label_codes, label_set
from rankzero.data.cache.tokenize import TokenRules, prepare, tokenizer_fingerprint
from rankzero.data.cache.training_data import TrainingData, token_rules, training_data
from rankzero.data.progress import no_progress
from rankzero.errors import ConfigError, DataError
from rankzero.spec.run_spec import RunSpec, SourceSpec
from tests.support.families import family_tokenizer
from tests.support.tiny import CORPUS, write_jsonl
from tests.unit.data.support import user_assistant

TEXTS = ["a fine day", "Rain falls on the Quiet harbour, again and again and again.", "\a", "seven"]
"""The third has nothing that BERT's normaliser leaves."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return wordpiece()


def wordpiece(*, around: bool = True) -> Any:
    """WordPiece with [CLS] and [SEP] and no end-of-sequence token, as BERT's and DistilBERT's are."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials))
    if around:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, mask_token="[MASK]", **names)


def labelled(path: Path, *labels: object) -> str:
    return str(write_jsonl(path, [{"text": f"row {i}", "label": label} for i, label in enumerate(labels)]))


def tokenise(tokenizer: Any, cache: Path, path: str, **rules: Any) -> TokenizedDataset:
    return prepare([SourceSpec(path=path)], tokenizer, TokenRules(trains="label", **rules), cache)


def ids_of(dataset: TokenizedDataset) -> list[list[int]]:
    return [dataset.row(i)[0].tolist() for i in range(len(dataset))]


def test_tokens_are_those_of_the_tokenizer(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    rows = [{"sentence": text, "label": i % 2, "idx": i} for i, text in enumerate(TEXTS)]
    dataset = tokenise(tokenizer, own_cache, str(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert ids_of(dataset) == tokenizer(TEXTS)["input_ids"]
    assert dataset.supervised.tolist() == [1] * 4 and dataset.stats.supervised_tokens == 4
    assert not any(dataset.row(i)[1].any() for i in range(4))
    assert list(dataset.label_names) == ["0", "1", "0", "1"]


@pytest.mark.parametrize("max_length", [8, 12])
def test_a_cut_keeps_what_closes_the_text(tokenizer: Any, own_cache: Path, tmp_path: Path, max_length: int) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", [{"text": text, "label": "x"} for text in TEXTS]))
    dataset = tokenise(tokenizer, own_cache, path, max_length=max_length)
    assert ids_of(dataset) == tokenizer(TEXTS, max_length=max_length, truncation=True)["input_ids"]
    assert dataset.stats.truncated == 1
    dropping = tokenise(tokenizer, own_cache, path, max_length=max_length, over_length="drop")
    assert len(dropping) == 3 and dropping.stats.dropped == {"over_length": 1}


def test_a_text_of_megabytes_is_cut_like_any_other(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    text = "harbour town " * 200_000
    path = str(write_jsonl(tmp_path / "a.jsonl", [{"text": text, "label": "x"}]))
    expected = tokenizer(text[:2000], max_length=64, truncation=True)["input_ids"]
    assert ids_of(tokenise(tokenizer, own_cache, path, max_length=64)) == [expected]
    with pytest.raises(DataError, match="over_length"):
        tokenise(tokenizer, own_cache, path, max_length=64, over_length="drop")


def test_a_decoder_gets_its_bos_and_no_end_token(own_cache: Path, tmp_path: Path) -> None:
    tokenizer = family_tokenizer("gemma")
    path = str(write_jsonl(tmp_path / "a.jsonl", [{"text": "Lima", "label": 1}, {"text": "é", "label": 0}]))
    assert ids_of(tokenise(tokenizer, own_cache, path)) == tokenizer(["Lima", "é"])["input_ids"]


def test_a_text_of_no_token_is_dropped(own_cache: Path, tmp_path: Path) -> None:
    rows = [{"text": "Lima", "label": 1}, {"text": TEXTS[2], "label": 0}]
    dataset = tokenise(wordpiece(around=False), own_cache, str(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert len(dataset) == 1 and dataset.stats.dropped == {"empty_text": 1}


def test_rows_of_other_tasks_are_named(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    rows = [{"text": "a", "label": 1}, user_assistant("q", "a"), {"text": "alone"}, {"prompt": "p", "completion": "c"}]
    path = str(write_jsonl(tmp_path / "a.jsonl", rows))
    with pytest.raises(DataError) as caught:
        tokenise(tokenizer, own_cache, path)
    (problem,) = caught.value.problems
    assert problem.where == f"{path}:2" and problem.what.endswith("(also at 3, 4)")
    assert "no label" in problem.what and '"label"' in problem.hint
    with pytest.raises(DataError, match="labels are for task classify"):
        prepare(
            [SourceSpec(path=labelled(tmp_path / "b.jsonl", 1))], family_tokenizer("qwen3"), TokenRules(), own_cache
        )


def test_only_sft_needs_an_end_token(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = str(write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}]))
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        prepare([SourceSpec(path=path)], tokenizer, TokenRules(), own_cache)
    assert len(tokenizer_fingerprint(tokenizer)) == 64


def test_the_task_and_the_labels_are_part_of_what_rows_are(own_cache: Path, tmp_path: Path) -> None:
    tokenizer = family_tokenizer("smollm2")
    path = str(write_jsonl(tmp_path / "a.jsonl", [{"text": "same", "label": label} for label in "aab"]))
    dataset = tokenise(tokenizer, own_cache, path)
    assert dataset.digests[0] == dataset.digests[1] != dataset.digests[2]
    other = tokenise(tokenizer, own_cache, str(write_jsonl(tmp_path / "b.jsonl", [{"text": "same", "label": "c"}] * 3)))
    assert other.fingerprint != dataset.fingerprint


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        ((10, 9, "2", 10), ("2", "9", "10")),
        (("b", "a", "10", "9"), ("10", "9", "a", "b")),
        (("pos", "neg", "pos"), ("neg", "pos")),
        ((True - 0, "01", "1"), ("01", "1")),
    ],
)
def test_classes_of_the_rows(
    tokenizer: Any, own_cache: Path, tmp_path: Path, given: tuple[object, ...], classes: tuple[str, ...]
) -> None:
    dataset = tokenise(tokenizer, own_cache, labelled(tmp_path / "a.jsonl", *given))
    assert label_set(dataset, None) == classes
    names = [classes[code] for code in label_codes(dataset, classes)]
    assert names == [str(label) for label in given]


def test_a_selection_has_the_classes_of_its_rows(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    dataset = tokenise(tokenizer, own_cache, labelled(tmp_path / "a.jsonl", "a", "b", "c"))
    assert label_set(dataset.select([2, 0]), None) == ("a", "c")
    with pytest.raises(DataError, match="only one: 'b'"):
        label_set(dataset.select([1]), None)
    assert label_set(dataset, ("x", "y")) == ("x", "y")


def test_numbers_are_places_in_the_classes(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    dataset = tokenise(tokenizer, own_cache, labelled(tmp_path / "a.jsonl", 1, "negative", 0, "positive"))
    labels = ("negative", "positive")
    assert label_codes(dataset, labels).tolist() == [1, 0, 0, 1] and label_codes(dataset, labels).dtype == np.int32
    with pytest.raises(DataError, match="label '1' is none"):
        label_codes(dataset, labels, numbers=False)
    stars = tokenise(tokenizer, own_cache, labelled(tmp_path / "b.jsonl", 1, 2, 1))
    assert label_codes(stars, ("2", "1")).tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="label '2' is none"):  # the names are numbers, so it is not the third of them
        label_codes(stars, ("1", "3", "5"))


def test_unknown_labels_are_named_once_each(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = labelled(tmp_path / "a.jsonl", "pos", "postive", "neg", 7, "postive")
    dataset = tokenise(tokenizer, own_cache, path)
    with pytest.raises(DataError) as caught:
        label_codes(dataset, ("neg", "pos"))
    found = caught.value.problems
    assert [problem.where for problem in found] == [f"{path}:2", f"{path}:4"]
    assert "label 'postive' is none of the classes (2 rows have it)" in found[0].what and "neg, pos" in found[0].hint


def test_a_pass(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, "abba", strict=True)]
    dataset = tokenise(tokenizer, own_cache, str(write_jsonl(tmp_path / "a.jsonl", rows)))
    batch = LabelledText(("a", "b"), pad_id=9)(dataset, np.array([1, 3, 0]), torch.device("cpu"))
    expected = tokenizer([TEXTS[1], TEXTS[3], TEXTS[0]], padding=True, return_tensors="pt")
    mask = expected["attention_mask"]
    assert torch.equal(batch.inputs["attention_mask"], mask)
    assert torch.equal(batch.inputs["input_ids"], expected["input_ids"].masked_fill(mask == 0, 9))
    assert batch.targets_N.tolist() == [1, 0, 0] and batch.targets_N.dtype == torch.int64
    assert batch.predicts_BT is None and batch.computed == mask.numel()


def test_padding_and_idling_change_no_logits(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    torch.manual_seed(0)
    config = DistilBertConfig(vocab_size=len(tokenizer), dim=32, hidden_dim=64, n_layers=2, n_heads=4, num_labels=2)
    model = DistilBertForSequenceClassification(config).eval()
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, "abba", strict=True)]
    dataset = tokenise(tokenizer, own_cache, str(write_jsonl(tmp_path / "a.jsonl", rows)))
    collate, cpu = LabelledText(("a", "b"), pad_id=0), torch.device("cpu")
    with torch.no_grad():
        together = model(**collate(dataset, np.arange(4), cpu).inputs).logits
        alone = torch.cat([model(**collate(dataset, np.array([i]), cpu).inputs).logits for i in range(4)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    idle = collate.idle(cpu)
    logits = model(**idle.inputs).logits[: len(idle.targets_N)]
    loss = torch.nn.functional.cross_entropy(logits, idle.targets_N, reduction="sum")
    loss.backward()
    assert loss.item() == 0 and idle.computed == 0 and len(idle.rows) == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.classifier.parameters())


def test_of_a_spec(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    rows = [{"text": CORPUS[0].split()[1 + i % 7], "label": "ab"[i % 2]} for i in range(28)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    spec = RunSpec.model_validate(
        {
            "task": "classify",
            "model": {"name": "m"},
            "data": {"train": str(path), "eval": {"fraction": 0.25}, "deduplicate": True},
        }
    )
    said: list[str] = []
    data: TrainingData = training_data(
        *(spec, tokenizer, own_cache),
        workers=1,
        show=lambda _l, _s: nullcontext(no_progress),
        say=said.append,
        warn=pytest.fail,
    )
    assert data.eval is not None and len(data.train) + len(data.eval) == 14
    assert "14 rows dropped as duplicates" in said[1] and said[0].startswith("train: 28 rows")
    assert label_set(data.train, None) == ("a", "b")


@pytest.mark.parametrize("minus_one", [-1, "-1"])
def test_every_class_that_is_named_and_occurs_is_counted(
    tokenizer: Any, own_cache: Path, tmp_path: Path, minus_one: Any
) -> None:
    """-1 too; null has no label all the same."""
    path = labelled(tmp_path / "a.jsonl", minus_one, 0, 1, minus_one, None)
    spec = RunSpec.model_validate(
        {"task": "classify", "model": {"name": "m"}, "data": {"train": path, "labels": ["-1", "0", "1"]}}
    )
    dataset = prepare([SourceSpec(path=path)], tokenizer, token_rules(spec), own_cache)
    assert label_codes(dataset, ("-1", "0", "1")).tolist() == [0, 1, 2, 0]
    assert dataset.stats.dropped == {"unlabelled": 1}


def test_unlabelled_rows_are_left_out(tokenizer: Any, own_cache: Path, tmp_path: Path) -> None:
    path = labelled(tmp_path / "a.jsonl", 1, -1, None, 0)
    dataset = tokenise(tokenizer, own_cache, path)
    assert len(dataset) == 2 and dataset.stats.dropped == {"unlabelled": 2}
    with pytest.raises(DataError, match=json.dumps("label")):
        tokenise(tokenizer, own_cache, labelled(tmp_path / "b.jsonl", -1, -1))
