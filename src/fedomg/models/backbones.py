"""torchvision's ResNets and MobileNetV2, with random weights. torchvision is imported when one of them is built."""

from torch import nn

from fedomg.core.errors import UserError
from fedomg.core.torchvision_compat import torchvision
from fedomg.models.split import SplitModel


def resnet18(shape: tuple[int, ...], classes: int) -> SplitModel:
    """11,180,103 parameters with 7 classes. Its features have 512 dimensions."""
    return _resnet("resnet18", shape, classes)


def resnet50(shape: tuple[int, ...], classes: int) -> SplitModel:
    """23,522,375 parameters with 7 classes. Its features have 2048 dimensions."""
    return _resnet("resnet50", shape, classes)


def _resnet(name: str, shape: tuple[int, ...], classes: int) -> SplitModel:
    _require_colour(name, shape)
    network = getattr(torchvision("models"), name)(weights=None, num_classes=classes)
    head, network.fc = network.fc, nn.Identity()
    channels = network.inplanes  # of the last stage; each has twice those of the one before
    return SplitModel(network, head, {f"layer{stage}": channels >> (4 - stage) for stage in (1, 2, 3, 4)})


def mobilenet_v2(shape: tuple[int, ...], classes: int) -> SplitModel:
    """3,504,872 parameters with 1000 classes. Its features have 1280 dimensions; the dropout before the classifier is in the body."""
    _require_colour("mobilenet_v2", shape)
    network = torchvision("models").mobilenet_v2(weights=None, num_classes=classes)
    dropout, head = network.classifier
    network.classifier = nn.Sequential(dropout)
    return SplitModel(network, head, {"features.3": 24, "features.6": 32, "features.13": 96, "features.18": 1280})


def _require_colour(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[0] != 3:
        raise UserError(f'model "{name}" needs colour images, the data set has inputs of shape {tuple(shape)}; try "cnn" or "mlp"')
