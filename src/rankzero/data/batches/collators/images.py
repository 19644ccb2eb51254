"""Rows with images as tensors: decoded, turned into what the model's processor makes of them, padded or end to end.

Knows rows, image files and torch; what pixels become, and where images stand, it asks the model's side, which it knows
by `ImageInputs` and `Positions` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from rankzero.data.batches.collators.packed import Positions, end_to_end, with_positions
from rankzero.data.batches.collators.text import MicroBatch, pad_right, padded_places, target_weights, to_device
from rankzero.data.cache.joined import Rows
from rankzero.data.images.decode import load_rgb
from rankzero.data.images.embedded import kept_images
from rankzero.data.order import Indices
from rankzero.errors import DataError, Problem

if TYPE_CHECKING:
    from PIL.Image import Image

Tokens = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]
"""Ids of a row, and which of them are trained."""

_BLANK = (64, 64)


class ImageInputs(Protocol):
    """What a model is given of images."""

    @property
    def image_token_id(self) -> int:
        """The token whose copies the model puts an image's features in the place of."""
        ...

    def laid_out(self, images: Sequence[Image]) -> list[int]:
        """The special tokens of these images in a row's text, in order: copies of it, and tags around and between
        them."""
        ...

    def ids(self, image: Image) -> Sequence[int]:
        """All tokens of an image."""
        ...

    def inputs(self, images: Sequence[Image]) -> Mapping[str, torch.Tensor]:
        """Keyword arguments for the images of a pass, on the CPU."""
        ...

    def token_inputs(self, input_ids_BT: npt.NDArray[np.int64]) -> Mapping[str, npt.NDArray[np.int64]]:
        """Keyword arguments of a pass with images that have one value for each token, besides the ids."""
        ...


