"""Families whose images are more than copies of one token: token ids as their own processors make them, what is
trained, what the model is given, and runs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AttentionInterface, AutoModelForImageTextToText
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from rankzero.data.batches.collators.images import PicturedText
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.engine.heads import SupervisedHead
from rankzero.errors import ConfigError, DataError
from rankzero.model import attention
from rankzero.model.attention import choose_attention
from rankzero.model.generate import answer, load_speaker
from rankzero.model.processor import load_processor
from rankzero.model.source import ModelSource
from rankzero.model.vision import Vision, load_vision
from rankzero.model.vision_rules import ProcessorPlace
from rankzero.run_dir.result import find_result
from rankzero.spec.run_spec import ModelSpec, SourceSpec
from tests.support.images import picture_rows
from tests.support.pictures import draw, vision_of
from tests.support.runs import metrics, run_here, run_root, small_spec
from tests.support.tiny import write_jsonl
from tests.support.vision_families import FAMILIES, save

SIZES = ((64, 64), (200, 120), (28, 90), (300, 31))
CPU = torch.device("cpu")


class Family:
    """One of them, with rows about images of SIZES."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.directory, self.folder = name, save(name, root / name), root / "data"
        draw(self.folder, SIZES)
        place = ModelSource(self.directory, self.directory, name)
        self.vision: Vision = vision_of(self.directory)
        self.processor = self.vision.rules.place.load()
        self.tokenizer = self.processor.tokenizer
        load_vision(place, ModelSpec(name=name), self.tokenizer, max_tokens=None, keep_template=False)

    def tokenise(self, *rows: dict[str, Any], **rules: Any) -> TokenizedDataset:
        source = SourceSpec(path=str(write_jsonl(self.folder / "rows.jsonl", list(rows))))
        return prepare([source], self.tokenizer, TokenRules(vision=self.vision.rules, **rules), self.folder / "cache")

    def made(self, row: dict[str, Any], **options: Any) -> Any:
        """What transformers makes of a row, whole."""
        turns = [{"role": m["role"], "content": in_parts(m["content"])} for m in row["messages"]]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        images = [Image.open(self.folder / name).convert("RGB") for name in row.get("images", [])] or None
        given = {"text_kwargs": {"add_special_tokens": False}, **options}
        return self.processor(text=[text], images=images, **given)


def in_parts(content: str) -> Any:
    """A content with `<image>` as transformers' templates read it."""
    if "<image>" not in content:
        return content
    texts = content.split("<image>")
    parts: list[dict[str, str]] = [{"type": "text", "text": texts[0]}] if texts[0] else []
    for text in texts[1:]:
        parts.append({"type": "image"})
        parts += [{"type": "text", "text": text}] if text else []
    return parts


def row(*contents: str, images: tuple[int, ...] = ()) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"messages": messages, **({"images": [f"{i}.png" for i in images]} if images else {})}


ROWS = [
    row("<image>Which?", "red", images=(0,)),
    row("Which\n\n<image>", "It is red.\n\nreally", images=(1,)),
    row("<image><image>one <image>\n\ntwo", "three", "and <image>?", "four", images=(0, 1, 2, 3)),
    row("Which colour is it?", "There is no picture, so I cannot say."),
]


def _or_skipped(name: str) -> Any:
    needs = name in ("pixtral", "mistral3") and find_spec("torchvision") is None
    return pytest.param(name, marks=pytest.mark.skipif(needs, reason="its processor needs torchvision"))


