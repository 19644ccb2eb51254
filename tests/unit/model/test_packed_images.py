"""Rows with images that lie end to end: what padded rows come to, in every family of which that is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from rankzero.data.batches.collators.images import PicturedText
from rankzero.data.batches.collators.packed import PackedText
from rankzero.data.batches.collators.text import MicroBatch, PaddedText
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.engine import setup, worker
from rankzero.engine.device import Device, without_cudnn_attention
from rankzero.engine.heads import SupervisedHead
from rankzero.model import varlen
from rankzero.model.attention import PROVEN_WITH_IMAGES, choose_attention
from rankzero.model.image_positions import image_positions
from rankzero.model.load import load_config, load_model
from rankzero.model.recomputing import recompute_blocks
from rankzero.model.source import ModelSource
from rankzero.model.tower_attention import NAME, TOWERS, attend_to_images_at_once, take
from rankzero.model.vision import Vision, load_vision
from rankzero.spec.run_spec import ModelSpec, SourceSpec
from tests.support import tiny_configs
from tests.support.pictures import draw, llava_files, qwen_vl_files, vision_of
from tests.support.runs import run_here
from tests.support.tasks import task_spec
from tests.support.tiny import write_jsonl
from tests.support.vision_families import FAMILIES, save
from tests.unit.engine.test_host_waits import Waits

CPU = torch.device("cpu")
SIZES = ((64, 64), (200, 120), (28, 90), (300, 64), (64, 64), (200, 120), (28, 90))


def turns(question: str, answer: str, *images: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **({"images": [f"{i}.png" for i in images]} if images else {})}


ROWS = [
    turns("<image>Which?", "red", 0),
    turns("Which colour is it?", "There is no picture, so I cannot say."),
    turns("<image>one <image> two", "three", 1, 2),
    turns("Tell me <image>", "It is red. It is green.", 3),
]


def write_family(name: str, directory: Path) -> Path:
    """A tiny model of it with its processor, in Hugging Face format."""
    if name in FAMILIES:
        return save(name, directory)
    if name == "llava":
        llava_files(directory)
    else:
        qwen_vl_files(directory, model_type=name)  # patches of 16 pixels
    written = json.loads((directory / "config.json").read_text())
    config = getattr(tiny_configs, name)()
    for key, value in written.items():
        if key != "model_type":
            setattr(config, key, value)
    tokens = vision_of(directory).rules.place.load().tokenizer
    config.get_text_config().vocab_size = len(tokens)
    tower = config.vision_config
    tower.patch_size = 14 if name == "llava" else 16
    if name == "llava":
        tower.image_size = 56
    if name == "qwen2_5_vl":
        tower.window_size = 64
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(directory)
    return directory


class Family:
    """Rows about images, and a model of random weights whose rows lie as asked."""

    def __init__(self, name: str, root: Path) -> None:
        self.name, self.folder = name, root / "data"
        self.directory = write_family(name, root / "model")
        draw(self.folder, SIZES)
        self.source = ModelSource(self.directory, self.directory, name)
        self.spec = ModelSpec(name=name)
        self.vision: Vision = vision_of(self.directory)
        self.config = load_config(self.source, self.spec)
        self.tokenizer = self.vision.rules.place.load().tokenizer
        load_vision(self.source, self.spec, self.tokenizer, max_tokens=None, keep_template=False)

    def tokenise(self, rows: list[dict[str, Any]]) -> TokenizedDataset:
        source = SourceSpec(path=str(write_jsonl(self.folder / "rows.jsonl", rows)))
        return prepare([source], self.tokenizer, TokenRules(vision=self.vision.rules), self.folder / "cache")

    def model(self, *, free: bool) -> Any:
        chosen = choose_attention("vision", self.config, "cpu", torch.float32, wanted="auto", free=free)
        assert chosen.padding_free is free
        return load_model(self.source, self.spec, self.config, torch.float32, attention=chosen.implementation)

    def collator(self, *, free: bool, always_image: bool = False) -> PicturedText:
        positions = image_positions(self.config, self.vision) if free else None
        return PicturedText(self.vision, always_image=always_image, padding_free=free, positions=positions)


@pytest.fixture(scope="module", params=sorted(PROVEN_WITH_IMAGES | TOWERS))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    yield Family(request.param, tmp_path_factory.mktemp(request.param))


def losses(model: Any, batch: MicroBatch) -> torch.Tensor:
    """Of each trained token, in the order of rows."""
    logits_NV = SupervisedHead(model, model).logits(batch)
    return cross_entropy(logits_NV.float(), batch.targets_N, reduction="none")


def gradients(model: Any, batch: MicroBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    found = losses(model, batch)
    found.sum().backward()
    named = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found.detach(), named


def test_losses_and_gradients_are_those_of_padded_rows(family: Family) -> None:
    dataset, every = family.tokenise(ROWS), np.arange(len(ROWS))
    padded = family.collator(free=False)(dataset, every, CPU)
    packed = family.collator(free=True)(dataset, every, CPU)
    assert packed.inputs["input_ids"].shape == (1, sum(dataset.lengths) - len(ROWS))
    assert packed.computed < padded.computed and bool(packed.own_BT.all())
    theirs, of_theirs = gradients(family.model(free=False), padded)
    ours, of_ours = gradients(family.model(free=True), packed)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert of_ours.keys() == of_theirs.keys() and any("vis" in name for name in of_ours)
    for name, gradient in of_theirs.items():
        torch.testing.assert_close(of_ours[name], gradient, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_nothing_is_made_of_all_tokens_squared(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are kept apart by where they begin, in every layer, and not by a mask."""
    model, masks, kept_apart = family.model(free=True), [], []

    def refuse(**given: Any) -> Any:
        masks.append(given)
        return sdpa_mask(**given)

    def attend(*given: Any) -> Any:
        kept_apart.append(len(given[3].queries) - 1)
        return in_rows(*given)

    in_rows = varlen.attend
    monkeypatch.setattr(varlen, "sdpa_mask", refuse)
    monkeypatch.setattr(varlen, "attend", attend)
    batch = family.collator(free=True)(family.tokenise(ROWS), np.arange(len(ROWS)), CPU)
    with torch.no_grad():
        losses(model, batch)
    text = model.config.get_text_config()
    assert text._attn_implementation == varlen.NAME and not masks
    assert kept_apart == [len(ROWS)] * text.num_hidden_layers


