"""How much each client counts in the reference aggregate."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fedomg.core.options import Options
from fedomg.core.params import Tensors
from fedomg.core.records import Reply


class Weighting(ABC):
    """Made from the method's own options, the keys of `[local]`."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def initial(self, clients: int, rounds: int) -> Tensors:
        """The state before the first round, given how many clients there are and how many rounds will be run."""
        return {}

    @abstractmethod
    def weights(self, replies: Sequence[Reply], state: Tensors) -> tuple[Tensor, Tensors]:
        """Weights that sum to one over these replies (float64), and the state for the next round."""


class Samples(Weighting):
    """By the number of training examples."""

    def weights(self, replies: Sequence[Reply], state: Tensors) -> tuple[Tensor, Tensors]:
        counts = torch.tensor([reply.samples for reply in replies], dtype=torch.float64)
        return counts / counts.sum(), state


class Uniform(Weighting):
    """Every client the same."""

    def weights(self, replies: Sequence[Reply], state: Tensors) -> tuple[Tensor, Tensors]:
        return torch.full((len(replies),), 1 / len(replies), dtype=torch.float64), state


WEIGHTINGS: dict[str, type[Weighting]] = {"samples": Samples, "uniform": Uniform}
