"""A part of a data set: a list of rows, read and normalised batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from fedomg.data.augment import AUGMENTATIONS
from fedomg.data.dataset import Dataset


class Batch(NamedTuple):
    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Examples:
    """Some rows of a data set. Copies nothing but the batch that is asked for."""

    dataset: Dataset
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def labels(self) -> Tensor:
        return self.dataset.labels[self.indices]

    def batch(self, positions: Tensor, draw: Generator | None = None) -> Batch:
        return read(self.dataset, self.indices[positions], draw)

    def in_order(self, size: int) -> Iterator[Batch]:
        """All examples once."""
        for positions in torch.arange(len(self), device=self.indices.device).split(size):
            yield self.batch(positions)

    def to(self, dataset: Dataset) -> "Examples":
        """The same rows of a copy of the data set on another device."""
        return Examples(dataset, self.indices.to(dataset.labels.device))


def read(dataset: Dataset, rows: Tensor, draw: Generator | None = None) -> Batch:
    """Rows of any shape, such as a batch for each of several clients. With a generator, augmented as training data of the data set are."""
    return Batch(channels_last(seen(dataset, dataset.inputs[rows], draw)), dataset.labels[rows])


def seen(dataset: Dataset, inputs: Tensor, draw: Generator | None = None) -> Tensor:
    """What a model sees of these inputs."""
    if draw is not None and dataset.augmentation != "none":
        side = dataset.window or inputs.shape[-1]
        return normalise(dataset, 255 * AUGMENTATIONS[dataset.augmentation](inputs.float() / 255, side, draw))
    return normalise(dataset, inputs if dataset.window is None else middle(inputs, dataset.window))


def middle(inputs: Tensor, side: int) -> Tensor:
    """The square in the middle."""
    top, left = ((length - side) // 2 for length in inputs.shape[-2:])
    return inputs[..., top : top + side, left : left + side]


def normalise(dataset: Dataset, inputs: Tensor) -> Tensor:
    """Of bytes, or of what was bytes: from 0 to 255."""
    if not dataset.mean:
        return inputs
    scale, shift = _affine(dataset.mean, dataset.std, inputs.device)
    return inputs * scale - shift


@cache
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    means, deviations = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (mean, std))
    return 1 / (255 * deviations), means / deviations


def channels_last(inputs: Tensor) -> Tensor:
    """Images in the memory order in which convolutions and pooling are fast."""
    return inputs.to(memory_format=torch.channels_last) if inputs.ndim == 4 else inputs
