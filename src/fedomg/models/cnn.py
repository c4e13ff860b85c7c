"""The paper's CNN: two 5x5 convolutions (32 and 64 channels), each pooled, and a 512-unit layer before the classifier."""

from torch import nn

from fedomg.core.errors import UserError
from fedomg.models.split import SplitModel


def cnn(shape: tuple[int, ...], classes: int) -> SplitModel:
    """582,026 parameters at 1x28x28 and 10 classes, 878,538 at 3x32x32 and 10, 924,708 at 3x32x32 and 100.

    Pooling comes before the ReLU, which is the same function, and leaves the ReLU a quarter of the work.
    """
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise UserError(
            f'model "cnn" needs images of at least 16 x 16 pixels, the data set has inputs of shape {tuple(shape)}; try "linear"'
        )
    channels, height, width = shape
    pooled = 64 * _after_two_blocks(height) * _after_two_blocks(width)
    body = nn.Sequential(
        nn.Conv2d(channels, 32, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(pooled, 512),
        nn.ReLU(),
    )
    return SplitModel(body, nn.Linear(512, classes), {"2": 32, "5": 64})


def _after_two_blocks(side: int) -> int:
    return ((side - 4) // 2 - 4) // 2
