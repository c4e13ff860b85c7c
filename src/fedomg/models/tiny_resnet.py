"""A small residual network with batch normalisation: what larger ones have, at a size for tests and small images."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedomg.core.errors import UserError
from fedomg.models.split import SplitModel

WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and channels == width
            else nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(inputs)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))


def tiny_resnet(shape: tuple[int, ...], classes: int) -> SplitModel:
    """77,754 parameters at 1x28x28 and 10 classes. Its features have 64 dimensions."""
    if len(shape) != 3:
        raise UserError(f'model "tiny_resnet" needs images, the data set has inputs of shape {tuple(shape)}; try "mlp" or "linear"')
    first, second, third = WIDTHS
    body = nn.Sequential(
        nn.Conv2d(shape[0], first, 3, padding=1, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        Block(first, first, stride=1),
        Block(first, second, stride=2),
        Block(second, third, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return SplitModel(body, nn.Linear(third, classes), {"3": first, "4": second, "5": third})
