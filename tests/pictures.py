"""A generated image set with three domains, named by its import path in tests that start processes of their own."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

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