def test_rows_do_not_see_each_other(family: Family) -> None:
    """Other images in one row: the losses of the others stay, to the last bit."""
    model, collator = family.model(free=True), family.collator(free=True)
    changed = [*ROWS[:2], turns("<image>one <image> two", "three", 5, 6), ROWS[3]]
    found, lengths = [], []
    for rows in (ROWS, changed):
        dataset = family.tokenise(rows)
        lengths.append([int(length) for length in dataset.lengths])
        counts = [int(dataset.row(i)[1][1:].sum()) for i in range(len(rows))]
        with torch.no_grad():
            found.append(losses(model, collator(dataset, np.arange(len(rows)), CPU)).split(counts))
    assert lengths[0] == lengths[1]
    same = [torch.equal(before, after) for before, after in zip(*found, strict=True)]
    assert same == [True, True, False, True]


@pytest.mark.parametrize("rows", [[ROWS[1]], [ROWS[0]], [ROWS[1], ROWS[1]]], ids=["text", "image", "texts"])
def test_passes_of_one_row_or_of_none_with_images(family: Family, rows: list[dict[str, Any]]) -> None:
    dataset, every = family.tokenise(rows), np.arange(len(rows))
    with torch.no_grad():
        theirs = losses(family.model(free=False), family.collator(free=False)(dataset, every, CPU))
        ours = losses(family.model(free=True), family.collator(free=True)(dataset, every, CPU))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_blank_image_that_keeps_step_is_seen_by_no_trained_token(family: Family) -> None:
    dataset, every = family.tokenise([ROWS[1], ROWS[1]]), np.arange(2)
    model = family.model(free=True)
    plain, keeping = family.collator(free=True), family.collator(free=True, always_image=True)
    with torch.no_grad():
        batch = keeping(dataset, every, CPU)
        assert "pixel_values" in batch.inputs
        assert int(batch.own_BT.sum()) == sum(dataset.lengths) - 2 < batch.own_BT.numel()
        torch.testing.assert_close(
            losses(model, batch), losses(model, plain(dataset, every, CPU)), rtol=1e-4, atol=1e-5
        )
        idle = keeping.idle(CPU)
        assert idle.computed == 0 and not idle.own_BT.any() and losses(model, idle).shape == (0,)


