"""From the Gram matrix of the updates and the reference weights to the coefficients of the updates."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Combination:
    """The direction is `coefficients @ updates`. The rest says how a matching rule came to them.

    `reference` are the weights that it compared with, which also average the buffers.
    """

    coefficients: Tensor
    reference: Tensor
    weights: Tensor | None = None
    objective: float | None = None
    gap: float | None = None
    converged: bool | None = None


class Rule(Protocol):
    """`individual` is why the server must see each client's update: empty where their weighted sum suffices."""

    individual: str

    def combine(self, gram: Tensor, reference: Tensor) -> Combination: ...


class Mean:
    """The weighted mean of the updates."""

    individual = ""

    def combine(self, gram: Tensor, reference: Tensor) -> Combination:
        return Combination(reference, reference)
