"""A part of a data set: a list of rows, read and normalised batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass
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
        return Batch(normalise(self.dataset, self.dataset.inputs[rows]), self.dataset.labels[rows])

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """All examples once, with their rows in the data set."""
        for positions in torch.arange(len(self)).split(size):
            yield self.indices[positions], self.batch(positions)


def normalise(dataset: Dataset, inputs: Tensor) -> Tensor:
    if inputs.dtype != torch.uint8:
        return inputs
    shape = (1, -1, 1, 1)
    scale = 1 / (255 * torch.tensor(dataset.std).view(shape))
    shift = torch.tensor(dataset.mean).view(shape) / torch.tensor(dataset.std).view(shape)
    return inputs * scale - shift
