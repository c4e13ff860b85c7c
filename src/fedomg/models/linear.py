"""A single linear layer on the flattened input."""

import math

from torch import nn

from fedomg.models.split import SplitModel


def linear(shape: tuple[int, ...], classes: int) -> SplitModel:
    return SplitModel(nn.Flatten(), nn.Linear(math.prod(shape), classes))
