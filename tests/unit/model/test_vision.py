"""Processors: token counts against their own, limits, what is refused, what is saved."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor

from rankzero.errors import ConfigError
from rankzero.model.processor import load_processor
from rankzero.model.source import ModelSource
from rankzero.model.vision import _SAMPLES, Vision, load_vision
from rankzero.model.vision_rules import ProcessorPlace
from rankzero.spec.run_spec import ModelSpec
from tests.support.pictures import llava_files, qwen_vl_files, qwen_vl_tokenizer, vision_of


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl_files(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava_files(tmp_path_factory.mktemp("llava"))


def counted(vision: Vision, size: tuple[int, int]) -> int:
    """Tokens of an image of this size, from its pixels."""
    processor = vision.rules.place.load()
    made = processor(images=[Image.new("RGB", size)], text=[processor.image_token])
    return int(made["input_ids"][0].count(vision.image_token_id))


@settings(max_examples=60, deadline=None)
@given(width=st.integers(1, 700), height=st.integers(1, 700), limit=st.sampled_from([None, 4, 6, 9, 40]))
def test_tokens_follow_from_the_size(qwen: Path, width: int, height: int, limit: int | None) -> None:
    vision = vision_of(qwen, limit)
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(ValueError, match="aspect ratio"):
            vision.rules.layouts()(width, height)
        return
    tokens = vision.rules.layouts()(width, height).tokens
    assert tokens == counted(vision, (width, height)) == vision.tokens(Image.new("RGB", (width, height)))
    assert limit is None or tokens <= limit or max(width, height) > 4 * min(width, height)


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"])
def test_the_qwen_families(tmp_path: Path, model_type: str) -> None:
    vision = vision_of(qwen_vl_files(tmp_path, model_type=model_type))
    assert vision.rules.placeholder == "<|image_pad|>" and vision.rules.reserved == (
        "<|video_pad|>",
        "<|vision_end|>",
        "<|vision_start|>",
    )
    inputs = vision.inputs([Image.new("RGB", (64, 96)), Image.new("RGB", (320, 32))])
    assert inputs.keys() == {"pixel_values", "image_grid_thw"} and inputs["image_grid_thw"].tolist()[0] == [1, 6, 4]
    assert vision.tokens(Image.new("RGB", (64, 96))) == 6
    ids = qwen_vl_tokenizer()("a<|image_pad|>b<|video_pad|>", return_tensors="np")["input_ids"]
    (types,) = vision.token_inputs(ids).values()
    assert types.tolist() == [[int(token == vision.image_token_id) for token in ids[0]]]


def test_llava_has_images_of_one_size_and_the_processor_brings_the_template(llava: Path) -> None:
    vision = vision_of(llava)
    assert [vision.rules.layouts()(*size).copies for size in ((10, 10), (4000, 30))] == [(16,), (16,)]
    assert vision.inputs([Image.new("RGB", (9, 9))] * 2)["pixel_values"].shape == (2, 3, 56, 56)
    assert vision.token_inputs(np.array([[1]])) == {}
    tokenizer = SimpleNamespace(chat_template=None)
    vision_in(llava, tokenizer)
    assert "ASSISTANT" in tokenizer.chat_template  # type: ignore[operator]
    tokenizer.chat_template = "mine"
    vision_in(llava, tokenizer, keep_template=True)
    assert tokenizer.chat_template == "mine"


def vision_in(
    directory: Path,
    tokenizer: Any,
    *,
    tokenizer_of: Path | None = None,
    max_tokens: int | None = None,
    keep_template: bool = False,
) -> Vision:
    source = ModelSource(directory, tokenizer_of or directory, "m")
    return load_vision(source, ModelSpec(name="m"), tokenizer, max_tokens=max_tokens, keep_template=keep_template)


def test_a_limit_is_of_the_spec_and_goes_into_what_is_saved(qwen: Path, tmp_path: Path) -> None:
    vision = vision_in(qwen, qwen_vl_tokenizer(), max_tokens=12)
    assert vision.rules.max_tokens == 12 and vision.tokens(Image.new("RGB", (1000, 900))) == 9
    vision.save(tmp_path)
    saved = AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    assert saved.get_number_of_image_patches(900, 1000) == 4 * 9
    before = json.loads((qwen / "video_preprocessor_config.json").read_text())
    assert json.loads((tmp_path / "video_preprocessor_config.json").read_text()) == before


@pytest.mark.parametrize("named", ["image_processor_type", "feature_extractor_type", None])
def test_a_limit_is_kept_by_what_is_saved_whatever_names_the_processor(
    named: str | None, qwen: Path, tmp_path: Path
) -> None:
    shutil.copytree(qwen, tmp_path / "model")
    file = tmp_path / "model" / "preprocessor_config.json"
    content = json.loads(file.read_text())
    kind = content.pop("image_processor_type")
    file.write_text(json.dumps(content if named is None else {**content, named: kind}))
    vision = vision_of(tmp_path / "model", 16)
    shutil.copytree(tmp_path / "model", tmp_path / "final", ignore=shutil.ignore_patterns("*processor_config.json"))
    vision.save(tmp_path / "final")
    saved = vision_of(tmp_path / "final")
    assert all(saved.tokens(image) == vision.tokens(image) for image in (Image.new("RGB", size) for size in _SAMPLES))


def test_without_a_limit_files_are_saved_as_they_were(llava: Path, tmp_path: Path) -> None:
    vision_of(llava).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"preprocessor_config.json", "processor_config.json"}
    for path in tmp_path.iterdir():
        assert json.loads(path.read_text()) == json.loads((llava / path.name).read_text())


def test_a_chat_template_of_the_processor_is_not_saved_beside_the_tokenizers(qwen: Path, tmp_path: Path) -> None:
    """It would come first wherever the result is loaded as a processor, and it is not what was trained with."""
    shutil.copytree(qwen, tmp_path / "base")
    whole = {"processor_class": "Qwen3VLProcessor", "chat_template": "the base's"}
    (tmp_path / "base/processor_config.json").write_text(json.dumps(whole))
    vision = vision_of(tmp_path / "base")
    assert vision.chat_template == "the base's"
    shutil.copytree(qwen, tmp_path / "final")
    vision.save(tmp_path / "final")
    tokenizer = qwen_vl_tokenizer()
    assert vision_of(tmp_path / "final").chat_template == tokenizer.chat_template


def test_what_was_saved_is_a_processor_again(qwen: Path, tmp_path: Path) -> None:
    shutil.copytree(qwen, tmp_path / "first")
    processor = vision_of(tmp_path / "first", 10).rules.place.load()
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (tmp_path / "first" / name).unlink()
    nested = {"processor_class": "Qwen3VLProcessor", "image_processor": processor.image_processor.to_dict()}
    nested["image_processor"]["image_processor_type"] = "Qwen2VLImageProcessor"
    (tmp_path / "first" / "processor_config.json").write_text(json.dumps(nested))
    vision = vision_in(tmp_path / "first", qwen_vl_tokenizer(), tokenizer_of=qwen, max_tokens=5)
    shutil.copytree(qwen, tmp_path / "second", ignore=shutil.ignore_patterns("*processor_config.json"))
    vision.save(tmp_path / "second")
    assert vision_of(tmp_path / "second").tokens(Image.new("RGB", (900, 900))) == 4


def test_older_names_of_the_limit_have_no_say(qwen: Path, tmp_path: Path) -> None:
    shutil.copytree(qwen, tmp_path / "model")
    file = tmp_path / "model" / "preprocessor_config.json"
    older = {**json.loads(file.read_text()), "min_pixels": 64 * 64, "max_pixels": 2048 * 2048}
    file.write_text(json.dumps(older))
    vision = vision_of(tmp_path / "model", 9)
    assert vision.tokens(Image.new("RGB", (900, 900))) == 9
    shutil.copytree(tmp_path / "model", tmp_path / "final", ignore=shutil.ignore_patterns("*processor_config.json"))
    vision.save(tmp_path / "final")
    assert vision_of(tmp_path / "final").tokens(Image.new("RGB", (900, 900))) == 9


def test_a_processor_of_one_size_cannot_be_limited(llava: Path) -> None:
    with pytest.raises(ConfigError, match="becomes 16 tokens.*cannot scale it to 15") as caught:
        vision_of(llava, 15)
    assert caught.value.problems[0].where == "data.image_max_tokens"
    assert vision_of(llava, 16).rules.max_tokens == 16


def test_a_strip_that_is_scaled_to_more_than_memory_is_refused_by_its_size(llava: Path) -> None:
    layouts = vision_of(llava).rules.layouts()
    assert layouts(1, 10_000).tokens == layouts(10_000, 10).tokens == 16
    for size in ((1, 100_000), (100_000, 1)):
        with pytest.raises(ValueError, match="scaled to 313,600,000 pixels before it is cropped"):
            layouts(*size)


def test_missing_files_are_told(qwen: Path, tmp_path: Path) -> None:
    shutil.copytree(qwen, tmp_path / "model", ignore=shutil.ignore_patterns("*preprocessor_config.json"))
    with pytest.raises(ConfigError, match="processor cannot be loaded") as caught:
        vision_of(tmp_path / "model")
    assert "preprocessor_config.json" in caught.value.problems[0].hint


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="nothing is missing")
def test_a_package_that_a_processor_needs_is_named(llava: Path, tmp_path: Path) -> None:
    shutil.copytree(llava, tmp_path / "model")
    file = tmp_path / "model" / "processor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "processor_class": "PixtralProcessor"}))
    with pytest.raises(ConfigError, match="PixtralProcessor requires the Torchvision library") as caught:
        vision_of(tmp_path / "model")
    assert "install that package" in caught.value.problems[0].hint


@pytest.mark.parametrize("name", ["processor_config.json", "preprocessor_config.json"])
def test_the_processor_is_the_one_that_the_files_name(name: str, llava: Path, tmp_path: Path) -> None:
    """As Pixtral's do beside LLaVA's config: the class of the config laid its images out in another way, or failed."""
    place = tmp_path / "model"
    shutil.copytree(llava, place)
    files = [place / "processor_config.json", place / "preprocessor_config.json"]
    for wanted, found in (("LlavaNextProcessor",) * 2, ("OfSomebodysOwn", "LlavaProcessor"), (None, "LlavaProcessor")):
        for file in filter(Path.is_file, files):
            told = {key: value for key, value in json.loads(file.read_text()).items() if key != "processor_class"}
            file.write_text(json.dumps({**told, "processor_class": wanted} if file.name == name and wanted else told))
        assert type(load_processor.__wrapped__(str(place), str(place), False, None)).__name__ == found


class TestLayout:
    """A processor whose tokens are not what is made of them here would train something else in silence."""

    @pytest.fixture
    def processor(self, qwen: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Loaded for this test alone."""
        own = load_processor.__wrapped__(str(qwen), str(qwen), False, None)
        monkeypatch.setattr(ProcessorPlace, "load", lambda _place: own)
        return own

    def refused(self, qwen: Path, why: str) -> None:
        with pytest.raises(ConfigError, match=f"lays out images in a way that is not known: .*{why}"):
            vision_of(qwen)

    def test_what_stands_beside_the_copies_is_kept(
        self, qwen: Path, processor: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert vision_of(qwen).rules.decided_by == "count"
        plain = processor.replace_image_token
        monkeypatch.setattr(processor, "replace_image_token", lambda *args, **kwargs: plain(*args, **kwargs) + "\n")
        vision = vision_of(qwen)
        assert vision.rules.decided_by == "counts"
        assert vision.rules.layouts()(64, 96) == ("<|image_pad|>\n", (6,), 7)

    def test_a_count_that_fails(self, qwen: Path, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of settings that its code does not know: it is tried out, as one that has none."""

        def fail(image_sizes: Any) -> Any:
            return image_sizes["height"]

        monkeypatch.setattr(processor, "_get_num_multimodal_tokens", fail)
        assert vision_of(qwen).rules.decided_by == "size"

    def test_no_count(self, qwen: Path, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processor, "_get_num_multimodal_tokens", None)
        vision = vision_of(qwen)
        assert vision.rules.decided_by == "size" and vision.rules.layouts()(64, 96).copies == (6,)

    def test_not_in_its_place(self, qwen: Path, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            processor, "get_text_with_replacements", lambda text, images, *_: (["".join(images) + text[0]], [])
        )
        self.refused(qwen, "elsewhere than in the image's place")

    def test_several_images_together(self, qwen: Path, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = processor.get_text_with_replacements

        def numbered(text: list[str], images: list[str], *rest: Any) -> Any:
            whole, offsets = plain(text, images, *rest)
            return ([f"{whole[0]} {len(images)} images"] if len(images) > 1 else whole), offsets

        monkeypatch.setattr(processor, "get_text_with_replacements", numbered)
        self.refused(qwen, "several images")

    def test_no_placeholder(self, qwen: Path, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processor, "image_token", "several tokens")
        self.refused(qwen, "no placeholder")

    def test_other_values_for_each_token(self, qwen: Path, processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            processor, "create_mm_token_type_ids", lambda ids: [[number % 2 for number in range(len(ids[0]))]]
        )
        self.refused(qwen, "what it gives as mm_token_type_ids")
