"""All that the server knows between two rounds."""

from dataclasses import dataclass, field

from torch import Tensor

from fedomg.core.params import Tensors


@dataclass(frozen=True)
class ServerState:
    round: int
    shared: Tensor
    buffers: Tensors = field(default_factory=dict)
    optimizer: Tensors = field(default_factory=dict)
    coordinator: Tensors = field(default_factory=dict)
    aggregator: Tensors = field(default_factory=dict)
