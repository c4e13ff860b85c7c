"""Two hidden layers of 200 units on the flattened input: the "2NN" of the first work on federated averaging."""

import math

from torch import nn

from fedomg.models.split import SplitModel

WIDTH = 200


def mlp(shape: tuple[int, ...], classes: int) -> SplitModel:
    """199,210 parameters at 1x28x28 and 10 classes."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    return SplitModel(body, nn.Linear(WIDTH, classes))
