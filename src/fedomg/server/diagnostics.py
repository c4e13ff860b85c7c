"""How the clients of one round agree, read off the Gram matrix of their updates."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Agreement:
    norms: Tensor
    cosines: Tensor
    mean_pair_cosine: float | None
    conflict_ratio: float | None


def agreement(gram: Tensor, products: Tensor, step_norm: float) -> Agreement:
    """`products` are the inner products of the updates with the step taken. A zero vector has cosine NaN."""
    norms = gram.diagonal().clamp(min=0).sqrt()
    cosines = products / (norms * step_norm)
    rows, columns = torch.triu_indices(len(gram), len(gram), offset=1)
    inner = gram[rows, columns]
    pairs = inner / (norms[rows] * norms[columns])
    defined = pairs.isfinite()
    if not defined.any():
        return Agreement(norms, cosines, None, None)
    return Agreement(norms, cosines, float(pairs[defined].mean()), float((inner[defined] < 0).double().mean()))
