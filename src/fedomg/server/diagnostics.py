"""How the clients of one round agree, read off the Gram matrix of their updates."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Numbers = dict[str, Any]
DIGITS = 6
"""Of a pair's numbers in a record: there are many of them."""


class Agreement(NamedTuple):
    """Of each update: its length, and its cosine with the step taken. A zero vector has cosine NaN."""

    norms: Tensor
    cosines: Tensor


def agreement(gram: Tensor, products: Tensor, step_norm: float) -> Agreement:
    """`products` are the inner products of the updates with the step."""
    norms = gram.diagonal().clamp(min=0).sqrt()
    return Agreement(norms, products / (norms * step_norm))


class Pairs(NamedTuple):
    """Of every two updates, in the order (0, 1), (0, 2), ..., (1, 2), ...: inner product, cosine, length of the difference."""

    inner_product: Tensor
    cosine: Tensor
    divergence: Tensor


def pairs(gram: Tensor) -> Pairs:
    rows, columns = torch.triu_indices(len(gram), len(gram), offset=1)
    squares, inner = gram.diagonal().clamp(min=0), gram[rows, columns]
    cosine = inner / (squares[rows] * squares[columns]).sqrt()
    return Pairs(inner, cosine.clamp(-1, 1), (squares[rows] + squares[columns] - 2 * inner).clamp(min=0).sqrt())


def pair_means(found: Pairs) -> Numbers:
    """Over all pairs; the cosine and the share of conflicts over those of which neither is zero. None where there is no pair."""
    defined = found.cosine.isfinite()
    return {
        "mean_pair_cosine": _mean(found.cosine[defined]),
        "mean_pair_inner_product": _mean(found.inner_product),
        "mean_pair_divergence": _mean(found.divergence),
        "conflict_ratio": _mean((found.inner_product[defined] < 0).double()),
    }


def pair_matrices(found: Pairs, clients: Sequence[int]) -> Numbers:
    """The upper triangles, without the diagonal: row i holds the pairs of the i-th client with those after it."""
    lengths = list(range(len(clients) - 1, 0, -1))
    triangles = {name: [_short(row) for row in values.split(lengths)] for name, values in found._asdict().items()}
    return {"clients": list(clients), **triangles}


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _short(values: Tensor) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values.tolist()]
