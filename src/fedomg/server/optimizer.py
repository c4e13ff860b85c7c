"""The server's step. The sign lives here, once: an update points down the client's loss, and the server adds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedomg.core.params import Tensors

VELOCITY = "velocity"


@dataclass(frozen=True)
class ServerOptimizer:
    lr: float = 1.0
    momentum: float = 0.0

    def step(self, direction: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """What is added to the model, and the optimizer's state after it."""
        if not self.momentum:
            return self.lr * direction, state
        velocity = direction + self.momentum * state.get(VELOCITY, torch.zeros_like(direction))
        return self.lr * velocity, {VELOCITY: velocity}
