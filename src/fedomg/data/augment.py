"""What is done to training pictures: on whole batches, on the device where they are, drawn from the client's own generator.

Pictures are (B, 3, H, W) with values in [0, 1]. All numbers are drawn on the processor, a few for each picture, so that every device
makes the same choices. Crops are taken from the picture as it is kept, which has its final size already.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedomg.data import colour
from fedomg.data.options import Augmentation

Transform = Callable[[Tensor, int, Generator], Tensor]
"""Pictures, the side that they get, the generator."""

TRIES = 10


@dataclass(frozen=True)
class Jitter:
    """Factors of brightness, contrast and saturation lie within 1 - x and 1 + x; hue is turned by up to the given part of the circle."""

    brightness: float
    contrast: float
    saturation: float
    hue: float

    def __call__(self, pictures: Tensor, draw: Generator) -> Tensor:
        """The four changes in an order of its own for each picture."""
        count = len(pictures)
        reach = torch.tensor([self.brightness, self.contrast, self.saturation, self.hue])
        amounts = (2 * torch.rand(count, 4, generator=draw) - 1) * reach + torch.tensor([1.0, 1.0, 1.0, 0.0])
        kinds = torch.rand(count, 4, generator=draw).argsort(dim=1).T
        members, amounts = (
            kinds.argsort(dim=1, stable=True).to(pictures.device, non_blocking=True),
            amounts.to(pictures.device, non_blocking=True),
        )
        for place in range(4):
            sizes = kinds[place].bincount(minlength=4).tolist()
            for kind, here in enumerate(members[place].split(sizes)):
                if len(here):
                    pictures[here] = colour.CHANGES[kind](pictures[here], amounts[here, kind].view(-1, 1, 1, 1))
        return pictures


@dataclass(frozen=True)
class CropAndColour:
    """A random part of the picture, resized; mirrored in half of the cases; then colours changed, and some pictures made grey."""

    jitter: Jitter | None = None
    grey: float = 0.0
    ratio: tuple[float, float] = field(default=(3 / 4, 4 / 3))
    scale: tuple[float, float] = field(default=(0.7, 1.0))

    def __call__(self, pictures: Tensor, side: int, draw: Generator) -> Tensor:
        boxes = _boxes(len(pictures), pictures.shape[-2], pictures.shape[-1], self.scale, self.ratio, draw)
        found = resample(pictures, boxes, _mirrored(len(pictures), draw), side)
        if self.jitter is not None:
            found = self.jitter(found, draw)
        if self.grey:
            chosen = (torch.rand(len(found), generator=draw) < self.grey).nonzero().flatten().to(found.device, non_blocking=True)
            found[chosen] = colour.grey(found[chosen]).expand(-1, 3, -1, -1)
        return found


def translate(pictures: Tensor, side: int, draw: Generator, growth: float = 1.125) -> Tensor:
    """Mirrored in half of the cases, and in half of the cases grown by an eighth and cut to its old size at a random place."""
    count, (height, width) = len(pictures), pictures.shape[-2:]
    mirrored = _mirrored(count, draw)
    moved = torch.rand(count, generator=draw) < 0.5
    shares = torch.rand(2, count, generator=draw)
    tall, wide = (torch.where(moved, length / growth, torch.full((count,), float(length))) for length in (height, width))
    boxes = torch.stack([shares[0] * (height - tall), shares[1] * (width - wide), tall, wide], dim=1)
    return resample(pictures, boxes, mirrored, side)


def _mirrored(count: int, draw: Generator) -> Tensor:
    return torch.rand(count, generator=draw) < 0.5


def _boxes(count: int, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draw: Generator) -> Tensor:
    """Top, left, height and width of a random part of each picture, in whole pixels.

    The first of ten draws that fits; where none does, the middle, as large as the ratio admits.
    """
    areas = height * width * torch.empty(TRIES, count).uniform_(*scale, generator=draw)
    ratios = torch.empty(TRIES, count).uniform_(*map(math.log, ratio), generator=draw).exp()
    places = torch.rand(2, count, generator=draw)
    wide, tall = (areas * ratios).sqrt().round(), (areas / ratios).sqrt().round()
    fits = (wide >= 1) & (wide <= width) & (tall >= 1) & (tall <= height)
    first = fits.float().argmax(dim=0, keepdim=True)
    whole = _middle(height, width, ratio)
    fitting = fits.any(dim=0)
    tall = torch.where(fitting, tall.gather(0, first)[0], whole[0])
    wide = torch.where(fitting, wide.gather(0, first)[0], whole[1])
    top = torch.where(fitting, (places[0] * (height - tall + 1)).floor(), ((height - tall) / 2).floor())
    left = torch.where(fitting, (places[1] * (width - wide + 1)).floor(), ((width - wide) / 2).floor())
    return torch.stack([top, left, tall, wide], dim=1)


def _middle(height: int, width: int, ratio: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Height and width of the largest part of an admitted ratio."""
    if width / height < ratio[0]:
        return torch.tensor(float(round(width / ratio[0]))), torch.tensor(float(width))
    if width / height > ratio[1]:
        return torch.tensor(float(height)), torch.tensor(float(round(height * ratio[1])))
    return torch.tensor(float(height)), torch.tensor(float(width))


def resample(pictures: Tensor, boxes: Tensor, mirrored: Tensor, side: int) -> Tensor:
    """The parts of the pictures in the boxes, bilinearly brought to a square; pixels have their centres at halves."""
    height, width = pictures.shape[-2:]
    steps = (torch.arange(side) + 0.5) / side
    top, left, tall, wide = boxes.unbind(dim=1)
    rows = top.unsqueeze(1) + tall.unsqueeze(1) * steps
    columns = left.unsqueeze(1) + wide.unsqueeze(1) * torch.where(mirrored.unsqueeze(1), steps.flip(0), steps)
    # The border of the box, not of the picture, is where a crop ends: what lies beyond is not seen.
    rows = _within(rows, top, tall) * 2 / height - 1
    columns = _within(columns, left, wide) * 2 / width - 1
    grid = torch.stack(torch.broadcast_tensors(columns.unsqueeze(1), rows.unsqueeze(2)), dim=3)
    return F.grid_sample(pictures, grid.to(pictures.device, non_blocking=True), padding_mode="border", align_corners=False)


def _within(places: Tensor, start: Tensor, length: Tensor) -> Tensor:
    return places.clamp((start + 0.5).unsqueeze(1), (start + length - 0.5).unsqueeze(1))


AUGMENTATIONS: Mapping[Augmentation, Transform] = {
    "feddg-ga": CropAndColour(Jitter(0.4, 0.4, 0.4, 0.4), grey=0.1),
    "domainbed": CropAndColour(Jitter(0.3, 0.3, 0.3, 0.3), grey=0.1),
    "stablefdg": translate,
    "celeba": CropAndColour(ratio=(1.0, 4 / 3)),
}
