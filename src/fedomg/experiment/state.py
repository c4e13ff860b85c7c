"""All that the server knows between two rounds."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedomg.core.params import Tensors

PARTS = ("buffers", "optimizer", "coordinator", "aggregator")


@dataclass(frozen=True)
class ServerState:
    round: int
    shared: Tensor
    buffers: Tensors = field(default_factory=dict)
    optimizer: Tensors = field(default_factory=dict)
    coordinator: Tensors = field(default_factory=dict)
    aggregator: Tensors = field(default_factory=dict)

    def to(self, device: torch.device) -> "ServerState":
        parts = {name: {key: tensor.to(device) for key, tensor in getattr(self, name).items()} for name in PARTS}
        return ServerState(self.round, self.shared.to(device), **parts)