@pytest.mark.parametrize("free", [True, False])
def test_a_tower_told_where_images_begin_sees_each_alone(family: Family, free: bool) -> None:
    """All images of a pass in one call of a layer; the same losses and gradients, and nothing of it in the files."""
    model = family.model(free=free)
    taken = take(model)
    assert taken is (family.name in TOWERS)
    if not taken:
        return
    dataset = family.tokenise(ROWS)
    batch = family.collator(free=free)(dataset, np.arange(len(ROWS)), CPU)
    called = []
    calls = model.model.visual.blocks[0].attn.register_forward_hook(lambda module, *_: called.append(module.config))
    ours, of_ours = gradients(model, batch)
    calls.remove()
    assert [config._attn_implementation for config in called] == [NAME]
    theirs, of_theirs = gradients(family.model(free=free), batch)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for name, gradient in of_theirs.items():
        torch.testing.assert_close(of_ours[name], gradient, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert NAME not in json.dumps(model.config.to_dict(), default=str)


def test_towers_are_not_told_where_rows_begin(family: Family) -> None:
    """Under the names by which they are told where images begin: another attention would take these for the images."""
    given: list[set[str]] = []

    def recorded(module: torch.nn.Module, *tensors: Any, **options: Any) -> Any:
        given.append({name for name, value in options.items() if value is not None})
        return sdpa_attention_forward(module, *tensors, **options)

    AttentionInterface.register("recorded", recorded)
    AttentionMaskInterface.register("recorded", sdpa_mask)
    model = family.model(free=True)
    kind = type(model.config.vision_config)
    for module in model.modules():
        if isinstance(getattr(module, "config", None), kind):
            module.config._attn_implementation = "recorded"
    batch = family.collator(free=True)(family.tokenise(ROWS), np.arange(len(ROWS)), CPU)
    with torch.no_grad():
        losses(model, batch)
    assert given and not any(name.startswith(("cu_seq", "max_length")) for each in given for name in each)


@pytest.mark.parametrize(
    ("attention", "device", "dtype", "taken"),
    [
        (None, "cuda", torch.bfloat16, True),
        ("varlen", "cuda", torch.float16, True),
        ("sdpa", "cuda", torch.bfloat16, False),  # somebody has asked for it
        ("flash_attention_2", "cuda", torch.bfloat16, False),  # which is told where images begin by its own name
        (None, "cuda", torch.float32, False),
        (None, "cpu", torch.bfloat16, False),
    ],
)
def test_when_a_tower_attends_to_all_images_at_once(
    attention: str | None, device: str, dtype: torch.dtype, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "has_kernel_for_images", lambda: True)
    model = AutoModelForImageTextToText.from_config(tiny_configs.qwen3_vl())
    assert attend_to_images_at_once(model, attention, device, dtype) is taken
    kept = model.model.visual.config._attn_implementation
    assert kept == (NAME if taken else "sdpa") and model.config.get_text_config()._attn_implementation == "sdpa"
    monkeypatch.setattr(varlen, "has_kernel_for_images", lambda: pytest.fail("of a model without a tower"))
    text = AutoModelForCausalLM.from_config(tiny_configs.llama())
    assert not attend_to_images_at_once(text, attention, device, dtype)
    monkeypatch.setattr(varlen, "has_kernel_for_images", lambda: False)
    fresh = AutoModelForImageTextToText.from_config(tiny_configs.qwen3_vl())
    assert not attend_to_images_at_once(fresh, attention, device, dtype)


def test_a_run_asks_for_it_and_does_without_plans_by_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str | None, str, torch.dtype]] = []
    monkeypatch.setattr(setup, "attend_to_images_at_once", lambda model, *rest: asked.append(rest))
    cudnn: list[bool] = []

    @contextmanager
    def noting(device: Device) -> Iterator[None]:
        cudnn.append(True)
        yield
        cudnn.append(False)

    monkeypatch.setattr(worker, "without_cudnn_attention", noting)
    run_here(task_spec("vision", tmp_path, rows=8, train__max_steps=1))
    assert asked == [(None, "cpu", torch.float32)] and cudnn == [True, False]


