"""How a client trains: the keys of the `[local]` table that every method shares."""

import math
from typing import Literal

from pydantic import Field

from fedomg.core.options import LARGE, MOST, Options


class LocalOptions(Options):
    """A method with keys of its own subclasses this."""

    epochs: int = Field(1, ge=1, le=MOST, description="passes over the client's training data a round")
    steps: int | None = Field(None, ge=1, le=MOST, description="optimizer steps a round, in place of epochs")
    batch_size: int = Field(16, ge=1, le=MOST, description="examples a step")
    drop_last: bool = Field(True, description="leave out the last partial batch where a client has a whole one")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="the client's optimizer")
    optimizer_state: Literal["reset", "persistent"] = Field("reset", description="whether momentum lives on between rounds")
    lr: float = Field(0.005, gt=0, le=LARGE, allow_inf_nan=False, description="learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    weight_decay: float = Field(0.0, ge=0, le=LARGE, allow_inf_nan=False, description="weight decay")
    schedule: Literal["constant", "step", "cosine"] = Field("constant", description="step: a tenth of the rate for the last fifth")
    clip: float | None = Field(None, gt=0, le=LARGE, allow_inf_nan=False, description="largest norm of a gradient")

    def factor(self, position: float) -> float:
        """What the learning rate is multiplied with at a position in [0, 1) of the whole run."""
        if self.schedule == "step":
            return 0.1 if position >= 0.8 else 1.0
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * position)) / 2
        return 1.0
