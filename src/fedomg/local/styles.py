"""Styles of feature maps: the mean and the deviation of each channel over space. One style is a tensor (2, channels)."""

from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST_VARIANCE = 1e-6


def style_of(maps: Tensor) -> Tensor:
    """(examples, 2, channels), without gradient."""
    variance, mean = _variance_and_mean(maps.detach().float().flatten(2), dim=2)
    return torch.stack([mean, (variance + SMALLEST_VARIANCE).sqrt()], dim=1)


def without_style(maps: Tensor, styles: Tensor) -> Tensor:
    mean, deviation = _over_space(styles)
    return (maps - mean) / deviation


def with_style(maps: Tensor, styles: Tensor) -> Tensor:
    mean, deviation = _over_space(styles)
    return maps * deviation + mean


def _over_space(styles: Tensor) -> tuple[Tensor, Tensor]:
    mean, deviation = styles[..., None, None].unbind(dim=1)
    return mean, deviation


def _variance_and_mean(values: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The unbiased variance, zero of a single value."""
    return torch.var_mean(values, dim=dim, correction=min(1, values.shape[dim] - 1))


def summary(styles: Tensor) -> Tensor:
    """Mean and deviation of these styles: (2, 2, channels)."""
    variance, mean = _variance_and_mean(styles, dim=0)
    return torch.stack([mean, variance.sqrt()])


def drawn_from(summary: Tensor, count: int) -> Tensor:
    """That many styles from the Gaussian of this mean and deviation; no deviation of a map is negative."""
    mean, deviation = summary
    styles: Tensor = mean + deviation * torch.randn(count, *mean.shape, device=mean.device)
    styles[:, 1].clamp_(min=0)
    return styles


def representative(styles: Tensor, count: int) -> Tensor:
    """Centres of that many clusters: seeded by k-means++, then moved once to the means of those nearest to them."""
    points = styles.flatten(1)
    centre = points[torch.randint(len(points), (1,), device=points.device)]
    seeds, distances = [centre], (points - centre).square().sum(dim=1)
    for _ in range(count - 1):
        reach = distances.cumsum(dim=0)
        drawn = torch.searchsorted(reach, reach[-1:] * torch.rand(1, device=points.device), right=True)
        centre = points[drawn.clamp(max=len(points) - 1)]
        seeds.append(centre)
        distances = torch.minimum(distances, (points - centre).square().sum(dim=1))
    found = torch.cat(seeds)
    nearest = torch.cdist(points, found).argmin(dim=1)
    members = (nearest == torch.arange(count, device=points.device).unsqueeze(1)).to(points.dtype)
    sizes = members.sum(dim=1, keepdim=True)
    moved = torch.where(sizes > 0, members @ points / sizes.clamp(min=1), found)
    return moved.view(count, *styles.shape[1:])


def extrapolated(styles: Tensor, chosen: Tensor, distance: float) -> Tensor:
    """The chosen styles, taken further from the mean of all."""
    return styles[chosen] + distance * (styles[chosen] - styles.mean(dim=0))


def mixed(styles: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Each style, by its weight, with that of another example."""
    weights = weights.view(-1, 1, 1)
    return weights * styles + (1 - weights) * styles[order]


class Classes(NamedTuple):
    """Positions in order of their class, and where each class begins and how many it has."""

    positions: Tensor
    starts: Tensor
    counts: Tensor


def by_class(labels: Tensor, classes: int, order: Tensor) -> Classes:
    """Within a class the positions keep their order."""
    counts = torch.zeros(classes, dtype=torch.long, device=labels.device).index_add_(0, labels, torch.ones_like(labels))
    return Classes(order[labels[order].argsort(stable=True)], counts.cumsum(dim=0) - counts, counts)


def rarest(labels: Tensor, classes: int, count: int) -> Tensor:
    """Positions of that many more examples: again and again one of the class that then has the fewest, if it has any."""
    grouped = by_class(labels, classes, torch.randperm(len(labels), device=labels.device))
    more = torch.arange(count, device=labels.device)
    ties = torch.rand(classes, 1, device=labels.device)
    filled = (grouped.counts.unsqueeze(1) + more + ties).masked_fill(grouped.counts.unsqueeze(1) == 0, torch.inf)
    chosen = filled.flatten().argsort()[:count]
    of_class, repetition = chosen.div(count, rounding_mode="floor"), chosen % count
    return grouped.positions[grouped.starts[of_class] + repetition % grouped.counts[of_class]]


class Partners(NamedTuple):
    """For each example the next one of its class, in a circle, and whether it is alone."""

    positions: Tensor
    alone: Tensor


def partners(labels: Tensor, classes: int) -> Partners:
    everyone = torch.arange(len(labels), device=labels.device)
    grouped = by_class(labels, classes, everyone)
    sorted_labels = labels[grouped.positions]
    rank = everyone - grouped.starts[sorted_labels]
    following = grouped.starts[sorted_labels] + (rank + 1) % grouped.counts[sorted_labels]
    positions = torch.empty_like(everyone).scatter_(0, grouped.positions, grouped.positions[following])
    return Partners(positions, grouped.counts[labels] == 1)
