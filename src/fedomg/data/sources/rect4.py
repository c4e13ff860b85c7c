"""Rect-4: four domains in the plane that share one noisy boundary, y = 0, while each offers a cleaner one of its own, x = const.

A domain is a pair of rectangles, one for each class, apart in x without noise. Which class lies to the right changes from
domain to domain: who learns from one domain alone prefers its cue, and is wrong in the next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.rng import generator
from fedomg.data.dataset import Dataset

NOISE = 0.5


@dataclass(frozen=True)
class Rectangle:
    centre: float
    width: float
    height: float
    sign: int


RECTANGLES = (
    Rectangle(centre=-6.0, width=2.0, height=2.0, sign=1),
    Rectangle(centre=-2.0, width=3.0, height=1.5, sign=-1),
    Rectangle(centre=2.0, width=1.5, height=3.0, sign=1),
    Rectangle(centre=6.0, width=2.5, height=2.5, sign=-1),
)


def load(seed: int, points: int = 500, shift: bool = True, rectangles: Sequence[Rectangle] = RECTANGLES, noise: float = NOISE) -> Dataset:
    """`points` examples (x, y) a domain, half of each class. Without `shift` they are pooled and dealt at random: no domain differs."""
    if points < 2:
        raise UserError(f"rect4 needs at least 2 points a domain, one of each class, not {points}")
    draws = generator(seed, "rect4")
    labels = torch.arange(points * len(rectangles)) % points % 2
    sides = (2 * labels - 1).view(len(rectangles), points)
    inputs = torch.cat([_draw(rectangle, sides[domain], noise, draws) for domain, rectangle in enumerate(rectangles)])
    if not shift:
        deal = torch.randperm(len(labels), generator=draws)
        inputs, labels = inputs[deal], labels[deal]
    return Dataset(
        inputs=inputs,
        labels=labels,
        domains=torch.arange(len(rectangles)).repeat_interleave(points),
        class_names=("below", "above"),
        domain_names=tuple(f"domain{number}" for number in range(1, len(rectangles) + 1)),
    )


def _draw(rectangle: Rectangle, sides: Tensor, spread: float, draws: torch.Generator) -> Tensor:
    """`sides` is -1 for the class below the line y = 0 and +1 for the one above."""
    across = torch.empty(len(sides)).uniform_(0.2, rectangle.width, generator=draws)
    along = torch.empty(len(sides)).uniform_(0.1, rectangle.height, generator=draws)
    noise = spread * torch.randn(len(sides), generator=draws)
    return torch.stack([rectangle.centre + rectangle.sign * sides * across, sides * along + noise], dim=1)
