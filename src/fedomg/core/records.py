"""The named records that cross between client and server, and sums that pool exactly."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedomg.core.params import Tensors, nbytes

FIT = "fit"
"""The phase that trains. Any other asks clients for something that needs no training."""


@dataclass(frozen=True)
class Tally:
    """Sums over examples, so that pooling clients never averages averages."""

    n: int = 0
    correct: int = 0
    loss_sum: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.n + other.n, self.correct + other.correct, self.loss_sum + other.loss_sum)

    @property
    def accuracy(self) -> float:
        return self.correct / self.n

    @property
    def loss(self) -> float:
        return self.loss_sum / self.n


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to one client in one phase: the shared vector, buffers, and what the coordinator adds."""

    round: int
    shared: Tensor
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.shared.numel() * self.shared.element_size() + nbytes(self.buffers) + nbytes(self.extras)


@dataclass(frozen=True)
class Reply:
    """What one client returns from one phase; its update is a row of the server's update matrix.

    A client that finds its own work not finite says so in `usable`, and the server leaves it out.
    """

    client: int
    samples: int = 0
    steps: int = 0
    loss: float = 0.0
    update: Tensor | None = None
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    tallies: Mapping[str, Tally] = field(default_factory=dict)
    usable: bool = True

    @property
    def nbytes(self) -> int:
        row = 0 if self.update is None else self.update.numel() * self.update.element_size()
        return row + nbytes(self.buffers) + nbytes(self.extras)


ClientState = Tensors
"""A client's own memory between rounds. Empty until the client has something to remember: absence means the initial value."""
