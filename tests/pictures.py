"""A generated image set with three domains, named by its import path in tests that start processes of their own."""

import math

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedomg.models.split import SplitModel

EACH = 24


class Pictures(Dataset[tuple[Tensor, int]]):
    """3 x 16 x 16 bytes: a class is a bright quarter of the picture, a domain its colour."""

    classes = ("left", "right", "below")
    domains = tuple(name for name in ("red", "green", "blue") for _ in range(EACH))

    def __len__(self) -> int:
        return len(self.domains)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.randint(0, 100, (3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
        label = index % 3
        row, column = divmod(label, 2)
        picture[index // EACH, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 150
        return picture, label


def maps(shape: tuple[int, ...], classes: int) -> SplitModel:
    """A model with stages for inputs of any shape, which it makes maps of."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 32), nn.ReLU(), nn.Unflatten(1, (8, 2, 2)))
    second = nn.Sequential(nn.Conv2d(8, 16, 1), nn.ReLU())
    return SplitModel(nn.Sequential(first, second, nn.Flatten()), nn.Linear(64, classes), {"0": 8, "1": 16})