class PicturedText:
    """Rows of text and images, padded as PaddedText pads, or end to end as PackedText lays them. A pass without images
    is one of text alone.

    `always_image`: where a model is spread over ranks, every pass has to run the vision tower, because others wait for
    its weights. A pass without images then has a blank one behind its shortest row, where no trained token sees it.
    """

    def __init__(
        self,
        vision: ImageInputs,
        *,
        always_image: bool,
        workers: int = 1,
        padding_free: bool = False,
        positions: Positions | None = None,
    ) -> None:
        """`workers`: how many images are decoded at a time. `padding_free`: rows lie end to end, which a model with
        `positions` of its own is told by these too."""
        self.packed = padding_free
        self._vision = vision
        self._positions = positions
        self._decoding = ThreadPoolExecutor(workers, thread_name_prefix="decode")
        self._blank: Image | None = None
        if always_image:
            from PIL import Image

            self._blank = Image.new("RGB", _BLANK)

    def __call__(self, dataset: Rows, rows: Indices, device: torch.device) -> MicroBatch:
        tokens = [dataset.row(int(row)) for row in rows]
        under_way = [self._decoded(dataset, int(row)) for row in rows]
        images: list[Image] = []
        for row, (ids, _), of_row in zip(rows, tokens, under_way, strict=True):
            images += self._images(dataset, int(row), ids, of_row)
        batch = self._batch(rows, tokens, images, device)
        return replace(batch, weights_N=target_weights(dataset, rows, [mask for _, mask in tokens], device))

    def idle(self, device: torch.device) -> MicroBatch:
        """Tokens that predict nothing, and the blank image where there always is one."""
        nothing = np.zeros(3, np.int32), np.zeros(3, np.bool_)
        return replace(self._batch(np.empty(0, np.int64), [nothing], [], device), computed=0)

    def _decoded(self, dataset: Rows, row: int) -> Iterator[Image]:
        """The row's images, which are being decoded."""
        return self._decoding.map(partial(_load, where=partial(dataset.where, row)), dataset.images(row))

    def _images(self, dataset: Rows, row: int, ids: npt.NDArray[np.int32], decoded: Iterator[Image]) -> list[Image]:
        """The row's images. Raises DataError where one is gone, or no longer what was tokenised."""
        images = list(decoded)
        found = self._vision.laid_out(images)
        there = ids[np.isin(ids, [self._vision.image_token_id, *set(found)])].tolist()
        now, then = (tokens.count(self._vision.image_token_id) for tokens in (found, there))
        rest = iter(there)
        if now != then or not all(token in rest for token in found):  # in this order
            what = "its images have another shape than when the row was tokenised"
            if now != then:
                what = f"its images become {now} image tokens, and were {then} when the row was tokenised"
            what = f"{what} ({', '.join(dataset.images(row))})"
            hint = "put the images back that were there; with these, the next start tokenises all rows again"
            raise DataError(what, where=dataset.where(row), hint=hint)
        return images

    def _with_blank(self, rows: Sequence[Tokens], image: Sequence[int]) -> list[Tokens]:
        shortest = min(range(len(rows)), key=lambda i: len(rows[i][0]))
        ids, mask = rows[shortest]
        of_image = np.array([*image, image[-1]], np.int32)  # the last one is not fed in
        longer = np.concatenate([ids, of_image]), np.concatenate([mask, np.zeros(len(of_image), np.bool_)])
        return [*rows[:shortest], longer, *rows[shortest + 1 :]]

    def _batch(
        self,
        rows: Indices,
        tokens: list[Tokens],
        images: list[Image],
        device: torch.device,
    ) -> MicroBatch:
        lengths = [len(ids) - 1 for ids, _ in tokens]
        if not images and self._blank is not None:
            images = [self._blank]
            tokens = self._with_blank(tokens, self._vision.ids(self._blank))
        if self.packed:
            return self._end_to_end(rows, tokens, lengths, images, device)
        padded = pad_right(tokens, pad_id=1 if self._vision.image_token_id == 0 else 0)
        inputs = {"input_ids": to_device(padded.input_ids_BT, device)}
        if images:
            inputs |= self._of_images(padded.input_ids_BT, self._vision.inputs(images), device)
        return MicroBatch(
            rows=rows,
            inputs=inputs,
            predicts_BT=to_device(padded.predicts_BT, device),
            targets_N=to_device(padded.targets_N, device),
            predicts_N=to_device(np.flatnonzero(padded.predicts_BT), device),
            computed=padded.input_ids_BT.size,
            **padded_places(rows, lengths, inputs["input_ids"]),
        )

    def _end_to_end(
        self,
        rows: Indices,
        tokens: list[Tokens],
        lengths: list[int],
        images: list[Image],
        device: torch.device,
    ) -> MicroBatch:
        """`lengths`: of rows without a blank image behind them."""
        ids = [of_row[:-1] for of_row, _ in tokens]
        batch = end_to_end(
            rows,
            ids,
            predicts=np.concatenate([mask[1:] for _, mask in tokens]),
            targets=np.concatenate([of_row[1:][mask[1:]] for of_row, mask in tokens]),
            device=device,
            own=lengths,
        )
        pixels = self._vision.inputs(images) if images else {}
        if images:
            of_images = self._of_images(np.concatenate(ids)[None].astype(np.int64), pixels, device)
            batch = replace(batch, inputs={**batch.inputs, **of_images})
        return batch if self._positions is None else with_positions(batch, ids, self._positions, pixels)

    def _of_images(
        self, input_ids_BT: npt.NDArray[np.int64], pixels: Mapping[str, torch.Tensor], device: torch.device
    ) -> dict[str, torch.Tensor]:
        """Keyword arguments for the images of a pass."""
        found = {**self._vision.token_inputs(input_ids_BT), **{name: value.numpy() for name, value in pixels.items()}}
        return {name: to_device(value, device) for name, value in found.items()}


def _load(path: str, *, where: Callable[[], str]) -> Image:
    """An image's pixels. Raises DataError, which says `where` it is named."""
    try:
        return load_rgb(Path(path).name, Path(path).parent)
    except DataError as error:
        brought = Path(path).is_relative_to(kept_images())
        again = "it came with the row: remove the file, and the next start puts it there again" if brought else ""
        problems = [Problem(f"image {path}: {p.what}", where(), again or p.hint) for p in error.problems]
        raise DataError(problems) from error
