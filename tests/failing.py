"""Models that fail in their own ways, named by their import path in tests that start processes of their own."""

import os
import signal

from torch import Tensor, nn


class Breaks(nn.Module):
    """Answers, but cannot be trained."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0], classes)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.fail()
        logits: Tensor = self.head(inputs)
        return logits

    def fail(self) -> None:
        raise ZeroDivisionError("no answer")


class Dies(Breaks):
    """Ends its process as the system does where memory is short."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
