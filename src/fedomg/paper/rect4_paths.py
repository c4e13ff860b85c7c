"""Paths of a linear model on Rect-4: centralised, FedAvg, FedOMG, on many data sets at once.

The paper's model has three numbers, (w_x, w_y, b), so that all data sets of a family fit into one tensor and are trained together. The
same numbers come out of `fedomg run` with the model `linear`, whose two classes differ by them, at half the learning rate; a test compares.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedomg import omg
from fedomg.core.rng import generator
from fedomg.data.dataset import Dataset
from fedomg.data.sources import rect4
from fedomg.data.sources.rect4 import RECTANGLES, Rectangle

STEPS = 5
RATE = 0.1
ROUNDS = 100


@dataclass(frozen=True)
class Construction:
    """How the domains are laid out, by a name, and the noise of the shared boundary."""

    layout: str
    noise: float

    def __str__(self) -> str:
        return f"{self.layout}, noise {self.noise:g}"

    def data(self, seed: int, shift: bool = True, points: int = 500) -> Dataset:
        return rect4.load(seed, points, shift, LAYOUTS[self.layout](seed), self.noise)


def _drawn(seed: int) -> list[Rectangle]:
    """Centres, sizes and signs at random, but never one sign for all: that is the layout `aligned`."""
    draw = generator(seed, "rect4-layout")

    def uniform(low: float, high: float) -> list[float]:
        values: list[float] = torch.empty(len(RECTANGLES)).uniform_(low, high, generator=draw).tolist()
        return values

    shapes = zip(uniform(-7, 7), uniform(1, 3), uniform(1, 3), strict=True)
    signs = [1, 1, -1, -1]
    return [Rectangle(*shape, signs[place]) for shape, place in zip(shapes, torch.randperm(4, generator=draw).tolist(), strict=True)]


LAYOUTS: dict[str, Callable[[int], Sequence[Rectangle]]] = {
    "alternating": lambda seed: RECTANGLES,
    "aligned": lambda seed: [Rectangle(r.centre, r.width, r.height, 1) for r in RECTANGLES],
    "near": lambda seed: [Rectangle(r.centre / 2, r.width, r.height, r.sign) for r in RECTANGLES],
    "drawn": _drawn,
}
FAMILY = tuple(Construction(layout, noise) for layout in LAYOUTS for noise in (0.25, 0.5, 1.0))


@dataclass(frozen=True)
class Users:
    """What each user of each data set holds: features (sets, users, points, 3), the last being 1, and sides, -1 or +1."""

    features: Tensor
    sides: Tensor

    @classmethod
    def of(cls, datasets: Sequence[Dataset]) -> "Users":
        count = len(datasets[0].domain_names)
        inputs = torch.stack([dataset.inputs.double().view(count, -1, 2) for dataset in datasets])
        sides = torch.stack([2 * dataset.labels.double().view(count, -1) - 1 for dataset in datasets])
        return cls(torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=-1), sides)

    def without(self, user: int) -> "Users":
        kept = [other for other in range(self.sides.shape[1]) if other != user]
        return Users(self.features[:, kept], self.sides[:, kept])

    def only(self, user: int) -> "Users":
        return Users(self.features[:, [user]], self.sides[:, [user]])

    def pooled(self) -> "Users":
        """One user who holds everything."""
        return Users(self.features.flatten(1, 2)[:, None], self.sides.flatten(1, 2)[:, None])


def updates(users: Users, models: Tensor) -> Tensor:
    """What local training adds to the models (sets, 3), for every user: (sets, users, 3). The loss is log(1 + exp(-side * score))."""
    local = models[:, None].expand(-1, users.sides.shape[1], -1)
    for _ in range(STEPS):
        scores = (users.features @ local[..., None]).squeeze(-1)
        slopes = users.sides * torch.sigmoid(-users.sides * scores) / users.sides.shape[-1]
        local = local + RATE * (slopes[..., None, :] @ users.features).squeeze(-2)
    return local - models[:, None]


def accuracy(users: Users, models: Tensor) -> Tensor:
    """Of each model on all points of its data set."""
    scores = torch.einsum("supk,sk->sup", users.features, models)
    return (users.sides * scores > 0).double().mean(dim=(1, 2))


Rule = Callable[[Tensor], Tensor]
"""From the updates (sets, users, 3) to the directions (sets, 3)."""


def mean(rows: Tensor) -> Tensor:
    return rows.mean(dim=1)


def matched(rows: Tensor) -> Tensor:
    """The method `fedomg` with its defaults."""
    preset = omg.preset("fedomg")
    return torch.stack([omg.solve_preset(each @ each.T, None, preset).coefficients @ each for each in rows])


@dataclass(frozen=True)
class Path:
    """Models (sets, rounds + 1, 3) from zero on, and the updates (sets, rounds, users, 3) on the way."""

    models: Tensor
    updates: Tensor

    @property
    def lengths(self) -> Tensor:
        """Of the steps, (sets, rounds)."""
        lengths: Tensor = torch.linalg.vector_norm(self.models.diff(dim=1), dim=-1)
        return lengths


def walk(users: Users, rule: Rule, server_lr: float = 1.0, rounds: int = ROUNDS, lengths: Tensor | None = None) -> Path:
    """Trains for so many rounds. With `lengths` (sets, rounds), the rule decides only where each step goes."""
    models, moves = [users.features.new_zeros(len(users.sides), 3)], []
    for round in range(rounds):
        moves.append(updates(users, models[-1]))
        step = server_lr * rule(moves[-1])
        if lengths is not None:
            step = step * (lengths[:, round] / step.norm(dim=-1).clamp(min=1e-300))[:, None]
        models.append(models[-1] + step)
    return Path(torch.stack(models, dim=1), torch.stack(moves, dim=1))


def centralised(users: Users, rounds: int = ROUNDS) -> Path:
    return walk(users.pooled(), mean, rounds=rounds)
