"""Passes of rows with images: equal to the processor's own inputs, unchanged by padding, loud when images changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from rankzero.data.batches.ahead import Ahead
from rankzero.data.batches.collators.images import PicturedText
from rankzero.data.batches.collators.text import MicroBatch, PaddedText
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.errors import DataError
from rankzero.model.vision import Vision
from rankzero.spec.run_spec import SourceSpec
from tests.support import architectures
from tests.support.pictures import draw, vision_of
from tests.support.tiny import write_jsonl
from tests.unit.data.support import user_assistant

CPU = torch.device("cpu")
SIZES = ((64, 64), (200, 120), (97, 333))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return architectures.save("qwen3_vl", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def vision(files: Path) -> Vision:
    return vision_of(files)


@pytest.fixture(scope="module")
def model(files: Path) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(files, dtype=torch.float32).eval()


@pytest.fixture
def dataset(vision: Vision, tmp_path: Path, own_cache: Path) -> TokenizedDataset:
    draw(tmp_path, SIZES)
    rows = [
        {**user_assistant("<image>Which colour is it?", "red"), "images": ["0.png"]},
        user_assistant("Which colour is it?", "yellow, I think, or green"),
        {**user_assistant("<image> or <image>", "a blue circle", "so?", "seven"), "images": ["1.png", "2.png"]},
        user_assistant("Ping", "Pong"),
    ]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    tokenizer = vision.rules.place.load().tokenizer
    return prepare([SourceSpec(path=str(path))], tokenizer, TokenRules(vision=vision.rules), own_cache)


def collate(vision: Vision, dataset: TokenizedDataset, *rows: int, always_image: bool = False) -> MicroBatch:
    return PicturedText(vision, always_image=always_image)(dataset, np.array(rows), CPU)


def loss_of(model: Any, batch: MicroBatch) -> torch.Tensor:
    logits = model(**batch.inputs, use_cache=False).logits
    return F.cross_entropy(logits[batch.predicts_BT], batch.targets_N, reduction="sum")


def test_inputs_are_those_of_the_processor(vision: Vision, dataset: TokenizedDataset) -> None:
    batch = collate(vision, dataset, 2, 1, 0)
    processor = vision.rules.place.load()
    images = [Image.open(path) for row in (2, 0) for path in dataset.images(row)]
    expected = processor(images=images, text=[processor.image_token * 3], return_tensors="pt")
    assert torch.equal(batch.inputs["pixel_values"], expected["pixel_values"])
    assert torch.equal(batch.inputs["image_grid_thw"], expected["image_grid_thw"])
    input_ids = batch.inputs["input_ids"]
    types = torch.tensor(processor.create_mm_token_type_ids(input_ids.tolist()))
    assert torch.equal(batch.inputs["mm_token_type_ids"], types) and types.sum() == expected["input_ids"].numel()
    assert set(batch.inputs) == {"input_ids", "pixel_values", "image_grid_thw", "mm_token_type_ids"}
    for at, row in enumerate((2, 1, 0)):
        ids, mask = dataset.row(row)
        assert input_ids[at, : len(ids) - 1].tolist() == ids[:-1].tolist()
        assert not input_ids[at, len(ids) - 1 :].any()
        assert batch.predicts_BT is not None and batch.predicts_BT[at].sum() == mask.sum()
    assert batch.computed == input_ids.numel() and batch.rows.tolist() == [2, 1, 0]


def test_rows_without_images_make_a_pass_of_text(vision: Vision, dataset: TokenizedDataset) -> None:
    batch, text = collate(vision, dataset, 1, 3), PaddedText()(dataset, np.array([1, 3]), CPU)
    assert batch.inputs.keys() == text.inputs.keys() == {"input_ids"}
    assert torch.equal(batch.inputs["input_ids"], text.inputs["input_ids"])
    assert torch.equal(batch.targets_N, text.targets_N) and batch.computed == text.computed
    idle = PicturedText(vision, always_image=False).idle(CPU)
    assert idle.inputs.keys() == {"input_ids"} and idle.computed == 0 and not len(idle.targets_N)


def test_neither_padding_nor_company_changes_the_loss(vision: Vision, dataset: TokenizedDataset, model: Any) -> None:
    with torch.no_grad():
        apart = sum(float(loss_of(model, collate(vision, dataset, row))) for row in range(4))
        together = float(loss_of(model, collate(vision, dataset, 2, 1, 0, 3)))
        with_blank = float(loss_of(model, collate(vision, dataset, 1, 3, always_image=True)))
        without = float(loss_of(model, collate(vision, dataset, 1, 3)))
    assert together == pytest.approx(apart, rel=1e-5) and with_blank == pytest.approx(without, rel=1e-5)


def test_the_model_sees_the_image(vision: Vision, dataset: TokenizedDataset, model: Any) -> None:
    with torch.no_grad():
        before = float(loss_of(model, collate(vision, dataset, 0)))
        Image.new("RGB", SIZES[0], "black").save(dataset.images(0)[0])
        after = float(loss_of(model, collate(vision, dataset, 0)))
    assert abs(before - after) > 1e-4


def test_every_pass_runs_the_vision_tower_where_it_must(vision: Vision, dataset: TokenizedDataset, model: Any) -> None:
    collator = PicturedText(vision, always_image=True)
    with_image = collator(dataset, np.array([0, 1]), CPU)
    assert len(with_image.inputs["input_ids"]) == 2  # no blank where there is an image
    of_text = collator(dataset, np.array([1, 3]), CPU)
    ids, of_image = of_text.inputs["input_ids"], of_text.inputs["input_ids"] == vision.image_token_id
    assert len(of_text.inputs["image_grid_thw"]) == 1 and of_image.sum(dim=1).tolist() == [0, 4]
    assert ids.shape == (2, len(dataset.row(1)[0]) - 1)  # behind the shorter row there was room for it
    assert of_text.predicts_BT is not None and not (of_text.predicts_BT & of_image).any()
    expected = PaddedText()(dataset, np.array([1, 3]), CPU)
    assert torch.equal(of_text.targets_N, expected.targets_N)
    for batch, trains in ((of_text, True), (collator.idle(CPU), False)):
        model.zero_grad()
        loss_of(model, batch).backward()
        tower = [p.grad for name, p in model.named_parameters() if "visual" in name]
        assert tower and all(grad is not None and not grad.any() for grad in tower)
        head = model.get_output_embeddings().weight.grad
        assert bool(head.any()) is trains


def test_an_image_that_changed_its_size_is_named(vision: Vision, dataset: TokenizedDataset) -> None:
    path = dataset.images(2)[1]
    Image.new("RGB", (600, 600)).save(path)
    with pytest.raises(DataError) as caught:
        collate(vision, dataset, 0, 2)
    (problem,) = caught.value.problems
    assert problem.where is not None and problem.where.endswith("rows.jsonl:3")
    assert path in problem.what and "put the images back" in problem.hint


@pytest.mark.parametrize("damage", ["gone", "cut off"])
def test_an_image_that_is_gone_or_cut_off_is_named(vision: Vision, dataset: TokenizedDataset, damage: str) -> None:
    path = Path(dataset.images(0)[0])
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:90])
    collator = PicturedText(vision, always_image=False)
    made = Ahead(lambda rows: collator(dataset, rows, CPU), same=np.array_equal)
    passes = made.each([np.array([1]), np.array([0]), np.array([3])])
    assert next(passes).rows.tolist() == [1]
    with pytest.raises(DataError) as caught:
        next(passes)
    (problem,) = caught.value.problems
    assert problem.where is not None and problem.where.endswith("rows.jsonl:1") and str(path) in problem.what
