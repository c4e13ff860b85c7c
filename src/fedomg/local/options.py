"""How a client trains: the keys of the `[local]` table that every method shares."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from pydantic import Field, field_validator

from fedomg.core.errors import UserError
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
    precision: Literal["float32", "bf16"] = Field("float32", description="bf16: the arithmetic of training, where the hardware has it")
    clip: float | None = Field(None, gt=0, le=LARGE, allow_inf_nan=False, description="largest norm of a gradient")

    @field_validator("precision")
    @classmethod
    def _available(cls, precision: str) -> str:
        if precision == "bf16" and not _has_bf16():
            raise UserError('local.precision = "bf16": this processor has no bf16 instructions, and without them it only slows down')
        return precision

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        """What a step computes in. Parameters, their updates and everything that is evaluated stay in float32."""
        return torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()

    def factor(self, position: float) -> float:
        """What the learning rate is multiplied with at a position in [0, 1) of the whole run."""
        if self.schedule == "step":
            return 0.1 if position >= 0.8 else 1.0
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * position)) / 2
        return 1.0


def _has_bf16() -> bool:
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
