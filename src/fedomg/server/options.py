"""The `[server]` and `[aggregator]` tables of the configuration."""

from typing import Literal

from pydantic import Field

from fedomg.core.options import LARGE, Options


class ServerOptions(Options):
    lr: float = Field(1.0, gt=0, le=LARGE, allow_inf_nan=False, description="what the direction is multiplied with")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of the server's step")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    buffers: Literal["average", "keep", "local"] = Field("average", description="what becomes of BatchNorm statistics")


class AggregatorOptions(Options):
    weighting: Literal["samples", "uniform"] | None = Field(None, description="weights of the clients; by default the method's own")