@pytest.fixture(scope="module", params=map(_or_skipped, FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp(request.param))


def test_ids_are_those_of_the_processor(family: Family) -> None:
    dataset = family.tokenise(*ROWS)
    for i, wanted in enumerate(ROWS):
        assert dataset.row(i)[0].tolist() == list(family.made(wanted)["input_ids"][0]), i


def test_layouts_follow_from_sizes(family: Family) -> None:
    """Each size by an image of it, besides those that the processor was tried out with."""
    layouts = family.vision.rules.layouts()
    for size in ((1, 1), (64, 64), (500, 60), (61, 500), (333, 334), (1000, 1001), (90, 28)):
        made = family.processor(images=[Image.new("RGB", size)], text=[f"a{family.vision.rules.placeholder}b"])
        found = sum(layouts(*size).copies)
        assert found == list(made["input_ids"][0]).count(family.vision.image_token_id), size


def test_nothing_of_an_image_is_trained(family: Family) -> None:
    """Where everything is trained, all tokens but those of images are, with tags and line ends around them."""
    ids, mask = family.tokenise(ROWS[0], assistant_only_loss=False).row(0)
    image = family.vision.ids(Image.open(family.folder / "0.png"))
    untrained = [int(number) for number, trained in zip(ids[1:], mask[1:], strict=True) if not trained]
    joined = len(image) - len(untrained)  # a line end before an image may take one of its own in
    assert joined in (0, 1) and untrained == image[joined:]
    assert set(family.vision.rules.image_token_id == np.array(untrained)) <= {True, False}
    ids, mask = family.tokenise(ROWS[2]).row(0)
    assert not mask[ids == family.vision.image_token_id].any()
    assert "three" in family.tokenizer.decode(ids[mask]) and "four" in family.tokenizer.decode(ids[mask])


def test_a_cut_leaves_whole_images(family: Family) -> None:
    ids, _ = family.tokenise(ROWS[2]).row(0)
    last = int((ids == family.vision.image_token_id).nonzero()[0].max())
    dataset = family.tokenise(ROWS[2], ROWS[3], max_length=last)
    assert dataset.stats.dropped == {"image_cut_off": 1}


def test_own_tokens_as_text_are_named(family: Family) -> None:
    for token in family.vision.rules.reserved[:2]:
        with pytest.raises(DataError, match="the model's own token"):
            family.tokenise(row(f"say {token}", "no"))


def test_the_model_is_given_what_the_processor_gives(family: Family) -> None:
    """Logits of a padded pass of all rows are those of each row alone, as transformers prepares it."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_pretrained(family.directory, dtype=torch.float32).eval()
    dataset = family.tokenise(*ROWS)
    head = SupervisedHead(model, model)
    batch = PicturedText(family.vision, always_image=False)(dataset, np.arange(len(ROWS)), CPU)
    with torch.no_grad():
        found_NV = head.logits(batch)
        alone = []
        for i, wanted in enumerate(ROWS):
            inputs = family.made(wanted, return_tensors="pt")
            mask = dataset.row(i)[1]
            alone.append(model(**inputs).logits[0, :-1][torch.from_numpy(mask[1:].copy())])
    torch.testing.assert_close(found_NV, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_flash_attention_is_refused_where_its_masks_are_not_the_models(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row with an image under the masks that flash-attention is given, computed by torch: other logits, and it is
    refused; the same, and it is taken."""
    AttentionInterface.register("masked_alike", sdpa_attention_forward)
    AttentionMaskInterface.register("masked_alike", flash_attention_mask)
    inputs = family.made(ROWS[1], return_tensors="pt")
    found = {}
    for name in ("sdpa", "masked_alike"):
        model = AutoModelForImageTextToText.from_pretrained(
            family.directory, dtype=torch.float32, attn_implementation={"": "sdpa", "text_config": name}
        )
        assert model.config.get_text_config()._attn_implementation == name
        with torch.no_grad():
            found[name] = model.eval()(**inputs).logits
    same = torch.allclose(found["sdpa"], found["masked_alike"], rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: True)
    taken = choose_attention("vision", model.config, "cuda", torch.bfloat16, wanted="auto", free="auto")
    assert (taken.implementation == "flash_attention_2") is same is (family.name != "gemma3")


def test_a_blank_image_behind_a_row_changes_nothing_of_it(family: Family) -> None:
    """What keeps step in a sharded run: whole, as the processor lays it out, and seen by no trained token."""
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_pretrained(family.directory, dtype=torch.float32).eval()
    dataset = family.tokenise(ROWS[3])
    head, rows = SupervisedHead(model, model), np.array([0])
    with torch.no_grad():
        plain = head.logits(PicturedText(family.vision, always_image=False)(dataset, rows, CPU))
        batch = PicturedText(family.vision, always_image=True)(dataset, rows, CPU)
        assert "pixel_values" in batch.inputs and int(batch.own_BT.sum()) == dataset.lengths[0] - 1
        torch.testing.assert_close(head.logits(batch), plain, rtol=1e-4, atol=1e-5)
        idle = PicturedText(family.vision, always_image=True).idle(CPU)
        assert head.logits(idle).shape[0] == 0


def test_a_run_learns_and_answers(family: Family, tmp_path: Path) -> None:
    """Rows with and without images: a few passes a step or one, the same losses; the result answers about an image."""
    rows = picture_rows(tmp_path / "pictures", 12, every=2)
    path = str(write_jsonl(tmp_path / "pictures/rows.jsonl", rows))
    lora = {"r": 4, "target_modules": "all-linear"}
    changes = {"data__train": path, "data__eval": None, "lora": lora, "train__max_steps": 6, "checkpoint__every": 100}
    one = small_spec(tmp_path / "one", family.directory, train__micro_batch_tokens=4096, **changes)
    small = small_spec(tmp_path / "small", family.directory, train__micro_batch_tokens=100, **changes)
    run_here(one)
    run_here(small)
    losses, others = ([line["loss"] for line in metrics(spec)] for spec in (one, small))
    assert others == pytest.approx(losses, rel=1e-3) and others[0] == pytest.approx(losses[0], rel=1e-6)
    assert losses[-1] < losses[0]
    kept = ("processor_config.json", "preprocessor_config.json")
    assert all((run_root(one) / "final" / name).is_file() for name in kept)
    speaker = load_speaker(find_result(str(run_root(one)), "writes"), torch.float32, CPU)
    image, question = tmp_path / "pictures" / rows[0]["images"][0], "<image>Which colour is it?"
    (reply,) = answer(speaker, [question], images=[str(image)], max_new_tokens=4)
    turns = [{"role": "user", "content": in_parts(question)}]
    text = family.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    special = {"add_special_tokens": False}
    inputs = family.processor(text=[text], images=[Image.open(image)], text_kwargs=special, return_tensors="pt")
    wanted = speaker.model.generate(**inputs, max_new_tokens=4, do_sample=False, use_cache=True)
    of_reply = wanted[0, inputs["input_ids"].shape[1] :]
    assert reply == family.tokenizer.decode(of_reply, skip_special_tokens=True).strip()


def test_line_ends_join_across_the_border_of_an_image(tmp_path: Path) -> None:
    """Gemma's tokens of several line ends: putting an image's ids between those of the text would be another row."""
    gemma = Family("gemma3", tmp_path)
    (ids,) = [gemma.tokenise(ROWS[0]).row(0)[0].tolist()]
    text = gemma.tokenizer.apply_chat_template(
        [{"role": "user", "content": in_parts("<image>Which?")}, ROWS[0]["messages"][1]], tokenize=False
    )
    before, after = text.split("<start_of_image>")
    image = gemma.vision.ids(Image.open(gemma.folder / "0.png"))
    pieces = [gemma.tokenizer.encode(piece, add_special_tokens=False) for piece in (before, after)]
    assert ids != [*pieces[0], *image, *pieces[1]]


def test_an_image_that_was_turned_after_it_was_tokenised_is_named(family: Family, tmp_path: Path) -> None:
    """As many tokens, and tags of other places: the model would see each tile in the place of another."""
    dataset = family.tokenise(ROWS[1])
    batch = PicturedText(family.vision, always_image=False)
    assert batch(dataset, np.array([0]), CPU).inputs["pixel_values"].shape[0]
    path = Path(dataset.images(0)[0])
    image = path.read_bytes()
    try:
        Image.new("RGB", SIZES[1][::-1]).save(path)
        if family.name in ("gemma3", "internvl"):  # nothing of what stands in the row is another
            assert batch(dataset, np.array([0]), CPU).inputs["pixel_values"].shape[0]
            return
        other = "56 image tokens, and were 52" if family.name == "llava_next" else "another shape"
        with pytest.raises(DataError, match=f"{other} (than )?when the row was tokenised") as caught:
            batch(dataset, np.array([0]), CPU)
    finally:
        path.write_bytes(image)
    (problem,) = caught.value.problems
    assert str(path) in problem.what and problem.where is not None and problem.where.endswith("rows.jsonl:1")


def test_a_limit_that_cannot_be_kept_is_told_before_rows_are_read(family: Family) -> None:
    """These scale images to tiles of one size: a limit does not make fewer of them."""
    most = max(family.vision.rules.layouts()(*size).tokens for size in ((64, 64), (1300, 400), (400, 1300)))
    with pytest.raises(ConfigError, match="becomes .* tokens, and .* cannot scale it to 7") as caught:
        vision_of(family.directory, 7)
    assert caught.value.problems[0].where == "data.image_max_tokens"
    assert vision_of(family.directory, most + 100).rules.max_tokens == most + 100


def test_numbers_that_do_not_decide_are_not_gone_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that says how many tiles there are, and not how they lie: then each size is tried."""
    directory = save("idefics3", tmp_path / "model")
    processor = load_processor(str(directory), str(directory), False, None)
    assert vision_of(directory).rules.decided_by == "counts"
    plain = processor._get_num_multimodal_tokens

    def tiles_alone(image_sizes: Any) -> Any:
        return SimpleNamespace(num_image_tokens=plain(image_sizes=image_sizes).num_image_patches)

    monkeypatch.setattr(processor, "_get_num_multimodal_tokens", tiles_alone)
    rules = vision_of(directory).rules
    assert rules.decided_by == "size"
    wide, tall = rules.layouts()(200, 120), rules.layouts()(120, 200)
    assert wide.copies == tall.copies == (4,) * 7 and wide.text != tall.text


def test_a_processor_that_goes_by_more_than_size_is_noticed(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pixels of a pass are asked again how many tokens they are."""
    monkeypatch.setattr(type(family.vision), "image_tokens", lambda *_: 3)
    with pytest.raises(ConfigError, match="does not follow from their size"):
        family.vision.inputs([Image.new("RGB", (64, 64))])


def test_other_settings_are_another_fingerprint(tmp_path: Path) -> None:
    first = vision_of(save("internvl", tmp_path / "first"))
    second = vision_of(save("internvl", tmp_path / "second", max_patches=2))
    longer = save("internvl", tmp_path / "third")
    (longer / "processor_config.json").write_text(
        json.dumps({"processor_class": "InternVLProcessor", "image_seq_length": 9})
    )
    third = Vision(ProcessorPlace(str(longer), str(longer)))
    assert len({vision.rules.fingerprint for vision in (first, second, third)}) == 3
