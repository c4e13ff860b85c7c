"""A part of a data set: a list of rows, read and normalised batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

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

    def batch(self, positions: Tensor) -> Batch:
        rows = self.indices[positions]
        return Batch(channels_last(normalise(self.dataset, self.dataset.inputs[rows])), self.dataset.labels[rows])

    def in_order(self, size: int) -> Iterator[Batch]:
        """All examples once."""
        for positions in torch.arange(len(self), device=self.indices.device).split(size):
            yield self.batch(positions)

    def to(self, dataset: Dataset) -> "Examples":
        """The same rows of a copy of the data set on another device."""
        return Examples(dataset, self.indices.to(dataset.labels.device))


def normalise(dataset: Dataset, inputs: Tensor) -> Tensor:
    if inputs.dtype != torch.uint8:
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