def test_cudnns_attention_is_as_it_was_behind_a_run() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    for was in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(was)
        with without_cudnn_attention(Device("cuda")):
            assert not torch.backends.cuda.cudnn_sdp_enabled()
        with without_cudnn_attention(Device("cpu")):
            assert torch.backends.cuda.cudnn_sdp_enabled() is was
        assert torch.backends.cuda.cudnn_sdp_enabled() is was
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
def test_a_frozen_tower_keeps_nothing_where_blocks_are_computed_again(family: Family) -> None:
    """Under adapters of the text model; and the same gradients of these as without."""
    found = []
    batch = family.collator(free=True)(family.tokenise(ROWS), np.arange(len(ROWS)), CPU)
    for again in (False, True):
        model = family.model(free=True)
        towers = tuple(module for name, module in model.named_modules() if name.split(".")[-1] in TOWER_NAMES)
        targets = [
            name
            for name, module in model.named_modules()
            if name.endswith(("q_proj", "v_proj")) and not any(module in tower.modules() for tower in towers)
        ]
        torch.manual_seed(0)
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False))
        if again:
            recompute_blocks(adapted)
        adapted.train()
        computed: list[torch.Tensor] = []
        for tower in towers:
            for module in tower.modules():
                module.register_forward_hook(partial(_note, computed))
        found.append(gradients(adapted, batch))
        assert towers and computed and not any(tensor.requires_grad for tensor in computed)
    (losses_once, once), (losses_again, again_) = found
    assert torch.equal(losses_once, losses_again) and once.keys() == again_.keys() and once
    for name, gradient in once.items():
        torch.testing.assert_close(again_[name], gradient, rtol=1e-4, atol=1e-6)


TOWER_NAMES = ("visual", "vision_tower", "vision_model")


def _note(found: list[torch.Tensor], _module: torch.nn.Module, _inputs: Any, output: Any) -> None:
    found += [value for value in (output if isinstance(output, tuple) else (output,)) if torch.is_tensor(value)]


def test_text_alone_keeps_its_rows_apart_by_positions_too(family: Family) -> None:
    """As preferences of a model that sees images are packed: also by an attention that goes by positions alone."""
    positions = image_positions(family.config, family.vision)
    collator = PackedText(positions)
    dataset = family.tokenise([ROWS[1], turns("Tell me", "It is red."), turns("Which?", "no")])
    batch = collator(dataset, np.arange(3), CPU)
    told = {name: value for name, value in batch.inputs.items() if not name.startswith(("cu_seq", "max_length"))}
    chosen = load_model(family.source, family.spec, family.config, torch.float32, attention="sdpa")
    with torch.no_grad():
        theirs = losses(chosen, PaddedText()(dataset, np.arange(3), CPU))
        assert torch.allclose(losses(chosen, replace(batch, inputs=told)), theirs, rtol=1e-4, atol=1e-5)
        assert torch.allclose(losses(family.model(free=True), batch), theirs, rtol=1e-4, atol=1e-5)
        assert losses(family.model(free=True), collator.idle(CPU)).shape == (0,)


def test_more_images_are_no_more_waits_for_the_device(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often for four images as for one, and a tower calls its kernel once a layer. Padded, the device is asked for
    the place of each."""

    def kernel(query: torch.Tensor, *_others: Any, **_options: Any) -> torch.Tensor:
        called.append(query.shape[0])
        return query

    called: list[int] = []
    model = family.model(free=True)
    if not take(model):
        assert family.name not in TOWERS
        return
    monkeypatch.setattr(varlen, "_kernel_takes", lambda *_: True)
    monkeypatch.setattr(varlen, "_KERNEL", kernel)
    found = []
    for rows in (ROWS[:2], ROWS):
        del called[:]
        batch = family.collator(free=True)(family.tokenise(rows), np.arange(len(rows)), CPU)
        with torch.no_grad(), Waits() as waits:
            losses(model, batch)
        found.append(sorted(waits.found))
        blocks = len(model.model.visual.blocks) + model.config.get_text_config().num_hidden_layers
        assert len(called) == blocks
    if family.name != "qwen2_5_vl":  # which numbers each image's windows on the CPU, wherever it computes
        assert found[0] == found[1]
    padded = family.collator(free=False)(family.tokenise(ROWS), np.arange(len(ROWS)), CPU)
    with torch.no_grad(), Waits() as waits:
        losses(family.model(free=False), padded)
    assert len(waits.found) >= len(found[1]) + 3 * 4  # its place by time, row and column
